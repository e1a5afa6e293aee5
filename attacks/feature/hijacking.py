"""Feature space hijacking: a server whose answers train a client towards embeddings that give its features away.

An honest server answers with gradients of the loss, which ask of a client what tells classes apart. This one answers
client 1 with gradients of its own, as long as the loss's, and decodes what comes up as `inversion` does; the others are
answered honestly. `published` is the attack of Pasquini, Ateniese and Bernaschi (CCS 2021, section 3.2): an autoencoder
of known records gives a space, and a discriminator trains the client towards it. `spread` needs no record: it maximises
the logarithm of the determinant of the embeddings' covariance, at a mean square of 1, so that no two directions of the
features share one of the embedding (as principal components do not).

A client can find it out: `mechanisms.defences.answers`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpzv_audit.base.findings import Interval
from dpzv_audit.base.seeds import Purpose, stream
from mechanisms.core.channel import SERVER, Message
from mechanisms.core.context import Behaviour
from mechanisms.core.streams import Batch
from mechanisms.defences.answers import AnswerCheck, predicted_share

from ..core import needs
from ..core.metrics import rate_interval
from ..core.setting import ATTACKER, AttackSetting
from ..core.spec import AttackOutcome, AttackSpec, no_target
from . import inversion

# Ridge of the covariance whose determinant is maximised.
_RIDGE = 1e-2
# Width of the networks of `published`, rates of their steps (Adam), and records in their batches.
_HIDDEN = 128
_RATES = {"autoencoder": 1e-3, "discriminator": 1e-4}
_BATCH = 64
HONEST = "by a server that answers honestly"
IGNORED = "answers that answer-check would ignore"
IGNORED_HONEST = "answers of an honest server that it would ignore"

Answer = Callable[[int, Tensor], Tensor]
"""Returns gradients (B, width) at the embeddings (B, width) of one replica, by its place in the stack."""


@dataclass(frozen=True)
class Hijacker:
    """A server that answers client 1 by its own `objective`, each replica's answer as long as the honest gradient."""

    objective: Answer
    first_pass_repeats: int = field(default=1, init=False)

    def answer(self, client: int, batch: Batch, embeddings: Tensor, gradient: Tensor) -> Tensor:
        """See `mechanisms.core.context.AnswerBehaviour.answer`."""
        if client != ATTACKER:
            return gradient
        own = torch.stack([self.objective(place, rows) for place, rows in enumerate(embeddings.double())])
        ours, theirs = (torch.linalg.vector_norm(rows, dim=(1, 2), keepdim=True) for rows in (own, gradient))
        scaled: Tensor = (own * (theirs / ours.clamp(min=1e-12))).to(gradient)
        return scaled


def spread(place: int, rows: Tensor) -> Tensor:
    """Return the gradient (B, width) of half of mean |h|^2 less log det of the covariance of `rows` (B, width)."""
    about = rows - rows.mean(0)
    covariance = about.T @ about / len(rows) + _RIDGE * torch.eye(rows.shape[1]).to(rows)
    gradient: Tensor = (rows - torch.linalg.solve(covariance, about, left=False)) / len(rows)
    return gradient


class Pilots:
    """The networks of `published`, of each replica: an autoencoder of known records, and a discriminator."""

    def __init__(self, setting: AttackSetting) -> None:
        data = setting.data()
        some, _ = inversion.some_features(data, setting)
        known = some.features.flatten(1).double()
        self._known = (known - known.mean(0)) / known.std().clamp(min=1e-12)
        self._networks = [_Pilot(setting, replica, known.shape[1]) for replica in setting.replicas]

    @torch.enable_grad()
    def __call__(self, place: int, rows: Tensor) -> Tensor:
        """Step the networks of a replica, and return the gradient (B, width) at its embeddings `rows`."""
        return self._networks[place].answer(self._known, rows.detach())


class _Pilot:
    def __init__(self, setting: AttackSetting, replica: int, features: int) -> None:
        width = setting.config.embedding if setting.config.top_model else setting.dataset.classes
        seed = int(stream(setting.seed, Purpose.ATTACK, replica, 8).integers(2**31))
        self._generator = torch.Generator(setting.device).manual_seed(seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._encoder, self._decoder, self._critic = (
                nn.Sequential(nn.Linear(a, _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, b)).double().to(setting.device)
                for a, b in ((features, width), (width, features), (width, 1))
            )
        both = [*self._encoder.parameters(), *self._decoder.parameters()]
        self._autoencoder = torch.optim.Adam(both, _RATES["autoencoder"])
        self._discriminator = torch.optim.Adam(self._critic.parameters(), _RATES["discriminator"])

    def answer(self, known: Tensor, rows: Tensor) -> Tensor:
        chosen = torch.randint(len(known), (_BATCH,), generator=self._generator, device=known.device)
        real = known[chosen]
        codes = self._encoder(real)
        self._step(self._autoencoder, functional.mse_loss(self._decoder(codes), real))
        told = self._critic(torch.cat((codes.detach(), rows)))[:, 0]
        truth = torch.cat((torch.ones(len(codes)), torch.zeros(len(rows)))).to(told)
        self._step(self._discriminator, functional.binary_cross_entropy_with_logits(told, truth))
        moved = rows.requires_grad_()
        fooled = functional.softplus(-self._critic(moved)).mean()
        (gradient,) = torch.autograd.grad(fooled, moved)
        return gradient

    @staticmethod
    def _step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


OBJECTIVES: dict[str, Callable[[AttackSetting], Answer]] = {"spread": lambda setting: spread, "published": Pilots}
"""What the answers train the client towards, by the option's word."""


def hijacking_server(setting: AttackSetting) -> Mapping[int, Behaviour]:
    """Return the server of a setting, which answers by its objective."""
    return {SERVER: Hijacker(OBJECTIVES[str(SPEC.own_options(setting)["objective"])](setting))}


class CheckedAnswers:
    """Hears what client 1 sent and was answered, and keeps which answers `answer-check` would ignore."""

    def __init__(self) -> None:
        self.ignored: list[bool] = []
        self._sent: Tensor | None = None

    def on_message(self, message: Message) -> None:
        """Take one message."""
        if message.kind == "embeddings" and message.sender == ATTACKER:
            self._sent = message.payload
        elif message.kind == "gradient" and message.receiver == ATTACKER and self._sent is not None:
            self.ignored += (predicted_share(self._sent, message.payload) > AnswerCheck().most).tolist()


def ignored(setting: AttackSetting, behaviours: Mapping[int, Behaviour]) -> Interval:
    """Return the share of the answers to client 1, in one training, that `answer-check` would ignore."""
    heard = CheckedAnswers()
    setting.train(setting.data(), behaviours=behaviours, observers=(heard,))
    return rate_interval(torch.tensor([heard.ignored]).numpy(), setting.confidence)


def mount_hijacking(spec: AttackSpec, setting: AttackSetting) -> AttackOutcome:
    """Mount `feature_inversion` on hijacked trainings; beside it on honest ones, and what the client could notice."""
    outcome = inversion.mount_features(spec, setting)
    if setting.pilot:
        return outcome
    passive = {key: value for key, value in setting.options.items() if key in inversion.SPEC.setup.options}
    following = replace(setting, adversary="server", options=passive, pilot=True)
    honest = inversion.mount_features(inversion.SPEC, following)
    alone = replace(setting, trials=1)
    beside = {
        HONEST: honest.success,
        IGNORED: ignored(alone, hijacking_server(alone)),
        IGNORED_HONEST: ignored(alone, {}),
    }
    return replace(outcome, measures={**outcome.measures, **beside})


def gradients_followed(setting: AttackSetting) -> str | None:
    """Need clients that step by gradients which the server sends them."""
    if setting.method.downlink == "gradient" and not setting.config.labels_shared:
        return None
    return "its clients step by no gradient that the server sends; use split, vafl or compressed"


# It answers client 1, and attacks no other.
_OPTIONS: dict[str, Any] = {key: value for key, value in inversion.SPEC.setup.options.items() if key != "target"}
SPEC = replace(
    inversion.SPEC,
    name="feature_hijacking",
    summary="feature_inversion by a server whose answers train a client to give its features away",
    adversaries=("malicious-server",),
    mounted_by=mount_hijacking,
    needs=replace(
        inversion.SPEC.needs,
        conditions=(needs.own_protocol, gradients_followed, *inversion.SPEC.needs.conditions[1:]),
        one_view=False,
    ),
    setup=replace(
        inversion.SPEC.setup,
        options={**_OPTIONS, "objective": "spread"},
        choices={**inversion.SPEC.setup.choices, "objective": tuple(OBJECTIVES)},
        behave=hijacking_server,
        targets=no_target,
    ),
)
