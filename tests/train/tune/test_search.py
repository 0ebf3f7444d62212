"""Whole tunings of small scripts whose waste is planted; one of them killed and gone on with."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from gpuwise.cli.tune.view import show
from gpuwise.errors import GpuwiseError, InputError
from gpuwise.train.config import read
from gpuwise.train.hook.journal import Journal
from gpuwise.train.hook.launch import Limits, Outcome
from gpuwise.train.hook.settings import Stop
from gpuwise.train.hook.zygote import Zygote
from gpuwise.train.tune.batch.capacity import Capacity
from gpuwise.train.tune.candidates import candidates_of
from gpuwise.train.tune.document import document, write_config
from gpuwise.train.tune.facts import Facts
from gpuwise.train.tune.gate import Gate
from gpuwise.train.tune.search import Options, Result, Search
from gpuwise.train.tune.start import Start
from gpuwise.train.tune.state import FILE, State
from gpuwise.train.tune.stats import Gain
from gpuwise.train.tune.trial import Trial, TrialJob
from gpuwise.train.tune.whole import Whole
from gpuwise.workload.changes.diff import Patch, diff_of

HERE = Path(__file__).parent
FACTS = Facts("cpu", 1, 2, None, None, shares={"optimizer": 0.5}, optimizers=("Adam",))
SLOW_ITEMS, SLOW_COLUMNS = ("0.006", "0"), ("0", "2e-5")


def tuned(zygote: Zygote, folder: Path, arguments: tuple[str, ...], *only: str, resume: bool = False) -> Result:
    state = State(folder, {"arguments": list(arguments)}, resume=resume)
    options = Options(minutes=30, steps=6, least_s=0.2, only=only)
    return Search(TrialJob(str(HERE / "slow_items.py"), arguments), state, folder, zygote, options).run()


@pytest.mark.slow
def test_items_that_are_slow_to_make_are_kept_in_memory(zygote: Zygote, tmp_path: Path) -> None:
    result = tuned(zygote, tmp_path, SLOW_ITEMS, "cache_items", "pin_memory", "length_groups")
    assert result.levers == {"cache_items": True}
    assert result.gain is not None and result.gain.ratio > 2.0
    assert result.before.shares["data"] > 0.5 > result.after.shares["data"]
    by_name = {t.name: t for t in result.tried}
    assert by_name["pin_memory"].why == "not on a CPU"
    told = document(result, diff_of(HERE / "slow_items.py", result.levers), None)
    assert json.loads(json.dumps(told, allow_nan=False))["parity"]["passed"] is True
    write_config(result, "slow_items.py", tmp_path / "gpuwise.toml")
    assert read(tmp_path / "gpuwise.toml").levers == {"cache_items": True}


@pytest.mark.parametrize(
    ("has_workers", "lever", "rates"),
    [(False, "fused_optimizer", (20.0, 30.0)), (False, "workers", (10.0, 29.0)), (True, "fused_optimizer", (10.0, 29.0))],
)
def test_other_programs_are_in_no_gain_and_own_workers_are(
    tmp_path: Path, has_workers: bool, lever: str, rates: tuple[float, float]
) -> None:
    search = Search(TrialJob("train.py"), State(tmp_path, {}, resume=False), tmp_path, None, Options())
    search._has_workers = has_workers
    a, b = (Trial("enough", True, rate=by_clock, undisturbed_rate=own) for by_clock, own in ((10.0, 20.0), (29.0, 30.0)))
    assert search._rates(a, b, {lever}) == rates


@pytest.mark.slow
def test_a_tuning_that_was_killed_goes_on_where_it_was(zygote: Zygote, tmp_path: Path) -> None:
    """Rows of like length together save most columns; killed with kill -9 after its first pair."""
    program = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[1]); import test_search as t\n"
        "from gpuwise.train.hook.zygote import Zygote\n"
        "if __name__ == '__main__':\n"
        "    with Zygote() as z: t.tuned(z, Path(sys.argv[2]), t.SLOW_COLUMNS, 'length_groups')\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(HERE), str(tmp_path)],
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    file = tmp_path / FILE
    deadline = time.monotonic() + 300
    while (not file.exists() or file.read_bytes().count(b"\n") < 3) and time.monotonic() < deadline:
        assert process.poll() is None
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    before = file.read_bytes()
    lines = before[: before.rfind(b"\n") + 1]
    assert b'"key": "untouched"' in lines and b"together" not in lines
    result = tuned(zygote, tmp_path, SLOW_COLUMNS, "length_groups", resume=True)
    assert file.read_bytes().startswith(lines)
    keys = [json.loads(line).get("key") for line in file.read_bytes().splitlines()]
    assert len(keys) == len(set(keys))
    assert result.levers == {"length_groups": 8}
    assert result.gain is not None and result.gain.ratio > 2.0
    assert result.parity is not None and result.parity.passed and result.parity.changes == "exact"


@pytest.mark.parametrize(("ratio", "kept"), [(1.5, True), (1.0, False)], ids=["a gain", "none"])
def test_the_minutes_held_back_settle_a_lever_where_none_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ratio: float, kept: bool
) -> None:
    """On a machine so slow that the minutes of one lever hold two pairs of runs, which differ by a tenth."""
    clock = [0.0]
    noise = itertools.cycle((1.05, 0.95, 1.02, 0.98, 0.97, 1.03))

    class Slow(Search):
        def _look(self) -> tuple[Facts, Trial, Capacity]:
            self._reference_wall_s = 30.0
            return FACTS, Trial("enough", True, rate=100.0, undisturbed_rate=100.0), Capacity(1 << 30, False, "memory")

        def _measure(self, levers: Mapping[str, object], skip: int, **_: object) -> Trial:
            clock[0] += 30.0
            rate = 100.0 * next(noise) * (ratio if levers else 1.0)
            return Trial("enough", True, 10, rate=rate, undisturbed_rate=rate, applied=list(levers))

    monkeypatch.setattr("gpuwise.train.tune.search.start_of_run", lambda folder, levers: None)
    monkeypatch.setattr("gpuwise.train.tune.search.time.monotonic", lambda: clock[0])
    options = Options(minutes=4.0, only=("fused_optimizer",), parity=False)
    search = Slow(TrialJob("train.py"), State(tmp_path, {}, resume=False), tmp_path, None, options)
    result = search.run()
    assert (result.levers == {"fused_optimizer": True}) is kept
    # at most one pair more than fits, so that it has the four that a whole is judged by
    assert clock[0] <= 4 * 60.0 + 60.0
    if kept:
        assert result.gain is not None and result.gain.n_pairs >= 4 and result.gain.low > 1.03


def test_a_run_that_is_not_over_when_the_minutes_are_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """yolov5's classify/train.py among other programs: a tuning of 3 minutes was still there after 500 s."""
    clock = [0.0]

    class Slow(Search):
        def _look(self) -> tuple[Facts, Trial, Capacity]:
            self._reference_wall_s = 60.0
            self._limit(600.0, Capacity(1 << 30, False, "memory"))
            return FACTS, Trial("enough", True, rate=100.0, undisturbed_rate=100.0), Capacity(1 << 30, False, "memory")

        def _run(self, levers: Mapping[str, object], stop: Stop, job: TrialJob | None = None) -> Outcome:
            limit_s = (job or self._job).limits.wall_s or 0.0
            clock[0] += limit_s
            return Outcome("time", 1, Journal(), limit_s, None)

    monkeypatch.setattr("gpuwise.train.tune.search.time.monotonic", lambda: clock[0])
    options = Options(minutes=3.0, only=("fused_optimizer",), parity=False)
    result = Slow(TrialJob("train.py"), State(tmp_path, {}, resume=False), tmp_path, None, options).run()
    assert clock[0] <= 3 * 60.0 + 2 * 60.0
    assert [(t.result, t.why) for t in result.tried if t.name == "fused_optimizer"] == [
        ("no time", "a run was not over when the minutes were")
    ]
    assert not result.levers and b"no time" not in (tmp_path / FILE).read_bytes()


def test_a_lever_that_a_kept_one_has_emptied_takes_no_run(tmp_path: Path) -> None:
    """Rows grouped by length leave no padding to trim, and no wait for data leaves nothing to workers."""

    class NoRuns(Search):
        def _run(self, levers: Mapping[str, object], stop: Stop, job: TrialJob | None = None) -> Outcome:
            raise AssertionError(f"ran {levers}")

    facts = replace(FACTS, n_workers=0, padding=0.6, shares={"data": 0.5, "forward": 0.25, "backward": 0.25})
    after = Trial("enough", True, rate=2.0, shares={"data": 0.0, "forward": 0.5, "backward": 0.5})
    search = NoRuns(TrialJob("train.py"), State(tmp_path, {}, resume=False), tmp_path, None, Options(minutes=5.0))
    by_label = {c.label: c for c in candidates_of(facts)}
    search._empty(by_label["length_groups=8"], facts, after)
    gate = Gate(TrialJob("train.py"), tmp_path, None)
    tried = [search._try(by_label[name], facts, after, gate) for name in ("trim_padding", "workers=2")]
    assert [t.result for t in tried] == ["not tried", "not tried"]
    assert all(t.why.endswith("beside length_groups=8") for t in tried)


@pytest.mark.parametrize(("ended", "why"), [("end", "it came to its end"), ("time", "its time was over")])
def test_a_lever_whose_run_shows_no_speed_is_explained_in_words(tmp_path: Path, ended: str, why: str) -> None:
    """It was "failed: end"."""

    class Short(Search):
        def _run(self, levers: Mapping[str, object], stop: Stop, job: TrialJob | None = None) -> Outcome:
            return Outcome(ended, 0, Journal(), 1.0, None)

    options = Options(minutes=5.0, only=("threads",))
    search = Short(TrialJob("train.py"), State(tmp_path, {}, resume=False), tmp_path, None, options)
    (candidate, *_) = (c for c in candidates_of(FACTS, options.only) if c.hopeless is None)
    if ended == "time":
        # the minutes are not over, the run's own limit is
        search._job = replace(search._job, limits=Limits(wall_s=1.0))
    tried = search._try(candidate, FACTS, Trial("enough", True, rate=1.0), Gate(TrialJob("train.py"), tmp_path, None))
    assert (tried.result, tried.why) == ("failed", why)


@pytest.mark.parametrize(
    ("run_length_s", "start_s", "whole", "kept"),
    [
        (None, 0.2, None, True),
        (None, 0.5, None, False),
        (3600.0, 0.5, None, True),
        (None, 0.5, Gain(1.1, 1.04, 1.16, 4), True),
        (None, 0.2, Gain(0.97, 0.9, 1.04, 8), False),
        (None, 0.2, Gain(1.05, 0.99, 1.1, 8), True),
    ],
    ids=["long", "short", "said", "faster as a whole", "slower as a whole", "cannot be told as a whole"],
)
def test_a_script_so_short_that_the_start_of_run_is_more_keeps_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    run_length_s: float | None,
    start_s: float,
    whole: Gain | None,
    kept: bool,
) -> None:
    """Twenty steps of 0.05 s, 1.5 times as fast: 0.33 s saved. Its rates are those of the gain, whatever others took of them."""
    share = itertools.cycle((0.9, 0.6, 0.5, 0.8))

    class Short(Search):
        def _look(self) -> tuple[Facts, Trial, Capacity]:
            self._reference_wall_s = 1.0
            facts = replace(FACTS, epoch_steps=10, epochs=2.0)
            return (
                facts,
                Trial("enough", True, step_s=0.05, rate=100.0, undisturbed_rate=100.0),
                Capacity(1 << 30, False, "memory"),
            )

        def _measure(self, levers: Mapping[str, object], skip: int, **_: object) -> Trial:
            rate = 100.0 * (1.5 if levers else 1.0)
            mine = next(share)
            step_s = 5.0 / rate / mine
            return Trial("enough", True, 10, step_s, rate * mine, rate, wall_s=1.0, applied=list(levers))

    monkeypatch.setattr("gpuwise.train.tune.search.start_of_run", lambda folder, levers: Start(1.0, start_s))
    measured = None if whole is None else Whole(2.0, 2.0 / whole.ratio, whole, is_measured=True)
    monkeypatch.setattr("gpuwise.train.tune.search.whole_gain", lambda *told: measured)
    options = Options(minutes=30.0, only=("fused_optimizer",), parity=False, run_length_s=run_length_s)
    result = Short(TrialJob("train.py"), State(tmp_path, {}, resume=False), tmp_path, None, options).run()
    assert (result.levers == {"fused_optimizer": True}) is kept
    assert result.gain is not None and result.before.rate and result.after.rate
    assert result.after.rate / result.before.rate == pytest.approx(result.gain.ratio)
    assert result.is_undisturbed and result.length_from == ("script" if run_length_s is None else "option")
    show(result, Patch("", ()), "script.py", None)
    said = " ".join(capsys.readouterr().out.split())
    assert (f"`gpuwise run` takes {start_s} s to start" in said) is not kept
    assert result.whole is not None
    assert result.whole == measured if measured is not None else not result.whole.is_measured
    if kept:
        assert f"{result.whole.gain.ratio:.2f}x" in said and said.startswith("The training takes")
    if run_length_s is None:
        assert result.run_length_s == pytest.approx(1.0)


@pytest.mark.parametrize(("whole_s", "kept"), [(2.0, False), (None, True)], ids=["it ends after 2 s", "it trains on"])
def test_a_script_that_does_not_say_how_long_it_trains_is_run_to_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole_s: float | None, kept: bool
) -> None:
    """As makemore's, which ends at a number of steps in the middle of an endless loop: at 1.16 times as fast it was slower as a
    whole."""

    class Endless(Search):
        def _look(self) -> tuple[Facts, Trial, Capacity]:
            self._reference_wall_s = 1.0
            return (
                FACTS,
                Trial("enough", True, step_s=0.05, rate=100.0, undisturbed_rate=100.0),
                Capacity(1 << 30, False, "memory"),
            )

        def _measure(self, levers: Mapping[str, object], skip: int, **_: object) -> Trial:
            rate = 100.0 * (1.16 if levers else 1.0)
            return Trial("enough", True, 10, 5.0 / rate, rate, rate, wall_s=1.0, applied=list(levers))

    limits: list[float] = []

    def ran(job: TrialJob, *told: object, **more: object) -> Outcome:
        assert job.limits.wall_s is not None
        limits.append(job.limits.wall_s)
        journal = Journal()
        if whole_s is not None:
            journal.events.append({"event": "whole", "wall_s": whole_s, "queue_s": 0.0})
        return Outcome("time" if whole_s is None else "end", 0, journal, 2.0, None)

    monkeypatch.setattr("gpuwise.train.tune.search.start_of_run", lambda folder, levers: Start(1.0, 0.5))
    monkeypatch.setattr("gpuwise.train.tune.search.whole_gain", lambda *told: None)
    monkeypatch.setattr("gpuwise.train.tune.search.run", ran)
    options = Options(minutes=30.0, only=("fused_optimizer",), parity=False)
    result = Endless(TrialJob("train.py"), State(tmp_path, {}, resume=False), tmp_path, None, options).run()
    assert (result.levers == {"fused_optimizer": True}) is kept
    # until three times the start are saved
    assert limits == pytest.approx([3.0 * 0.5 / (1.0 - 1.0 / 1.16) + 1.0])
    assert result.length_from == ("assumed" if kept else "script") and (result.too_short is None) is kept


@pytest.mark.parametrize(("start_s", "kept"), [(5.0, False), (2.0, True)], ids=["may end before", "has trained longer"])
def test_minutes_that_do_not_show_whether_the_start_is_saved_keep_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start_s: float, kept: bool
) -> None:
    """At 1.16 times as fast the start is saved after 36 and 15 s; runs of 20 s are all that was seen of it. As an LSTM of ten
    seconds, whose threads were kept in three minutes: 1.48 times as fast, and slower as a whole."""
    clock = [0.0]

    class Busy(Search):
        def _look(self) -> tuple[Facts, Trial, Capacity]:
            self._reference_wall_s = 20.0
            before = Trial("enough", True, step_s=0.05, rate=100.0, undisturbed_rate=100.0)
            return FACTS, before, Capacity(1 << 30, False, "memory")

        def _measure(self, levers: Mapping[str, object], skip: int, **_: object) -> Trial:
            clock[0] += 20.0
            rate = 100.0 * (1.16 if levers else 1.0)
            return Trial("enough", True, 10, 5.0 / rate, rate, rate, wall_s=20.0, applied=list(levers))

        def _against(self, *told: object) -> tuple[list[Trial], list[Trial]]:
            pairs = super()._against(*told)
            clock[0] = 360.0
            return pairs

    monkeypatch.setattr("gpuwise.train.tune.search.time.monotonic", lambda: clock[0])
    monkeypatch.setattr("gpuwise.train.tune.search.start_of_run", lambda folder, levers: Start(1.0, start_s))
    options = Options(minutes=6.0, only=("fused_optimizer",), parity=False)
    result = Busy(TrialJob("train.py"), State(tmp_path, {}, resume=False), tmp_path, None, options).run()
    assert (result.levers == {"fused_optimizer": True}) is kept
    assert (result.too_short is None) is kept
    if result.too_short is not None:
        assert result.too_short.endswith("which they save in 36.3 s, and it is unknown whether it trains that long")


UNSTEADY = """
import math, os, time, torch
slow_s = 0.004 * math.exp(2.0 * os.urandom(1)[0] / 255)  # another in every process, as on a machine that others use
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    time.sleep(slow_s)
    model(torch.ones(8, 4)).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.slow
def test_an_unsteady_machine_is_not_called_one_where_nothing_is_faster(
    zygote: Zygote, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And none of its luck is kept."""
    (tmp_path / "script.py").write_text(UNSTEADY)
    said: list[str] = []
    state = State(tmp_path / "out", {}, resume=False)
    options = Options(minutes=30, steps=6, least_s=0.1, only=("fused_optimizer", "threads"))
    result = Search(TrialJob(str(tmp_path / "script.py")), state, tmp_path / "out", zygote, options, said.append).run()
    assert result.levers == {} and result.could_not_tell and result.spread is not None and result.spread > 0.3
    assert "levers to try in" in said[1]
    show(result, Patch("", ()), "script.py", None)
    words = " ".join(capsys.readouterr().out.split())
    assert "It is unclear whether" in words
    assert re.search(r"more pairs? of runs would show it: --resume --minutes \d+|Longer runs would show it", words)


@pytest.mark.parametrize(
    ("text", "kind", "match"),
    [
        ("print('no training')\n", InputError, "made no optimizer step: it came to its end"),
        ("import torch\nraise RuntimeError('bad data')\n", GpuwiseError, "RuntimeError: bad data"),
        ("import torch\ninput('name? ')\n", InputError, "reads standard input"),
    ],
)
def test_scripts_that_cannot_be_tuned(zygote: Zygote, tmp_path: Path, text: str, kind: type, match: str) -> None:
    (tmp_path / "script.py").write_text(text)
    with pytest.raises(kind, match=match):
        Search(
            TrialJob(str(tmp_path / "script.py")), State(tmp_path / "out", {}, resume=False), tmp_path / "out", zygote, Options()
        ).run()
