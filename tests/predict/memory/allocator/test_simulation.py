import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwise.errors import InputError
from gpuwise.predict.memory.allocator.address_space import UNIT, Space
from gpuwise.predict.memory.allocator.preset import Preset, PresetSegment
from gpuwise.predict.memory.allocator.run import to_address
from gpuwise.predict.memory.allocator.simulation import AllocatorSettings, simulate

_spec = importlib.util.spec_from_file_location("allocator_reference", Path(__file__).with_name("allocator_reference.py"))
assert _spec is not None and _spec.loader is not None
reference = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = reference
_spec.loader.exec_module(reference)

MIB = 1 << 20
SIZES = [
    1,
    511,
    512,
    513,
    4096,
    100_000,
    MIB - 1,
    MIB,
    MIB + 1,
    2 * MIB,
    3 * MIB + 5,
    9 * MIB,
    10 * MIB,
    19 * MIB,
    20 * MIB,
    21 * MIB,
    33 * MIB + 7,
    50 * MIB,
    64 * MIB,
]
CONFS = [
    "",
    "expandable_segments:True",
    "max_split_size_mb:20",
    "max_split_size_mb:32,max_non_split_rounding_mb:25",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:[1:8,4:2,>:1]",
    "large_segment_size_mb:40",
    "garbage_collection_threshold:0.5,per_process_memory_fraction:0.7",
    "per_process_memory_fraction:0.4",
    "garbage_collection_threshold:0.2,per_process_memory_fraction:0.9,max_split_size_mb:24",
    "expandable_segments:True,max_split_size_mb:20",
    "expandable_segments:True,large_segment_size_mb:12",
]


@st.composite
def traces(draw):
    """Events, with storages freed in any order or never."""
    sizes, storage, sign, live = [], [], [], []
    choose = st.sampled_from(SIZES) | st.integers(1, 64 * MIB)
    for _ in range(draw(st.integers(1, 60))):
        if live and draw(st.booleans()):
            gone = live.pop(draw(st.integers(0, len(live) - 1)))
            storage.append(gone)
            sign.append(-1)
        else:
            sizes.append(draw(choose))
            storage.append(len(sizes) - 1)
            live.append(len(sizes) - 1)
            sign.append(1)
    streams = draw(st.lists(st.integers(0, 2), min_size=len(sizes), max_size=len(sizes)))
    return storage, sign, sizes, streams


@settings(max_examples=5 * settings().max_examples, deadline=None)
@given(
    traces(),
    st.sampled_from(CONFS),
    st.sampled_from([64, 100, 200, 1000]),
    st.sampled_from([0, 0, 1]),
    st.sets(st.integers(0, 59), max_size=3),
    st.booleans(),
    st.data(),
)
def test_placements_equal_the_reference(trace, text, capacity_mib, private_pools, empty, deferred, data):
    storage, sign, sizes, streams = trace
    conf, capacity = AllocatorSettings.parse(text), capacity_mib * MIB
    frees = [e for e, way in enumerate(sign) if way < 0]
    done = {e: e + data.draw(st.integers(0, 12)) for e in frees} if deferred else {}
    private = [data.draw(st.integers(0, 1)) for _ in sizes] if private_pools else [0] * len(sizes)
    blocks, reserved, ref, failed = reference.run(trace, conf, capacity, done, empty, private)
    run = simulate(
        storage,
        sign,
        sizes,
        streams,
        settings=conf,
        capacity_bytes=capacity,
        private=private,
        done_at=done,
        empty_cache=sorted(empty),
    )
    got = {s: (int(run.block_units[s]) * UNIT, int(run.block_bytes[s])) for s in range(len(sizes)) if run.block_bytes[s]}
    assert got == blocks
    assert run.reserved().tolist() == reserved
    assert run.retries == ref.retries
    assert (run.oom.event if run.oom else None) == failed
    if failed is None and not any(e >= len(storage) for e in empty):
        assert sum(s.size_bytes for s in run.segments()) == ref.reserved


@settings(max_examples=3 * settings().max_examples, deadline=None)
@given(traces(), st.sampled_from(CONFS), st.sampled_from([100, 400, 4000]))
def test_laws(trace, text, capacity_mib):
    storage, sign, sizes, streams = trace
    conf = AllocatorSettings.parse(text)
    run = simulate(storage, sign, sizes, streams, settings=conf, capacity_bytes=capacity_mib * MIB)
    requested, allocated, reserved = run.requested(), run.allocated(), run.reserved()
    assert (requested <= allocated).all() and (allocated <= reserved).all()
    assert (run.reserved_within() <= capacity_mib * MIB).all()
    again = simulate(storage, sign, sizes, streams, settings=conf, capacity_bytes=capacity_mib * MIB)
    assert again.address_bytes.tolist() == run.address_bytes.tolist()
    for event in range(run.n_events):
        live = run.live(event)
        start, end = run.block_units[live], run.block_units[live] + run.block_bytes[live] // UNIT
        assert (start[1:] >= end[:-1]).all(), "blocks overlap"
        inside = [s for segment in run.segments(event) for s in segment.storages]
        assert inside == live.tolist(), "every block lies in one segment"
        parts = run.fragmentation(event)
        assert parts.reserved_bytes == reserved[event] and parts.allocated_bytes == allocated[event]
        wasted = parts.rounding_bytes + parts.unsplit_bytes + parts.small_pool_bytes + parts.split_bytes
        assert wasted + parts.cached_bytes == parts.reserved_bytes - parts.requested_bytes
    live_at_end = set(storage) - {s for s, way in zip(storage, sign, strict=True) if way < 0}
    if run.oom is None:
        tail = simulate(
            storage + sorted(live_at_end),
            sign + [-1] * len(live_at_end),
            sizes,
            streams,
            settings=conf,
            capacity_bytes=capacity_mib * MIB,
            empty_cache=[len(storage) + len(live_at_end)],
        )
        assert tail.allocated()[-1] == 0
        given_back = sum(c.units if c.kind in ("alloc", "map") else -c.units for c in tail.changes)
        assert given_back == 0, "memory given back is the memory taken"


def test_small_requests_share_a_segment_and_large_ones_leave_a_gap_below_a_mebibyte():
    run = simulate([0, 1, 2], [1, 1, 1], [1, 513, 12 * MIB - 1])
    assert run.block_bytes.tolist() == [512, 1024, 12 * MIB]
    assert run.n_segments == 2 and run.reserved().tolist() == [2 * MIB, 2 * MIB, 14 * MIB]


def test_a_remainder_of_at_most_one_mebibyte_stays_with_the_block():
    whole = simulate([0], [1], [11 * MIB])
    assert whole.block_bytes[0] == 12 * MIB and whole.fragmentation().unsplit_bytes == MIB
    split = simulate([0], [1], [11 * MIB - 512])
    assert split.block_bytes[0] == 11 * MIB - 512 and split.fragmentation().split_bytes == MIB + 512


def test_the_best_block_is_the_smallest_then_the_lowest():
    # four blocks of 30, 24, 24 and 40 MiB freed; 24 MiB goes to the lower of the two
    sizes = [30 * MIB, 24 * MIB, 24 * MIB, 40 * MIB, 23 * MIB]
    run = simulate([0, 1, 2, 3, 0, 1, 2, 3, 4], [1] * 4 + [-1] * 4 + [1], sizes)
    assert run.address_bytes[4] == min(run.address_bytes[1:3])
    assert run.block_bytes[4] == 24 * MIB


def test_full_device_gives_back_whole_segments_then_fails_with_the_reason():
    freed = simulate([0, 0, 1], [1, -1, 1], [60 * MIB, 80 * MIB], capacity_bytes=100 * MIB)
    assert freed.oom is None and freed.retries == 1 and freed.n_segments_freed == 1
    split = simulate([0, 1, 0, 2], [1, 1, -1, 1], [11 * MIB, 4 * MIB, 80 * MIB], capacity_bytes=90 * MIB)
    assert split.oom is not None and split.oom.event == 3 and split.oom.requested_bytes == 80 * MIB
    assert split.oom.reserved_bytes == 20 * MIB and split.oom.free_bytes == 16 * MIB
    assert "between blocks in use" in split.oom.reason
    assert split.n_events == 3 and split.allocated().size == 3


def test_expandable_segments_grow_by_pages_and_fill_what_cudamalloc_would_strand():
    sizes = [25 * MIB, 27 * MIB, 52 * MIB]
    plain = simulate([0, 1, 0, 1, 2], [1, 1, -1, -1, 1], sizes)
    grown = simulate([0, 1, 0, 1, 2], [1, 1, -1, -1, 1], sizes, settings=AllocatorSettings.parse("expandable_segments:True"))
    assert plain.peak_reserved_bytes == (26 + 28 + 52) * MIB
    assert grown.peak_reserved_bytes == 60 * MIB


def test_empty_storages_are_never_allocated():
    run = simulate([0, 1, 0, 1], [1, 1, -1, -1], [0, 512])
    assert run.address_bytes[0] == -1 and run.n_segments == 1 and run.allocated().tolist() == [0, 512, 512, 0]
    assert simulate([], [], []).peak_reserved_bytes == 0


def test_peaks_within_a_range_of_events():
    run = simulate([0, 0, 1, 2], [1, -1, 1, 1], [40 * MIB, 2 * MIB, 512])
    assert run.peaks().allocated_bytes == 40 * MIB
    assert run.peaks(2).allocated_bytes == 2 * MIB + 512
    with pytest.raises(InputError):
        run.peaks(9)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([0, 0], [1, 1], [512]), "allocated twice"),
        (([0], [-1], [512]), "before it is allocated"),
        (([0], [2], [512]), "neither"),
        (([1], [1], [512]), "storage 1 of 1"),
        (([0], [1], [-5]), "-5 bytes"),
        (([0], [1], [1 << 60]), "bytes"),
        (([0.5], [1], [512]), "whole numbers"),
        (([0, 1], [1], [512]), "fit together"),
        (([0], [1], [512], [0, 1]), "2 values for 1"),
    ],
)
def test_inconsistent_events_are_refused(arguments, message):
    with pytest.raises(InputError, match=message) as error:
        simulate(*arguments)
    assert error.value.hint


@pytest.mark.parametrize("capacity", [0, -1, 1 << 60])
def test_absurd_capacity_is_refused(capacity):
    with pytest.raises(InputError, match="capacity_bytes"):
        simulate([0], [1], [1], capacity_bytes=capacity)


def test_lean_and_plain_loops_agree_on_a_long_trace():
    rng = np.random.default_rng(5)
    storage, sign, live = [], [], []
    for s in range(4000):
        storage.append(s)
        sign.append(1)
        live.append(s)
        while len(live) > 60 or (live and rng.random() < 0.4):
            storage.append(live.pop(int(rng.integers(len(live)))))
            sign.append(-1)
    sizes = np.exp(rng.uniform(5, 18, 4000)).astype(np.int64)
    lean = simulate(storage, sign, sizes, capacity_bytes=3 << 30)
    late = max(len(storage), 1)
    plain = simulate(storage, sign, sizes, capacity_bytes=3 << 30, done_at={late: late})
    assert lean.address_bytes.tolist() == plain.address_bytes.tolist()
    huge = replace(AllocatorSettings(), max_split_size_bytes=1 << 40)
    unsplit = simulate(storage, sign, sizes, capacity_bytes=3 << 30, settings=huge)
    assert lean.address_bytes.tolist() == unsplit.address_bytes.tolist()


def test_addresses_as_public_snapshots_show_them():
    # cudaMallocs of a process that starts with 954, 1, 96 and 477 slots of 2 MiB: new reservations below, the small one in a gap
    space = Space()
    first, small, second, third = space.take(954), space.take(1), space.take(96), space.take(477)
    assert small == first + 954 and second == first - 96 and third == second - 480
    space.give(second, 96)
    assert space.take(90) == third + 477, "the lowest room that is long enough"


@settings(max_examples=3 * settings().max_examples, deadline=None)
@given(traces(), st.sampled_from(["", "max_split_size_mb:32", "roundup_power2_divisions:4"]), st.integers(0, 59))
def test_a_run_can_begin_in_the_middle(trace, text, cut):
    storage, sign, sizes, streams = trace
    conf, cut = AllocatorSettings.parse(text), min(cut, len(storage))
    whole = simulate(storage, sign, sizes, streams, settings=conf)
    before = simulate(storage[:cut], sign[:cut], sizes, streams, settings=conf)
    live = before.live(cut - 1).tolist() if cut else []
    held = before.segments() if cut else ()
    preset = Preset(
        tuple(PresetSegment(s.address, s.size_bytes, s.stream, s.small) for s in held),
        tuple(before.address_bytes[live].tolist()),
    )
    order = live + [s for s in range(len(sizes)) if s not in live]
    number = {s: i for i, s in enumerate(order)}
    later = [int(to_address(np.int64(c.address))) for c in whole.changes if c.kind == "alloc" and c.event >= cut]
    rest = simulate(
        [number[s] for s in live + storage[cut:]],
        [1] * len(live) + sign[cut:],
        [sizes[s] for s in order],
        [streams[s] for s in order],
        settings=conf,
        preset=preset,
        segment_addresses=later,
    )
    lives = [s for s in order if rest.block_bytes[number[s]]]
    assert [int(rest.address_bytes[number[s]]) for s in lives] == whole.address_bytes[lives].tolist()
    assert rest.reserved()[len(live) :].tolist() == whole.reserved()[cut:].tolist()


def test_without_a_device_the_states_of_the_largest_models_have_room():
    """405 billion parameters, their gradients and two states in fp32, a tensor at a time: 5.9 TiB."""
    sizes = np.full(4 * 126, 405_000_000_000 * 4 // 126)
    run = simulate(np.arange(sizes.size), np.ones(sizes.size, int), sizes)
    assert run.oom is None and run.n_events == sizes.size
    assert run.peaks(sizes.size - 1).allocated_bytes >= sizes.sum() > 5 << 40
