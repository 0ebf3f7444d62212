import pickle

import numpy as np
import pytest

from gpuwise.errors import InputError
from gpuwise.predict.memory.allocator.simulation import simulate, simulate_capture
from gpuwise.predict.memory.snapshot.reader import parse_snapshot
from gpuwise.predict.memory.snapshot.replay import replay
from gpuwise.predict.memory.snapshot.writer import frames_of, line_frame, snapshot_document
from gpuwise.predict.memory.timeline import memory_timeline, snapshot_timeline
from gpuwise.workload.capture.captured import Capture, Category, Settings, Signature, StepSpan
from gpuwise.workload.row_codes import Kind, Phase

MIB = 1 << 20


def captured() -> Capture:
    """A weight of 8 MiB, then two steps: an activation of 30 MiB, a temporary of 6, a gradient of 8 freed at the end."""
    step = [
        (1, 1, Phase.FORWARD),
        (2, 1, Phase.FORWARD),
        (2, -1, Phase.FORWARD),
        (3, 1, Phase.BACKWARD),
        (1, -1, Phase.BACKWARD),
        (3, -1, Phase.OPTIMIZER),
    ]
    storage, sign, phases = [0], [1], []
    for k in range(2):
        for s, way, phase in step:
            storage.append(s + 3 * k)
            sign.append(way)
            phases.append(int(phase))
    mm = Signature("aten.mm.default", next(iter(Kind)), (), (), (), 0.0, 0.0, 0.0, 1)
    sizes = [8 * MIB] + [30 * MIB, 6 * MIB, 8 * MIB] * 2
    kinds = [Category.PARAMETER] + [Category.ACTIVATION, Category.TEMPORARY, Category.GRADIENT] * 2
    n, s = len(phases), len(sizes)
    ints = lambda values: np.array(values, dtype=np.int64)  # noqa: E731
    born = [-1] + [i for i, way in enumerate(sign[1:]) if way > 0]
    return Capture(
        signatures=(mm,),
        modules=("", "mlp"),
        module_types=("", "MLP"),
        lines=("", "train.py:31 in step"),
        op_signature=ints([0] * n),
        op_phase=ints(phases),
        op_module=ints([1] * n),
        op_line=ints([1] * n),
        op_stream=ints([0] * n),
        op_flags=ints([0] * n),
        storage_bytes=ints(sizes),
        storage_category=ints(kinds),
        storage_op=ints(born),
        storage_module=ints([0] + [1] * (s - 1)),
        storage_dtype=("fp32",) * s,
        storage_stream=ints([0] * s),
        event_storage=ints(storage),
        event_sign=np.array(sign, dtype=np.int8),
        event_op=ints([-1, *range(n)]),
        steps=(StepSpan(0, 6, 1, 7), StepSpan(6, 12, 7, 13)),
        settings=Settings("2.13.0", (8, 9)),
        name="train.py:make_step",
    )


def test_bytes_by_category_are_those_of_the_capture_at_every_event():
    capture = captured()
    timeline = memory_timeline(capture)
    assert timeline.categories == ("parameters", "gradients", "activations", "temporaries")
    for row in range(timeline.n_rows):
        own = capture.bytes_by_category(capture.steady.first_event + row - 1)
        assert timeline.bytes_by_category[:, row].tolist() == [
            own.get(c, 0) for c in (Category.PARAMETER, Category.GRADIENT, Category.ACTIVATION, Category.TEMPORARY)
        ]
    assert timeline.total_bytes.max() == capture.peak_bytes() == timeline.peak.requested_bytes


def test_the_peak_and_the_phases_are_named():
    timeline = memory_timeline(captured())
    assert timeline.peak.requested_bytes == 46 * MIB
    assert timeline.peak.words == "aten.mm in mlp (train.py:31 in step)"
    assert timeline.peak.largest[0] == ("activations of mlp, aten.mm", 30 * MIB)
    assert [(p.name, p.first, p.end) for p in timeline.phases] == [("forward", 1, 4), ("backward", 4, 6), ("optimizer", 6, 7)]


def test_reserved_covers_what_is_used_and_time_can_be_given():
    capture = captured()
    timeline = memory_timeline(capture, op_time_s=[0.5] * 12)
    assert timeline.reserved_bytes is not None and (timeline.reserved_bytes >= timeline.total_bytes).all()
    assert timeline.time_s is not None and timeline.time_s.tolist() == [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0]
    first = memory_timeline(capture, step=0)
    assert first.n_rows == 7 and first.bytes_by_category[0, 0] == 8 * MIB


def test_running_out_is_marked_and_a_strange_run_refused():
    capture = captured()
    run = simulate_capture(capture, capacity_bytes=40 * MIB)
    assert run.oom is not None
    assert memory_timeline(capture, run, step=0).oom_row == run.oom.event
    with pytest.raises(InputError, match="2 events for a capture of 13"):
        memory_timeline(capture, simulate([0, 0], [1, -1], [512]))
    with pytest.raises(InputError, match="step 2 of 2"):
        memory_timeline(capture, step=2)


def test_a_captures_frames_and_a_recorded_timeline():
    capture = captured()
    frames = frames_of(capture)
    assert frames[0] == []
    assert [f["name"] for f in frames[1]] == ["aten.mm.default", "MLP", "step"]
    document = snapshot_document(simulate_capture(capture), frames=[line_frame(f"a.py:{s % 4} in f") for s in range(7)])
    timeline = snapshot_timeline(replay(parse_snapshot(pickle.dumps(document))))
    assert timeline.total_bytes.max() == 46 * MIB
    assert set(timeline.categories) <= {f"a.py:{i} in f" for i in range(4)} | {"elsewhere"}
