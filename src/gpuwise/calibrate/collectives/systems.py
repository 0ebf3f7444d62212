"""The systems that collective measurements ran on."""

from __future__ import annotations

from functools import cache

from gpuwise.errors import UnpredictableError
from gpuwise.facts.hardware.accelerators import accelerators
from gpuwise.facts.hardware.naming import find_accelerator
from gpuwise.facts.hardware.systems import System, default_system
from gpuwise.units import GIGA

_IB400, _EFA400, _NONE = (50 * GIGA, "infiniband"), (50 * GIGA, "efa"), (0.0, "none")

BOXES: dict[str, tuple[str, str, int, tuple[float, str]]] = {
    # box: accelerator, topology, domain, (network bytes/s per accelerator, kind)
    "a100_sxm": ("a100-sxm-80gb", "switch", 8, _NONE),
    "h100_sxm": ("h100-sxm-80gb", "switch", 8, _NONE),
    "h200_sxm": ("h200-sxm-141gb", "switch", 8, _NONE),
    "b200_sxm": ("b200-sxm", "switch", 8, _NONE),
    "b300": ("b300-sxm", "switch", 8, _NONE),
    "b300_sxm": ("b300-sxm", "switch", 8, _NONE),
    "gb200": ("gb200", "switch", 72, _IB400),
    "gb300": ("gb300", "switch", 72, (100 * GIGA, "infiniband")),
    # No peer access between cards on different roots there: 20 GB/s bus bandwidth in a pair, 5 on 4, 1.4 on
    # 8.
    "l40s": ("l40s", "pcie-host", 1, _NONE),
    "l40s peer": ("l40s", "pcie", 1, _NONE),
    "rtx_pro_6000_server": ("rtx-pro-6000-blackwell-server", "pcie", 1, _NONE),
    "b60": ("arc-pro-b60", "pcie", 1, _NONE),
    "vtrain A100": ("a100-sxm-80gb", "switch", 8, _NONE),
    "vtrain V100": ("v100-sxm-16gb", "mesh", 8, _NONE),
    "a100_dgx": ("a100-sxm-80gb", "switch", 8, _NONE),
    "h100_dgx": ("h100-sxm-80gb", "switch", 8, _IB400),
    "a100_pairwise_nvlink": ("a100-pcie-80gb", "mesh", 2, _NONE),
    "h100_pairwise_nvlink": ("h100-nvl-94gb", "mesh", 2, _NONE),
    # Called a pair with NVLink, but the two that were measured reach 4 GB/s: they meet in host memory.
    "a40_pairwise_nvlink": ("a40", "pcie-host", 1, _NONE),
    "8xH200 1 node": ("h200-sxm-141gb", "switch", 8, _NONE),
    "8xB200 1 node": ("b200-sxm", "switch", 8, _NONE),
    "8xA100 1 node": ("a100-sxm-80gb", "switch", 8, _NONE),
    "4x8xB200 EFA 4 nodes": ("b200-sxm", "switch", 8, _EFA400),
    "h100 efa 400": ("h100-sxm-80gb", "switch", 8, _EFA400),
    "h100 infiniband 400": ("h100-sxm-80gb", "switch", 8, _IB400),
    "h20 infiniband 400": ("h20-96gb", "switch", 8, _IB400),
    "a100 infiniband 100": ("a100-sxm-80gb", "switch", 8, (12.5 * GIGA, "infiniband")),
    "gb200 nvl72": ("gb200", "switch", 72, _IB400),
    "b200 efa 400": ("b200-sxm", "switch", 8, _EFA400),
    "b300 efa 800": ("b300-sxm", "switch", 8, (100 * GIGA, "efa")),
    "v100 mesh": ("v100-sxm-16gb", "mesh", 8, _NONE),
}


@cache
def system_of(box: str) -> System:
    """The system called ``box`` in the tables; a box without a description is the default one of the accelerator in its name.

    Raises UnknownNameError or AmbiguousNameError if the name contains no accelerator.
    """
    if box not in BOXES:
        return default_system(find_accelerator(box.replace("_", " "), prefer=("sxm", "80gb")))
    accelerator_id, topology, domain, (network, kind) = BOXES[box]
    accelerator = accelerators()[accelerator_id]
    pcie = topology.startswith("pcie")
    link = accelerator.pcie_bytes_per_s if pcie else accelerator.link_bytes_per_s
    if link is None:
        raise UnpredictableError("no link rate for accelerator", f"{accelerator.name} has no known link rate")
    return System(
        box,
        box,
        accelerator,
        4 if domain == 72 else 8,
        topology,
        "pcie" if pcie else accelerator.link_kind or "pcie",
        link,
        domain,
        network,
        kind,
        0.0,
        "of the measurement",
    )
