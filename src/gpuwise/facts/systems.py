"""Systems (accelerators in one host with their links) and clusters (systems with their network).

Every rate is one direction, per accelerator unless the name says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuwise.facts.accelerators import Accelerator


@dataclass(frozen=True, slots=True)
class System:
    """One scale-up domain as it is sold: a DGX H100, an NVL72 rack, a PCIe box, a workstation."""

    id: str
    name: str
    accelerator: Accelerator
    count: int
    """Accelerators in one host (for collectives: the scale-up domain is ``domain_size``)."""
    topology: str
    """``switch`` (NVSwitch: every pair at full link rate), ``mesh`` (xGMI or NVLink without switch),
    ``pcie`` (through the host's PCIe tree), ``single``."""
    link_kind: str
    link_bytes_per_s: float
    """Per accelerator, one direction, inside the domain."""
    domain_size: int
    """Accelerators that reach each other at ``link_bytes_per_s``: 8 in an HGX, 72 in an NVL72, 2 for a bridge."""
    network_bytes_per_s: float
    """Scale-out network per accelerator, one direction (an 8x400 Gb/s node: 50e9)."""
    network_kind: str
    """``infiniband``, ``roce``, ``ethernet``, ``efa``, ``none``."""
    host_memory_bytes: float
    source: str


@dataclass(frozen=True, slots=True)
class Cluster:
    """``n_accelerators`` of one kind in equal systems."""

    system: System
    n_accelerators: int

    @property
    def accelerator(self) -> Accelerator:
        return self.system.accelerator

    @property
    def n_systems(self) -> int:
        return -(-self.n_accelerators // self.system.count)

    @property
    def label(self) -> str:
        """``8x H100 SXM5 80GB`` or ``16x (2 systems of 8) ...``"""
        one = f"{self.n_accelerators}x {self.accelerator.name}"
        return one if self.n_systems == 1 else f"{one} ({self.n_systems} systems of {self.system.count})"
