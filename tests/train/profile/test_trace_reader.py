"""Any list of events that is written is read back the same, however it is laid out and cut into blocks."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwise.errors import InputError
from gpuwise.train.profile.trace_reader import read_trace

_TEXT = st.text(max_size=12) | st.sampled_from(['"', "\\", "{", "}]", "\n  },\n  {", "aten::mm", "é", "],"])
_NUMBER = st.integers(0, 10**6).map(lambda n: n / 8)
"""Microseconds whose difference is exact."""
_EVENT = st.fixed_dictionaries(
    {"ph": st.sampled_from(["X", "X", "X", "M", "i", "s"]), "name": _TEXT, "ts": _NUMBER, "dur": _NUMBER},
    optional={
        "cat": st.sampled_from(["cpu_op", "kernel", "cuda_runtime"]),
        "pid": st.integers(0, 9) | st.just("Spans"),
        "tid": st.integers(0, 9),
        "args": st.fixed_dictionaries(
            {},
            optional={
                "External id": st.integers(0, 9),
                "correlation": st.integers(0, 9),
                "bytes": st.integers(0, 10**12),
                "other": _TEXT,
                "stream": st.integers(0, 9) | st.just("7"),
                "Input Dims": st.just([[2, 3], [], [[4], [5]]]),
                "Input type": st.just(["float", "", "TensorList"]),
                "nested": st.just([{"a": [{}]}]),
            },
        ),
    },
)


def _kineto(events: list[dict[str, Any]]) -> str:
    """As libkineto lays it out."""
    text = ",".join("\n  " + json.dumps(e, indent=2).replace("\n", "\n  ") for e in events)
    head = '{\n  "schemaVersion": 1,\n  "deviceProperties": [\n    {"id": 0},\n    {"id": 1}\n  ],\n  "traceEvents": ['
    return head + text + '\n  ],"traceName": "t" }'


LAYOUTS = {
    "kineto": _kineto,
    "compact": lambda events: json.dumps({"a": {"b": [1]}, "traceEvents": events, "traceName": "t"}, separators=(",", ":")),
    "indented": lambda events: json.dumps({"traceEvents": events, "schemaVersion": 1}, indent=1),
    "bare": lambda events: "\n" + json.dumps(events, indent=2),
}


def _row(event: dict[str, Any]) -> tuple[Any, ...]:
    args = event.get("args", {})
    return (
        event["name"],
        event.get("cat", ""),
        (str(event.get("pid", "")), str(event.get("tid", ""))),
        round(event["ts"], 3),
        round(event["dur"], 3),
        args.get("External id", -1),
        args.get("correlation", -1),
        int(args.get("stream", -1)),
        args.get("bytes", -1),
        ((2, 3), (), (4,)) if "Input Dims" in args else (),
    )


@given(
    events=st.lists(_EVENT, max_size=12), layout=st.sampled_from(sorted(LAYOUTS)), block=st.integers(1, 400), zipped=st.booleans()
)
def test_what_is_written_is_read(
    events: list[dict[str, Any]], layout: str, block: int, zipped: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.getbasetemp() / "trace.json"
    data = LAYOUTS[layout](events).encode()
    file.write_bytes(gzip.compress(data) if zipped else data)
    wanted = sorted((_row(e) for e in events if e["ph"] == "X"), key=repr)
    if not wanted:
        with pytest.raises(InputError, match="no event with a duration"):
            read_trace(file, block=block)
        return
    trace = read_trace(file, block=block)
    began = trace.began_s * 1e6
    found = [
        (
            trace.text(i),
            trace.categories[trace.category[i]],
            tuple(trace.lanes[trace.lane[i]]),
            round(float(trace.start_s[i]) * 1e6 + began, 3),
            round(float(trace.duration_s[i]) * 1e6, 3),
            int(trace.external[i]),
            int(trace.correlation[i]),
            int(trace.stream[i]),
            int(trace.n_bytes[i]),
            trace.inputs(i).shapes,
        )
        for i in range(len(trace))
    ]
    assert sorted(found, key=repr) == wanted
    assert (trace.start_s[1:] >= trace.start_s[:-1]).all()
    if layout == "kineto":
        assert trace.metadata["schemaVersion"] == 1 and trace.metadata["traceName"] == "t"
    if layout == "compact":
        assert trace.metadata == {"a": {"b": [1]}, "traceName": "t"}


def _events(n: int) -> list[dict[str, Any]]:
    return [{"ph": "X", "name": f"op {i % 7}", "cat": "cpu_op", "pid": 1, "tid": 1, "ts": i * 10, "dur": 5} for i in range(n)]


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
@pytest.mark.parametrize("share", [0.3, 0.6, 0.99])
def test_a_cut_file_says_so(layout: str, share: float, tmp_path: Path) -> None:
    data = LAYOUTS[layout](_events(200)).encode()
    data = data[: data.rindex(b"]")]
    (tmp_path / "cut.json").write_bytes(data[: int(share * len(data))])
    with pytest.raises(InputError, match="cut short") as caught:
        read_trace(tmp_path / "cut.json", block=300)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not a trace"),
        ("hello", "not a trace"),
        ("{}", "not a trace"),
        ('{"events": []}', "not a trace"),
        ("[]", "no event"),
        ("[1, 2]", "no event"),
        ('{"traceEvents": [{"ph": "X", "ts": "soon"}]}', "not a number"),
        ('{"traceEvents": [{"ph": "X", "ts": 1, "dur": -4}]}', "negative"),
        ('[{"name": "x"}]', "not an event of a trace"),
        ('{"traceEvents": [{"ph": "X", ts: 1}]}', "not JSON"),
    ],
)
def test_other_files_are_refused(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(InputError, match=said) as caught:
        read_trace(tmp_path / "x.json")
    assert caught.value.hint


def test_cut_compressed_data_and_missing_files_say_so(tmp_path: Path) -> None:
    packed = gzip.compress(_kineto(_events(5000)).encode())
    (tmp_path / "t.json.gz").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(InputError, match="cut short"):
        read_trace(tmp_path / "t.json.gz")
    with pytest.raises(InputError, match="none"):
        read_trace(tmp_path / "none.json")


def test_control_characters_in_names_are_borne(tmp_path: Path) -> None:
    """Older Kineto wrote kernels' names as they were."""
    (tmp_path / "t.json").write_bytes(b'{"traceEvents": [{"ph": "X", "name": "a\tb\xff", "ts": 1, "dur": 2}]}')
    assert read_trace(tmp_path / "t.json").names == ("a\tb\ufffd",)


@pytest.mark.parametrize(("name", "block"), [('say "hello', 1 << 22), ("C:\\", 1 << 12)], ids=["a quote", "a backslash"])
def test_a_name_that_kineto_wrote_unescaped_is_left_out(name: str, block: int, tmp_path: Path) -> None:
    """As in a run of diffusers' train_text_to_image.py; nothing of the others is lost."""
    event = '  {{\n    "ph": "X", "cat": "python_function", "name": "{}", "pid": 1, "tid": 1,\n    "ts": {}, "dur": 5\n  }}'
    events = [event.format(name if i == 150 else f"f{i}", 10 * i) for i in range(300)]
    path = tmp_path / "trace.json"
    path.write_text('{\n  "schemaVersion": 1,\n  "traceEvents": [\n' + ",\n".join(events) + '\n  ],\n  "x": 1\n}\n')
    trace = read_trace(path, block=block)
    assert len(trace) == 299 and "f299" in trace.text(298)
    path.write_text(path.read_text().replace('"cat": "python', '"cat": "py"thon'))
    with pytest.raises(InputError, match=r"not JSON|cut short"):
        read_trace(path, block=block)


def test_columns_take_a_fraction_of_the_file(tmp_path: Path) -> None:
    """What is held does not grow with the text of the events."""
    events = [{**e, "args": {"filler": "x" * 300}} for e in _events(4000)]
    (tmp_path / "t.json").write_text(_kineto(events))
    trace = read_trace(tmp_path / "t.json")
    columns = [v for v in vars(trace).values() if hasattr(v, "nbytes")]
    assert len(trace) == 4000 and len(trace.names) == 7
    assert sum(c.nbytes for c in columns) < 80 * len(trace)


@pytest.mark.parametrize("begin", [b'{"traceEvents": [{"ph": "X", "name": "', b'{"traceEvents": [], "traceName": "', b"["])
def test_a_zipped_file_of_one_endless_event_is_refused(begin: bytes, tmp_path: Path) -> None:
    file = tmp_path / "bomb.json.gz"
    with gzip.open(file, "wb", compresslevel=1) as out:
        out.write(begin)
        for _ in range(80):
            out.write(b"a" * (1 << 20))
    with pytest.raises(InputError, match=r"larger than 64 MiB|no list of events"):
        read_trace(file)


def test_a_compressed_trace_of_one_event_over_and_over_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuwise.train.profile.trace_reader.LEAST_UNPACKED", 1 << 20)
    event = b'{"ph":"X","name":"aten::mm","cat":"cpu_op","pid":1,"tid":1,"ts":1.0,"dur":2.0}'
    file = tmp_path / "trace.json.gz"
    file.write_bytes(gzip.compress(b'{"traceEvents":[' + b",".join([event] * 60_000) + b"]}"))
    with pytest.raises(InputError, match="unpacks to more than 100 times its size"):
        read_trace(file, block=1 << 18)
