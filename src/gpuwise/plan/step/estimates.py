"""One captured step on one accelerator: its memory and its time together."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpuwise.errors import UnpredictableError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.plan.step.time_parts import op_seconds
from gpuwise.predict.estimate import Estimate
from gpuwise.predict.memory.capture import CapturedMemory, Replayed, captured_memory
from gpuwise.predict.parallel.sharding import Sharding, sharded
from gpuwise.predict.step.capture_time import CapturedTime, captured_time
from gpuwise.predict.step.sharding_time import sharded_step_time
from gpuwise.workload.capture.captured import Capture
from gpuwise.workload.step import OpTable

PROGRAM_FACTOR, PROGRAM_LOG_SIGMA = 1.55, 0.31
"""Time of a step as published over that of its kernels, for networks by name: the trainer around them (loader, noise and loss in
Python, logging) is not known. Median and spread over nine sources (``python -m studies.reports.networks``)."""
AROUND = "around_the_kernels"


@dataclass(frozen=True, slots=True)
class StepEstimate:
    """Memory and time of a step. ``micro_batches`` of it make one update: forward and backward run that often."""

    memory: CapturedMemory
    time: CapturedTime | None
    """None where nothing known supports a time on this card."""
    no_time: str = ""
    """Why there is no time."""
    micro_batches: int = 1
    once_s: float = 0.0
    """Host time added to each update: copies of gradients and parameters, and the host's own update."""

    @property
    def fits(self) -> bool:
        """Whether the step fits, cached memory given back where it has to be."""
        return self.memory.fits

    @property
    def fits_easily(self) -> bool:
        """Fits without torch returning cached memory to the driver, which would synchronise the device."""
        return self.memory.fits and self.memory.retries == 0

    @property
    def memory_bytes(self) -> Estimate:
        """Process memory as nvidia-smi shows it, at the peak of the step."""
        return self.memory.process

    @property
    def device_bytes(self) -> float:
        """Device memory available to a process."""
        return self.memory.capacity_bytes

    @property
    def headroom_bytes(self) -> float:
        """Device memory left free; negative if it does not fit."""
        return self.memory.capacity_bytes - self.memory.process.expected

    @property
    def fit_probability(self) -> float:
        """Probability that it fits, from the spread of the prediction."""
        return self.memory.fit_probability

    @property
    def step_time_s(self) -> Estimate | None:
        """Seconds from one update of the weights to the next."""
        if self.time is None:
            return None
        once = self.time.phase_s.get("optimizer", 0.0) / max(self.time.device_total_s, 1e-30)
        t = self.time.step_time_s.scaled(self.micro_batches * (1.0 - once) + once)
        return Estimate(t.low + self.once_s, t.expected + self.once_s, t.high + self.once_s, t.basis)


def measure(
    capture: Capture,
    accelerator: Accelerator,
    *,
    allocator_conf: str | None = None,
    compiled: bool | None = None,
    micro_batches: int = 1,
    replays: dict[object, Replayed] | None = None,
    rows: OpTable | None = None,
) -> StepEstimate:
    """``capture`` on ``accelerator``. For many accelerators: ``replays`` of the allocator by their inputs, and the step's
    :func:`~gpuwise.predict.step.capture_time.step_rows`. Raises what
    :func:`gpuwise.predict.memory.capture.captured_memory` raises."""
    memory = captured_memory(capture, accelerator, allocator_conf=allocator_conf, compiled=compiled, replays=replays)
    try:
        time = captured_time(capture, accelerator, compiled=compiled, rows=rows)
        return StepEstimate(memory, in_practice(time) if capture.by_name else time, "", micro_batches)
    except UnpredictableError as error:
        return StepEstimate(memory, None, error.message, micro_batches)


def in_practice(time: CapturedTime) -> CapturedTime:
    """The step as published programs run it, with the time around its kernels as a part of its own."""
    step_s = time.step_time_s.scaled(PROGRAM_FACTOR).widened(PROGRAM_LOG_SIGMA)
    around = {AROUND: step_s.expected - time.device_total_s}
    return replace(
        time,
        step_time_s=step_s,
        family_s={**time.family_s, **around},
        phase_s={**time.phase_s, **around},
        module_s={**time.module_s, **around},
        bound_s={**time.bound_s, **around},
        device_total_s=step_s.expected,
        gpu_busy_share=time.gpu_busy_share / PROGRAM_FACTOR,
        launch_bound_share=time.launch_bound_share / PROGRAM_FACTOR,
    )


def with_host_optimizer(
    capture: Capture,
    accelerator: Accelerator,
    plain: StepEstimate,
    *,
    allocator_conf: str | None = None,
) -> StepEstimate:
    """``plain``, the estimate of ``capture``, with the optimizer and its states on the host: gradients go down, the host
    updates, parameters come back. Raises InputError where the capture names no parameters."""
    system = find_cluster(f"1x{accelerator.id}").system
    rank = sharded(capture, Sharding("none", 1, offload_optimizer=True))
    memory = captured_memory(rank.capture, accelerator, allocator_conf=allocator_conf)
    times = None if plain.time is None else op_seconds(capture, plain.time)
    if times is None:
        return replace(plain, memory=memory, time=None, no_time=plain.no_time or "the step is timed compiled as a whole")
    before = sharded_step_time(sharded(capture, Sharding("none", 1)), system, *times)
    after = sharded_step_time(rank, system, *times)
    return replace(plain, memory=memory, once_s=after.step_s - before.step_s)
