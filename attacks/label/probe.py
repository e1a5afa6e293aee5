"""Label inference by saturating probes: a malicious client against any method that sends scalars (attacks.md).

The client sends equal embeddings for every record but one, for which a step from -L to +L along one class's logit
makes the loss differ by about L in one direction or the other. DPZV clips that to +-C, so a probe is worth exactly
+-C/B in the scalar, whatever the batch: averaging protects nobody. The class whose scalar is smallest is the label.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from dpzv_audit.base.errors import InputError
from mechanisms.core.channel import View
from mechanisms.core.context import ClientBehaviour

from ..core import needs
from ..core.controls import CERTAIN
from ..core.knowledge import Knowledge, granted
from ..core.queries import answers_of
from ..core.setting import AttackSetting
from ..core.spec import AttackSpec, Goal, LabelGuesses, Needs, Positive, Setup
from .held import HoldingClient
from .mount import mount_labels

# L without a clip: one class's probability is then 1 in one evaluation and 0 in the other.
REACH = 50.0


def infer(view: View, known: Knowledge) -> LabelGuesses:
    """Return the class whose scalars are smallest on average, for every record that was probed to the end.

    A scalar is about -C/B where the probe's class is the label and +C/B elsewhere (with two losses: -+L/B), plus
    noise: the mean over repeats is the sufficient statistic, and its smallest the likeliest label.
    """
    classes = known.classes
    repeats = known.options["repeats"]
    probed = known.options["records"]
    per_record = classes * repeats
    answers = answers_of(view, known, per_record * probed * known.batches)
    complete = len(answers.values) // per_record
    if complete == 0:
        raise InputError(
            f"the view holds {len(answers.values)} answers, fewer than the {per_record} probes of one record; use "
            f"more ‹epochs› or a smaller ‹batch_size›"
        )
    scalars = answers.values[: complete * per_record]
    # (records, repeats, classes, K) -> (1, K, records, classes)
    scores = -scalars.unflatten(0, (complete, repeats, classes)).mean(1).permute(2, 0, 1)[None]
    batches = granted(answers.ids, "batch ids")[::per_record][:complete]
    ids = [batch[:, number % probed] for number, batch in enumerate(batches)]
    return LabelGuesses.of(scores, torch.stack(ids, 1)[None])


def reach_of(setting: AttackSetting) -> float:
    """Return L, below 0 where an answer is the loss of the second upload less that of the first."""
    measured = setting.method.differences(setting.config)
    # The loss difference of the step, about 2 L, is divided by 2 lambda: ten times the clip, and enough to tell.
    reach = REACH
    if measured and measured.clip:
        reach = max(REACH, 20.0 * measured.clip * measured.smoothing)
    return -reach if measured and not measured.two_sided else reach


def probing_client(setting: AttackSetting) -> Mapping[int, ClientBehaviour]:
    """Return the malicious client, which probes one record after another, each along every class several times.

    It holds a batch for as many rounds as it takes to probe the batch's first records. Its step is far beyond the clip.
    """
    config = setting.config
    classes = setting.dataset.classes
    probed = SPEC.count(setting, "records")
    if probed > config.batch_size:
        raise InputError(f"option records is {probed}; use at most the batch size of {config.batch_size}")
    per_record = classes * SPEC.count(setting, "repeats")
    reach = reach_of(setting)

    def question(number: int, size: int, width: int) -> Tensor:
        record, probe = divmod(number % (per_record * probed), per_record)
        step = torch.zeros(size, width, dtype=torch.float64)
        step[record, probe % classes] = reach
        return step

    return {setting.client: HoldingClient(per_record * probed, config.steps_per_pass(setting.records), question)}


def own_uploads(setting: AttackSetting) -> str | None:
    """Need a client that chooses the step, and batches that can be probed several times."""
    if setting.method.deviation != "uploads":
        return "its server perturbs the embedding itself, so a client cannot choose the step"
    if setting.config.sampler != "shuffled":
        return f"sampler is {setting.config.sampler!r}; use shuffled: a batch is probed several times"
    return None


def without_noise(setting: AttackSetting) -> AttackSetting:
    """Return DPZV without noise, for as long as it takes to probe one record to the end, and a little longer."""
    dataset = setting.dataset
    batch = setting.config.batch_size
    # The client is active in one round of as many as there are clients.
    rounds = dataset.classes * SPEC.count(setting, "repeats") * dataset.clients
    epochs = -(-rounds // max(1, setting.records // batch)) + 2
    options = {"top_model": False, "calibration": "none", "epochs": epochs}
    return setting.on("dpzv", options, adversary="malicious-client", trials=2)


SPEC = AttackSpec(
    name="label_probe",
    summary="labels by probes that saturate the clip for one record at a time, each worth C/B whatever the batch",
    adversaries=("malicious-client",),
    infer=infer,
    mounted_by=mount_labels,
    goal=Goal(Positive("label_probe on dpzv without noise: must be 1", without_noise, CERTAIN)),
    needs=Needs(
        requires={"top_model": False},
        requires_because="a probe moves one class's logit, at a server that only sums",
        conditions=(
            needs.own_protocol,
            needs.downlink(False, "its server sends the gradient of every record, so label_direct needs no probes"),
            own_uploads,
        ),
    ),
    setup=Setup(options={"repeats": 1, "records": 4}, behave=probing_client),
)
