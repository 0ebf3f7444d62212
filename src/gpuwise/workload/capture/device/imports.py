# pyright: basic, reportPrivateImportUsage=false, reportAttributeAccessIssue=false
"""Libraries that a program imports while it is captured see torch as it is.

They make tables of torch's functions, compile scripts and register operators when they are loaded; what they would learn of
the pretended device would outlive it. A person's own modules are loaded on the pretended device, as they are on a GPU.
"""

from __future__ import annotations

import functools
import importlib.machinery
import sys
import types
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.utils._python_dispatch import _disable_current_modes

from gpuwise.workload.capture.device.patching import Patches
from gpuwise.workload.capture.device.symbols import real_symbols
from gpuwise.workload.capture.packages import vision_operators
from gpuwise.workload.capture.places import is_library

if TYPE_CHECKING:
    from gpuwise.workload.capture.device.state import DeviceState

_COMPILER = ("torch._dynamo", "torch._inductor")
_running: list[tuple[DeviceState, Patches]] = []


def install(acc: DeviceState, patches: Patches) -> Any:
    """Watch imports; returns the function that ends it."""
    finder = _Finder(patches)
    sys.meta_path.insert(0, finder)
    _running.append((acc, patches))
    lift_stance = _without_compiler()

    def undo() -> None:
        lift_stance()
        _running.remove((acc, patches))
        sys.meta_path.remove(finder)

    return undo


def _without_compiler() -> Any:
    """Functions that were compiled before the capture run as they are written."""
    compiler = sys.modules.get("torch._dynamo.eval_frame")
    if compiler is None:
        return lambda: None
    before = compiler._stance
    compiler._stance = compiler.DynamoStance("force_eager")

    def lift() -> None:
        compiler._stance = before

    return lift


class _Finder:
    """Finds libraries and has them loaded with the replacements suspended."""

    def __init__(self, patches: Patches) -> None:
        self.patches = patches

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "torchvision" and (self.patches.is_suspended or (name.startswith("torch.") and name not in _COMPILER)):
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None and finder is not self else None
            if spec is not None:
                if name == "torch._dynamo" and spec.loader is not None:
                    spec.loader = _CompilerLoader(spec.loader)
                elif spec.loader is not None and spec.origin and Path(spec.origin).exists() and is_library(spec.origin):
                    spec.loader = _Loader(spec.loader, self.patches)
                return spec
        return None


class _Loader:
    def __init__(self, loader: Any, patches: Patches) -> None:
        self.loader, self.patches = loader, patches

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)

    def create_module(self, spec: Any) -> Any:
        return self.loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        module.__loader__ = module.__spec__.loader = self.loader
        with ExitStack() as stack:
            stack.enter_context(self.patches.suspended())
            stack.enter_context(real_symbols())
            stack.enter_context(_disable_current_modes())
            stack.enter_context(torch._C.DisableTorchFunction())
            if not module.__name__.startswith("torch."):
                stack.enter_context(_compiled_later())
            if module.__name__ == "torchvision":
                stack.enter_context(vision_operators(Path(module.__spec__.origin).parent))
            self.loader.exec_module(module)


class _CompilerLoader:
    """Loads torch's compiler when something of it is used: every ``Optimizer.step`` imports it for a ``graph_break`` alone."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)

    def create_module(self, spec: Any) -> Any:
        return self.loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        module.__loader__ = module.__spec__.loader = self.loader
        vars(module)["graph_break"] = lambda *_, **__: None
        module.__class__ = _Compiler
        sys.meta_path.insert(0, _PARTS)


class _Compiler(types.ModuleType):
    """``torch._dynamo`` before anything of it is used."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self.load()
        return getattr(self, name)

    def load(self) -> None:
        """Run the package."""
        self.__class__ = types.ModuleType
        sys.meta_path.remove(_PARTS)
        loader: Any = self.__spec__.loader if self.__spec__ is not None else None
        (_Loader(loader, _running[0][1]) if _running else loader).exec_module(self)


def compiler_is_loaded() -> bool:
    """Whether ``torch._dynamo`` is there and something of it was used."""
    return not isinstance(sys.modules.get("torch._dynamo", None), (_Compiler, type(None)))


class _Parts:
    """Finds the modules of a compiler that is not loaded yet, also after the capture: the package is loaded first, which may
    have loaded the module."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        package = sys.modules.get("torch._dynamo")
        if not name.startswith("torch._dynamo.") or not isinstance(package, _Compiler):
            return None
        package.load()
        module = sys.modules.get(name)
        return importlib.machinery.ModuleSpec(name, cast(Any, _Ready(module, module.__spec__))) if module is not None else None


_PARTS = _Parts()


class _Ready:
    """Gives a module that has been loaded meanwhile."""

    def __init__(self, module: Any, spec: Any) -> None:
        self.module, self.spec = module, spec

    def create_module(self, spec: Any) -> Any:
        return self.module

    def exec_module(self, module: Any) -> None:
        module.__spec__ = self.spec


@contextmanager
def _compiled_later() -> Iterator[None]:
    """Defers functions that a library compiles on import until their first call: marked as compiled in a capture, compiled (or
    excluded from compilation) elsewhere."""
    now, disable_now = torch.compile, torch.compiler.disable

    def compile(model: Any = None, **options: Any) -> Any:
        if model is None:
            return lambda m: compile(m, **options)
        if not callable(model) or isinstance(model, (type, torch.nn.Module)):
            return now(model, **options)
        return _later(model, lambda: now(model, **options), lambda regions: regions.compiled)

    def disable(fn: Any = None, *args: Any, **options: Any) -> Any:
        if not callable(fn) or isinstance(fn, (type, torch.nn.Module)):
            return disable_now(fn, *args, **options)
        return _later(fn, lambda: disable_now(fn, *args, **options), lambda regions: regions.eager)

    torch.compile, torch.compiler.disable = compile, disable  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.compile, torch.compiler.disable = now, disable_now


def _later(function: Any, make: Any, region: Any) -> Any:
    """``function`` in a region of a running capture; elsewhere what ``make`` makes of it, once."""
    instances: list[Any] = []

    @functools.wraps(function, updated=())
    def run(*args: Any, **kwargs: Any) -> Any:
        if _running:
            return region(_running[0][0].regions)(function, *args, **kwargs)
        if not instances:
            instances.append(make())
        return instances[0](*args, **kwargs)

    return run
