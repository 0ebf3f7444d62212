"""``slurm:gpu``, ``k8s:pool=h100``, ``16xslurm:gpu:a100``: the nodes of a scheduler among the names of devices.

They are read by :mod:`gpuwise.machine.schedulers`, which the package registers here on import: facts do not ask programs.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuwise.facts.hardware.systems import Cluster

SCHEDULED = re.compile(r"\s*(?:(\d{1,6})\s*x\s*)?(slurm|k8s|kubernetes)(?::([^@]*))?(?:@(.+))?\s*", re.IGNORECASE | re.DOTALL)
"""Number of GPUs, scheduler, part of it, file."""
_read: list[Callable[[str], Cluster]] = []


def read_with(read: Callable[[str], Cluster]) -> None:
    """Register ``read``, which returns the cluster of such a name."""
    _read[:] = [read]


def is_scheduled(text: str) -> bool:
    """Whether ``text`` names a scheduler's nodes."""
    return SCHEDULED.fullmatch(text) is not None


def names_nodes_file(text: str) -> bool:
    """Whether ``text`` names a scheduler's nodes in a file (``slurm:gpu@nodes.txt``)."""
    match = SCHEDULED.fullmatch(text)
    return match is not None and match[4] is not None


def scheduled_cluster(text: str) -> Cluster:
    """The GPUs of the nodes that ``text`` names. Raises what :func:`gpuwise.machine.schedulers.scheduled_cluster` raises."""
    return _read[0](text)
