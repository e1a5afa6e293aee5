"""Direct label inference (Fu et al., USENIX Security 2022; for scalar feedback paper 002, section VI-B).

Where the server only sums the clients' outputs, the gradient at those outputs is softmax - one-hot: its one negative
coordinate is the label. First-order methods send that gradient. Scalar methods do not, but a curious client that sends
dummy outputs c +- lambda u gets a measurement of it back, and so an estimate. An eavesdropper knows no u.
"""

from collections.abc import Callable
from itertools import chain

import torch
from torch import Tensor

from dpzv_audit.base.seeds import Purpose, stream
from mechanisms.core.channel import View

from ..core import needs
from ..core.controls import CERTAIN
from ..core.knowledge import Knowledge, granted
from ..core.queries import Estimator, answers_of, best_ridge, first_pass, querying_client, stacked
from ..core.setting import COLLUDING, AttackSetting
from ..core.spec import AttackSpec, Goal, LabelGuesses, Needs, Positive, Setup
from ..gradient.estimates import checked, correlation, minimum_norm
from .mount import mount_labels


def argmin(gradients: Tensor) -> Tensor:
    """Return the class with the smallest gradient coordinate of every record.

    The gradient of cross entropy at the logits is softmax - onehot: its one negative coordinate, which is
    also its smallest, is the label. Under noise this rule weighs every coordinate, so it is the default.

    Args:
        gradients: (..., classes), true or estimated; only the order within a record matters, so any positive
            scale does.

    Returns:
        int64 labels of shape (...), in [0, classes); of equal smallest coordinates the first.

    Raises:
        NotFinite: a number is not finite.
    """
    return checked("gradients", gradients).argmin(dim=-1)


def first_negative(gradients: Tensor) -> Tensor:
    """Return the first class with a negative gradient coordinate, as published; shapes, errors: `argmin`.

    The published rule is stated for exact gradients, where one coordinate is negative, and says nothing of
    none. None occurs when softmax rounds to the one-hot label (coordinates 0 at the label and >= 0 elsewhere)
    and in estimates; the label is then the coordinate closest to being negative, so the answer is `argmin`'s.
    Under noise about half of all coordinates are negative, and the rule wastes most of the signal.
    """
    negative = checked("gradients", gradients) < 0
    first = negative.to(torch.uint8).argmax(dim=-1)
    return torch.where(negative.any(dim=-1), first, gradients.argmin(dim=-1))


RULES = {"argmin": argmin, "first-negative": first_negative}
ESTIMATORS: dict[str, Callable[[Knowledge], Estimator]] = {
    "ridge": best_ridge,
    "minimum-norm": lambda known: minimum_norm,
    "correlation": lambda known: correlation,
}


def infer(view: View, known: Knowledge) -> LabelGuesses:
    """Guess the labels from whatever this method sends: gradients, scalars, or scalars along shared directions."""
    if known.method.downlink == "gradient":
        gradients, ids = received_gradients(view, known, known.batches)
    else:
        outside = view.adversary.kind == "eavesdropper"
        scalars, directions, ids = (_of_an_outsider if outside else first_pass)(view, known)
        along = granted(directions, "directions").flatten(0, 1)
        estimator = ESTIMATORS[known.options["estimator"]](known)
        gradients = estimator(along, scalars.flatten(0, 1)).unflatten(0, scalars.shape[:2])
    return LabelGuesses(RULES[known.options["rule"]](gradients), ids, -gradients)


def received_gradients(view: View, known: Knowledge, most: int | None = None) -> tuple[Tensor, Tensor | None]:
    """Return the first `most` per-record gradients (rounds, K, B, width) that each attacked client received.

    And the record ids (rounds, K, B), None where the adversary does not know them. An eavesdropper that sees the mail
    of more clients sees no label more.
    """
    clients = view.adversary.clients or (known.client,)
    mail = [[m for m in view.received("gradient") if m.receiver == client][:most] for client in clients]
    return stacked(list(chain.from_iterable(mail)))


def cut_layer(view: View, known: Knowledge) -> tuple[Tensor, Tensor]:
    """Return per-record gradients (rounds, K, B, width) that a client received, and the record ids (rounds, K, B)."""
    gradients, ids = received_gradients(view, known)
    return gradients, granted(ids, "batch ids")


def _of_an_outsider(view: View, known: Knowledge) -> tuple[Tensor, Tensor, None]:
    """Return the answers of the first pass beside directions of one's own: an eavesdropper sees no other."""
    values = answers_of(view, known, known.batches).values
    # Of several differences per batch it can use one: it knows no direction of any.
    scalars = values.reshape(*values.shape[:2], -1)[..., :1]
    shape = (*scalars.shape, known.config.batch_size, known.classes)
    drawn = stream(known.seed, Purpose.ATTACK).standard_normal(shape)
    return scalars, torch.from_numpy(drawn).to(values.device), None


def on_split(setting: AttackSetting) -> AttackSetting:
    """Return the same attack on split learning without a top model, where per-record gradients name every label."""
    options = {"top_model": False, "epochs": 1}
    return setting.on("split", options, adversary="client", queries=1, trials=1, options={})


SPEC = AttackSpec(
    name="label_direct",
    summary="labels from gradients at summed logits, or from scalars by which they are estimated (Fu et al. 2022)",
    adversaries=("client", "eavesdropper", COLLUDING),
    infer=infer,
    mounted_by=mount_labels,
    goal=Goal(Positive("label_direct on split without a top model: must be 1", on_split, CERTAIN)),
    needs=Needs(
        requires={"top_model": False},
        requires_because="the attack reads the gradient at logits that the server only sums",
        conditions=(needs.one_batch_size, needs.gradients_of_colluders, needs.askable),
        one_view=True,
        first_pass=True,
    ),
    setup=Setup(
        options={"rule": "argmin", "estimator": "ridge"},
        choices={"rule": tuple(RULES), "estimator": tuple(ESTIMATORS)},
        behave=querying_client,
    ),
)
