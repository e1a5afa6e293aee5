"""Direct label inference (paper 002, section VI-B) as a row: gradients and scalars against chance, by adversary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dpzv_audit.reproduce.attacked import FALSE_ALARM, attacked_part, control_text, judged
from dpzv_audit.reproduce.table import Setting, Trained
from dpzv_audit.reproduce.text import Row, listed, say

CLIENT, EAVESDROPPER = "client", "eavesdropper"
CALLED = {CLIENT: "curious client", EAVESDROPPER: "eavesdropper"}
EXACT, NOISED, SCALARS = "gradients", "noised gradients", "scalars"
"""What the server answers with."""


@dataclass(frozen=True, kw_only=True)
class Direct(Trained):
    """`label_direct` on `method`, mounted by `adversary` in its client's first pass, and what the paper says of it."""

    line: str
    """Name of the line of the figure that the row stands on."""
    adversary: str
    answers: str
    """`EXACT`, `NOISED` or `SCALARS`."""
    paper: str = "-"
    rule: str = "argmin"
    estimator: str = "ridge"

    @property
    def embedding_noise(self) -> bool:
        """Whether noise is on the outputs that go up, and none on the gradients."""
        return self.options.get("dp") == "embedding"

    def run(self, setting: Setting) -> Row:
        """Attack `setting.seeds` trainings, and as many whose labels were dealt at random."""
        own = {"rule": self.rule, "estimator": self.estimator}
        found, _, dataset = attacked_part(setting, self, attack="label_direct", adversary=self.adversary, options=own)
        return {
            "label": self.label,
            "line": self.line,
            "method": self.method,
            "adversary": self.adversary,
            "answers": self.answers,
            "embedding_noise": self.embedding_noise,
            "options": dict(self.options),
            "rule": self.rule,
            "estimator": self.estimator,
            "paper": self.paper,
            "notes": list(dataset.notes),
            **found,
        }


def verdicts(rows: Sequence[Row]) -> str:
    """Return what the rows say of gradients, of noise on embeddings and of scalars, as a sentence."""
    said = [*_gradients(rows), *_scalars(rows, EAVESDROPPER), *_scalars(rows, CLIENT)]
    return "; ".join([*said, control_text(rows, "at the same rate")])


def _gradients(rows: Sequence[Row]) -> list[str]:
    """Rows whose gradients carry no noise: those with noise on the embeddings are told apart."""
    said = []
    for noisy, sentence in ((False, "gradients"), (True, "gradients-noised-embeddings")):
        found = [r for r in rows if r["answers"] == EXACT and r["embedding_noise"] is noisy]
        if found:
            least = min(found, key=lambda row: float(row["success"]["value"]))
            share = float(least["success"]["value"])
            most = say("gradients-most", share=share, row=least["label"])
            said.append(say(sentence, lost="every label" if share == 1.0 else most, count=len(found)))
    return said


def _scalars(rows: Sequence[Row], adversary: str) -> list[str]:
    """Which rows of `adversary` on scalars lie above or below chance."""
    found = [r for r in rows if r["answers"] == SCALARS and r["adversary"] == adversary]
    if not found:
        return []
    limits = [judged(r, 1.0 - FALSE_ALARM / len(rows)) for r in found]
    above = [r for r, (low, _) in zip(found, limits, strict=True) if low > r["baselines"]["prior"]]
    below = [r for r, (_, high) in zip(found, limits, strict=True) if high < r["baselines"]["prior"]]
    rest = [r["label"] for r in found if r not in above and r not in below]
    shares = [r["success"]["value"] for r in above or found]
    numbers = {
        "prior": (above or found)[0]["baselines"]["prior"],
        "least": min(shares),
        "most": max(shares),
        "count": len(above),
        "all": len(found),
    }
    parts = []
    if above:
        parts.append(say("scalars-above", **numbers))
    if below:
        parts.append(say("scalars-below", count=len(below), all=len(found), rows=listed([r["label"] for r in below])))
    if parts and rest:
        parts.append(say("scalars-rest", rows=listed(rest)))
    if not parts:
        more = sum(min(r["by_trial"]["success"]) > r["baselines"]["prior"] for r in found)
        parts.append(say("scalars-unclear", **numbers, seeds=len(found[0]["by_trial"]["success"]), more=more))
    level = say("by-table", rate=FALSE_ALARM)
    return [say("scalars", who=CALLED[adversary], what=" and ".join(parts), level=level)]
