"""Laws of the collective model on every system of the catalogue, and published figures it must meet."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwise.errors import InputError, UnpredictableError
from gpuwise.facts.hardware.accelerators import accelerators
from gpuwise.facts.hardware.systems import System, systems
from gpuwise.predict.comm.collectives import LIBRARIES, OPS, collective_time, curve, host_call_s
from gpuwise.predict.comm.fabric import KNOTS, bus_factor
from gpuwise.predict.comm.groups import travelling
from gpuwise.units import GIB, KIB, MIB

DGX_H100 = systems()["dgx-h100"]
LINKED = [s for s in systems().values() if max(s.count, s.domain_size) > 1]
NETWORKED = [s for s in LINKED if s.network_bytes_per_s > 0]
SIZES = 2.0 ** np.arange(0, 40)


def named(name: str, **changes: Any) -> System:
    """A DGX-like system of ``name``'s accelerator."""
    a = accelerators()[name]
    base = replace(
        DGX_H100,
        accelerator=a,
        link_kind=a.link_kind or "pcie",
        link_bytes_per_s=a.link_bytes_per_s or a.pcie_bytes_per_s or 0.0,
    )
    return replace(base, **changes)


ops = st.sampled_from(OPS)
linked = st.sampled_from(LINKED)
networked = st.sampled_from(NETWORKED)


@given(linked, ops, st.data())
@settings(max_examples=3 * settings().max_examples, deadline=None)
def test_time_is_positive_and_grows_with_bytes_inside_a_system(system: System, op: str, data: st.DataObject):
    n = data.draw(st.integers(2, min(max(system.count, system.domain_size), 128)))
    library = data.draw(st.sampled_from(LIBRARIES))
    time_s = curve(system, op, n, n, library=library, graph=data.draw(st.booleans())).time_s(SIZES)
    assert np.all(time_s > 0) and np.all(np.isfinite(time_s))
    assert np.all(np.diff(time_s) >= 0)


@given(networked, ops, st.integers(1, 8), st.integers(2, 64), st.integers(1, 8))
@settings(max_examples=3 * settings().max_examples, deadline=None)
def test_time_grows_with_bytes_nodes_and_sharing_across_systems(system: System, op: str, ranks: int, nodes: int, concurrent: int):
    ranks = min(ranks, max(system.count, system.domain_size))
    few = curve(system, op, ranks * nodes, ranks).time_s(SIZES)
    assert np.all(np.diff(few) >= 0) and np.all(few > 0)
    many = curve(system, op, 2 * ranks * nodes, ranks).time_s(SIZES)
    assert np.all(many >= few * (1 - 1e-12))
    shared = curve(system, op, ranks * nodes, ranks, concurrent=concurrent).time_s(SIZES)
    assert np.all(shared >= few * (1 - 1e-12))
    if ranks > 1:
        inside = curve(system, op, ranks, ranks).time_s(SIZES)
        if op in ("all_reduce", "all_gather", "reduce_scatter", "broadcast"):
            assert np.all(few >= inside * (1 - 1e-12))


@given(linked, ops, st.floats(1.0, 8.0), st.data())
@settings(max_examples=2 * settings().max_examples, deadline=None)
def test_a_faster_link_or_network_is_never_slower(system: System, op: str, factor: float, data: st.DataObject):
    host = min(max(system.count, system.domain_size), 64)
    ranks = data.draw(st.integers(1, host))
    nodes = data.draw(st.sampled_from([1, 2, 4])) if system.network_bytes_per_s > 0 else 1
    if ranks * nodes == 1:
        return
    fast_link = replace(system, link_bytes_per_s=system.link_bytes_per_s * factor)
    fast_net = replace(system, network_bytes_per_s=system.network_bytes_per_s * factor)
    slow = curve(system, op, ranks * nodes, ranks).time_s(SIZES)
    for fast in (fast_link, fast_net):
        assert np.all(curve(fast, op, ranks * nodes, ranks).time_s(SIZES) <= slow * (1 + 1e-12))


@given(linked, st.data())
@settings(max_examples=2 * settings().max_examples, deadline=None)
def test_all_reduce_costs_at_least_a_reduce_scatter_and_at_most_both_halves(system: System, data: st.DataObject):
    n = data.draw(st.integers(2, min(max(system.count, system.domain_size), 8)))
    whole = curve(system, "all_reduce", n, n).time_s(SIZES)
    scatter = curve(system, "reduce_scatter", n, n).time_s(SIZES)
    gather = curve(system, "all_gather", n, n).time_s(SIZES)
    assert np.all(whole >= scatter * (1 - 1e-12))
    # The tables' regime changes leave it up to a quarter above the sum; oneCCL and staged PCIe are their own.
    if system.accelerator.vendor != "Intel" and system.topology != "pcie":
        assert np.all(whole <= 1.5 * (scatter + gather))


@given(linked, st.sampled_from(["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]), st.data())
@settings(max_examples=2 * settings().max_examples, deadline=None)
def test_bus_bandwidth_stays_within_the_link(system: System, op: str, data: st.DataObject):
    n = data.draw(st.integers(2, min(max(system.count, system.domain_size), 72)))
    big = SIZES[SIZES >= MIB]
    bus = bus_factor(op, n) * big / curve(system, op, n, n).time_s(big)
    # A switch that sums moves S (n+1)/n each way where a ring moves 2 S (n-1)/n.
    sums = 2 * (n - 1) / (n + 1) if op == "all_reduce" and system.link_kind in ("nvlink4", "nvlink5") else 1.0
    cube = 1.0 if system.topology != "mesh" else 1.2
    assert np.all(bus <= system.link_bytes_per_s * max(sums, 1.0) * cube)


@given(linked, ops, st.lists(st.floats(0, 1e12), min_size=1, max_size=50))
@settings(max_examples=2 * settings().max_examples, deadline=None)
def test_the_curve_and_the_function_give_the_same_numbers(system: System, op: str, sizes: list[float]):
    n = min(max(system.count, system.domain_size), 8)
    one = curve(system, op, n, n)
    both = collective_time(system, op, sizes, n, n)
    assert np.array_equal(both.time_s, one.time_s(sizes))
    assert np.array_equal(both.log_sigma, one.log_sigma(sizes))
    assert both.basis == one.basis


def test_arrays_of_groups_are_each_their_own_curve():
    sizes, group, ranks = np.array([1e3, 1e6, 1e9, 0.0]), np.array([2, 8, 64, 1]), np.array([2, 8, 8, 1])
    together = collective_time(DGX_H100, "all_reduce", sizes, group, ranks)
    for i in range(4):
        alone = collective_time(DGX_H100, "all_reduce", sizes[i], group[i], ranks[i])
        assert together.time_s[i] == alone.time_s[0]
    assert together.time_s[3] == 0


@pytest.mark.parametrize("op", OPS)
def test_nothing_to_send_and_nobody_to_send_to_cost_nothing(op: str):
    assert curve(DGX_H100, op, 8, 8).time_s(0.0) == 0
    assert np.all(curve(DGX_H100, op, 1, 1).time_s(SIZES) == 0)


def test_impossible_groups_are_refused():
    with pytest.raises(InputError, match="unknown collective"):
        curve(DGX_H100, "gossip", 8, 8)
    with pytest.raises(InputError, match="library"):
        curve(DGX_H100, "all_reduce", 8, 8, library="mpi")
    with pytest.raises(InputError, match="members"):
        curve(DGX_H100, "all_reduce", 4, 8)
    with pytest.raises(InputError, match="do not fit"):
        curve(DGX_H100, "all_reduce", 16, 16)
    with pytest.raises(InputError, match="concurrent"):
        curve(DGX_H100, "all_reduce", 16, 8, concurrent=0)
    lonely = replace(DGX_H100, network_bytes_per_s=0.0, network_kind="none")
    with pytest.raises(UnpredictableError) as caught:
        curve(lonely, "all_reduce", 16, 8)
    assert caught.value.reason == "no network between systems"


BUS = [
    # (system, ranks, per system, payload, GB/s bus bandwidth, tolerance, source)
    (named("a100-sxm-80gb"), 8, 8, 8 * GIB, 234.6, 0.05, "Azure/AI-benchmarking-guide ND A100 v4, 2024"),
    (DGX_H100, 8, 8, 8 * GIB, 478.9, 0.05, "Azure/AI-benchmarking-guide ND H100 v5, NCCL 2.18"),
    (named("h200-sxm-141gb"), 8, 8, 64 * MIB, 368.1, 0.05, "Azure/AI-benchmarking-guide ND H200 v5"),
    (named("h800-sxm-80gb"), 8, 8, 8 * GIB, 215, 0.1, "NVIDIA/nccl#1374: H800, links of 200 GB/s"),
    (DGX_H100, 32, 8, 16 * GIB, 365.8, 0.05, "NVIDIA/nccl-tests#309: 4 nodes, 8x400 Gb/s InfiniBand"),
    (DGX_H100, 16, 8, 16 * GIB, 470, 0.05, "NVIDIA/nccl-tests#309: 2 nodes"),
    (DGX_H100, 128, 8, 64 * MIB, 150, 0.15, "NVIDIA/nccl#1469: 16 nodes"),
    (systems()["gb200-nvl72"], 72, 72, 8 * GIB, 846.8, 0.06, "github.com/coreweave/nccl-tests README"),
    (systems()["gb200-nvl72"], 144, 72, 8 * GIB, 791.9, 0.1, "github.com/coreweave/nccl-tests README"),
    (systems()["dgx-1-v100"], 8, 8, GIB, 134.7, 0.05, "vTrain trace/v100"),
]


@pytest.mark.parametrize("figure", BUS, ids=lambda f: f"{f[0].id}-{f[0].accelerator.id}-{f[1]}-{f[3]:.0e}")
def test_published_bus_bandwidths(figure: tuple[System, int, int, float, float, float, str]):
    system, n, ranks, size, measured, tolerance, _ = figure
    predicted = bus_factor("all_reduce", n) * size / float(curve(system, "all_reduce", n, ranks).time_s(size)) / 1e9
    assert predicted == pytest.approx(measured, rel=tolerance)


def test_all_to_all_across_nodes_waits_for_its_own_card():
    """AWS p5, 32 nodes, 2 GiB: 41.1 GB/s bus bandwidth of a 50 GB/s card
    (crazyguitar/aws-gpu-communication-benchmark)."""
    p5 = replace(DGX_H100, network_kind="efa", network_bytes_per_s=50e9)
    seconds = float(curve(p5, "all_to_all", 256, 8).time_s(2 * GIB))
    assert 2 * GIB * 255 / 256 / seconds / 1e9 == pytest.approx(41.1, rel=0.1)


def test_a_stride_group_uses_one_card_and_neighbours_share_what_there_is():
    alone = curve(DGX_H100, "all_reduce", 8, 1).time_s(GIB)
    assert np.array_equal(curve(DGX_H100, "all_reduce", 8, 1, concurrent=8).time_s(GIB), alone)
    assert curve(DGX_H100, "all_reduce", 8, 1, concurrent=16).time_s(GIB) > 1.5 * alone
    assert curve(DGX_H100, "all_reduce", 64, 8).time_s(GIB) < alone / 3


def test_cards_without_peer_access_are_slower_than_with():
    peer = named("l40s", topology="pcie")
    assert curve(replace(peer, topology="pcie-host"), "all_reduce", 8, 8).time_s(GIB) > 5 * curve(
        peer, "all_reduce", 8, 8
    ).time_s(GIB)
    pro = named("rtx-6000-ada", topology="pcie")
    assert curve(named("rtx-4090", topology="pcie"), "all_reduce", 8, 8).time_s(GIB) > curve(pro, "all_reduce", 8, 8).time_s(GIB)


def test_bridged_pairs_cross_over_pcie():
    pairs = systems()["pcie-a100-bridged"]
    inside, across = (curve(pairs, "all_reduce", n, n).time_s(GIB) for n in (2, 4))
    assert across > 5 * inside


def test_a_message_over_a_bridge_does_not_wait_for_a_switch():
    """Vidur, pair of A100 PCIe with a bridge of 300 GB/s: 10 MB in 34 us; A100 SXM through the switch, as many lanes: 44 us."""
    bridge, switch = (curve(systems()[s], "send_recv", 2, 2).time_s(1e7) for s in ("pcie-a100-bridged", "dgx-a100"))
    assert bridge == pytest.approx(34e-6, rel=0.15)
    assert switch == pytest.approx(44e-6, rel=0.15)


def test_engines_kernels_beat_nccl_on_small_payloads_and_eager_calls_copy():
    nccl = curve(DGX_H100, "all_reduce", 8, 8).time_s(16 * KIB)
    for library in ("custom", "vllm", "sglang", "trtllm"):
        graph = curve(DGX_H100, "all_reduce", 8, 8, library=library, graph=True)
        eager = curve(DGX_H100, "all_reduce", 8, 8, library=library)
        assert graph.time_s(16 * KIB) < nccl / 1.5
        assert eager.time_s(GIB) > graph.time_s(GIB)
    gather = curve(DGX_H100, "all_gather", 8, 8, library="vllm")
    assert np.array_equal(gather.seconds, curve(DGX_H100, "all_gather", 8, 8).seconds)


def test_one_byte_sums_do_not_use_the_switch():
    half, byte = (curve(DGX_H100, "all_reduce", 8, 8, element_bytes=b).time_s(GIB) for b in (2, 1))
    assert byte > 1.15 * half


def test_the_basis_says_how_near_the_measurements_are():
    assert curve(DGX_H100, "all_reduce", 8, 8).basis == "fitted"
    assert curve(named("h200-sxm-141gb"), "all_reduce", 8, 8).basis == "derived"
    assert curve(systems()["mi300x-platform"], "all_reduce", 8, 8).basis == "specified"
    assert curve(systems()["gb200-nvl72"], "all_reduce", 72, 72).basis == "extrapolated"
    assert curve(DGX_H100, "all_reduce", 64, 8).basis == "derived"


def test_host_calls_take_tens_of_microseconds():
    for name in ("a100-sxm-80gb", "h100-sxm-80gb", "gb200", "l40s", "rtx-pro-6000-blackwell-server"):
        assert 1e-5 < host_call_s(accelerators()[name]) < 1e-4


def test_knots_are_where_the_tables_are():
    assert KNOTS[0] == 0 and np.all(np.diff(KNOTS) > 0)


def test_an_exchange_sends_one_copy_to_each_place():
    size, local = np.array([64, 64, 8]), np.array([8, 8, 8])
    everywhere = travelling(np.array([8, 8, 8]), np.ones(3), size, local)
    limited = travelling(np.array([8, 8, 8]), np.full(3, 0.5), size, local)
    assert (travelling(np.zeros(3, int), np.ones(3), size, local) == 1.0).all()
    assert everywhere[0] == pytest.approx(8 * (1 - (7 / 8) ** 8) / 8)  # eight systems, eight copies
    assert everywhere[2] == everywhere[0]  # eight ranks of one system
    assert (limited < everywhere).all() and limited[0] <= 4 / 8  # no more than four of eight systems


RACK = next(s for s in systems().values() if s.domain_size == 72)


@pytest.mark.parametrize("op", ["all_gather", "reduce_scatter"])
def test_beyond_the_measured_groups_a_ring_has_a_step_more_for_each_rank(op: str) -> None:
    """The smallest payload takes latency alone, about as much more for each rank; a large one takes (n - 1) / n of its bytes
    over the link besides."""
    latency_s, large_s = (np.array([curve(RACK, op, n, n).time_s([size])[0] for n in (8, 16, 24, 32)]) for size in (1.0, GIB))
    assert np.diff(latency_s) == pytest.approx(np.diff(latency_s)[0], rel=0.1) and latency_s[1] > latency_s[0]
    wire_s = large_s[0] / (7 / 8) * np.array([7 / 8, 15 / 16, 23 / 24, 31 / 32])
    assert (large_s >= wire_s * (1 - 1e-3)).all() and (large_s <= wire_s * 1.2).all()
    middle_s = [curve(RACK, op, n, n).time_s([16.0 * MIB])[0] for n in (8, 16)]
    assert middle_s[1] - middle_s[0] * (15 / 16) / (7 / 8) > latency_s[1] - latency_s[0], "a full pipeline is filled besides"


def test_a_tree_has_as_much_more_latency_for_each_doubling() -> None:
    four, eight, sixteen, thirty_two = (curve(RACK, "all_reduce", n, n).time_s([1.0])[0] for n in (4, 8, 16, 32))
    assert sixteen - eight == pytest.approx(max(eight - four, 0.0), rel=1e-2, abs=1e-7)
    assert thirty_two - sixteen == pytest.approx(sixteen - eight, rel=1e-2, abs=1e-7)


@pytest.mark.parametrize("size", [1.0, 4.0 * MIB, GIB])
def test_twice_as_many_cards_on_pcie_take_at_most_twice_as_long(size: float) -> None:
    """Beyond eight, where none were measured: in the longest step of a ring each card waits for one more."""
    eight, sixteen = (named("rtx-4090", count=n, domain_size=1, topology="pcie") for n in (8, 16))
    few, many = (curve(s, "all_gather", s.count, s.count).time_s([size])[0] for s in (eight, sixteen))
    assert few < many <= 2.05 * few * (15 / 16) / (7 / 8)


def test_bytes_staged_in_host_memory_take_longer_on_more_cards() -> None:
    """Cards without peer access: vLLM's all-reduces of 60 KiB take about 100 us of a token's time on four RTX 3090, 30 on two
    (Gemma 4 12B with eight users, LottoLottoLotto/4x3090-llm-benchmarks, less the kernels)."""
    pcie = accelerators()["rtx-3090"].pcie_bytes_per_s
    assert pcie is not None
    seconds: dict[int, float] = {}
    for n in (2, 4):
        cards = named("rtx-3090", count=n, domain_size=n, topology="pcie", link_kind="pcie", link_bytes_per_s=pcie)
        seconds[n] = float(curve(cards, "all_reduce", n, n, library="vllm", graph=True).time_s([60.0 * 1024])[0])
    assert 20e-6 < seconds[2] < 40e-6
    assert 60e-6 < seconds[4] < 130e-6
