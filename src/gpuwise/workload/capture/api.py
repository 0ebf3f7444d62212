# pyright: basic
"""``gpuwise.capture``: a real PyTorch step on a pretended accelerator."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack
from typing import Any

from gpuwise.errors import InputError
from gpuwise.workload.capture.accelerator import FakeAccelerator
from gpuwise.workload.capture.build import Wanted, build
from gpuwise.workload.capture.recorder import Recorder
from gpuwise.workload.captured import Capture

Intervention = Callable[[FakeAccelerator], AbstractContextManager[Any]]


def capture(
    step_or_module: Any,
    inputs: Any = None,
    *,
    optimizer: Any = "adamw",
    loss: Any = None,
    train: bool = True,
    device: str = "cuda",
    capability: tuple[int, int] = (8, 0),
    device_name: str = "NVIDIA A100-SXM4-80GB",
    total_memory_bytes: int = 80 << 30,
    n_steps: int = 2,
    batch: int | None = None,
    seq: int | None = None,
    name: str | None = None,
    world_size: int = 1,
    rank: int = 0,
    keywords: Mapping[str, Any] | None = None,
    interventions: Iterable[Intervention] = (),
    memo: bool = True,
) -> Capture:
    """Run a training (or inference) step without a GPU, without weights and without data, and record it.

    ``step_or_module``: an ``nn.Module`` (copied, never changed), a function that returns a module, a step (a function of
    no arguments), ``(module, inputs)`` or ``(module, inputs, optimizer)``; or one of those; or a transformers
    configuration. A function is called once, on the pretended device, with ``keywords``.

    ``inputs``: tensors or shapes, in a tuple or by name. ``optimizer``: a class, a name, a function of the parameters, or
    ``None`` for none. ``train=False`` captures the forward without a graph. ``n_steps`` steps are run; the last is the
    steady one. Raises the user's own exceptions unchanged, and :class:`gpuwise.errors.InputError` for what cannot be run.
    """
    if n_steps < 1:
        raise InputError(f"n_steps is {n_steps}: at least one step must run", hint="2 shows the steady state")
    if batch is not None and batch < 1:
        raise InputError(f"a batch of {batch} has nothing in it", hint="give a batch of at least 1")
    wanted = Wanted(inputs, optimizer, loss, train, device, batch, seq)
    recorder = Recorder()
    accelerator = FakeAccelerator(
        capability=capability, device_count=max(1, min(8, world_size)), total_memory_bytes=total_memory_bytes,
        name=device_name, observer=recorder, memo=memo,
    )  # fmt: skip
    importlib.import_module("torch._dynamo")  # optimizers import it; it must not see the pretended device
    with ExitStack() as stack:
        gc.collect()
        gc.freeze()
        stack.callback(gc.unfreeze)
        stack.enter_context(accelerator)
        recorder.accelerator = accelerator
        stack.enter_context(recorder)
        for intervention in interventions:
            stack.enter_context(intervention(accelerator))
        program = build(step_or_module, wanted, keywords)
        for _ in range(n_steps):
            recorder.begin_step()
            program.step()
            recorder.end_step()
        result = recorder.capture(
            name=name or program.name, batch=program.batch, capability=capability, device_type=device.partition(":")[0],
            world_size=world_size, rank=rank,
        )  # fmt: skip
        del program
    return checked(result)


def checked(result: Capture) -> Capture:
    """The capture, if anything ran on the device. Raises InputError otherwise."""
    if any(span.end_op > span.first_op for span in result.steps):
        return result
    raise InputError(
        f"nothing ran on {result.settings.device_type}",
        hint='move the model and its inputs there: model.to("cuda"), x.to("cuda")',
    )
