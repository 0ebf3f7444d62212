"""What a computation runs on, by name: GPUs or a processor."""

from __future__ import annotations

import re

from gpuwise.errors import AmbiguousNameError, InputError, UnknownNameError, nearest_names
from gpuwise.facts.hardware.accelerators import accelerators
from gpuwise.facts.hardware.cpus import Cpu, all_cpu_names, find_cpu, names_no_processor
from gpuwise.facts.hardware.naming import USUAL, find_cluster
from gpuwise.facts.hardware.ram import Ram
from gpuwise.facts.hardware.systems import Cluster
from gpuwise.facts.hardware.this import NoGpuHereError, is_this, this_processor

Target = Cluster | Cpu
_CPU_MEANT = re.compile(r"\s*cpu\s*[:=]\s*", re.IGNORECASE)


def find_target(text: str, ram: Ram | None = None) -> Target:
    """A GPU, several, or a processor by name, with ``ram``. ``a100`` is read as the 80 GB SXM part, as data sets do. For a chip
    with both (``M4``, ``Ryzen AI 9 HX 370``) the name means the GPU; write ``cpu:`` before it for the processor. ``this`` is the
    GPU of this machine, or its processor where it has none.

    Raises UnknownNameError with the nearest of both catalogues, AmbiguousNameError, InputError.
    """
    if (asked := _CPU_MEANT.match(text)) is not None:
        return find_processor(text[asked.end() :], ram)
    try:
        return find_cluster(text, prefer=USUAL)
    except NoGpuHereError:
        return this_processor()
    except UnknownNameError as error:
        of_gpus = error
    try:
        return find_cpu(text, ram)
    except UnknownNameError as error:
        processors = all_cpu_names()
        if names_no_processor(text):
            raise UnknownNameError("GPU or processor", text[:100], (), hint=error.hint) from None
        if of_gpus.hint and not of_gpus.nearest and not nearest_names(text[:100], processors):
            raise UnknownNameError("GPU or processor", text[:100], (), hint=of_gpus.hint) from None  # why that is no GPU
        names = [*(name for spellings in accelerators().names().values() for name in spellings), *processors]
        near = nearest_names(text[:100], names)
        hint = None if near else "`gpuwise gpus` lists the GPUs, `gpuwise cpus` the processors"
        raise UnknownNameError("GPU or processor", text[:100], names, hint=hint) from None


def find_processor(text: str, ram: Ram | None = None) -> Cpu:
    """A processor by name, or ``this``; the error points out when the name is a GPU's. Raises UnknownNameError,
    AmbiguousNameError, InputError."""
    if is_this(text):
        return this_processor()
    try:
        return find_cpu(text, ram)
    except UnknownNameError as error:
        try:
            found = find_cluster(text, prefer=USUAL)
        except (UnknownNameError, AmbiguousNameError, InputError):
            raise error from None
        raise InputError(f"{found.accelerator.name} is not a CPU", hint="--against takes a CPU, like 'EPYC 9654'") from None
