# pyright: basic
"""The autograd graph when a backward begins: which tensors its nodes keep."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

_NAMES: dict[type, tuple[str, ...]] = {}
hooks_seen = [False]
"""Whether saved-tensor hooks were in use since the capture began."""


def watch_hooks() -> Callable[[], None]:
    """Note the use of saved-tensor hooks in :data:`hooks_seen`; returns the function that ends it."""
    hooks = torch.autograd.graph.saved_tensors_hooks
    enter = hooks.__enter__
    hooks_seen[0] = False

    def noted(self: Any) -> None:
        hooks_seen[0] = True
        enter(self)

    hooks.__enter__ = noted

    def end() -> None:
        hooks.__enter__ = enter

    return end


def saved_tensors(roots: Any) -> Iterator[torch.Tensor]:
    """Tensors saved by the nodes behind ``roots``. Tensors behind the user's saved-tensor hooks (checkpoints, offload) are
    skipped, because reading them would run the hooks."""
    visited: set[Any] = set()
    todo = [
        r.grad_fn
        for r in (roots if isinstance(roots, (list, tuple)) else (roots,))
        if isinstance(r, torch.Tensor) and r.grad_fn is not None
    ]
    while todo:
        node = todo.pop()
        if node in visited:
            continue
        visited.add(node)
        todo.extend(n for n, _ in node.next_functions if n is not None)
        yield from (t for t in _saved_by(node) if isinstance(t, torch.Tensor))


def _saved_by(node: Any) -> Iterator[torch.Tensor]:
    names = _NAMES.get(type(node))
    if names is None:
        names = _NAMES[type(node)] = tuple(n for n in dir(node) if n.startswith("_raw_saved_"))
    for name in names:
        try:
            raw = getattr(node, name)
            many = raw if isinstance(raw, (list, tuple)) else (raw,)
            for one in many:
                value = _value(one, node, name)
                yield from value if isinstance(value, (list, tuple)) else (value,)
        except (RuntimeError, AttributeError):  # freed by an earlier backward
            continue


def _value(raw: Any, node: Any, name: str) -> Any:
    """The saved tensor, None if a hook is registered; torch before 2.10 cannot report that, so any hooks in the capture
    (:data:`hooks_seen`) give None."""
    if hasattr(raw, "unpack_hook"):
        return raw.data if raw.unpack_hook is None else None
    if hooks_seen[0]:
        return None
    if name == "_raw_saved_tensors":
        return [t for t in node.saved_tensors if isinstance(t, torch.Tensor)]
    return getattr(node, name.replace("_raw_saved_", "_saved_"), None)
