"""A small training of DPZV, which is played in milliseconds."""

from mechanisms.methods.dpzv import DPZVConfig

SMALL = {"batch_size": 4, "epochs": 6, "embedding": 16, "hidden": 32, "dtype": "float64", "sigma": 0.5, "clip": 2.0}


def small(**options):
    return DPZVConfig(**(SMALL | options))
