"""Devices to measure: the processor, and every GPU that PyTorch reaches, each with its entry in the catalogue."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuwise.errors import AmbiguousNameError, GpuwiseError, InputError, UnknownNameError
from gpuwise.machine.devices import cpu
from gpuwise.machine.devices.find import kernel_root
from gpuwise.machine.devices.memory import total_bytes
from gpuwise.machine.devices.readings import Identity, plain_uuid
from gpuwise.version import VERSION

if TYPE_CHECKING:
    from gpuwise.facts.hardware.accelerators import Accelerator
    from gpuwise.facts.hardware.cpus import Cpu
    from gpuwise.machine.devices.backend import Devices

MEMORY_SLACK = 0.06
"""Relative tolerance when products of one name are distinguished by memory; a process sees up to 1/16 less than the total
(inline error correction)."""


@dataclass(frozen=True, slots=True)
class Subject:
    """One device to measure."""

    kind: str
    """``cuda`` (ROCm too) or ``cpu``."""
    index: int
    """Index in PyTorch's order."""
    name: str
    device: str
    """The driver's unique name; ``cpu``."""
    accelerator: Accelerator | None = None
    processor: Cpu | None = None
    memory_bytes: int = 0
    units: int = 0
    """Multiprocessors, or cores this process may use."""
    l2_bytes: int = 0
    capability: tuple[int, int] | None = None
    backend: Devices | None = None
    backend_index: int = 0
    slice: bool = False
    """Whether it is a part of a card (MIG), for which the catalogue's values of the whole are not valid."""

    @property
    def id(self) -> str | None:
        """Id in the catalogue."""
        entry = self.accelerator or self.processor
        return None if entry is None else entry.id

    @property
    def label(self) -> str:
        """Name in the output: ``cpu``, ``gpu0``."""
        return "cpu" if self.kind == "cpu" else f"gpu{self.index}"

    @property
    def torch_name(self) -> str:
        return "cpu" if self.kind == "cpu" else f"cuda:{self.index}"


def has_torch() -> bool:
    """Whether PyTorch imports; it is imported by asking."""
    try:
        import torch
    except Exception:  # noqa: BLE001 - a broken installation raises anything at all
        return False
    return hasattr(torch, "mm")


def find_subjects(backends: Iterable[Devices] = ()) -> list[Subject]:
    """The GPUs that PyTorch reaches, then the processor."""
    return [*_gpus(tuple(backends)), this_processor()]


def pick_subjects(subjects: list[Subject], selectors: tuple[str, ...]) -> list[Subject]:
    """The named subjects: ``cpu``, ``gpu``, ``gpu0``, ``0``, ``cuda:1``. Raises InputError for one that is not here."""
    if not selectors:
        return subjects
    picked: list[Subject] = []
    for word in selectors:
        name = word.lower().replace("cuda:", "gpu").replace("cuda", "gpu")
        name = f"gpu{name}" if name.isdigit() else name
        fitting = [s for s in subjects if s.label == name or (name == "gpu" and s.kind == "cuda")]
        if not fitting:
            here = ", ".join(s.label for s in subjects)
            raise InputError(f"there is no device {word!r} to measure", hint=f"PyTorch reaches {here} here")
        picked += [s for s in fitting if s not in picked]
    return picked


def _gpus(backends: tuple[Devices, ...]) -> list[Subject]:
    if not has_torch():
        return []
    import torch

    try:
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    except Exception:  # noqa: BLE001 - a driver in trouble raises anything: then there is no GPU to measure
        return []
    identities = [(backend, identity) for backend in backends for identity in _identities(backend)]
    subjects: list[Subject] = []
    for index in range(count):
        try:
            properties = torch.cuda.get_device_properties(index)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        except Exception:  # noqa: BLE001
            continue
        subjects.append(_gpu(index, properties, identities))
    return subjects


def _identities(backend: Devices) -> tuple[Identity, ...]:
    try:
        return backend.identities()
    except GpuwiseError:
        return ()


def _gpu(index: int, properties: Any, identities: list[tuple[Devices, Identity]]) -> Subject:
    uuid = plain_uuid(getattr(properties, "uuid", None))
    match = next((k for k in identities if uuid and plain_uuid(k[1].uuid) == uuid), None)
    if match is None and len(identities) == 1:
        match = identities[0]
    backend, identity = match or (None, None)
    name = properties.name
    capability = (properties.major, properties.minor)
    whole = "MIG" not in name and not (identity is not None and identity.mig)
    unique = (identity.uuid if identity else None) or (f"GPU-{uuid}" if uuid else f"cuda:{index}")
    return Subject(
        "cuda",
        index,
        name,
        unique,
        accelerator=accelerator_named(name, properties.total_memory, capability),
        memory_bytes=int(properties.total_memory),
        units=int(properties.multi_processor_count),
        l2_bytes=int(getattr(properties, "L2_cache_size", 0) or 0),
        capability=capability,
        backend=backend,
        backend_index=identity.index if identity else 0,
        slice=not whole,
    )


def accelerator_named(name: str, memory_bytes: float | None, capability: tuple[int, int] | None = None) -> Accelerator | None:
    """The catalogue's entry for a driver's name, by memory and compute capability where the name fits several; None without a
    match."""
    from gpuwise.facts.hardware.accelerators import accelerators
    from gpuwise.facts.hardware.naming import find_accelerator

    try:
        candidates = [find_accelerator(name)]
    except AmbiguousNameError as error:
        candidates = [accelerators()[c] for c in error.candidates if c in accelerators()]
    except (UnknownNameError, InputError):
        return None
    if capability is not None:
        capability_text = f"{capability[0]}.{capability[1]}"
        candidates = [a for a in candidates if a.compute_capability in (None, capability_text)]
    if memory_bytes:
        candidates = [a for a in candidates if abs(memory_bytes / (a.memory_visible_bytes or a.memory_bytes) - 1) <= MEMORY_SLACK]
        candidates.sort(key=lambda a: abs(memory_bytes / (a.memory_visible_bytes or a.memory_bytes) - 1))
    return candidates[0] if len(candidates) == 1 or (candidates and memory_bytes) else None


def this_processor() -> Subject:
    """The processor, with the cores this process may use."""
    from gpuwise.facts.hardware.core_ids import processor_of_core
    from gpuwise.facts.hardware.cpus import find_cpu

    name = processor_name()
    try:
        processor = find_cpu(name)
    except GpuwiseError:
        numbers = cpu.core_numbers(kernel_root())
        processor = None if numbers is None else processor_of_core(name, *numbers)
    return Subject("cpu", 0, name, "cpu", processor=processor, memory_bytes=total_bytes() or 0, units=cpu.usable_cores())


def processor_name() -> str:
    """The system's name of the processor, or else the architecture."""
    return _processor_name(kernel_root())


@cache
def _processor_name(root: Path) -> str:
    return cpu.processor_name(root) or platform.machine() or "processor"


@cache
def machine_id() -> str:
    """The same at every run on this machine; made by a one-way function of the system's own identity."""
    try:
        seed = Path("/etc/machine-id").read_text("ascii", errors="replace").strip()
    except OSError:
        seed = ""
    seed = seed or f"{platform.node()} {platform.machine()} {processor_name()}"
    return hashlib.sha256(f"gpuwise machine {seed}".encode()).hexdigest()[:16]


def describe(subjects: list[Subject]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Machine and software as stored with a run, without the host's name."""
    gpus = [s for s in subjects if s.kind == "cuda"]
    machine: dict[str, Any] = {
        "os": platform.system(),
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "cpu": processor_name(),
        "cores": cpu.usable_cores(),
        "memory_bytes": total_bytes(),
        "gpus": ", ".join(s.name for s in gpus),
    }
    return machine, _software(gpus)


def _software(gpus: list[Subject]) -> dict[str, Any]:
    import sys

    software: dict[str, Any] = {"gpuwise": VERSION, "python": platform.python_version()}
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "mm"):
        software |= {"torch": torch.__version__, "cuda": torch.version.cuda, "hip": torch.version.hip}
        software["cudnn"] = torch.backends.cudnn.version()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        software["numpy"] = numpy.__version__
    for subject in gpus:
        if subject.backend is not None and "driver" not in software:
            try:
                software["driver"] = subject.backend.driver().version
            except GpuwiseError:
                software["driver"] = None
    return {name: value for name, value in software.items() if value is not None}
