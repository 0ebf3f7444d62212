"""Sharding a captured step, on networks made by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.workload.layer_captures import Layer, layer_capture, seconds_of

from gpuwise.errors import InputError
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.predict.comm.collectives import curve
from gpuwise.predict.parallel.overlap import exposed_after
from gpuwise.predict.parallel.sharding import Sharding, sharded
from gpuwise.predict.stack_costs import find_stack_costs
from gpuwise.predict.step.sharding_time import STACK, sharded_step_time
from gpuwise.workload.capture.captured import Capture, Category
from gpuwise.workload.row_codes import Phase

ROWS = 48


def _network(rows: int = ROWS, saved: int = 10**6) -> Capture:
    return layer_capture(
        [
            Layer("stem", saved, saved // 8, 0, ((rows, 16),)),
            *(Layer(f"layers.{i}", saved, saved // 8, saved // 4, ((rows, rows), (rows,))) for i in range(6)),
            Layer("head", saved // 4, saved // 8, 0, ((rows, 64),)),
        ]
    )


def _ends(capture: Capture) -> dict[Category, int]:
    return capture.bytes_by_category(capture.steady.end_event - 1)


@given(st.integers(1, 70), st.sampled_from([1, 2, 3, 8, 512]))
def test_states_shrink_to_rows_of_their_shard(rows: int, ranks: int) -> None:
    capture = _network(rows)
    rank = sharded(capture, Sharding("zero3", ranks))
    mine = sum(4 * -(-p.shape[0] // ranks) * math.prod(p.shape[1:]) for p in capture.parameters)
    assert _ends(rank.capture)[Category.PARAMETER] == mine
    assert _ends(rank.capture)[Category.OPTIMIZER] == pytest.approx(2 * mine, rel=0.2)
    assert np.all(rank.capture.live_bytes() >= 0)


def test_fully_sharded_collectives_are_the_known_ones() -> None:
    rank = sharded(_network(), Sharding("zero3", 8))
    gathers = [t for t in rank.transfers if t.op == "all_gather"]
    reductions = [t for t in rank.transfers if t.op == "reduce_scatter"]
    assert len(gathers) == 1 + 6 + 6
    assert len(reductions) == 7
    block = 4 * (ROWS * ROWS + ROWS)
    assert sum(t.payload_bytes for t in reductions) == 6 * block + 4 * ROWS * 80
    assert all(t.at_op < t.needed_by for t in rank.transfers)
    once = sharded(_network(), Sharding("zero3", 8, reshard_after_forward=False))
    assert sum(t.op == "all_gather" for t in once.transfers) == 7
    assert once.capture.peak_bytes() > rank.capture.peak_bytes()


def test_more_sharding_takes_less_memory() -> None:
    capture = _network(480, saved=1000)
    peaks = [sharded(capture, Sharding(kind, 8)).capture.peak_bytes() for kind in ("none", "zero1", "zero2", "zero3")]
    assert peaks == sorted(peaks, reverse=True)
    assert len(set(peaks)) == 4
    view = sharded(capture, Sharding("none", 8, gradient_as_bucket_view=True)).capture.peak_bytes()
    assert view < peaks[0]


@pytest.mark.parametrize("ranks", [2, 7, 8])
@pytest.mark.parametrize("kind", ["zero1", "zero2"])
def test_every_weight_is_gathered_once_after_a_sharded_update(kind: str, ranks: int) -> None:
    """Rows are padded to a multiple of the ranks; what is gathered is what was reduced."""
    capture = _network(rows=45)
    rank = sharded(capture, Sharding(kind, ranks))
    (gathered,) = [t.payload_bytes for t in rank.transfers if t.op == "all_gather"]
    padded = sum(4 * ranks * -(-p.shape[0] // ranks) * math.prod(p.shape[1:]) for p in capture.parameters)
    assert gathered == padded
    assert sum(t.payload_bytes for t in rank.transfers if t.op == "reduce_scatter") == padded


def test_hybrid_adds_the_sum_across_groups() -> None:
    rank = sharded(_network(), Sharding("hybrid", 16, 8))
    across = [t for t in rank.transfers if t.replicas]
    assert len(across) == 7
    assert all(t.op == "all_reduce" and t.group_size == 2 for t in across)
    assert _ends(rank.capture) == _ends(sharded(_network(), Sharding("zero3", 8)).capture)


def test_ddp_reduces_every_gradient_once() -> None:
    capture = _network(480)
    rank = sharded(capture, Sharding("none", 4))
    assert sum(t.payload_bytes for t in rank.transfers) == sum(4 * math.prod(p.shape) for p in capture.parameters)
    assert len(rank.transfers) > 1


def test_offload_moves_states_to_the_host() -> None:
    capture = _network(480)
    rank = sharded(capture, Sharding("none", 1, offload_optimizer=True))
    assert Category.OPTIMIZER not in _ends(rank.capture)
    assert rank.host_bytes >= _ends(capture)[Category.OPTIMIZER]
    assert {t.op for t in rank.transfers} == {"h2d", "d2h"}
    everything = sharded(capture, Sharding("zero3", 8, offload_parameters=True))
    assert Category.PARAMETER not in _ends(everything.capture)


def test_time_hides_transfers_behind_compute_and_no_more() -> None:
    capture, system = _network(4800), find_cluster("8x H100 SXM").system
    rank = sharded(capture, Sharding("zero3", 8))
    host = np.zeros(len(capture.op_phase))
    slow = sharded_step_time(rank, system, seconds_of(capture) * 1e-2, host)
    fast = sharded_step_time(rank, system, seconds_of(capture) * 1e-9, host)
    assert slow.compute_s <= slow.step_s <= slow.compute_s + slow.transfer_s
    assert fast.compute_s <= fast.step_s <= fast.compute_s + fast.transfer_s
    assert slow.exposed_s < 0.5 * slow.transfer_s
    assert fast.step_s >= fast.transfer_s  # one queue: the step cannot be shorter than what goes through it


def test_gradients_reduced_once_hide_as_in_the_catalogue() -> None:
    """DDP: one sum of all gradients behind the backward pass."""
    capture, system = _network(4800), find_cluster("8x H100 SXM").system
    rank = sharded(capture, Sharding("none", 8))
    seconds = seconds_of(capture) * 1e-4
    time = sharded_step_time(rank, system, seconds, np.zeros(len(seconds)))
    costs = find_stack_costs(STACK)
    gradients = sum(4 * math.prod(p.shape) for p in capture.parameters)
    reduce = curve(system, "all_reduce", 8, 8).time_s([float(gradients)])
    span = slice(capture.steady.first_op, capture.steady.end_op)
    backward = seconds[span][capture.op_phase[span] == Phase.BACKWARD].sum()
    assert time.exposed_s == pytest.approx(float(exposed_after(reduce, np.array([backward]), costs)[0]))


def test_transfers_take_what_each_collective_takes() -> None:
    """ZeRO-1: one reduce-scatter of the gradients and one all-gather of the weights, slowed as the stack slows its network."""
    capture, system = _network(4800), find_cluster("8x H100 SXM").system
    rank = sharded(capture, Sharding("zero1", 8))
    time = sharded_step_time(rank, system, seconds_of(capture) * 1e-4, np.zeros(len(capture.op_phase)))
    payload = {op: sum(float(t.payload_bytes) for t in rank.transfers if t.op == op) for op in ("reduce_scatter", "all_gather")}
    assert {t.op for t in rank.transfers} == payload.keys()
    once_s = sum(float(curve(system, op, 8, 8).time_s([size])[0]) for op, size in payload.items())
    assert time.transfer_s == pytest.approx(once_s * find_stack_costs(STACK).network_slowdown)


def test_copies_to_the_host_hide_behind_nothing() -> None:
    """One rank with its optimizer on the host: no network, and the copies are in line with the passes."""
    capture, system = _network(480), find_cluster("1x H100 SXM").system
    rank = sharded(capture, Sharding("none", 1, offload_optimizer=True))
    time = sharded_step_time(rank, system, seconds_of(capture) * 1e-4, np.zeros(len(capture.op_phase)))
    assert time.exposed_s == time.transfer_s > 0
    assert time.step_s == pytest.approx(time.compute_s + time.exposed_s + time.host_update_s)


def test_slower_work_never_makes_the_step_shorter() -> None:
    """Where the device is what the step waits for; what a late host waits in moves from pass to pass."""
    capture, system = _network(480), find_cluster("8x H100 SXM").system
    host = np.zeros(len(capture.op_phase))
    for kind in ("none", "zero1", "zero2", "zero3"):
        rank = sharded(capture, Sharding(kind, 8))
        steps = [sharded_step_time(rank, system, seconds_of(capture) * s, host).step_s for s in (1e-4, 1e-3, 1e-2, 1e-1)]
        assert steps == sorted(steps)


def test_a_late_host_hides_more() -> None:
    capture, system = _network(4800), find_cluster("8x H100 SXM").system
    rank = sharded(capture, Sharding("zero3", 8))
    device = seconds_of(capture) * 1e-8
    quick = sharded_step_time(rank, system, device, np.zeros(len(device)))
    late = sharded_step_time(rank, system, device, np.full(len(device), 1e-3))
    assert late.compute_s > quick.compute_s
    assert late.exposed_s < quick.exposed_s


def test_refusals() -> None:
    capture = _network()
    for bad in (
        Sharding("zero9", 8),
        Sharding("zero3", 0),
        Sharding("hybrid", 8, 3),
        Sharding("none", 2, offload_parameters=True),
    ):
        with pytest.raises(InputError):
            sharded(capture, bad)
    with pytest.raises(InputError, match="no module"):
        sharded(capture, Sharding("zero3", 2, wrap=("nowhere",)))
    with pytest.raises(InputError):
        sharded(capture, Sharding("zero3", 2, gather_dtype="fp3"))
