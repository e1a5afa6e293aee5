"""Stacks of K models: parameters, what evaluates them, the steps that move them, and the server's side of the loss.

Parameters are one flat tensor with a leading replica axis, and views into it by name. An evaluator maps parameters of a
stack of S models and inputs of shape (S, n, ...) to outputs (S, n, out), and gives the pullback for first-order steps:
the gradient of the *sum over replicas*, which keeps replicas apart. The strategies, chosen by `evaluator_for`, are
`fused` (batched matrix products, MLPs), `vmap` (`torch.func.functional_call` under `torch.func.vmap`) and `loop`
(`functional_call` a replica at a time; a stack of one, and convolutions on a CPU, where vmap does not pay).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.func import functional_call, vmap

from dpzv_audit.base.seeds import Purpose
from dpzv_audit.data.files import check_memory

from .config import TrainingConfig
from .models import MLP, Architecture, Layout, dimension, initial_parameters, layout_of
from .noise import Grid, norms_of, outer_steps, summed_products, truncated_steps, unit_steps
from .pretrained import TransformerModel
from .secret import generator
from .streams import Directions, Streams

Views = dict[str, Tensor]
Gradients = tuple[Tensor, Tensor]
# How often a safetensors file is in memory while it is made: its tensors, the file, and the bytes that we get.
_COPIES = 3


def views_of(flat: Tensor, layout: Layout) -> Views:
    """Return views (S, *shape) by name into `flat` (S, d). In-place changes of `flat` show in the views."""
    blocks = flat.split([math.prod(shape) for _, shape in layout], 1)
    named = zip(layout, blocks, strict=True)
    return {name: part.unflatten(1, shape) for (name, shape), part in named}


@dataclass(eq=False)
class ParameterStack:
    """Parameters of S models as one tensor `flat` of shape (S, d), with `views` by name into it.

    `flat` changes in place only, so what is derived from it once stays right.
    """

    flat: Tensor
    layout: Layout

    def __post_init__(self) -> None:
        self.views = views_of(self.flat, self.layout)

    @cached_property
    def layers(self) -> tuple[tuple[Tensor, Tensor, Tensor], ...]:
        """Return bias (S, 1, out), weight (S, out, in) and its transpose of each linear layer, all views."""
        views = list(self.views.values())
        pairs = zip(views[::2], views[1::2], strict=True)
        return tuple((bias.unsqueeze(1), weight, weight.transpose(1, 2)) for weight, bias in pairs)

    @cached_property
    def gradient(self) -> "ParameterStack":
        """Return storage for one gradient of the same layout, overwritten by every fused backward pass."""
        return self.empty(len(self.flat))

    @classmethod
    def initial(
        cls,
        layout: Layout,
        streams: Streams,
        *,
        party: int,
        pretrained: Mapping[str, Tensor] | None = None,
    ) -> "ParameterStack":
        """Draw the start of each replica from its own stream, so that it does not depend on the stack it is in.

        Parameters that are `pretrained` start there in every replica instead. Raises `MemoryError` where this machine
        has not the memory to draw them in.
        """
        pretrained = pretrained or {}
        drawn = tuple(item for item in layout if item[0] not in pretrained)
        each = 2 * 8 * dimension(drawn)  # in double precision, as rows and as a stack of them
        each += (streams.dtype or torch.float64).itemsize * dimension(layout) if pretrained else 0
        count = len(streams.replicas)
        check_memory(count * each, f"{count} models of {dimension(layout)} parameters")
        generators = (generator(streams.seed, Purpose.INIT, party, k) for k in streams.replicas)
        flat = streams.stacked([initial_parameters(drawn, own) for own in generators])
        if not pretrained:
            return cls(flat, layout)
        whole = cls(flat.new_empty(count, dimension(layout)), layout)
        starts = {**views_of(flat, drawn), **pretrained}
        for name, view in whole.views.items():
            view.copy_(starts[name])
        return whole

    def empty(self, stack: int) -> "ParameterStack":
        """Return uninitialised storage for so many models of the same layout, type and device."""
        return ParameterStack(self.flat.new_empty(stack, self.flat.shape[1]), self.layout)


def to_safetensors(stacks: dict[str, ParameterStack]) -> bytes:
    """Return all parameters of all replicas as a safetensors file: `party/name` of shape (K, *shape)."""
    tensors = {}
    for party, stack in stacks.items():
        for name, view in stack.views.items():
            tensors[f"{party}/{name}"] = view.contiguous()
    return serialized(tensors)


def serialized(tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> bytes:
    """Return a safetensors file of `tensors`; `MemoryError` where there is no room for the copies that it takes."""
    from safetensors.torch import save

    # A library in Rust that gets no memory ends the process: whether there is enough for its copies is seen here.
    torch.empty(_COPIES * sum(tensor.nbytes for tensor in tensors.values()), dtype=torch.uint8)
    return bytes(save(tensors, metadata))


def shift_in_place(parameters: ParameterStack, directions: Directions, round_: int, scale: float | Tensor) -> None:
    """Add `scale` (a number, or (K, 1)) times the direction of `round_` to the parameters, piece by piece.

    Neither the direction nor a copy of the model is ever held whole (MeZO; paper 001, section 2).
    """
    for start, stop, piece in directions.pieces(round_):
        parameters.flat[:, start:stop].add_(piece * scale)


@dataclass(eq=False)
class MomentumSGD:
    """Steps one party's K models in place, as torch's SGD; without momentum `buffer` is empty, otherwise (K, d)."""

    parameters: ParameterStack
    rate: float
    momentum: float

    def __post_init__(self) -> None:
        flat = self.parameters.flat
        self.buffer = torch.zeros_like(flat) if self.momentum else flat.new_empty(0)

    def step(self, gradient: Tensor) -> None:
        """Set buffer <- momentum * buffer + gradient, of (K, d), and parameters <- parameters - rate * buffer."""
        if self.momentum:
            gradient = self.buffer.mul_(self.momentum).add_(gradient)
        self.parameters.flat.add_(gradient, alpha=-self.rate)

    def step_along(self, direction: Tensor, scalar: Tensor, where: slice = slice(None)) -> None:
        """Step by the gradient estimate scalar * direction, of (K,) and (K, n), which is never formed.

        `where` says which of the d parameters the n numbers of `direction` are for.
        """
        flat = self.parameters.flat[:, where]
        if self.momentum:
            buffer = self.buffer[:, where].mul_(self.momentum).addcmul_(direction, scalar.unsqueeze(1))
            flat.add_(buffer, alpha=-self.rate)
        else:
            flat.addcmul_(direction, scalar.unsqueeze(1), value=-self.rate)


@dataclass(frozen=True)
class SoftTargets:
    """Targets that a loss compares logits with in the place of labels: `rows` (S, n, classes).

    Shares of classes, whose cross-entropy is meant; or, of a label that came about at random, the chance of it under
    each class (`likelihoods`), when the loss is that of the label under the model and the chances together (Patrini et
    al., CVPR 2017, forward correction).
    """

    rows: Tensor
    likelihoods: bool = False

    @property
    def shape(self) -> torch.Size:
        """Return (S, n)."""
        return self.rows.shape[:2]

    def repeat(self, *times: int) -> "SoftTargets":
        """Return the rows repeated as often along S and along n, as `Tensor.repeat` does with labels."""
        return replace(self, rows=self.rows.repeat(*times, 1))

    def repeat_interleave(self, times: int, dim: int) -> "SoftTargets":
        """Return each row of dimension `dim` so often in turn."""
        return replace(self, rows=self.rows.repeat_interleave(times, dim))

    def singles(self) -> "SoftTargets":
        """Return each record as a stack of its own, (S * n, 1, classes)."""
        return replace(self, rows=self.rows.flatten(0, 1).unsqueeze(1))


Targets = Tensor | SoftTargets
"""What losses compare logits with: labels (S, n), or `SoftTargets`."""


class ServerBatch(NamedTuple):
    """The batch of a server's step: rows (K, B, M * width), labels (K, B), and which records count, (K, B), or None."""

    rows: Tensor
    labels: Targets
    weights: Tensor | None = None

    def counted(self, values: Tensor) -> Tensor:
        """Return `values` (K, B), or (K, e, B), with those of records that do not count set to zero."""
        if self.weights is None:
            return values
        return values * (self.weights if values.dim() == 2 else self.weights.unsqueeze(1))


_EVALUATION_ROWS = 4096
_EVALUATION_IMAGES = 512  # more of their maps do not fit in a CPU's cache, and take twice as long
# Numbers of 4 bytes in the widest vector register: what a row of a product should be a multiple of.
_LANES = 16
# So many outputs are summed one by one, to the same bits: a third of the time of torch's sum over a middle axis.
_ADDED_UP = range(2, 5)


class Pullback(Protocol):
    """Pulls a gradient at the outputs (S, n, out) back."""

    def __call__(self, gradient: Tensor, at_inputs: bool = True) -> Gradients:
        """Return the flat gradient (S, d) and that at the inputs; without `at_inputs` the latter means nothing.

        The flat gradient may be storage that the next pullback through the same parameters writes again.
        """


class Evaluator(Protocol):
    """One model architecture, evaluated for a whole stack."""

    layout: Layout

    def forward(self, parameters: ParameterStack, inputs: Tensor) -> Tensor:
        """Return outputs of shape (S, n, out) for `inputs` of shape (S, n, ...)."""

    def vjp(self, parameters: ParameterStack, inputs: Tensor) -> tuple[Tensor, Pullback]:
        """Return outputs, and the function that pulls a gradient at the outputs back to parameters and inputs."""


class FusedMLP:
    """Linear layers with ReLU as batched matrix products, the backward pass written out: no graph is built."""

    def __init__(self, architecture: MLP) -> None:
        self.layout = layout_of(architecture)
        self._activated = [True] * (len(architecture.sizes) - 2) + [architecture.final_relu]

    def _run(self, parameters: ParameterStack, inputs: Tensor, first: int = 0) -> list[Tensor]:
        """Return the inputs of every layer from number `first` on, then the output."""
        values = [inputs.flatten(2) if inputs.dim() > 3 else inputs]
        for layer, activated in zip(parameters.layers[first:], self._activated[first:], strict=True):
            value = _affine(values[-1], *layer)
            values.append(value.relu_() if activated else value)
        return values

    def forward_moved(
        self, parameters: ParameterStack, inputs: Tensor, shifts: Tensor, columns: slice, scale: float
    ) -> Tensor:
        """Return outputs (S, (q + 1) n, out) at `inputs` (S, n, in), then with their `columns` moved by each shift.

        `shifts` (S, q, n, width) are scaled by `scale`. The first layer is linear, so only its product with the shifts
        is taken anew: half the work where two clients share the columns, and no copy of the inputs is moved.
        """
        bias, weight, transposed = parameters.layers[0]
        base = torch.baddbmm(bias, inputs, transposed)
        _, q, rows, _ = shifts.shape
        value = base.unsqueeze(1).repeat(1, q + 1, 1, 1).flatten(1, 2)
        moved = weight[:, :, columns].transpose(1, 2)
        value[:, rows:].baddbmm_(shifts.flatten(1, 2), moved, alpha=scale)
        if self._activated[0]:
            value.relu_()
        return self._run(parameters, value, 1)[-1]

    def forward(self, parameters: ParameterStack, inputs: Tensor) -> Tensor:
        """See `Evaluator.forward`."""
        return self._run(parameters, inputs)[-1]

    def vjp(self, parameters: ParameterStack, inputs: Tensor) -> tuple[Tensor, Pullback]:
        """See `Evaluator.vjp`."""
        values = self._run(parameters, inputs)

        def pullback(gradient: Tensor, at_inputs: bool = True) -> Gradients:
            deltas = self._deltas(parameters, values, gradient)
            _sums_into(parameters.gradient, deltas, values)
            if at_inputs:
                gradient = torch.bmm(deltas[0], parameters.layers[0][1]).view_as(inputs)
            return parameters.gradient.flat, gradient

        return values[-1], pullback

    def clipped_gradient_sum(self, parameters: ParameterStack, batch: ServerBatch, clip: float) -> Tensor:
        """Sum over records of the gradients of their own losses, each clipped to L2 norm `clip`; (S, d).

        A record's gradient at a layer is the outer product of what comes back and what went in, so its norm is known
        without it (Goodfellow 2015, "Efficient per-example gradient computations"). One that is not finite counts as 0.
        """
        values, back = self._factors(parameters, batch)
        layers = zip(back, values, strict=True)
        squares = [delta.square().sum(2) * (value.square().sum(2) + 1.0) for delta, value in layers]
        norms = sum(squares, torch.zeros(())).sqrt()
        factors = batch.counted(clip / norms.clamp(min=clip))
        finite = torch.isfinite(norms)
        # A check on a device would wait for it.
        if finite.device.type != "cpu" or not bool(finite.all()):
            # Zero times infinity is no number: what such a record has in the sums is taken out on both sides.
            missing = ~finite.unsqueeze(2)
            factors = factors.masked_fill(~finite, 0.0)
            back = [delta.masked_fill(missing, 0.0) for delta in back]
            values = [value.masked_fill(missing, 0.0) for value in values]
        total = parameters.empty(len(factors))
        _sums_into(total, [delta * factors.unsqueeze(2) for delta in back], values)
        return total.flat

    def add_clipped_gradient_steps(
        self, parameters: ParameterStack, batch: ServerBatch, grid: Grid, total: Tensor
    ) -> None:
        """Add `clipped_gradient_sum`, each record's gradient in whole steps of `grid`, to `total` (S, d) in float64.

        Exact as long as `total` stays below 2^53 (`mechanisms.core.noise.summed_products`).
        """
        values, back = self._factors(parameters, batch)
        factors = (unit_steps(value, grid, bias=True) for value in values)
        units, norms = zip(*factors, strict=True)
        layers = ParameterStack(total, self.layout).layers
        outer = outer_steps(back, norms, grid)
        for steps, unit, (bias, weight, _) in zip(outer, units, layers, strict=True):
            if batch.weights is not None:
                steps = steps * batch.weights.unsqueeze(2)
            product = summed_products(steps, unit)
            weight.add_(product[:, :, :-1])
            bias.squeeze(1).add_(product[:, :, -1])

    def _factors(self, parameters: ParameterStack, batch: ServerBatch) -> tuple[list[Tensor], list[Tensor]]:
        """Return each layer's inputs (S, n, in) and each record's own gradient at its outputs (S, n, out)."""
        values = self._run(parameters, batch.rows)
        gradient = loss_gradient(values[-1], batch.labels)
        return values[:-1], self._deltas(parameters, values, gradient)

    def _deltas(self, parameters: ParameterStack, values: Sequence[Tensor], gradient: Tensor) -> list[Tensor]:
        """Return gradients at the outputs of each layer before its ReLU, (S, n, out), of `gradient` at the output."""
        deltas: list[Tensor] = []
        for index in reversed(range(len(self._activated))):
            if self._activated[index]:
                gradient = torch.ops.aten.threshold_backward(gradient, values[index + 1], 0)
            deltas.insert(0, gradient)
            if index:
                gradient = torch.bmm(gradient, parameters.layers[index][1])
        return deltas


def _sums_into(target: ParameterStack, deltas: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Write the sums over records of their gradients: outer products of `deltas` and what went into each layer.

    Into a view of flat storage, with gaps between its matrices, torch multiplies one after the other, two to three
    times slower than all at once and a copy.
    """
    for (bias, weight, _), delta, value in zip(target.layers, deltas, values, strict=False):
        left = delta.transpose(1, 2)
        if weight.is_contiguous():
            torch.bmm(left, value, out=weight)
        else:
            weight.copy_(torch.bmm(left, value))
        torch.sum(delta, 1, keepdim=True, out=bias)


def _affine(inputs: Tensor, bias: Tensor, weight: Tensor, transposed: Tensor) -> Tensor:
    """Return inputs @ transposed + bias, (S, n, out), for inputs (S, n, in) and the operands of one layer.

    The batched kernel takes two to four times as long where rows of its result end off the vector width, as ten
    logits do; the product is then taken the other way round, so that rows of the result run along the n records.
    """
    stack, rows, _ = inputs.shape
    if stack == 1 or rows < _LANES or transposed.shape[2] % _LANES == 0:
        return torch.baddbmm(bias, inputs, transposed)
    return torch.baddbmm(bias.transpose(1, 2), weight, inputs.transpose(1, 2)).transpose(1, 2)


def channels_last(weight: Tensor) -> Tensor:
    """Return a kernel (o, c, h, w) whose channels lie side by side in memory; other parameters as they are.

    Maps follow their kernel, and a CPU then takes forward and backward passes in half the time. The strides of a single
    channel say nothing to `contiguous`, so they are set.
    """
    if weight.dim() != 4:
        return weight
    _, c, h, w = weight.shape
    dense = weight.contiguous(memory_format=torch.channels_last)
    return dense.as_strided(weight.shape, (c * h * w, 1, w * c, c))


class ModuleEvaluator:
    """Any torch module: under `vmap` over the stack, or a replica at a time (`loop`)."""

    def __init__(self, architecture: Architecture, *, together: bool, device: str = "cpu") -> None:
        self.layout = layout_of(architecture)
        with torch.device("meta"):
            module = architecture.module()
        self._buffers = {name: buffer.to(device) for name, buffer in module.named_buffers(remove_duplicate=False)}
        self._module = module.to("meta")  # every call brings its own parameters
        self._together = together

    def _one(self, parameters: Views, inputs: Tensor) -> Tensor:
        output: Tensor = functional_call(self._module, {**self._buffers, **parameters}, (inputs,))
        return output

    def _all(self, parameters: Views, inputs: Tensor) -> Tensor:
        if self._together:
            stacked: Tensor = vmap(self._one)(parameters, inputs)
            return stacked
        outputs = []
        for s, rows in enumerate(inputs):
            own = {name: values[s] for name, values in parameters.items()}
            if torch.is_grad_enabled():
                own = {name: channels_last(value) for name, value in own.items()}
            outputs.append(self._one(own, rows))
        return torch.stack(outputs)

    def forward(self, parameters: ParameterStack, inputs: Tensor) -> Tensor:
        """See `Evaluator.forward`."""
        return self._all(parameters.views, inputs)

    def vjp(self, parameters: ParameterStack, inputs: Tensor) -> tuple[Tensor, Pullback]:
        """See `Evaluator.vjp`."""
        with torch.enable_grad():
            leaves = {name: value.detach().requires_grad_() for name, value in parameters.views.items()}
            source = inputs.detach().requires_grad_(inputs.is_floating_point())
            outputs = self._all(leaves, source)

        def pullback(gradient: Tensor, at_inputs: bool = True) -> Gradients:
            wanted = [*leaves.values(), source] if at_inputs else [*leaves.values()]
            gradients = torch.autograd.grad(outputs, wanted, gradient, allow_unused=True, materialize_grads=True)
            flat = torch.cat([own.flatten(1) for own in gradients[: len(leaves)]], 1)
            return flat, gradients[-1] if at_inputs else gradient

        return outputs.detach(), pullback


def evaluator_for(architecture: Architecture, *, stack: int, device: str = "cpu") -> Evaluator:
    """Return the evaluator of `architecture` for stacks of about `stack` models.

    MLPs are fused; other modules go under vmap where it pays, which measurement says is a stack of several on a GPU,
    and otherwise run a replica at a time (convolutions on a CPU: vmap runs at 1.0 times a loop at a stack of 16 and
    0.7 at 128).
    """
    if isinstance(architecture, MLP):
        return FusedMLP(architecture)
    # A transformer looks at its mask's values, which vmap does not allow.
    pays = stack > 1 and device != "cpu" and not isinstance(architecture, TransformerModel)
    return ModuleEvaluator(architecture, together=pays, device=device)


def embeddings_of(evaluator: Evaluator, parameters: ParameterStack, features: Tensor) -> Tensor:
    """Return embeddings (K, n, width) of `features` (n, ...) under K models, some records at a time."""
    stack = len(parameters.flat)
    size = _EVALUATION_IMAGES if features.dim() == 4 else _EVALUATION_ROWS
    pieces = [
        evaluator.forward(parameters, rows.unsqueeze(0).expand(stack, *rows.shape)) for rows in features.split(size)
    ]
    return torch.cat(pieces, 1)


class SumOfOutputs:
    """The sum of the outputs (S, n, width) of `clients`, side by side in the inputs; an `Evaluator`, not trained."""

    layout: Layout = ()

    def __init__(self, clients: int) -> None:
        self._clients = clients

    def forward(self, parameters: ParameterStack, inputs: Tensor) -> Tensor:
        """See `Evaluator.forward`."""
        replicas, rows, _ = inputs.shape
        parts = inputs.view(replicas, rows, self._clients, -1)
        if self._clients not in _ADDED_UP:
            return parts.sum(2)
        first, second, *rest = parts.unbind(2)
        total = first + second
        for output in rest:
            total += output
        return total

    def vjp(self, parameters: ParameterStack, inputs: Tensor) -> tuple[Tensor, Pullback]:
        """See `Evaluator.vjp`."""

        def pullback(gradient: Tensor, at_inputs: bool = True) -> Gradients:
            return gradient.new_empty(len(gradient), 0), gradient.repeat(1, 1, self._clients)

        return self.forward(parameters, inputs), pullback


class Server:
    """Maps rows (S, n, M * width) of the clients' embeddings side by side to logits; an `Evaluator`.

    With an `evaluator` by a top model, otherwise as the sum of the clients' outputs ("model without split"): no
    parameters, nothing to train. With `softmax` its outputs are probabilities, on which the losses below take a second
    softmax: the public code of paper 003 computes its loss on MNIST that way; the paper does not.
    """

    def __init__(self, evaluator: Evaluator | None, *, clients: int = 1, softmax: bool = False) -> None:
        self._evaluator = evaluator or SumOfOutputs(clients)
        self.layout = self._evaluator.layout
        self._softmax = softmax

    @property
    def fused(self) -> FusedMLP | None:
        """Return its evaluator where that is a fused MLP, whose per-record gradients need not be formed."""
        if self._softmax or not isinstance(self._evaluator, FusedMLP):
            return None
        return self._evaluator

    def _outputs(self, logits: Tensor) -> Tensor:
        return torch.softmax(logits, 2) if self._softmax else logits

    def forward(self, parameters: ParameterStack, inputs: Tensor) -> Tensor:
        """See `Evaluator.forward`."""
        return self._outputs(self._evaluator.forward(parameters, inputs))

    def vjp(self, parameters: ParameterStack, inputs: Tensor) -> tuple[Tensor, Pullback]:
        """See `Evaluator.vjp`."""
        logits, inner = self._evaluator.vjp(parameters, inputs)
        if not self._softmax:
            return logits, inner
        outputs = self._outputs(logits)

        def pullback(gradient: Tensor, at_inputs: bool = True) -> Gradients:
            centred = gradient - (gradient * outputs).sum(2, keepdim=True)
            return inner(outputs * centred, at_inputs=at_inputs)

        return outputs, pullback

    def pair_logits(self, parameters: ParameterStack, rows: Tensor, uploads: Tensor, slot: slice) -> Tensor:
        """Return logits (K, 2B, classes) of `rows` (K, B, M * width) with `slot` replaced by either of `uploads`.

        `uploads` (K, 2, B, width) are evaluated one after the other: first the B rows of h+, then those of h-. Both
        evaluations share the parameters, so they go as one batch of 2B rows; of a sum, what others add is summed once.
        """
        if isinstance(self._evaluator, SumOfOutputs):
            others = self._evaluator.forward(parameters, rows).sub_(rows[..., slot])
            return self._outputs((others.unsqueeze(1) + uploads).flatten(1, 2))
        pair = torch.cat((rows, rows), 1)
        pair.view(len(rows), 2, *rows.shape[1:])[..., slot] = uploads
        return self.forward(parameters, pair)

    def moved_logits(
        self, parameters: ParameterStack, rows: Tensor, shifts: Tensor, slot: slice, scale: float
    ) -> Tensor:
        """Return logits (K, (q + 1) B, classes) of `rows` (K, B, M * width), then with `slot` moved by each shift.

        `shifts` (K, q, B, width) are scaled by `scale`; all go through the server in one batched product.
        """
        if isinstance(self._evaluator, SumOfOutputs):
            base = self._evaluator.forward(parameters, rows).unsqueeze(1)
            moved = torch.add(base, shifts, alpha=scale)
            return self._outputs(torch.cat((base, moved), 1).flatten(1, 2))
        if isinstance(self._evaluator, FusedMLP):
            logits = self._evaluator.forward_moved(parameters, rows, shifts, slot, scale)
            return self._outputs(logits)
        stacked = rows.unsqueeze(1).repeat(1, shifts.shape[1] + 1, 1, 1)
        stacked[:, 1:, :, slot].add_(shifts, alpha=scale)
        return self.forward(parameters, stacked.flatten(1, 2))


def server_of(model: Architecture | None, config: TrainingConfig, *, clients: int, stack: int, device: str) -> Server:
    """Return the server that evaluates `model`, or sums where it is None, for stacks of about `stack` replicas."""
    evaluator = None if model is None else evaluator_for(model, stack=stack, device=device)
    return Server(evaluator, clients=clients, softmax=config.softmax_outputs)


def cross_entropy(logits: Tensor, labels: Targets) -> Tensor:
    """Return the loss of each record, shape (S, n), of `logits` (S, n, classes) and `labels` (S, n) or soft ones.

    Softmax runs over classes as the second axis, where torch's kernel is vectorised along the records (ten times faster
    than over ten last entries).
    """
    return _losses(torch.log_softmax(logits.transpose(1, 2), 1), labels)


def _losses(scores: Tensor, labels: Targets) -> Tensor:
    """Return the loss of each record, (S, n), of logarithms of probabilities (S, classes, n)."""
    if not isinstance(labels, SoftTargets):
        return scores.gather(1, labels.unsqueeze(1)).squeeze(1).neg_()
    rows = labels.rows.transpose(1, 2)
    if labels.likelihoods:
        return -torch.logsumexp(scores + rows.log(), 1)
    return -(scores * rows).sum(1)


def loss_differences(logits: Tensor, labels: Targets) -> Tensor:
    """Return the cross-entropy of the first B rows less that of the last B, shape (K, B).

    `logits` (K, 2B, classes) hold two evaluations of a batch with `labels` (K, B).
    """
    first, second = torch.log_softmax(logits.transpose(1, 2), 1).chunk(2, 2)
    if isinstance(labels, SoftTargets) and labels.likelihoods:
        return _losses(first, labels) - _losses(second, labels)
    return -_losses(second - first, labels)


def loss_gradient(logits: Tensor, labels: Targets, weights: Tensor | None = None, divisor: int = 1) -> Tensor:
    """Return the gradient at the logits of the batch loss (sum over records / `divisor`): (softmax - target) / divisor.

    The target is one-hot, shares, or how likely each class is once the random label is known.
    """
    gradient = torch.softmax(logits.transpose(1, 2), 1)
    if not isinstance(labels, SoftTargets):
        gradient.scatter_(1, labels.unsqueeze(1), -1.0, reduce="add")
    elif labels.likelihoods:
        both = gradient * labels.rows.transpose(1, 2)
        gradient -= both / both.sum(1, keepdim=True).clamp(min=torch.finfo(both.dtype).tiny)
    else:
        gradient -= labels.rows.transpose(1, 2)
    gradient.mul_(1.0 / divisor)
    if weights is not None:
        gradient *= weights.unsqueeze(1)
    return gradient.transpose(1, 2)


def per_record_gradients(server: Evaluator, parameters: ParameterStack, batch: ServerBatch) -> Tensor:
    """Return the gradient of each record's own loss at the server's parameters, shape (K, B, d_0).

    A record is treated as a stack of its own, so that any evaluator serves; K * B copies of the gradient are held.
    """
    labels = batch.labels
    flat = parameters.flat.repeat_interleave(labels.shape[1], 0)
    rows = batch.rows.flatten(0, 1).unsqueeze(1)
    logits, pullback = server.vjp(ParameterStack(flat, parameters.layout), rows)
    alone = labels.singles() if isinstance(labels, SoftTargets) else labels.flatten().unsqueeze(1)
    gradients, _ = pullback(loss_gradient(logits, alone), at_inputs=False)
    return gradients.view(*labels.shape, -1)


def clipped_gradient_sum(server: Server, parameters: ParameterStack, batch: ServerBatch, clip: float) -> Tensor:
    """Sum over records of `per_record_gradients`, each clipped to L2 norm `clip`; shape (K, d_0).

    A gradient that is no number, or too large to be one, counts as 0: embeddings sent to overflow must not reach w_0,
    where the label may decide whether they do.
    """
    if server.fused is not None:
        return server.fused.clipped_gradient_sum(parameters, batch, clip)
    gradients = per_record_gradients(server, parameters, batch)
    factors = clip / norms_of(gradients).clamp(min=clip)
    clipped = (gradients * factors).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
    if batch.weights is not None:
        clipped = clipped * batch.weights.unsqueeze(2)
    return clipped.sum(1)


def add_clipped_gradient_steps(
    server: Server, parameters: ParameterStack, batch: ServerBatch, grid: Grid, total: Tensor
) -> None:
    """Add `clipped_gradient_sum`, each record's gradient in whole steps of `grid`, to `total` (K, d_0) in float64.

    One record's part has a norm of at most 2^bits steps, whatever the server's model is.
    """
    if server.fused is not None:
        server.fused.add_clipped_gradient_steps(parameters, batch, grid, total)
        return
    for place, own in enumerate(per_record_gradients(server, parameters, batch).unbind(1)):
        steps = truncated_steps(own, grid, (1,))
        if batch.weights is not None:
            steps *= batch.weights[:, place, None]
        total += steps
