"""Plays the label game on one configuration: the `result.json` of `audit`."""

from __future__ import annotations

from dpzv_audit.data.vertical import VerticalDataset
from dpzv_audit.errors import InputError
from dpzv_audit.evaluation.common import NEIGHBOURS, AuditPlan, Reporter, Result, silent
from dpzv_audit.evaluation.privacy import privacy_sections
from dpzv_audit.evaluation.sections import provenance
from dpzv_audit.evaluation.sentences import privacy_sentence
from mechanisms import DPZVConfig, MethodSpec, TrainingConfig
from mechanisms.plan import plan


def audit_result(
    method: MethodSpec,
    config: TrainingConfig,
    dataset: VerticalDataset,
    *,
    adversary: str,
    audit: AuditPlan,
    seed: int = 0,
    device: str = "cpu",
    reporter: Reporter | None = None,
) -> Result:
    """Play the label game and set the lower bound beside every upper bound; schema `dpzv-audit/audit/1`."""
    if not isinstance(config, DPZVConfig):
        raise InputError(f"--method is {method.name!r}, which adds no noise: there is no epsilon to audit")
    the_plan = plan(config, records=len(dataset.train), clients=dataset.clients, seed=seed)
    if the_plan.sigma == 0.0:
        raise InputError("the noise is 0 (sigma 0 or calibration none): there is no epsilon to audit")
    privacy, tradeoff = privacy_sections(
        config,
        dataset,
        the_plan,
        adversary=adversary,
        audit=audit,
        seed=seed,
        device=device,
        reporter=reporter or silent(),
    )
    return {
        "schema": "dpzv-audit/audit/1",
        "method": method.name,
        "dataset": dataset.name,
        "adversary": adversary,
        "game": {
            "canary": f"worst-case (record 0, saturating at +C or -C; the others contribute {audit.others})",
            "neighbours": NEIGHBOURS,
            "adversary": adversary,
            "score": "sum of the scalars received for batches with the canary, less what the others add",
            "runs_in": audit.runs,
            "runs_out": audit.runs,
        },
        "privacy": privacy,
        "sentence": privacy_sentence(privacy),
        "tradeoff": tradeoff,
        "protects": method.protects(config),
        **provenance(config, dataset, seed, device, audit.chunk),
    }
