# pyright: basic, reportPrivateImportUsage=false, reportAttributeAccessIssue=false
"""Keeps torch's compiler and symbolic shapes out of a capture: they are not imported without need.

Parts of torch (``Optimizer.add_param_group``, ``checkpoint`` ...) import ``torch._dynamo`` at their first call only to disable
tracing, which costs seconds. That is replaced in advance. A program that imports it anyway gets the real module (``imports``).
"""

from __future__ import annotations

import builtins
import gc
import math
import sys
import types
from typing import Any

import torch
import torch._compile
import torch._meta_registrations
import torch._prims_common

from gpuwise.workload.capture.device.imports import compiler_is_loaded
from gpuwise.workload.capture.device.patching import Patches

_MARK = "__dynamo_disable"


def install(patches: Patches) -> Any:
    """Install the replacements; returns the function that removes them."""
    if compiler_is_loaded():
        return lambda: None
    _install_without_symbols(patches)
    messages: list[Any] = []
    decorate = torch._compile._disable_dynamo
    inner = next(c for c in decorate.__code__.co_consts if isinstance(c, types.CodeType) and c.co_name == "inner")

    def tell(function: Any) -> None:
        """``function`` calls what its variable ``fn`` holds; decorators may have given it another ``__wrapped__``."""
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        wrapped = cells["fn"].cell_contents if "fn" in cells else None
        if wrapped is not None and not hasattr(wrapped, _MARK):
            setattr(wrapped, _MARK, wrapped)
            messages.append(wrapped)

    for function in _functions_of(inner):
        tell(function)

    def disable(fn: Any = None, recursive: bool = True) -> Any:
        wrapper = decorate(fn, recursive)
        if fn is None:
            return lambda f: disable(f, recursive)
        tell(wrapper)
        return wrapper

    patches.set(torch._compile, "_disable_dynamo", disable)
    if getattr(torch, "_disable_dynamo", None) is decorate:
        patches.set(torch, "_disable_dynamo", disable)

    def undo() -> None:
        for wrapped in messages:
            wrapped.__dict__.pop(_MARK, None)

    return undo


def _install_without_symbols(patches: Patches) -> None:
    """Numbers are not looked at for symbols: that would load a computer algebra system."""
    if "sympy" in sys.modules:
        return
    symbols = types.SimpleNamespace(Basic=type("Basic", (), {}))

    def import_(name: str, *extra: Any, **more: Any) -> Any:
        return symbols if name == "sympy" else builtins.__import__(name, *extra, **more)

    original: Any = torch._prims_common.elementwise_dtypes
    names = {**original.__globals__, "__builtins__": {**vars(builtins), "__import__": import_}}
    copy = types.FunctionType(original.__code__, names, original.__name__, original.__defaults__, original.__closure__)
    copy.__kwdefaults__ = original.__kwdefaults__
    patches.set(torch._prims_common, "elementwise_dtypes", copy)
    patches.set(torch._meta_registrations, "elementwise_dtypes", copy)
    patches.set(torch._prims_common, "_is_non_overlapping_and_dense_or_false", _is_dense)


def _is_dense(sizes: Any, strides: Any) -> bool:
    """Whether the elements are contiguous in some order of the dimensions."""
    if math.prod(sizes) < 2:
        return True
    expected = 1
    for stride, size in sorted((stride, size) for size, stride in zip(sizes, strides, strict=True) if size != 1):
        if stride != expected:
            return False
        expected *= size
    return True


def _functions_of(code: types.CodeType) -> list[types.FunctionType]:
    """Functions that run ``code``, also those among objects hidden from the garbage collector."""
    frozen = gc.get_freeze_count() > 0
    if frozen:
        gc.unfreeze()
    try:
        return [f for f in gc.get_referrers(code) if isinstance(f, types.FunctionType)]
    finally:
        if frozen:
            gc.freeze()
