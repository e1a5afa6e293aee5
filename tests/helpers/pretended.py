"""A GPU where there is none: tensors on a pretended `cuda` that refuse to be mixed with those of the machine."""

from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn.functional import one_hot
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

_ATEN = torch.ops.aten
_CUDA = torch.device("cuda", 0)
_INDEXING = (_ATEN.index.Tensor, _ATEN.index_put.default, _ATEN.index_put_.default)
"""What takes indices of the machine for a tensor of the device."""

_WAITING = (
    _ATEN._local_scalar_dense.default,
    _ATEN.equal.default,
    _ATEN.is_nonzero.default,
    _ATEN.masked_select.default,
    _ATEN.nonzero.default,
    _ATEN.item.default,
    _ATEN._unique2.default,
    _ATEN.unique_dim.default,
    _ATEN.bincount.default,
    _ATEN.repeat_interleave.Tensor,
)
"""What a GPU is waited for: a number that the machine asks for, or a shape that depends on numbers."""
waits: list[str] = []
"""What a GPU would have been waited for, since somebody cleared the list."""


class OnDevice(Tensor):
    """A tensor that says it is on `cuda`; its numbers are in `held`, where the machine's own kernels compute.

    As on a GPU, an operation on it and on a tensor of the machine raises `RuntimeError`, unless the latter is a single
    number or an index, or it is a copy from one to the other.
    """

    @staticmethod
    def __new__(cls, held):
        made = {"strides": held.stride(), "storage_offset": held.storage_offset(), "dtype": held.dtype}
        return Tensor._make_wrapper_subclass(cls, held.shape, **made)

    def __init__(self, held):
        self.held = held

    __torch_function__ = torch._C._disabled_torch_function_impl

    @property
    def device(self):
        return _CUDA

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        indices = func in _INDEXING and isinstance(args[0], OnDevice)
        leaves = tree_leaves(((args[0], *args[2:]) if indices else args, kwargs))
        here = [t for t in leaves if isinstance(t, Tensor) and not isinstance(t, OnDevice) and t.dim() > 0]
        if here and func is not _ATEN.copy_.default:
            found = f"{func} of tensors on cuda and one on {here[0].device} of shape {tuple(here[0].shape)}"
            raise RuntimeError(f"{found}; use on the same device")
        if func in _WAITING or (indices and _looked_at(*args[1:3])):
            waits.append(str(func))
        if func is _ATEN.copy_.default and isinstance(args[0], OnDevice) != isinstance(args[1], OnDevice):
            waits.append("a copy to the device" if isinstance(args[0], OnDevice) else "a copy from the device")
        out = func(*tree_map(_held, args), **tree_map(_held, kwargs))
        written = [t for t, a in _arguments(func, args, kwargs) if a.alias_info is not None and a.alias_info.is_write]
        if written:
            return written[0] if len(written) == 1 else tuple(written)
        return out if kwargs.get("device") == torch.device("cpu") else tree_map(_on_device, out)


def _held(value):
    return value.held if isinstance(value, OnDevice) else value


def _on_device(value):
    return OnDevice(value) if isinstance(value, Tensor) and not isinstance(value, OnDevice) else value


def _like(value, tensor):
    return OnDevice(value) if isinstance(tensor, OnDevice) else value


def _arguments(func, args, kwargs):
    """(value, what its schema says) of everything that `func` is called with."""
    for place, argument in enumerate(func._schema.arguments):
        if place < len(args):
            yield args[place], argument
        elif argument.name in kwargs:
            yield kwargs[argument.name], argument


def _looked_at(indices, written=None):
    """Whether a GPU is waited for to index by these: how many numbers a mask takes, or where those here point to.

    A single number that is `written` where a mask says so fills it.
    """
    given = [index for index in indices if index is not None]
    masks = written is None or written.numel() > 1
    return any(not isinstance(index, OnDevice) or (masks and index.dtype is torch.bool) for index in given)


def _names(value, kind):
    return (isinstance(value, str) and value == kind) or (isinstance(value, torch.device) and value.type == kind)


def _moved(tensor, *args, **kwargs):
    """`Tensor.to`, with the device and the type of a tensor that it is to be like."""
    given = [
        part for value in args for part in ((value.device, value.dtype) if isinstance(value, Tensor) else (value,))
    ]
    given += kwargs.values()
    here, there = (any(_names(value, kind) for value in given) for kind in ("cpu", "cuda"))
    if not here and not there:
        return tensor.to(*args, **kwargs)
    if isinstance(tensor, OnDevice) and here:
        waits.append("a copy from the device")
    if (
        there
        and not isinstance(tensor, OnDevice)
        and not (getattr(tensor, "pinned", False) and kwargs.get("non_blocking"))
    ):
        waits.append("a copy to the device")
    held = _held(tensor)
    moved = held if there is isinstance(tensor, OnDevice) else held.clone()
    for dtype in given:
        moved = moved.to(dtype) if isinstance(dtype, torch.dtype) else moved
    return OnDevice(moved) if there else moved


def _pin(tensor):
    """Memory of a machine without a GPU cannot be pinned: a note says that it would have been."""
    copied = tensor.clone()
    copied.pinned = True
    return copied


def _listed(tensor):
    if isinstance(tensor, OnDevice):
        waits.append("a list of what is on the device")
    return _held(tensor).tolist()


_WHOLE = {
    Tensor.to: _moved,
    Tensor.cpu: lambda tensor: _moved(tensor, "cpu"),
    Tensor.pin_memory: _pin,
    Tensor.tolist: _listed,
    one_hot: lambda labels, classes: _like(one_hot(_held(labels), classes), labels),
}
"""What torch does in several operations, of which some ask where a tensor is or make one there."""


class _Pretended(TorchFunctionMode):
    """Makes on the machine what is asked for on `cuda`, and calls it `OnDevice`: torch would refuse the name."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in _WHOLE:
            return _WHOLE[func](*args, **kwargs)
        kept = {name: value for name, value in kwargs.items() if not _names(value, "cuda")}
        made = func(*args, **kept)
        if func in (torch.tensor, torch.as_tensor) and len(kept) != len(kwargs):
            waits.append("a copy to the device")
        return made if len(kept) == len(kwargs) else tree_map(_on_device, made)


@contextmanager
def pretended_cuda():
    """Within the block `device="cuda"` works without one; tensors made so are `OnDevice`."""
    with _Pretended():
        yield
