"""Direct label inference (Fu et al., USENIX Security 2022; for scalar feedback paper 002, section VI-B).

Where the server only sums the clients' outputs, the gradient at those outputs is softmax - one-hot: its one negative
coordinate is the label. First-order methods send that gradient. Scalar methods do not, but a curious client that sends
dummy outputs c +- lambda u gets a measurement of it back, and so an estimate. An eavesdropper knows no u.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.core.contract import AttackSetting, AttackSpec, Knowledge, LabelGuesses, Positive, unfit_sampler
from attacks.core.controls import CERTAIN
from attacks.core.queries import querying_client
from attacks.gradient.estimates import correlation, forward_difference_error, label_prior_std, minimum_norm, ridge
from attacks.label.mount import mount_labels
from dpzv_audit.errors import InputError, NotFinite, unknown_name
from dpzv_audit.seeds import Purpose, stream
from mechanisms.core.channel import Message, View

ESTIMATORS = ("ridge", "minimum-norm", "correlation")


@dataclass(frozen=True)
class Channel:
    """Public parameters of the channel that the attack reads.

    `noise_std` is the standard deviation of the noise on a scalar, `smoothing` is lambda, and `batches` is the number
    of batches in a pass over the data.
    """

    classes: int
    batch_size: int
    batches: int
    queries: int
    noise_std: float
    smoothing: float


def from_gradients(view: View, known: Channel, client: int = 1, *, rule: str = "argmin") -> LabelGuesses:
    """Read labels off the per-record gradients of one client's first pass over the data (first-order methods).

    That client's mail is a whole pass: an eavesdropper that sees more of it sees no label more.
    """
    messages = _first_pass([m for m in view.received("gradient") if m.receiver == client], known.batches)
    ids = [m.ids for m in messages if m.ids is not None]
    gradients = torch.stack([m.payload for m in messages])
    return LabelGuesses(_rule(rule)(gradients), torch.stack(ids) if ids else None, -gradients)


def from_scalars(view: View, known: Channel, *, rule: str = "argmin", estimator: str = "ridge") -> LabelGuesses:
    """Estimate each record's gradient from the answers to a `QueryingClient`'s queries, and read off the labels.

    The directions are the difference of the two uploads over their distance: the client's own messages. The answer is
    DPZV's scalar, or two batch losses, whose difference over mu it is.
    """
    received = view.received("scalar") or view.received("losses")
    batches = min(known.batches, len(received) // known.queries)
    if batches == 0:
        raise InputError(too_few(len(received), known.queries))
    answers = received[: batches * known.queries]
    pairs = torch.stack([m.payload for m in view.sent("embeddings")[: len(answers)]]).double()
    scalars = torch.stack([m.payload for m in answers]).double()
    if answers[0].kind == "losses":
        directions = (pairs[:, :, 1] - pairs[:, :, 0]) / known.smoothing
        scalars = (scalars[..., 1] - scalars[..., 0]) / known.smoothing
    else:
        directions = (pairs[:, :, 0] - pairs[:, :, 1]) / (2.0 * known.smoothing)
    guesses, scores = _guess(scalars, directions, known, rule, estimator)
    ids = [m.ids for m in answers if m.ids is not None]
    return LabelGuesses(guesses, torch.stack(ids)[:: known.queries] if ids else None, scores)


def from_shared_directions(
    view: View, known: Channel, client: int, *, rule: str = "argmin", estimator: str = "ridge"
) -> LabelGuesses:
    """The same for VFL-CZOFO, where the server perturbs a client's embedding along directions that the client knows.

    An honest client's view is enough: its q differences a batch, over mu, for q directions.
    """
    answers = _first_pass(view.received("scalar"), known.batches)
    scalars = torch.stack([m.payload for m in answers]).double() / known.smoothing
    directions = view.noted(client, "direction")[: len(answers)].double()
    flat = _estimate(directions.flatten(0, 1), scalars.flatten(0, 1), known, estimator)
    estimate = flat.unflatten(0, (len(answers), -1))
    ids = [m.ids for m in answers if m.ids is not None]
    return LabelGuesses(_rule(rule)(estimate), torch.stack(ids) if ids else None, -estimate)


def from_wire(view: View, known: Channel, *, seed: int, rule: str = "argmin", estimator: str = "ridge") -> LabelGuesses:
    """An eavesdropper's attempt on scalar methods: it sees the answers, and must draw its own directions."""
    answers = _first_pass(view.received("scalar") or view.received("losses"), known.batches)
    scalars = torch.stack([m.payload for m in answers]).double()
    if answers[0].kind == "losses":
        scalars = scalars[..., 1] - scalars[..., 0]
    # Of several differences a batch it can use one: it knows no direction of any.
    scalars = scalars.flatten(2)[..., 0] if scalars.dim() > 2 else scalars
    shape = (*scalars.shape, known.batch_size, known.classes)
    directions = torch.from_numpy(stream(seed, Purpose.ATTACK).standard_normal(shape)).to(scalars.device)
    one = Channel(known.classes, known.batch_size, known.batches, 1, known.noise_std, known.smoothing)
    guesses, scores = _guess(scalars, directions, one, rule, estimator)
    return LabelGuesses(guesses, None, scores)


def too_few(answers: int, queries: int) -> str:
    """What to say where a view does not hold the answers of one batch."""
    return (
        f"the view holds {answers} answers, fewer than the {queries} queries of one batch: "
        f"must have more ‹epochs›, a smaller ‹batch_size› or fewer ‹queries›"
    )


def _guess(scalars: Tensor, directions: Tensor, known: Channel, rule: str, estimator: str) -> tuple[Tensor, Tensor]:
    """Labels (answers, K, B) and scores (answers, K, B, c), minus the estimated gradients.

    From scalars (answers * q, K) and directions (answers * q, K, B, c).
    """
    rounds, replicas = scalars.shape
    answers = rounds // known.queries
    per_batch = scalars.unflatten(0, (answers, known.queries)).transpose(1, 2).flatten(0, 1)
    stacked = directions.unflatten(0, (answers, known.queries)).transpose(1, 2).flatten(0, 1)
    estimate = _estimate(stacked, per_batch, known, estimator).unflatten(0, (answers, replicas))
    return _rule(rule)(estimate), -estimate


def _estimate(directions: Tensor, scalars: Tensor, known: Channel, estimator: str) -> Tensor:
    """Per-record gradients (n, B, c) from directions (n, q, B, c) and scalars (n, q) or (n, q, B)."""
    estimates: dict[str, Callable[[], Tensor]] = {
        "correlation": lambda: correlation(directions, scalars),
        "minimum-norm": lambda: minimum_norm(directions, scalars),
        "ridge": lambda: ridge(
            directions, scalars, noise_std=known.noise_std, prior_std=label_prior_std(known.classes)
        ),
    }
    if estimator not in estimates:
        raise unknown_name("estimator", estimator, estimates)
    return estimates[estimator]()


def _first_pass(messages: list[Message], batches: int) -> list[Message]:
    if not messages:
        raise InputError("the view holds no answer from the server")
    return messages[:batches]


def _rule(name: str) -> Callable[[Tensor], Tensor]:
    if name not in RULES:
        raise unknown_name("rule", name, RULES)
    return RULES[name]


def infer(view: View, known: Knowledge) -> LabelGuesses:
    """Guess the labels from whatever this method sends: gradients, scalars, or scalars along shared directions."""
    channel, rule, estimator = channel_of(known), known.options["rule"], known.options["estimator"]
    if known.method.downlink == "gradient":
        return from_gradients(view, channel, known.client, rule=rule)
    if view.adversary.kind == "eavesdropper":
        return from_wire(view, channel, seed=known.seed, rule=rule, estimator=estimator)
    measured = known.method.differences(known.config)
    if measured is not None and measured.shared:
        return from_shared_directions(view, channel, known.client, rule=rule, estimator=estimator)
    return from_scalars(view, channel, rule=rule, estimator=estimator)


def channel_of(known: Knowledge) -> Channel:
    """The channel's public parameters; `noise_std` is DPZV's noise, or the error of a forward difference.

    A central difference has no error of first order in lambda: noise is all there is.
    """
    measured = known.method.differences(known.config)
    smoothing = error = 0.0
    if measured is not None:
        smoothing, error = measured.smoothing, known.sigma
        if not measured.two_sided:
            error = forward_difference_error(smoothing, known.classes, records=measured.records)
    return Channel(known.classes, known.config.batch_size, known.batches, known.queries, error, smoothing)


def on_split(setting: AttackSetting) -> AttackSetting:
    """The same attack on split learning without a top model, where per-record gradients name every label."""
    options = {"top_model": False, "epochs": 1, "batch_size": setting.config.batch_size}
    return setting.on("split", options, adversary="client", queries=1, trials=1, options={})


def argmin(gradients: torch.Tensor) -> torch.Tensor:
    """Return the class with the smallest gradient coordinate of every record.

    The gradient of cross entropy at the logits is softmax - onehot: its one negative coordinate, which is
    also its smallest, is the label. Under noise this rule weighs every coordinate, so it is the default.

    Args:
        gradients: (..., classes), true or estimated; only the order within a record matters, so any positive
            scale does.

    Returns:
        int64 labels of shape (...), in [0, classes); of equal smallest coordinates the first.

    Raises:
        InputError: fewer than two classes; `NotFinite` for a number that is not finite.
    """
    return _checked(gradients).argmin(dim=-1)


def first_negative(gradients: torch.Tensor) -> torch.Tensor:
    """Return the first class with a negative gradient coordinate, as published; shapes, errors: `argmin`.

    The published rule is stated for exact gradients, where one coordinate is negative, and says nothing of
    none. None occurs when softmax rounds to the one-hot label (coordinates 0 at the label and >= 0 elsewhere)
    and in estimates; the label is then the coordinate closest to being negative, so the answer is `argmin`'s.
    Under noise about half of all coordinates are negative, and the rule wastes most of the signal.
    """
    negative = _checked(gradients) < 0
    first = negative.to(torch.uint8).argmax(dim=-1)
    return torch.where(negative.any(dim=-1), first, gradients.argmin(dim=-1))


RULES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "argmin": argmin,
    "first-negative": first_negative,
}


def _checked(gradients: torch.Tensor) -> torch.Tensor:
    if gradients.ndim < 1 or gradients.shape[-1] < 2:
        raise InputError(f"gradients has shape {tuple(gradients.shape)}, must be (..., classes) with 2 classes or more")
    if not bool(torch.isfinite(gradients).all()):
        raise NotFinite("gradients holds a number that is not finite; every coordinate must be")
    return gradients


SPEC = AttackSpec(
    name="label_direct",
    summary="labels from gradients at summed logits, or from scalars by which they are estimated (Fu et al. 2022)",
    adversaries=("client", "eavesdropper"),
    infer=infer,
    mounted_by=mount_labels,
    positive=Positive("label_direct on split without a top model: must be 1", on_split, CERTAIN),
    requires={"top_model": False},
    requires_because="the attack reads the gradient at logits that the server only sums",
    options={"rule": "argmin", "estimator": "ridge"},
    choices={"rule": tuple(RULES), "estimator": ESTIMATORS},
    unfit=unfit_sampler,
    behave=querying_client,
)
