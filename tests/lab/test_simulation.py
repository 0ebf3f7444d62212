"""Time of kernels: the laws of banks, sectors, latency hiding and bandwidth, and the document."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gpuwise.errors import InputError, UnpredictableError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.hardware.cpus import find_cpu
from gpuwise.facts.hardware.naming import find_accelerator
from gpuwise.facts.hardware.sm_timing import sm_timings
from gpuwise.lab.access import warp_access
from gpuwise.lab.beside_cpu import cpu_time, crossover, side
from gpuwise.lab.documents import cache_note, dram_bytes
from gpuwise.lab.simulation import Simulation, simulate_kernel, simulate_task
from gpuwise.lab.tasks import TASKS, launch_of
from gpuwise.predict.cpu import stream_time
from gpuwise.predict.kernels import single
from gpuwise.units import GIB, format_rate

V100, A100 = find_accelerator("v100-sxm-16gb"), find_accelerator("a100-sxm-80gb")
DFMA = """
def dfma(x, n):
    i = cuda.grid(1)
    v = x[i]
    a = v + v
    for k in range(n):
        v = v * a + a
        v = v * a + a
        v = v * a + a
        v = v * a + a
    x[i] = v
"""


def lanes(stride: int, size: int) -> Any:
    return np.arange(64)[:, None] * 128 + np.arange(32) * stride * size


@pytest.mark.parametrize("size", [4, 8])
def test_bank_conflicts_are_the_common_divisor_of_stride_and_banks(size: int) -> None:
    """Counted by the profiler at each of these strides on A100 and A40 (l1tex__data_pipe_lsu_wavefronts)."""
    for stride in range(1, 65):
        made = warp_access(lanes(stride, size), np.ones((64, 32), bool), size)
        conflicts = np.gcd(stride, 32) if size == 4 else 2 * min(np.gcd(stride, 16), 16)
        assert (made.wavefronts == conflicts).all(), stride


def test_sectors_and_lines() -> None:
    every, half = np.ones((64, 32), bool), np.arange(32) < 16
    assert (warp_access(lanes(1, 4), every, 4).sectors == 4).all()
    assert (warp_access(lanes(8, 4), every, 4).sectors == 32).all()
    assert (warp_access(lanes(1, 8), every, 8).sectors == 8).all()
    assert (warp_access(lanes(1, 4), np.broadcast_to(half, (64, 32)), 4).sectors == 2).all()
    assert (warp_access(lanes(0, 4), every, 4).wavefronts == 1).all()
    assert (warp_access(lanes(1, 4), ~every, 4).sectors == 0).all()


def test_tags_serve_four_lines_a_cycle_at_most() -> None:
    every = np.ones((64, 32), bool)
    tags = {stride: warp_access(lanes(stride, 4), every, 4).tags for stride in (1, 32, 64)}
    assert 8 <= tags[64].mean() < 9  # measured: 8.0
    assert (tags[1] == 1).all()
    assert abs(float(tags[32].mean()) / 8.3 - 1) < 0.06


def dfma(warps: int) -> Simulation:
    x = np.ones(80 * 32 * warps)
    return simulate_kernel(DFMA, {"x": x, "n": 128}, grid=(80,), block=(32 * warps,), accelerator=V100)


@pytest.mark.parametrize(("warps", "measured"), [(1, 8.67), (2, 4.29), (4, 2.14), (8, 1.08), (16, 1.03)])
def test_latency_hiding_on_a_v100(warps: int, measured: float) -> None:
    """RRZE gpu-benches: cycles a DFMA and SM, dependent ones; the load before the loop taken off."""
    made = dfma(warps)
    before = made.timing_constants.dram_cycles + made.timing_constants.fp64_cycles
    assert abs((made.cycles - before) / (warps * 128 * 4) / measured - 1) < 0.12


def test_a_copy_takes_what_the_kernel_model_says() -> None:
    """One voice: the sustained bandwidth is that of `gpuwise op stream`."""
    made = simulate_task(TASKS["vector-add"], launch_of(TASKS["vector-add"], 1 << 22), A100)
    sustained = 2e9 / float(single.stream(A100, 1e9, 1e9).time_s[0])
    moved = made.counters["dram_bytes"] * made.blocks / made.blocks_timed
    assert made.bound == "memory bandwidth" and abs(moved / made.time_s / sustained - 1) < 0.06


SUMS = """
def sums(x, out, m):
    at = cuda.blockIdx.x * 256 * m + cuda.threadIdx.x
    total = float32(0.0)
    for i in range(m):
        total += x[at + i * 256]
    if cuda.threadIdx.x == 0:
        out[cuda.blockIdx.x] = total
"""


def reading_rate(device: Accelerator, turns: int = 16) -> float:
    """Bytes/s that a kernel reads which writes next to nothing."""
    times: list[float] = []
    blocks = 6 * (device.compute_units or 1)
    for m in (turns, 2 * turns):
        arguments = {"x": np.zeros(blocks * 256 * m, np.float32), "out": np.zeros(blocks, np.float32), "m": m}
        times.append(simulate_kernel(SUMS, arguments, grid=(blocks,), block=(256,), accelerator=device).time_s)
    return 4.0 * blocks * 256 * turns / (times[1] - times[0])


def without_ecc(name: str) -> Accelerator:
    card = find_accelerator(name)
    return replace(card, memory_bytes=(card.memory_nominal_gb or 0.0) * GIB)


@pytest.mark.parametrize(
    ("card", "measured"),
    [(without_ecc("a40"), 679e9), (without_ecc("l40"), 845e9), (find_accelerator("a100-sxm-40gb"), 1372e9)],
    ids=["A40", "L40", "A100"],
)
def test_a_kernel_that_only_reads_is_as_fast_as_measured(card: Accelerator, measured: float) -> None:
    """Rooflines of RRZE gpu-benches at their least arithmetic; error correction of the GDDR off, as it was there."""
    assert abs(reading_rate(card) / measured - 1) < 0.04


def task(name: str, size: int) -> Simulation:
    return simulate_task(TASKS[name], launch_of(TASKS[name], size), A100, timed_issues=15_000)


def test_padding_takes_the_bank_conflicts_away() -> None:
    plain, padded = task("transpose", 512), task("transpose-padded", 512)
    assert plain.checked and padded.checked
    assert plain.counters["bank_conflicts"] > 0 == padded.counters["bank_conflicts"]
    assert plain.bound == "load unit" and plain.time_s > 1.3 * padded.time_s


def test_tiles_bring_fewer_sectors_and_less_time() -> None:
    naive, tiled = task("matmul-naive", 96), task("matmul-tiled", 96)
    assert tiled.counters["sectors"] < 0.3 * naive.counters["sectors"]


def test_divergent_lanes_are_counted() -> None:
    assert task("divergence", 20_000).counters["active_lanes"] < 0.6 < 0.99 < task("vector-add", 25_600).counters["active_lanes"]


def test_a_gather_uses_little_of_what_it_fetches() -> None:
    assert task("gather", 50_000).counters["useful_share"] < 0.45


@pytest.mark.parametrize(("n", "measured_us"), [(1 << 20, 4.5), (1 << 22, 15.2)])
def test_additions_to_one_address_wait_for_each_other(n: int, measured_us: float) -> None:
    """Measured on an H100, launch and events taken off (benchmarks/records/gpu/card_2026-11-26.md)."""
    task = next(t for t in TASKS.values() if t.name == "reduction")
    made = simulate_task(task, launch_of(task, n), find_accelerator("H100-SXM"))
    assert made.time_s * 1e6 == pytest.approx(measured_us, rel=0.25)
    assert made.bound == "atomics to one address"


STRIDED = """
def strided(x, out, n, stride):
    i = cuda.grid(1)
    if i < n:
        out[i] = x[i * stride]
"""


@pytest.mark.parametrize(("gpu", "pieces"), [("H100-SXM", 2), ("A100-SXM-80GB", 1)])
def test_memory_comes_in_pieces_of_64_bytes_on_an_h100(gpu: str, pieces: int) -> None:
    """Its loads 64 bytes apart take 1.9 times those 32 bytes apart (benchmarks/records/gpu/card_2026-11-26.md)."""
    n = 1 << 18

    def bytes_read(stride: int) -> float:
        arguments = {"x": np.ones(n * stride, np.float32), "out": np.zeros(n, np.float32), "n": n, "stride": stride}
        made = simulate_kernel(STRIDED, arguments, grid=(n // 256,), block=(256,), accelerator=find_accelerator(gpu))
        return made.counters["dram_bytes"]  # what it writes stays in the L2

    assert bytes_read(16) == pytest.approx(pieces * bytes_read(8), rel=0.02)


def test_the_document_is_plain_and_holds_a_timeline() -> None:
    made = task("softmax", 40)
    document = json.loads(json.dumps(made.to_document(), allow_nan=False))
    assert document["checked"] is True and document["findings"] == []
    assert sum(s["share"] for s in document["stalls"]) + document["counters"]["issue_share"] > 0.99 or document["stalls"]
    spans = document["timeline"]
    assert spans and set(spans[0]) == {"warp", "scheduler", "cycle", "op", "line", "after"}
    assert all(s["scheduler"] == s["warp"] % 4 for s in spans)
    by_slot = [(s["scheduler"], s["cycle"]) for s in spans]
    assert len(by_slot) == len(set(by_slot))  # a scheduler issues one instruction a cycle


def test_the_gpu_wins_from_some_size_on_and_later_with_copies() -> None:
    cpu = find_cpu("EPYC 9654")
    launch = launch_of(TASKS["vector-add"], 4096)
    small = side(TASKS["vector-add"], launch, 4096, task("vector-add", 4096), A100, cpu)
    assert small.gpu_and_copies_s > small.gpu_s > small.kernel_s > 0
    found = crossover(TASKS["reduction"], A100, cpu)
    assert len(found.sides) >= 3 and set(found.to_document()) == {"sizes", "crossover", "crossover_with_copies"}
    assert found.size is None or found.size_with_copies is None or found.size <= found.size_with_copies


def test_a_transposition_on_a_processor_takes_as_much_longer_than_a_copy_as_measured() -> None:
    """One core of a Xeon, 2,048 to 8,192 square: 3.0 to 3.3 GB/s where a copy has 12.3 (benchmarks/records/lab)."""
    cpu = find_cpu("EPYC 9654")
    launch = launch_of(TASKS["transpose"], 4096)
    found = cpu_time(TASKS["transpose"], launch, 4096, cpu).memory_s / stream_time(cpu, 4.0 * 4096**2, 4.0 * 4096**2).memory_s
    assert 12.3 / 3.3 < found < 12.3 / 3.0


def test_what_no_gpu_runs_is_refused() -> None:
    arguments = {"x": np.zeros(64, np.float32)}
    with pytest.raises(InputError, match="1,024"):
        simulate_kernel("def k(x):\n    pass", arguments, grid=(1,), block=(2000,), accelerator=A100)
    big = "def k(x):\n    s = cuda.shared.array(60000, float32)\n    s[0] = 1.0"
    with pytest.raises(InputError, match="shared memory"):
        simulate_kernel(big, arguments, grid=(1,), block=(32,), accelerator=A100)
    with pytest.raises(UnpredictableError, match=r"6\.0"):
        simulate_kernel("def k(x):\n    pass", arguments, grid=(1,), block=(32,), accelerator=find_accelerator("p100-pcie-16gb"))


def test_every_timed_capability_is_of_the_table_of_limits() -> None:
    from gpuwise.facts.hardware.sm_limits import sm_limits

    assert set(sm_timings()) <= set(sm_limits())


def test_a_line_of_the_document_has_its_text() -> None:
    """Of a function too, whose comments count as lines."""

    def double(x: Any) -> None:
        # two of them
        i = cuda.grid(1)  # type: ignore[name-defined]  # noqa: F821

        x[i] = x[i] * 2.0

    made = simulate_kernel(double, {"x": np.ones(64)}, grid=(1,), block=(64,), accelerator=V100).to_document()
    assert "x[i] = x[i] * 2.0" in [line["text"] for line in made["lines"]]


@pytest.mark.thorough
@pytest.mark.parametrize(("turns", "measured"), [(72, 5346.0), (96, 6904.0), (160, 11034.0)])
def test_multiply_adds_wait_while_registers_are_filled(turns: int, measured: float) -> None:
    """Cycles of a turn of eight blocks on an A100 40GB at 1,410 MHz, four loads a thread (RRZE-HPC/gpu-benches, gpu-roofline):
    where arithmetic binds, the loads take as long as they would alone."""
    source = (
        "def roof(x, y, out, m):\n"
        "    at = cuda.blockIdx.x * 512 * m + cuda.threadIdx.x\n"
        "    total = x[0] - x[0]\n"
        "    for i in range(m):\n"
        "        a = x[at + i * 512]\n        b = y[at + i * 512]\n"
        "        c = x[at + i * 512 + 256]\n        d = y[at + i * 512 + 256]\n"
        "        v = a - b\n        w = c - d\n"
        f"        for k in range({turns}):\n            v = v * a - b\n            w = w * c - d\n"
        "        total = total + v + w\n"
        "    if cuda.threadIdx.x == 0:\n        out[cuda.blockIdx.x] = total\n"
    )
    card, cycles = find_accelerator("a100-sxm-40gb"), list[float]()
    for m in (2, 8):
        x, y = np.ones((2, 864 * 512 * m), np.float32)
        arguments = {"x": x, "y": y, "out": np.zeros(864, np.float32), "m": m}
        cycles.append(simulate_kernel(source, arguments, grid=(864,), block=(256,), accelerator=card).cycles)
    assert (cycles[1] - cycles[0]) / 6 == pytest.approx(measured, rel=0.05)


H100_CASES = {
    "65,536 blocks that do nothing": ("def k(x):\n    i = cuda.grid(1)\n", np.zeros(1, np.float32), 65536, 32, 39.3),
    "2^20 additions to 256 words at random": (
        "def k(x, at):\n    i = cuda.grid(1)\n    cuda.atomic.add(x, at[i], 1)\n",
        np.zeros(256, np.int32),
        4096,
        256,
        269.0,
    ),
    "as many to 256 words side by side": (
        "def k(x, at):\n    i = cuda.grid(1)\n    cuda.atomic.add(x, cuda.threadIdx.x, 1)\n",
        np.zeros(256, np.int32),
        1056,
        256,
        11.8,
    ),
}
"""Microseconds on an H100 (benchmarks/records/lab/card_2026-11-27f.md)."""


@pytest.mark.parametrize("name", H100_CASES)
def test_blocks_and_atomics_take_their_turns_on_an_h100(name: str) -> None:
    source, x, blocks, threads, measured = H100_CASES[name]
    arguments = {"x": x.copy()}
    if "at" in source.split("\n")[0]:
        arguments["at"] = np.random.default_rng(3).integers(0, 256, blocks * threads).astype(np.int32)
    made = simulate_kernel(source, arguments, grid=(blocks,), block=(threads,), accelerator=find_accelerator("H100-SXM"))
    assert made.time_s == pytest.approx(measured * 1e-6, rel=0.3)


def test_a_store_of_part_of_a_sector_takes_the_l2_twice() -> None:
    """Rows written by their columns: 73 us on an H100, 2.4 times what reading them so takes."""
    n = 2048
    source = "def k(out, a):\n    x, y = cuda.grid(2)\n    out[x, y] = a[y, x]\n"
    arguments = {"out": np.zeros((n, n), np.float32), "a": np.ones((n, n), np.float32)}
    made = simulate_kernel(source, arguments, grid=(64, 256), block=(32, 8), accelerator=find_accelerator("H100-SXM"))
    assert made.time_s == pytest.approx(73e-6, rel=0.15)


def test_the_blocks_that_were_not_timed_count_with_their_own_turns() -> None:
    """One block in eight turns 60 times, the others once; of the blocks of the multiprocessor that is timed two or twelve do."""
    text = """
def k(x, turns):
    i = cuda.grid(1)
    v = x[i]
    n = 0
    while n < turns[cuda.blockIdx.x]:
        v = v * float32(1.5) + float32(0.5)
        n += 1
    x[i] = v
"""
    blocks, times, of_one = 4096, [], np.arange(0, 4096, 108)
    for long_ones in (2, 12):
        turns = np.where(np.random.default_rng(4).random(blocks) < 1 / 8, 60, 1)
        turns[of_one] = 1
        turns[of_one[:: len(of_one) // long_ones]] = 60
        x = np.zeros(256 * blocks, np.float32)
        made = simulate_kernel(text, {"x": x, "turns": turns}, grid=(blocks,), block=(256,), accelerator=A100)
        times.append(made.time_s)
    assert times[1] == pytest.approx(times[0], rel=0.4)


def test_atomics_wait_for_what_their_blocks_do_before() -> None:
    text = """
def k(bins, x):
    i = cuda.grid(1)
    v = x[i]
    for _ in range({turns}):
        v = v * float32(1.5) + float32(0.5)
    cuda.atomic.add(bins, cuda.threadIdx.x, int(v))
"""
    taken = {}
    for turns in (1, 1000):
        arguments = {"bins": np.zeros(256, np.int32), "x": np.zeros(108 * 8 * 256, np.float32)}
        made = simulate_kernel(text.replace("{turns}", str(turns)), arguments, grid=(108 * 8,), block=(256,), accelerator=A100)
        taken[turns] = made.cycles - made.counters["atomic_cycles"]
    assert made.counters["atomic_cycles"] > 1000
    assert taken[1000] > 1000 * 4 > 2 * taken[1]  # one wave of blocks: all come to their additions together


@pytest.mark.parametrize(("expression", "slow"), [("float32(1.0) / math.sqrt(v)", 100), ("float32(1.0) / v", 50)])
def test_a_root_and_the_reciprocal_of_it_are_two_functions(expression: str, slow: int) -> None:
    """Cycles of one, in a chain; ptxas keeps both with a jump of its own (56 and about 58 on an H100)."""
    cycles = []
    for n in (8, 16):
        text = "import math\ndef k(x):\n    i = cuda.grid(1)\n    v = x[i]\n" + f"    v = {expression}\n" * n + "    x[i] = v\n"
        x = np.full(32 * 132, 1.5, np.float32)
        cycles.append(simulate_kernel(text, {"x": x}, grid=(132,), block=(32,), accelerator=find_accelerator("H100-SXM")).cycles)
    assert slow < (cycles[1] - cycles[0]) / 8 < 1.6 * slow


def _check_within_memory(task: str, gpu: str) -> None:
    """Bytes that cross the memory's pins stay below its rate, and what is faster names the cache, which holds the rest."""
    card, asked = find_accelerator(gpu), TASKS[task]
    launch = launch_of(asked, asked.usual)
    made = simulate_task(asked, launch, card)
    assert dram_bytes(made) / made.time_s <= card.memory_bandwidth_bytes_per_s * (1 + 1e-9)
    note = cache_note(made, launch.copied_bytes, card)
    assert (note is not None) == (launch.copied_bytes / made.time_s > card.memory_bandwidth_bytes_per_s)
    if note is not None:
        assert "L2 cache" in note and launch.copied_bytes - dram_bytes(made) <= (card.l2_bytes or 0.0)


@pytest.mark.parametrize("task", ["vector-add", "transpose"])
def test_no_task_is_above_the_memory_without_the_cache(task: str) -> None:
    """Tasks were at 116 to 163 % of the card's bandwidth, bound by memory, without a word."""
    _check_within_memory(task, "l40s")


@pytest.mark.slow
@pytest.mark.parametrize("task", list(TASKS))
@pytest.mark.parametrize("gpu", ["l40s", "rtx-4090", "t4", "rtx-2080-ti", "a100-sxm-80gb", "h100-sxm", "rtx-5090", "l4"])
def test_no_task_of_any_card_is_above_the_memory(task: str, gpu: str) -> None:
    _check_within_memory(task, gpu)


LINES = (("a100-sxm-80gb", "h100-sxm-80gb", "h200-sxm-141gb", "b200-sxm"), ("rtx-2080-ti", "rtx-3090", "rtx-4090", "rtx-5090"))
"""GPUs of a line, each with more bandwidth and multiprocessors than the one before (an H200 has as many as an H100)."""


def _check_newer_is_not_slower(task: str, size: int) -> None:
    for line in LINES:
        launch = launch_of(TASKS[task], size)
        made = [simulate_task(TASKS[task], launch, find_accelerator(name), timed_issues=15_000) for name in line]
        for old, new in itertools.pairwise(made):
            # a task that waits for single accesses shows their latency, which may be longer on a larger GPU
            assert new.time_s <= 1.02 * old.time_s or new.bound == "memory latency", (task, size, old.device, new.device)


@pytest.mark.parametrize("task", ["gather", "vector-add"])
def test_a_newer_larger_gpu_of_a_line_is_not_slower(task: str) -> None:
    """A gather took an A100 half as long as an H100: one of them had the limit of its L2 cache, the other had none."""
    _check_newer_is_not_slower(task, 1 << 21)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1 << 14, 1 << 18, 1 << 20, 1 << 23])
@pytest.mark.parametrize("task", ["gather", "vector-add", "divergence", "reduction"])
def test_a_newer_larger_gpu_of_a_line_is_not_slower_at_any_size(task: str, size: int) -> None:
    _check_newer_is_not_slower(task, size)


def test_the_cache_that_limits_a_gather_is_named() -> None:
    made = simulate_task(TASKS["gather"], launch_of(TASKS["gather"], 1 << 21), A100, timed_issues=15_000)
    assert made.bound == "L2 bandwidth"


def test_a_rate_above_the_memory_comes_with_the_rate_of_the_memory() -> None:
    card, launch = find_accelerator("rtx-4090"), launch_of(TASKS["vector-add"], 1 << 22)
    made = simulate_task(TASKS["vector-add"], launch, card)
    note = cache_note(made, launch.copied_bytes, card)
    assert note is not None and "what is written last stays in the 72 MiB L2 cache" in note
    for rate in (launch.copied_bytes / made.time_s, dram_bytes(made) / made.time_s):
        assert format_rate(rate, "B/s") in note
