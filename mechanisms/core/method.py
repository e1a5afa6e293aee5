"""A training method as the rest of the toolkit sees it: name, configuration, run, and answers about them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

from dpzv_audit.accounting import Release
from dpzv_audit.base.errors import InputError, unknown_name
from dpzv_audit.base.findings import AdversaryName, NeighbourRelation
from dpzv_audit.base.seeds import Purpose

from .capabilities import Capabilities
from .config import Downlink, TrainingConfig, build_config
from .context import AnswerBehaviour, Behaviour, Deployment, Plan, RunContext, TrainedStack, TrainingData, dtype_of
from .defence import checked, defended, label_release, words_of
from .secret import SecretBits

if TYPE_CHECKING:
    from torch import Tensor

    from .channel import Channel
    from .federation import Federation

# Clients whose runs tell whether a method draws noise.
_FEW = 3
# What a configuration is set to for a run on blank records.
_BLANK = {
    "batch_size": 2,
    "sample_rate": None,
    "embedding": 2,
    "hidden": 2,
    "client_model": "auto",
    "transformer": None,
    "frozen_blocks": None,
    "client_blocks": 0,
    "half_precision": False,
    "shift": 0,
    "defences": (),
}
_NO_SCALARS = "the games are played on noised scalars, which it does not send"


class Stack(Protocol):
    """The parties of a stack, as the loop that trains needs them."""

    channel: "Channel"

    @property
    def steps_per_pass(self) -> int:
        """Return how many rounds an epoch has."""

    def epoch_record(self, epoch: int) -> tuple[int, float, float]:
        """Return (epoch, mean test accuracy, mean test loss) as the stack stands."""

    def finish(self, rounds: int, history: Sequence[tuple[int, float, float]]) -> TrainedStack:
        """Return what the training gave after so many rounds."""


class Run(Protocol):
    """One stack of K trainings in progress."""

    round: int

    @property
    def federation(self) -> Stack:
        """Return its parties."""

    def step(self) -> None:
        """Run the next round."""

    def own_tensors(self) -> "dict[str, Tensor]":
        """Return state beside the federation's that a checkpoint must hold."""

    def skip_to(self, rounds: int) -> None:
        """Set the counters of this run, and of its random streams, to where `rounds` rounds are done."""


def federation_of(run: Run) -> "Federation":
    """Return the clients and the server of a run; `TypeError` for one whose parties are not the tool's own."""
    from .federation import Federation

    if not isinstance(run.federation, Federation):
        raise TypeError(f"a {type(run).__name__} keeps no parties")
    return run.federation


@dataclass(frozen=True, kw_only=True)
class Protection:
    """The protection that the noise of a configuration gives.

    Attributes:
        words: Which channel it protects, for every result.
        channel: Where it enters; None: no noise is added anywhere.
        audience: Whom it stands against; the first is meant where none is named.
        neighbours: The neighbour relation that is meant where none is named.
        draws: Whether a training draws noise that is to protect something.
        not_released: Why there is no release although noise is drawn, for every result; empty: there is one.
        epsilon: The claim from which it follows, if any.
        delta: Delta of the claim, or at which bounds are given where nothing is claimed.
    """

    words: str = "nothing: no noise is added anywhere"
    channel: Literal["scalar", "embedding", "gradient", "model"] | None = None
    audience: tuple[AdversaryName, ...] = ()
    neighbours: NeighbourRelation = "replace-label"
    draws: bool = False
    not_released: str = ""
    epsilon: float | None = None
    delta: float = 1e-5

    @property
    def faced(self) -> AdversaryName:
        """Return the adversary whom the noise faces; where there is none a client, who holds what the server sends."""
        return self.audience[0] if self.audience else "client"


@dataclass(frozen=True, kw_only=True)
class Differences:
    """How the answers of a zeroth-order method measure a gradient.

    Attributes:
        smoothing: Length of the step along a direction.
        two_sided: Whether a client sends h(w + lambda u) and h(w - lambda u), not h(w) and h(w + mu u).
        shared: Whether the server perturbs the embeddings itself, along directions that the client knows.
        records: Records whose losses an answer averages: B, or 1 where each record has an answer.
        clip: Bound of a record's difference; None: there is none.
        unit: Whether an answer is a difference of losses over its distance, 2 lambda; otherwise its scale is another.
        pairs: Whether a pair of uploads is computed on copies of one model, so that it differs by the step alone.
    """

    smoothing: float
    two_sided: bool = False
    shared: bool = False
    records: int
    clip: float | None = None
    unit: bool = False
    pairs: bool = False


@dataclass(frozen=True)
class Games:
    """Which games can be played on a configuration; where none can, `why_not` says why it is not auditable.

    `scalars` are the games on DPZV's noised scalars; the configuration then extends `ScalarConfig`. `sums` is the game
    on noised sums of clipped gradients (`dpzv_audit.games.sums`), `rows` that on noised rows (`dpzv_audit.games.rows`).
    """

    played: tuple[Literal["scalars", "sums", "rows"], ...] = ()
    why_not: str = ""


def _private_labels(defences: object) -> bool:
    """Return whether `defences`, as options give them, privatise labels; the configuration says what cannot be."""
    try:
        return bool(defences) and label_release(checked(defences)) is not None
    except ValueError:
        return False


def _published(release: Release, deployment: Deployment) -> Release:
    """Return a release with what a deployment says was published beside it."""
    names = ("seeded_noise", "seeded_batches", "data_dependent_side")
    return replace(release, **{name: getattr(release, name) or getattr(deployment, name) for name in names})


def no_noise(config: TrainingConfig, deployment: Deployment) -> tuple[Release, ...]:
    """Say that a training adds no noise anywhere: `released` of a method without noise."""
    return ()


@dataclass(frozen=True, kw_only=True)
class MethodSpec:
    """A method as users name it, with what others ask about its configurations.

    Attributes:
        name: What users call it.
        summary: One line on what it does.
        config: Type of its configurations; other methods may share it.
        run: Makes a `Run` that has not begun, from data, a configuration and a context; called through `start`.
        released: What a training releases under noise, as an accountant takes it, asked through `releases`; () says:
            no noise anywhere.
        downlink: What the server answers with.
        protection: What the noise of a configuration protects.
        games: Which games can be played on a configuration.
        plan: Schedule and noise of a scalar channel; None for methods without one.
        differences: How answers measure a gradient; None for first-order methods.
        deviation: What a client that deviates chooses: its two `uploads`, or its `own_gradient`; None: nothing.
        own_noise: Whether it adds noise by itself, from its epsilon, not only on a channel that is asked for.
        defaults: What it sets otherwise than its configuration does.
        capabilities: What its trainings have for attacks; the default is that of every simulated method.
    """

    name: str
    summary: str
    config: type[TrainingConfig]
    run: Callable[[TrainingData, Any, RunContext], Run]
    released: Callable[[Any, Deployment], tuple[Release, ...]]
    downlink: Downlink
    protection: Callable[[Any], Protection] = lambda config: Protection()
    games: Callable[[Any], Games] = lambda config: Games(why_not=_NO_SCALARS)
    plan: Callable[[Any, Deployment], Plan | None] = lambda config, deployment: None
    differences: Callable[[Any], Differences | None] = lambda config: None
    deviation: Literal["uploads", "own_gradient"] | None = None
    own_noise: bool = False
    defaults: Mapping[str, object] = field(default_factory=dict)
    capabilities: Capabilities = field(default_factory=Capabilities)

    def exchanging(self, clients: int) -> tuple[int, ...]:
        """Return which of so many clients exchange messages: all, but for features that the label party holds."""
        return tuple(m for m in range(1, clients + 1) if m not in self.capabilities.apart)

    def configure(self, **options: object) -> TrainingConfig:
        """Return the configuration with this method's defaults and the given `options`; `InputError` on a wrong one.

        Noise that is given by hand as `sigma` claims nothing unless `epsilon` is given too.
        """
        known = self.config.model_fields
        for key in options:
            if key not in known:
                raise unknown_name(f"option of method {self.name}", key, known)
        defaults = dict(self.defaults)
        if "epsilon" in known and options.get("sigma") is not None:
            defaults["epsilon"] = None
        # Labels that are private already need no noise of the method's: it is added where it is asked for.
        noise_options = {"epsilon", "sigma", "calibration"} & options.keys()
        if self.own_noise and not noise_options and _private_labels(options.get("defences")):
            defaults |= {"epsilon": None, "calibration": "none"}
        return build_config(self.config, defaults | options)

    def used(self, options: Mapping[str, object]) -> dict[str, object]:
        """Return those of the `options` that mean something to this method (`TrainingConfig.unused`)."""
        return {name: value for name, value in options.items() if name not in self.config.unused}

    def start(self, data: TrainingData, config: TrainingConfig, context: RunContext) -> Run:
        """Return the run of `config` before its first round, noise calibrated and plan made.

        Raises:
            InputError: The configuration is of another type or does not fit the data, or behaviours do not fit either.
        """
        from .channel import Channel

        if not isinstance(config, self.config):
            kind = f"config is a {type(config).__name__}"
            raise InputError(f"{kind}; use a {self.config.__name__} for method {self.name}")
        if context.behaviours:
            self._check_behaviours(context.behaviours, len(data.features))
        for defence in config.defences:
            if defence.place not in config.defended_at:
                rule = f"leave it out: it stands at each {defence.place} of a first-order round, which it lacks"
                raise InputError(rule, "defence", defence.name)
        if config.defences and self.capabilities.simulated:
            # What clients send for a defence is of the run: its bytes count, and its observers see it.
            context = replace(context, channel=Channel(context.observers))
        data = defended(data, config.defences, context)
        if not self.capabilities.simulated and data.decoder is not None:
            rule = "leave it out: its soft labels are decoded after a prediction, and a system gets classes alone"
            raise InputError(rule, "defence", config.defences[0].name)
        return self.run(data, config, context)

    def releases(self, config: TrainingConfig, deployment: Deployment) -> tuple[Release, ...]:
        """Return what a training releases under noise; () where it adds none.

        Raises:
            InputError: Noise is drawn of which the method states no release: nothing is known of any bound. Or it
                states more than one: not every command composes them.
        """
        protection = self.protection(config)
        releases = self.released(config, deployment)
        if protection.draws and not releases and not protection.not_released:
            raise self._unstated()
        if len(releases) > 1:
            raise InputError(f"which states {len(releases)} releases; state one", "method", self.name)
        self.check_noise(config, clients=deployment.clients)
        return tuple(_published(release, deployment) for release in releases)

    def secrets(self, config: TrainingConfig, deployment: Deployment) -> frozenset[Purpose]:
        """Return what a bound counts on beside noise that nobody could draw before, or can again.

        That are batches where a record's participations are random, and directions where they stand for noise.
        """
        purposes = set()
        for release in self.released(config, deployment):
            if release.channel == "zo-gradient":
                purposes.add(Purpose.DIRECTIONS)
            if release.fixed_participations is None:
                purposes.add(Purpose.BATCHES)
        return frozenset(purposes)

    def check_noise(self, config: TrainingConfig, *, clients: int) -> None:
        """Raise `InputError` where the method says that it draws no noise, and a run on a few blank records draws some.

        Takes no more time the larger the training is.
        """
        if self.protection(config).draws or not self.capabilities.simulated:
            return
        import torch

        try:
            config.check_clients(_FEW)
            clients = min(clients, _FEW)
        except InputError:
            pass  # activation is set for each of so many clients
        origin = SecretBits()
        small = config.model_copy(update={**_BLANK, "epochs": max(2, clients)})
        blank = (torch.zeros(4, 1, dtype=dtype_of(config)),) * clients
        labels = torch.arange(4) % 2
        data = TrainingData(blank, labels, blank, labels, 2)
        with torch.no_grad():
            run = self.start(data, small, RunContext(seed=0, origin=origin))
            for _ in range(clients):
                run.step()
        if origin.drawn:
            raise self._unstated()

    def _unstated(self) -> InputError:
        rule = "which draws noise and states no release; state what it releases"
        return InputError(rule, "method", self.name)

    def scalar_plan(self, config: TrainingConfig, deployment: Deployment) -> Plan:
        """Return schedule and noise of the scalar channel; `InputError` for a method without one."""
        plan = self.plan(config, deployment)
        if plan is None:
            raise InputError("use one that releases scalars, such as dpzv", "method", self.name)
        return plan

    def draws(self, config: TrainingConfig) -> bool:
        """Return whether a training draws what is to protect something: noise, or labels in the place of true ones."""
        return self.protection(config).draws or any(defence.draws for defence in config.defences)

    def protects(self, config: TrainingConfig) -> str:
        """Return in words what noise, or labels that are privatised, protect in `config`, for every result."""
        protection = self.protection(config)
        words = protection.words
        if protection.draws and words == Protection.words:
            words = "what the method does not say: it draws noise"
        if protection.draws and protection.not_released:
            words += f"; no release is stated: {protection.not_released}"
        own = words_of(config.defences)
        if not own:
            return words
        return f"{own}; and {words}" if protection.draws else own

    def _check_behaviours(self, behaviours: Mapping[int, Behaviour], clients: int) -> None:
        from .channel import SERVER

        if isinstance(behaviours.get(SERVER), AnswerBehaviour) and self.downlink == "gradient":
            behaviours = {number: own for number, own in behaviours.items() if number != SERVER}
        if not behaviours:
            return
        deviating = f"behaviours are given for client {', '.join(map(str, behaviours))}"
        does = self.deviation
        if does is None or not all(hasattr(behaviour, does) for behaviour in behaviours.values()):
            rule = f"leave it out, or choose {does}" if does else "leave it out"
            raise InputError(f"{deviating} of a {self.config.__name__}; {rule}")
        if not set(behaviours) <= set(range(1, clients + 1)):
            raise InputError(f"{deviating}; give them for clients 1 to {clients}")
