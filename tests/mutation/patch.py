"""Turns a loaded module into its mutant in place, so that a forked test session need not import anything again.

Functions get the mutant's code (whoever imported one sees the change), data at the top level are replaced by name
wherever they were imported, and caches are emptied.
"""

import dataclasses
import sys
from types import CodeType, FunctionType

import numpy as np

_PLAIN = (int, float, complex, str, bytes, type(None), np.ndarray, np.generic)


class NotApplied(Exception):
    """The change cannot be made in a loaded module (or changes nothing there)."""


def apply(module, source, mutated):
    """Make `module`, loaded from `source`, what it would be from `mutated`; raises `NotApplied` where it cannot."""
    old, new = (compile(text, module.__file__ or "", "exec", dont_inherit=True) for text in (source, mutated))
    before, after = _functions(old), _functions(new)
    changed = [name for name in before if before[name] != after[name]]
    for name in changed:
        _function(module, name).__code__ = after[name]
    if not changed and not _replace_data(module, new):
        raise NotApplied
    _empty_caches()


def _functions(code):
    """Return the code of the module's functions and methods by qualified name; what is nested lies within them."""
    codes = {}
    for constant in code.co_consts:
        if not isinstance(constant, CodeType) or constant.co_name.startswith("<"):
            continue
        is_class = not constant.co_flags & 2  # CO_NEWLOCALS: functions have it, bodies of classes do not
        codes |= _functions(constant) if is_class else {constant.co_qualname: constant}
    return codes


def _function(module, name):
    member = module
    for attribute in name.split("."):
        member = vars(member)[attribute]
    while not isinstance(member, FunctionType):
        inner = [getattr(member, key, None) for key in ("__wrapped__", "fget", "func", "__func__")]
        member = next((candidate for candidate in inner if candidate is not None), None)
        if member is None:
            raise NotApplied
    return member


def _plain(value):
    if isinstance(value, tuple | list | frozenset | set):
        return all(map(_plain, value))
    if isinstance(value, dict):
        return all(map(_plain, value.values()))
    return isinstance(value, _PLAIN)


def _differ(one, other):
    if isinstance(one, np.ndarray):
        return not np.array_equal(one, other)
    return repr(one) != repr(other)


def _replace_data(module, code):
    """Run the mutated top level apart and carry over the data that differ; return whether any did."""
    fresh = {"__name__": module.__name__, "__file__": module.__file__}
    exec(code, fresh)
    done = False
    for name, value in fresh.items():
        old = vars(module).get(name)
        if name.startswith("__"):
            continue
        if _plain(value) and _plain(old) and _differ(old, value):
            for other in list(sys.modules.values()):
                if getattr(other, "__dict__", {}).get(name, fresh) is old:
                    setattr(other, name, value)
            done = True
        elif isinstance(old, FunctionType) and isinstance(value, FunctionType):
            done |= _replace_defaults(old, value)
        elif dataclasses.is_dataclass(old) and not isinstance(old, type) and type(old).__name__ == type(value).__name__:
            for field in dataclasses.fields(old):
                before, after = getattr(old, field.name), getattr(value, field.name)
                if _plain(before) and _plain(after) and _differ(before, after):
                    object.__setattr__(old, field.name, after)
                    done = True
    return done


def _replace_defaults(old, new):
    """Give `old` the defaults of `new` that are data and differ: they were read when the function was defined."""
    done = False
    for name in ("__defaults__", "__kwdefaults__"):
        before, after = getattr(old, name), getattr(new, name)
        if before is not None and _plain(before) and _plain(after) and _differ(before, after):
            setattr(old, name, after)
            done = True
    return done


def _empty_caches():
    for name, module in list(sys.modules.items()):
        if name.startswith("dpzv_audit"):
            for value in list(vars(module).values()):
                if callable(getattr(value, "cache_clear", None)):
                    value.cache_clear()
