"""A program that trains, as the exporters know it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from gpuwise.export.job import Job
from gpuwise.export.torchrun import torchrun
from gpuwise.export.written import Written


@dataclass(frozen=True, slots=True)
class Tool:
    """A training program. ``gaps`` returns the parts of a job that it cannot express, ``write`` its files."""

    name: str
    version: str
    """Version whose own parser has read such files."""
    gaps: Callable[[Job], Iterator[str]]
    write: Callable[[Job], Written]
    layout: Callable[[Job], list[str]]
    """The script and the options of the layout alone, as a plan prints them."""
    always: Mapping[str, int | str | bool] = field(default_factory=dict[str, "int | str | bool"])
    """Behaviour that no option changes, by field of a strategy."""
    packs: Callable[[Job], bool] = lambda _: False
    """Whether attention stays inside documents that are packed into a sequence."""
    setup: str = ""
    """The shell command that puts it beside NVIDIA's build of PyTorch."""
    launcher: Callable[[Job], list[str]] = torchrun
    """What starts it, up to the script."""
    runs: tuple[str, ...] = ("hugging face",)
    """Kinds of step that it runs, its own first: tools of one kind take as long."""
    stacks: tuple[str, ...] = ("hf-fsdp",)
    """The stacks that a model is planned for where the tool is named: the next where nothing fits."""
