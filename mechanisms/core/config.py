"""Settings that methods share, validated once and frozen; a method's own settings stand beside its run."""

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializeAsAny,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from dpzv_audit.accounting.release import SamplerName
from dpzv_audit.base import limits
from dpzv_audit.base.errors import InputError, accounted_delta, check_count, rule_after_value

from .defence import Defence, Place, checked, label_release
from .schedules import by_compute_times, cyclic, random_activation

C = TypeVar("C", bound="TrainingConfig")

_Rate = Annotated[float, Field(ge=0)]
_Momentum = Annotated[float, Field(ge=0, lt=1)]
_Width = Annotated[int, Field(ge=1, le=limits.WIDEST)]
_ByClient = Annotated[tuple[float, ...], Field(max_length=limits.MOST_CLIENTS)]
ClientRate = Annotated[_Rate, Field(description="Learning rate of the clients, eta_m; 0 freezes them.")]
ServerRate = Annotated[_Rate, Field(description="Learning rate of the server, eta_0.")]
ClientMomentum = Annotated[_Momentum, Field(description="Momentum of the clients' steps.")]
ServerMomentum = Annotated[_Momentum, Field(description="Momentum of the server's steps.")]
Positive = Annotated[float, Field(gt=0)]
Delta = Annotated[float, Field(gt=0, lt=1), AfterValidator(accounted_delta)]
Smoothing = Annotated[Positive, Field(description="Smoothing parameter, mu.")]
Bits = Literal[1, 2, 4, 8]
NoiseKind = Literal["grid", "float"]
FeatureKind = Literal["auto", "components", "patches"]
ClientModel = Literal[
    "auto", "mlp", "strip-cnn", "patch-cnn", "resnet18", "resnet18-stem", "tokens", "transformer", "transformer-stem"
]
ForwardBits = Annotated[Bits | None, Field(description="Bits per value of the embeddings sent up; 32 if not given.")]


class TrainingConfig(BaseModel):
    """Settings of every method.

    An epoch is floor(D/B) rounds in all, over all clients together: the reading that fits the papers' byte counts. With
    a public `sample_rate` Q it is floor(1/Q), so that the number of rounds does not tell how many records there are.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)
    unused: ClassVar[Mapping[str, str]] = {}
    """Settings that mean nothing to a method, and why: they keep their defaults."""

    batch_size: int = Field(64, ge=1, le=limits.MOST_BATCH)
    """Records in a batch, B; the divisor of every batch mean."""
    epochs: int = Field(8, ge=1, le=limits.MOST_EPOCHS)
    """Epochs, each of floor(D/B) rounds of all clients together."""
    client_rate: ClientRate = 5e-4
    server_rate: ServerRate = 0.005
    momentum: ClientMomentum = 0.9
    server_momentum: ServerMomentum = 0.9
    rate_schedule: Literal["auto", "constant", "linear"] = "auto"
    """Rates stay, or fall to 0 by the last round; by default they stay, but where labels are privatised they fall."""
    embedding: _Width = 16
    """Width of a client's embedding under a top model, d_h."""
    hidden: _Width = 32
    """Width between the server's two linear layers."""
    top_model: bool = True
    """A top model at the server; without it the server sums logits."""
    softmax_outputs: bool = False
    """A softmax before the cross-entropy's own, as paper 003's public code has on MNIST."""
    client_model: ClientModel = "auto"
    """The clients' model; by default what fits the features."""
    transformer: Annotated[str, Field(min_length=1, max_length=limits.LONGEST_TEXT)] | None = None
    """Folder or hub name of a pre-trained transformer for token ids."""
    frozen_blocks: int | None = Field(None, ge=0, le=limits.MOST_BLOCKS)
    """Blocks of a client's transformer that stay as pre-trained, with its embeddings; not given: all are trained."""
    client_blocks: int = Field(0, ge=0, le=limits.MOST_BLOCKS)
    """Blocks that clients hold above the embeddings with client_model transformer-stem; the server has the rest."""
    half_precision: bool = False
    """Products inside a transformer in bfloat16; parameters and messages stay in single precision."""
    sampler: SamplerName = "shuffled"
    """How a client draws its batches."""
    sample_rate: Annotated[float, Field(ge=1e-9, le=1)] | None = None
    """Public probability Q that a record is in a Poisson batch, instead of B/D; epochs are floor(1/Q) rounds."""
    shift: int = Field(0, ge=0, le=100)
    """Most pixels by which clients move the pictures of a batch sideways, all alike and drawn in public."""
    dtype: Literal["float32", "float64"] = "float32"
    """Precision of the simulation."""
    defences: Annotated[tuple[SerializeAsAny[Defence], ...], BeforeValidator(checked)] = ()
    """Defences by which the training reveals less of labels or features, applied in this order."""

    @field_validator("*", mode="before")
    @classmethod
    def _a_bool_is_no_number(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse true and false, which pydantic would read as 1 and 0, for everything that is no switch."""
        switch = cls.model_fields[info.field_name or ""].annotation is bool
        entries = value if isinstance(value, list | tuple) else (value,)
        if not switch and bool in map(type, entries):
            raise ValueError("is no switch; use a number, not true or false")
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        for wrong, rule in self.contradictions():
            if wrong:
                raise ValueError(rule)
        return self

    def contradictions(self) -> Iterator[tuple[bool, str]]:
        """Yield what settings may not be together: whether they are, and the rule."""
        for name, why in self.unused.items():
            other = getattr(self, name) != type(self).model_fields[name].default
            yield other, f"{name} does not apply: {why}"
        yield from self._of_transformers()
        public = self.sample_rate is not None and self.sampler != "poisson"
        rate = f"sample_rate is {self.sample_rate} with sampler {self.sampler}"
        yield public, f"{rate}; leave it out, or sampler poisson"
        at_labels = [defence.name for defence in self.defences if defence.place == "labels"]
        yield len(at_labels) > 1, f"defences {' and '.join(at_labels)} both privatise labels; use one of them"
        for defence in self.defences:
            where = f"defence {defence.name} stands at each {defence.place} of a first-order round, which it lacks"
            yield defence.place not in self.defended_at, f"{where}: use method split, vafl or compressed"
            if defence.place == "embedding":
                padded = f"use sampler shuffled or uniform with defence {defence.name}: batches of one size are read"
                yield self.sampler == "poisson", padded

    def _of_transformers(self) -> Iterator[tuple[bool, str]]:
        """Yield the rules of `contradictions` on transformers."""
        named = self.transformer is not None
        kind = self.client_model
        needs = f"client_model {kind} needs transformer: a folder, or a name on the Hugging Face hub"
        yield kind.startswith("transformer") and not named, needs
        other = f"transformer needs client_model transformer or transformer-stem, not {kind}"
        yield named and kind not in ("auto", "transformer", "transformer-stem"), other
        stem = kind == "transformer-stem"
        whole = f"use another client_model than {kind} without a top model: the server has the rest"
        yield stem and not self.top_model, whole
        yield self.client_blocks > 0 and not stem, "client_blocks needs client_model transformer-stem"
        for name in ("frozen_blocks", "half_precision"):
            chosen = getattr(self, name) != TrainingConfig.model_fields[name].default
            yield chosen and not named, f"{name} needs transformer: a folder, or a name on the Hugging Face hub"
        still = stem and self.frozen_blocks is not None and self.frozen_blocks >= self.client_blocks
        fewer = f"use fewer than client_blocks, {self.client_blocks}: clients learn the others"
        yield still, f"frozen_blocks is {self.frozen_blocks}; {fewer}"
        yield self.half_precision and self.dtype == "float64", "half_precision needs dtype float32"

    def steps_per_pass(self, records: int) -> int:
        """Return the rounds of an epoch: floor(D/B), or floor(1/Q) where the sampling rate Q is public.

        `InputError` where a batch is larger than the data.
        """
        if self.batch_size > records:
            raise InputError(f"use at most the {records} training records", "batch_size", self.batch_size)
        if self.sample_rate is None:
            return records // self.batch_size
        return math.floor(1.0 / self.sample_rate)

    @property
    def rates_fall(self) -> bool:
        """Return whether rates fall evenly from round to round, towards 0 after the last.

        Labels that are wrong are learnt last, by what large steps at the end of a training make of few records.
        """
        if self.rate_schedule == "auto":
            return label_release(self.defences) is not None
        return self.rate_schedule == "linear"

    @property
    def all_at_once(self) -> bool:
        """Return whether all clients take part in every round, on one batch, which client 1 draws."""
        return False

    @property
    def defended_at(self) -> tuple[Place, ...]:
        """Return where a defence can stand in its rounds."""
        return ("labels",)

    @property
    def labels_shared(self) -> bool:
        """Return whether the server hands every client the training labels."""
        return False

    @property
    def embeddings_shared(self) -> bool:
        """Return whether the server passes every client the embeddings of all others."""
        return False

    def answered_losses(self, clients: int) -> int:
        """Return how many losses of a batch the server computes in a round to answer, each point counted once.

        First order: one, whose gradient is the answer.
        """
        return 1

    def passes(self, clients: int) -> "Passes":
        """Return the passes of a round, each point at which a loss is wanted counted once (paper 003, section 7).

        Raises `InputError` for a method whose passes nobody compares: one of neither paper 002 nor 003.
        """
        raise InputError("use a method of papers 002 and 003", "method", type(self).__name__)

    @property
    def label_free(self) -> FeatureKind | None:
        """Return which label-free features the clients' models are; None: models of other kinds."""
        return None

    @property
    def data_free(self) -> str | None:
        """Return which data-free map the clients' models are (`mechanisms.core.fixed`); None: models of other kinds."""
        return None

    @property
    def clients_learn(self) -> bool:
        """Return whether clients' models move, so that a control with frozen clients is another training."""
        return True

    @property
    def linear_head(self) -> bool:
        """Return whether the server's top model is one linear layer."""
        return False

    def check_clients(self, clients: int) -> None:
        """Raise `InputError` where the configuration is not of so many clients."""

    def check_sampler(self) -> None:
        """Raise `InputError` where noise cannot be calibrated for the sampler."""

    def sizes(self, *, records: int, clients: int) -> list[tuple[str, int, int]]:
        """Return what a training holds at once: in words, how many numbers, and how many it may be at most."""
        width = self.embedding if self.top_model else 1
        held = f"embedding {width} of {records:,} records at {clients} clients"
        sizes = [(held, records * clients * width, limits.MOST_EMBEDDED)]
        if self.top_model:
            layer = f"embedding {width} and hidden {self.hidden} with {clients} clients"
            sizes.append((layer, clients * width * self.hidden, limits.MOST_WEIGHTS))
        return sizes


class HeadConfig(TrainingConfig):
    """Settings of methods that train a linear head alone, on what clients with fixed models upload once.

    Noise follows from a claim, exactly. Every round reads all records.
    """

    epsilon: float | None = Field(None, gt=0)
    """Claimed epsilon, from which the noise follows."""
    delta: Delta = 1e-5
    """Delta of the claim."""
    calibration: Literal["sound", "none"] = "sound"
    """Noise follows from the claim, exactly, or there is none."""
    sigma: float | None = Field(None, ge=0)
    """Standard deviation of the noise; overrides the rest."""
    noise: NoiseKind = "grid"
    """In whole steps of a public grid; float: low bits can prove a record (gap floating-point)."""

    def contradictions(self) -> Iterator[tuple[bool, str]]:
        """See `TrainingConfig.contradictions`."""
        yield from super().contradictions()
        claimed = self.sigma is None and self.calibration != "none"
        yield claimed and self.epsilon is None, "epsilon is missing: calibration sound needs it (or give sigma)"

    def steps_per_pass(self, records: int) -> int:
        """Return 1: a round reads all records, whatever the batch size is."""
        return 1

    @property
    def noised(self) -> bool:
        """Return whether noise is added."""
        return self.sigma != 0.0 if self.sigma is not None else self.calibration != "none"

    @property
    def clients_learn(self) -> bool:
        """See `TrainingConfig.clients_learn`."""
        return False

    @property
    def linear_head(self) -> bool:
        """See `TrainingConfig.linear_head`."""
        return True


class Passes(NamedTuple):
    """Passes of one batch through the server's model in a round: those forward, and one `backward` where it has one.

    A backward pass `at_inputs` has the gradient of embeddings too. `zeroth_order` clients run their model twice
    forward, others once forward and back.
    """

    forward: int
    backward: bool
    at_inputs: bool = False
    zeroth_order: bool = False


_BY_CLIENT = ("activation_probabilities", "compute_times")


class AsyncConfig(TrainingConfig):
    """Settings of methods whose clients are active one at a time."""

    activation: Literal["cyclic", "random"] = "cyclic"
    """Which client is active: in turn, or with probability q_m."""
    activation_probabilities: _ByClient | None = None
    """q_m by client; equal if not given."""
    compute_times: _ByClient | None = None
    """Time that each client takes per round; activation then follows the clock, and staleness with it."""
    noise: NoiseKind = "grid"
    """In whole steps of a public grid; float: low bits can prove a record (gap floating-point)."""

    def contradictions(self) -> Iterator[tuple[bool, str]]:
        """See `TrainingConfig.contradictions`."""
        yield from super().contradictions()
        random = self.activation == "random"
        weighted = self.activation_probabilities is not None
        clock = "compute_times decide the order of clients, so use activation cyclic, not random"
        yield self.compute_times is not None and random, clock
        yield weighted and not random, "activation_probabilities need activation random"
        for name in _BY_CLIENT:
            yield min(getattr(self, name) or (1,)) <= 0, f"use more than 0 for each of {name}"

    @property
    def keeps_table(self) -> bool:
        """Return whether the server keeps a table for the embeddings of clients that send none of a batch."""
        return not self.all_at_once

    def check_clients(self, clients: int) -> None:
        """Raise `InputError` where activation is not of so many clients."""
        for name in _BY_CLIENT:
            values = getattr(self, name)
            if values is not None and len(values) != clients:
                raise InputError(f"{name} has {len(values)} entries; use one for each of the {clients} clients")


Downlink = Literal["scalar", "losses", "gradient", "other", "none"]


class ProtectedConfig(AsyncConfig):
    """Settings of baselines that protect a channel: what is clipped and noised, and how the noise follows.

    Attributes:
        uploads: Embeddings that a client sends of each record of a batch.
        client_step: How clients step; `first-order` chains what they receive with derivatives at their features.
        answers: What the server answers with.
    """

    uploads: ClassVar[int] = 1
    client_step: ClassVar[Literal["zeroth-order", "first-order"]] = "first-order"
    answers: ClassVar[Downlink] = "gradient"

    dp: Literal["none", "embedding", "embedding-batch", "gradient"] = "none"
    """What is clipped and noised: embeddings going up, or per-record gradients coming down."""
    dp_clip: Positive = 1.0
    """L2 clip of what is protected: C_h or C_g."""
    dp_sigma: float = Field(0.0, ge=0)
    """Standard deviation of the noise on every coordinate."""
    epsilon: float | None = Field(None, gt=0)
    """Target epsilon from which dp_sigma follows, if given."""
    delta: Delta = 1e-5
    """Delta of the target."""
    calibration: Literal["paper", "messages", "sound"] = "messages"
    """How noise follows from the target: as theorem 5.1 counts, by all messages alone, or only where that is sound."""
    neighbours: Literal["replace-record", "zero-out", "replace-label"] | None = None
    """Neighbours; by default replace-record for embeddings, replace-label for gradients."""

    @property
    def protected(self) -> bool:
        """Return whether noise is added to a channel: a clip alone protects nothing."""
        return self.dp != "none" and (self.dp_sigma > 0 or self.epsilon is not None)

    @property
    def channel(self) -> Literal["embedding", "gradient"]:
        """Return the channel that noise is on, where there is any."""
        return "gradient" if self.dp == "gradient" else "embedding"

    @property
    def server_step(self) -> Literal["zo", "sgd"]:
        """Return how the server steps: by evaluations of the loss, or by its gradient."""
        return "sgd"

    def passes(self, clients: int) -> Passes:
        """See `TrainingConfig.passes`: one loss and its gradient, at the embeddings too."""
        return Passes(self.answered_losses(clients), backward=True, at_inputs=True)

    def contradictions(self) -> Iterator[tuple[bool, str]]:
        """See `TrainingConfig.contradictions`."""
        yield from super().contradictions()
        by_hand = self.dp_sigma > 0
        targeted = self.epsilon is not None
        settings = {"dp_sigma above 0": by_hand, "epsilon": targeted, "noise float": self.noise == "float"}
        for name, chosen in settings.items():
            channel = f"{name} needs dp embedding, embedding-batch or gradient: what the noise is on"
            yield self.dp == "none" and chosen, channel
        both = f"dp_sigma is {self.dp_sigma} with an epsilon given, from which it follows: give one of the two"
        yield by_hand and targeted, both
        label = self.neighbours == "replace-label" and self.dp.startswith("embedding")
        yield label, "use neighbours replace-record or zero-out with dp embedding: the server owns the labels"
        for name in ("activation", *_BY_CLIENT):
            other = getattr(self, name) != AsyncConfig.model_fields[name].default
            yield self.all_at_once and other, f"{name} does not apply: all clients take part in every round"
        reading = [defence.name for defence in self.defences if defence.place == "gradient" and defence.reads_labels]
        broken = self.dp == "gradient" and bool(reading)
        yield broken, f"dp gradient has a bound that defence {' and '.join(reading)}, which reads labels, would break"
        nothing = self.dp == "gradient" and self.answers != "gradient"
        yield nothing, "use dp none, embedding or embedding-batch: no gradient travels here"


class BaselineConfig(ProtectedConfig):
    """Settings of the first-order baselines. Rates and momentum are those of plain SGD."""

    client_rate: ClientRate = 0.05
    server_rate: ServerRate = 0.05
    momentum: ClientMomentum = 0.0
    server_momentum: ServerMomentum = 0.0
    embeddings: Literal["stale", "fresh"] = "stale"
    """Embeddings of clients that are not active: from the server's table, or sent anew by all for every batch."""

    def contradictions(self) -> Iterator[tuple[bool, str]]:
        """See `TrainingConfig.contradictions`."""
        yield from super().contradictions()
        fresh = self.all_at_once and self.embeddings == "fresh"
        yield fresh, "embeddings does not apply: all clients take part in every round"

    @property
    def keeps_table(self) -> bool:
        """See `AsyncConfig.keeps_table`."""
        return super().keeps_table and self.embeddings == "stale"

    @property
    def defended_at(self) -> tuple[Place, ...]:
        """See `TrainingConfig.defended_at`: at what travels where clients are sent gradients."""
        sent = self.answers == "gradient" and not self.labels_shared
        return ("labels", "embedding", "gradient") if sent else ("labels",)


def build_config(kind: type[C], values: dict[str, object]) -> C:
    """Make a config of `kind` from `values`; `InputError` naming the first wrong key, its value and the rule."""
    try:
        return kind(**values)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(key_part) for key_part in first["loc"])
        value = first["input"] if key else ...
        raise InputError(rule_after_value(first["msg"]), key or "configuration", value) from None


def check_plan(config: TrainingConfig, *, records: int, clients: int, rounds: int | None = None) -> int:
    """Return how many rounds a plan will have; takes no time, whatever the sizes.

    Raises `InputError` where the configuration does not fit `records` and `clients`, or makes more than `MOST_ROUNDS`
    rounds (`rounds`, of all clients together, stand in place of the configuration's epochs).
    """
    config.steps_per_pass(records)
    config.check_clients(clients)
    check_count("clients", clients, most=limits.MOST_CLIENTS)
    config.check_sampler()
    if rounds is None:
        return rounds_of(config, records)
    return check_count("rounds", rounds, most=limits.MOST_ROUNDS)


def active_clients(config: AsyncConfig, clients: int, seed: int) -> Iterator[int]:
    """Yield the active client of each round, without end; `InputError` where the configuration does not fit them."""
    config.check_clients(clients)
    if config.compute_times is not None:
        return by_compute_times(config.compute_times)
    if config.activation == "random":
        equal = [1.0 / clients] * clients
        return random_activation(config.activation_probabilities or equal, seed=seed)
    return cyclic(clients)


def rounds_of(config: TrainingConfig, records: int) -> int:
    """Return the rounds T of a run: epochs x floor(D/B), or x floor(1/Q) with a public sampling rate Q.

    `InputError` for more than `MOST_ROUNDS`.
    """
    each = config.steps_per_pass(records)
    most = limits.MOST_ROUNDS
    if config.epochs * each > most:
        epochs = f"epochs is {config.epochs}, of {each:,} rounds each"
        raise InputError(f"{epochs}; use fewer, at most {most:,} rounds in all")
    return config.epochs * each


def check_sizes(config: TrainingConfig, *, records: int, clients: int) -> None:
    """Raise `InputError` where a training on `records` by `clients` is larger than `dpzv_audit.base.limits` allow.

    Takes no time and no memory, whatever the sizes.
    """
    rounds_of(config, records)
    for quantity, size, most in config.sizes(records=records, clients=clients):
        if size > most:
            raise InputError(f"{quantity} makes {size:,} numbers; use at most {most:,}")
