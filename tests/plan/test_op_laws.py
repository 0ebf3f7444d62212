"""Laws between answers of ``gpuwise op``: random valid questions about every device, in one process."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from gpuwise.errors import GpuwiseError
from gpuwise.facts.hardware.accelerators import Accelerator, accelerators
from gpuwise.facts.hardware.cpus import Cpu, cpus
from gpuwise.facts.hardware.systems import Cluster, default_system
from gpuwise.facts.hardware.targets import find_target
from gpuwise.plan import one_op
from gpuwise.predict.kernels.transfer import host_link_peak_bytes_per_s

ROUNDING = 1 + 1e-9
LINES = (
    ("v100-sxm-16gb", "a100-sxm-40gb", "a100-sxm-80gb", "h100-sxm-80gb", "h200-sxm-141gb", "b200-sxm"),
    ("rtx-2080-ti", "rtx-3090", "rtx-4090", "rtx-5090"),
    ("rtx-3060-12gb", "rtx-3070", "rtx-3080-10gb", "rtx-3090"),
    ("mi210", "mi250x", "mi300x", "mi325x"),
)
"""GPUs of a line, each with more bandwidth and arithmetic than the one before."""


def power(dice: random.Random, low: int, high: int) -> int:
    return round(2 ** dice.uniform(low, high))


def questions(seed: int, count: int) -> Iterator[tuple[str, Callable[[], one_op.Answer]]]:
    """As many questions with an answer, each in words."""
    dice = random.Random(seed)
    targets = [*accelerators().values(), *dice.sample(list(cpus().values()), 40)]
    for _ in range(count):
        device = dice.choice(targets)
        on = [Cluster(default_system(device), 1) if isinstance(device, Accelerator) else device]
        kind = dice.choice(("matmul", "attention", "stream", "copy"))
        size = float(power(dice, 10, 36))
        shape = [power(dice, 0, 14) for _ in range(3)]
        dtype = dice.choice(one_op.DTYPES if kind == "matmul" else one_op.ATTENTION_DTYPES)
        heads, tokens, width, causal = power(dice, 0, 6), power(dice, 0, 15), dice.choice((32, 64, 96, 128)), dice.random() < 0.5
        asked, given = {
            "matmul": (partial(one_op.matmul, *shape, dtype, on), f"{shape} {dtype}"),
            "attention": (
                partial(one_op.attention, power(dice, 0, 4), heads, tokens, width, dtype, on, causal=causal),
                f"{heads} x {tokens} x {width} {dtype}",
            ),
            "stream": (partial(one_op.stream, size, on), f"{size:g}"),
            "copy": (partial(one_op.copy, size, on), f"{size:g}"),
        }[kind]
        yield f"{kind} {given} on {device.id}", asked


def check_within_the_data_sheet(words: str, answer: one_op.Answer) -> None:
    devices: dict[str, Accelerator | Cpu] = {**cpus(), **accelerators()}
    for row in answer.rows:
        device, low = devices[row.id], row.time_s.low
        assert 0 < low <= row.time_s.expected <= row.time_s.high < math.inf, words
        if row.flop_per_s is not None:
            assert answer.work.flop / low <= row.peak * ROUNDING, words
        else:
            assert answer.work.bytes * (2 if row.path == "own memory" else 1) / low <= row.peak * ROUNDING, words
        if isinstance(device, Accelerator) and row.path in ("", "own memory"):
            moved = answer.work.bytes * (2 if row.path else 1)
            fast = moved / low > device.memory_bandwidth_bytes_per_s * ROUNDING
            assert not fast or (row.cache and any(row.cache in note for note in row.notes)), words
        if isinstance(device, Accelerator) and row.path in ("host to GPU", "GPU to host"):
            assert row.peak == host_link_peak_bytes_per_s(device), words


def check(seed: int, count: int) -> None:
    answered = 0
    for words, ask in questions(seed, count):
        try:
            answer = ask()
        except GpuwiseError as error:  # a format that the device lacks
            assert error.hint, words
            continue
        check_within_the_data_sheet(words, answer)
        answered += 1
    assert answered > 0.4 * count


def test_no_operation_is_above_the_data_sheet_without_the_cache() -> None:
    check(seed=1, count=150)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 12))
def test_no_operation_of_thousands_is_above_the_data_sheet_without_the_cache(seed: int) -> None:
    check(seed, count=500)


@pytest.mark.parametrize("line", LINES, ids=lambda line: line[0])
@pytest.mark.parametrize("size", [4e6, 64e6, 1e9, 30e9])
def test_a_larger_gpu_of_the_line_streams_no_slower(line: tuple[str, ...], size: float) -> None:
    """Where both take it from the same place: a larger cache is a reason, and a row names it."""
    rows = one_op.stream(size, [find_target(name) for name in line]).rows
    for small, large in itertools.pairwise(rows):
        assert large.time_s.expected <= small.time_s.expected * ROUNDING or small.cache or large.bound in ("launch", "latency")
