"""A cluster as values for JSON."""

from __future__ import annotations

from gpuwise.facts.hardware.systems import Cluster
from gpuwise.predict.memory.device import usable_bytes


def cluster_document(cluster: Cluster) -> dict[str, object]:
    """Its accelerators, systems and memory: ``device_bytes`` of an accelerator, ``usable_bytes`` for one process."""
    return {
        "label": cluster.label,
        "accelerator": cluster.accelerator.id,
        "system": cluster.system.id,
        "accelerators": cluster.n_accelerators,
        "systems": cluster.n_systems,
        "device_bytes": cluster.accelerator.memory_bytes,
        "usable_bytes": usable_bytes(cluster.accelerator),
    }
