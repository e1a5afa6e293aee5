"""All attacks, from their adversaries' views, with metrics and controls.

Adding one is one file and one line in `ATTACKS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from attacks.mount import AttackOutcome, AttackSetting, mount_label_direct
from dpzv_audit.errors import InputError, unknown_name

__all__ = ["ATTACKS", "AttackOutcome", "AttackSetting", "AttackSpec", "attack_named"]


@dataclass(frozen=True)
class AttackSpec:
    """An attack as users name it: who can mount it, what it needs of the method, and the function that runs it."""

    name: str
    summary: str
    adversaries: tuple[str, ...]
    requires: dict[str, object]
    """Method options that the attack needs; training is set up with them, and says so."""
    requires_because: str
    mount: Callable[[AttackSetting], AttackOutcome]

    def check(self, adversary: str, options: dict[str, object]) -> dict[str, object]:
        """Method options with what this attack requires; `InputError` in one line where it does not apply."""
        if adversary not in self.adversaries:
            raise InputError(
                f"--adversary is {adversary!r}, but {self.name} is mounted by {' or '.join(self.adversaries)}"
            )
        for key, value in self.requires.items():
            if options.get(key, value) != value:
                raise InputError(
                    f"{self.name} does not apply with {key} {options[key]!r}, needs {value!r}: {self.requires_because}"
                )
        return {**options, **self.requires}


ATTACKS: dict[str, AttackSpec] = {
    spec.name: spec
    for spec in (
        AttackSpec(
            "label_direct",
            "labels from gradients at summed logits, or from scalars by which they are estimated (Fu et al. 2022)",
            ("client", "eavesdropper"),
            {"top_model": False},
            "the attack reads the gradient at logits that the server only sums",
            mount_label_direct,
        ),
    )
}


def attack_named(name: str) -> AttackSpec:
    """The attack called `name`; `InputError` suggesting the nearest known one otherwise."""
    if name not in ATTACKS:
        raise unknown_name("--attack", name, ATTACKS)
    return ATTACKS[name]
