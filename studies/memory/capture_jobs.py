"""From a measured job to its capture, and from its capture to the number that was measured.

Needs torch, and timm, torchvision or transformers for the networks; they are imported here only when a job is run.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from gpuwise.errors import UnpredictableError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.hardware.naming import find_accelerator
from gpuwise.predict.memory.allocator.simulation import simulate
from gpuwise.predict.memory.capture import CapturedMemory, captured_memory
from gpuwise.predict.memory.context import Loading
from gpuwise.predict.memory.device import usable_bytes
from gpuwise.workload.capture.captured import Capture, Category
from studies.memory.capture_rows import MemoryJob

PACKAGES = {
    "timm": ("torch", "timm"),
    "torchvision": ("torch", "torchvision"),
    "transformers": ("torch", "transformers"),
    "mlp": ("torch",),
}


def missing_packages(job: MemoryJob) -> tuple[str, ...]:
    """What has to be installed before ``job`` can be captured."""
    return tuple(p for p in PACKAGES[job.library] if importlib.util.find_spec(p) is None)


def accelerator_of(job: MemoryJob) -> Accelerator:
    """The card the job ran on, with the total its source gives."""
    card = find_accelerator(job.gpu)
    if job.total_bytes is None:
        return card
    return replace(card, memory_bytes=job.total_bytes, memory_visible_bytes=None)


def capture_job(job: MemoryJob) -> Capture:
    """One set-up and two steps of the job, as its source's script runs them. Raises the model's own errors."""
    from gpuwise.workload.capture.api import capture
    from studies.networks import loops as zoo_loops
    from studies.networks import support as zoo_support

    if job.library in ("timm", "torchvision"):
        zoo_support.timm() if job.library == "timm" else zoo_support.torchvision()
    build = _builder(job)

    def program() -> Callable[[], Any]:
        setup = job.setup
        return zoo_loops.loop(
            build(),
            job.batch,
            train=job.train,
            precision=job.precision,
            channels_last=job.channels_last,
            optimizer=job.optimizer,
            keeps=setup.keeps_inputs,
            set_to_none=setup.set_to_none,
            foreach=setup.foreach,
        )

    capability = find_accelerator(job.gpu).compute_capability or "8.0"
    major, minor = (int(p) for p in capability.split("."))
    unfused = job.library == "timm" and job.setup.torch.startswith("1.")
    with zoo_loops.attention_before_torch_2(unfused):
        return capture(program, capability=(major, minor), name=job.model)


def _builder(job: MemoryJob) -> Callable[[], Any]:
    from studies.networks import loops as zoo_loops
    from studies.networks import support as zoo_support
    from studies.networks.zoo import TEXT

    if job.library == "timm":
        return lambda: zoo_support.image_network(job.model, job.image_size)
    if job.library == "torchvision":
        return lambda: zoo_support.torchvision_network(job.model, job.image_size)
    if job.library == "mlp":
        return lambda: zoo_loops.perceptron(job.inputs, job.layers)
    name = job.model.split("/")[-1].lower()
    if name not in TEXT:
        raise UnpredictableError("no builder for this model")
    t = TEXT[name]
    # transformers' GPT-Neo has no fused attention; its T5 had none in the 4.x of the jobs' time (modeling_t5.py)
    attention = "eager" if t.head.startswith(("GPTNeo", "T5")) else t.attention
    return lambda: zoo_support.text_network(
        t.head, t.config, t.dimensions, job.tokens or t.seq_len, attention=attention, labels=t.labels
    )


def settled(capture: Capture, job: MemoryJob) -> Capture:
    """``capture`` with the settings of the job's software instead of those it was captured under."""
    return replace(
        capture, settings=replace(capture.settings, torch_version=job.setup.torch, cudnn_benchmark=job.setup.benchmark)
    )


def loader_bytes(capture: Capture, job: MemoryJob) -> float:
    """What timm's PrefetchLoader reserves beside the step (timm/data/loader.py): it copies and normalises each batch on a
    stream of its own, whose pool nothing else uses, and training and validation have one loader each. In each: the bytes
    of a batch, the batch in fp32, and the one before, still held by the loop. Less the batch the capture holds itself."""
    if not job.setup.prefetches:
        return 0.0
    inputs = capture.storage_bytes[capture.storage_category == int(Category.INPUT)]
    batch = int(inputs.max()) if inputs.size else 0
    sizes = [batch // 4, batch, batch] * 2
    run = simulate(list(range(6)), [1] * 6, sizes, [1, 1, 1, 2, 2, 2])
    return float(run.peak_reserved_bytes - batch)


def predict(capture: Capture, job: MemoryJob) -> CapturedMemory:
    """Memory of the job on its card."""
    card = accelerator_of(job)
    loading: Loading = "eager" if job.setup.eager_modules else "lazy"
    return captured_memory(
        settled(capture, job),
        card,
        allocator_conf="",
        capacity_bytes=usable_bytes(card),
        loading=loading,
    )
