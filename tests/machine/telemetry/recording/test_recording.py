"""A recording plays as it was watched, survives its program's death and a full disk, and is refused when it is none."""

from __future__ import annotations

import random
import resource
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuwise.errors import DataError, GpuwiseError, InputError
from gpuwise.machine.telemetry.recording import parquet
from gpuwise.machine.telemetry.recording import schema as recording_schema
from gpuwise.machine.telemetry.recording.parquet import ParquetRecorder, journal_of, write_parquet
from gpuwise.machine.telemetry.recording.recorder import Recorder
from gpuwise.machine.telemetry.recording.replay import Replay, open_replay

Frames = Callable[..., list[tuple[Any, Any]]]


def played(path: Path) -> list[tuple[Any, Any]]:
    replay, out = open_replay(path), []
    while not replay.finished:
        frame = replay.refresh()
        out.append((frame, replay.causes(frame)))
    replay.close()
    return out


@pytest.fixture
def recorded(tmp_path: Path, demo_frames: Frames) -> tuple[Path, list[tuple[Any, Any]]]:
    path = tmp_path / "watch.sqlite"
    recorder = Recorder(path)
    frames = demo_frames(50, cards=8, sinks=[recorder])
    recorder.close()
    return path, frames


def test_it_plays_as_it_was_watched(recorded: Any) -> None:
    """Frames and causes are equal: nothing is lost on the way, nor made of it later."""
    path, frames = recorded
    assert played(path) == frames
    assert [p.name for p in path.parent.iterdir()] == ["watch.sqlite"], "one file, no journal beside it"


def test_parquet_plays_the_same_to_the_microsecond_of_the_day(recorded: Any, tmp_path: Path) -> None:
    path, frames = recorded
    write_parquet(path, tmp_path / "watch.parquet")
    again = played(tmp_path / "watch.parquet")
    assert [replace(f, wall_s=0) for f, _ in again] == [replace(f, wall_s=0) for f, _ in frames]
    assert [c for _, c in again] == [c for _, c in frames]
    assert all(abs(a.wall_s - b.wall_s) < 2e-6 for (a, _), (b, _) in zip(again, frames, strict=True))


def test_a_data_frame_reads_the_parquet(recorded: Any, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    path, frames = recorded
    write_parquet(path, tmp_path / "watch.parquet")
    table = pq.read_table(tmp_path / "watch.parquet")
    assert table.num_rows == 50 * 8 and set(table["name"].to_pylist()) == {"H100 SXM5 80GB"}
    assert table["power_w"].to_pylist()[:8] == [c.sample.power_w for c in frames[0][0].cards]
    assert table["processes"].to_pylist()[0][0]["command"].startswith("python train.py")


def test_tables_answer_sql(recorded: Any) -> None:
    path, frames = recorded
    db = sqlite3.connect(path)
    assert db.execute("SELECT count(*) FROM sample").fetchone() == (400,)
    spans = db.execute("SELECT id, from_sequence, to_sequence FROM cause WHERE number = 6 ORDER BY from_sequence").fetchall()
    lost = [n for n, (_, causes) in enumerate(frames) if any(c.id == "lost" for c in causes)]
    assert spans == [("lost", lost[0], lost[-1])]
    (energy,) = db.execute("SELECT max(energy_j) - min(energy_j) FROM sample WHERE number = 1").fetchone()
    assert energy == pytest.approx(49 * 698, rel=0.01)
    db.close()


def test_seeking_gives_the_frame_of_that_moment(recorded: Any) -> None:
    path, frames = recorded
    replay = Replay(path)
    for position, place in ((30.0, 30), (30.9, 30), (-5.0, 0), (1e9, 49), (12.0, 12)):
        replay.seek(position)
        frame = replay.refresh()
        assert (frame, replay.causes(frame)) == frames[place], position
        assert replay.position_s == place
    assert replay.length_s == 49.0 and replay.interval_s == 1.0 and "49 s" in replay.notices[0]
    replay.close()


def test_at_the_end_the_last_frame_stays(recorded: Any) -> None:
    replay = Replay(recorded[0])
    replay.seek(49.0)
    last = replay.refresh()
    assert replay.finished and replay.refresh() == last
    replay.close()


def test_what_is_not_listed_stays_unknown(tmp_path: Path, made: Any) -> None:
    """A driver that lists no processes is not one without processes; a cut-off card keeps its place."""
    card = made.card(sample={"processes": None, "unknown": {"processes": "no permission", "fan": "not supported"}})
    recorder = Recorder(tmp_path / "a.sqlite")
    recorder.write(made.frame(replace(card, processes=None)), ())
    recorder.close()
    ((frame, _),) = played(tmp_path / "a.sqlite")
    assert frame.cards[0].processes is None and frame.cards[0].sample.unknown["fan"] == "not supported"


# --- death ---

WRITER = """
import sys, time
from pathlib import Path
from gpuwise.machine.telemetry.demo import DemoDevices, DemoReader
from gpuwise.machine.telemetry.monitor import Monitor
from gpuwise.machine.telemetry.recording.parquet import ParquetRecorder
from gpuwise.machine.telemetry.recording.recorder import Recorder
path, limit = Path(sys.argv[1]), int(sys.argv[2])
if limit:
    import resource
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
devices = DemoDevices(2)
recorder = (ParquetRecorder if path.suffix == ".parquet" else Recorder)(path)
clock = [0.0]
monitor = Monitor([devices], reader=DemoReader(devices), background=False, clock=lambda: clock[0])
for n in range(10**6 if not limit else 200):
    frame = monitor.refresh()
    recorder.write(frame, monitor.causes(frame))
    clock[0] += 0.25
    print(n, len(recorder.notices), flush=True)
    if not limit:
        time.sleep(0.01)
    elif recorder.notices and n % 100 == 99:
        print("notice", recorder.notices[0], flush=True)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.getrlimit(resource.RLIMIT_FSIZE)[1],) * 2)
recorder.close()
print("closed", recorder.notices, flush=True)
"""


@pytest.mark.parametrize("name", ["killed.sqlite", "killed.parquet"])
def test_a_killed_program_loses_no_more_than_its_last_second(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with subprocess.Popen([sys.executable, "-c", WRITER, str(path), "0"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        n = 0
        for line in process.stdout:
            n = int(line.split()[0])
            if n >= 50:
                break
        process.send_signal(signal.SIGKILL)
        rest = process.stdout.read().split("\n")
    n = max([n, *(int(line.split()[0]) for line in rest if line.split()[1:] == ["0"])])
    frames = played(path)
    # four frames are a second here
    assert n - 4 <= frames[-1][0].sequence <= n + 1 and len(frames) == frames[-1][0].sequence + 1
    if name.endswith("parquet"):
        with pytest.raises(InputError, match="interrupted recording"):
            ParquetRecorder(path)


def test_a_full_disk_is_told_and_nothing_recorded_is_lost(tmp_path: Path) -> None:
    """The file may not grow beyond 100 kB, then may again: the notice comes, and in the end every frame is there."""
    path = tmp_path / "full.sqlite"
    done = subprocess.run(
        [sys.executable, "-c", WRITER, str(path), "100000"], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    notices = [line for line in done.stdout.splitlines() if line.startswith("notice")]
    assert notices and "is not written" in notices[0] and "frames wait" in notices[0]
    assert done.stdout.splitlines()[-1] == "closed ()"
    assert [f.sequence for f, _ in played(path)] == list(range(200))


def test_a_disk_that_stays_full_keeps_what_was_there(tmp_path: Path, demo_frames: Frames) -> None:
    path = tmp_path / "full.sqlite"
    recorder = Recorder(path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    frames = demo_frames(30)
    try:
        for frame, causes in frames[:10]:
            recorder.write(frame, causes)
        assert len(played(path)) == 10
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.with_name("full.sqlite-wal").stat().st_size, hard))
        for frame, causes in frames[10:]:
            recorder.write(frame, causes)
        assert recorder.notices
        recorder.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    (notice,) = recorder.notices
    assert "frames wait" in notice or "are not in" in notice
    kept = played(path)
    assert kept == frames[: len(kept)] and len(kept) >= 10


def test_frames_beyond_what_is_kept_are_counted(tmp_path: Path, demo_frames: Frames, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpuwise.machine.telemetry.recording import recorder as module

    monkeypatch.setattr(module, "N_PENDING", 5)
    recorder = Recorder(tmp_path / "a.sqlite")
    recorder._db.execute("PRAGMA max_page_count = 1")
    frames = demo_frames(12)
    for frame, causes in frames:
        recorder.write(frame, causes)
    assert "are lost" in recorder.notices[0]
    recorder._db.execute("PRAGMA max_page_count = 100000")
    recorder.close()
    assert "frames are not in" in recorder.notices[0]
    assert [f.sequence for f, _ in played(tmp_path / "a.sqlite")] == [7, 8, 9, 10, 11]


def test_a_parquet_file_that_cannot_be_made_leaves_the_journal(
    tmp_path: Path, demo_frames: Frames, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.parquet"
    recorder = ParquetRecorder(path)
    frames = demo_frames(5, sinks=[recorder])

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(parquet, "write_parquet", full)
    recorder.close()
    assert not path.exists() and "everything is in" in recorder.notices[0]
    assert played(path) == played(journal_of(path)) == frames


# --- what is no recording ---


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("somebody's")
    for make in (Recorder, ParquetRecorder):
        with pytest.raises(InputError, match="already exists"):
            make(path)
    assert path.read_text() == "somebody's"
    with pytest.raises(InputError, match="cannot be written"):
        Recorder(tmp_path / "no such folder" / "a.sqlite")


def test_files_that_are_no_recording(tmp_path: Path) -> None:
    text, other, empty = tmp_path / "a.txt", tmp_path / "b.sqlite", tmp_path / "c.sqlite"
    text.write_text("not a database at all" * 100)
    sqlite3.connect(other).execute("CREATE TABLE t (x)").connection.close()
    Recorder(empty).close()
    for path, said in (
        (text, "cannot be read"),
        (other, "not a recording"),
        (empty, "no frame"),
        (tmp_path / "d", "cannot be read"),
    ):
        with pytest.raises(InputError, match=said):
            open_replay(path)
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"x": [1]}), tmp_path / "e.parquet")
    with pytest.raises(InputError, match="not a recording"):
        open_replay(tmp_path / "e.parquet")


def test_a_recording_of_a_newer_version_is_refused(recorded: Any) -> None:
    path, _ = recorded
    db = sqlite3.connect(path)
    db.execute(f"PRAGMA user_version = {recording_schema.VERSION + 1}")
    db.close()
    with pytest.raises(InputError, match="newer gpuwise"):
        open_replay(path)


def test_a_column_this_version_does_not_know_and_one_it_misses(recorded: Any) -> None:
    path, frames = recorded
    db = sqlite3.connect(path)
    db.execute("ALTER TABLE sample ADD COLUMN unheard REAL DEFAULT 0.5")
    db.execute("ALTER TABLE sample DROP COLUMN fan")
    db.commit()
    db.close()
    assert len(played(path)) == len(frames)


@pytest.mark.parametrize("suffix", ["sqlite", "parquet"])
def test_damage_is_an_error_with_words(recorded: Any, tmp_path: Path, suffix: str) -> None:
    """Bytes overwritten anywhere: frames, or an error of ours; never a traceback of another kind."""
    path, _ = recorded
    if suffix == "parquet":
        write_parquet(path, tmp_path / "whole.parquet")
        path = tmp_path / "whole.parquet"
    raw, dice, errors = path.read_bytes(), random.Random(7), 0
    for n in range(12):
        damaged = tmp_path / f"damaged{n}.{suffix}"
        at = dice.randrange(16, len(raw) - 200)
        damaged.write_bytes(raw[:at] + dice.randbytes(150) + raw[at + 150 :] if n % 3 else raw[: max(5, at)])
        try:
            played(damaged)
        except GpuwiseError as error:
            assert isinstance(error, (InputError, DataError)) and error.message
            errors += 1
    assert errors >= 3


def test_the_recorders_time_is_small_beside_the_refresh(demo_frames: Frames, tmp_path: Path) -> None:
    """Counted, not timed: statements a frame of eight cards, so that nobody makes it a thousand by accident."""
    recorder, seen = Recorder(tmp_path / "a.sqlite"), []
    recorder._db.set_trace_callback(seen.append)
    demo_frames(40, sinks=[recorder])
    recorder.close()
    writes = [s for s in seen if s.startswith(("INSERT", "UPDATE"))]
    assert len(writes) <= 40 * (1 + 8 + 8) + 100
