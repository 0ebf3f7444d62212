"""Links between the accelerators of a host as a person states them: ``pcie3x8``, ``nvlink``, ``no-p2p``, or a file with what
``nvidia-smi topo -m`` prints."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from gpuwise.errors import InputError
from gpuwise.facts.hardware.accelerators import PCIE_BYTES_PER_S
from gpuwise.facts.hardware.systems import Cluster, System, link_generations
from gpuwise.files import read_text
from gpuwise.units import GIGA

EXAMPLES = "write pcie3x8, pcie4x16, nvlink or no-p2p, or name a file with the output of `nvidia-smi topo -m`"
_PCIE = re.compile(r"pcie-?([3-6])(?:\.0)?-?x([0-9]{1,2})", re.IGNORECASE)
_GPU = re.compile(r"GPU\d+")
_PATHS = ("PIX", "PXB", "PHB", "NODE", "SYS")
"""What nvidia-smi calls a path without NVLink, from one PCIe switch to two sockets."""
_GEFORCE = re.compile(r"GeForce|\bRTX [2345]0[5-9]0|\bGTX|TITAN", re.IGNORECASE)
BRIDGED = 2
"""Cards that an NVLink bridge joins."""


def with_links(cluster: Cluster, text: str | None) -> Cluster:
    """``cluster`` with the links that ``text`` states inside each host (None: the system's). Raises InputError for other texts
    and for links that its accelerator cannot have."""
    if text is None:
        return cluster
    system = cluster.system
    if match := _PCIE.fullmatch(text.strip()):
        lanes = f"{match[1]}.0 x{match[2]}"
        if lanes not in PCIE_BYTES_PER_S:
            raise InputError(f"PCI Express {lanes} is not known", hint="one of " + ", ".join(PCIE_BYTES_PER_S))
        return replace(cluster, system=_on_pcie(system, PCIE_BYTES_PER_S[lanes]))
    if text == "nvlink":
        return replace(cluster, system=_on_nvlink(system, min(BRIDGED, cluster.n_accelerators)))
    if text == "no-p2p":
        return replace(cluster, system=without_peer_access(system))
    rows, n = _matrix(text), min(cluster.n_accelerators, system.count)
    if len(rows) < n:
        raise InputError(f"the matrix has {len(rows)} GPUs, {cluster.label} has {n} in a host", hint="print it on that machine")
    return replace(cluster, system=_as_printed(system, rows))


def link_words(cluster: Cluster) -> str:
    """The links between the accelerators of one host: ``NVLink 3 in pairs, 56 GB/s each way``; empty for single ones."""
    system, n = cluster.system, min(cluster.n_accelerators, cluster.system.count)
    if n == 1 or system.topology == "single":
        return ""
    kind = re.sub(r"(?i)nvlink", "NVLink ", system.link_kind) if system.linked else "PCI Express"
    if is_staged(system.topology, system.accelerator.name):
        kind += " through the host's memory"
    elif system.linked and system.domain_size < n:
        kind += " in pairs" if system.domain_size == BRIDGED else f" in groups of {system.domain_size}"
    return f"{kind}, {system.link_bytes_per_s / GIGA:.3g} GB/s each way"


def is_staged(topology: str, accelerator: str) -> bool:
    """Whether bytes between cards called ``accelerator`` go through the host's memory: GeForce cards do not reach each other over
    PCI Express."""
    return topology == "pcie-host" or (topology == "pcie" and _GEFORCE.search(accelerator) is not None)


def without_peer_access(system: System) -> System:
    """``system`` whose devices reach each other through the host's memory alone (NCCL_P2P_DISABLE=1)."""
    rate = system.accelerator.pcie_bytes_per_s or system.link_bytes_per_s
    topology = "pcie" if is_staged("pcie", system.accelerator.name) else "pcie-host"
    return replace(system, topology=topology, link_kind="pcie", link_bytes_per_s=rate)


def _on_pcie(system: System, rate: float) -> System:
    """``system`` with slots of ``rate``, for the links and the copies to the host; NVLink stays."""
    mine = system.accelerator
    if mine.pcie_bytes_per_s is None:
        raise InputError(f"{mine.name} has no PCI Express", hint="leave out --link")
    slower = replace(mine, pcie_bytes_per_s=min(rate, mine.pcie_bytes_per_s))
    if system.linked:
        return replace(system, accelerator=slower)
    return replace(system, accelerator=slower, link_bytes_per_s=slower.pcie_bytes_per_s or rate)


def _on_nvlink(system: System, domain: int, rate: float | None = None) -> System:
    mine = system.accelerator
    if not (mine.link_kind or "").startswith("nvlink") or mine.link_bytes_per_s is None:
        raise InputError(f"{mine.name} has no NVLink", hint="leave out --link, or state its slots, like --link pcie4x8")
    if system.linked and system.domain_size >= domain and (rate is None or rate >= system.link_bytes_per_s):
        return system
    link = min(rate or mine.link_bytes_per_s, mine.link_bytes_per_s)
    return replace(system, topology="mesh", domain_size=domain, link_kind=mine.link_kind or "", link_bytes_per_s=link)


LONGEST_PATH = 255
"""Characters that a file's name may have."""


def _matrix(text: str) -> Mapping[str, Sequence[str]]:
    """The rows of ``nvidia-smi topo -m``, a path for each GPU. Raises InputError where ``text`` is neither its output nor a file
    of it."""
    named = "this is"
    if "\n" not in text:
        if len(text) > LONGEST_PATH or not os.path.lexists(text):
            raise InputError(f"no links are called {text[:LONGEST_PATH]!r}, and no file", hint=EXAMPLES)
        named, text = f"{text} is", read_text(Path(text))
    lines = [line.split() for line in re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()]
    names = max([[], *map(_leading, lines)], key=len)
    rows = {words[0]: words[1 : len(names) + 1] for words in lines if words and words[0] in names and len(_leading(words)) == 1}
    good = all(len(r) == len(names) and all(p in ("X", *_PATHS) or re.fullmatch(r"NV\d+", p) for p in r) for r in rows.values())
    if not names or list(rows) != names or not good:
        raise InputError(f"{named} not the output of `nvidia-smi topo -m`", hint="nvidia-smi topo -m > topology.txt")
    return rows


def _leading(words: Sequence[str]) -> list[str]:
    """The GPUs that a line begins with: several in the heading, one in a row."""
    found: list[str] = []
    for word in words:
        if not _GPU.fullmatch(word):
            break
        found.append(word)
    return found


def _as_printed(system: System, rows: Mapping[str, Sequence[str]]) -> System:
    """``system`` with the links of a matrix: NVLink where it joins GPUs, all of them or groups, else PCI Express."""
    joined = [[int(path[2:]) for path in row if path.startswith("NV")] for row in rows.values()]
    mine = system.accelerator
    if not all(joined):
        if mine.pcie_bytes_per_s is None:
            raise InputError(f"{mine.name} has no PCI Express", hint=EXAMPLES)
        return replace(system, topology="pcie", link_kind="pcie", link_bytes_per_s=mine.pcie_bytes_per_s)
    generation = link_generations().get(mine.link_kind or "")
    if generation is None:
        raise InputError(f"{mine.name} has no NVLink: the matrix is of other GPUs", hint=EXAMPLES)
    # behind a switch every pair shows all of a card's lanes, else each its own
    lanes = min(sum(row) if sum(row) <= generation.link_count else row[0] for row in joined)
    return _on_nvlink(system, 1 + min(len(row) for row in joined), lanes * generation.lane_bytes_per_s)
