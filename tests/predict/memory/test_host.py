"""Host memory of what is offloaded, by hand: each byte of the model once, and every rank's activations."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.architecture import Architecture
from gpuwise.facts.models.catalogue import find_model
from gpuwise.predict.columns import Columns
from gpuwise.predict.memory.device import host_limit_bytes
from gpuwise.predict.memory.host import host_bytes, host_bytes_fit
from gpuwise.units import GIB
from gpuwise.workload.strategy import RECOMPUTES, Strategy
from gpuwise.workload.transformer.parameters import count_parameters

DENSE, SPARSE = find_model("llama-3.2-1b"), find_model("mixtral-8x7b")
CLUSTER = find_cluster("8xh100-sxm")
FP32_AND_MOMENTS = 4 + 8
KEPT = {policy: np.array([float(10**i)]) * GIB for i, policy in enumerate(RECOMPUTES)}
SAVED = cast(Any, SimpleNamespace(layer=KEPT))


def on_host(arch: Architecture, on: str = "8xh100-sxm", **layout: Any) -> float:
    found = host_bytes(arch, find_cluster(on), SAVED, arch.n_layers, Columns.from_strategies([Strategy(**layout)]), np.array([0]))
    return float(np.max(found))


@pytest.mark.parametrize("sharding", ["zero1", "zero2", "zero3"])
def test_states_of_a_model_are_on_its_host_once(sharding: str) -> None:
    layout = {"stack": "deepspeed", "sharding": sharding, "offload_optimizer": True}
    for gradient, form in ((4, "fp32"), (2, "bf16")):
        each = FP32_AND_MOMENTS + gradient
        total = count_parameters(DENSE).total
        assert on_host(DENSE, dp=8, gradient_dtype=form, **layout) == pytest.approx(each * total, rel=1e-9)
        # two hosts of eight share the states of sixteen ranks
        assert on_host(DENSE, "16xh100-sxm", dp=16, gradient_dtype=form, **layout) == pytest.approx(each * total / 2, rel=1e-9)
    parameters = on_host(DENSE, dp=8, offload_parameters=True, **layout) - on_host(DENSE, dp=8, **layout)
    assert parameters == pytest.approx(2 * count_parameters(DENSE).total, rel=1e-9)


def test_two_stages_have_the_shared_table_on_the_host_twice() -> None:
    count = count_parameters(DENSE)
    found = on_host(DENSE, dp=4, pp=2, sharding="zero1", offload_optimizer=True)
    assert found == pytest.approx((FP32_AND_MOMENTS + 4) * (count.total + count.embedding), rel=1e-4)


def test_without_sharding_every_rank_has_its_own() -> None:
    whole = on_host(DENSE, dp=1, offload_optimizer=True, on="1xh100-sxm")
    assert on_host(DENSE, dp=8, offload_optimizer=True) == pytest.approx(8 * whole) and whole > 15 * count_parameters(DENSE).total


@pytest.mark.parametrize(("dp", "tp", "ep"), [(8, 1, 1), (8, 1, 8), (8, 1, 2), (4, 2, 4), (2, 4, 2)])
def test_experts_are_on_the_host_once_however_they_are_divided(dp: int, tp: int, ep: int) -> None:
    """What a tensor group holds twice are norms and routers: a thousandth of the model."""
    found = on_host(SPARSE, dp=dp, tp=tp, ep=ep, sharding="zero1", offload_optimizer=True)
    assert found == pytest.approx((FP32_AND_MOMENTS + 4) * count_parameters(SPARSE).total, rel=1e-3)


def test_activations_of_every_rank_by_what_is_kept() -> None:
    for policy, kept in KEPT.items():
        found = on_host(DENSE, dp=8, stack="torchtune", recompute=policy, offload_activations=True)
        assert found == pytest.approx(8 * DENSE.n_layers * float(kept[0]))
    assert on_host(DENSE, dp=8) == 0.0


def test_what_fits_is_four_fifths_of_the_host() -> None:
    assert host_limit_bytes(CLUSTER) == pytest.approx(0.8 * CLUSTER.system.host_memory_bytes)
    layout = {"dp": 8, "stack": "torchtune", "offload_activations": True}
    small, large = (Columns.from_strategies([Strategy(recompute=r, **layout)]) for r in (RECOMPUTES[0], RECOMPUTES[-1]))
    fits = [bool(np.all(host_bytes_fit(DENSE, CLUSTER, SAVED, DENSE.n_layers, c, np.array([0])))) for c in (small, large)]
    assert fits == [True, False]
