"""The event loop of shared steps gives what the plain one gives, in every field, on programs that no task holds."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from tests.lab.plain_multiprocessor import PlainMultiprocessor

from gpuwise.facts.hardware.naming import find_accelerator
from gpuwise.facts.hardware.sm_timing import find_sm_timing
from gpuwise.lab import simulation
from gpuwise.lab.access import warp_access
from gpuwise.lab.multiprocessor import Conditions, Timing, run_multiprocessor
from gpuwise.lab.stream import Event
from gpuwise.lab.tasks import TASKS, launch_of

ARITHMETIC = ("int", "fp32", "fp64", "sfu", "shuffle", "branch", "barrier")
MEMORY = ("load", "load", "store", "atomic", "shared_load", "shared_store")
ARRAYS = {"x": 1.0, "y": 3.7, "z": 40.0}


def equal(made: Timing, plain: Timing) -> None:
    for field in fields(Timing):
        assert getattr(made, field.name) == getattr(plain, field.name), field.name


def random_program(rng: np.random.Generator, warps: int) -> list[Event]:
    """Events of which each waits for some before it; addresses are few enough to meet again and too many for the L1."""
    events: list[Event] = []
    always = rng.random() < 0.5
    for number in range(int(rng.integers(1, 120))):
        op = str(rng.choice(ARITHMETIC if rng.random() < 0.6 else MEMORY))
        waits = tuple(dict.fromkeys(rng.integers(max(number - 12, 0), number, rng.integers(0, 4)).tolist())) if number else ()
        running = np.ones(warps, bool) if always or rng.random() < 0.7 else rng.random(warps) < 0.6
        if op not in MEMORY:
            times = int(rng.choice([1, 1, 3, 12])) if op not in ("branch", "barrier") else 1
            events.append(Event(op, 1, waits, running, times=times))
            continue
        size, at = int(rng.choice([4, 8])), int(rng.integers(3))
        begins = rng.integers(0, 300, (warps, 1)) * int(rng.choice([4, 32, 128]))
        addresses = at * 2**20 + begins // size * size + np.arange(32) * size * int(rng.choice([0, 1, 2, 17]))
        active = rng.random((warps, 32)) < rng.choice([0.0, 0.5, 1.0], p=[0.05, 0.25, 0.7])
        access = warp_access(addresses, active & running[:, None], size)
        events.append(Event(op, 1, waits, running, access, array=list(ARRAYS)[at]))
    return events


@pytest.mark.parametrize("seed", range(60))
def test_equal_to_the_plain_event_loop(seed: int) -> None:
    rng = np.random.default_rng(seed)
    blocks, width = int(rng.integers(1, 9)), int(rng.integers(1, 10))
    events = random_program(rng, blocks * width)
    l1_bytes, bandwidth = float(rng.choice([8192, 131072])), float(rng.choice([2.0, 12.3, 900.0]))
    timing = find_sm_timing(str(rng.choice(["7.0", "8.0", "9.0"])))
    l2_bytes = float(rng.choice([8.0, 19.0, 64.0]))
    branch, block = float(rng.choice([9.0, 21.0])), float(rng.choice([0.0, 157.0]))
    resident, request = int(rng.integers(1, 6)), float(rng.choice([32.0, 64.0]))
    shallow = float(rng.choice([0.0, 245.0]))
    of_card = (l1_bytes, bandwidth, l2_bytes, request, branch, block)
    conditions = Conditions(timing, 64.0, 2.0, 4, resident, *of_card, {"y": 1.5}, shallow, {"z": 0.4, "x": 0.0}, ARRAYS)
    equal(run_multiprocessor(events, blocks, width, conditions), PlainMultiprocessor(events, blocks, width, conditions).run())


@pytest.mark.parametrize("name", ["matmul-naive", "attention-scores", "softmax", "convolution", "gather", "transpose"])
def test_equal_on_the_tasks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs: list[tuple[Timing, Timing]] = []

    def both(events: list[Event], blocks: int, width: int, c: Conditions) -> Timing:
        made = run_multiprocessor(events, blocks, width, c)
        pairs.append((made, PlainMultiprocessor(events, blocks, width, c).run()))
        return made

    monkeypatch.setattr(simulation, "run_multiprocessor", both)
    simulation.simulate_task(TASKS[name], launch_of(TASKS[name], TASKS[name].small), find_accelerator("a100-sxm-80gb"))
    (pair,) = pairs
    equal(*pair)
