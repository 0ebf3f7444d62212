# pyright: basic, reportPrivateImportUsage=false, reportAttributeAccessIssue=false
"""``torch.fx.experimental.symbolic_shapes`` for sizes that are numbers.

Torch's shape rules in Python ask it about every size, and it loads a computer algebra system (half a second). While a capture
runs and it is not loaded yet, a module replaces it that answers for numbers. Any other use, and every library loaded in the
meantime, gets the real one.
"""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.fx.experimental

_NAME = "torch.fx.experimental.symbolic_shapes"


def _same(value: Any, *_: Any, **__: Any) -> Any:
    return value


def _has_free_unbacked_symbols(value: Any) -> bool:
    """False while no symbol can exist. ``flex_attention`` binds this name at its import, since torch 2.14, and so may keep this
    function after a capture: the real one answers as soon as it is loaded."""
    module = sys.modules.get(_NAME)
    return False if module is None or isinstance(module, _Numbers) else module.has_free_unbacked_symbols(value)


_ANSWERS: dict[str, Any] = {
    "guard_or_false": _same,
    "guard_or_true": _same,
    "guard_size_oblivious": _same,
    "guard_int": _same,
    "guarding_hint_or_throw": _same,
    "expect_true": _same,
    "statically_known_true": _same,
    "is_nested_int": lambda value: False,
    "has_guarding_hint": lambda value: True,
    "free_unbacked_symbols": lambda value: set(),
    "has_free_unbacked_symbols": _has_free_unbacked_symbols,
    "sym_eq": lambda x, y: x == y,
    "sym_and": lambda *values: all(values),
    "sym_or": lambda *values: any(values),
    "_advise_is_size": lambda value: None,
    "_advise_is_bounded": lambda value, bound: None,
}


class _Numbers(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        _remove(self)
        return getattr(importlib.import_module(_NAME), name)


def _place(module: _Numbers) -> None:
    if _NAME not in sys.modules:
        sys.modules[_NAME] = module
        torch.fx.experimental.symbolic_shapes = module


def _remove(module: _Numbers) -> bool:
    if sys.modules.get(_NAME) is not module:
        return False
    del sys.modules[_NAME]
    del torch.fx.experimental.symbolic_shapes
    return True


def install() -> Any:
    """Put it in its place; returns the function that takes it away."""
    module = _Numbers(_NAME)
    vars(module).update(_ANSWERS)
    _place(module)
    return lambda: _remove(module)


@contextmanager
def real_symbols() -> Iterator[None]:
    """Inside, the module is as torch has it."""
    module = sys.modules.get(_NAME)
    removed = isinstance(module, _Numbers) and _remove(module)
    try:
        yield
    finally:
        if removed and isinstance(module, _Numbers):
            _place(module)
