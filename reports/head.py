"""The head of a page: the verdict and what it is about, why, the strongest success found, and what to do next.

Each kind of result has a function that returns its `Judgement`. A claim that fell comes before
anything else, and an attack that finds no more than a guess is no alarm.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import singledispatch
from itertools import pairwise

from dpzv_audit.base.findings import (
    FALSE_ALARM,
    LEAST_TRAININGS,
    STRONGEST,
    Control,
    EmpiricalBound,
    Interval,
    VerdictWord,
    damage,
)
from dpzv_audit.results import (
    AttackResult,
    AttacksResult,
    AuditResult,
    Cell,
    ClaimResult,
    MatrixResult,
    NegativeControls,
    Privacy,
    Reported,
    Result,
    RunResult,
    ScoresResult,
    TrainResult,
    Verdict,
    VerifyResult,
)
from dpzv_audit.statistics.comparison import compared, of_these_trainings

from . import verification
from .document import Judgement, NextStep
from .figures import chance_level
from .matrix import attack_of, column_of_cell, never_applied, worst_first
from .text import as_claimed, attacker, capitalized, clean, lower_bound, proportion, the, upper_bound
from .verdicts import MEANINGS, notes_of, notes_on, set_aside, warnings_of, words_of

RELATIONS = {
    "replace-label": "one label changed",
    "replace-record": "one record replaced",
    "zero-out": "one record blanked out",
    "add-remove": "one record added or removed",
}
"""The relations of neighbours in words."""
LABELS = "labels found"
FALSE_OR_UNPROVEN = ("refuted", "overclaimed")
"""Verdicts on which a page raises an alarm: the claim is false, or no proof supports it."""
LEAST_CERTIFIED = 0.005
"""A certified epsilon below it is none in two decimals."""
_MOST_NOTES = 20
"""Notes that stand at the top of a page; the others stand with their claims."""
_MOST_ATTACKERS = 3
"""Attackers that a headline names."""
_TRAININGS = 2
"""Trainings whose coins `audit system` guesses by default."""
_GATE = NextStep("Put the claim into a file and check it on every change", command="dpzv-audit verify claims.toml")
_SETTINGS = frozenset({"--method", "--system", "--sample-rate", "--set", "--defence", "--defence-set"})
_OF_TRAINING = _SETTINGS | {"--dataset", "--data-dir", "--clients"}
"""Flags of a command line that say what was trained, as `calibrate` takes them too."""
_USUAL = ("client", "replace-label")
"""What `calibrate` takes where nobody says another adversary or relation."""
_OF_NOISE = frozenset({"--epsilon", "--delta", "--calibration", "--sigma", "--clip", "--max-grad-norm"})
_OF_TABLES = frozenset(
    {"--csv", "--label", "--columns", "--classes", "--categories", "--scales", "--drop", "--test-csv"}
)
_OF_TABLES |= {"--separator", "--partition", "--data-option", "--subset"}
_NOT_CALIBRATED = _OF_TABLES | {"--simulate", "--transcript", "--defence"}
"""Flags of trainings whose noise `calibrate` cannot find from the same flags."""
_AS_TRAINED = _OF_TRAINING | _OF_NOISE | _OF_TABLES | {"--preset", "--epochs", "--batch-size"}
"""The same, and those with which `attack` trains the same system again."""


@dataclass(frozen=True, kw_only=True)
class AttackSuccess:
    """The success of one attack, `value`, beside the best baseline, `reference`, and a blind guess, `chance`.

    Those are None where a result has none. `leaks`: the success is above every baseline, as far as its intervals tell.
    `undecided`: more trainings might show that it is. `trusted`: no control failed. `certified`: the epsilon that its
    guesses of coins prove.
    """

    attack: str
    adversary: str
    value: float
    reference: float | None
    chance: float | None
    leaks: bool
    undecided: bool
    metric: str = LABELS
    trusted: bool = True
    certified: float = 0.0

    @property
    def proves(self) -> bool:
        """Whether its guesses prove an epsilon that does not print as 0."""
        return self.certified >= LEAST_CERTIFIED

    @property
    def harm(self) -> float:
        """The damage: 0 at the baseline, 1 for a perfect attack."""
        return damage(self.value, self.reference or 0.0)

    @property
    def much(self) -> str:
        """The success in words, as "finds 98.0% of labels"."""
        return f"{'finds' if self.metric == LABELS else 'reaches'} {much(self.value, self.metric)}"


def _in_words(best: AttackSuccess) -> str:
    """Return what an attack finds, and its baseline, as a sentence without its full stop."""
    beside = "" if best.reference is None else f" (baseline {share(best.reference, best.metric)})"
    return f"{best.attack} {best.much}{beside}"


def share(value: float, metric: str) -> str:
    """Return a success in percent where labels are found, else as a number."""
    return f"{100.0 * value:.1f}%" if metric == LABELS else proportion(value, 3)


def short_metric(metric: str) -> str:
    """Return what a table calls a metric."""
    return {"area under the ROC curve": "AUC", LABELS: "labels", "trainings whose label is guessed": "labels"}.get(
        metric, metric.partition(" of ")[0]
    )


def much(value: float, metric: str) -> str:
    """Return a success with its metric, as "98.0% of labels"."""
    return f"{share(value, metric)} {'of labels' if metric == LABELS else 'in ' + metric}"


def successes(result: AttackResult) -> list[AttackSuccess]:
    """Return the successes of attacks on the system of a result: its own, and another that stands beside it."""
    others = [_of_cell(cell) for cell in result.beside if cell.method == result.method]
    success, baselines = result.success, result.baselines
    if success is None:
        return others
    over = success.over_trainings
    guesses = {name: value for name, value in baselines.items() if not isinstance(value, Interval)}
    values = [value.value if isinstance(value, Interval) else value for value in baselines.values()]
    reference = max(values, default=None)
    leaks = bool(baselines) and all(compared(success, value).side == "above" for value in baselines.values())
    few = over is not None and over.low is None
    own = AttackSuccess(
        attack=clean(result.attack),
        adversary=clean(result.adversary),
        value=success.value,
        reference=reference,
        chance=chance_level(guesses),
        leaks=leaks,
        undecided=few and not leaks and of_these_trainings(success)[1] >= (reference or 0.0),
        metric=clean(result.metric),
        trusted=not failed_controls(result, by_chance=FALSE_ALARM),
        certified=0.0 if result.certified is None else result.certified.epsilon_lower,
    )
    return [own, *others]


def found_nothing(result: AttackResult) -> bool:
    """Return whether no attack was seen to find more than its baseline, and nothing speaks against that."""
    if result.success is None or not result.baselines:
        return False
    found = successes(result)
    own = found[0]
    trusted = own.trusted and not own.undecided and not result.warnings
    return trusted and not any(attack.leaks or attack.proves for attack in found)


def failed_controls(result: AttackResult, by_chance: float = 1.0) -> list[str]:
    """Return the names of an attack's controls that failed, where chance does so at most as often as `by_chance`."""
    return [
        clean(name).replace("_", " ")
        for name, control in result.controls.items()
        if isinstance(control, Control) and not control.holds and (control.p_value or 0.0) <= by_chance
    ]


def _of_cell(cell: Cell) -> AttackSuccess:
    few = cell.trainings is not None and cell.over_low is None
    return AttackSuccess(
        attack=clean(cell.attack),
        adversary=clean(cell.adversary),
        value=cell.success or 0.0,
        reference=cell.reference,
        chance=None,
        leaks=bool(cell.clear),
        undecided=few and not cell.clear and (cell.high or 0.0) >= (cell.reference or 0.0),
        metric=clean(cell.metric or LABELS),
        trusted=cell.controls_hold is not False,
        certified=cell.certified or 0.0,
    )


def strongest(attacks: Sequence[AttackSuccess]) -> AttackSuccess | None:
    """Return the attack of most damage: how far it lies between its baseline and a perfect attack."""
    return max(attacks, key=lambda attack: attack.harm, default=None)


def judged(privacy: Privacy) -> Verdict | None:
    """Return the verdict on a claimed epsilon; None where nothing is claimed, or a file contradicts itself."""
    return privacy.agreed


def word_of(privacy: Privacy) -> VerdictWord | None:
    """Return the word of that verdict."""
    verdict = judged(privacy)
    return None if verdict is None else verdict.word


def claim_in_words(privacy: Privacy) -> str:
    """Return the claim with its adversary, as "ε ≤ 1 (δ = 1e-05, one label changed) against one curious client"."""
    delta = "" if privacy.delta is None else f"δ = {as_claimed(privacy.delta)}"
    scope = ", ".join(filter(None, [delta, RELATIONS.get(privacy.neighbours or "", "")]))
    against = f" against {attacker(privacy.adversary)}" if privacy.adversary else ""
    return f"ε ≤ {as_claimed(privacy.claimed)}{f' ({scope})' if scope else ''}{against}"


def no_bound(privacy: Privacy) -> str:
    """Return why theory gives no upper bound, with the names of the gaps and what they mean."""
    gap = clean(privacy.gap or "")
    if not gap:
        return "no theorem covers it"
    # The explanation says what is wrong, and after a semicolon what would close the gap.
    meanings = [privacy.gap_explanations.get(name.strip(), "").partition(";")[0] for name in gap.split(",")]
    meaning = "; ".join(clean(meaning) for meaning in meanings if meaning)
    return f"no sound bound (gap {gap}{': ' + meaning if meaning else ''})"


def _fix(result: RunResult) -> NextStep:
    """Return how to make a claim true that fell: the noise that meets it, or a method that has a bound."""
    privacy = result.privacy
    words = _line(result)
    own = result.method.startswith("system:")
    if privacy.gap and "server-state" in privacy.gap and privacy.upper is None and not own:
        return NextStep(
            "Withdraw the claim, or train with dpzv-sound, which closes this gap",
            command=shlex.join(["dpzv-audit", "train", *_training(result, "dpzv-sound")]),
        )
    if privacy.upper is None:
        why = "the audit contradicts it" if word_of(privacy) == "refuted" else "no sound bound supports it"
        if isinstance(result, AuditResult) and "hunted" in result.game:
            return NextStep(f"Find the fault that this variant shows, or withdraw the claim: {why}.")
        return NextStep(f"Withdraw the claim: {why}.")
    instead = f"Data owners decide: claim ε ≤ {upper_bound(privacy.upper, privacy.claimed)}, or add noise"
    if {word.partition("=")[0] for word in words} & _NOT_CALIBRATED or words[1:3] == ["audit", "defence"]:
        return NextStep(f"{instead}.")
    parts: dict[str, object] = {"--epsilon": privacy.claimed, "--delta": privacy.delta}
    named = {"--adversary": privacy.adversary, "--neighbours": privacy.neighbours}
    parts |= {flag: value for flag, value in named.items() if value not in _USUAL}
    claim = [word for flag, value in parts.items() if value is not None for word in (flag, typed(value))]
    settings = _settings(result.config, " ".join(words))
    return NextStep(
        instead,
        command=shlex.join(["dpzv-audit", "calibrate", *_training(result), *settings, *claim]),
    )


def _settings(config: Mapping[str, object], line: str) -> list[str]:
    """Return the settings on which the bound rests as flags, where the command line leaves them to defaults."""
    words = []
    for key in ("epochs", "batch_size"):
        if key in config:
            words += [f"--{key.replace('_', '-')}", typed(config[key])]
    for key, usual in {"clip": None, "top_model": True, "server_update": "sgd", "sampler": "shuffled"}.items():
        if key in config and config[key] != usual and f"{key}=" not in line:
            words += ["--set", f"{key}={typed(config[key])}"]
    return words


def _training(result: RunResult, method: str = "", flags: frozenset[str] = _OF_TRAINING) -> list[str]:
    """Return those of `flags` that the command line gives and that say what was trained, or the same by a `method`."""
    words = _line(result)
    kept: list[str] = []
    named = False
    for place, word in enumerate(words):
        flag, equals, _ = word.partition("=")
        if flag in flags and not (method and flag == "--method"):
            kept += [word] if equals else words[place : place + 2]
            named |= flag in ("--method", "--system")
    return kept if named else ["--method", method or clean(result.method), *kept]


def _again(words: Sequence[str], flag: str, value: str) -> str:
    """Return a command line with a flag set to a value."""
    kept: list[str] = []
    skip = False
    for word in words:
        if not skip and word != flag and not word.startswith(f"{flag}="):
            kept.append(word)
        skip = word == flag and not skip
    return shlex.join([*kept, flag, value])


def _line(result: Result, *otherwise: str) -> list[str]:
    """Return the command line of a run, or another where the result holds none of ours."""
    words = list(getattr(result, "command_line", None) or [])
    return words if words[:1] == ["dpzv-audit"] else ["dpzv-audit", *otherwise]


def typed(value: object) -> str:
    """Return a value as it is typed: a number with all its digits, so that a command asks for no less."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        short = f"{value:g}"
        return short if float(short) == value else repr(value)
    return str(value)


_OF_SCORES = " against anyone who can compute these scores"
"""Scores in files name no adversary: a bound from them holds against everyone who can compute them."""


def _on_claim(result: RunResult | ScoresResult, verdict: Verdict, step: NextStep) -> Judgement:
    """Return the verdict on a claim; a run's claim that fell must be mended before anything else."""
    if isinstance(result, RunResult) and verdict.word in FALSE_OR_UNPROVEN:
        step = _fix(result)
    return Judgement(
        word=words_of(verdict),
        about=claim_in_words(result.privacy) + (_OF_SCORES if isinstance(result, ScoresResult) else ""),
        why=clean(verdict.why),
        alarming=verdict.word in FALSE_OR_UNPROVEN,
        notes=notes_on(verdict, result.warnings),
        step=step,
    )


def _no_claim(result: RunResult) -> str:
    """Return what there is instead of a claim, as the second half of a sentence."""
    lower, upper = result.privacy.empirical_lower, result.privacy.upper
    audit = "" if not lower else f"; an audit shows ε of at least {lower_bound(lower, result.privacy.claimed)}"
    theory = (
        no_bound(result.privacy) if upper is None else f"theory gives ε ≤ {upper_bound(upper, result.privacy.claimed)}"
    )
    return f"{theory}{audit}"


def _unjudged(result: RunResult, word: str, about: str, step: NextStep) -> Judgement:
    """Return what stands in the place of a verdict: there is no claim, or the result says nothing of it."""
    why = _no_claim(result)
    if result.privacy.claimed is not None:
        return Judgement("not judged", about=claim_in_words(result.privacy), why=f"{capitalized(why)}.", step=step)
    notes = [*_set_aside(result.privacy.estimators), *warnings_of(result.warnings)]
    return Judgement(word, about=about, why=f"No ε is claimed; {why}.", notes=notes, step=step)


def _set_aside(bounds: Sequence[EmpiricalBound]) -> list[str]:
    """Return a note where a stronger bound was set aside; a verdict has it among its warnings."""
    lower = max((bound.epsilon_lower for bound in bounds if not bound.assumes), default=None)
    return warnings_of(set_aside([(bound.epsilon_lower, bound.assumes) for bound in bounds], lower))


@singledispatch
def head_of(result: Reported) -> Judgement:
    """Return the verdict of a result, with what to do next."""
    raise TypeError(f"{type(result).__name__} has no head")


@head_of.register
def _(result: AttackResult) -> Judgement:
    judgement = _of_attack(result)
    failed = failed_controls(result, by_chance=FALSE_ALARM)
    if not failed:
        return judgement
    controls = f"{' and '.join(failed)} control{'s' if len(failed) > 1 else ''}"
    warning = f"Warning: the {controls} of {clean(result.attack)} failed. What it finds or does not find means nothing."
    if judgement.word in ("leaks", "no leak seen", "measured", "too few trainings to tell"):
        step = NextStep("Repeat with another --seed. If a control fails again, do not use this attack here.")
        judgement = replace(judgement, word="not to be trusted", alarming=True, step=step)
    return replace(judgement, notes=[warning, *judgement.notes])


def _of_attack(result: AttackResult) -> Judgement:
    """Return the head of an attack whose controls passed."""
    verdict = judged(result.privacy)
    best = strongest(successes(result))
    if verdict is not None and verdict.word in FALSE_OR_UNPROVEN:
        judgement = _on_claim(result, verdict, _GATE)
        if best and best.leaks:
            judgement = replace(judgement, why=f"{judgement.why} {_in_words(best)}.")
        return judgement
    words = _line(result, "attack")
    step = NextStep("Run the strongest attack too", command=_again(words, "--attack", STRONGEST))
    recorded = "--transcript" in words
    if recorded:
        step = NextStep("Record another training to test it again.")
    if best is None:
        about = f"{clean(result.attack)} by {the(result.adversary)}"
        return Judgement("not measured", about=about, why="", step=step)
    about = " ".join([best.attack, *(["by", the(best.adversary)] if best.adversary else []), best.much])
    why = _in_words(best)
    why += f"; {_no_claim(result)}." if verdict is None else f". {clean(verdict.why)}"
    if best.leaks:
        word = "leaks"
        step = NextStep("Choose a defence from this list and attack again", command="dpzv-audit list defences")
    elif best.undecided:
        word = "too few trainings to tell"
        if not recorded:
            step = NextStep("Repeat with more trainings", command=_again(words, "--trials", str(LEAST_TRAININGS)))
    else:
        proven = any(attack.proves for attack in successes(result))
        word = "measured" if best.reference is None or proven else "no leak seen"
    if verdict is not None and not best.leaks:
        return _on_claim(result, verdict, _GATE)
    notes = [*([] if verdict else _set_aside(result.privacy.estimators)), *notes_on(verdict, result.warnings)]
    return Judgement(word, about=about, why=why, alarming=best.leaks, notes=notes, step=step)


@head_of.register
def _(result: TrainResult) -> Judgement:
    verdict = judged(result.privacy)
    attack = ["dpzv-audit", "attack", *_training(result, flags=_AS_TRAINED), "--attack", STRONGEST]
    why = " to see what leaks" if verdict is None else ": training alone does not test the claim"
    step = NextStep(f"Attack it{why}", command=shlex.join(attack))
    if verdict is not None:
        return _on_claim(result, verdict, step)
    judgement = _unjudged(result, "no claim", f"{clean(result.method) or 'the training'} promises no ε", step)
    return replace(judgement, notes=["Not tested: no attack was run.", *judgement.notes])


@head_of.register
def _(result: AuditResult) -> Judgement:
    verdict = judged(result.privacy)
    more = _more(result, _line(result, "audit", "method", result.method))
    if verdict is None:
        lower = result.privacy.empirical_lower
        bound = "no ε" if lower is None else f"ε ≥ {lower_bound(lower)}"
        judgement = _unjudged(result, "measured", f"{bound} against {attacker(result.adversary)}", more)
        if result.privacy.claimed is None and _all_told(result):
            step = NextStep(
                "The bound is near the detection limit. Choose a defence from this list and audit again",
                command="dpzv-audit list defences",
            )
            return replace(judgement, word="leaks", alarming=True, step=step)
        return judgement
    return _on_claim(result, verdict, _GATE if verdict.word == "supported" else more)


def _more(result: AuditResult, words: Sequence[str]) -> NextStep:
    """Return how to audit with twice the evidence: trainings of a system, whose coins are many; else runs."""
    if result.method.startswith("system:"):
        trainings = next((int(b) for a, b in pairwise(words) if a == "--trials" and b.isdecimal()), _TRAININGS)
        return NextStep("Audit it with more trainings", command=_again(words, "--trials", str(2 * trainings)))
    if "--canaries" in words:
        canaries = next((int(b) for a, b in pairwise(words) if a == "--canaries" and b.isdecimal()), 0)
        return NextStep("Audit it with more canaries", command=_again(words, "--canaries", str(2 * canaries)))
    asked = next((int(b) for a, b in pairwise(words) if a == "--runs" and b.isdecimal()), 0)
    runs = max([bound.n_in for bound in result.privacy.estimators] or [1000])
    if asked > runs:
        return NextStep("Let it finish", command=_again(words, "--runs", str(asked)))
    return NextStep("Audit it with more runs", command=_again(words, "--runs", str(2 * runs)))


def _all_told(result: AuditResult) -> bool:
    """Return whether a lower bound is nearly the largest that its evidence could have given: guesses were right.

    A cut lies at a score of a pilot, so that some scores beyond it count as errors though all can be told apart.
    """
    bounds = [bound for bound in result.privacy.estimators if not bound.assumes]
    return any(0.0 < 0.95 * bound.ceiling <= bound.epsilon_lower for bound in bounds)


@head_of.register
def _(result: ScoresResult) -> Judgement:
    verdict = judged(result.privacy)
    if verdict is not None and verdict.word == "refuted":
        return _on_claim(result, verdict, NextStep("Withdraw the claim: the scores contradict it."))
    more = NextStep("Audit again with more scores: their detection limit is higher.")
    if verdict is None:
        # As the meaning: a bound that assumes something stands there only where no other does.
        bounds = [bound for bound in result.estimators if not bound.assumes] or result.estimators
        lower = max((bound.epsilon_lower for bound in bounds), default=None)
        about = "ε" if lower is None else f"ε ≥ {lower_bound(lower)}{_OF_SCORES}"
        notes = [*_set_aside(result.estimators), *warnings_of(result.warnings)]
        return Judgement("measured", about=about, why=clean(result.meaning), notes=notes, step=more)
    return _on_claim(result, verdict, more)


def _of_cells(cells: Sequence[Cell], controls: NegativeControls | None, where: str, line: Sequence[str]) -> Judgement:
    """Return the head of many attacks: how many are above their baseline, by which attackers, and the worst of them."""
    measured = worst_first(cells)
    if not measured:
        return Judgement("not measured", about=where, why="No attack was measured.")
    leaks = [cell for cell in measured if cell.clear]
    worst = (leaks or measured)[0]
    few = (worst.trainings or LEAST_TRAININGS) < LEAST_TRAININGS
    about = _counted(leaks, measured, where)
    why = _worst(worst)
    notes = [*_inapplicable(cells), *warnings_of(not_learnt(cells))]
    step = NextStep("Repeat with more trainings", command=_again(line, "--trials", str(LEAST_TRAININGS)))
    if "--transcript" in line:
        step = NextStep("Record another training to test it again.")
    elif not few:
        step = NextStep("Test other data and other attackers: attacks that find nothing prove no privacy.")
    if controls is not None and not controls.hold:
        why = f"Negative controls failed, the worst {clean(controls.worst)}: no number here can be trusted."
        return Judgement("not to be trusted", about=about, why=why, alarming=True, notes=notes)
    if leaks:
        # More trainings cannot make it worse than everything.
        if not few or (worst.success or 0.0) >= 1.0:
            step = NextStep("Read the report of the worst, then choose a defence", command="dpzv-audit list defences")
        return Judgement("leaks", about=about, why=why, alarming=True, notes=notes, step=step)
    proven = any((cell.certified or 0.0) >= LEAST_CERTIFIED for cell in measured)
    word = "too few trainings to tell" if few else "measured" if proven else "no leak seen"
    return Judgement(word, about=about, why=why, notes=notes, step=step)


def _counted(leaks: Sequence[Cell], measured: Sequence[Cell], where: str) -> str:
    """Return how many attacks, not cells, are above their baseline, and which attackers they are or were."""
    some, attacks = (set(map(attack_of, cells)) for cells in (leaks, measured))
    finds = "finds more than its baseline" if len(some) == 1 else "find more than their baselines"
    return f"{len(some)} of {len(attacks)} attacks {where} {finds} ({_attackers(leaks or measured)})"


def _attackers(cells: Sequence[Cell]) -> str:
    """Return the attackers of cells by name, the most harmful first, as "attackers: server, client"."""
    names = [*dict.fromkeys(clean(cell.adversary) for cell in cells)]
    more = f" and {len(names) - _MOST_ATTACKERS} more" if len(names) > _MOST_ATTACKERS else ""
    return f"attacker{'s' if len(names) > 1 else ''}: {', '.join(names[:_MOST_ATTACKERS])}{more}"


def _inapplicable(cells: Sequence[Cell]) -> list[str]:
    """Return a note that names the attacks that apply nowhere, and so were not tested."""
    names = never_applied(cells, attack_of)
    if not names:
        return []
    more = f" and {len(names) - _MOST_ATTACKERS} more" if len(names) > _MOST_ATTACKERS else ""
    return [f"Not tested: {', '.join(names[:_MOST_ATTACKERS])}{more}, which cannot be mounted here."]


def not_learnt(cells: Sequence[Cell]) -> list[str]:
    """Return a warning that names the systems of measured cells whose models have not learnt.

    Attacks may train on fewer records than others, as on members: those of a system that learns elsewhere are named.
    """
    measured = [cell for cell in cells if cell.state == "measured"]
    attacks: dict[str, dict[str, None]] = {}
    for cell in measured:
        if cell.learnt is False:
            attacks.setdefault(column_of_cell(cell), {})[cell.attack] = None
    learnt = {column_of_cell(cell) for cell in measured if cell.learnt}
    systems = [f"{name} for {', '.join(of)}" if name in learnt else name for name, of in attacks.items()]
    if not systems:
        return []
    names = "; ".join(systems[:5]) + (f"; and {len(systems) - 5} more" if len(systems) > 5 else "")
    return [f"the model has not learnt on {names}: its test accuracy is not shown to be above the majority class"]


def _worst(cell: Cell) -> str:
    """Return the worst cell in a sentence, and that its trainings do not generalise where they are few."""
    metric = clean(cell.metric or "success")
    success, reference = much(cell.success or 0.0, metric), share(cell.reference or 0.0, metric)
    attack = f"{attack_of(cell)} by {the(cell.adversary)} on {column_of_cell(cell)}"
    count = cell.trainings or LEAST_TRAININGS
    few = "One training is" if count == 1 else f"{count} trainings are"
    others = f" {few} too few to generalise." if count < LEAST_TRAININGS else ""
    return f"The worst is {attack}: {success} (baseline {reference}).{others}"


@head_of.register
def _(result: MatrixResult) -> Judgement:
    where = f"on {clean(result.dataset)}" if result.dataset else "of the matrix"
    judgement = _of_cells(result.cells, result.negative_controls, where, _line(result, "matrix"))
    failed = [clean(check.attack) for check in result.self_checks if check.holds is False]
    if not failed:
        return judgement
    note = f"Warning: the positive control of {', '.join(failed)} failed. A low number of it means nothing."
    word = "leaks" if judgement.word == "leaks" else "not to be trusted"
    return replace(judgement, word=word, alarming=True, notes=[note, *judgement.notes])


@head_of.register
def _(result: AttacksResult) -> Judgement:
    line = _line(result, "attack", "--attack", "all")
    where = f"on {clean(result.method)}" if result.method else "of the training"
    judgement = _of_cells(result.attacks, result.negative_controls, where, line)
    untested = [f"Not tested: {clean(text).rstrip('.')}." for text in result.not_tested]
    return replace(judgement, notes=[*untested, *judgement.notes])


@head_of.register
def _(result: VerifyResult) -> Judgement:
    gravest = verification.gravest(result)
    of_it = [claim for claim in result.claims if claim.verdict == gravest]
    plain = gravest.replace("-", " ")
    words = {words_of(claim.judged) for claim in of_it}
    shown = words.pop() if len(words) == 1 else plain
    about = f"{len(of_it)} of {len(result.claims)} claims" + (f" {shown}" if result.failed or shown != plain else "")
    first = next(iter(of_it), None)
    why = MEANINGS[gravest]
    if first is not None:
        why = f"“{clean(first.name)}”: {clean(first.sentence)}"
        if len(result.claims) == 1:
            about = f"the claim “{clean(first.name)}” is {shown}"
    noted = [(claim, note) for _, claim in verification.ranked(result.claims) for note in notes_of(claim.judged)]
    notes = []
    if result.interrupted:
        notes.append("Warning: the run was interrupted. The evidence is partial.")
    notes += [f"“{clean(claim.name)}”: {note}" for claim, note in noted[:_MOST_NOTES]]
    if len(noted) > _MOST_NOTES:
        notes.append(f"{len(noted) - _MOST_NOTES} more notes stand below, each with its claim.")
    step = None if first is None else _step_of_claim(result, first)
    word = verification.word_of(result)
    return Judgement(word, about=about, why=why, alarming=result.failed, notes=notes, step=step)


def _step_of_claim(result: VerifyResult, claim: ClaimResult) -> NextStep:
    """Return what to do about the gravest claim of a file."""
    if claim.verdict in FALSE_OR_UNPROVEN and claim.form == "method":
        if claim.gap == "not-released":
            return NextStep("Withdraw the claim, or have the method state a release of its noise and verify again.")
        words = ["dpzv-audit", "calibrate", "--method", str(claim.claim.get("method"))]
        for key in ("dataset", "epsilon", "delta", "adversary", "neighbours"):
            if claim.claim.get(key) is not None:
                words += [f"--{key}", typed(claim.claim[key])]
        if "records" in claim.claim:  # the noise depends on sizes that `calibrate --method` reads off a data set
            return NextStep("Withdraw the claim, or let calibrate compute the noise that it needs.")
        return NextStep("Withdraw the claim, or compute the noise that it needs", command=shlex.join(words))
    if claim.verdict in FALSE_OR_UNPROVEN:
        return NextStep("Withdraw the claim, or change the system and verify again.")
    if claim.verdict == "not-tested":
        return NextStep(
            "Remove what voids the evidence, or allow more trials. Where no test exists, withdraw the claim or use "
            "--allow not-tested."
        )
    if claim.verdict == "inconclusive":
        return NextStep(
            "Gather more evidence: more trials, or scores of more runs. Evidence can refute a claim and never "
            "prove it. Without a theorem the claim stays inconclusive, and verify --strict fails."
        )
    return NextStep(
        "Verify the claims with every change", command=shlex.join(["dpzv-audit", "verify", result.claims_file])
    )
