# pyright: basic, reportPrivateImportUsage=false, reportAttributeAccessIssue=false
"""Regions of the program: under ``torch.compile`` or activation checkpointing. Both run eagerly and are marked.

The time and memory models decide what ``torch.compile`` would fuse; here a compiled region's operations, and those of its
backward pass, are marked ``OpFlag.COMPILED``. Operations in a checkpointed region are marked ``OpFlag.CHECKPOINTED``, in the
forward pass and when recomputed.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

import torch
import torch.utils.checkpoint as checkpoint_module
from torch import nn

from gpuwise.workload.capture.device.patching import Patches
from gpuwise.workload.capture.device.regions import Regions

if TYPE_CHECKING:
    from gpuwise.workload.capture.device.state import DeviceState


class CompiledModule(nn.Module):
    """Result of ``torch.compile(module)``: the module as ``_orig_mod``, with its attributes."""

    def __init__(self, module: nn.Module, regions: Regions) -> None:
        super().__init__()
        self._modules["_orig_mod"] = module
        self.__dict__["_regions"] = regions

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._regions.compiled(self._modules["_orig_mod"], *args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._regions.compiled(self._modules["_orig_mod"], *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        modules = self.__dict__["_modules"]
        return modules[name] if name in modules else getattr(modules["_orig_mod"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("_modules", "training") or name in self.__dict__:
            super().__setattr__(name, value)
        else:
            setattr(self._modules["_orig_mod"], name, value)

    def __len__(self) -> int:
        module: Any = self._modules["_orig_mod"]
        return len(module)

    def __iter__(self) -> Any:
        module: Any = self._modules["_orig_mod"]
        return iter(module)


def install(acc: DeviceState, patches: Patches) -> None:
    """Replace ``torch.compile`` and what torch's checkpointing calls."""
    regions = acc.regions
    _install_compile(acc, regions, patches)
    _install_checkpoint(regions, patches)


def _install_compile(acc: DeviceState, regions: Regions, patches: Patches) -> None:
    def compile(model: Any = None, *, disable: bool = False, **options: Any) -> Any:
        if model is None:
            return lambda m: compile(m, disable=disable, **options)
        if disable:
            return model
        regions.requests.append(options)
        if isinstance(model, nn.Module):
            return model if isinstance(model, CompiledModule) else CompiledModule(model, regions)

        @functools.wraps(model, updated=())
        def run(*args: Any, **kwargs: Any) -> Any:
            return regions.compiled(model, *args, **kwargs)

        return run

    def module_compile(self: nn.Module, *args: Any, **kwargs: Any) -> None:
        if kwargs.pop("disable", False):
            return
        regions.requests.append(kwargs)
        self._compiled_call_impl = functools.partial(regions.compiled, self._call_impl)

    def disable(fn: Any = None, recursive: bool = True, **_: Any) -> Any:
        if fn is None:
            return lambda f: disable(f, recursive)
        if isinstance(fn, (type, nn.Module)):
            return fn

        @functools.wraps(fn, updated=())
        def run(*args: Any, **kwargs: Any) -> Any:
            return regions.eager(fn, *args, **kwargs)

        return run

    patches.set(torch, "compile", compile)
    patches.set(nn.Module, "compile", module_compile)
    patches.set(torch.compiler, "compile", compile)
    patches.set(torch.compiler, "disable", disable)
    for name in ("cudagraph_mark_step_begin", "reset"):
        if hasattr(torch.compiler, name):
            patches.set(torch.compiler, name, lambda *a, **k: None)


def _install_checkpoint(regions: Regions, patches: Patches) -> None:
    reentrant = checkpoint_module.CheckpointFunction

    class Reentrant(reentrant):
        @staticmethod
        def apply(function: Any, preserve: bool, *args: Any) -> Any:
            return reentrant.apply(regions.checkpointed(function), preserve, *args)

    patches.set(checkpoint_module, "CheckpointFunction", Reentrant)
    # what torch's own callers run: since 2.14 the public name only passes its arguments on to the second
    entry = "_checkpoint_without_reentrant_generator"
    entry = f"{entry}_impl" if hasattr(checkpoint_module, f"{entry}_impl") else entry
    original = getattr(checkpoint_module, entry)

    def generator(fn: Any, *args: Any, **kwargs: Any) -> Any:
        inner = original(regions.checkpointed(fn), *args, **kwargs)
        next(inner)
        regions.checkpoint_depth += 1
        try:
            yield
        except BaseException as error:
            regions.checkpoint_depth -= 1
            inner.throw(error)
            raise
        regions.checkpoint_depth -= 1
        next(inner, None)

    for name, module in list(sys.modules.items()):
        if name.startswith("torch.") and vars(module).get(entry) is original:
            patches.set(module, entry, generator)
