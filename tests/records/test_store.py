"""The record file: nothing measured is lost, nothing foreign is read."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuwise.errors import DataError
from gpuwise.records.record import Record, Run
from gpuwise.records.schema import MIGRATIONS, migrate
from gpuwise.records.store import Records, records_path

RUN = Run("a" * 32, 1.0, "m" * 16, {"cores": 2}, {"torch": "2.13.0"}, "gpuwise bench")
RECORD = Record(
    2.0,
    "matmul-bf16-64x64x64",
    "matmul",
    "GPU-1",
    "NVIDIA H100",
    "h100-sxm-80gb",
    "bf16",
    {"m": 64},
    "FLOP/s",
    5e14,
    4.9e14,
    5.1e14,
    30,
    1e-3,
    True,
    0.2,
    {"power_w": 640.0},
)


def numbered(n: int) -> Record:
    return replace(RECORD, at_s=float(n), measurement=f"m{n}")


def test_what_was_added_is_read_back_with_its_run(tmp_path: Path) -> None:
    with Records(tmp_path / "r.db") as records:
        records.start(RUN)
        records.add(RUN, RECORD)
        records.add(RUN, replace(RECORD, at_s=3.0, value=None, failed="out of memory", correct=None))
    with Records(tmp_path / "r.db") as records:
        first, second = records.query()
    assert first == replace(RECORD, run=RUN)
    assert second.failed == "out of memory"
    assert second.correct is None


def test_a_query_takes_only_what_was_asked_for(tmp_path: Path) -> None:
    with Records(tmp_path / "r.db") as records:
        records.start(RUN)
        for n in range(5):
            records.add(RUN, numbered(n))
        records.add(RUN, replace(RECORD, at_s=9.0, family="disk", device="cpu", accelerator=None))
        assert [r.measurement for r in records.query(family="matmul", limit=2)] == ["m3", "m4"]
        assert len(records.query(device="cpu")) == 1
        assert len(records.query(since_s=3.0)) == 3
        assert records.query(accelerator="h100-sxm-80gb", measurement="m0")[0].at_s == 0.0
        assert records.query(machine_id="nobody's") == []


def test_the_file_is_the_one_the_environment_names(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert records_path() == home / "records.db"
    monkeypatch.setenv("GPUWISE_RECORDS", str(home / "mine.db"))
    assert records_path() == home / "mine.db"


WRITER = """
import sys
from pathlib import Path
from dataclasses import replace
sys.path.insert(0, {tests!r})
from test_store import RECORD, RUN
from gpuwise.records.store import Records
me, how_many = sys.argv[1], int(sys.argv[2])
run = replace(RUN, id=me * 32)
with Records(Path(sys.argv[3])) as records:
    records.start(run)
    for n in range(how_many):
        records.add(run, replace(RECORD, at_s=float(n), measurement=f"{{me}}{{n}}"))
        print(n, flush=True)
"""


def writer(me: str, how_many: int, path: Path) -> subprocess.Popen[str]:
    code = WRITER.format(tests=str(Path(__file__).parent))
    return subprocess.Popen([sys.executable, "-c", code, me, str(how_many), str(path)], stdout=subprocess.PIPE, text=True)


def test_two_processes_write_at_once_and_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    both = [writer(me, 25, path) for me in "xy"]
    for process in both:
        process.communicate(timeout=300)
        assert process.returncode == 0
    with Records(path) as records:
        names = {r.measurement for r in records.query()}
    assert names == {f"{me}{n}" for me in "xy" for n in range(25)}


def test_many_may_open_a_new_file_at_once(tmp_path: Path) -> None:
    """Without waiting for the journal's mode one of four failed on every seventh file."""
    for n in range(40):
        barrier = threading.Barrier(4)
        failures: list[DataError] = []

        def open_it(path: Path, barrier: threading.Barrier = barrier, failures: list[DataError] = failures) -> None:
            barrier.wait()
            try:
                with Records(path) as records:
                    records.start(RUN)
            except DataError as error:
                failures.append(error)

        threads = [threading.Thread(target=open_it, args=(tmp_path / f"{n}.db",)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL here")
def test_kill_9_loses_nothing_that_was_measured(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    process = writer("z", 10**9, path)
    assert process.stdout is not None
    said = [int(process.stdout.readline()) for _ in range(8)]
    os.kill(process.pid, signal.SIGKILL)
    said += [int(line) for line in process.stdout.read().split()]
    process.wait(timeout=300)
    process.stdout.close()
    with Records(path) as records:
        kept = {r.measurement for r in records.query()}
    assert {f"z{n}" for n in said} <= kept
    assert len(kept) <= len(said) + 1


def test_a_corrupt_file_gives_advice_not_numbers(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    path.write_bytes(b"this was never a database, however long it is" * 50)
    with pytest.raises(DataError, match="corrupt") as caught:
        Records(path)
    assert "GPUWISE_RECORDS" in (caught.value.hint or "")


def test_pages_that_were_overwritten_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    with Records(path) as records:
        records.start(RUN)
        for n in range(40):
            records.add(RUN, replace(numbered(n), device_name="x" * 1000))
    raw = bytearray(path.read_bytes())
    raw[8192:] = os.urandom(len(raw) - 8192)
    path.write_bytes(raw)
    with pytest.raises(DataError, match="corrupt"), Records(path) as records:
        records.query()


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    Records(path).close()
    with sqlite3.connect(path) as raw:
        raw.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    raw.close()
    with pytest.raises(DataError, match="newer gpuwise") as caught:
        Records(path)
    assert "pip install -U" in (caught.value.hint or "")


def test_another_programs_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "theirs.db"
    with sqlite3.connect(path) as raw:
        raw.execute("CREATE TABLE theirs (x)")
    raw.close()
    with pytest.raises(DataError, match="another program"):
        Records(path)
    with sqlite3.connect(path) as raw:
        assert [r[0] for r in raw.execute("SELECT name FROM sqlite_master")] == ["theirs"]
    raw.close()


def test_an_older_file_is_brought_up_to_date_with_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    raw = sqlite3.connect(path, isolation_level=None)
    migrate(raw, path, MIGRATIONS[:1])
    raw.execute("INSERT INTO runs VALUES ('r', 1.0, 'm', '{}', '{}', '')")
    raw.execute(
        "INSERT INTO records (run, at_s, measurement, family, device, device_name, dtype, parameters, unit, value, samples, "
        "conditions) VALUES ('r', 1.0, 'old', 'matmul', 'cpu', 'CPU', 'fp32', '{}', 'FLOP/s', 1e9, 3, '{}')"
    )
    raw.close()
    with Records(path) as records:
        assert [r.measurement for r in records.query()] == ["old"]
    raw = sqlite3.connect(path)
    assert raw.execute("PRAGMA user_version").fetchone()[0] == len(MIGRATIONS)
    assert raw.execute("SELECT count(*) FROM sqlite_master WHERE name = 'records_once'").fetchone()[0] == 1
    raw.close()


def test_a_step_that_fails_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    raw = sqlite3.connect(path, isolation_level=None)
    migrate(raw, path, MIGRATIONS)
    with pytest.raises(sqlite3.OperationalError):
        migrate(raw, path, (*MIGRATIONS, ("CREATE TABLE more (x)", "not SQL")))
    assert raw.execute("SELECT count(*) FROM sqlite_master WHERE name = 'more'").fetchone()[0] == 0
    assert raw.execute("PRAGMA user_version").fetchone()[0] == len(MIGRATIONS)
    raw.close()


def test_a_folder_in_the_way_and_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be used"):
        Records(tmp_path)
    with pytest.raises(DataError, match="no record file"):
        Records(tmp_path / "none.db", create=False)
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot be used"):
        Records(tmp_path / "file" / "r.db")


NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
MADE = st.builds(
    Record,
    at_s=NUMBERS,
    measurement=st.text(min_size=1),
    family=st.text(min_size=1),
    device=st.text(min_size=1),
    device_name=st.text(),
    accelerator=st.none() | st.text(),
    dtype=st.text(),
    parameters=st.dictionaries(st.text(), st.none() | st.booleans() | st.integers(-(2**53), 2**53) | NUMBERS | st.text()),
    unit=st.text(min_size=1),
    value=NUMBERS,
    low=st.none() | NUMBERS,
    samples=st.integers(0, 2**40),
    correct=st.none() | st.booleans(),
    conditions=st.dictionaries(st.text(), NUMBERS | st.text()),
)


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(made=st.lists(MADE, max_size=4, unique_by=lambda r: (r.device, r.measurement, r.at_s)))
def test_lines_carry_every_record_over_and_once(tmp_path: Path, made: list[Record]) -> None:
    for name in ("a.db", "b.db"):
        for left in tmp_path.glob(f"{name}*"):
            left.unlink()
    with Records(tmp_path / "a.db") as a, Records(tmp_path / "b.db") as b:
        a.start(RUN)
        for record in made:
            a.add(RUN, record)
        lines = list(a.export_lines())
        assert b.import_lines(lines) == len(made)
        assert b.import_lines(lines) == 0
        assert a.query() == b.query()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("{", "not JSON"),
        ("[1]", "not a record"),
        ({"colour": 1}, "colour"),
        ({"value": float("nan")}, "value"),
        ({"value": "fast"}, "value"),
        ({"value": None}, "neither"),
        ({"parameters": []}, "parameters"),
        ({"measurement": ""}, "measurement"),
        ({"run": {"id": "x", "machine_id": "m"}}, "time"),
        ({"run": {"id": 3, "machine_id": "m", "at_s": 1.0}}, "id"),
    ],
)
def test_lines_that_are_no_records_are_refused_whole(tmp_path: Path, change: object, said: str) -> None:
    with Records(tmp_path / "r.db") as records:
        records.start(RUN)
        records.add(RUN, RECORD)
        good = next(records.export_lines())
        bad = change if isinstance(change, str) else json.dumps({**json.loads(good), **change})  # type: ignore[dict-item]
        with Records(tmp_path / "new.db") as new:
            with pytest.raises(DataError, match=said) as caught:
                new.import_lines([good, bad], "lines.jsonl")
            assert "lines.jsonl:2" in caught.value.message
            assert new.query() == []


def test_a_record_needs_a_finite_value(tmp_path: Path) -> None:
    with Records(tmp_path / "r.db") as records:
        records.start(RUN)
        with pytest.raises(DataError, match="value is inf"):
            records.add(RUN, replace(RECORD, value=float("inf")))
