"""A profiler's trace as columns: one row per event, names and lanes stored once.

A trace of a gigabyte has four million events; as Python objects they would take ten times the file, as columns a quarter of
it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

DEVICE_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
"""Kineto's categories of GPU work (libkineto, ``ActivityType.cpp``)."""
RUNTIME_CATEGORIES = ("cuda_runtime", "cuda_driver", "hip_runtime", "xpu_runtime")
NONE = -1
"""In a column of whole numbers: the event does not say."""


class Lane(NamedTuple):
    """A process and a thread in it, as the file names them; of a GPU, its number and a stream."""

    process: str
    thread: str


class Detail(NamedTuple):
    """Recorded inputs of an event."""

    shapes: tuple[tuple[int, ...], ...] = ()
    """Shape of each input; empty for non-tensors."""
    dtypes: tuple[str, ...] = ()
    """PyTorch's C++ names: ``float``, ``c10::BFloat16``."""
    collective: str = ""
    elements: int = NONE
    """Sent by a collective."""
    group: int = NONE
    """Ranks that take part."""
    given: tuple[str, ...] = ()
    """Inputs that are not tensors, as text; only for convolutions and attention."""
    strides: tuple[tuple[int, ...], ...] = ()
    """Strides of each input, in elements; only for convolutions and attention."""


@dataclass(frozen=True, eq=False)
class Trace:
    """Events sorted by start; seconds since the first."""

    source: str
    """Path of the trace, for messages."""
    names: Sequence[str]
    categories: Sequence[str]
    lanes: Sequence[Lane]
    details: Sequence[Detail]
    """The first is of events that say nothing."""
    name: NDArray[np.int32]
    category: NDArray[np.int16]
    lane: NDArray[np.int32]
    start_s: Floats
    duration_s: Floats
    correlation: Ints
    """Joins a launch on the host with what it launched."""
    external: Ints
    """Joins an operation with its launches."""
    device: NDArray[np.int32]
    stream: Ints
    n_bytes: Ints
    """Moved by a copy."""
    sequence: Ints
    """Sequence number of an operation, joining forward and backward; ``NONE`` without a recorded gradient."""
    detail: NDArray[np.int32]
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Metadata of the file beside its events."""
    began_s: float = 0.0
    """The first event on the file's own clock, seconds."""

    def __len__(self) -> int:
        return len(self.start_s)

    @cached_property
    def end_s(self) -> Floats:
        """End of each event, seconds since the first start."""
        return self.start_s + self.duration_s

    @property
    def span_s(self) -> float:
        """From the first start to the last end."""
        return float(self.end_s.max() - self.start_s.min()) if len(self) else 0.0

    def in_categories(self, wanted: Sequence[str]) -> Flags:
        """Rows of any of these categories."""
        ids = [i for i, c in enumerate(self.categories) if c in wanted]
        return np.isin(self.category, ids)

    def named(self, matches: Callable[[str], object]) -> Flags:
        """Rows whose name ``matches`` (a function of the name; asked once a name)."""
        table = np.fromiter((bool(matches(n)) for n in self.names), dtype=bool, count=len(self.names))
        return table[self.name] if len(self.names) else np.zeros(0, dtype=bool)

    @cached_property
    def on_device(self) -> Flags:
        """Rows of work on a GPU."""
        return self.in_categories(DEVICE_CATEGORIES)

    @property
    def has_device(self) -> bool:
        """Whether there is work of a GPU."""
        return bool(self.on_device.any())

    @property
    def rank(self) -> int | None:
        """Rank of the traced process, where recorded."""
        info = self.metadata.get("distributedInfo")
        rank = cast("dict[str, Any]", info).get("rank") if isinstance(info, dict) else None
        return rank if isinstance(rank, int) else None

    @property
    def properties(self) -> Mapping[str, Any]:
        """Properties of the GPU that did most of the work, from the profiler; empty without one."""
        devices = self.metadata.get("deviceProperties")
        if not isinstance(devices, list) or not devices or not self.has_device:
            return {}
        used = self.device[self.on_device & (self.device >= 0)]
        first = int(np.bincount(used).argmax()) if used.size else 0
        every = [cast("dict[str, Any]", p) for p in cast("list[Any]", devices) if isinstance(p, dict)]
        cards = [p for p in every if p.get("id") == first]
        return cards[0] if cards else {}

    @property
    def capability(self) -> tuple[int, int] | None:
        """Compute capability of that GPU (NVIDIA)."""
        major, minor = self.properties.get("computeMajor"), self.properties.get("computeMinor")
        return (major, minor) if isinstance(major, int) and isinstance(minor, int) else None

    def text(self, row: int) -> str:
        """The name of one event."""
        return self.names[int(self.name[row])]

    def inputs(self, row: int) -> Detail:
        """Recorded inputs of one event."""
        return self.details[int(self.detail[row])]


def launched_s(trace: Trace, kernels: Ints) -> Floats:
    """When the host launched each kernel; its own start where the trace does not say."""
    calls = rows_of(trace.in_categories(RUNTIME_CATEGORIES), trace.correlation, trace.correlation[kernels])
    return np.where(calls == NONE, trace.start_s[kernels], trace.start_s[calls])


def rows_of(among: Flags, numbers: Ints, wanted: Ints) -> Ints:
    """Row among those marked with each wanted number; ``NONE`` without one."""
    rows = np.flatnonzero(among & (numbers != NONE))
    out = np.full(len(wanted), NONE, np.int64)
    if not len(rows):
        return out
    rows = rows[np.argsort(numbers[rows], kind="stable")]
    at = np.minimum(np.searchsorted(numbers[rows], wanted), len(rows) - 1)
    hit = (numbers[rows[at]] == wanted) & (wanted != NONE)
    out[hit] = rows[at[hit]]
    return out
