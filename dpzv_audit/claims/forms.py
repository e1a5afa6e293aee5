"""The forms that a claim may have: each owns the key of its evidence, its check, its plan and its subject.

A new form is a model in `file.py` (its keys, `claimed`, `in_words`, `certified_in_words`, and its place in `FORMS`), a
class here, which `form_of` returns, and its name in `dpzv_audit.results.ClaimResult.form`.

The `kind` of a claim says what is measured: an epsilon, an attack's success, or coins. A new kind touches more: its
keys in `file.py`, the `claim.kind` that this file, `gate.py`, `method.py`, `reach.py`, `result.py` and `system.py`
ask, `Question` in `evidence/gathering.py`, and the words of `reports/verification.py`, `reports/head.py` and
`sentences.jinja`.

Nothing here loads torch: evidence that a cache knows needs none.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Protocol

from ..base.files import Undigested, confined_to, data_digest
from ..base.registry import plug_ins
from ..data.files import model_digest
from ..evidence.gathering import Subject
from ..games.mechanism import MechanismTrials
from ..games.scores import GameScores
from ..statistics.scores import LoadedScores, load_score_files
from .access import Access
from .cache import plug_in_digest
from .data import data_digest_of
from .file import Claim, MechanismClaim, OwnClaim, ScoreFilesClaim, TrainedClaim
from .mechanism import mechanism_subject, run_plan
from .scores import scores_subject


class Form(Protocol):
    """A claim together with what its kind knows of it."""

    known_when: ClassVar[str] = "planned"
    """When it is known what the claim could be refuted at, where no runs are planned."""

    @property
    def runs_code(self) -> bool:
        """Return whether its evidence takes code that is none of the tool's: the user's, or a plug-in's."""
        return True

    def plan(self, access: Access) -> Subject | None:
        """Return the plan of its runs, which can be told before anything is run; None where it cannot."""
        return None

    def key(self, access: Access) -> str:
        """Return a digest of the data, and of the user's code, that its evidence depends on.

        Code is that of a mechanism or a system, and of all installed packages that bring the tool anything: a method,
        an attack, a defence, a data set. What the code reads as it runs is no part of it (`dpzv_audit.base.inputs`).

        Raises `Undigested` where there are too many files for one, or one that cannot be read.
        """

    def check(self, access: Access) -> None:
        """Raise `InputError` in one line where the claim cannot be run, as far as that can be told without planning it.

        Needs no trust: imports no code of the user's and fetches nothing. Keeps no data, and takes no more time or
        memory the larger the sizes it names.
        """

    def subject(self, access: Access, seed: int, max_trials: int | None) -> Subject:
        """Return what it is about, everything validated; `InputError` in one line where it cannot be run.

        Fewer pilots go with fewer than `max_trials` trials; None for no limit.
        """


@dataclass(frozen=True)
class ScoresForm(Form):
    """A claim of an epsilon, put to the test on two files of scores."""

    claim: ScoreFilesClaim
    known_when: ClassVar[str] = "read"

    @property
    def runs_code(self) -> bool:
        """Return False."""
        return False

    def key(self, access: Access) -> str:
        """Return a digest of the two files. Raises `Undigested` where one cannot be read."""
        with confined_to(access.root):
            return data_digest(access.files(self.claim))

    def check(self, access: Access) -> None:
        """Raise `InputError` where a file is none, or lies elsewhere."""
        access.files(self.claim)

    def subject(self, access: Access, seed: int, max_trials: int | None) -> Subject:
        """Return the scores of both files."""
        in_path, out_path = access.files(self.claim)

        def read() -> LoadedScores:
            with confined_to(access.root):
                return load_score_files(in_path, out_path, self.claim.scores.header)

        return scores_subject(
            read,
            called="files",
            exactly_gaussian=self.claim.exactly_gaussian,
            facts={"scores": self.claim.scores.names()},
        )


@dataclass(frozen=True)
class MechanismForm(Form):
    """A claim of an epsilon, put to the test by runs of a mechanism in both worlds."""

    claim: MechanismClaim

    def plan(self, access: Access) -> Subject | None:
        """Return the plan of runs of the user's own mechanism."""
        if self.claim.planted:
            return None
        stages, pools = run_plan(_undrawn, exactly_gaussian=self.claim.exactly_gaussian)
        return Subject(stages=stages, pools=pools)

    @property
    def runs_code(self) -> bool:
        """Return whether the mechanism is the user's own."""
        return not self.claim.planted

    def key(self, access: Access) -> str:
        """Return a digest of the mechanism's code. Raises as `Access.code`."""
        return "planted" if self.claim.planted else f"{access.code(self.claim)} {plug_in_digest()}"

    def check(self, access: Access) -> None:
        """Raise `InputError` where keys do not go with a planted mechanism, or `depends` names no file."""
        if self.claim.planted:
            from .planted import check_planted

            check_planted(self.claim)
        access.depends(self.claim)

    def subject(self, access: Access, seed: int, max_trials: int | None) -> Subject:
        """Return runs of the mechanism; code of the user's needs trust."""
        claim = self.claim
        if claim.planted:
            from .planted import planted_subject

            return planted_subject(claim, seed)
        access.require_trust(claim)
        trials = MechanismTrials(claim.mechanism, seed, access.trial_seconds, access.folder)
        return mechanism_subject(
            trials,
            claim.mechanism,
            seed,
            delta=claim.delta,
            exactly_gaussian=claim.exactly_gaussian,
            max_trials=max_trials,
        )


@dataclass(frozen=True)
class MethodForm(Form):
    """A claim on a training of the tool's own, of data or of so many records that are simulated."""

    claim: TrainedClaim

    @property
    def runs_code(self) -> bool:
        """Return whether a plug-in is installed, which may bring the method, its data or its defence."""
        return bool(plug_ins())

    def plan(self, access: Access) -> Subject | None:
        """Return the plan of transcripts that are simulated; trainings may refute more beside them."""
        from .method import planned_simulation

        return planned_simulation(self.claim, access) if self.claim.kind == "epsilon" else None

    def key(self, access: Access) -> str:
        """Return a digest of data, of a pre-trained model and of plug-ins. Raises `Undigested` where there is none."""
        claim = self.claim
        if claim.records is not None:
            return f"simulated {plug_in_digest()}"
        model = access.transformer(claim)
        if model is not None and not Path(model).is_dir():
            raise Undigested(f"the model {model} lies on a hub, where it may change")
        digest = f"{data_digest_of(claim, access)} {plug_in_digest()}"
        return digest if model is None else f"{digest}, {model_digest(model)}"

    def check(self, access: Access) -> None:
        """Raise `InputError` naming the key at fault.

        Plans, keeps and trains nothing, not even a few blank records: what the tool's own methods draw is known.
        """
        from .method import check_trained

        # A model on a hub is fetched by a training alone: its name takes no trust here.
        check_trained(self.claim, replace(access, trust_code=True))

    def subject(self, access: Access, seed: int, max_trials: int | None) -> Subject:
        """Return trainings that are attacked, or every accountant's bound beside games on what is released."""
        from .method import attack_subject, epsilon_subject

        if self.claim.kind == "attack":
            return attack_subject(self.claim, access, seed)
        return epsilon_subject(self.claim, access, seed)


@dataclass(frozen=True)
class SystemForm(Form):
    """A claim on a training of the user's own, which needs trust to be run."""

    claim: OwnClaim
    known_when: ClassVar[str] = "rehearsed"

    def key(self, access: Access) -> str:
        """Return a digest of data, of the system's code and of plug-ins. Raises as `Access.code`."""
        code = access.code(self.claim)
        return f"{data_digest_of(self.claim, access)} {code} {plug_in_digest()}"

    def check(self, access: Access) -> None:
        """Raise `InputError` naming the key at fault; imports no code of the system."""
        from .system import check_system

        check_system(self.claim, access)

    def subject(self, access: Access, seed: int, max_trials: int | None) -> Subject:
        """Return what the claim is about, the system rehearsed."""
        from ..systems.stated import system_at
        from .system import system_subject

        access.require_trust(self.claim)
        system = system_at(self.claim.system, access.trial_seconds, access.folder)
        return system_subject(self.claim, system, access, seed)


def form_of(claim: Claim) -> Form:
    """Return the form of a claim."""
    if isinstance(claim, ScoreFilesClaim):
        return ScoresForm(claim)
    if isinstance(claim, MechanismClaim):
        return MechanismForm(claim)
    return SystemForm(claim) if isinstance(claim, OwnClaim) else MethodForm(claim)


def _undrawn(number: int) -> GameScores:
    raise AssertionError("a plan draws nothing")
