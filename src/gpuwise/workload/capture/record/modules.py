# pyright: basic, reportPrivateImportUsage=false, reportAttributeAccessIssue=false
"""Which module an operation belongs to, in the forward and, through the autograd graph, in the backward."""

from __future__ import annotations

import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as nn_module

_next_sequence = torch.autograd._get_sequence_nr
WRAPPERS = frozenset({"_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module"})
"""Names that wrappers put into a path; a person does not write them."""


class Modules:
    """Indexes module objects in order of first sight; index 0 means no module.

    Modules are known from events of :class:`torch.nn.Module` when children, parameters and buffers are set, and from walking a
    module at its first call. Trees and paths are those of the modules that live: a wrapper that is gone contains nothing.
    """

    def __init__(self) -> None:
        self.types: list[str] = [""]
        self.paths: list[str] = [""]
        self.stack: list[int] = [0]
        self.current = 0
        self._index: dict[int, int] = {}
        self._refs: list[Any] = [None]
        self._alive: dict[int, Any] = {}
        self._starts: list[int] = [0]
        self._owners: list[int] = [0]
        self._called: set[int] = set()
        self._handles: list[Any] = []
        self._call: Any = None
        self.on_enter: Callable[[int, Any, Any], Any] | None = None
        self.on_leave: Callable[[Any, Any], None] | None = None

    # --- hooks ---

    def watch(self) -> None:
        """Start listening; :meth:`unwatch` puts everything back."""
        self._handles = [
            nn_module.register_module_module_registration_hook(self._registered_child),
            nn_module.register_module_parameter_registration_hook(self._registered_tensor),
            nn_module.register_module_buffer_registration_hook(self._registered_tensor),
        ]
        self._call = original = nn.Module.__call__
        enter, leave = self.enter, self.leave

        def called(module: Any, *args: Any, **kwargs: Any) -> Any:
            token = enter(module, args, kwargs)
            out = None
            try:
                out = original(module, *args, **kwargs)
                return out
            finally:
                leave(token, out)

        nn.Module.__call__ = called  # type: ignore[method-assign]

    def unwatch(self) -> None:
        """Stop listening."""
        for handle in self._handles:
            handle.remove()
        if self._call is not None:
            nn.Module.__call__ = self._call  # type: ignore[method-assign]
        self._handles, self._call = [], None

    def _registered_child(self, parent: nn.Module, name: str, child: nn.Module | None) -> None:
        self._see(parent)
        if child is not None:
            self._see(child)

    def _registered_tensor(self, module: nn.Module, name: str, tensor: Any) -> None:
        self._see(module)

    def _see(self, module: nn.Module) -> None:
        key = id(module)
        if key not in self._alive:
            self._alive[key] = weakref.ref(module, lambda _, key=key: self._alive.pop(key, None))

    # --- the stack ---

    def index(self, module: nn.Module) -> int:
        """The module's index, given at first sight."""
        position = self._index.get(id(module))
        if position is not None:
            return position
        if id(module) not in self._alive:  # built before the capture
            for one in module.modules():
                self._see(one)
        index = self._index[id(module)] = len(self.types)
        self.types.append(type(module).__name__)
        self.paths.append(type(module).__name__)
        key = id(module)
        self._refs.append(weakref.ref(module, lambda _, key=key: self._index.pop(key, None)))
        return index

    def enter(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """A module's forward begins."""
        index = self._index.get(id(module)) or self.index(module)
        self.stack.append(index)
        self._called.add(index)
        self._moved(index)
        return self.on_enter(index, args, kwargs) if self.on_enter is not None else None

    def leave(self, token: Any, out: Any) -> None:
        """It has returned (or raised)."""
        if self.on_leave is not None:
            self.on_leave(token, out)
        self.stack.pop()
        self._moved(self.stack[-1])

    def _moved(self, index: int) -> None:
        self.current = index
        sequence = _next_sequence()
        if self._starts[-1] == sequence:
            self._owners[-1] = index
        else:
            self._starts.append(sequence)
            self._owners.append(index)

    def of_node(self, sequence: int) -> int:
        """The module whose forward made the autograd node with this sequence number."""
        return self._owners[bisect_right(self._starts, sequence) - 1]

    def begin_step(self) -> None:
        """Forget the sequence numbers of earlier steps."""
        self._starts, self._owners = [0], [self.stack[-1]]

    # --- copies ---

    def copies(self, trained: set[int]) -> set[int]:
        """``id`` of every module in a copy that training keeps beside the model (an average of its weights): never called,
        none of its parameters among ``trained`` (``id`` of what an optimizer updates or has a gradient), and of the class and
        shapes of a module that is called."""
        indices: set[int] = set()
        todo = [top for _, top in self.trees()]
        live: set[Any] | None = None
        while todo:
            module = todo.pop()
            parts = list(module.modules())
            idle = not any(self._index.get(id(m), -1) in self._called for m in parts)
            if not idle or any(id(p) in trained for p in module.parameters()):
                todo.extend(module.children())
                continue
            if live is None:
                alive = [self._refs[i]() for i in self._called if i]
                live = {_shapes(m) for m in alive if m is not None}
            if _shapes(module) in live and next(module.parameters(), None) is not None:
                indices.update(map(id, parts))
            else:
                todo.extend(module.children())
        return indices

    # --- names ---

    def trees(self) -> list[tuple[str, nn.Module]]:
        """The modules nothing contains, each with the prefix of its paths: none for the only one with parameters."""
        alive = [m for m in (ref() for ref in list(self._alive.values())) if m is not None]
        inner = {id(child) for m in alive for child in m.children()}
        tops = [m for m in alive if id(m) not in inner]
        holding = [m for m in tops if next(m.parameters(), None) is not None]
        names: dict[str, int] = {}
        roots: list[tuple[str, nn.Module]] = []
        for module in tops:
            if len(holding) == 1 and module is holding[0]:
                roots.insert(0, ("", module))
                continue
            name = type(module).__name__
            names[name] = names.get(name, 0) + 1
            roots.append((name if names[name] == 1 else f"{name}{names[name]}", module))
        return roots

    def walk(self) -> Iterator[tuple[str, nn.Module]]:
        """Every module with its path."""
        for prefix, top in self.trees():
            for path, module in top.named_modules():
                yield _plain(f"{prefix}.{path}".strip(".")), module

    def name_all(self) -> None:
        """Give every module seen its path."""
        for path, module in self.walk():
            index = self._index.get(id(module))
            if index is not None:
                self.paths[index] = path


def _shapes(module: nn.Module) -> Any:
    return type(module), tuple(tuple(p.shape) for p in module.parameters())


def _plain(path: str) -> str:
    if not any(w in path for w in WRAPPERS):
        return path
    return ".".join(part for part in path.split(".") if part not in WRAPPERS)
