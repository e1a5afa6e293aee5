"""What each form of claim owns: a key of what its evidence depends on, a check, and its subject."""

from typing import Protocol

from ..evidence.gathering import Subject
from .access import Access
from .file import Claim, MechanismClaim, OwnClaim, ScoresClaim
from .mechanism import MechanismForm
from .scores import ScoresForm


class Form(Protocol):
    """A claim together with what its kind knows of it."""

    @property
    def runs_code(self) -> bool:
        """Return whether its evidence takes code that is none of the tool's: the user's, or a plug-in's."""

    @property
    def known_when(self) -> str:
        """Return when it is known what the claim could be refuted at, where no runs are planned."""

    @property
    def planned(self) -> Subject | None:
        """Return the plan of its runs, which can be told before anything is read or run; None where there is none."""

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


def form_of(claim: Claim) -> Form:
    """Return the form of a claim. Those that train load torch."""
    if isinstance(claim, ScoresClaim):
        return ScoresForm(claim)
    if isinstance(claim, MechanismClaim):
        return MechanismForm(claim)
    if isinstance(claim, OwnClaim):
        from .system import SystemForm

        return SystemForm(claim)
    from .method import MethodForm

    return MethodForm(claim)
