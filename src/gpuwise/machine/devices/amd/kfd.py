"""AMD's compute devices as the KFD driver lists them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gpuwise.machine.devices.sysfs import Files

_LANES = 64
"""Lanes of one compute unit: four SIMDs of sixteen (CDNA, GCN); RDNA counts SIMDs of 32, two per unit."""


@dataclass(frozen=True, slots=True)
class KfdNode:
    """One GPU of ``/sys/class/kfd/kfd/topology/nodes``."""

    number: int
    gpu_id: int
    architecture: str | None
    """``gfx942``."""
    n_cores: int | None
    shares_memory: bool | None
    """Its memory is the processor's (an APU)."""
    links: dict[int, int]
    """Other node -> kind of link: 2 PCIe, 11 XGMI (kfd_crat.h)."""


def kfd_nodes(root: Path) -> dict[str, KfdNode]:
    """Bus id -> node; empty where KFD is not loaded."""
    nodes: dict[str, KfdNode] = {}
    try:
        entries = sorted((root / "sys/class/kfd/kfd/topology/nodes").iterdir(), key=lambda p: p.name)
    except OSError:
        return nodes
    for entry in entries:
        gpu_id = Files(entry).number("gpu_id")
        if not gpu_id or not entry.name.isdigit():
            continue
        properties = _properties(entry / "properties")
        location = properties.get("location_id", 0)
        bus_id = f"{properties.get('domain', 0):08x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}.{location & 7}"
        simds, per_unit = properties.get("simd_count", 0), properties.get("simd_per_cu", 0)
        nodes[bus_id] = KfdNode(
            int(entry.name),
            gpu_id,
            _architecture(properties.get("gfx_target_version", 0)),
            simds // per_unit * _LANES if simds and per_unit else None,
            None
            if "local_mem_size" not in properties and "cpu_cores_count" not in properties
            else properties.get("cpu_cores_count", 0) > 0,
            _links(entry / "io_links"),
        )
    return nodes


def _properties(path: Path) -> dict[str, int]:
    text = Files(path.parent).text(path.name) or ""
    properties: dict[str, int] = {}
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if value.strip().isdigit():
            properties[name] = int(value)
    return properties


def _architecture(version: int) -> str | None:
    """90402 -> gfx942, 90010 -> gfx90a, 110001 -> gfx1101."""
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}" if version else None


def _links(folder: Path) -> dict[int, int]:
    kinds: dict[int, int] = {}
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        return kinds
    for entry in entries:
        properties = _properties(entry / "properties")
        if "node_to" in properties and "type" in properties:
            kinds[properties["node_to"]] = properties["type"]
    return kinds
