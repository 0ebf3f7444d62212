"""The names that fields suggest, with what they are."""

from __future__ import annotations

from functools import cache

from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.models.architecture import Architecture

Names = list[tuple[str, str]]


@cache
def names() -> dict[str, Names]:
    """Models and GPUs, each with its description: the models that people mean by a family's name and the GPUs that most providers
    rent out come first."""
    return {"models": _models(), "gpus": [("this", "the GPUs of this machine"), *_gpus()]}


def _models() -> Names:
    from gpuwise.facts.models.catalogue import models, usual_models
    from gpuwise.facts.models.denoisers import denoisers

    common = [name for name in usual_models() if name in models()]
    written = [(name, _model_words(models()[name])) for name in dict.fromkeys([*common, *models()])]
    return [*written, *((one.id, f"{one.name}, makes {one.makes}") for one in denoisers().values())]


def _model_words(model: Architecture) -> str:
    from gpuwise.units import format_count
    from gpuwise.workload.transformer.parameters import count_parameters

    count = count_parameters(model)
    active = f", {format_count(count.active)} active" if model.moe else ""
    kind = "" if model.kind == "decoder" else f", {model.kind}"
    return f"{model.name}, {format_count(count.total)} parameters{active}{kind}"


def _gpus() -> Names:
    from gpuwise.facts.hardware.accelerators import accelerators
    from gpuwise.facts.offers.offer import current_by_provider

    def rank(gpu: Accelerator) -> tuple[int, int, str]:
        return -len(current_by_provider(gpu.id)), -gpu.year, gpu.id

    return [(gpu.id, _gpu_words(gpu)) for gpu in sorted(accelerators().values(), key=rank)]


def _gpu_words(gpu: Accelerator) -> str:
    from gpuwise.units import format_bytes

    memory = f"{gpu.memory_nominal_gb:g} GB" if gpu.memory_nominal_gb else format_bytes(gpu.memory_bytes)
    return f"{gpu.vendor} {gpu.name}, {memory}, {gpu.year}"
