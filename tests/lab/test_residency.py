"""Occupancy against NVIDIA's own calculator, and what to change."""

from __future__ import annotations

import math
import os
import random
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, files, version
from pathlib import Path

import pytest

from gpuwise.errors import InputError, UnknownNameError
from gpuwise.facts.hardware.sm_limits import find_sm_limits, sm_limits
from gpuwise.lab import occupancy
from gpuwise.lab.residency import changes, naive_blocks, occupancy_chart, refusal

ANSWERS = [
    "status",
    "active_blocks",
    "limit_warps",
    "limit_blocks",
    "limit_regs",
    "limit_smem",
    "limit_barriers",
    "limiting_factors",
    "regs_allocated_per_block",
    "smem_allocated_per_block",
]
ASKED = ["block_threads", "regs_per_thread", "static_smem", "dynamic_smem", "carveout_percent", "optin", "block_barriers"]
RANDOM_CASES, ALL_CASES = 10_000, 100_000
PROGRAM = r"""
#include <stddef.h>
#include <stdio.h>
#include <limits.h>
#include "cuda_occupancy.h"
int main(void) {
  cudaOccDeviceProp p; cudaOccFuncAttributes a; cudaOccDeviceState s; cudaOccResult r;
  long sb, ss, so, rv; int bt, regs, st, dy, carve, opt, bars;
  while (scanf("%d %d %d %d %d %d %d %ld %ld %ld %ld %d %d %d %d %d %d %d", &p.computeMajor, &p.computeMinor,
      &p.maxThreadsPerBlock, &p.maxThreadsPerMultiprocessor, &p.regsPerBlock, &p.regsPerMultiprocessor, &p.warpSize,
      &sb, &ss, &so, &rv, &bt, &regs, &st, &dy, &carve, &opt, &bars) == 18) {
    p.sharedMemPerBlock = sb; p.sharedMemPerMultiprocessor = ss; p.sharedMemPerBlockOptin = so;
    p.reservedSharedMemPerBlock = rv; p.numSms = 1;
    a.maxThreadsPerBlock = p.maxThreadsPerBlock; a.numRegs = regs; a.sharedSizeBytes = st;
    a.partitionedGCConfig = PARTITIONED_GC_OFF; a.maxDynamicSharedSizeBytes = dy; a.numBlockBarriers = bars;
    a.shmemLimitConfig = opt ? FUNC_SHMEM_LIMIT_OPTIN : FUNC_SHMEM_LIMIT_DEFAULT; a.virtualResourceCount = 0;
    s.cacheConfig = CACHE_PREFER_NONE; s.carveoutConfig = carve;
    int status = cudaOccMaxActiveBlocksPerMultiprocessor(&r, &p, &a, &s, bt, dy);
    printf("%d %d %d %d %d %d %d %u %d %ld\n", status, r.activeBlocksPerMultiprocessor, r.blockLimitWarps,
        r.blockLimitBlocks, r.blockLimitRegs, r.blockLimitSharedMem, r.blockLimitBarriers, r.limitingFactors,
        r.allocatedRegistersPerBlock, (long)r.allocatedSharedMemPerBlock);
  }
}
"""


def header() -> Path | None:
    """NVIDIA's calculator: from the wheel nvidia-cuda-runtime, or where ``CUDA_OCCUPANCY_H`` says."""
    if "CUDA_OCCUPANCY_H" in os.environ:
        return Path(os.environ["CUDA_OCCUPANCY_H"])
    try:
        found = [Path(str(f.locate())) for f in files("nvidia-cuda-runtime") or () if f.name == "cuda_occupancy.h"]
    except PackageNotFoundError:
        return None
    return next((f for f in found if f.is_file()), None)


def random_case(dice: random.Random) -> tuple[str, list[int]]:
    """One question; a third of all near the edges that rules have."""
    sm = dice.choice(list(sm_limits().values()))
    edges = [sm.shared_per_block, sm.shared_per_block_optin, *sm.carveouts, sm.reserved_per_block, 128, 256]
    near = dice.choice(edges) + dice.choice((-1, 0, 1, -sm.reserved_per_block))
    block = dice.choice((dice.randint(1, 1100), 32 * dice.randint(1, 33)))
    regs = dice.choice((dice.randint(0, 257), dice.randint(16, 64)))
    static = max(dice.choice((0, 0, dice.randint(0, 60_000), near)), 0)
    dynamic = max(dice.choice((0, 0, dice.randint(0, 240_000), near)), 0)
    carve = dice.choice((-1, dice.randint(0, 100)))
    return sm.compute_capability, [block, regs, static, dynamic, carve, dice.randint(0, 1), dice.randint(0, 17)]


@pytest.mark.parametrize("n", [RANDOM_CASES, pytest.param(ALL_CASES, marks=pytest.mark.thorough)])
def test_equals_nvidias_header_on_random_questions(n: int, tmp_path: Path) -> None:
    compiler, source = shutil.which("gcc") or shutil.which("cc"), header()
    if compiler is None or source is None:
        pytest.skip("needs a C compiler and the wheel nvidia-cuda-runtime (its cuda_occupancy.h)")
    (tmp_path / "ask.c").write_text(PROGRAM)
    subprocess.run([compiler, "-w", "-I", str(source.parent), "ask.c", "-o", "ask"], cwd=tmp_path, check=True)
    dice = random.Random(18)
    cases = [random_case(dice) for _ in range(n)]
    if int(version("nvidia-cuda-runtime").split(".")[1]) < 3:  # before 13.3: 64 barriers at compute capability 10.3, now 32
        cases = [(capability, asked) for capability, asked in cases if capability != "10.3"]
    lines: list[str] = []
    for capability, asked in cases:
        sm = find_sm_limits(capability)
        shared = [sm.shared_per_block, sm.carveouts[-1], sm.shared_per_block_optin, sm.reserved_per_block]
        device = [1024, sm.warps_per_sm * 32, sm.registers_per_block, sm.registers_per_sm, 32, *shared]
        lines.append(" ".join(map(str, [*capability.split("."), *device, *asked])))
    said = subprocess.run([tmp_path / "ask"], input="\n".join(lines), capture_output=True, text=True, check=True).stdout
    wrong: list[object] = []
    for (capability, asked), line in zip(cases, said.splitlines(), strict=True):
        answer = occupancy(capability, **dict(zip(ASKED, asked, strict=True)))  # type: ignore[arg-type]
        expected = [math.inf if int(x) == 2**31 - 1 else int(x) for x in line.split()]
        if [getattr(answer, name) for name in ANSWERS] != expected:
            wrong.append((capability, asked, answer, expected))
    assert not wrong, (len(wrong), wrong[:3])


@pytest.mark.parametrize(
    ("capability", "block", "regs", "shared", "blocks", "naive"),
    [
        ("7.0", 128, 37, 0, 12, 12),  # CUDA C++ Best Practices Guide: 75 %
        ("7.0", 320, 37, 0, 4, 5),  # the same: 63 %; 65,536 / 12,800 = 5.12
        ("9.0", 32, 8, 12288, 17, 19),  # Modal's GPU glossary says 19
        ("8.9", 256, 72, 0, 3, 3),
    ],
)
def test_published_examples(capability: str, block: int, regs: int, shared: int, blocks: int, naive: int) -> None:
    answer = occupancy(capability, block_threads=block, regs_per_thread=regs, static_smem=shared)
    assert (answer.active_blocks, naive_blocks(answer)) == (blocks, naive)


@pytest.mark.parametrize("written", ["9.0", 9.0, (9, 0), "sm_90", "sm_90a", "90", "compute_90"])
def test_a_capability_is_read_as_people_write_it(written: str | float | tuple[int, int]) -> None:
    assert occupancy(written, block_threads=256).compute_capability == "9.0"


def test_an_unknown_capability_names_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match=r"10\.7") as caught:
        occupancy("10.7", block_threads=32)
    assert caught.value.hint and "12.1" in caught.value.hint
    with pytest.raises(InputError):
        occupancy("volta", block_threads=32)


def test_what_no_launch_accepts_is_said() -> None:
    block = occupancy("7.0", block_threads=2000)
    shared = occupancy("7.0", block_threads=32, dynamic_smem=100_000, optin=True)
    assert block.active_blocks == shared.active_blocks == 0
    assert "1,024" in str(refusal(block)) and "98,304" in str(refusal(shared))
    assert refusal(occupancy("7.0", block_threads=1024, regs_per_thread=64)) is None
    with pytest.raises(InputError):
        occupancy("7.0", block_threads=0)


def test_every_change_does_what_it_says() -> None:
    for o in (
        occupancy("7.0", block_threads=320, regs_per_thread=37),
        occupancy("9.0", block_threads=32, regs_per_thread=8, dynamic_smem=12288),
        occupancy("8.6", block_threads=64, regs_per_thread=24, dynamic_smem=60_000),
        occupancy("10.0", block_threads=64, regs_per_thread=24, block_barriers=8),
        occupancy("8.0", block_threads=64, regs_per_thread=24, static_smem=10_000, carveout_percent=10),
    ):
        ways = changes(o)
        assert ways and all(way.occupancy > o.occupancy for way in ways)
        assert [w.occupancy for w in ways] == sorted((w.occupancy for w in ways), reverse=True)
    assert changes(occupancy("9.0", block_threads=256, regs_per_thread=32)) == ()


def test_the_chart_is_what_each_question_answers() -> None:
    o = occupancy("7.0", block_threads=320, regs_per_thread=37)
    chart = occupancy_chart(o, (128, 320), (37, 64))
    assert chart == [[0.75, 0.625], [0.5, occupancy("7.0", block_threads=320, regs_per_thread=64).occupancy]]
