from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.hardware.systems import Cluster
from gpuwise.facts.models.architecture import Architecture
from gpuwise.facts.models.catalogue import find_model
from gpuwise.plan.space import sweep as sweeps
from gpuwise.plan.space.conditions import Setting
from gpuwise.plan.space.strategies import blocks, default_space, full_space
from gpuwise.plan.space.sweep import SQUEEZED, TIE, TIGHT, UNLIKELY, Candidates, Sweep, least_bytes_on, sweep
from gpuwise.predict.columns import Columns
from gpuwise.predict.memory.host import host_bytes_fit
from gpuwise.predict.step.evaluate import evaluate
from gpuwise.predict.step.training import TrainingEstimate, estimate
from gpuwise.workload.optimizer import on_host
from gpuwise.workload.strategy import Strategy

SEQ_LEN = 2048


def _one_at_a_time(arch: Architecture, cluster: Cluster, strategies: list[Strategy]) -> list[tuple[float, float, bool]]:
    """(seconds it is ranked by, least bytes, fits) of each strategy through the public scalar estimate."""
    found: list[tuple[float, float, bool]] = []
    for s in strategies:
        e = estimate(arch, cluster, s, seq_len=SEQ_LEN)
        c = Columns.from_strategies([s])
        done = evaluate(arch, cluster.system, c, SEQ_LEN)
        host = bool(np.all(host_bytes_fit(arch, cluster, done.costs.saved, done.costs.n_layers, c, done.point_index)))
        assert e.fits == (host and e.needed_bytes.expected <= e.device_bytes)
        found.append((_rank_s(e), e.needed_bytes.expected, e.fits))
    return found


def _rank_s(e: TrainingEstimate) -> float:
    """The step time, with what is tight or in host memory 2 % behind and what is less than 90 % likely to fit behind all."""
    squeezed = e.memory_bytes.expected > (1 - TIGHT) * e.device_bytes or on_host(e.strategy)
    return e.step_time_s.expected * (SQUEEZED if squeezed else 1.0) * (UNLIKELY if e.fit_probability < 0.9 else 1.0)


def _swept(found: Candidates, done: Sweep) -> list[tuple[Strategy, float, float]]:
    return [(found.strategy(done.blocks, i), float(found.rank_s[i]), float(found.memory_bytes[i])) for i in range(len(found))]


@pytest.mark.parametrize(("kind", "batch"), [("small", 4), pytest.param("experts", 8, marks=pytest.mark.slow)])
def test_the_optimum_is_that_of_evaluating_one_strategy_at_a_time(
    kind: str, batch: int, request: pytest.FixtureRequest, node: Cluster
) -> None:
    arch: Architecture = request.getfixturevalue(kind)
    base = Strategy()
    setting = Setting.of(arch, node, base, SEQ_LEN, batch)
    space = replace(
        default_space(setting),
        micro_batch=(1, 2),
        virtual_stages=(1, 2),
        ep=(1, 8),
        tp=(1, 4),
        pp=(1, 2),
        cp=(1,),
    )
    products = blocks(setting, space, base)
    done = sweep(arch, node, products, SEQ_LEN)
    listed = [b.columns.strategy(i) for b in products for i in range(len(b.columns))]
    scalar = _one_at_a_time(arch, node, listed)
    assert done.n_strategies == len(listed)
    assert done.n_fit == sum(fits for _, _, fits in scalar)

    fitting = [(t, m, s) for (t, m, fits), s in zip(scalar, listed, strict=True) if fits]
    fastest = min(t for t, _, _ in fitting)
    least = min(m for t, m, _ in fitting if t <= fastest * (1 + TIE))
    best, seconds, memory = _swept(done.rows, done)[0]
    assert seconds == pytest.approx(fastest, rel=2 * TIE)
    assert memory == pytest.approx(least, rel=1e-9)
    assert any(s == best for t, m, s in fitting if t <= fastest * (1 + TIE) and m <= least * (1 + 1e-9))

    assert done.smallest.memory_bytes[0] == pytest.approx(min(m for _, m, _ in scalar), rel=1e-9)

    def beaten(t: float, m: float) -> bool:
        """By a strategy that is better by more than the rounding of sums of several orders."""
        return any(
            (t2 < t * (1 - 1e-9) and m2 <= m * (1 + 1e-12)) or (t2 <= t * (1 + 1e-12) and m2 < m * (1 - 1e-9))
            for t2, m2, _ in fitting
        )

    front = {(round(t, 9), round(m)) for _, t, m in _swept(done.front, done)}
    by_hand = {(round(t, 9), round(m)) for t, m, _ in fitting if not beaten(t, m)}
    assert front == by_hand


def test_every_estimate_of_a_product_is_that_of_its_strategy(experts: Architecture, nodes: Cluster) -> None:
    base = Strategy()
    setting = Setting.of(experts, nodes, base, SEQ_LEN, 32)
    done = sweep(experts, nodes, blocks(setting, full_space(setting), base), SEQ_LEN)
    rng = np.random.default_rng(0)
    for i in rng.choice(len(done.rows), 12, replace=False):
        s = done.rows.strategy(done.blocks, int(i))
        e = estimate(experts, nodes, s, seq_len=SEQ_LEN)
        assert _rank_s(e) == pytest.approx(done.rows.rank_s[i], rel=1e-9)
        assert e.needed_bytes.expected == pytest.approx(done.rows.memory_bytes[i], rel=1e-9)
        assert e.fits


def test_rows_are_ranked_and_the_front_is_monotone(small: Architecture, nodes: Cluster) -> None:
    base = Strategy()
    setting = Setting.of(small, nodes, base, SEQ_LEN, 64)
    done = sweep(small, nodes, blocks(setting, full_space(setting), base), SEQ_LEN)
    assert np.all(np.diff(done.rows.rank_s[1:]) >= -1e-12)
    assert np.all(np.diff(done.front.rank_s) >= 0)
    assert np.all(np.diff(done.front.memory_bytes) < 0)
    assert done.front.rank_s[0] == pytest.approx(done.rows.rank_s[0], rel=2 * TIE)
    assert 0 < done.n_fit <= done.n_strategies


def test_nothing_fits_leaves_the_smallest() -> None:
    arch, card = find_model("llama-3.1-70b"), find_cluster("4090")
    base = Strategy(stack="compiled-fsdp")
    setting = Setting.of(arch, card, base, SEQ_LEN, 8)
    done = sweep(arch, card, blocks(setting, default_space(setting), base), SEQ_LEN)
    assert len(done.rows) == 0 and len(done.front) == 0 and done.n_fit == 0
    assert done.smallest.memory_bytes[0] > card.accelerator.memory_bytes


@pytest.mark.parametrize(
    ("model", "on", "changes"),
    [
        ("llama-3.1-8b", "1xRTX 4090", {"stack": "deepspeed"}),
        ("llama-3.1-8b", "8xA100-SXM-80GB", {"stack": "megatron-core", "gradient_dtype": "bf16", "optimizer": "adamw-bf16"}),
        ("llama-3.1-8b", "1xRTX 4090", {"stack": "eager", "optimizer": "paged-adamw8bit", "lora_rank": 16}),
        ("llama-3.1-70b", "16xH100-SXM", {"stack": "eager-fsdp"}),
        ("llama-3.1-70b", "16xH100-SXM", {"stack": "megatron-deepspeed", "precision": "fp16"}),
        ("llama-3.1-70b", "2xRTX 4090", {"stack": "hf-fsdp", "lora_rank": 16, "quantized_base": True}),
        ("mixtral-8x7b", "16xH100-SXM", {"stack": "megatron-core"}),
        ("deepseek-v3", "32xH200", {"stack": "hai-llm"}),
        ("gemma-3-27b", "8xMI300X", {"stack": "torchtune", "step_in_backward": True}),
    ],
)
def test_no_strategy_needs_less_than_the_bound_of_its_states(model: str, on: str, changes: dict[str, object]) -> None:
    arch, cluster, base = find_model(model), find_cluster(on), Strategy(**changes)  # type: ignore[arg-type]
    setting = Setting.of(arch, cluster, base, SEQ_LEN, 64)
    parts = blocks(setting, default_space(setting), base)
    done = sweep(arch, cluster, parts, SEQ_LEN)
    least, smallest = least_bytes_on(arch, cluster, parts), float(done.smallest.memory_bytes[0])
    assert 0.1 * smallest < least <= smallest


def test_tensors_are_the_same_on_accelerators_of_one_topology(experts: Architecture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their bytes are made for the first; the others add workspaces and context."""
    made: list[int] = []
    once = sweeps.tensor_bytes

    def counted(arch: Architecture, count: int, costs: object, c: Columns, at: object) -> object:
        made.append(len(c))
        return once(arch, count, costs, c, at)  # type: ignore[arg-type]

    monkeypatch.setattr(sweeps, "tensor_bytes", counted)
    base, found = Strategy(stack="megatron-core"), list[Sweep]()
    for on in ("8xA100-SXM-80GB", "8xH100-SXM", "8xB200-SXM"):
        setting = Setting.of(experts, find_cluster(on), base, SEQ_LEN, 48)
        found.append(sweep(experts, setting.cluster, blocks(setting, default_space(setting), base), SEQ_LEN))
    assert sum(made) == found[0].n_strategies == found[2].n_strategies
    assert found[0].n_fit < found[2].n_fit
    sweeps._shared.cache_clear()
    again = sweep(experts, find_cluster("8xB200-SXM"), found[2].blocks, SEQ_LEN)
    assert sum(made) == 2 * again.n_strategies
    assert again.rows.rank_s.tolist() == found[2].rows.rank_s.tolist() and again.n_fit == found[2].n_fit
