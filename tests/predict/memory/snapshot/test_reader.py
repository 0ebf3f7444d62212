import pickle
import random

import numpy as np
import pytest

from gpuwise.errors import GpuwiseError, InputError
from gpuwise.predict.memory.allocator.simulation import AllocatorSettings, simulate
from gpuwise.predict.memory.snapshot.reader import parse_snapshot, read_snapshot, where_from
from gpuwise.predict.memory.snapshot.replay import replay
from gpuwise.predict.memory.snapshot.writer import line_frame, snapshot_document, write_snapshot

MIB = 1 << 20
CONFS = ["", "expandable_segments:True", "max_split_size_mb:32", "roundup_power2_divisions:4", "large_segment_size_mb:40"]
BASE = 0x7F0D4E000000


def recorded():
    """The shape of a real history (a matrix of 2 GB, a small tensor, 200 MB twice, a workspace), sizes typed in by hand.

    The addresses and segment sizes are those the allocator gave on an H100 with torch 2.5: 954 slots of 2 MiB for 2 GB.
    """
    big, mid, small = 2000683008, 201326592, 2 * MIB
    at = {"x": BASE, "y": BASE + big, "z": 0x7F0D42000000, "w": 0x7F0D00000000}
    frames = [{"filename": "/home/me/train.py", "line": 31, "name": "step"}]

    def event(action, addr, size):
        return {"action": action, "addr": addr, "size": size, "stream": 0, "time_us": 1, "frames": frames}

    trace = [
        event("segment_alloc", at["x"], big),
        event("alloc", at["x"], 2_000_000_000),
        event("segment_alloc", at["y"], small),
        event("alloc", at["y"], 200_000),
        event("segment_alloc", at["z"], mid),
        event("alloc", at["z"], 200_000_000),
        event("free_requested", at["z"], 200_000_000),
        event("free_completed", at["z"], 200_000_000),
        event("alloc", at["z"], 200_000_000),
        event("segment_alloc", at["w"], 33554432),
        event("alloc", at["w"], 33554432),
    ]

    def segment(addr, total, blocks, kind):
        return {
            "device": 0,
            "address": addr,
            "total_size": total,
            "stream": 0,
            "segment_type": kind,
            "segment_pool_id": (0, 0),
            "is_expandable": False,
            "frames": [],
            "blocks": [{"address": addr, "size": n, "requested_size": r, "state": s, "frames": []} for n, r, s in blocks],
        }

    live, free = "active_allocated", "inactive"
    segments = [
        segment(at["x"], big, [(big, 2_000_000_000, live)], "large"),
        segment(at["y"], small, [(200_192, 200_000, live), (small - 200_192, 0, free)], "small"),
        segment(at["z"], mid, [(200_000_000, 200_000_000, live), (mid - 200_000_000, 0, free)], "large"),
        segment(at["w"], 33554432, [(33554432, 33554432, live)], "large"),
    ]
    return {"segments": segments, "device_traces": [trace], "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": ""}}


def test_a_history_in_the_real_format_replays_exactly():
    result = replay(parse_snapshot(pickle.dumps(recorded())))
    assert result.exact and result.n_same_place == result.n_blocks == 5
    assert result.run.peak_reserved_bytes == 2000683008 + 2 * MIB + 201326592 + 33554432
    assert result.history.where[0] == "train.py:31 in step"


def test_a_wrong_size_is_noticed():
    document = recorded()
    document["segments"][1]["blocks"][0]["size"] = 200_704
    document["segments"][1]["blocks"][1]["size"] = 2 * MIB - 200_704
    assert not replay(parse_snapshot(pickle.dumps(document))).exact


def test_a_history_that_was_cut_off_begins_with_what_was_there():
    document = recorded()
    document["device_traces"][0] = document["device_traces"][0][5:]
    result = replay(parse_snapshot(pickle.dumps(document)))
    assert result.exact and result.history.begun == 2 and result.n_blocks == 3


def test_no_history_is_the_state_at_the_end():
    document = recorded()
    document["device_traces"] = []
    result = replay(parse_snapshot(pickle.dumps(document)))
    assert result.exact and result.n_blocks == 0 and result.run.n_events == 4


def random_events(seed, count=120):
    r = random.Random(seed)
    sizes, storage, sign, live = [], [], [], []
    for _ in range(count):
        if live and r.random() < 0.48:
            storage.append(live.pop(r.randrange(len(live))))
            sign.append(-1)
        else:
            sizes.append(int(2 ** r.uniform(5, 26)))
            storage.append(len(sizes) - 1)
            live.append(len(sizes) - 1)
            sign.append(1)
    return storage, sign, sizes, [r.choice([0, 0, 0, 7]) for _ in sizes]


@pytest.mark.parametrize("text", CONFS)
@pytest.mark.parametrize("seed", range(12))
def test_written_and_read_again_it_is_the_same_run(tmp_path, text, seed):
    capacity = 200 * MIB if seed % 3 == 0 and "split" not in text else None
    conf = AllocatorSettings.parse(text)
    run = simulate(*random_events(seed), settings=conf, capacity_bytes=capacity, empty_cache=[60] if seed % 2 else [])
    write_snapshot(run, tmp_path / "run.pickle", frames=[line_frame(f"a.py:{s} in f") for s in range(run.size_bytes.size)])
    again = replay(read_snapshot(tmp_path / "run.pickle"))
    assert again.run.settings.expandable_segments == conf.expandable_segments
    assert again.recorded_peak_reserved_bytes == run.peak_reserved_bytes
    assert again.exact
    assert again.n_same_place == again.n_blocks
    lived = [s for s in range(run.size_bytes.size) if run.block_bytes[s]]
    assert again.history.where[-1] == f"a.py:{lived[-1]} in f"


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("text", ["", "expandable_segments:True"])
def test_any_tail_of_a_history_replays_to_the_same_end(text, seed):
    run = simulate(*random_events(seed), settings=AllocatorSettings.parse(text))
    document = snapshot_document(run)
    trace = document["device_traces"][0]
    whole = replay(parse_snapshot(pickle.dumps(document)))
    cut = random.Random(seed).randrange(len(trace))
    while trace[cut]["action"] in ("alloc", "free_completed"):
        cut += 1
        if cut == len(trace):
            return
    document["device_traces"][0] = trace[cut:]
    tail = replay(parse_snapshot(pickle.dumps(document)))
    assert tail.end_reserved_bytes == whole.end_reserved_bytes
    assert tail.n_same_place == tail.n_blocks


def test_torchs_own_viewer_reads_it():
    viz = pytest.importorskip("torch.cuda._memory_viz")
    run = simulate(*random_events(3), capacity_bytes=150 * MIB)
    assert run.oom is not None
    document = snapshot_document(run, frames=[line_frame("train.py:31 in step")] * run.size_bytes.size)
    text = viz.segsum(document)
    assert f"segments: {len(run.segments())}" in text
    assert "alloc" in viz.trace(document)
    assert "train.py" in viz.memory(document, format_flamegraph=str)
    assert viz.segments(document, format_flamegraph=str)
    assert "snapshot" in viz.trace_plot(document)


class Evil:
    def __reduce__(self):
        return (print, ("never",))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (pickle.dumps(Evil()), "could run code"),
        (pickle.dumps({"segments": Evil()}), "could run code"),
        (b"", "not a pickle"),
        (b"\x80\x04garbage", "not a pickle"),
        (pickle.dumps([1]), "not a dictionary"),
        (pickle.dumps({}), "no segments"),
        (pickle.dumps({"segments": 3}), "not a list"),
        (pickle.dumps({"segments": [], "device_traces": []}), "empty"),
        (pickle.dumps({"segments": [{"address": -1, "total_size": 1}]}), "address of segment 0"),
        (pickle.dumps({"segments": [{"address": 1, "total_size": 10, "blocks": []}]}), "make 0 bytes"),
        (pickle.dumps({"segments": [], "device_traces": [[{"action": "rm"}]]}), "event 0 is 'rm'"),
        (pickle.dumps({"segments": [], "device_traces": [[{"action": "alloc", "addr": "x"}]]}), "addr of event 0"),
        (pickle.dumps({"segments": [], "device_traces": [[{"action": "alloc", "addr": 1, "size": np.float64(3)}]]}), "run code"),
    ],
)
def test_hostile_and_broken_files_are_refused_with_a_hint(data, message):
    with pytest.raises(InputError, match=message) as error:
        parse_snapshot(data)
    assert error.value.hint


def test_damage_anywhere_gives_one_error_or_a_snapshot():
    data = bytearray(pickle.dumps(recorded()))
    r = random.Random(1)
    for _ in range(300):
        broken = bytearray(data)
        for _ in range(r.randint(1, 4)):
            broken[r.randrange(len(broken))] = r.randrange(256)
        try:
            snapshot = parse_snapshot(bytes(broken))
            replay(snapshot)
        except GpuwiseError:
            pass


def test_a_missing_file_and_another_device(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        read_snapshot(tmp_path / "none.pickle")
    with pytest.raises(InputError, match="nothing of device 3"):
        parse_snapshot(pickle.dumps(recorded()), device=3)
    with pytest.raises(InputError, match=r"\.pickle"):
        write_snapshot(simulate([0], [1], [1]), tmp_path / "run.txt")


def test_the_users_line_is_the_innermost_that_is_no_librarys():
    frames = [
        {"filename": "??", "line": 0, "name": "c10::f"},
        {"filename": "/x/torch/nn/modules/linear.py", "line": 1, "name": "forward"},
        {"filename": "/me/model.py", "line": 7, "name": "block"},
        {"filename": "/me/train.py", "line": 9, "name": "main"},
    ]
    assert where_from(frames) == "model.py:7 in block"
    assert where_from(frames[:2]) == "linear.py:1 in forward"
    assert where_from(None) == "" and where_from([3, {}]) == ""
