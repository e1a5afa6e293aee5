"""The contract of an attack: it says whom it is for, reads its view and changes nothing, and its controls hold."""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from attacks import AttackSetting, AttackSpec
from attacks.core.knowledge import Knowledge, Population
from attacks.core.spec import DoesNotApply, LabelGuesses
from attacks.feature.attribute import Inferred
from attacks.feature.inversion import Reconstruction
from attacks.feature.linkage import Linked
from attacks.gradient.estimation import GradientEstimates
from mechanisms import METHODS
from mechanisms.core.channel import View

from ..base.findings import ADVERSARIES
from ..data import DATASETS
from .datasets import check_words, refuses, require

# A negative control of a correct attack fails once in 10,000 settings; of one setting always, or never.
CONFIDENCE = 1.0 - 1e-4


def check_attack(spec: AttackSpec, setting: AttackSetting | None = None) -> None:
    """Check an attack against what every one keeps: mounts it once, with its controls.

    Args:
        spec: The attack.
        setting: What it is mounted on; by default the first of digits and breast-cancer, under dpzv without noise and
            under split, that it applies to, or else where its positive control is, with 16 trials of 4 epochs.

    Raises:
        AssertionError: It breaks a rule, which is named in one line.
    """
    check_words(spec)
    _check_declaration(spec)
    setting = replace(_fitting(spec) if setting is None else setting, confidence=CONFIDENCE)
    for method in METHODS:
        reason = spec.needs.unmet(setting.on(method, {}))
        one_line = reason is None or (reason.strip() and "\n" not in reason)
        require(one_line, spec, f"needs must say in one line why not {method}, says {reason!r}")
    outcome = replace(spec, infer=_checked(spec)).mount(setting)
    tested = False
    for name, control in outcome.controls.items():
        value = f"{name.replace('_', ' ')} is {control.value:.3f} (p = {control.p_value})"
        rule = f"must be at {control.expected:.3f}: it reads what its adversary may not know, or counts it wrongly"
        if control.kind == "positive":
            rule = f"must reach {control.expected:.3f}: it misses a leak that is planted for it"
        else:
            tested = control.p_value is not None
            require(tested, spec, f"{setting.trials} trials are too few to test its negative control: must be more")
        require(control.holds, spec, f"{value}, {rule}")
    require(tested, spec, "must have a negative control, which shows that it reads no truth")
    low = spec.goal.least_success
    success = outcome.success.value
    require(low <= success <= 1.0, spec, f"success is {success}, must be {low} to 1")


def _check_declaration(spec: AttackSpec) -> None:
    unknown = sorted(set(spec.adversaries) - set(ADVERSARIES))
    named = spec.adversaries and not unknown
    require(named, spec, f"adversaries must be of {', '.join(ADVERSARIES)}: {unknown}")
    explained = bool(spec.needs.requires) == bool(spec.needs.requires_because)
    require(explained, spec, "requires and requires_because go together")
    within = spec.goal.least_success < spec.goal.positive.least <= 1.0
    require(within, spec, "positive.least must lie between chance and 1")
    for key, allowed in spec.setup.choices.items():
        held = spec.setup.options.get(key) in allowed
        require(held, spec, f"choices of {key} must hold the default of that option")
    refuses(spec, "an adversary that it does not name", lambda: spec.check("nobody", {}))


def _fitting(spec: AttackSpec) -> AttackSetting:
    """Return a setting that `spec` applies to."""
    own = {"dpzv": {"calibration": "none"}, "split": {}}
    for name, (key, quiet) in product(("digits", "breast-cancer"), own.items()):
        options = {**spec.needs.suggests, "batch_size": 32, "epochs": 4, **quiet, **spec.needs.requires}
        setting = AttackSetting(
            method=METHODS[key],
            config=METHODS[key].configure(**options),
            dataset=DATASETS[name].load(),
            adversary=spec.adversaries[0],
            queries=min(spec.setup.queries, 16),
            trials=16,
        )
        if spec.needs.unmet(setting) is None:
            return setting
    planted = replace(spec.goal.positive.setting(setting), trials=16)
    if spec.needs.unmet(planted) is None:
        return planted
    raise DoesNotApply(f"{spec.name} applies to neither digits nor breast-cancer under dpzv or split: give a setting")


def _checked(spec: AttackSpec) -> Callable[[View, Knowledge], Any]:
    """Return `spec.infer` with a check of each answer: of its shape, that it comes again, and that the view stays."""

    def infer(view: View, known: Knowledge) -> Any:
        before = _digest(view)
        answer = spec.infer(view, known)
        again = _arrays(spec.infer(view, known))
        require(_digest(view) == before, spec, "infer changes the messages of its view, must not")
        rule = "of two answers to one view differ: draw from dpzv_audit.base.seeds.stream alone"
        for key, value in _arrays(answer).items():
            require(np.array_equal(value, again[key], equal_nan=True), spec, f"{key} {rule}")
        _check_shapes(spec, answer, known)
        return answer

    return infer


def _arrays(answer: Any) -> dict[str, np.ndarray]:
    """Return what an answer holds, by name, as arrays."""
    if isinstance(answer, Reconstruction):
        answer = SimpleNamespace(ids=answer.ids, features=torch.stack([*answer]))
    if isinstance(answer, Inferred | Linked):
        values = answer.scores if isinstance(answer, Inferred) else answer.distances
        answer = SimpleNamespace(ids=answer.ids, values=values, less=answer.less)
    parts: dict[Any, Any] = {"scores": answer} if isinstance(answer, np.ndarray) else {**vars(answer)}
    parts |= parts.pop("by_queries", {})
    arrays: dict[str, np.ndarray] = {}
    for name, less in parts.pop("less", {}).items():
        arrays |= {f"{key} of {name}": value for key, value in _arrays(less).items()}
    for key, entry in parts.items():
        if entry is not None:
            arrays[str(key)] = np.asarray(entry.cpu() if isinstance(entry, torch.Tensor) else entry)
    return arrays


def _check_shapes(spec: AttackSpec, answer: Any, known: Knowledge) -> None:
    if isinstance(answer, LabelGuesses):
        _check_guesses(spec, answer, known)
    elif isinstance(answer, np.ndarray):
        populations = [grant.confidence.shape for grant in known.grants if isinstance(grant, Population)]
        wanted = populations[0] if populations else (len(known.replicas), 2)
        rule = f"scores have shape {answer.shape}, must be {wanted}: one per record"
        require(answer.shape == wanted, spec, rule)
        require(np.isfinite(answer).all(), spec, "scores must be finite")
    elif isinstance(answer, Reconstruction):
        shapes = [tuple(features.shape) for features in answer]
        ids = tuple(answer.ids.shape)
        right = len(shapes) == len(known.replicas) and all(len(shape) == 2 and shape[:1] == ids for shape in shapes)
        rule = f"features and ids have shapes {shapes} and {ids}, must be K times (n, d), and (n,)"
        require(right, spec, rule)
    elif isinstance(answer, Inferred):
        wanted = (len(known.replicas), len(answer.ids), max(1, len(answer.kinds)))
        rule = f"scores have shape {answer.scores.shape}, must be {wanted}: one per record and category"
        require(answer.scores.shape == wanted, spec, rule)
    elif isinstance(answer, Linked):
        wanted = (len(known.replicas), len(answer.ids), len(answer.ids))
        rule = f"distances have shape {answer.distances.shape}, must be {wanted}: of each embedding from each candidate"
        require(answer.distances.shape == wanted, spec, rule)
    else:
        rule = f"infer returns a {type(answer).__name__}, which no mount function scores"
        require(isinstance(answer, GradientEstimates), spec, rule)


def _check_guesses(spec: AttackSpec, guesses: LabelGuesses, known: Knowledge) -> None:
    labels = guesses.labels
    stack = len(known.replicas)
    shape = tuple(labels.shape)
    right = len(shape) == 3 and shape[1] == stack and labels.dtype == torch.int64
    rule = f"labels are {labels.dtype} {shape}, must be int64 (answers, K = {stack}, B)"
    require(right, spec, rule)
    within = (labels >= 0) & (labels < known.classes)
    require(within.all(), spec, f"labels must lie in 0 .. {known.classes - 1}")
    for name, wanted in (("ids", shape), ("scores", (*shape, known.classes))):
        rows = getattr(guesses, name)
        shaped = wanted if rows is None else tuple(rows.shape)
        require(shaped == wanted, spec, f"{name} have shape {shaped}, must be {wanted}")
    if guesses.ids is not None:
        require((guesses.ids < known.records).all(), spec, f"ids must lie below the {known.records} records")


def _digest(view: View) -> str:
    """Return a digest of all messages of `view`."""
    digest = hashlib.sha256()
    for message in view.messages:
        for tensor in (message.payload, message.ids):
            if tensor is not None:
                digest.update(tensor.cpu().numpy().tobytes())
    return digest.hexdigest()
