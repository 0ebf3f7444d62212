"""A kind of pass: what it reads or makes, and the seconds of its batches. One file each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpuwise.errors import InputError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.hardware.systems import Cluster
from gpuwise.facts.models.architecture import Architecture
from gpuwise.facts.models.convnets import ConvNet
from gpuwise.facts.models.denoisers import Denoiser
from gpuwise.predict.memory.device import usable_bytes
from gpuwise.serve.engines.engine import DEFAULT_ENGINE
from gpuwise.serve.load.targets import Target
from gpuwise.serve.memory import unified_bytes
from gpuwise.serve.passes.batches import BatchTimes

Model = Architecture | ConvNet | Denoiser
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
"""Batch sizes that are evaluated; others are interpolated linearly."""
USUAL_TARGET = Target("e2e", 95.0, 0.1)
"""Default target: a tenth of a second is perceived as instant (Miller 1968, doi 10.1145/1476589.1476628)."""


@dataclass(frozen=True, slots=True)
class How:
    """How the passes are run; None: the default of the kind, or of the model."""

    program: str = DEFAULT_ENGINE
    version: str | None = None
    """Of the program: the newest."""
    steps: int | None = None
    """Of an image or a video."""
    size: tuple[int, int] | None = None
    """Width and height of an image or a video in pixels."""
    frames: int | None = None
    """Of a video."""
    offload: str = ""
    """What lies in the host's memory: one of :data:`gpuwise.serve.passes.images.OFFLOADS`."""

    @property
    def draws(self) -> bool:
        """Whether it says how an image or a video is made."""
        return self.steps is not None or self.size is not None or self.frames is not None or bool(self.offload)


AS_USUAL = How()


@dataclass(frozen=True, slots=True)
class Way:
    """A way to run a model on one device, and the bytes that it takes there for one item."""

    name: str
    """Empty where there is one way only."""
    how: How
    needed_bytes: float


class PassKind:
    """Properties that differ between kinds of passes; one subclass each."""

    workloads: tuple[str, ...]

    def check(self, how: How, workload: str) -> None:
        """Raises InputError for a program or a version that it does not know."""
        if how.program != DEFAULT_ENGINE:
            raise InputError(f"{workload} is not simulated under {how.program}", hint="leave --engine out")
        if how.draws:
            raise InputError(f"{workload} makes no images or videos", hint="leave --steps, --resolution, --frames, --offload out")
        if how.version:
            raise InputError(f"--engine {how.program}@{how.version} has no effect on {workload}", hint="leave it out")

    def target(self, workload: str) -> Target:
        """Default target."""
        return USUAL_TARGET

    def takes(self, model: Model, workload: str) -> bool:
        """Whether the model or the workload is of this kind."""
        raise NotImplementedError

    def shape(self, model: Model, workload: str, tokens: int | None) -> tuple[str, int]:
        """Name of an item, and its tokens. Raises InputError if model and workload do not match."""
        raise NotImplementedError

    def ways(self, model: Model, accelerator: Accelerator, tokens: int) -> Iterator[Way]:
        """The ways to run it on ``accelerator``, the usual one first."""
        raise NotImplementedError

    def times(self, model: Model, cluster: Cluster, tokens: int, how: How = AS_USUAL) -> BatchTimes:
        """Seconds of every batch that fits on one accelerator. Raises InputError where none does, UnpredictableError without a
        rate."""
        raise NotImplementedError


def room(accelerator: Accelerator) -> float:
    """Bytes of its memory that passes may fill."""
    return unified_bytes(accelerator) if accelerator.unified_memory else usable_bytes(accelerator)


def batches_that_fit(name: str, accelerator: Accelerator, weights_bytes: float, item_bytes: float) -> tuple[int, ...]:
    """Those of :data:`BATCHES` that fit. Raises InputError if none does."""
    sizes = tuple(b for b in BATCHES if b * item_bytes <= room(accelerator) - weights_bytes)
    if not sizes:
        raise InputError(f"{name} does not fit {accelerator.name}", hint="take one with more memory")
    return sizes
