"""CSV: whole lines or none, unknown cells empty, a full disk told and cut back from."""

from __future__ import annotations

import csv
import io
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwise.errors import InputError
from gpuwise.machine.devices.readings import EventReason
from gpuwise.machine.telemetry.outputs.csv_log import COLUMNS, CsvLog, header, lines, reason_names, time_words


def test_a_line_a_card_and_refresh(tmp_path: Path, demo_frames: Callable[..., Any]) -> None:
    log = CsvLog(str(tmp_path / "a.csv"))
    frames = demo_frames(3, sinks=[log])
    log.close()
    rows = list(csv.DictReader(io.StringIO((tmp_path / "a.csv").read_bytes().decode(), newline="")))
    assert len(rows) == 3 * 8 and list(rows[0]) == list(COLUMNS) and log.notices == ()
    card = frames[0][0].cards[1]
    assert float(rows[1]["power_w"]) == pytest.approx(card.power_w) and rows[1]["event_reasons"] == "SW_POWER_CAP"
    assert rows[1]["causes"] == "sw-power-cap" and rows[6]["state"] == "lost" and rows[6]["power_w"] == ""
    assert rows[0]["time"].endswith("Z") and rows[0]["fan"] == ""


def test_names_with_commas_and_other_letters(tmp_path: Path, made: Any) -> None:
    frame = made.frame(made.card(identity={"name": 'A "card", größer\n'}))
    log = CsvLog(str(tmp_path / "a.csv"))
    log.write(frame, ())
    log.close()
    (row,) = csv.DictReader(io.StringIO((tmp_path / "a.csv").read_bytes().decode(), newline=""))
    assert row["name"] == 'A "card", größer\n'


@given(st.integers(0, 2**70))
def test_reasons_name_every_bit(bits: int) -> None:
    names = (reason_names(bits) or "").split(";") if bits else []
    back = sum(int(EventReason[n]) if n in EventReason.__members__ else int(n, 16) for n in names)
    assert back == bits and reason_names(None) is None


@pytest.mark.parametrize("wall_s", [0.0, 1.8e9, -1.0, 1e18, float("nan"), float("inf")])
def test_any_time_of_day_is_written_or_left_empty(wall_s: float) -> None:
    assert time_words(wall_s) == "" or time_words(wall_s).endswith("Z")


def test_a_full_disk_leaves_whole_lines_and_writes_the_rest_later(tmp_path: Path, demo_frames: Callable[..., Any]) -> None:
    path = tmp_path / "a.csv"
    frames = demo_frames(20)
    size = len(header()) + len(lines(*frames[0]))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    log = CsvLog(str(path))
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size * 3, hard))
        for frame, causes in frames[:10]:
            log.write(frame, causes)
        (notice,) = log.notices
        assert "is not written (File too large)" in notice and "frames wait" in notice
        kept = path.read_bytes()
        assert kept.endswith(b"\n") and len(list(csv.reader(kept.decode().splitlines()))) % 8 == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    for frame, causes in frames[10:]:
        log.write(frame, causes)
    log.close()
    assert log.notices == () and path.read_bytes() == header() + b"".join(lines(f, c) for f, c in frames)


def test_it_refuses_files_that_are_there_and_folders_that_are_not(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("mine")
    with pytest.raises(InputError, match="already exists"):
        CsvLog(str(tmp_path / "a.csv"))
    with pytest.raises(InputError, match="cannot be written"):
        CsvLog(str(tmp_path / "no" / "a.csv"))
    assert (tmp_path / "a.csv").read_text() == "mine"
