"""Values to plain and back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwise.errors import DataError
from gpuwise.machine.devices.readings import GpuProcess, Health, Identity, Sample, State, Xid
from gpuwise.machine.telemetry.frames import Frame, HostProcess
from gpuwise.machine.telemetry.recording.plain import from_plain, to_plain

number = st.none() | st.floats(allow_nan=False, allow_infinity=False)
words = st.dictionaries(st.text(), st.text(), max_size=3)
VALUES = st.one_of(
    st.builds(
        Sample,
        index=st.integers(0, 99),
        at_s=st.floats(0, 1e9),
        state=st.sampled_from(State),
        power_w=number,
        event_reasons=st.none() | st.integers(0, 2**60),
        unknown=words,
        processes=st.none() | st.lists(st.builds(GpuProcess, pid=st.integers(1), kind=st.text()), max_size=3).map(tuple),
    ),
    st.builds(
        Health,
        index=st.integers(0, 9),
        at_s=st.floats(0, 1e9),
        held_back_s=st.dictionaries(st.text(), st.floats(0, 1e9)),
        remap_failed=st.none() | st.booleans(),
    ),
    st.builds(
        Identity,
        vendor=st.text(),
        index=st.integers(0, 9),
        name=st.text(),
        compute_capability=st.none() | st.tuples(st.integers(1, 20), st.integers(0, 9)),
        ecc=st.none() | st.booleans(),
    ),
    st.builds(HostProcess, pid=st.integers(1), cpu_share=number, n_workers=st.none() | st.integers(0), unknown=words),
    st.builds(Xid, code=st.integers(1, 999), at_s=number, pci_bus_id=st.none() | st.text(), text=st.text()),
)


@given(VALUES)
def test_through_json_and_back(value: Any) -> None:
    assert from_plain(type(value), json.loads(json.dumps(to_plain(value)))) == value


def test_a_frame_through_json_and_back(demo_frames: Any) -> None:
    for frame, _ in demo_frames(3):
        assert from_plain(Frame, json.loads(json.dumps(to_plain(frame)))) == frame


def test_numbers_json_does_not_know_are_unknown() -> None:
    assert to_plain([float("nan"), float("inf"), 1.5]) == [None, None, 1.5]


@pytest.mark.parametrize(
    "plain", [None, 5, {"index": "x", "at_s": 0}, {"at_s": 0.0}, {"index": 0, "at_s": 0, "state": "gone"}, []]
)
def test_what_is_no_sample(plain: Any) -> None:
    with pytest.raises(DataError):
        from_plain(Sample, plain)
