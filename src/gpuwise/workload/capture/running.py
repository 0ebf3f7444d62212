"""One capture from beginning to end: accelerator, recorder, interventions, build, steps."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from gpuwise.errors import InputError
from gpuwise.workload.capture.accelerator import FakeAccelerator
from gpuwise.workload.capture.build import ItIsAStepError, ModuleOptions, Program, build
from gpuwise.workload.capture.captured import Capture
from gpuwise.workload.capture.escapes import no_escapes
from gpuwise.workload.capture.heap import frozen_heap
from gpuwise.workload.capture.loop import WARM_UPS, Loop, LoopFoundError, steps_not_trained
from gpuwise.workload.capture.ops.distributed import load_distributed, process_group
from gpuwise.workload.capture.record.recorder import Recorder
from gpuwise.workload.capture.surroundings import harmless
from gpuwise.workload.capture.updates import Updates
from gpuwise.workload.capture.whole_script import WholeScript

Intervention = Callable[[FakeAccelerator], AbstractContextManager[Any]]


@dataclass(frozen=True, slots=True)
class Machine:
    """Properties of the simulated device that the program sees."""

    capability: tuple[int, int] = (8, 0)
    name: str = "NVIDIA A100-SXM4-80GB"
    total_memory_bytes: int = 80 << 30
    device_count: int = 1
    guesses: Mapping[str, float] = field(default_factory=dict[str, float])
    """Shares that operations of value-dependent size pick, by kind."""
    at_bound: bool = False


def run_capture(
    subject: Any,
    request: ModuleOptions,
    machine: Machine,
    *,
    n_steps: int,
    name: str | None,
    keywords: Mapping[str, Any],
    interventions: Iterable[Intervention],
    memo: bool,
    world_size: int | None,
    rank: int,
) -> Capture:
    """Build ``subject`` on a pretended device, run its step ``n_steps`` times and give the record."""
    try:
        return _run(subject, request, machine, n_steps, name, keywords, interventions, memo, world_size, rank)
    except ItIsAStepError:
        again = replace(request, is_step=True)
    except LoopFoundError:
        again = replace(request, is_loop=True)
    return _run(subject, again, machine, n_steps, name, keywords, interventions, memo, world_size, rank)


def _run(
    subject: Any,
    request: ModuleOptions,
    machine: Machine,
    n_steps: int,
    name: str | None,
    keywords: Mapping[str, Any],
    interventions: Iterable[Intervention],
    memo: bool,
    world_size: int | None,
    rank: int,
) -> Capture:
    if world_size is not None:
        load_distributed()
    recorder, device_type = Recorder(), request.device.partition(":")[0]
    accelerator = FakeAccelerator(
        capability=machine.capability,
        device_count=machine.device_count,
        total_memory_bytes=machine.total_memory_bytes,
        name=machine.name,
        observer=recorder,
        memo=memo,
        guesses=machine.guesses,
        at_bound=machine.at_bound,
    )
    with ExitStack() as stack:
        stack.enter_context(frozen_heap())
        stack.enter_context(no_escapes())
        stack.enter_context(harmless())
        stack.enter_context(accelerator)
        recorder.accelerator = accelerator
        stack.enter_context(recorder)
        updates = stack.enter_context(Updates(recorder))
        if request.device == "cpu":
            from gpuwise.workload.capture.device.host_device import HostAsDevice

            stack.enter_context(HostAsDevice(accelerator))
            request = replace(request, device="cuda")
        if world_size is not None:
            stack.enter_context(process_group(accelerator, world_size, rank))
        for intervention in interventions:
            stack.enter_context(intervention(accelerator))
        request = replace(request, is_loop=request.is_loop or isinstance(subject, WholeScript))
        with nullcontext() if request.is_step or request.is_loop else steps_not_trained():
            program: Program | None = build(subject, request, keywords, lambda: len(recorder.op_signature))
        batch = program.batch
        if request.is_loop:
            loop = Loop(recorder, n_steps, updates)
            with _stand_ins_noted(recorder):
                loop.run(partial(_on_device, program, recorder, request.device))
            if loop.n_elsewhere > WARM_UPS:
                raise _nothing_ran(request.device)
            batch = loop.batch
        else:
            while len(recorder.spans) < n_steps or not updates.is_complete(n_steps):
                recorder.begin_step()
                with _stand_ins_noted(recorder):
                    _on_device(program, recorder, request.device)
                recorder.end_step()
        result = recorder.capture(
            name=name or program.name,
            batch=batch,
            capability=machine.capability,
            device_type=device_type,
            world_size=world_size or 1,
            rank=rank,
        )
        program = None
    return checked(result)


@contextmanager
def _stand_ins_noted(recorder: Recorder) -> Generator[None, None, None]:
    """An error of the program carries the lines that have read stand-ins, as ``read_back``."""
    try:
        yield
    except Exception as error:
        error.read_back = recorder.read_back()  # type: ignore[attr-defined]
        raise


def _on_device(program: Program, recorder: Recorder, device: str) -> None:
    """Run one step. Training on the host mixes real and simulated tensors and fails; the error explains that."""
    try:
        program.step()
    except RuntimeError as error:
        if not recorder.op_signature and "meta" in str(error):
            raise _nothing_ran(device) from None
        raise


def _nothing_ran(device: str) -> InputError:
    return InputError(f"nothing ran on {device}", hint='move the model and its inputs there: model.to("cuda"), x.to("cuda")')


def checked(result: Capture) -> Capture:
    """The capture, if anything ran on the device. Raises InputError otherwise."""
    if any(span.end_op > span.first_op for span in result.steps):
        return result
    raise _nothing_ran(result.settings.device_type)
