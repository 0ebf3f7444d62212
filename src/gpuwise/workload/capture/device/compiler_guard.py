# pyright: basic, reportPrivateImportUsage=false, reportAttributeAccessIssue=false
"""Keeps torch's compiler out of a capture: it is neither imported without need nor loaded while torch is replaced.

Parts of torch (``Optimizer.add_param_group``, ``checkpoint`` ...) import ``torch._dynamo`` at their first call only to
say that it must not trace them; that costs seconds. They are told so in advance. Whoever imports it nevertheless gets
the real one, loaded with every replacement taken back for the moment, because it makes tables of torch's functions.
"""

from __future__ import annotations

import gc
import importlib.machinery
import sys
import types
from typing import Any

import torch
import torch._compile
from torch.utils._python_dispatch import _disable_current_modes

from gpuwise.workload.capture.device.patching import Patches

_NAMES = ("torch._dynamo", "torch._inductor")
_MARK = "__dynamo_disable"


def install(patches: Patches) -> Any:
    """Install both guards; returns the function that takes them back."""
    if "torch._dynamo" in sys.modules:
        return lambda: None
    told: list[Any] = []
    decorate = torch._compile._disable_dynamo
    inner = next(c for c in decorate.__code__.co_consts if isinstance(c, types.CodeType) and c.co_name == "inner")

    def tell(function: Any) -> None:
        wrapped = getattr(function, "__wrapped__", None)
        if wrapped is not None and not hasattr(wrapped, _MARK):
            setattr(wrapped, _MARK, wrapped)
            told.append(wrapped)

    for function in gc.get_referrers(inner):
        if isinstance(function, types.FunctionType):
            tell(function)

    def disable(fn: Any = None, recursive: bool = True) -> Any:
        made = decorate(fn, recursive)
        if fn is None:
            return lambda f: disable(f, recursive)
        tell(made)
        return made

    patches.set(torch._compile, "_disable_dynamo", disable)
    if getattr(torch, "_disable_dynamo", None) is decorate:
        patches.set(torch, "_disable_dynamo", disable)
    finder = _Finder(patches)
    sys.meta_path.insert(0, finder)

    def undo() -> None:
        sys.meta_path.remove(finder)
        for wrapped in told:
            wrapped.__dict__.pop(_MARK, None)

    return undo


class _Finder:
    """Finds torch's compiler packages and has them loaded with the replacements suspended."""

    def __init__(self, patches: Patches) -> None:
        self.patches = patches

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in _NAMES:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self.patches)
        return spec


class _Loader:
    def __init__(self, loader: Any, patches: Patches) -> None:
        self.loader, self.patches = loader, patches

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)

    def create_module(self, spec: Any) -> Any:
        return self.loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        with self.patches.suspended(), _disable_current_modes():
            self.loader.exec_module(module)
