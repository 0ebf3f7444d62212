"""One change: applied to a catalogue model and to the same model captured it has the same effect, within 5 %.

The effect is memory (and time) after the change over memory (time) before. What is shown of a change to a person's code
is the diff that ``tune`` writes.
"""

from __future__ import annotations

import importlib.util
from functools import lru_cache
from pathlib import Path

import pytest

pytest.importorskip("torch")
if importlib.util.find_spec("transformers") is None:
    pytest.skip("no transformers", allow_module_level=True)

from tests.agreement.models import BY_ID, architecture, captured, strategy

from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.plan.step.estimates import StepEstimate, measure, with_host_optimizer
from gpuwise.predict.step.training import TrainingEstimate, estimate
from gpuwise.workload.changes.change import Change
from gpuwise.workload.changes.diff import diff_of, snippet
from gpuwise.workload.changes.registry import kind_of, on_strategy
from gpuwise.workload.strategy import Strategy

GPUS = ("A100-SXM-80GB", "RTX 4090")
MODELS = ("gpt2", "llama-3.2-1b")
TOLERANCE = 0.05


CHANGES = {
    "checkpointing": Change("checkpointing"),
    "lora": Change("lora", 16),
    "8-bit optimizer": Change("optimizer", "adamw8bit"),
    "sgd": Change("optimizer", "momentum"),
    "precision": Change("low_precision", "bf16"),
    "offload": Change("offload_optimizer"),
    "batch": Change("micro_batches", 2),
    "compile": Change("compile"),
}


@lru_cache(maxsize=64)
def changed(model: str, name: str | None, gpu: str) -> tuple[TrainingEstimate, StepEstimate]:
    """The step with the change ``name`` (None: as it is) in both front ends."""
    card, plain = find_cluster(gpu).accelerator, strategy(BY_ID[model])
    if name is None:
        return estimated(model, gpu, plain), measure(captured(model), card)
    change = CHANGES[name]
    parts = change.argument if change.name == "micro_batches" else 1
    assert isinstance(parts, int)
    made = (change,) if kind_of(change).step == "captured" else ()
    compiled = True if kind_of(change).step == "timing" else None
    capture = captured(model, *made, parts=parts)
    step = measure(capture, card, compiled=compiled, micro_batches=parts)
    if change.name == "offload_optimizer":
        step = with_host_optimizer(capture, card, step)
    return estimated(model, gpu, on_strategy(change, plain)), step


def estimated(model: str, gpu: str, changed: Strategy) -> TrainingEstimate:
    return estimate(architecture(BY_ID[model]), f"1x{gpu}", changed, seq_len=BY_ID[model].seq)


@pytest.mark.parametrize("name", CHANGES)
def test_memory(name: str) -> None:
    off: dict[tuple[str, str], float] = {}
    for model in MODELS:
        before, after = changed(model, None, GPUS[0]), changed(model, name, GPUS[0])
        mine = after[0].memory_bytes.expected / before[0].memory_bytes.expected
        theirs = after[1].memory_bytes.expected / before[1].memory_bytes.expected
        if not 1 / (1 + TOLERANCE) <= mine / theirs <= 1 + TOLERANCE:
            off[model, GPUS[0]] = round(mine / theirs, 3)
    assert off == {}


@pytest.mark.parametrize("name", CHANGES)
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
    "fused": (Change("fused_optimizer", True), {"fused_optimizer": True}),
    "set-to-none": (Change("set_to_none", True), {"set_to_none": True}),
    "tf32": (Change("tf32", True), {"tf32": True}),
    "channels-last": (Change("channels_last", True), {"channels_last": True}),
}


def changed_lines(lines: list[str]) -> list[str]:
    """The lines of a diff that go and that come, without headings and indentation."""
    kept = [line for line in lines if line[:1] in ("+", "-") and not line.startswith(("+++", "---"))]
    return [line[0] + " " + line[1:].strip() for line in kept]


@pytest.mark.parametrize(
    "name",
    SHOWN,
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
