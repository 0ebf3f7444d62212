"""Host memory: whether what is offloaded fits beside the system."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpuwise.facts.hardware.systems import Cluster
from gpuwise.facts.models.architecture import Architecture
from gpuwise.predict.columns import Columns
from gpuwise.predict.memory.device import host_limit_bytes
from gpuwise.predict.memory.saved import F64, SavedBytes
from gpuwise.predict.parallel.shards import stages
from gpuwise.workload.optimizer import frozen_bytes, parameter_bytes
from gpuwise.workload.strategy import RECOMPUTES, Strategy
from gpuwise.workload.transformer.parameters import adapter_parameters, count_parameters


def host_bytes(
    arch: Architecture, cluster: Cluster, saved: SavedBytes[F64], n_layers: float, c: Columns, at: NDArray[np.int64]
) -> F64:
    """Pinned bytes that a host needs for its accelerators: master weights and optimizer states (with a gradient buffer) of
    trained parameters under optimizer offload, weights under that of parameters, saved activations under activation offload."""
    total = np.zeros(1)
    if (c.offload_optimizer > 0).any() or c.base.offload_parameters:
        shape, b = stages(arch, c, n_layers), parameter_bytes(c.base)
        dense = np.maximum(shape.dense[0], shape.dense[2]) * trained_share(arch, c.base)
        expert = shape.expert[0] * trained_share(arch, c.base)
        ranks = np.where(c.sharding == 0, 1, c.dp * c.cp)
        replicas = np.where(c.sharding == 0, 1, np.maximum(c.dp * c.cp * c.tp // c.expert_ranks, 1))
        parameters = dense / ranks + expert / replicas
        wide = b.master or b.weight
        copies = b.weight if c.base.offload_parameters else 0.0
        kept = wide + b.state + b.gradient + (copies if b.master else 0.0)
        total = total + np.where(c.offload_optimizer > 0, parameters * kept, parameters * copies)
        if c.base.lora_rank:
            frozen = parameters * (1 / trained_share(arch, c.base) - 1) * frozen_bytes(c.base)
            total = total + np.where(c.offloads_parameters, frozen, 0.0)
    if (c.offload_activations > 0).any():
        layer = sum(np.where(c.recompute == i, saved.layer[policy][at], 0.0) for i, policy in enumerate(RECOMPUTES))
        total = total + np.where(c.offload_activations > 0, n_layers * layer, 0.0)
    return total * min(cluster.system.count, cluster.n_accelerators)


def host_bytes_fit(
    arch: Architecture, cluster: Cluster, saved: SavedBytes[F64], n_layers: float, c: Columns, at: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """True where the host can hold what is offloaded to it."""
    if not ((c.offload_optimizer > 0).any() or (c.offload_activations > 0).any() or c.base.offload_parameters):
        return np.ones(1, bool)
    return host_bytes(arch, cluster, saved, n_layers, c, at) <= host_limit_bytes(cluster)


def trained_share(arch: Architecture, base: Strategy) -> float:
    """Trained share of the parameters: all, or the adapters beside frozen weights."""
    if not base.lora_rank:
        return 1.0
    return adapter_parameters(arch, base.lora_targets, base.lora_rank) / count_parameters(arch).total
