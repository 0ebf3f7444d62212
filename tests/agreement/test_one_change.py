"""One change: applied to a catalogue model and to the same model captured it has the same effect, within 5 %.

The effect is memory (and time) after the change over memory (time) before. What is shown of a change to a person's code
is the diff that ``tune`` writes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.agreement.models import BY_ID, analytic, captured

from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.plan.changes.snippets import snippet
from gpuwise.plan.step.estimates import Measured, measure
from gpuwise.predict.step.training import TrainingEstimate
from gpuwise.train.tune.diff import diff_of
from gpuwise.workload.changes.registry import Change

GPUS = ("A100-SXM-80GB", "RTX 4090")
MODELS = ("gpt2", "llama-3.2-1b")
TOLERANCE = 0.05


@dataclass(frozen=True, slots=True)
class Both:
    """One change in the words of both front ends."""

    captured: tuple[Change, ...]
    strategy: dict[str, Any] = field(default_factory=dict[str, Any])
    compiled: bool = False


CHANGES = {
    "checkpointing": Both((Change("checkpoint"),), {"recompute": "full"}),
    "lora": Both((Change("lora", 16),), {"lora_rank": 16}),
    "8-bit optimizer": Both((Change("adam8bit"),), {"optimizer": "adamw8bit"}),
    "sgd": Both((Change("sgd"),), {"optimizer": "momentum"}),
    "precision": Both((Change("low-precision", "bf16"),), {"master_weights": False, "gradient_dtype": "bf16"}),
    "offload": Both((Change("offload-states"),), {"offload_optimizer": True}),
    "batch": Both((Change("accumulate", 2),), {"micro_batch": None, "accumulation": 2}),
    "compile": Both((), {"stack": "compiled-fsdp"}, compiled=True),
}
UNFINISHED = {
    *(("memory", name) for name in ("lora", "offload", "batch", "compile")),
    *(("time", name) for name in CHANGES),
}
"""Effects that differ yet: the list of work."""


def cases(what: str) -> list[object]:
    mark = pytest.mark.xfail(strict=True, reason="the change has another effect in the other front end yet")
    return [pytest.param(name, marks=mark if (what, name) in UNFINISHED else (), id=name.replace(" ", "-")) for name in CHANGES]


@lru_cache(maxsize=64)
def changed(model: str, name: str | None, gpu: str) -> tuple[TrainingEstimate, Measured]:
    """The step with the change ``name`` (None: as it is) in both front ends."""
    change = Both(()) if name is None else CHANGES[name]
    given = dict(change.strategy)
    if "micro_batch" in given:
        given["micro_batch"] = BY_ID[model].batch // given["accumulation"]
    card = find_cluster(gpu).accelerator
    step = measure(captured(model, *change.captured), card, compiled=change.compiled)
    return analytic(BY_ID[model], gpu, **given), step


@pytest.mark.parametrize("name", cases("memory"))
def test_memory(name: str) -> None:
    off: dict[tuple[str, str], float] = {}
    for model in MODELS:
        before, after = changed(model, None, GPUS[0]), changed(model, name, GPUS[0])
        mine = after[0].memory_bytes.expected / before[0].memory_bytes.expected
        theirs = after[1].process_bytes.expected / before[1].process_bytes.expected
        if not 1 / (1 + TOLERANCE) <= mine / theirs <= 1 + TOLERANCE:
            off[model, GPUS[0]] = round(mine / theirs, 3)
    assert off == {}


@pytest.mark.parametrize("name", cases("time"))
def test_time(name: str) -> None:
    off: dict[tuple[str, str], float] = {}
    for model in MODELS:
        for gpu in GPUS:
            before, after = changed(model, None, gpu), changed(model, name, gpu)
            assert before[1].step_time_s is not None
            assert after[1].step_time_s is not None
            mine = after[0].step_time_s.expected / before[0].step_time_s.expected
            theirs = after[1].step_time_s.expected / before[1].step_time_s.expected
            if not 1 / (1 + TOLERANCE) <= mine / theirs <= 1 + TOLERANCE:
                off[model, gpu] = round(mine / theirs, 3)
    assert off == {}


# --- what is shown is the diff that is written ---

SCRIPT = """\
import torch
from torch import nn


def make_step():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(7200, 10)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    images = torch.randn(4, 3, 32, 32, device="cuda")

    def step():
        optimizer.zero_grad(set_to_none=False)
        loss = model(images).mean()
        loss.backward()
        optimizer.step()

    return step
"""
SHOWN = {
    "fused": (Change("fused"), {"fused_optimizer": True}),
    "set-to-none": (Change("set-to-none"), {"set_to_none": True}),
    "tf32": (Change("tf32"), {"tf32": True}),
    "channels-last": (Change("channels-last"), {"channels_last": True}),
}
UNLIKE = {"set-to-none", "channels-last"}


def changed_lines(lines: list[str]) -> list[str]:
    """The lines of a diff that go and that come, without headings and indentation."""
    kept = [line for line in lines if line[:1] in ("+", "-") and not line.startswith(("+++", "---"))]
    return [line[0] + " " + line[1:].strip() for line in kept]


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.xfail(strict=True, reason="two writers yet") if n in UNLIKE else ()) for n in SHOWN],
)
def test_the_snippet_is_the_diff(name: str, tmp_path: Path) -> None:
    from gpuwise.workload.capture.rerun import captured_with
    from gpuwise.workload.capture.target import find_target

    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    change, levers = SHOWN[name]
    _, sites = captured_with(find_target(f"{script}:make_step"))
    shown = changed_lines(list(snippet((change,), sites)))
    written = changed_lines(diff_of(script, levers).text.splitlines())
    assert written
    assert shown == written
