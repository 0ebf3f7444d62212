# pyright: basic
"""A step captured with changes made to it, and what was seen of the user's code meanwhile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from gpuwise.workload.capture.api import capture
from gpuwise.workload.capture.changes.contexts import applied
from gpuwise.workload.capture.record.capture import Capture
from gpuwise.workload.changes.change import Change, Sites


def captured_with(subject: Any, changes: Sequence[Change] = (), **options: Any) -> tuple[Capture, Sites]:
    """``subject`` (a ``Target``, or anything :func:`capture` takes) captured with ``changes``; ``options`` are those of
    :func:`capture`, those that are None left out;
    ``inputs`` are (shape, format) pairs. Raises the user's own exceptions, and InputError."""
    seen: list[Sites] = []

    @contextmanager
    def intervention(_: Any) -> Iterator[None]:
        with applied(changes) as sites:
            seen.append(sites)
            yield

    overrides = {name: value for name, value in options.items() if value is not None}
    if "inputs" in overrides:
        overrides["inputs"] = tuple(_input(shape, form, overrides.get("batch")) for shape, form in overrides["inputs"])
    run = subject.capture if hasattr(subject, "capture") else lambda **more: capture(subject, **more)
    return run(interventions=(intervention,), **overrides), seen[0]


def _input(shape: tuple[int, ...], form: str, batch: int | None) -> torch.Tensor:
    """A stand-in of ``shape``, its first dimension ``batch`` where one is asked for."""
    names = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
    first = shape[0] if batch is None else batch
    return torch.empty((first, *shape[1:]), dtype=getattr(torch, names.get(form, form)), device="meta")
