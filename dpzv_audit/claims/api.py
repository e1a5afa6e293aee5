"""`verify_claim`: one claim put to the test from Python, for test suites and notebooks."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import ArrayLike

from ..errors import InputError, check_count, check_positive, check_probability
from ..evidence.gathering import Gathering, Subject
from ..evidence.verdict import fails
from ..findings import Verdict
from ..results import ClaimResult, GateOptions
from ..signals import TRIAL_SECONDS
from ..statistics.settings import check_scores
from .cache import Cache
from .file import DEFAULT_ALPHA, ClaimsFile, MechanismClaim, ScoresClaim, one_claim
from .gate import ClaimRun, Gate, claim_seed
from .result import decided, verify_result
from .subjects import Access, mechanism_subject, scores_subject


@dataclass(frozen=True, kw_only=True)
class ClaimVerdict:
    """The verdict on one claim with its evidence in short; `entry` is the claim's part of a `result.json`."""

    name: str
    verdict: Verdict
    sentence: str
    p_value: float
    epsilon_lower: float | None
    upper: float | None
    entry: ClaimResult

    def fails(self, *, allow_overclaimed: bool = False, strict: bool = False) -> bool:
        """Whether the verdict fails a gate with these options, as `dpzv-audit verify` would."""
        whole = self.entry.audited
        return fails(self.verdict, audited=whole, allow_overclaimed=allow_overclaimed, strict=strict)

    def __str__(self) -> str:
        """Return the verdict, the claim and the sentence that explains it."""
        taken = f" {self.entry.verdict_given}" if self.entry.verdict_given else ""
        return f"{self.verdict.upper()}{taken}: {self.name}\n{self.sentence}"


def verify_claim(
    *,
    scores: tuple[ArrayLike, ArrayLike] | None = None,
    mechanism: Any = None,
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
        alpha: chance, in (0, 0.5), that a true claim is refuted.
        seed: every random stream follows from it and from what the claim says.
        max_trials: most runs, or trainings, in both worlds together.
        trial_seconds: most seconds that one run of `mechanism` may take.
        folder: where relative paths of the claim start from.
        claim: the keys of a `[[claim]]` in a claims file: epsilon, delta, name, method, config, ...

    Raises:
        InputError: keys, scores or a mechanism that are wrong.
    """
    check_probability("alpha", alpha)
    check_positive("trial_seconds", trial_seconds)
    check_count("seed", seed, least=0)
    keys: dict[str, object] = {}
    if scores is not None:
        keys["scores"] = {"in": "given", "out": "given"}
    if mechanism is not None:
        keys["mechanism"] = mechanism if isinstance(mechanism, str) else "given:mechanism"
    placed = one_claim({"name": "claim", **claim, **keys})
    run = ClaimRun(placed, "", claim_seed(placed, seed))
    subject: Subject | None = None
    if isinstance(placed.claim, ScoresClaim):
        if not isinstance(scores, tuple | list) or len(scores) != 2:
            raise InputError(f"scores is a {type(scores).__name__}, must be a pair (in_scores, out_scores)")
        inside, outside = (check_scores(f"scores[{place}]", side) for place, side in enumerate(scores))
        subject = scores_subject(lambda: (inside, outside), exactly_gaussian=placed.claim.exactly_gaussian)
    elif isinstance(placed.claim, MechanismClaim) and not isinstance(mechanism, str):
        label = getattr(mechanism, "__qualname__", type(mechanism).__name__)
        gaussian = placed.claim.exactly_gaussian
        subject = mechanism_subject(mechanism, label, run.seed, exactly_gaussian=gaussian, trial_seconds=trial_seconds)
    file = ClaimsFile(Path(folder) / "claim", alpha, (placed,))
    # The caller imports and runs what it names itself: this is its own process.
    access = Access.of(file.path, root=Path(folder), trust_code=True, trial_seconds=trial_seconds)
    gate = Gate(file=file, access=access, cache=Cache(None), seed=seed, max_trials=max_trials)
    if subject is None:
        (run,) = gate.prepare()
    else:
        run.gathering = Gathering(subject, gate.question(run))
    gate.gather([run])
    options = GateOptions(allow_overclaimed=False, strict=False)
    (entry,) = verify_result(file, [run], decided([run], alpha), options, seed=seed).claims
    shown = ("name", "verdict", "sentence", "p_value", "epsilon_lower", "upper")
    return ClaimVerdict(entry=entry, **{key: getattr(entry, key) for key in shown})
