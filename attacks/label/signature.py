"""Label inference by signatures: a malicious client, any method that sends scalars, whatever the server (attacks.md).

A client that holds a batch sends e_ti L v and -e_ti L v for its record i, with a direction v that stays for a block of
rounds and signs e_ti that are drawn anew. Under a top model nobody knows what v does to a loss; but what it does is
much the same for all records of a class, for which far along v the model says one thing and far against it another. So

    s_t = (C/B) sum_i e_ti b_v(y_i) + noise,

with b_v(y) a number of the class, near +1 or -1 where the clip saturates. A block gives each record an estimate of its
b; those of all blocks are its signature. Records of one class share theirs: one known label of each class says whose
it is, and a mixture of Gaussians of one variance, which starts there, finds the rest (Dempster, Laird and Rubin 1977).
"""

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpzv_audit.seeds import Purpose, stream
from mechanisms.core.channel import View
from mechanisms.core.context import ClientBehaviour

from ..core.contract import AttackSetting, AttackSpec, FewLabels, Knowledge, LabelGuesses, Positive
from ..core.metrics import Floats
from ..core.queries import SAME_REORDERED
from . import probe
from .held import Answered, answers_about, held_batch, held_on_dpzv, holding, least_squares
from .mount import mount_labels

# Length of a step along a direction: far beyond what a trained top model tells apart, where a clip bounds the answers;
# without one so short that a server which trains on its losses stays much as it is.
REACH = 1e4
REACH_WITHOUT_CLIP = 0.1
# Standard deviation, in units of what a record is worth, of what a server that trains within a block adds to a scalar.
DRIFT = 2.56
ITERATIONS = 30


def signs(seed: int, number: int, size: int) -> Floats:
    """Return the signs (size,) of own round `number`."""
    return stream(seed, Purpose.ATTACK, number, 9).choice([-1.0, 1.0], size)


def infer(view: View, known: Knowledge) -> LabelGuesses:
    """Return the likeliest class of every record of the first batch whose label is not granted."""
    return _guesses(answers_about(view, known), known)


def reordered(view: View, known: Knowledge) -> Mapping[str, LabelGuesses]:
    """Return the baseline: the same with the scalars in another order."""
    return {SAME_REORDERED: _guesses(answers_about(view, known).reordered(known), known)}


def _guesses(found: Answered, known: Knowledge) -> LabelGuesses:
    few = known.granted(FewLabels)
    ids = found.ids[0].cpu()
    signatures = _signatures(found.scalars[0], known, max(found.noise, DRIFT))
    scores = []
    free = []
    for rows, batch, granted, labels in zip(signatures, ids, few.ids.cpu(), few.labels.cpu(), strict=True):
        places = (batch[None] == granted[:, None]).int().argmax(1).numpy()
        logs = mixture(rows, places, labels.numpy(), known.classes)
        rest = np.setdiff1d(np.arange(len(rows)), places)
        scores.append(torch.from_numpy(logs[rest]))
        free.append(batch[torch.from_numpy(rest)])
    stacked = torch.stack(scores)[None]
    return LabelGuesses(stacked.argmax(3), torch.stack(free)[None], stacked)


def _signatures(scalars: Floats, known: Knowledge, noise: float) -> Floats:
    """Return signatures (K, B, blocks) of the records of a batch about which `scalars` (K, rounds) are."""
    size = known.config.batch_size
    blocks = []
    for rounds in blocks_of(scalars.shape[1], known.options["rounds_per_record"]):
        design = np.stack([signs(known.seed, t, size) for t in rounds])
        blocks.append(least_squares(design, scalars[:, rounds], noise=noise, prior=1.0))
    return np.stack(blocks, 2)


def blocks_of(rounds: int, most: int) -> list[NDArray[np.int64]]:
    """Return the numbers of `rounds` in `most` blocks of about one size, or one round each where there are fewer."""
    return np.array_split(np.arange(rounds), min(rounds, most))


def mixture(rows: Floats, places: Floats, labels: Floats, classes: int) -> Floats:
    """Return log-probabilities (B, classes) of a mixture of Gaussians of one variance, one for each class.

    Args:
        rows: Signatures (B, blocks).
        places: Which of them have known labels, (n,).
        labels: Those labels, (n,); a class of which none is known is nobody's.
        classes: Number of classes.
    """
    known = np.eye(classes)[labels]
    present = known.any(0)
    shares = np.zeros((len(rows), classes))
    shares[places] = known
    spread = 0.5 * max(rows.var(), 1e-6)
    for iteration in range(ITERATIONS):
        weight = shares.sum(0)
        means = shares.T @ rows / np.maximum(weight, 1e-12)[:, None]
        distances = ((rows[:, None] - means[None]) ** 2).sum(2)
        if iteration:
            spread = max(float((shares * distances).sum()) / rows.size, 1e-4)
        logs = np.where(present, -distances / (2.0 * spread), -np.inf)
        logs -= logs.max(1, keepdims=True)
        logs -= np.log(np.exp(logs).sum(1, keepdims=True))
        shares = np.exp(logs)
        shares[places] = known
    return logs


def signing_client(setting: AttackSetting) -> Mapping[int, ClientBehaviour]:
    """Return the malicious client."""
    per_record = SPEC.count(setting, "rounds_per_record")
    measured = setting.method.differences(setting.config)
    reach = REACH if measured and measured.clip else REACH_WITHOUT_CLIP

    def question(number: int, size: int, width: int) -> Tensor:
        along = stream(setting.seed, Purpose.ATTACK, block_of(number), 10).standard_normal(width)
        return torch.from_numpy(reach * signs(setting.seed, number, size)[:, None] * along)

    client = holding(setting, per_record, question)
    starts = np.cumsum([len(part) for part in blocks_of(client.rounds, per_record)])

    def block_of(number: int) -> int:
        return int(np.searchsorted(starts, number % client.rounds, side="right"))

    return {setting.client: client}


def without_noise(setting: AttackSetting) -> AttackSetting:
    """Signatures on DPZV's scalars without noise at a server that does not learn, for as long as one batch is held."""
    return held_on_dpzv(setting, {"server_update": "frozen"}, SPEC.count(setting, "rounds_per_record"))


SPEC = AttackSpec(
    name="label_signature",
    summary="labels of a whole batch at once, by what large steps do to records of each class, whatever the server",
    adversaries=("malicious-client",),
    infer=infer,
    mounted_by=mount_labels,
    positive=Positive("label_signature on dpzv without noise: must be 0.9 at least", without_noise, 0.9),
    suggests={"epochs": 120},
    options={"rounds_per_record": 10, "labels_per_class": 1},
    needs=probe.SPEC.needs,
    behave=signing_client,
    few_labels=True,
    granted_among=held_batch,
    baselines=reordered,
)
