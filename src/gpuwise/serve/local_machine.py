"""What one person runs a model on: the GPUs of a machine, or its processor alone, with its RAM."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from gpuwise.errors import InputError
from gpuwise.facts.hardware.cpus import Cpu, find_cpu
from gpuwise.facts.hardware.ram import Ram
from gpuwise.facts.hardware.systems import Cluster
from gpuwise.predict.memory.device import HOST_SHARE, host_limit_bytes
from gpuwise.serve.engines.engine import LOCAL_ENGINE
from gpuwise.serve.memory import most_bytes
from gpuwise.serve.streams import decode_key
from gpuwise.units import GIB, format_bytes

HOST = "i5-12400"
"""The processor of a PC whose own is not known; its memory is that of its data sheet."""
USUAL_RAM_BYTES = 32 * GIB
"""RAM of a machine without a GPU if it is not given. An assumption, which the answer states."""


@dataclass(frozen=True, slots=True)
class LocalMachine:
    """A machine that runs a local program. Bytes are those available to the program."""

    cluster: Cluster | None
    """Its GPUs; None: it runs on the processor."""
    processor: Cpu | None
    """None: unknown, as that of a PC with a GPU that was named."""
    ram_bytes: float
    free_bytes: float | None = None
    """Free now on the fullest of the GPUs; None: all of it."""
    here: bool = False
    """Whether it is the machine that runs gpuwise."""
    ram: Ram | None = None
    """As it was named."""
    assumed: tuple[str, ...] = ()

    @property
    def n_devices(self) -> int:
        """GPUs, or one processor."""
        return 1 if self.cluster is None else self.cluster.n_accelerators

    @property
    def label(self) -> str:
        """``1x RTX 4090``, or the processor's name."""
        if self.cluster is not None:
            return self.cluster.label
        return "" if self.processor is None else self.processor.name

    @property
    def host(self) -> Cpu | None:
        """The processor beside the GPUs: :data:`HOST` where it is unknown; None where they have no RAM beside their memory, and
        of this machine where it is in no catalogue."""
        if self.processor is not None or self.here or not self.ram_bytes:
            return self.processor
        return find_cpu(HOST, self.ram)

    @property
    def factor(self) -> float | None:
        """How much faster llama.cpp writes on it than on one of its kind, as was measured here; None where it was not."""
        device = self.processor if self.cluster is None else self.cluster.accelerator
        found = None if device is None else device.corrections.get(decode_key(LOCAL_ENGINE))
        return None if found is None else math.exp(-found.weights[0])

    @property
    def most_bytes(self) -> float:
        """What the program can have of one device: on a GPU without what the driver and its context take."""
        if self.cluster is None:
            return self.ram_bytes
        return most_bytes(self.cluster.accelerator, math.inf if self.free_bytes is None else self.free_bytes)


def machine_of(target: Cluster | Cpu, ram: Ram | None = None) -> LocalMachine:
    """The machine that ``target`` is in: with a GPU a usual PC, or the system that it is sold in. ``ram`` is the RAM of it.

    Raises InputError for RAM that its processor does not take, and for RAM beside a GPU that shares its memory.
    """
    size = None if ram is None else ram.size_bytes
    if isinstance(target, Cpu):
        ram_bytes = HOST_SHARE * (size or USUAL_RAM_BYTES)
        assumed = "" if size else f"{format_bytes(USUAL_RAM_BYTES)} of RAM: --ram 64GB names another size"
        return LocalMachine(None, target, ram_bytes, assumed=tuple(filter(None, (target.assumption, assumed))))
    if target.accelerator.unified_memory:
        if ram is not None:
            hint = "write its size beside its name, like 'M3 Max 64GB'"
            raise InputError(f"{target.accelerator.name} shares its memory with the processor: leave out --ram", hint=hint)
        return LocalMachine(target, None, 0.0, assumed=(target.assumption,) if target.assumption else ())
    system = target.system if size is None else replace(target.system, stated_host_memory_bytes=size)
    ram_bytes = host_limit_bytes(replace(target, system=system))
    assumed = (target.assumption,) if target.assumption else ()
    machine = LocalMachine(target, None, ram_bytes, ram=ram, assumed=assumed)
    if ram is not None and ram.type is not None:
        _ = machine.host  # refuses what it does not take
    return machine
