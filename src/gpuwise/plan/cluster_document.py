"""A cluster as values for JSON."""

from __future__ import annotations

from gpuwise.errors import DataError, InputError
from gpuwise.facts.hardware.accelerators import accelerators
from gpuwise.facts.hardware.links import link_words
from gpuwise.facts.hardware.systems import Cluster, System, system_named
from gpuwise.predict.memory.device import usable_bytes

PLAN_VERSION = 1
"""Version of the plan file format (read by ``plan.plan_file``); a file without a version is version 1."""


def cluster_document(cluster: Cluster) -> dict[str, object]:
    """Its accelerators, systems and memory: ``device_bytes`` of an accelerator, ``usable_bytes`` for one process."""
    return {
        "label": cluster.label,
        "accelerator": cluster.accelerator.id,
        "system": cluster.system.id,
        "accelerators": cluster.n_accelerators,
        "accelerators_per_system": cluster.system.count,
        "systems": cluster.n_systems,
        "device_bytes": cluster.accelerator.memory_bytes,
        "usable_bytes": usable_bytes(cluster.accelerator),
        "links": link_words(cluster),
    }


def own_hardware(cluster: Cluster) -> dict[str, System]:
    """``hardware`` of a plan file: the system in full where the catalogue has no such one by its names, else nothing."""
    system = cluster.system
    try:
        named = system_named(system.id, accelerators()[system.accelerator.id], system.count)
    except (InputError, DataError, KeyError):
        return {"hardware": system}
    # accelerators are equal by all their fields, also where one was measured and the other was not
    return {} if named == system else {"hardware": system}
