"""Small settings for searches that can also be done one strategy at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.hardware.systems import Cluster
from gpuwise.facts.models.architecture import Architecture
from gpuwise.facts.models.catalogue import find_model
from gpuwise.plan.space.conditions import Setting
from gpuwise.workload.strategy import Strategy


@pytest.fixture(scope="session")
def small() -> Architecture:
    """Twelve layers of eight heads: small enough to walk every strategy."""
    return replace(find_model("llama-3.1-8b"), n_layers=12, hidden=2048, ffn=8192, heads=16, kv_heads=4, max_seq_len=4096)


@pytest.fixture(scope="session")
def experts() -> Architecture:
    return find_model("mixtral-8x7b")


@pytest.fixture(scope="session")
def node() -> Cluster:
    return find_cluster("8xA100-SXM-80GB")


@pytest.fixture(scope="session")
def nodes() -> Cluster:
    return find_cluster("16xA100-SXM-80GB")


def setting_for(arch: Architecture, cluster: Cluster, *, batch: int = 64, **changes: object) -> Setting:
    return Setting.of(arch, cluster, Strategy(**changes), 2048, batch)  # type: ignore[arg-type]
