"""Real scripts with one planted waste each: it is named first. Healthy ones are called healthy, time and again."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from gpuwise.train.hook.zygote import Zygote
from gpuwise.train.profile.session import Request, Session, profile_script

SCRIPTS = Path(__file__).parent / "scripts"
WASTES = {
    "slow_loader": "data wait",
    "busy_loader": "data wait",
    "checkpoint_every_step": "checkpoint in the step",
    "logs_every_step": "logging in the step",
    "padded": "padding",
    "single_tensor_adam": "unfused optimizer",
    "pointwise": "pointwise chains",
    "recompiles": "recompiles",
    "recompute": "needless recompute",
    "batch_of_one": "tiny batch",
    "zeroed": "gradients zeroed",
    "doubles": "double precision",
    "anomaly": "anomaly detection",
    "python_metrics": "python in the step",
    "evaluates": "evaluation in the step",
    "evaluates_with_gradients": "evaluation in the step",
    "averages": "loop over parameters",
    "attention_by_hand": "attention not flash",
}
LINES = {
    "logs_every_step": "logs_every_step.py:2",
    "python_metrics": "python_metrics.py:7 confusion",
    "recompute": "recompute.py",
    "doubles": "doubles.py",
    "evaluates": "evaluates.py:13 accuracy",
    "evaluates_with_gradients": "evaluates_with_gradients.py",
    "averages": "averages.py:15 follow",
    "attention_by_hand": "attention_by_hand.py:15 forward",
    "busy_loader": "busy_loader.py:12 __getitem__",
}
COUNTED = {"single_tensor_adam": "operations for 120 tensors"}
"""Known by what is counted: how long it takes beside the rest of a short step is a matter of what else runs on the machine."""
HEALTHY = ("healthy/mlp", "healthy/convnet", "healthy/transformer", "healthy/accumulation", "healthy/teacher")
ONLY_ON_A_GPU = {
    "unpinned copies",
    "copies not overlapped",
    "sync points",
    "launch-bound",
    "fp32 without TF32",
    "no mixed precision",
    "odd sizes",
    "NCHW convolutions",
    "allocator thrash",
    "slowed down by heat",
    "slowed down by power",
}


QUICK = {"doubles"}
"""Run every time: its waste is larger than what other programs do to a step. The others take a few seconds each, and the
healthy ones an idle machine: beside a busy one a step of 10 ms has gaps of an eighth."""


def _marked(names: Iterable[str]) -> list[Any]:
    return [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in sorted(names)]


def _run(name: str, zygote: Zygote, folder: Path) -> Session:
    folder.mkdir(exist_ok=True)
    return profile_script(
        Request(str(SCRIPTS / f"{name}.py"), steps=10, seen_s=0.0), folder, zygote=zygote, output=folder / "output"
    )


def test_every_script_is_in_the_table() -> None:
    assert {p.relative_to(SCRIPTS).with_suffix("").as_posix() for p in SCRIPTS.rglob("*.py")} == {*WASTES, *HEALTHY}
    assert len(WASTES) >= 12 and len(HEALTHY) >= 4


@pytest.mark.parametrize("name", _marked(WASTES))
def test_the_planted_waste_is_named_first(name: str, zygote: Zygote, tmp_path: Path) -> None:
    session = _run(name, zygote, tmp_path)
    found = session.profile
    shares = [(f.kind, f.saved_s / found.split.wall_s) for f in found.findings]
    first = next((f for f in found.findings if f.kind == WASTES[name]), None)
    assert first is not None and first.fix, shares
    if name in COUNTED:
        assert COUNTED[name] in first.evidence[0].what
    else:
        assert found.verdict.kind == WASTES[name] and first is found.findings[0], shares
    assert LINES.get(name, "") in " ".join(e.where for e in first.evidence)
    assert sum(found.split.parts.values()) == pytest.approx(found.split.wall_s)
    assert sum(found.split.families.values()) == pytest.approx(found.split.parts["compute"])
    assert not ONLY_ON_A_GPU & {f.kind for f in found.findings}
    for finding in found.findings:
        timed = [e.seconds for e in finding.evidence if e.seconds is not None]
        assert not timed or finding.saved_s <= sum(timed) * (1 + 1e-9), finding
    assert (session.code, session.outcome.ended) == (0, "enough")


@pytest.mark.slow
@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_scripts_are_called_healthy(name: str, zygote: Zygote, tmp_path: Path) -> None:
    found = _run(name, zygote, tmp_path).profile
    assert found.verdict.kind == "healthy", [(f.kind, f.saved_s / found.split.wall_s) for f in found.findings]


@pytest.mark.slow
def test_three_healthy_runs_have_one_verdict(zygote: Zygote, tmp_path: Path) -> None:
    verdicts = {_run("healthy/mlp", zygote, tmp_path / str(n)).profile.verdict.kind for n in range(3)}
    assert verdicts == {"healthy"}
