"""What ``gpuwise run`` takes to start, and whole trainings, which decide where a script is short."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from gpuwise.train.hook.settings import Stop
from gpuwise.train.hook.zygote import Zygote
from gpuwise.train.tune.start import Start, start_of_run
from gpuwise.train.tune.stats import Gain
from gpuwise.train.tune.trial import TrialJob, run
from gpuwise.train.tune.whole import counted, whole_gain, whole_s

pytest.importorskip("torch")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="the system does not tell")
def test_the_start_of_run_is_part_of_a_second_and_no_levers_fail(tmp_path: Path) -> None:
    start = start_of_run(tmp_path, {"fused_optimizer": True})
    assert start is not None and 0.0 <= start.added_s < 5.0 and 0.3 < start.import_s < 60.0
    assert start_of_run(tmp_path, {"no_such_lever": True}) is None


def test_pairs_are_added_until_they_tell_and_the_start_counts() -> None:
    taken = {False: (10.0, 10.2, 9.9, 10.1), True: (8.0, 8.1, 8.0, 8.1)}
    seen: list[tuple[bool, int]] = []

    def measure(levered: bool, at: int) -> float:
        seen.append((levered, at))
        return taken[levered][at]

    whole = whole_gain(measure, Start(2.0, 0.9), 1.0, time.monotonic() + 60.0, 0.05)
    assert whole is not None and whole.is_measured and whole.before_s == pytest.approx(12.0) and whole.gain.n_pairs == 3
    assert whole.gain.ratio == pytest.approx(12.0 / 10.9, rel=0.01) and whole.gain.low > 1.0
    # in turns the other way round
    assert seen[:4] == [(False, 0), (True, 0), (True, 1), (False, 1)]
    eaten = whole_gain(measure, Start(2.0, 2.4), 1.0, time.monotonic() + 60.0, 0.05)
    assert eaten is not None and eaten.gain.high < 1.0


def test_a_training_gains_less_than_its_steps() -> None:
    """A cache whose steps were 14.6 times as fast, in a script of two epochs of 10 s: 1.8 times."""
    whole = counted(Gain(14.6, 13.0, 16.0, 6), 20.0, once_s=3.0, added_s=1.0, filling_s=10.0)
    assert whole.before_s == 23.0 and whole.after_s == pytest.approx(3.0 + 1.0 + 10.0 + 10.0 / 14.6)
    assert 1.4 < whole.gain.low < whole.gain.ratio < whole.gain.high < 1.8 and not whole.is_measured
    slower = counted(Gain(1.2, 1.1, 1.3, 6), 10.0, once_s=3.0, added_s=2.0)
    assert slower.gain.ratio < 1.0


def test_what_does_not_fit_or_end_tells_nothing() -> None:
    assert whole_gain(lambda levered, at: 1.0, Start(0.0, 0.1), 30.0, time.monotonic() + 80.0, 0.05) is None
    assert whole_gain(lambda levered, at: None if levered else 1.0, Start(0.0, 0.1), 1.0, time.monotonic() + 80.0, 0.05) is None


TRAINING = """
import time, torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(20):
    model(torch.ones(8, 4)).mean().backward()
    optimizer.step()
time.sleep(0.3)
"""


@pytest.mark.parametrize(("stop", "whole"), [(Stop(), True), (Stop(most_steps=5), False)], ids=["to its end", "stopped"])
def test_a_whole_training_is_timed_to_its_own_end(zygote: Zygote, tmp_path: Path, stop: Stop, whole: bool) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    outcome = run(TrialJob(str(tmp_path / "train.py")), {}, tmp_path / "out", stop=stop, zygote=zygote)
    seconds = whole_s(outcome, by_clock=True)
    assert (seconds is not None) is whole
    if seconds is not None:
        alone_s = whole_s(outcome, by_clock=False)
        assert 0.3 <= seconds <= outcome.wall_s and alone_s is not None and 0.3 <= alone_s <= seconds
