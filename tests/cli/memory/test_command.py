import json
import pickle

import pytest

from gpuwise.cli.app import run as command
from gpuwise.predict.memory.snapshot.reader import read_snapshot

MIB = 1 << 20


def test_json_has_the_peaks_the_gaps_and_other_settings(recorded, capsys):
    assert command(["memory", str(recorded), "--json"]) == 0
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert said["recorded"]["replay_exact"] is True
    assert said["peak_reserved_bytes"] == (26 + 28 + 20 + 52) * MIB
    at = said["at_peak"]
    parts = ("rounding_bytes", "unsplit_bytes", "small_pool_bytes", "split_bytes", "cached_bytes")
    assert sum(at[p] for p in parts) == at["reserved_bytes"] - at["requested_bytes"]
    trials = {t["settings"]: t["peak_reserved_bytes"] for t in said["trials"]}
    assert trials["expandable_segments:True"] < said["peak_reserved_bytes"]


@pytest.mark.parametrize("width", ["80", "120"])
def test_people_read_the_same(recorded, capsys, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", width)
    assert command(["memory", str(recorded), "--conf", "expandable_segments:True"]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= int(width)
    assert "Device 0, 4 allocations, expandable_segments:True" in text and "puts every block where the real one did" in text
    assert "…" not in text


def test_a_capacity_tells_where_it_runs_out(recorded, capsys):
    assert command(["memory", str(recorded), "--capacity", "60MiB"]) == 0
    text = capsys.readouterr().out
    assert "out of memory" in text and "27.0 MiB" in text and "train.py:1 in step" in text


def test_files_are_written(recorded, tmp_path, capsys):
    svg, again = tmp_path / "t.svg", tmp_path / "again.pickle"
    assert command(["memory", str(recorded), "--timeline", str(svg), "--out", str(again)]) == 0
    assert svg.read_text().startswith("<svg") and read_snapshot(again).reserved_bytes
    assert str(svg) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["none.pickle"], "cannot be read"),
        (["{}", "--conf", "expandable_segments:yes"], "True or False"),
        (["{}", "--capacity", "0GiB"], "capacity"),
        (["{}", "--device", "5"], "device 5"),
        (["{}", "--timeline", "t.png"], "not a kind of file"),
        (["{}", "--out", "x.txt"], "not a kind of file"),
    ],
)
def test_bad_input_is_one_line_and_a_hint(recorded, capsys, words, message):
    assert command(["memory", *[w.format(recorded) for w in words]]) == 2
    err = capsys.readouterr().err
    assert message in err and "hint:" in err and "Traceback" not in err


def test_a_hostile_file_runs_nothing(tmp_path, capsys):
    class Evil:
        def __reduce__(self):
            return (print, ("owned",))

    path = tmp_path / "evil.pickle"
    path.write_bytes(pickle.dumps(Evil()))
    assert command(["memory", str(path)]) == 2
    out = capsys.readouterr()
    assert "owned" not in out.out and "could run code" in out.err
