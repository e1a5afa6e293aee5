"""What a stack of replicas costs: K trainings in one stack against one after another, and a round against its products.

The bare arithmetic of a round is a loop of the very matrix products in it, captured as they ran, on ready tensors. On
digits a DPZV replica-round at K = 128 was promised at 1/12 of a round at K = 1, a DPZV round at 4 times its bare
arithmetic at K = 1 and at 2.5 times at K = 128, and one of `dpzv-sound` at 1.3 times one of `dpzv` at K = 128. Nothing
was promised of the other methods.

Run: python benchmarks/run.py replicas rounds sound
"""

import torch
from measuring import least, products_of, random_dataset, tensors
from ratios import Row, milliseconds

from dpzv_audit.data import load
from mechanisms import METHODS
from mechanisms.core.context import RunContext

STACK = 128
GAIN_PROMISED = 12.0
ROUND_PROMISED = {1: 4.0, STACK: 2.5}
SOUND_PROMISED = 1.3
ROUNDS = {1: 60, STACK: 4}
"""Rounds a turn by size of the stack."""

MODELS = {"16 -> 32 -> 10": {}, "sum, no top": {"top_model": False}}
CNN_STACK = 16


def run_of(data, method, replicas, device, **options):
    """A run of `replicas` replicas with rounds enough for any benchmark."""
    config = METHODS[method].configure(epochs=1_000, **options)
    run = METHODS[method].start(data, config, RunContext(seed=0, replicas=range(replicas), device=device))
    for _ in range(8):
        run.step()
    return run


@torch.no_grad()
def stack_rows(*, quick=False, device="cpu"):
    """A replica-round of a stack against a round of one replica alone, by method and model."""
    data = tensors(load("digits"), device)
    cases = [("dpzv", name, batch, options, STACK) for name, options in MODELS.items() for batch in (8, 16, 64)]
    cases += [(method, "16 -> 32 -> 10", 64, {}, STACK) for method in METHODS if method != "dpzv"]
    if quick:
        cases = [case for case in cases if case[:2] == ("dpzv", "16 -> 32 -> 10") or case[0] in ("split", "vafl")]
    for case in cases:
        promised = GAIN_PROMISED if case[0] == "dpzv" else None
        yield _gain(data, case, promised, 2 if quick else 9, device)
    if not quick:
        images = tensors(random_dataset("strips", 512, 16, 4, (1, 7, 28)), device)
        for method in ("dpzv", "vafl"):
            yield _gain(
                images, (method, "two-layer CNN", 64, {"client_model": "strip-cnn"}, CNN_STACK), None, 3, device
            )


def _gain(data, case, promised, turns, device):
    method, model, batch, options, stack = case
    alone, together = (run_of(data, method, k, device, batch_size=batch, **options) for k in (1, stack))
    single, many = least([(alone.step, ROUNDS[1]), (together.step, ROUNDS[STACK])], turns=turns, device=device)
    return Row(
        what=f"{method}, {model}, B = {batch}",
        ours=f"{milliseconds(many / stack)} a replica-round at K = {stack}",
        beside=f"{milliseconds(single)} at K = 1",
        ratio=single / (many / stack),
        promised=promised,
        at_least=True,
    )


@torch.no_grad()
def product_rows(*, quick=False, device="cpu"):
    """A DPZV round on digits against the bare products in it."""
    data = tensors(load("digits"), device)
    for model, options in list(MODELS.items())[: 1 if quick else None]:
        for batch in (8, 16, 64, 256):
            for stack in (1, STACK):
                run = run_of(data, "dpzv", stack, device, batch_size=batch, **options)
                products = products_of(run.step, before=0)
                repeats = ROUNDS[stack]
                round_, bare = least([(run.step, repeats), (products, repeats)], turns=2 if quick else 9, device=device)
                yield Row(
                    what=f"dpzv, {model}, B = {batch}, K = {stack}",
                    ours=f"{milliseconds(round_)} a round",
                    beside=f"{milliseconds(bare)} of products",
                    ratio=round_ / bare,
                    promised=ROUND_PROMISED[stack],
                )


@torch.no_grad()
def sound_rows(*, quick=False, device="cpu"):
    """A round of `dpzv-sound` on digits against one of `dpzv`, by kind of direction."""
    data = tensors(load("digits"), device)
    kinds = ("sphere", "rademacher")
    dpzv = run_of(data, "dpzv", STACK, device, batch_size=64)
    sound = [run_of(data, "dpzv-sound", STACK, device, batch_size=64, direction=kind) for kind in kinds]
    rounds = [(run.step, 12) for run in (dpzv, *sound)]  # two blocks of the server's directions
    plain, *taken = least(rounds, turns=2 if quick else 25, device=device)
    for kind, seconds in zip(kinds, taken, strict=True):
        yield Row(
            what=f"dpzv-sound, {kind}, B = 64, K = {STACK}",
            ours=f"{milliseconds(seconds)} a round",
            beside=f"{milliseconds(plain)} a round of dpzv",
            ratio=seconds / plain,
            promised=SOUND_PROMISED,
        )
