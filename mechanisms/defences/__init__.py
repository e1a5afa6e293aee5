"""Defences by name, which make a training tell less; adding one is one file and a line here.

A defence's file is imported when the defence is looked up. Packages that are installed beside this one may add theirs
(`dpzv_audit.base.registry`).
"""

from ..core.defence import DEFENCES, defence_of

__all__ = ["DEFENCES", "defence_of"]

DEFENCES.add(
    {
        "label-rr": "mechanisms.defences.label:RESPONSE",
        "label-rr-prior": "mechanisms.defences.label:RESPONSE_PRIOR",
        "label-cluster": "mechanisms.defences.label:CLUSTER",
        "label-one-shot": "mechanisms.defences.label:ONE_SHOT",
        "confusional-autoencoder": "mechanisms.defences.confusion:SPEC",
        "dcor": "mechanisms.defences.correlation:SPEC",
        "answer-check": "mechanisms.defences.answers:SPEC",
        "max-norm": "mechanisms.defences.gradient:MAX_NORM",
        "marvell": "mechanisms.defences.marvell:SPEC",
        "sparsify": "mechanisms.defences.gradient:SPARSIFY",
        "discretise": "mechanisms.defences.gradient:DISCRETISE",
    }
)
