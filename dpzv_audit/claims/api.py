"""`verify_claim`: one claim put to the test from Python, for test suites and notebooks."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import ArrayLike

from ..base.errors import InputError, check_count, check_positive, check_probability
from ..base.findings import VerdictWord
from ..base.signals import TRIAL_SECONDS
from ..evidence.gathering import Subject
from ..evidence.verdict import fails
from ..results import ClaimResult, GateOptions
from ..statistics.scores import LoadedScores
from ..statistics.settings import check_scores
from .access import Access
from .cache import Cache
from .file import DEFAULT_ALPHA, ClaimsFile, one_claim
from .forms import MechanismForm, ScoresForm, SystemForm, form_of
from .gate import ClaimRun, Gate, claim_seed
from .mechanism import mechanism_subject
from .result import decided, verify_result
from .scores import scores_subject

if TYPE_CHECKING:
    from ..data import VerticalDataset


@dataclass(frozen=True, kw_only=True)
class ClaimVerdict:
    """The verdict on one claim with its evidence in short; `entry` is the claim's part of a `result.json`.

    `verdict` is the word; the whole `dpzv_audit.results.Verdict` is `entry.judged`.
    """

    name: str
    verdict: VerdictWord
    sentence: str
    p_value: float
    epsilon_lower: float | None
    upper: float | None
    entry: ClaimResult

    def fails(self, *, allow: Collection[str] = (), strict: bool = False) -> bool:
        """Return whether the verdict fails a gate with these options, as `dpzv-audit verify` would."""
        return fails(self.verdict, audited=self.entry.audited, allow=allow, strict=strict)

    def __str__(self) -> str:
        """Return the verdict and the claim, and below them what every report says of it."""
        from reports.verdicts import lines_of, words_of

        verdict = self.entry.judged
        return "\n".join([f"{words_of(verdict).upper()}: {self.name}: {verdict.claim}", *lines_of(verdict)])


def verify_claim(
    *,
    scores: tuple[ArrayLike, ArrayLike] | None = None,
    mechanism: Any = None,
    system: Callable[..., Any] | str | None = None,
    data: "VerticalDataset | Mapping[str, object] | None" = None,
    alpha: float = DEFAULT_ALPHA,
    seed: int = 0,
    max_trials: int | None = None,
    trial_seconds: float = TRIAL_SECONDS,
    folder: Path | str = ".",
    **claim: Any,
) -> ClaimVerdict:
    """Put one claim to the test and return the verdict; nothing is cached.

    Args:
        scores: (in, out): the (n,) scores of runs with the canary and the (m,) scores of runs without it.
        mechanism: a function run(world, rng) -> score, or an object with such a method; `world` is 1 with the canary
            and 0 without it, `rng` a `numpy.random.Generator`. Or an import path "package.module:factory".
        system: a training of your own, train(task, record, seed); or its import path "package.module:function".
        data: what `system` trains on: a data set, or a dictionary of arrays as its module's `data()` gives it. By
            default what the claim names, else `data()` beside the function, else digits in two blocks.
        alpha: chance, in (0, 0.5), that a true claim is refuted.
        seed: every random stream follows from it and from what the claim says, or from the name of its system.
        max_trials: most runs, or trainings, in both worlds together.
        trial_seconds: most seconds that one run of `mechanism`, or one training of `system`, may take.
        folder: where relative paths of the claim start from.
        claim: the keys of a `[[claim]]` in a claims file: epsilon, delta, name, method, config, ...

    Raises:
        InputError: keys, scores, a mechanism, a system or data that are wrong.
        AuditError: a run, or a training, that raised or took too long.
    """
    check_probability("alpha", alpha)
    check_positive("trial_seconds", trial_seconds)
    check_count("seed", seed, least=0)
    named = {"mechanism": mechanism, "system": system}
    keys: dict[str, object] = {
        key: value if isinstance(value, str) else f"given:{key}" for key, value in named.items() if value is not None
    }
    if scores is not None:
        keys["scores"] = {"in": "given", "out": "given"}
    if system is not None and "attack" in claim:
        keys["kind"] = "attack"
    if data is not None and ("csv" in claim or "dataset" in claim or system is None):
        raise InputError("data goes with system alone, and with neither csv nor dataset")
    placed = one_claim({"name": "claim", **claim, **keys})
    file = ClaimsFile(Path(folder) / "claim", alpha, (placed,))
    # The caller imports and runs what it names itself: this is its own process.
    access = Access.of(file.path, root=Path(folder), trust_code=True, trial_seconds=trial_seconds)
    gate = Gate(file=file, access=access, cache=Cache(None), seed=seed, max_trials=max_trials)
    run = ClaimRun(placed, "", claim_seed(placed, seed))
    form = form_of(placed.claim)
    if isinstance(form, ScoresForm):
        run.gathering = gate.gathering(_of_scores(form, scores), run)
    elif isinstance(form, MechanismForm) and not isinstance(mechanism, str):
        subject = mechanism_subject(
            mechanism,
            getattr(mechanism, "__qualname__", type(mechanism).__name__),
            run.seed,
            delta=form.claim.delta,
            exactly_gaussian=form.claim.exactly_gaussian,
            trial_seconds=trial_seconds,
            max_trials=max_trials,
        )
        run.gathering = gate.gathering(subject, run)
    elif isinstance(form, SystemForm) and (data is not None or not isinstance(system, str)):
        run.gathering = gate.gathering(_of_system(form, system, data, access, run.seed), run)
    else:
        (run,) = gate.prepare()
    gate.gather([run])
    options = GateOptions(allow=[], strict=False)
    (entry,) = verify_result(file, [run], decided([run], alpha), options, seed=seed).claims
    shown = ("name", "verdict", "sentence", "p_value", "epsilon_lower", "upper")
    return ClaimVerdict(entry=entry, **{key: getattr(entry, key) for key in shown})


def _of_scores(form: ScoresForm, scores: Any) -> Subject:
    """Return a pair of lists of scores as the subject of a claim."""
    if not isinstance(scores, tuple | list) or len(scores) != 2:
        raise InputError(f"scores is a {type(scores).__name__}; use a pair (in_scores, out_scores)")
    loaded = LoadedScores(check_scores("scores[0]", scores[0]), check_scores("scores[1]", scores[1]))
    return scores_subject(lambda: loaded, exactly_gaussian=form.claim.exactly_gaussian)


def _of_system(
    form: SystemForm,
    train: Callable[..., Any] | str | None,
    data: "VerticalDataset | Mapping[str, object] | None",
    access: Access,
    seed: int,
) -> Subject:
    """Return a training, a function or its import path, as the subject of a claim, on `data` where they are given."""
    from ..data import VerticalDataset
    from ..systems.stated import system_at, system_of
    from ..systems.task import dataset_of
    from .system import system_subject

    if callable(train):
        label = getattr(train, "__qualname__", type(train).__name__)
        system = system_of(train, label, access.trial_seconds)
    else:
        system = system_at(form.claim.system, access.trial_seconds, access.folder)
    own = data if data is None or isinstance(data, VerticalDataset) else dataset_of(data, "data")
    return system_subject(form.claim, system, access, seed, own)
