"""Collectives inside one scale-up domain: measured curves by link generation, scaled to the link at hand.

Shape legend: K knots of :data:`KNOTS` (payload bytes), N group sizes.

A curve of a measured link (NVLink 3, 4 and 5 behind a switch, a PCIe box without peer access, oneCCL on PCIe)
is the median of its measurements, non-decreasing in size. On another link rate only the part of the time that
is wire time
moves::

    t'(S) = (t(S) - b S) + b S R / R'        b: seconds per byte of the last measured interval, R: the
    measured link

so latency and protocol changes stay and the limit is the link's. Group sizes between the measured 2, 4 and 8
are interpolated in log(n); above 8 the latency grows by ring or tree steps and the wire part by the bus
factor. PCIe with peer access is a model of NCCL's two protocols, min(low latency, simple), each ``a(n) + S
f(n) / rate``. GeForce cards have no peer access: each byte goes through host memory, at a share of the rate that grows with
the message.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from gpuwise.facts.hardware.links import is_staged
from gpuwise.facts.hardware.systems import System
from gpuwise.predict.coefficients import load_arrays, load_json
from gpuwise.predict.estimate import Basis
from gpuwise.predict.kernels.kernel_time import F64

MEASURED_SIZES: F64 = np.exp2(np.arange(7.0, 31.0))
"""[24] payload bytes of the measured tables."""
KNOTS: F64 = np.concatenate([[0.0], np.exp2(np.arange(7.0, 38.0)), [2.0**46]])
"""[K] payload bytes of every curve; the last only carries the final slope."""
_ABOVE = KNOTS[MEASURED_SIZES.size + 1 :]
_MEASURED_GROUPS = (2, 4, 8)
SWITCH_REDUCTION = ("nvlink4", "nvlink5")
"""Link classes whose switch sums (NVLink SHARP)."""
_RING_OPS = ("all_gather", "reduce_scatter", "broadcast")


class Fabric(NamedTuple):
    """Properties of a system that determine its collectives (hashable)."""

    accelerator: str
    vendor: str
    topology: str
    link_kind: str
    link_bytes_per_s: float
    domain_size: int
    host_count: int
    pcie_bytes_per_s: float | None
    memory_bytes_per_s: float
    network_bytes_per_s: float
    network_kind: str

    @classmethod
    def of(cls, system: System) -> Fabric:
        """The links and network of ``system``. Slingshot counts as RoCE: both are Ethernet with remote memory access."""
        a = system.accelerator
        # Slingshot is Ethernet with a network card that moves the bytes itself.
        kind = "roce" if system.network_id.startswith("slingshot") else system.network_kind
        return cls(
            a.name,
            a.vendor,
            system.topology,
            system.link_kind,
            system.link_bytes_per_s,
            system.domain_size,
            system.count,
            a.pcie_bytes_per_s,
            a.memory_bandwidth_bytes_per_s,
            system.network_bytes_per_s,
            kind,
        )

    @property
    def host_size(self) -> int:
        """Accelerators reachable without the scale-out network."""
        return max(self.host_count, self.domain_size)


class Domain(NamedTuple):
    """[K] seconds of a collective inside a domain, the limiting seconds per byte of the wire, and the basis of the estimate."""

    seconds: F64
    slope_s_per_byte: float
    basis: Basis
    link_class: str


def bus_factor(op: str, n: int) -> float:
    """Bytes per direction on a rank's link per payload byte in a ring (nccl-tests' bus bandwidth factor)."""
    if op == "all_reduce":
        return 2 * (n - 1) / n
    return (n - 1) / n if op in ("reduce_scatter", "all_gather", "all_to_all") else 1.0


class Coefficients(NamedTuple):
    """``constants``: the JSON document; ``tables``: ``class.library.op`` -> [N, 24] seconds at
    :data:`MEASURED_SIZES`."""

    constants: dict[str, Any]
    tables: Mapping[str, F64]


@cache
def shipped() -> Coefficients:
    """The coefficients in the package. Raises DataError when they are corrupt."""
    return Coefficients(load_json("collectives"), load_arrays("collectives"))


def link_class(c: Coefficients, fabric: Fabric, n: int) -> tuple[str, float]:
    """(measured class whose curve is used, usable link rate) for ``n`` ranks; ``pcie`` is the protocol
    model."""
    on_pcie = fabric.topology.startswith("pcie")
    if on_pcie or n > fabric.domain_size:
        # Ranks of one host beyond the domain (bridged pairs) meet over PCIe.
        rate = fabric.link_bytes_per_s if on_pcie else fabric.pcie_bytes_per_s or fabric.link_bytes_per_s
        if fabric.vendor == "Intel":
            return "oneccl", rate
        return ("pcie-host" if fabric.topology == "pcie-host" else "pcie"), rate
    share = _mesh_share(c, fabric, n) if fabric.topology == "mesh" else 1.0
    return _nvlink_class(fabric.link_kind), fabric.link_bytes_per_s * share


def _nvlink_class(link_kind: str) -> str:
    """The measured NVLink generation nearest to a link; other vendors' links borrow NVLink 3, which has no
    reduction in the switch."""
    match = re.fullmatch(r"nvlink(\d+)", link_kind.lower())
    return f"nvlink{min(max(int(match[1]), 3), 5)}" if match else "nvlink3"


def _mesh_share(c: Coefficients, fabric: Fabric, n: int) -> float:
    """Share of a device's link rate that a group of ``n`` has without a switch.

    Hybrid cube mesh (DGX-1): what NCCL reached on 2-8 V100. Fully connected: each of the ``domain - 1`` peers
    has its own lanes, so a group has those between its members; of xGMI and its like ``xgmi_fraction`` is
    usable.
    """
    mesh = c.constants["mesh"]
    kind = fabric.link_kind.lower()
    if kind in ("nvlink1", "nvlink2") and fabric.domain_size == 8:
        return _between(n, mesh["nvlink_groups"], mesh["nvlink_fraction"])
    usable = 1.0 if kind.startswith("nvlink") else float(mesh["xgmi_fraction"])
    return usable * (n - 1) / max(fabric.domain_size - 1, 1)


def domain_time(c: Coefficients, fabric: Fabric, op: str, n: int, library: str, element_bytes: int) -> Domain:
    """Seconds of ``op`` for ``n`` ranks of one domain (n >= 2), device time with a CUDA graph's launch."""
    if op == "broadcast":
        # A pipelined ring moves S over every link where all-gather moves S (n-1)/n.
        whole = domain_time(c, fabric, "all_gather", n, "nccl", element_bytes)
        return whole._replace(
            seconds=np.interp(KNOTS * n / (n - 1), KNOTS, whole.seconds),
            slope_s_per_byte=whole.slope_s_per_byte * n / (n - 1),
        )
    if op == "all_reduce" and library == "nccl" and n <= _MEASURED_GROUPS[-1]:
        # Holds in every table; scaling to another link rate must not undo it.
        whole = _op_time(c, fabric, op, n, library, element_bytes)
        part = _op_time(c, fabric, "reduce_scatter", n, library, element_bytes)
        return whole._replace(seconds=np.maximum(whole.seconds, part.seconds))
    return _op_time(c, fabric, op, n, library, element_bytes)


def _op_time(c: Coefficients, fabric: Fabric, op: str, n: int, library: str, element_bytes: int) -> Domain:
    name, rate = link_class(c, fabric, n)
    if name == "pcie":
        seconds = _pcie(c.constants["pcie"], c.constants["fill_bytes"], fabric, op, n, rate)
        return Domain(_finished(seconds), _last_slope(seconds), "derived", name)
    key, groups = _table_key(c.tables, name, library, op, element_bytes)
    source = c.constants["classes"][key.split(".")[0]]
    table = c.tables[key]
    ratio = source["link_bytes_per_s"] / rate
    rows = [_scaled(row, ratio) for row in table]
    if op == "send_recv" and fabric.topology == "mesh" and fabric.domain_size == 2:
        rows = [row * c.constants["mesh"]["bridge_send"] for row in rows]
    across = n if fabric.topology != "torus" else min(n, max(8, round(2 * math.sqrt(n))))
    seconds = _over_group(c, rows, groups, across, op, has_nvls=name in SWITCH_REDUCTION)
    seconds = _finished(seconds)
    basis = _basis(fabric, source, key, name, ratio, n)
    return Domain(seconds, _last_slope(seconds), basis, name)


def _basis(fabric: Fabric, source: dict[str, Any], key: str, name: str, ratio: float, n: int) -> Basis:
    """Fitted on this very accelerator, on its link generation (derived), or on another (specified)."""
    if n > 8:
        return "extrapolated"
    words = re.split(r"[\s(]+", fabric.accelerator)
    if abs(ratio - 1) < 0.02 and any(a in words for a in source["measured_on"]) and fabric.topology != "mesh":
        return "fitted"
    same = key.startswith(name) and (fabric.link_kind.lower() == name or name.startswith(("pcie", "oneccl")))
    return "derived" if same else "specified"


def _table_key(tables: Mapping[str, F64], name: str, library: str, op: str, element_bytes: int) -> tuple[str, tuple[int, ...]]:
    """Name of the nearest measured table and its group sizes: this library's, else NCCL's; this class's, else
    its kin's."""
    if op == "send_recv":
        kin = {"nvlink5": "nvlink4"}.get(name, name)
        key = f"{kin}.nccl.send_recv"
        return (key if key in tables else "nvlink3.nccl.send_recv"), (2,)
    default = "oneccl" if name == "oneccl" else "nccl"
    tail = op + (".int8" if element_bytes == 1 and op in ("all_reduce", "reduce_scatter") else "")
    for which in ((library if op == "all_reduce" else default), default):
        for candidate in (f"{name}.{which}.{tail}", f"{name}.{which}.{op}"):
            if candidate in tables:
                return candidate, _MEASURED_GROUPS[: tables[candidate].shape[0]]
    return f"nvlink3.nccl.{op}", _MEASURED_GROUPS


def _scaled(row: F64, ratio: float) -> F64:
    """[K] curve of a measured [24] row with its wire part ``ratio`` times as slow."""
    slope = min((row[-1] - row[-2]) / (MEASURED_SIZES[-1] - MEASURED_SIZES[-2]), float(np.min(row / MEASURED_SIZES)))
    rest = row - slope * MEASURED_SIZES
    body = rest + slope * MEASURED_SIZES * ratio
    tail = body[-1] + slope * ratio * (_ABOVE - MEASURED_SIZES[-1])
    return np.concatenate([body[:1], body, tail])


def _over_group(c: Coefficients, rows: list[F64], groups: tuple[int, ...], n: int, op: str, *, has_nvls: bool) -> F64:
    """[K] the curve of ``n`` ranks from those of ``groups``."""
    if n in groups or len(groups) == 1:
        return rows[groups.index(n)] if n in groups else rows[0]
    if n < groups[-1]:
        upper = next(i for i, g in enumerate(groups) if g > n)
        low, high = groups[upper - 1], groups[upper]
        w = math.log(n / low) / math.log(high / low)
        return np.exp((1 - w) * np.log(rows[upper - 1]) + w * np.log(rows[upper]))
    top, below = groups[-1], groups[-2]
    steps = (n - top) / (top - below) if op in _RING_OPS else math.log(n / top) / math.log(top / below)
    latency = max(float(rows[-1][0] - rows[-2][0]), 0.0) * steps
    # In-switch reduction moves S however many ranks; a ring moves more as n grows.
    wire = 1.0 if has_nvls and op == "all_reduce" else bus_factor(op, n) / bus_factor(op, top)
    # A full pipeline needs every step once: NCCL's own constant for a Simple step over NVLink.
    per_rank = c.constants["ring_step_s"] * (2 if op == "all_reduce" else 0 if op == "all_to_all" else 1)
    fill = per_rank * (n - top) * np.minimum(1.0, KNOTS / c.constants["fill_bytes"])
    return rows[-1] * wire + latency + fill


def _pcie(c: dict[str, Any], fill_bytes: float, fabric: Fabric, op: str, n: int, rate: float) -> F64:
    """[K] NCCL over PCIe with peer access; on cards without it (GeForce) the bytes are staged in host
    memory."""
    key = op if op in c["low_s"] else "all_gather"
    most = int(c["groups"][-1])
    steps = [math.log2(g) for g in c["groups"]]
    low, simple = (_between(math.log2(n), steps, c[which][key]) for which in ("low_s", "simple_s"))
    if n > most:
        low, simple = low * n / most, simple * n / most
    wire = KNOTS * bus_factor(op, n) / rate
    if is_staged("pcie", fabric.accelerator):
        return c["staged_latency"] * low + wire / _staged_share(c, fill_bytes, n)
    return np.minimum(low + wire / c["low_rate"], simple + wire / c["simple_rate"])


def _staged_share(c: dict[str, Any], fill_bytes: float, n: int) -> F64:
    """[K] share of the link's rate when every byte goes through host memory: NCCL opens more channels for larger messages."""
    few = _between(math.log2(n), [math.log2(g) for g in c["staged_groups"]], c["staged_rate"])
    many = c["simple_rate"] * _between(n, c["geforce_groups"], c["geforce_fraction"])
    opened = np.log(np.clip(KNOTS / _ONE_CHANNEL, 1.0, None)) / math.log(fill_bytes / _ONE_CHANNEL)
    return few * (many / few) ** np.minimum(opened, 1.0)


_ONE_CHANNEL = 2.0**20
"""Payload up to which staged bytes have their smallest rate: four RTX 3090 stay at it to 960 KiB."""


def _between(x: float, at: list[float], values: list[float]) -> float:
    return float(np.interp(x, np.array(at, dtype=np.float64), np.array(values, dtype=np.float64)))


def _last_slope(seconds: F64) -> float:
    return float((seconds[-1] - seconds[-2]) / (KNOTS[-1] - KNOTS[-2]))


def _finished(seconds: F64) -> F64:
    return np.maximum.accumulate(seconds)


def log_sigmas(c: Coefficients, name: str, library: str, basis: Basis) -> F64:
    """[K] residual log standard deviation of a class by payload size (small, middle, large).

    A borrowed curve (specified, extrapolated) is as wrong as one NVLink generation is for the next.
    """
    table: dict[str, list[float]] = c.constants["log_sigma"]
    values = table.get(f"{name}.{library}") or table.get(name) or table["other"]
    if basis not in ("fitted", "derived"):
        values = [max(pair) for pair in zip(values, table["generation"], strict=True)]
    small, middle, large = values
    return np.select([KNOTS < 2.0**16, KNOTS < 2.0**23], [small, middle], large)
