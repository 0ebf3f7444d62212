"""The lab's simulation against what was measured: latency hiding, strides, rooflines.

    python -m benchmarks.lab.truth DIR

``DIR`` holds latency_hiding_fma_v100.csv, l1_strides.csv and roofline_measured.csv. Prints a table for benchmarks/records/lab.
"""

from __future__ import annotations

import csv
import sys
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np

from gpuwise.facts.hardware.naming import find_accelerator
from gpuwise.facts.hardware.sm_timing import find_sm_timing
from gpuwise.lab import simulation
from gpuwise.lab.access import warp_access
from gpuwise.lab.compiler import NVCC
from gpuwise.lab.simulation import simulate_kernel
from gpuwise.units import GIB

FITTED_CELLS = {(1, 2), (32, 1)}
"""Of V100's table: what a branch costs, and the share of the FP64 rate that loops reach."""
TURNS = 128
FITTED_ROOFLINES = {"alex_a100_40", "alex_a40"}
"""Whose share of the FP32 rate is in sm_timing.csv; the others are checked."""
WITHOUT_ECC = {"alex_a40", "genoa_l40"}
"""They read 97.6 and 97.8 % of their peaks. Inline error correction takes a sixteenth of the traffic at least, so it was off."""
CARDS = {"alex_a100_40": "a100-sxm-40gb", "alex_a40": "a40", "genoa_l40": "l40", "h200": "gh200-96gb"}
"""The file called h200 is of March 2024, before any H200 was sold. It reads 3,780 GB/s, as the streams of the same collection do
on its GH200 (triad 3,783, writes 3,944 of 4,000); an H200 reads 4,480 (Dot of BabelStream, Azure AI-benchmarking-guide)."""
ROOFLINE_POINTS = (0, 2, 8, 16, 24, 32, 40, 48, 56, 64, 96, 128, 192, 256, 384, 512)


def dfma_source(chains: int) -> str:
    """A loop of at least 16 multiply-adds in so many independent chains, once unrolled."""
    each = -(-4 // chains)
    body = "\n".join(f"        v{c} = v{c} * b + a" for _ in range(each) for c in range(chains))
    first = "\n".join(f"    v{c} = a + float64({c})" for c in range(chains))
    total = " + ".join(f"v{c}" for c in range(chains))
    head = "def dfma(x, n):\n    i = cuda.grid(1)\n    a = x[i]\n    b = a + a\n"
    return f"{head}{first}\n    for k in range(n):\n{body}\n    x[i] = {total}\n"


def latency_hiding(folder: Path) -> list[tuple[int, int, float, float]]:
    """(warps, chains, measured, simulated) cycles a DFMA and SM."""
    card, found = find_accelerator("v100-sxm-16gb"), []
    for row in csv.DictReader((folder / "latency_hiding_fma_v100.csv").open()):
        if row["op"] != "DFMA":
            continue
        warps, chains = int(row["warps_per_sm"]), int(row["ilp"])
        threads = 32 * warps
        x = np.ones(80 * threads)
        arguments = {"x": x, "n": TURNS}
        made = simulate_kernel(dfma_source(chains), arguments, grid=(80,), block=(threads,), accelerator=card, compiler=NVCC)
        count = warps * TURNS * chains * -(-4 // chains)
        load = made.timing_constants.dram_cycles + made.timing_constants.fp64_cycles  # before the loop
        found.append((warps, chains, float(row["cycles_per_op_per_sm"]), (made.cycles - load) / count))
    return found


STRIDE_LANES, STRIDE_OFFSETS = 64, range(0, 32, 4)
"""The benchmark's threads take one of 64 places, a stride apart, and each reads eight elements there, four apart: most of its
loads do not begin on a line."""


def strides(folder: Path) -> dict[tuple[str, str], list[tuple[bool, float, float]]]:
    """(GPU, type) to (wavefronts equal, measured, simulated) cycles of a load that hits the L1."""
    found: dict[tuple[str, str], list[tuple[bool, float, float]]] = defaultdict(list)
    timings = {"a100": find_sm_timing("8.0"), "a40": find_sm_timing("8.6"), "h200": find_sm_timing("9.0")}
    for row in csv.DictReader((folder / "l1_strides.csv").open()):
        if row["pattern"] != "stride" or row["gpu"] not in timings:
            continue
        size, timing = (4 if row["type"] == "float" else 8), timings[row["gpu"]]
        places = np.arange(STRIDE_LANES).reshape(-1, 32) * int(row["size_or_stride"])
        lanes = np.concatenate([places + offset for offset in STRIDE_OFFSETS]) * size
        access = warp_access(lanes, np.ones(lanes.shape, bool), size)
        floor = timing.load_floor if size == 4 else timing.load_floor_64
        cycles = float(np.maximum(np.maximum(access.wavefronts, access.tags), floor).mean())
        counted = row["data_pipe_wavefronts_per_load"]
        equal = not counted or float(access.wavefronts[0]) == float(counted)
        found[row["gpu"], row["type"]].append((equal, float(row["cycles_per_warp_load"]), cycles))
    return found


ROOF = """def roof(x, y, out, m):
    at = cuda.blockIdx.x * 512 * m + cuda.threadIdx.x
    total = x[0] - x[0]
    for i in range(m):
        a = x[at + i * 512]
        b = y[at + i * 512]
        a2 = x[at + i * 512 + 256]
        b2 = y[at + i * 512 + 256]
        v = a - b
        v2 = a2 - b2
        for k in range({turns}):
            v = v * a - b
            v2 = v2 * a2 - b2
        total = total + v + v2
    if cuda.threadIdx.x == 0:
        out[cuda.blockIdx.x] = total
"""
"""The benchmark's work: two arrays are read, so many multiply-adds in two chains, next to nothing is written; blocks stay."""
USUAL_READS, READS, MORE_READS = 1.5, {"8.6", "8.9", "9.0"}, (range(16, 64), 1.99)
"""Cycles in which a multiply-add reads its registers, where a scheduler has 32 FP32 lanes and its four banks (the number modulo
4) give one each a cycle. The program as it stood when these rows were measured (RRZE-HPC/gpu-benches e4e93a3), compiled by ptxas
12.1, 12.4, 12.6: with 16 to 56 turns both chains read two registers of one bank (R11, R15, R10; R9, R13, R8), from 64 one does.
That there are four banks, not two, was chosen by the GH200's rows, as was this text of the program: they are no check of either.
``fma_share`` is of programs that take 1.5."""
TURNS_OF_BLOCK, TURNS_OF_LONG_ONE, LONG_TURN = (8, 24), (2, 8), 128
"""Turns of a block: the pace is that of those between, start and end left out. Two of a few multiply-adds still hold the start;
longer ones than the last number are bound by arithmetic from the first on."""


def rooflines(folder: Path) -> list[tuple[str, int, float, float]]:
    """(GPU, multiply-adds, measured, simulated) GFLOP/s of cards' medians; clock and blocks are the measured ones."""
    rows: dict[tuple[str, int], list[tuple[float, float, int]]] = defaultdict(list)
    for row in csv.DictReader((folder / "roofline_measured.csv").open()):
        if row["gpu"] in CARDS and int(row["iterations"]) in ROOFLINE_POINTS:
            measured = float(row["gflop_s"]), float(row["clock_mhz"]), int(row["blocks"])
            rows[row["gpu"], int(row["iterations"])].append(measured)
    found: list[tuple[str, int, float, float]] = []
    for (gpu, turns), values in sorted(rows.items()):
        card = find_accelerator(CARDS[gpu])
        card = replace(card, boost_hz=1e6 * float(np.median([v[1] for v in values])))
        if gpu in WITHOUT_ECC and card.memory_nominal_gb is not None:
            card = replace(card, memory_bytes=card.memory_nominal_gb * GIB)
        timing = find_sm_timing(card.compute_capability or "")
        if card.compute_capability in READS and turns in MORE_READS[0]:
            timing = replace(timing, fma_share=timing.fma_share * USUAL_READS / MORE_READS[1])
        simulation.find_sm_timing = lambda _, timing=timing: timing
        blocks, times = values[0][2], list[float]()
        short, long = TURNS_OF_BLOCK if turns <= LONG_TURN else TURNS_OF_LONG_ONE
        for m in (short, long):
            x, y = np.ones((2, blocks * 512 * m), np.float32)
            arguments = {"x": x, "y": y, "out": np.zeros(blocks, np.float32), "m": m}
            source = ROOF.format(turns=turns)
            made = simulate_kernel(
                source, arguments, grid=(blocks,), block=(256,), accelerator=card, regs_per_thread=32, compiler=NVCC
            )
            times.append(made.time_s)
        flop = blocks * 512 * (long - short) * (2 * turns + 2)
        found.append((gpu, turns, float(np.median([v[0] for v in values])), flop / (times[1] - times[0]) / 1e9))
    simulation.find_sm_timing = find_sm_timing
    return found


def _line(name: str, errors: list[float], more: str = "") -> str:
    e = np.abs(np.array(errors))
    return f"| {name} | {len(e)} | {100 * e.mean():.1f} % | {100 * np.median(e):.1f} % | {100 * e.max():.1f} % | {more} |"


def main(folder: Path) -> None:
    began = time.process_time()
    print("| what | rows | mean error | median | largest | |\n|---|---|---|---|---|---|")
    hiding = latency_hiding(folder)
    for name, fitted in (("latency hiding, V100 DFMA, fitted cells", True), ("the others", False)):
        print(_line(name, [s / m - 1 for w, c, m, s in hiding if ((w, c) in FITTED_CELLS) == fitted]))
    for (gpu, kind), rows in strides(folder).items():
        exact = sum(equal for equal, _, _ in rows)
        print(_line(f"stride cycles, {gpu} {kind}", [s / m - 1 for _, m, s in rows], f"wavefronts {exact} of {len(rows)} exact"))
    roofs = rooflines(folder)
    for gpu in dict.fromkeys(r[0] for r in roofs):
        mine = [s / m - 1 for g, _, m, s in roofs if g == gpu]
        print(_line(f"roofline, {gpu}", mine, "fitted" if gpu in FITTED_ROOFLINES else "not fitted; banks chosen on it"))
    print(f"\n{time.process_time() - began:.0f} s of processor time")
    if "--rows" in sys.argv:
        print(*hiding, *roofs, sep="\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
