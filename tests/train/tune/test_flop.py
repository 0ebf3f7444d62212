"""FLOP of a turn of a loop against the same counted by hand, and the share of the peak that follows from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gpuwise.train.hook.journal import Journal
from gpuwise.train.hook.launch import Outcome
from gpuwise.train.hook.settings import Stop
from gpuwise.train.ticks import Step
from gpuwise.train.tune import peak
from gpuwise.train.tune.flop import Flop, changes_flop, flop_of, utilisation
from gpuwise.train.tune.peak import Peaks, measure_processor
from gpuwise.train.tune.trial import trial_of

SCRIPT = """
import sys
import torch
from torch.utils.checkpoint import checkpoint
kind = sys.argv[1]

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(16, 32), torch.nn.Linear(32, 4)
        self.lstm = torch.nn.LSTM(4, 3, batch_first=True) if kind == "lstm" else None

    def hidden(self, x):
        return torch.relu(self.a(x))

    def forward(self, x):
        if kind in ("kept", "reentrant"):
            x = checkpoint(self.hidden, x, use_reentrant=kind == "reentrant")
        else:
            x = self.hidden(x)
        x = self.b(x)
        return self.lstm(x[None])[0] if self.lstm is not None else x

model = Model()
if kind == "compiled":
    model.compile(backend="eager")
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
context = torch.autocast("cpu", torch.bfloat16, enabled=kind == "bf16")
# far more turns than are asked for: the watch ends it when it has seen enough, however late a busy machine settles
for step in range(1000):
    # an evaluation falls into the turn that would be counted
    if kind == "evaluating" and step == 4:
        with torch.no_grad():
            model(torch.randn(800, 16))
    x = torch.randn(8, 16, requires_grad=kind == "reentrant")
    with context:
        loss = model(x).float().square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
A, B = 2 * 8 * 16 * 32, 2 * 8 * 32 * 4
PLAIN = 2 * A + 3 * B
"""Forward of both; gradients of both weights, and of the input of the second only."""


@pytest.mark.parametrize(
    ("kind", "dtype", "flop", "recomputed"),
    [
        ("plain", "fp32", PLAIN, 0),
        ("kept", "fp32", PLAIN, A),
        ("reentrant", "fp32", PLAIN + A, A),
        ("bf16", "bf16", PLAIN, 0),
        ("compiled", "fp32", PLAIN, 0),
        ("evaluating", "fp32", PLAIN, 0),
    ],
)
def test_the_turn_of_a_loop_is_counted_as_by_hand(
    run: Callable[..., Outcome], kind: str, dtype: str, flop: float, recomputed: float
) -> None:
    outcome = run(SCRIPT, kind, count_flop=True, stop=Stop(steps=6))
    trial = trial_of(outcome)
    assert trial.ok and trial.n_steps >= 6 and trial.ended == "enough"
    assert trial.flop.per_sample == {dtype: pytest.approx(flop / 8)}
    assert trial.flop.recomputed == pytest.approx(recomputed / 8)
    told = outcome.journal.last("flop")
    n_turns = len(outcome.journal.ticks) - 1
    # the turns that were counted are in neither the steady steps nor the warm-up
    assert trial.n_steps <= n_turns - (told["to_tick"] - told["from_tick"])


def test_a_script_that_ends_early_has_no_count_and_says_so(run: Callable[..., Outcome]) -> None:
    short = SCRIPT.replace("range(1000)", "range(3)")
    assert "ended before" in (flop_of(run(short, "plain", count_flop=True).journal, []).why or "")


STEP = Step(0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 8, 800, wall_s=0.1)


def told(**values: Any) -> Journal:
    event = {"event": "flop", "flop": {"fp32": 1600.0}, "recomputed": {}, "uncounted": [], "samples": 8, "tokens": 400}
    return Journal(events=[{**event, **values}])


def test_a_count_is_scaled_to_the_usual_length_of_its_rows() -> None:
    assert flop_of(told(), [STEP] * 3).per_sample == {"fp32": 400.0}
    assert flop_of(told(tokens=0), [STEP] * 3).per_sample == {"fp32": 200.0}


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"uncounted": ["flash_attn::forward"]}, "flash_attn::forward: what it multiplies cannot be counted"),
        ({"why": "the script watches its operations itself"}, "watches"),
        ({"flop": {}}, "multiplies nothing"),
    ],
)
def test_what_cannot_be_counted_is_unknown(values: dict[str, Any], why: str) -> None:
    found = flop_of(told(**values), [STEP])
    assert found.total is None and why in (found.why or "")
    assert utilisation(found, 10.0, Peaks({"fp32": 1e12}, "catalogue")) == (None, found.why)


def test_the_share_of_the_peak_is_of_the_formats_that_are_multiplied() -> None:
    peaks = Peaks({"fp32": 1e12, "bf16": 1e13}, "catalogue")
    assert utilisation(Flop({"fp32": 1e9}), 500.0, peaks) == (pytest.approx(0.5), None)
    assert utilisation(Flop({"fp32": 1e9, "bf16": 1e10}), 250.0, peaks) == (pytest.approx(0.5), None)
    share, why = utilisation(Flop({"fp32": 1e9, "fp64": 1e9}), 500.0, peaks)
    assert share is None and why == "the peak in fp64 is not known"
    # a few fp64 products of a loss do not make the whole unknown
    assert utilisation(Flop({"fp32": 1e9, "fp64": 1e3}), 500.0, peaks)[0] == pytest.approx(0.5)
    assert utilisation(Flop({"fp32": 1e9}), 500.0, Peaks(why="no entry")) == (None, "no entry")
    assert utilisation(Flop({"fp32": 1e9}), None, peaks)[1] == "the rate is not known"


def test_levers_that_change_what_is_computed() -> None:
    kept = {"autocast": "bf16", "workers": 2, "length_groups": 8, "compile": "whole"}
    assert changes_flop(kept) == {"autocast": "bf16", "length_groups": 8}


@pytest.mark.thorough
def test_a_processor_without_a_record_is_measured_now(monkeypatch: pytest.MonkeyPatch) -> None:
    # few samples do where the figure itself is not the question; no end, however busy the machine is
    monkeypatch.setattr(peak, "PEAK_EACH_S", 0.02)
    monkeypatch.setattr(peak, "PEAK_S", 600.0)
    found = measure_processor()
    assert found.basis == "measured here" and found.why is None
    assert 1e9 < found.flop_per_s["fp32"] < 1e14
    share, why = utilisation(Flop({"fp32": 1e9}), found.flop_per_s["fp32"] / 2e9, found)
    assert why is None and share == pytest.approx(0.5)
