"""A program that trains, as the exporters know it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from gpuwise.export.job import Job
from gpuwise.export.written import Written


@dataclass(frozen=True, slots=True)
class Tool:
    """A program that trains. ``gaps`` says what of a job it cannot express, ``write`` makes its files."""

    name: str
    version: str
    """That its own parser has read such files of."""
    gaps: Callable[[Job], Iterator[str]]
    write: Callable[[Job], Written]
    layout: Callable[[Job], list[str]]
    """The script and the options that carry the layout alone: what a plan prints."""
    always: Mapping[str, int | str | bool] = field(default_factory=dict[str, "int | str | bool"])
    """What it does whatever a plan asks for, by field of a strategy."""
    packs: Callable[[Job], bool] = lambda _: False
    """Whether attention stays inside documents that are packed into a sequence."""
    setup: str = ""
    """The shell command that puts it beside NVIDIA's build of PyTorch."""
    stack: str = "hf-fsdp"
    """The stack that a model is planned for where the tool is named."""
