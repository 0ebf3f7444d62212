"""The changes that can be made to a step while it is captured, by name, and the context that makes them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from gpuwise.workload.capture.changes.loss import LOSS
from gpuwise.workload.capture.changes.model import MODEL
from gpuwise.workload.capture.changes.optimizer import OPTIMIZER
from gpuwise.workload.capture.changes.watch import Watch, watched
from gpuwise.workload.changes.change import Change, Sites


def contexts() -> dict[str, Callable[[Watch, Any], Any]]:
    """Context managers that apply each change during a capture, by the change's name."""
    return {**MODEL, **OPTIMIZER, **LOSS}


@contextmanager
def applied(changes: Sequence[Change]) -> Generator[Sites]:
    """Watch a step and apply ``changes`` to it; the yielded object afterwards lists the places and how much was changed."""
    table = contexts()
    with ExitStack() as stack:
        watch = stack.enter_context(watched())
        for change in changes:
            context = table[change.name](watch, change.argument)
            if context is not None:
                stack.enter_context(context)
        yield watch.sites
