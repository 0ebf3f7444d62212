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
    vendors: Mapping[str, str] = field(default_factory=lambda: {"nvidia": "", "amd": "", "intel": "Xe"})
    """Vendors whose devices it starts on (PyTorch's launcher: CUDA, ROCm, XPU), and what the family's name begins with."""
    launched: bool = True
    """Whether the launchers of nodes start it; else it is started on every host by hand."""
    runs: str = "hugging face"
    """The kind of step that it runs: tools of one kind take as long."""
    may_run: str = ""
    """Another kind, where its files ask for it."""
    stack: str = "hf-fsdp"
    """The stack that a model is planned for where the tool is named."""
    sharded: str = ""
    """The stack where nothing fits in the first."""
