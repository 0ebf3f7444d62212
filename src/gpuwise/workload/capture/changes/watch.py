# pyright: basic
"""What is seen of a user's step from outside while it is captured: its modules, optimizers and backward passes.

Nothing of the user's is rewritten. Modules are noticed as they are built, optimizers as they are constructed, models
as they are called from outside any module; each change acts at the moment at which the user's own line would, so what
it costs and saves is captured like anything else. Enter the context before the step is built and leave it after the
last step; every patch of torch is taken back on leaving.
"""

from __future__ import annotations

import functools
import linecache
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from gpuwise.workload.capture.places import is_library
from gpuwise.workload.capture.repeats import blocks_by_path, lists_of
from gpuwise.workload.changes.change import Site, Sites


@dataclass(slots=True)
class Watch:
    """Observations of a step while it is built and run, with their subscribers."""

    sites: Sites = field(default_factory=lambda: Sites([]))
    modules: list[weakref.ref[nn.Module]] = field(default_factory=list)
    on_model: list[Callable[[nn.Module], None]] = field(default_factory=list)
    """Called with each model once, before its first forward."""
    on_call: list[Callable[[nn.Module], None]] = field(default_factory=list)
    """Called before each outermost forward."""
    on_parameters: list[Callable[[nn.Module, list[Any]], None]] = field(default_factory=list)
    """Called with each model and the parameter groups of the optimizer about to be constructed on it."""
    on_optimizer: list[Callable[[torch.optim.Optimizer], None]] = field(default_factory=list)
    """Called with each optimizer when it has been constructed."""
    on_output: list[Callable[[nn.Module, Any], None]] = field(default_factory=list)
    """Called with each model and what its forward returned."""
    on_backward: list[Callable[[], None]] = field(default_factory=list)
    seen: weakref.WeakSet[nn.Module] = field(default_factory=weakref.WeakSet)
    depth: int = 0
    quiet: bool = False
    """An optimizer of ours is being made to see its defaults."""

    def roots(self) -> list[nn.Module]:
        """The modules alive that no other module holds, in order of construction."""
        alive = [m for ref in self.modules if (m := ref()) is not None and "_modules" in m.__dict__]
        inner = {id(child) for m in alive for child in m._modules.values() if child is not None}
        return [m for m in alive if id(m) not in inner and any(True for _ in m.parameters())]


@contextmanager
def patched(owner: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """``owner.name`` replaced by ``make(original)`` for a while."""
    original = getattr(owner, name)
    in_class = name in vars(owner)
    setattr(owner, name, make(original))
    try:
        yield
    finally:
        if in_class:
            setattr(owner, name, original)
        else:
            delattr(owner, name)


def user_site(holds: Any = None) -> Site | None:
    """The innermost line of the user's own code on the stack; ``holds`` is looked for among its variables."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not is_library(name):
            source = linecache.getline(name, frame.f_lineno).rstrip("\n")
            return Site(name, frame.f_lineno, source, _name_of(frame, holds))
        frame = frame.f_back
    return None


def _name_of(frame: FrameType, thing: Any) -> str:
    if thing is None:
        return ""
    for name, value in [*frame.f_locals.items(), *frame.f_globals.items()]:
        if value is thing:
            return name
    owner = frame.f_locals.get("self")
    inside = getattr(owner, "__dict__", {})
    for name, value in [*inside.items(), *inside.get("_modules", {}).items()]:
        if value is thing:
            return f"self.{name}"
    return ""


# --- what is watched ---


@contextmanager
def watched() -> Iterator[Watch]:
    """A watch of everything that is built and run meanwhile."""
    watch = Watch()
    with _watch_modules(watch), _watch_optimizers(watch), _watch_backward(watch):
        yield watch


@contextmanager
def _watch_modules(watch: Watch) -> Iterator[None]:
    from torch.nn.modules import module as hooks

    def init(original: Any) -> Any:
        def __init__(self: nn.Module, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            watch.modules.append(weakref.ref(self))

        return __init__

    def before(module: nn.Module, args: Any) -> None:
        watch.depth += 1
        if watch.depth == 1 and torch._C._current_graph_task_id() == -1:  # a recomputed block does not count as a model
            if module not in watch.seen:
                watch.seen.add(module)
                _note_model(watch, module)
                for tell in watch.on_model:
                    tell(module)
            for tell in watch.on_call:
                tell(module)

    def after(module: nn.Module, args: Any, output: Any) -> None:
        watch.depth -= 1
        if watch.depth == 0 and torch._C._current_graph_task_id() == -1:
            for tell in watch.on_output:
                tell(module, output)

    handles = [
        hooks.register_module_forward_pre_hook(before),
        hooks.register_module_forward_hook(after, always_call=True),
    ]
    with patched(nn.Module, "__init__", init):
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


def _note_model(watch: Watch, root: nn.Module) -> None:
    if not any(True for _ in root.parameters()):
        return  # a loss, or another module without weights
    sites = watch.sites
    site = user_site(root)
    if site is not None:
        sites.forward.append(site)
    prefix = f"{site.name}." if site is not None and site.name else ""
    blocks = blocks_by_path(root)
    lists = lists_of(root, blocks)
    sites.blocks += tuple((prefix + path).removesuffix(".") for path in lists)
    if not lists:
        sites.block_types += tuple(dict.fromkeys(type(b).__name__ for b in blocks.values()))
    widest = 0
    for path, module in root.named_modules():
        sites.n_linear += isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"
        sites.n_conv += isinstance(module, (nn.Conv2d, nn.ConvTranspose2d))
        if isinstance(module, nn.Linear) and module.out_features > widest:
            widest, sites.large_linear = module.out_features, prefix + path


@contextmanager
def _watch_optimizers(watch: Watch) -> Iterator[None]:
    def init(original: Any) -> Any:
        def __init__(self: torch.optim.Optimizer, params: Any, defaults: Any) -> None:
            if watch.quiet:
                original(self, params, defaults)
                return
            groups = _groups(params)
            if watch.sites.optimizer is None:
                watch.sites.optimizer = user_site(self)
            watch.sites.optimizers += (type(self).__name__,)
            parameter_ids = {id(p) for group in groups for p in group["params"]}
            for root in watch.roots() if watch.on_parameters else ():
                if any(id(p) in parameter_ids for p in root.parameters()):
                    for tell in watch.on_parameters:
                        tell(root, groups)
            original(self, groups, defaults)
            for tell in watch.on_optimizer:
                tell(self)

        return __init__

    def zero(original: Any) -> Any:
        def zero_grad(self: Any, set_to_none: bool = True) -> Any:
            if watch.sites.zero_grad is None:
                watch.sites.zero_grad = user_site(self)
            watch.sites.zero_grad_keeps |= not set_to_none
            return original(self, set_to_none)

        return zero_grad

    def stepping(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if watch.sites.step is None:
            watch.sites.step = user_site(optimizer)

    handle = register_optimizer_step_pre_hook(stepping)
    with (
        patched(torch.optim.Optimizer, "__init__", init),
        patched(torch.optim.Optimizer, "zero_grad", zero),
        patched(nn.Module, "zero_grad", zero),
    ):
        try:
            yield
        finally:
            handle.remove()


def _groups(params: Any) -> list[dict[str, Any]]:
    """Parameter groups as an editable list, for any input form."""
    entries: list[Any] = [params] if isinstance(params, (torch.Tensor, dict)) else list(params)
    if entries and isinstance(entries[0], dict):
        copies: list[dict[str, Any]] = [dict(group) for group in entries]
        for group in copies:
            parameters = group["params"]
            group["params"] = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    else:
        copies = [{"params": entries}]
    for group in copies:
        # names are allowed beside parameters: (name, parameter)
        group["params"] = [p[1] if isinstance(p, tuple) else p for p in group["params"]]
    return copies


@contextmanager
def _watch_backward(watch: Watch) -> Iterator[None]:
    """Backward passes, and the cross entropies before them."""

    def wrap(original: Any) -> Any:
        def backward(*args: Any, **kwargs: Any) -> Any:
            if watch.sites.backward is None:
                watch.sites.backward = user_site()
            for tell in watch.on_backward:
                tell()
            return original(*args, **kwargs)

        return backward

    def noted(original: Any) -> Any:
        @functools.wraps(original)
        def cross_entropy(*args: Any, **kwargs: Any) -> Any:
            if watch.sites.loss is None:
                watch.sites.loss = user_site()
            return original(*args, **kwargs)

        return cross_entropy

    with (
        patched(torch.autograd, "backward", wrap),
        patched(torch.autograd, "grad", wrap),
        patched(nn.functional, "cross_entropy", noted),
    ):
        yield
