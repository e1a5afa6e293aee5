"""Labels from the largest coordinate of per-record gradients, whatever its sign (a variant of Fu et al. 2022).

At logits that the server sums the gradient is softmax - one-hot: 1 - p in size at the label, p elsewhere.
"""

from attacks.core.knowledge import Knowledge
from attacks.core.needs import record_gradients
from attacks.core.spec import AttackSpec, Goal, LabelGuesses, Needs, Positive, Setup
from attacks.label.direct import cut_layer, on_split
from attacks.label.mount import mount_labels
from mechanisms.core.channel import View


def infer(view: View, known: Knowledge) -> LabelGuesses:
    """Guess every record of the first pass over the data, before the model is sure of anything."""
    gradients, ids = cut_layer(view, known)
    sizes = gradients[: known.batches].abs()
    return LabelGuesses(sizes.argmax(3), ids[: known.batches], sizes)


SPEC = AttackSpec(
    name="label_largest",
    summary="labels from the largest coordinate of per-record gradients, whatever its sign",
    adversaries=("client",),
    infer=infer,
    mounted_by=mount_labels,
    goal=Goal(Positive("label_largest on split without a top model: must be 0.95 at least", on_split, 0.95)),
    needs=Needs(
        requires={"top_model": False},
        requires_because="the attack reads the gradient at logits that the server only sums",
        conditions=record_gradients,
    ),
    setup=Setup(trials=16),
)
