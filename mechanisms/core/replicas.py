"""Evaluators of a stack of K replicas: one contract, and three strategies behind it.

An evaluator maps parameters of a stack of S models and inputs of shape (S, n, ...) to outputs (S, n, out), and
gives the pullback for first-order steps: the gradient of the *sum over replicas*, which keeps replicas apart.
The strategies, chosen by `evaluator_for`, are `fused` (batched matrix products, MLPs), `vmap`
(`torch.func.functional_call` under `torch.func.vmap`) and `loop` (`functional_call` a replica at a time; a stack of
one, and convolutions on a CPU, where vmap does not pay).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from mechanisms.core.grid import Grid, outer_steps, summed_products, unit_steps
from mechanisms.core.models import MLP, Architecture, Layout, TransformerModel, layout_of
from mechanisms.core.parameters import ParameterStack, Views, views_of

Strategy = Literal["fused", "vmap", "loop"]
_EVALUATION_ROWS = 4096
_LANES = 16
"""Numbers of 4 bytes in the widest vector register: what a row of a product should be a multiple of."""


class Pullback(Protocol):
    """Pulls a gradient at the outputs (S, n, out) back."""

    def __call__(self, gradient: Tensor, at_inputs: bool = True) -> tuple[Tensor, Tensor]:
        """(flat parameter gradient (S, d), gradient at the inputs; without `at_inputs` the latter means nothing).

        The flat gradient may be storage that the next pullback through the same parameters writes again.
        """


class Evaluator(Protocol):
    """One model architecture, evaluated for a whole stack."""

    layout: Layout

    def forward(self, parameters: ParameterStack, inputs: Tensor) -> Tensor:
        """Outputs of shape (S, n, out) for `inputs` of shape (S, n, ...)."""

    def forward_with_pullback(self, parameters: ParameterStack, inputs: Tensor) -> tuple[Tensor, Pullback]:
        """Outputs, and the function that pulls a gradient at the outputs back to parameters and inputs."""


class FusedMLP:
    """Linear layers with ReLU as batched matrix products, the backward pass written out: no graph is built."""

    def __init__(self, architecture: MLP) -> None:
        self.layout = layout_of(architecture)
        names = [name for name, _ in self.layout]
        self._layers = tuple(zip(names[0::2], names[1::2], strict=True))
        self._activated = tuple(
            architecture.final_relu or index < len(self._layers) - 1 for index in range(len(self._layers))
        )

    def _operands(self, parameters: ParameterStack) -> tuple[tuple[Tensor, Tensor, Tensor], ...]:
        """Bias (S, 1, out), weight (S, out, in) and its transpose, by layer: views, made once a stack."""
        if parameters.operands is None:
            views = parameters.views
            parameters.operands = tuple(
                (views[bias].unsqueeze(1), views[weight], views[weight].transpose(1, 2))
                for weight, bias in self._layers
            )
        return parameters.operands

    def _run(self, parameters: ParameterStack, inputs: Tensor) -> list[Tensor]:
        """Inputs of every layer, then the output."""
        values = [inputs.flatten(2) if inputs.dim() > 3 else inputs]
        for operands, activated in zip(self._operands(parameters), self._activated, strict=True):
            value = _affine(values[-1], *operands)
            values.append(value.relu_() if activated else value)
        return values

    def forward_moved(
        self, parameters: ParameterStack, inputs: Tensor, shifts: Tensor, columns: slice, scale: float
    ) -> Tensor:
        """Outputs (S, (q + 1) n, out) at `inputs` (S, n, in), then at inputs whose `columns` are moved by each shift.

        `shifts` (S, q, n, width) are scaled by `scale`. The first layer is linear, so only its product with the shifts
        is taken anew: half the work where two clients share the columns, and no copy of the inputs is moved.
        """
        (bias, weight, transposed), *others = self._operands(parameters)
        base = torch.baddbmm(bias, inputs, transposed)
        _, q, rows, _ = shifts.shape
        value = base.unsqueeze(1).repeat(1, q + 1, 1, 1).flatten(1, 2)
        moved = weight[:, :, columns].transpose(1, 2)
        value[:, rows:].baddbmm_(shifts.flatten(1, 2), moved, alpha=scale)
        if self._activated[0]:
            value.relu_()
        for operands, activated in zip(others, self._activated[1:], strict=True):
            value = _affine(value, *operands)
            value = value.relu_() if activated else value
        return value

    def forward(self, parameters: ParameterStack, inputs: Tensor) -> Tensor:
        """See `Evaluator.forward`."""
        return self._run(parameters, inputs)[-1]

    def forward_with_pullback(self, parameters: ParameterStack, inputs: Tensor) -> tuple[Tensor, Pullback]:
        """See `Evaluator.forward_with_pullback`."""
        values = self._run(parameters, inputs)
        operands = self._operands(parameters)

        def pullback(gradient: Tensor, at_inputs: bool = True) -> tuple[Tensor, Tensor]:
            found = parameters.gradient
            for index in reversed(range(len(operands))):
                weight, bias = self._layers[index]
                if self._activated[index]:
                    gradient = torch.ops.aten.threshold_backward(gradient, values[index + 1], 0)
                _product_into(found.views[weight], gradient.transpose(1, 2), values[index])
                torch.sum(gradient, 1, out=found.views[bias])
                if index or at_inputs:
                    gradient = torch.bmm(gradient, operands[index][1])
            return found.flat, gradient.view_as(inputs) if at_inputs else gradient

        return values[-1], pullback

    def clipped_gradient_sum(
        self,
        parameters: ParameterStack,
        inputs: Tensor,
        at_outputs: Callable[[Tensor], Tensor],
        clip: float,
        weights: Tensor | None,
    ) -> Tensor:
        """Sum over records of their own parameter gradients, each clipped to L2 norm `clip`; (S, d).

        `at_outputs` maps outputs (S, n, out) to each record's own gradient there; `weights` (S, n) say which count. A
        record's gradient at a layer is the outer product of what comes back and what went in, so its norm is known
        without it (Goodfellow 2015, "Efficient per-example gradient computations"). One that is not finite counts as 0.
        """
        values, back = self._factors(parameters, inputs, at_outputs)
        squared = sum(
            delta.square().sum(2) * (value.square().sum(2) + 1.0) for delta, value in zip(back, values, strict=True)
        )
        assert isinstance(squared, Tensor)
        norms = squared.sqrt()
        factors = clip / norms.clamp(min=clip)
        if weights is not None:
            factors = factors * weights
        finite = torch.isfinite(norms)
        if not bool(finite.all()):
            # Zero times infinity is no number: what such a record has in the sums is taken out on both sides.
            missing = ~finite.unsqueeze(2)
            factors = factors.masked_fill(~finite, 0.0)
            back = [delta.masked_fill(missing, 0.0) for delta in back]
            values = [value.masked_fill(missing, 0.0) for value in values]
        found = ParameterStack.empty(self.layout, len(inputs), parameters.flat)
        for index, delta in enumerate(back):
            weight, bias = self._layers[index]
            scaled = delta * factors.unsqueeze(2)
            _product_into(found.views[weight], scaled.transpose(1, 2), values[index])
            torch.sum(scaled, 1, out=found.views[bias])
        return found.flat

    def add_clipped_gradient_steps(
        self,
        parameters: ParameterStack,
        inputs: Tensor,
        at_outputs: Callable[[Tensor], Tensor],
        grid: Grid,
        weights: Tensor | None,
        total: Tensor,
    ) -> None:
        """Add `clipped_gradient_sum`, each record's gradient in whole steps of `grid`, to `total` (S, d) in float64.

        Exact as long as `total` stays below 2^53 (`mechanisms.core.grid.summed_products`).
        """
        values, back = self._factors(parameters, inputs, at_outputs)
        units, norms = zip(*(unit_steps(value, grid, bias=True) for value in values), strict=True)
        views = views_of(total, self.layout)
        for index, steps in enumerate(outer_steps(back, norms, grid)):
            weight, bias = self._layers[index]
            counted = steps if weights is None else steps * weights.unsqueeze(2)
            product = summed_products(counted, units[index])
            views[weight].add_(product[:, :, :-1])
            views[bias].add_(product[:, :, -1])

    def _factors(
        self, parameters: ParameterStack, inputs: Tensor, at_outputs: Callable[[Tensor], Tensor]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """What goes into each layer (S, n, in) and each record's own gradient at what comes out of it (S, n, out)."""
        values = self._run(parameters, inputs)
        operands = self._operands(parameters)
        back = [at_outputs(values[-1])]
        for index in reversed(range(1, len(operands))):
            gradient = torch.bmm(back[0], operands[index][1])
            back.insert(0, torch.ops.aten.threshold_backward(gradient, values[index], 0))
        return values[:-1], back


def _affine(inputs: Tensor, bias: Tensor, weight: Tensor, transposed: Tensor) -> Tensor:
    """inputs @ transposed + bias, (S, n, out), for inputs (S, n, in) and the operands of one layer.

    The batched kernel takes two to four times as long where rows of its result end off the vector width, as ten
    logits do; the product is then taken the other way round, so that rows of the result run along the n records.
    """
    stack, rows, _ = inputs.shape
    if stack == 1 or rows < _LANES or transposed.shape[2] % _LANES == 0:
        return torch.baddbmm(bias, inputs, transposed)
    return torch.baddbmm(bias.transpose(1, 2), weight, inputs.transpose(1, 2)).transpose(1, 2)


def _product_into(target: Tensor, left: Tensor, right: Tensor) -> None:
    """Write left @ right to `target`, a view of flat storage: gaps between its matrices would keep it from one call.

    Into such a view torch multiplies one matrix after the other, two to three times slower than all at once and a copy.
    """
    if target.is_contiguous():
        torch.bmm(left, right, out=target)
    else:
        target.copy_(torch.bmm(left, right))


class ModuleEvaluator:
    """Any torch module: under `vmap` over the stack, or a replica at a time (`loop`)."""

    def __init__(self, architecture: Architecture, strategy: Literal["vmap", "loop"], device: str = "cpu") -> None:
        self.layout = layout_of(architecture)
        with torch.device("meta"):
            module = architecture.module()
        self._module = _buffers_alone(module, device)
        self._strategy = strategy

    def _one(self, parameters: Views, inputs: Tensor) -> Tensor:
        output: Tensor = functional_call(self._module, parameters, (inputs,))
        return output

    def _all(self, parameters: Views, inputs: Tensor) -> Tensor:
        if self._strategy == "vmap":
            stacked: Tensor = vmap(self._one)(parameters, inputs)
            return stacked
        names = parameters.keys()
        return torch.stack(
            [self._one({name: parameters[name][s] for name in names}, inputs[s]) for s in range(inputs.shape[0])]
        )

    def forward(self, parameters: ParameterStack, inputs: Tensor) -> Tensor:
        """See `Evaluator.forward`."""
        return self._all(parameters.views, inputs)

    def forward_with_pullback(self, parameters: ParameterStack, inputs: Tensor) -> tuple[Tensor, Pullback]:
        """See `Evaluator.forward_with_pullback`."""
        with torch.enable_grad():
            leaves = {name: value.detach().requires_grad_() for name, value in parameters.views.items()}
            source = inputs.detach().requires_grad_(inputs.is_floating_point())
            outputs = self._all(leaves, source)

        def pullback(gradient: Tensor, at_inputs: bool = True) -> tuple[Tensor, Tensor]:
            wanted = [*leaves.values(), source] if at_inputs else [*leaves.values()]
            parts = torch.autograd.grad(outputs, wanted, gradient, allow_unused=True, materialize_grads=True)
            flat = torch.cat([part.flatten(1) for part in parts[: len(leaves)]], 1)
            return flat, parts[-1] if at_inputs else gradient

        return outputs.detach(), pullback


def _buffers_alone(module: nn.Module, device: str) -> nn.Module:
    """`module` with its buffers on `device`, and parameters that have shapes alone: every call brings its own."""
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None and not parameter.is_meta:
                part._parameters[name] = nn.Parameter(parameter.to("meta"))
        for name, buffer in part._buffers.items():
            if buffer is not None and not buffer.is_meta:
                part._buffers[name] = buffer.to(device)
    return module


def evaluator_for(
    architecture: Architecture, *, stack: int, device: str = "cpu", strategy: Strategy | None = None
) -> Evaluator:
    """The evaluator of `architecture` for stacks of about `stack` models.

    Unless `strategy` is given: MLPs are fused; other modules go under vmap where it pays, which measurement
    says is a stack of several on a GPU, and otherwise run a replica at a time (convolutions on a CPU: vmap
    runs at 1.0 times a loop at a stack of 16 and 0.7 at 128).
    """
    if strategy == "fused" or (strategy is None and isinstance(architecture, MLP)):
        if not isinstance(architecture, MLP):
            raise TypeError(f"only an MLP can be fused, not {type(architecture).__name__}")
        return FusedMLP(architecture)
    if strategy is None:
        # A transformer looks at its mask's values, which vmap does not allow.
        pays = stack > 1 and device != "cpu" and not isinstance(architecture, TransformerModel)
        strategy = "vmap" if pays else "loop"
    return ModuleEvaluator(architecture, "vmap" if strategy == "vmap" else "loop", device)


def embeddings_of(evaluator: Evaluator, parameters: ParameterStack, features: Tensor) -> Tensor:
    """Embeddings (K, n, width) of `features` (n, ...) under K models, a few thousand records at a time."""
    stack = len(parameters.flat)
    pieces = [
        evaluator.forward(parameters, rows.unsqueeze(0).expand(stack, *rows.shape))
        for rows in features.split(_EVALUATION_ROWS)
    ]
    return torch.cat(pieces, 1)
