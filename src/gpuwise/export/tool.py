"""A program that trains, as the exporters know it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

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
    setup: str = ""
    """The shell command that puts it beside NVIDIA's build of PyTorch."""
