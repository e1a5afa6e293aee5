"""Label inference by signatures: a malicious client, any method that sends scalars, whatever the server (attacks.md).

A client that holds a batch sends e_ti L v and -e_ti L v for its record i, with a direction v that stays for a block of
rounds and signs e_ti that are drawn anew. Under a top model nobody knows what v does to a loss; but what it does is
much the same for all records of a class, for which far along v the model says one thing and far against it another. So

    s_t = (C/B) sum_i e_ti b_v(y_i) + noise,

with b_v(y) a number of the class, near +1 or -1 where the clip saturates. A block gives each record an estimate of its
b; those of all blocks are its signature. Records of one class share theirs: one known label of each class says whose
it is, and a mixture of Gaussians of one variance, which starts there, finds the rest (Dempster, Laird and Rubin 1977).

What all records but one are believed to add to a scalar is then taken off it, and what is left says more of that one:
a mean field (Opper and Saad 2001) goes from beliefs about records to the b of classes and back. Blocks may then be
short, and many, so that hardly any two classes do the same in all of them. Without a clip steps must be short, and what
they do to a record is its own: there the mixture is the answer.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from dpzv_audit.base.seeds import Purpose, stream
from mechanisms.core.channel import View
from mechanisms.core.context import ClientBehaviour

from ..core.knowledge import FewLabels, Knowledge
from ..core.metrics import Floats, Ints
from ..core.setting import AttackSetting
from ..core.spec import AttackSpec, Goal, LabelGuesses, Needs, Positive, Setup
from . import probe
from .held import Answered, held_batch, held_on_dpzv, holding, least_squares, with_reordered
from .mount import mount_labels

# Length of a step along a direction: far beyond what a trained top model tells apart, where a clip bounds the answers;
# without one so short that a server which trains on its losses stays much as it is.
REACH = 1e4
REACH_WITHOUT_CLIP = 0.1
# Standard deviation, in units of what a record is worth, of what a server that trains within a block adds to a scalar.
DRIFT = 2.56
ITERATIONS = 30
# Sweeps of the mean field, and how much of its belief each keeps: all at once, records would swing to and fro.
SWEEPS = 60
KEPT = 0.5
# Blocks for each round per record where a clip saturates: a block has half as many rounds as records.
BLOCKS = 2


def signs(seed: int, number: int, size: int) -> Floats:
    """Return the signs (size,) of own round `number`."""
    return stream(seed, Purpose.ATTACK, number, 9).choice([-1.0, 1.0], size)


def infer(view: View, known: Knowledge) -> LabelGuesses:
    """Return the likeliest class of every record of the first batch whose label is not granted."""
    return with_reordered(_guesses, view, known)


def _guesses(answered: Answered, known: Knowledge) -> LabelGuesses:
    few = known.granted(FewLabels)
    size = known.config.batch_size
    scalars = answered.scalars[0]
    noise = max(answered.noise, DRIFT)
    clipped = known.differences.clip is not None
    blocks = [
        (np.stack([signs(known.seed, t, size) for t in rounds]), scalars[:, rounds])
        for rounds in blocks_of(scalars.shape[1], known.options["rounds_per_record"], clipped=clipped)
    ]
    signatures = np.stack([least_squares(design, some, noise=noise, prior=1.0) for design, some in blocks], 2)
    scores = []
    free = []
    for place, (batch, granted, labels) in enumerate(
        zip(answered.ids[0].cpu(), few.ids.cpu(), few.labels.cpu(), strict=True)
    ):
        places = (batch[None] == granted[:, None]).int().argmax(1).numpy()
        of_known = np.eye(known.classes)[labels.numpy()]
        if clipped:
            about = [(design, some[place]) for design, some in blocks]
            logs = explained(signatures[place], about, places, of_known, noise)
        else:
            logs = mixture(signatures[place], places, of_known)
        rest = np.setdiff1d(np.arange(size), places)
        scores.append(torch.from_numpy(logs[rest]))
        free.append(batch[torch.from_numpy(rest)])
    return LabelGuesses.of(torch.stack(scores)[None], torch.stack(free)[None])


def blocks_of(rounds: int, per_record: int, *, clipped: bool) -> list[Ints]:
    """Return the numbers of `rounds` in blocks of about one size, or one round each where there are fewer."""
    return np.array_split(np.arange(rounds), min(rounds, per_record * (BLOCKS if clipped else 1)))


def explained(
    rows: Floats, blocks: Sequence[tuple[Floats, Floats]], places: Floats, known: Floats, noise: float
) -> Floats:
    """Return log-probabilities (B, classes) by a mean field, from whichever start leaves less of the scalars unsaid.

    It starts from a mixture, and from the distances to known signatures alone: where a mixture has taken two classes
    for one, a mean field does not part them.

    Args:
        rows: Signatures (B, blocks).
        blocks: Signs (rounds, B) and scalars (rounds,) of each.
        places: The records with known labels, (n,).
        known: Those labels, one-hot (n, classes); a class of which none is known is nobody's.
        noise: Standard deviation of a scalar's error, in units of what a record is worth.
    """
    starts = (mixture(rows, places, known, iterations) for iterations in (ITERATIONS, 1))
    logs, _ = min((mean_field(start, blocks, places, known, noise) for start in starts), key=lambda fit: fit[1])
    return logs


def mixture(rows: Floats, places: Floats, known: Floats, iterations: int = ITERATIONS) -> Floats:
    """Return log-probabilities (B, classes) of a mixture of Gaussians of one variance, one for each class.

    Args:
        rows: Signatures (B, blocks).
        places: Those with known labels, (n,).
        known: Those labels, one-hot (n, classes); a class of which none is known is nobody's.
        iterations: Number of steps; the first goes by distances to known signatures.
    """
    present = known.any(0)
    shares = np.zeros((len(rows), known.shape[1]))
    shares[places] = known
    spread = 0.5 * max(rows.var(), 1e-6)
    for iteration in range(iterations):
        weight = shares.sum(0)
        means = shares.T @ rows / np.maximum(weight, 1e-12)[:, None]
        distances = ((rows[:, None] - means[None]) ** 2).sum(2)
        if iteration:
            spread = max(float((shares * distances).sum()) / rows.size, 1e-4)
        logs = _normalised(np.where(present, -distances / (2.0 * spread), -np.inf))
        shares = np.exp(logs)
        shares[places] = known
    return logs


def mean_field(
    logs: Floats, blocks: Sequence[tuple[Floats, Floats]], places: Floats, known: Floats, noise: float
) -> tuple[Floats, float]:
    """Return log-probabilities (B, classes) that explain the scalars of all blocks, and what they leave unexplained.

    `logs` (B, classes) is where it starts; the rest is as for `explained`. What is left is a sum of squares.
    """
    shares = np.exp(logs)
    shares[places] = known
    present = known.any(0)
    for _ in range(SWEEPS):
        scores = np.zeros_like(shares)
        unexplained = 0.0
        for design, scalars in blocks:
            rounds = len(scalars)
            pooled = design @ shares
            # Squares of what is believed fall short of the expected squares by the variance of each record's class.
            gram = pooled.T @ pooled + rounds * (np.diag(shares.sum(0)) - shares.T @ shares)
            worth = np.linalg.solve(gram + noise**2 * np.eye(len(gram)), pooled.T @ scalars).clip(-1.0, 1.0)
            left = scalars - pooled @ worth
            # A record's own part is put back: what speaks for each class is how well it explains that.
            own = design.T @ left + rounds * (shares @ worth)
            scores += (own[:, None] * worth - 0.5 * rounds * worth**2) / max(float((left**2).mean()), 1.0)
            unexplained += float((left**2).sum())
        logs = _normalised(np.where(present, scores, -np.inf))
        believed = np.exp(logs)
        believed[places] = known
        shares = KEPT * shares + (1.0 - KEPT) * believed
    return logs, unexplained


def _normalised(logs: Floats) -> Floats:
    logs = logs - logs.max(1, keepdims=True)
    return np.asarray(logs - np.log(np.exp(logs).sum(1, keepdims=True)))


def signing_client(setting: AttackSetting) -> Mapping[int, ClientBehaviour]:
    """Return the malicious client."""
    per_record = SPEC.count(setting, "rounds_per_record")
    measured = setting.method.differences(setting.config)
    clipped = measured is not None and measured.clip is not None
    reach = REACH if clipped else REACH_WITHOUT_CLIP

    def question(number: int, size: int, width: int) -> Tensor:
        along = stream(setting.seed, Purpose.ATTACK, block_of(number), 10).standard_normal(width)
        return torch.from_numpy(reach * signs(setting.seed, number, size)[:, None] * along)

    client = holding(setting, per_record, question)
    starts = np.cumsum([len(rounds) for rounds in blocks_of(client.rounds, per_record, clipped=clipped)])

    def block_of(number: int) -> int:
        return int(np.searchsorted(starts, number % client.rounds, side="right"))

    return {setting.client: client}


def without_noise(setting: AttackSetting) -> AttackSetting:
    """Return DPZV without noise at a server that does not learn, for as long as one batch is held."""
    return held_on_dpzv(setting, {"server_update": "frozen"}, SPEC.count(setting, "rounds_per_record"))


SPEC = AttackSpec(
    name="label_signature",
    summary="labels of a whole batch at once, by what large steps do to records of each class, whatever the server",
    adversaries=("malicious-client",),
    infer=infer,
    mounted_by=mount_labels,
    goal=Goal(Positive("label_signature on dpzv without noise: must be 0.9 at least", without_noise, 0.9)),
    needs=Needs(suggests={"epochs": 120}, conditions=probe.SPEC.needs.conditions),
    setup=Setup(
        options={"rounds_per_record": 10, "labels_per_class": 1},
        behave=signing_client,
        few_labels=True,
        granted_among=held_batch,
    ),
)
