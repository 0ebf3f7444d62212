"""What a loop does between updates now and then is in its verdict, though the median of its steps shows none of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpuwise.train.hook.zygote import Zygote
from gpuwise.train.profile.run_facts import Pauses, find_pauses
from gpuwise.train.profile.session import Request, profile_script
from gpuwise.train.ticks import Step


def _step(wall_s: float, *, n_forward: int = 1, n_batches: int = 1, data_s: float = 0.0, forward_s: float = 0.004, **more: float):
    return Step(
        data_s, 0.0, forward_s, 0.004, 0.001, more.get("save_s", 0.0), n_batches, n_forward, 1, 1, 8, 0, wall_s=wall_s, **more
    )


USUAL = _step(0.010)


def test_a_rollout_before_every_eighth_update() -> None:
    found = find_pauses([*[USUAL] * 7, _step(0.090, n_forward=65, forward_s=0.034)] * 3)
    assert (found.n, found.n_forward, found.n_batches) == (3, 64, 0)
    assert found.seconds == pytest.approx(0.080 / 8)
    assert found.model_s == pytest.approx(0.030 / 8)
    assert found.data_s == 0


def test_a_rollout_by_a_policy_of_several_networks() -> None:
    """Three passes to every update but one of twenty, which has 34 more of a third of a usual step's length."""
    usual = _step(0.009, n_forward=3, n_batches=0)
    found = find_pauses([*[usual] * 19, _step(0.085, n_forward=37, n_batches=0, forward_s=0.034)] * 5)
    assert found.n == 5 and found.seconds == pytest.approx(0.076 / 20)


def test_a_rollout_before_every_third_update() -> None:
    """PPO with three epochs over twenty moves (minimalRL): the moves take as long each as the passes of an update."""
    usual = _step(0.003, n_forward=9, n_batches=0, forward_s=0.0008)
    found = find_pauses([*[usual] * 2, _step(0.015, n_forward=49, n_batches=0, forward_s=0.004)] * 8)
    assert found.n == 8 and found.seconds == pytest.approx(0.012 / 3)


def test_rollouts_that_end_early_are_rollouts() -> None:
    """The usual step is the median of the others, whatever share of all the rollouts have."""
    usual = [_step(0.001 * n, n_forward=8, n_batches=0, forward_s=0.0008) for n in (2, 2, 4)]
    rollouts = [_step(0.014, n_forward=48, n_batches=0, forward_s=0.004)] * 3 + [_step(0.005, n_forward=18, n_batches=0)]
    found = find_pauses([*usual * 4, *rollouts])
    assert found.n == 4 and found.seconds == pytest.approx((3 * 0.012 + 0.003) / 16)


def test_workers_that_start_at_every_epoch_are_waiting_for_data() -> None:
    found = find_pauses([*[USUAL] * 9, _step(0.210, data_s=0.2)] * 2)
    assert found.n == 0 and found.seconds == 0
    assert found.data_s == pytest.approx(0.02)


@pytest.mark.parametrize(
    "steps",
    [
        [USUAL] * 20,
        [*[USUAL] * 10, _step(0.2), *[USUAL] * 10],
        [*[USUAL] * 9, _step(0.200, queue_s=0.185)] * 2,
        [*[USUAL] * 9, _step(0.024, n_forward=3)] * 2,
        [_step(0.001 * n, n_forward=n, n_batches=0) for n in (10, 12, 11, 40, 9, 10, 50, 12, 11, 10)],
        [_step(0.001 * n, n_forward=n, n_batches=0, forward_s=1e-4 * n) for n in (20, 25, 22, 110, 21, 20, 95, 24, 90, 20)],
    ],
    ids=[
        "alike",
        "one that is long for no reason",
        "other programs",
        "not so long",
        "episodes of all lengths",
        "and moves between",
    ],
)
def test_what_is_no_pause(steps: list[Step]) -> None:
    assert find_pauses(steps) == Pauses()


def test_what_is_left_of_a_crowd_is_no_pause() -> None:
    """As ``examples_regression`` had it where other programs took 75 % of the time: few steps are longer, for no reason."""
    long = _step(0.050)
    assert find_pauses([*[USUAL] * 99, long] * 3).n == 3
    assert find_pauses([*[USUAL] * 99, long] * 3, queue_s=0.030) == Pauses()
    assert find_pauses([*[USUAL] * 9, long] * 3, queue_s=0.030).n == 3


PLAYS = """
import torch
torch.set_num_threads(1)
policy = torch.nn.Sequential(torch.nn.Linear(32, 256), torch.nn.Tanh(), torch.nn.Linear(256, 2))
optimizer = torch.optim.Adam(policy.parameters(), 1e-3, fused=True)
for iteration in range(200):
    seen = []
    state = [0.1] * 32
    for _ in range(40):
        with torch.no_grad():
            action = policy(torch.tensor(state)).argmax().item()
        for _ in range(200):
            state = [0.5 * s + 0.01 * (action - 0.5) for s in state]
        seen.append(state)
    rows = torch.tensor(seen).repeat(8, 1)
    for _ in range(8):
        loss = policy(rows).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


def test_a_loop_that_plays_between_its_updates(zygote: Zygote, tmp_path: Path) -> None:
    (tmp_path / "plays.py").write_text(PLAYS)
    request = Request(str(tmp_path / "plays.py"), steps=10)
    found = profile_script(request, tmp_path, zygote=zygote, output=tmp_path / "output").profile
    assert found.verdict.kind == "between updates", found.verdict
    finding = found.findings[0]
    assert "AsyncVectorEnv" in finding.fix[0]
    passes = re.search(r"(\d+) passes of a model", finding.evidence[0].words)  # 40, but for those that a busy machine hides
    assert passes is not None and 36 <= int(passes[1]) <= 40
    assert finding.saved_s <= found.split.parts["between updates"] <= found.split.wall_s
    assert sum(found.split.parts.values()) == pytest.approx(found.split.wall_s)
    assert "evaluation in the step" not in {f.kind for f in found.findings}
