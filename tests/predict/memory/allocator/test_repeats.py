"""Repeated steps are copied, with the placements that running them would have given."""

import importlib.util
import sys
from pathlib import Path
from unittest.mock import patch

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwise.predict.memory.allocator import loop as allocator_loop
from gpuwise.predict.memory.allocator import repeats as allocator_repeats
from gpuwise.predict.memory.allocator.address_space import UNIT
from gpuwise.predict.memory.allocator.repeats import Repeat, find_repeats
from gpuwise.predict.memory.allocator.simulation import AllocatorSettings, simulate

_spec = importlib.util.spec_from_file_location("allocator_reference", Path(__file__).with_name("allocator_reference.py"))
assert _spec is not None and _spec.loader is not None
reference = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = reference
_spec.loader.exec_module(reference)

MIB = 1 << 20
SIZES = [512, 4096, MIB, MIB + 1, 3 * MIB + 5, 10 * MIB, 20 * MIB, 21 * MIB, 33 * MIB + 7]
CONFS = [
    "",
    "expandable_segments:True",
    "max_split_size_mb:20",
    "roundup_power2_divisions:4",
    "per_process_memory_fraction:0.4",
    "garbage_collection_threshold:0.5,per_process_memory_fraction:0.7",
    "expandable_segments:True,max_split_size_mb:20",
]


@st.composite
def runs(draw):
    """A set-up, then a step over and over: what it makes it frees in itself, in the next step, or never (in the set-up)."""
    sizes, storage, sign, streams = [], [], [], []
    size = st.sampled_from(SIZES)

    def make(n, stream):
        sizes.append(n)
        streams.append(stream)
        storage.append(len(sizes) - 1)
        sign.append(1)
        return len(sizes) - 1

    def free(s):
        storage.append(s)
        sign.append(-1)

    early = [make(draw(size), 0) for _ in range(draw(st.integers(0, 6)))]
    for s in early:
        if draw(st.booleans()):
            free(s)
    plan, names = [], []
    for i in range(draw(st.integers(2, 14))):
        if names and draw(st.booleans()):
            plan.append(("free", names.pop(draw(st.integers(0, len(names) - 1))), 0))
        else:
            plan.append(("make", draw(size), draw(st.sampled_from([0, 0, 0, 1]))))
            names.append(i)
    kept = {i: draw(st.booleans()) for i in names}
    carried = {}
    for _ in range(draw(st.integers(3, 9))):
        made, held = {}, carried
        carried = {}
        for i, (what, value, stream) in enumerate(plan):
            if what == "make":
                made[i] = make(value, stream)
                if i in held:
                    free(held[i])
            else:
                free(made[value])
        for i in names:
            if kept[i]:
                carried[i] = made[i]
            else:
                free(made[i])
    for _ in range(draw(st.integers(0, 4))):
        make(draw(size), 0)
    if draw(st.booleans()):
        for s in carried.values():
            free(s)
    return storage, sign, sizes, streams


@settings(max_examples=4 * settings().max_examples, deadline=None)
@given(runs(), st.sampled_from(CONFS), st.sampled_from([150, 300, 4000]), st.booleans())
def test_placements_equal_the_reference(trace, text, capacity_mib, emptied):
    storage, sign, sizes, streams = trace
    conf, capacity = AllocatorSettings.parse(text), capacity_mib * MIB
    empty = [len(storage) // 2] if emptied else []
    blocks, reserved, ref, failed = reference.run(trace, conf, capacity, {}, empty, [0] * len(sizes))
    with patch.object(allocator_repeats, "SHORTEST", 2):
        run = simulate(storage, sign, sizes, streams, settings=conf, capacity_bytes=capacity, empty_cache=empty)
    got = {s: (int(run.block_units[s]) * UNIT, int(run.block_bytes[s])) for s in range(len(sizes)) if run.block_bytes[s]}
    assert got == blocks
    assert run.reserved().tolist() == reserved
    assert run.retries == ref.retries
    assert (run.oom.event if run.oom else None) == failed


def many_steps(n_steps, layers=6):
    """Weights, then forward and backward of ``layers`` in each step, the last gradient alive until the next step."""
    sizes, storage, sign, held = [], [], [], []

    def make(n):
        sizes.append(n)
        storage.append(len(sizes) - 1)
        sign.append(1)
        return len(sizes) - 1

    def free(s):
        storage.append(s)
        sign.append(-1)

    for _ in range(layers):
        make(3 * MIB)
    for _ in range(n_steps):
        saved = [[make((5 + i) * MIB + j * 512) for j in range(4)] for i in range(layers)]
        gradients = []
        for rows in reversed(saved):
            gradients.append(make(3 * MIB))
            for s in rows:
                free(make(700_000))
                free(s)
        for s in held:
            free(s)
        held = gradients
    return storage, sign, sizes


def test_most_of_many_steps_is_never_run():
    ran = []
    loop = allocator_loop.run_lean

    def counted(pools, events, span, block):
        ran.append(len(span))
        loop(pools, events, span, block)

    trace = many_steps(200)
    with patch.object(allocator_loop, "run_lean", counted):
        run = simulate(*trace)
    assert sum(ran) < 0.2 * len(trace[0])
    with patch.object(allocator_loop, "find_repeats", lambda codes: ()):
        plain = simulate(*trace)
    assert run.address_bytes.tolist() == plain.address_bytes.tolist()
    assert run.reserved().tolist() == plain.reserved().tolist()
    assert run.allocated().tolist() == plain.allocated().tolist()


def test_a_leak_is_run_to_its_end():
    """Each step keeps one storage for good: the free blocks never come back to what they were."""
    storage, sign, sizes = many_steps(12)
    step = (len(storage) - 6) // 12
    for k in range(12, 0, -1):
        sizes.append(MIB * 2)
        storage.insert(6 + k * step, len(sizes) - 1)
        sign.insert(6 + k * step, 1)
    run = simulate(storage, sign, sizes)
    with patch.object(allocator_loop, "find_repeats", lambda codes: ()):
        plain = simulate(storage, sign, sizes)
    assert run.address_bytes.tolist() == plain.address_bytes.tolist()
    assert run.peak_reserved_bytes > simulate(*many_steps(12)).peak_reserved_bytes


def test_repeats_are_found_where_they_are():
    rng = np.random.default_rng(3)
    step = rng.integers(1, 1 << 40, 100)
    before, after = rng.integers(1, 1 << 40, 37), rng.integers(1, 1 << 40, 20)
    codes = np.concatenate((before, np.tile(step, 7), step[:30], after))
    assert find_repeats(codes) == (Repeat(37, 37 + 730, 100),)
    assert find_repeats(rng.integers(1, 1 << 40, 5000)) == ()
    assert find_repeats(np.tile(step, 2)) == ()
    assert find_repeats(np.zeros(0, np.int64)) == ()
    twice = np.concatenate((np.tile(step, 4), before, np.tile(step, 5)))
    assert find_repeats(twice) == (Repeat(0, 400, 100), Repeat(437, 937, 100))
