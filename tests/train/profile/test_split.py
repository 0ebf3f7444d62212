"""Parts of a step add up to it, whatever happened in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwise.train.profile.profile_data import ProfileData
from gpuwise.train.profile.spans import difference, inside, intersection, length, spans, union
from gpuwise.train.profile.split import PARTS, Split, split_step, stalls, undisturbed
from gpuwise.train.profile.step_fit import fit_to, of_phases
from gpuwise.train.profile.steps import find_steps, with_delays
from gpuwise.train.profile.trace_reader import read_trace
from gpuwise.train.ticks import Step

_PIECES = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 15)), max_size=12)


def _spans(pieces: list[tuple[int, int]]) -> Any:
    return spans([a for a, _ in pieces], [a + n for a, n in pieces])


def _points(pieces: list[tuple[int, int]]) -> set[int]:
    return {i for a, n in pieces for i in range(a, a + n)}


@given(a=_PIECES, b=_PIECES)
def test_stretches_are_sets_of_moments(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    one, two = _spans(a), _spans(b)
    assert length(one) == len(_points(a))
    assert length(union([one, two])) == len(_points(a) | _points(b))
    assert length(intersection(one, two)) == len(_points(a) & _points(b))
    assert length(difference(one, two)) == len(_points(a) - _points(b))
    moments = np.arange(80) + 0.5
    assert set(np.flatnonzero(inside(moments, one)).tolist()) == _points(a)
    if len(one) > 1:
        assert (one[1:, 0] > one[:-1, 1]).all()


_HOST = st.sampled_from(
    [
        ("aten::mm", "cpu_op"),
        ("aten::add", "cpu_op"),
        ("enumerate(DataLoader)#_Iter.__next__", "user_annotation"),
        ("Optimizer.step#SGD.step", "user_annotation"),
        ("gloo:all_reduce", "cpu_op"),
        ("my own op", "cpu_op"),
        ("<built-in function print>", "python_function"),
        ("cudaStreamSynchronize", "cuda_runtime"),
        ("cudaMalloc", "cuda_runtime"),
    ]
)
_GPU = st.sampled_from(
    [("ampere_sgemm", "kernel"), ("ncclDevKernel_AllReduce", "kernel"), ("Memcpy HtoD (Pinned -> Device)", "gpu_memcpy")]
)
_AT = st.integers(0, 3000)
_LONG = st.integers(0, 900)


@given(host=st.lists(st.tuples(_HOST, _AT, _LONG), max_size=25), work=st.lists(st.tuples(_GPU, _AT, _LONG), max_size=12))
def test_parts_add_up(host: list[Any], work: list[Any], tmp_path_factory: pytest.TempPathFactory, kineto_class: Any) -> None:
    made = kineto_class()
    for n in range(3):
        made.step(n, n * 1000, 1000)
    for (name, cat), at, long in host:
        made.host(name, at, long, cat=cat)
    for (name, cat), at, long in work:
        made.kernel(name, at, long, max(at - 20, 0), cat=cat)
    trace = read_trace(made.write(tmp_path_factory.getbasetemp() / "split.json"))
    steps = find_steps(trace)
    split = split_step(trace, steps)
    _is_whole(split)
    # what was issued in the last step may end behind it
    assert (np.diff(steps.work.ravel()) >= 0).all()
    assert split.wall_s == pytest.approx(steps.wall_s) and split.n_steps == 3
    assert 0 <= split.busy_s <= split.wall_s * (1 + 1e-9)
    told = sum(length(own) for _, own in split.layers) / split.n_steps
    assert told == pytest.approx(split.wall_s)
    step = Step(1e-4, 0, 2e-4, 3e-4, 1e-4, 5e-5, 1, 1, 1, 1, 8, 0, wall_s=0.8e-3)
    fitted = fit_to(split, trace, step, 1e-4)
    _is_whole(fitted)
    assert fitted.wall_s == pytest.approx(0.9e-3)


def _is_whole(split: Split) -> None:
    assert tuple(split.parts) == PARTS
    assert sum(split.parts.values()) == pytest.approx(split.wall_s)
    assert sum(split.families.values()) == pytest.approx(split.parts["compute"])
    assert min(split.parts.values()) >= 0


def test_phases_without_a_trace_add_up() -> None:
    _is_whole(of_phases(Step(1e-4, 0, 2e-4, 3e-4, 1e-4, 5e-5, 1, 1, 1, 1, 8, 0, wall_s=1e-3)))


@pytest.fixture
def two_steps(kineto: Any, tmp_path: Path) -> Any:
    """A trace on a GPU: 1000 us a step, in each a loader, a copy, two kernels, a read, an optimizer."""
    made = kineto()
    for n in range(2):
        t = n * 1000.0
        made.step(n, t, 1000)
        made.host("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", t, 200, cat="user_annotation")
        of = made.op("aten::copy_", t + 200, 10)
        made.kernel("Memcpy HtoD (Pinned -> Device)", t + 210, 100, t + 202, of, cat="gpu_memcpy", launcher="cudaMemcpyAsync")
        made.product(t + 310, 250, 512, 512, 512, lead=80)
        of = made.op("aten::item", t + 330, 240)
        made.host("cudaStreamSynchronize", t + 331, 235, cat="cuda_runtime")
        made.host("Optimizer.step#SGD.step", t + 600, 100, cat="user_annotation")
        of = made.op("aten::_foreach_add_", t + 605, 20, [[512]])
        made.kernel("multi_tensor_apply_kernel", t + 640, 160, t + 610, of)
    return read_trace(made.write(tmp_path / "t.json"))


def test_every_part_has_its_share(two_steps: Any) -> None:
    split = split_step(two_steps, find_steps(two_steps))
    us = {name: round(s * 1e6) for name, s in split.parts.items() if s > 0.4e-6}
    assert split.device == "gpu"
    assert us["data wait"] == 200 and us["copies"] == 100 and us["compute"] == 250 and us["optimizer"] == 160
    # from the end of the product to the optimizer's kernel, of which 566 is the call's end
    assert us["sync points"] == 80
    assert us["host gaps"] + us["other"] == 1000 - 200 - 100 - 250 - 160 - 80
    assert dict(split.families) == {"matrix products": pytest.approx(250e-6)}
    assert split.busy_share == pytest.approx(0.51)


def test_a_host_that_runs_ahead_of_its_gpu(kineto: Any, tmp_path: Path) -> None:
    """A loop that reads nothing back issues a step in 1 ms of which the GPU has 10 ms: the parts are those of the GPU's steps."""
    made = kineto()
    for n in range(5):
        issued, done = n * 1000.0, n * 10_000.0
        of = made.op("aten::mm", issued + 10, 5, [[512, 512], [512, 512]])
        made.kernel("ampere_sgemm_128x64_tn", max(done, issued + 15), 6000, issued + 11, of)
        of = made.op("aten::relu", issued + 20, 5, [[512, 512]])
        made.kernel("vectorized_elementwise_kernel", done + 6100, 2900, issued + 21, of)
        made.host("Optimizer.step#SGD.step", issued + 800, 200, cat="user_annotation")
        of = made.op("aten::_foreach_add_", issued + 805, 20, [[512]])
        made.kernel("multi_tensor_apply_kernel", done + 9000, 1000, issued + 810, of)
    trace = read_trace(made.write(tmp_path / "t.json"))
    steps = find_steps(trace)
    split = split_step(trace, steps)
    assert (steps.by, steps.n) == ("optimizer steps", 4)
    assert split.wall_s == pytest.approx(10e-3)
    assert split.families == {"matrix products": pytest.approx(6e-3), "elementwise": pytest.approx(2.9e-3)}
    assert split.parts["optimizer"] == pytest.approx(1e-3) and split.busy_share == pytest.approx(0.99)
    data = ProfileData(split, split, trace, steps)
    assert len(data.kernels) / data.n_steps == 3 and data.products[0].seconds == pytest.approx(6e-3)


def test_steps_by_the_optimizer_that_closes_them(kineto: Any, tmp_path: Path) -> None:
    """Two optimizers, one of them twice a step: a step ends with the other."""
    made = kineto()
    for n in range(5):
        t = n * 1000.0
        made.host("Optimizer.step#Adam.step", t + 300, 50, cat="user_annotation")
        made.host("Optimizer.step#Adam.step", t + 600, 50, cat="user_annotation")
        made.host("Optimizer.step#SGD.step", t + 900, 50, cat="user_annotation")
    steps = find_steps(read_trace(made.write(tmp_path / "t.json")))
    assert (steps.by, steps.n) == ("optimizer steps", 4)
    assert steps.wall_s == pytest.approx(1e-3)


def test_a_trace_without_steps_is_one(kineto: Any, tmp_path: Path) -> None:
    made = kineto()
    made.op("aten::mm", 100, 50)
    made.op("aten::mm", 200, 150)
    steps = find_steps(read_trace(made.write(tmp_path / "t.json")))
    assert (steps.by, steps.n) == ("whole trace", 1) and steps.wall_s == pytest.approx(250e-6)


def test_the_first_range_of_a_loop_without_an_optimizer_was_not_timed(kineto: Any, tmp_path: Path) -> None:
    """Ranges are written from one tick to the next: of five, the watch timed the last four."""
    made = kineto(device={})
    for n in range(5):
        made.step(n, n * 1000.0, 1000 + 100 * n)
    steps = find_steps(read_trace(made.write(tmp_path / "t.json")))
    timed = [Step(0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 8, 0, wall_s=1e-3, queue_s=1e-4 * n) for n in range(1, 5)]
    delayed = with_delays(steps, timed)
    assert delayed.n == 4 and delayed.windows[0, 0] == steps.windows[1, 0]
    assert delayed.waited_s.tolist() == pytest.approx([1e-4, 2e-4, 3e-4, 4e-4])
    assert not len(with_delays(steps, timed[:3]).waited_s)


def test_what_a_loader_writes_to_its_workers_is_no_log(kineto: Any, tmp_path: Path) -> None:
    made = kineto(device={})
    for n in range(3):
        at = n * 1000.0
        made.step(n, at, 1000)
        made.host("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", at, 300, cat="user_annotation")
        made.host("<built-in function write>", at + 50, 200, cat="python_function")
        made.op("aten::mm", at + 300, 600, [[64, 64], [64, 64]])
        made.host("<built-in function print>", at + 900, 50, cat="python_function")
    trace = read_trace(made.write(tmp_path / "t.json"))
    parts = split_step(trace, find_steps(trace)).parts
    assert parts["data wait"] == pytest.approx(300e-6)
    assert parts["save and log"] == pytest.approx(50e-6)


def _crowded(kineto: Any, folder: Path, events_us: list[tuple[str, float, float, list[list[int]]]], waited_s: list[float]) -> Any:
    """A trace of as many steps of 20 ms as delays are given, all alike, and its steps."""
    made = kineto(device={})
    for n in range(len(waited_s)):
        made.step(n, n * 20_000.0, 20_000)
        for name, at, long, shapes in events_us:
            made.op(name, n * 20_000.0 + at, long, shapes)
    trace = read_trace(made.write(folder / "t.json"))
    steps = find_steps(trace)
    timed = [Step(0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 8, 0, wall_s=0.02, queue_s=s) for s in waited_s]
    return trace, with_delays(steps, timed)


def test_a_large_product_beside_small_ones_did_not_stand_still(kineto: Any, tmp_path: Path) -> None:
    """The product with a vocabulary takes as long in every step, far longer than those of the layers."""
    small = [("aten::mm", 100.0 + 400 * i, 300.0, [[64, 64], [64, 64]]) for i in range(10)]
    trace, steps = _crowded(kineto, tmp_path, [*small, ("aten::mm", 5000, 6000, [[64, 64], [64, 32000]])], [0.004] * 3)
    stalled, left = stalls(trace, steps)
    assert not len(stalled) and left.waited_s.tolist() == [0.004] * 3
    stopped = [("aten::mm", 100.0, 9000.0, [[64, 64], [64, 64]])]
    alike = [("aten::mm", 9200.0 + 400 * i, 300.0, [[64, 64], [64, 64]]) for i in range(10)]
    trace, steps = _crowded(kineto, tmp_path, [*stopped, *alike], [0.004] * 3)
    stalled, left = stalls(trace, steps)
    assert length(stalled) == pytest.approx(0.012) and left.waited_s.tolist() == pytest.approx([0.0] * 3)


def test_an_operation_that_calls_others_is_compared_whole(kineto: Any, tmp_path: Path) -> None:
    """Its stretches around them are short beside the one in which it works."""
    events: list[tuple[str, float, float, list[list[int]]]] = []
    for i in range(5):
        at, shapes = 3000.0 * i, [[64], [64, 64], [64, 64]]
        events += [("aten::addmm", at, 2500.0, shapes), ("aten::expand", at + 2, 5.0, [[64]]), ("aten::t", at + 10, 5.0, [[64]])]
    trace, steps = _crowded(kineto, tmp_path, events, [0.008] * 3)
    stalled, left = stalls(trace, steps)
    # none is cut alone; what the gaps cannot hold of the delays is shared by all of them
    assert len(stalled) == 15 and np.ptp(stalled, axis=1) == pytest.approx(length(stalled) / 15)
    assert left.waited_s.tolist() == pytest.approx([0.008 - length(stalled) / 3] * 3)


def test_a_gap_that_one_step_has_is_other_programs(kineto: Any, tmp_path: Path) -> None:
    """As ``minGPT`` had it where other programs took 86 % of the time: 5 ms between two operations in one step only. The 8 ms
    that each step has are its own Python, and an operation that stood still does not take the delay of the gap."""
    made = kineto(device={})
    for n in range(3):
        at, still, late = n * 40_000.0, 4500.0 * (n == 0), 5000.0 * (n == 1)
        made.step(n, at, 40_000)
        made.op("aten::mm", at, 4000 + still, [[64, 64], [64, 64]])
        made.op("aten::add", at + still + 12_000, 1000, [[64, 64]])
        made.op("aten::mul", at + still + late + 13_050, 26_950 - still - late, [[64, 64]])
    trace = read_trace(made.write(tmp_path / "t.json"))
    timed = [Step(0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 8, 0, wall_s=0.04, queue_s=s) for s in (0.0045, 0.005, 0.0)]
    steps = with_delays(find_steps(trace), timed)
    stalled, left = stalls(trace, steps)
    own = undisturbed(split_step(trace, steps, stalled), left, trace)
    assert left.waited_s.tolist() == pytest.approx([0.0, 0.0, 0.0], abs=1e-9)
    assert own.parts["other"] == pytest.approx(8e-3, rel=0.02)
    data = ProfileData(own, own, trace, left, stalled=stalled)
    products = np.flatnonzero(trace.named(lambda n: n == "aten::mm"))
    assert data.own_s(products).tolist() == pytest.approx([4e-3] * 3)
    assert data.seconds_within(data.spans_of(products)) == pytest.approx(4e-3)


def test_in_a_crowd_what_stood_still_is_cut_in_full(kineto: Any, tmp_path: Path) -> None:
    """As ``ode_demo.py`` had it where others took 81 % of the time: more stood still than the scheduler had counted."""
    made = kineto(device={})
    for n in range(3):
        at, still = n * 40_000.0, 30_000.0 * (n == 1)
        made.step(n, at, 40_000)
        made.op("aten::mm", at, 2000 + still, [[64, 64], [64, 64]])
        made.op("aten::mul", at + 2000 + still, 8000, [[64, 64]])
        made.op("aten::add", at + 40_000 - 30_000 * (n != 1), 0 if n == 1 else 30_000, [[512, 512]])
    trace = read_trace(made.write(tmp_path / "t.json"))
    for waited_s, cut_s in ((0.016, 0.030), (0.008, 0.008)):
        timed = [Step(0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 8, 0, wall_s=0.04, queue_s=waited_s * (n == 1)) for n in range(3)]
        stalled, left = stalls(trace, with_delays(find_steps(trace), timed))
        assert length(stalled) == pytest.approx(cut_s, rel=0.01) and not left.waited_s.any()


def test_parts_without_other_programs_add_up_to_the_steps_own_time(kineto: Any, tmp_path: Path) -> None:
    """Where more was waited in one step than its gaps are long, the rest is not left over in the others."""
    ops = [("aten::mm", 0, 8000, [[64, 64], [64, 64]]), ("aten::mm", 14_000, 6000, [[64, 32], [32, 64]])]
    trace, steps = _crowded(kineto, tmp_path, ops, [0.010, 0.000, 0.008])
    own = undisturbed(split_step(trace, steps), steps, trace)
    assert own.wall_s == pytest.approx(0.020 - 0.006)
    assert own.parts["other"] == pytest.approx(0.0, abs=1e-9)


def test_the_profilers_time_is_told_from_that_of_other_programs(kineto: Any, tmp_path: Path) -> None:
    """Traced steps without others' time are compared with such steps: of a step of 30 ms they had 20."""
    made = kineto(device={})
    for n in range(3):
        made.step(n, n * 20_000.0, 20_000)
        made.op("aten::mm", n * 20_000.0, 8000, [[64, 64], [64, 64]])
        for i in range(98):
            made.op("aten::add", n * 20_000.0 + 8000 + 100 * i, 20, [[4], [4]])
    trace = read_trace(made.write(tmp_path / "t.json"))
    split = split_step(trace, find_steps(trace))
    step = Step(0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 8, 0, wall_s=0.030, queue_s=0.020)
    fitted = [fit_to(split, trace, step, clean_s=s) for s in (step.wall_s, step.undisturbed_s)]
    # recording lies in the gaps around what it records
    shares = [f.parts["host gaps"] / f.wall_s for f in fitted]
    assert shares[0] == pytest.approx(97 * 80 / 20_000) and shares[1] < 0.5 * shares[0]


def test_two_optimizers_of_one_class_close_one_step(kineto: type[Any], tmp_path: Path) -> None:
    """A critic and an actor: the names in the trace are the same, the watch knows them apart."""
    made = kineto(device={})
    for number in range(6):
        for at in (8000, 9500):
            made.host("Optimizer.step#RMSprop.step", 10000 * number + at, 500, cat="user_annotation")
    trace = read_trace(made.write(tmp_path / "t.json"))
    assert find_steps(trace).n == 11
    steps = find_steps(trace, [0, 1] * 6)
    assert steps.n == 5 and steps.wall_s == pytest.approx(0.010)
