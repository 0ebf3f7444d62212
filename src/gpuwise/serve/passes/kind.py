"""A kind of pass: what it reads or makes, and the seconds of its batches. One file each."""

from __future__ import annotations

from gpuwise.errors import InputError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.hardware.systems import Cluster
from gpuwise.facts.models.architecture import Architecture
from gpuwise.facts.models.convnets import ConvNet
from gpuwise.facts.models.denoisers import Denoiser
from gpuwise.predict.memory.device import usable_bytes
from gpuwise.serve.load.targets import Target
from gpuwise.serve.memory import UNIFIED_SHARE
from gpuwise.serve.passes.batches import BatchTimes

Model = Architecture | ConvNet | Denoiser
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
"""Items of one batch whose times are worked out; between them they lie on lines."""
USUAL_TARGET = Target("e2e", 95.0, 0.1)
"""Where none is given: what one takes for at once is a tenth of a second (Miller 1968, doi 10.1145/1476589.1476628)."""


class PassKind:
    """What differs between kinds of passes; a subclass each."""

    workloads: tuple[str, ...]
    versioned: bool = False
    """The version of the engine changes its times."""

    def target(self, workload: str) -> Target:
        """Where none is given."""
        return USUAL_TARGET

    def takes(self, model: Model, workload: str) -> bool:
        """Whether the model or the workload is of this kind."""
        raise NotImplementedError

    def shape(self, model: Model, workload: str, tokens: int | None) -> tuple[str, int]:
        """What an item is called, and its tokens. Raises InputError where the model and the workload do not agree."""
        raise NotImplementedError

    def times(self, model: Model, cluster: Cluster, tokens: int, version: str | None) -> BatchTimes:
        """Seconds of every batch that fits on one accelerator, under the engine's ``version``. Raises InputError where none does,
        UnpredictableError without a rate."""
        raise NotImplementedError


def room(accelerator: Accelerator) -> float:
    """Bytes of its memory that passes may fill."""
    return accelerator.memory_bytes * UNIFIED_SHARE if accelerator.unified_memory else usable_bytes(accelerator)


def batches_that_fit(name: str, accelerator: Accelerator, weights_bytes: float, item_bytes: float) -> tuple[int, ...]:
    """Of :data:`BATCHES`. Raises InputError where none fits."""
    sizes = tuple(b for b in BATCHES if b * item_bytes <= room(accelerator) - weights_bytes)
    if not sizes:
        raise InputError(f"{name} does not fit {accelerator.name}", hint="take one with more memory")
    return sizes
