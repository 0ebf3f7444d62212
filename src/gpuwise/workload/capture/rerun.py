# pyright: basic
"""A step captured with changes made to it, and what was seen of the user's code meanwhile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from gpuwise.errors import InputError
from gpuwise.workload.capture.api import capture
from gpuwise.workload.capture.captured import Capture
from gpuwise.workload.capture.changes.contexts import applied
from gpuwise.workload.capture.changes.watch import patched
from gpuwise.workload.changes.change import Change, Sites


def captured_with(subject: Any, changes: Sequence[Change] = (), parts: int = 1, **options: Any) -> tuple[Capture, Sites]:
    """``subject`` (a ``Target``, or anything :func:`capture` takes) captured with ``changes``, and with the batches of its
    loaders cut in ``parts``; ``options`` are those of :func:`capture`, None means unset; ``inputs`` are (shape, format) pairs.
    Raises the user's own exceptions, and InputError."""
    seen: list[Sites] = []

    @contextmanager
    def intervention(_: Any) -> Iterator[None]:
        with applied(changes) as sites, _cut_loaders(parts) as cut:
            seen.append(sites)
            yield
        if parts > 1 and not cut:
            raise InputError("its batch does not come from a DataLoader", hint="make it smaller in the script")

    overrides = {name: value for name, value in options.items() if value is not None}
    if "inputs" in overrides:
        overrides["inputs"] = tuple(_input(shape, form, overrides.get("batch")) for shape, form in overrides["inputs"])
    run = subject.capture if hasattr(subject, "capture") else lambda **more: capture(subject, **more)
    return run(interventions=(intervention,), **overrides), seen[0]


@contextmanager
def _cut_loaders(parts: int) -> Iterator[list[int]]:
    """Loaders that are made meanwhile have ``parts`` times smaller batches; the list holds the size of each."""
    cut: list[int] = []

    def smaller(original: Any) -> Any:
        def init(self: Any, dataset: Any, batch_size: int | None = 1, *rest: Any, **named: Any) -> None:
            if batch_size is not None and batch_size >= parts > 1:
                batch_size //= parts
                cut.append(batch_size)
            original(self, dataset, batch_size, *rest, **named)

        return init

    with patched(torch.utils.data.DataLoader, "__init__", smaller):
        yield cut


def _input(shape: tuple[int, ...], form: str, batch: int | None) -> torch.Tensor:
    """A stand-in of ``shape``, with first dimension ``batch`` if given."""
    names = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
    first = shape[0] if batch is None else batch
    return torch.empty((first, *shape[1:]), dtype=getattr(torch, names.get(form, form)), device="meta")
