from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpuwise.errors import InputError
from gpuwise.files import alone_in
from gpuwise.train.tune.state import FILE, State


def test_what_was_measured_is_not_measured_again(tmp_path: Path) -> None:
    state = State(tmp_path, {"script": "a"}, resume=False)
    assert state.measured("x", lambda: {"rate": 1.5}) == {"rate": 1.5}
    again = State(tmp_path, {"script": "a"}, resume=True)
    assert again.measured("x", lambda: pytest.fail("measured twice")) == {"rate": 1.5}


def test_a_line_cut_short_is_measured_again_and_the_file_stays_whole(tmp_path: Path) -> None:
    state = State(tmp_path, {}, resume=False)
    state.measured("x", lambda: 1)
    state.measured("y", lambda: 2)
    file = tmp_path / FILE
    file.write_bytes(file.read_bytes()[:-7])
    again = State(tmp_path, {}, resume=True)
    assert again.has("x") and not again.has("y")
    assert again.measured("y", lambda: 3) == 3
    assert State(tmp_path, {}, resume=True).measured("y", lambda: 4) == 3


def test_another_subject_is_refused(tmp_path: Path) -> None:
    State(tmp_path, {"script": "a", "text": "1"}, resume=False)
    with pytest.raises(InputError, match="text changed"):
        State(tmp_path, {"script": "a", "text": "2"}, resume=True)


def test_nothing_to_go_on_with(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no tuning"):
        State(tmp_path, {}, resume=True)
    (tmp_path / FILE).write_text("{}\n")
    with pytest.raises(InputError, match="not a file of measurements"):
        State(tmp_path, {}, resume=True)


def test_a_new_tuning_keeps_the_old_file(tmp_path: Path) -> None:
    State(tmp_path, {}, resume=False).measured("x", lambda: 1)
    assert not State(tmp_path, {}, resume=False).has("x")
    assert len(list(tmp_path.glob("*.jsonl"))) == 2


KILLED = """
import sys, time
from pathlib import Path
from gpuwise.train.tune.state import State
state = State(Path(sys.argv[1]), {"a": 1}, resume=False)
for k in range(1000):
    state.measured(str(k), lambda: k)
    print(k, flush=True)
    time.sleep(0.001)
"""


def test_kill_9_loses_nothing_that_was_told(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    told = [process.stdout.readline() for _ in range(20)]
    os.kill(process.pid, signal.SIGKILL)
    told += process.stdout.read().splitlines()
    process.wait()
    process.stdout.close()
    last = int(told[-1])
    again = State(tmp_path, {"a": 1}, resume=True)
    assert all(again.measured(str(k), lambda: None) == k for k in range(last + 1))
    time.sleep(0)


def test_two_tunings_in_one_folder(tmp_path: Path) -> None:
    """The second would clear the first one's runs."""
    with alone_in(tmp_path, "tuning"), pytest.raises(InputError, match="another tuning is running"), alone_in(tmp_path, "tuning"):
        pass
    with alone_in(tmp_path, "tuning"):
        pass


def test_a_file_of_an_older_release_is_not_gone_on_with(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text('{"kind": "tuning", "version": 1, "subject": {}}\n')
    with pytest.raises(InputError, match="not a file of measurements"):
        State(tmp_path, {}, resume=True)
