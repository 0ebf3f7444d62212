"""The changes that can be put on a running script (levers): those of the registry, in the order in which they are tried."""

from __future__ import annotations

from gpuwise.workload.changes.registry import CHANGES, ChangeKind

LEVERS: tuple[ChangeKind, ...] = tuple(kind for kind in CHANGES if kind.is_lever)
BY_NAME = {lever.name: lever for lever in LEVERS}
