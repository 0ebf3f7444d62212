"""What tuning a wasteful script gives, beside what its twin gains that was mended by hand."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from gpuwise.train.hook.launch import Limits
from gpuwise.train.hook.settings import Stop
from gpuwise.train.hook.zygote import Zygote
from gpuwise.train.tune.search import CACHES, Options, Search
from gpuwise.train.tune.state import State
from gpuwise.train.tune.trial import TrialJob, run, trial_of

pytestmark = pytest.mark.slow
TWINS = str(Path(__file__).parent / "twins.py")
RECOVERED = 0.8
"""Of what the twin gains over the wasteful script, in samples a second."""
ROUNDS, MOST_ROUNDS = 3, 9
"""Of the wasteful script, the tuned one and the twin, one after the other; more of them where the first do not show it, and all
of them count."""
STEPS = 8
WASTES = {
    # the lever that mends it, and those that a person could take it for
    "workers": ("workers",),
    "cache_items": ("cache_items",),
    "cache_decode": ("cache_decode",),
    "padding": ("trim_padding", "length_groups"),
    "fused_optimizer": ("fused_optimizer",),
    "checkpointing": ("checkpointing",),
}
LEAST = 1.5
"""The twin of a waste that is worth planting is so many times as fast."""


def rate(waste: str, twin: str, levers: dict[str, object], epoch: int, folder: Path, zygote: Zygote) -> float:
    """Samples a second, after ``epoch`` steps in which a cache fills."""
    job = TrialJob(TWINS, (waste, twin), limits=Limits(wall_s=900))
    outcome = run(job, levers, folder, stop=Stop(most_steps=epoch + 2 * STEPS), zygote=zygote)
    trial = trial_of(outcome, skip_steps=epoch)
    assert trial.ok and trial.rate is not None, trial.error
    return trial.rate


@pytest.mark.parametrize("waste", WASTES)
def test_tuning_recovers_what_mending_by_hand_gains(waste: str, zygote: Zygote, tmp_path: Path) -> None:
    job = TrialJob(TWINS, (waste, "wasteful"), limits=Limits(wall_s=900))
    options = Options(minutes=30, steps=STEPS, least_s=0.3, only=WASTES[waste])
    result = Search(job, State(tmp_path / "tuning", {}, resume=False), tmp_path / "tuning", zygote, options).run()
    assert set(result.levers) & set(WASTES[waste]), [(t.label, t.result, t.why) for t in result.tried]
    assert result.parity is not None and result.parity.passed
    epoch = 12 if set(CACHES) & set(result.levers) else 0
    sides: tuple[tuple[str, dict[str, object]], ...] = (("wasteful", {}), ("wasteful", result.levers), ("mended", {}))
    rounds: list[list[float]] = []
    before = tuned = mended = 0.0
    while len(rounds) < MOST_ROUNDS and tuned - before <= RECOVERED * (mended - before):
        for _ in range(ROUNDS):
            rounds.append([rate(waste, twin, levers, epoch, tmp_path / "run", zygote) for twin, levers in sides])
        before, tuned, mended = (statistics.median(values) for values in zip(*rounds, strict=True))
    assert mended > LEAST * before, f"the waste is not worth planting: {before, mended}"
    assert tuned - before > RECOVERED * (mended - before), (before, tuned, mended, result.levers)
