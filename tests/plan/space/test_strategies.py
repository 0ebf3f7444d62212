from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from gpuwise.errors import LayoutError
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.hardware.systems import Cluster
from gpuwise.facts.models.architecture import Architecture
from gpuwise.plan.space.conditions import Setting
from gpuwise.plan.space.rules import check_strategy
from gpuwise.plan.space.strategies import (
    Space,
    blocks,
    default_space,
    divisors,
    fixed_space,
    full_space,
    powers_of_two,
    usual_micro_batches,
)
from gpuwise.workload.strategy import Strategy

BASE = Strategy()


def _all(setting: Setting, space: Space) -> list[Strategy]:
    return [b.columns.strategy(i) for b in blocks(setting, space, BASE) for i in range(len(b.columns))]


def _by_hand(setting: Setting, space: Space) -> set[Strategy]:
    """The same space with loops: every combination that no rule forbids, equal behaviour once."""
    n, found = setting.cluster.n_accelerators, set[Strategy]()
    shapes = itertools.product(
        space.tp,
        space.pp,
        space.cp,
        space.ep,
        space.micro_batch,
        space.schedule,
        space.virtual_stages,
        space.sequence_parallel,
    )
    for tp, pp, cp, ep, mb, schedule, v, sp in shapes:
        if n % (tp * pp * cp) or setting.global_batch % (n // (tp * pp * cp) * mb):
            continue
        if (pp == 1 and schedule != "1f1b") or (tp == 1 and sp != space.sequence_parallel[0]):
            continue
        dp = n // (tp * pp * cp)
        row = BASE.with_(
            tp=tp,
            pp=pp,
            cp=cp,
            ep=ep,
            dp=dp,
            micro_batch=mb,
            accumulation=setting.global_batch // (dp * mb),
            schedule=schedule,
            virtual_stages=v,
            sequence_parallel=sp,
        )
        for (sharding, oo), (recompute, every, oa) in itertools.product(space.states, space.activations):
            s = row.with_(
                sharding=sharding,
                offload_optimizer=oo,
                recompute=recompute,
                recompute_every=every,
                offload_activations=oa,
            )
            try:
                check_strategy(setting, s)
            except LayoutError:
                continue
            found.add(s)
    return found


@pytest.mark.parametrize(
    "kind", [pytest.param("small", marks=pytest.mark.thorough), pytest.param("experts", marks=pytest.mark.slow)]
)
def test_the_products_hold_exactly_the_allowed_combinations(kind: str, request: pytest.FixtureRequest, node: Cluster) -> None:
    arch: Architecture = request.getfixturevalue(kind)
    setting = Setting.of(arch, node, BASE, 2048, 8)
    space = full_space(setting)
    space = replace(
        space,
        micro_batch=(1, 8),
        pp=(1, 2, 4),
        virtual_stages=(1, 2),
        cp=(1, 2),
        ep=space.ep[:2],
        activations=space.activations[:3] + space.activations[-2:],
    )
    listed = _all(setting, space)
    assert len(listed) == len(set(listed))
    assert set(listed) == _by_hand(setting, space)


def test_the_default_space_is_part_of_the_full_one(small: Architecture, node: Cluster) -> None:
    setting = Setting.of(small, node, BASE, 2048, 8)
    assert set(_all(setting, default_space(setting))) <= set(_all(setting, full_space(setting)))


def test_fixed_values_are_held(small: Architecture, nodes: Cluster) -> None:
    setting = Setting.of(small, nodes, BASE, 2048, 64)
    fixed = {
        "tp": 2,
        "dp": 4,
        "sharding": "zero1",
        "recompute": "full",
        "recompute_every": 3,
        "accumulation": 8,
    }
    listed = _all(setting, fixed_space(default_space(setting), fixed))
    assert listed
    for s in listed:
        assert all(getattr(s, name) == value for name, value in fixed.items())


def test_virtual_stages_imply_interleaving(small: Architecture, node: Cluster) -> None:
    setting = Setting.of(small, node, BASE, 2048, 64)
    listed = _all(setting, fixed_space(default_space(setting), {"virtual_stages": 2}))
    assert listed and {s.schedule for s in listed} == {"interleaved"}


def test_an_impossible_value_leaves_nothing(small: Architecture, node: Cluster) -> None:
    setting = Setting.of(small, node, BASE, 2048, 64)
    assert blocks(setting, fixed_space(default_space(setting), {"tp": 3}), BASE) == ()


def test_clusters_with_one_topology_have_the_same_blocks(small: Architecture, node: Cluster) -> None:
    """A search over kinds of GPUs enumerates the layouts of eight in a host once."""
    of = [Setting.of(small, c, BASE, 2048, 64) for c in (node, find_cluster("8xH100-SXM"), find_cluster("4xH100-SXM"))]
    a, b, c = (blocks(s, default_space(s), BASE) for s in of)
    assert a is b and a is not c
    assert of[1].cluster.label != of[0].cluster.label


def test_bases_share_the_enumeration(small: Architecture, node: Cluster) -> None:
    setting = Setting.of(small, node, BASE, 2048, 64)
    other = BASE.with_(gradient_dtype="bf16")
    both = blocks(setting, default_space(setting), BASE, other)
    assert [b.columns.base for b in both].count(other) == len(both) // 2


def test_rows_of_a_block_are_a_slice_of_its_product(small: Architecture, node: Cluster) -> None:
    setting = Setting.of(small, node, BASE, 2048, 64)
    block = max(blocks(setting, default_space(setting), BASE), key=lambda b: b.n_rows)
    part = block.at(slice(1, 3))
    assert len(part) == 2 * block.n_choices
    assert part.strategy(0) == block.columns.strategy(block.n_choices)


def test_divisors_and_powers() -> None:
    assert divisors(96) == (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 96)
    assert divisors(1) == (1,)
    assert powers_of_two(32) == (1, 2, 4, 8, 16, 32)
    assert powers_of_two(1) == (1,)
    assert usual_micro_batches(512, 16) == (1, 2, 4, 8, 16)
    assert usual_micro_batches(576, 16) == (1, 2, 3, 4, 6, 8, 12, 16)
    assert usual_micro_batches(3, 16) == (1, 2, 3)


def test_recompute_and_offload_are_both_laid_out_where_both_are_asked_for(small: Architecture, node: Cluster) -> None:
    space = default_space(Setting.of(small, node, BASE, 2048, 8))
    asked = fixed_space(space, {"recompute": "full", "recompute_every": 1, "offload_activations": True})
    assert asked.activations == (("full", 1, True),)
