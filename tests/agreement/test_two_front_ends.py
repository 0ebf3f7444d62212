"""The same model from the catalogue and captured from transformers' own code: one step.

FLOP and parameters are equal, memory agrees within 5 %, time within 10 %: eager and compiled, without and with
recomputation of every block, on four GPUs.
"""

from __future__ import annotations

from functools import lru_cache

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.agreement.models import BY_ID, GPUS, MODELS, analytic, architecture, captured

from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.plan.step.estimates import StepEstimate, measure
from gpuwise.workload.changes.change import Change
from gpuwise.workload.transformer.parameters import count_parameters

STACKS = {"eager": "eager", "compiled": "compiled"}
RECOMPUTES: dict[str, tuple[Change, ...]] = {"none": (), "full": (Change("checkpointing"),)}
MEMORY, TIME = 0.05, 0.10


@lru_cache(maxsize=256)
def step_of(model: str, gpu: str, recompute: str, stack: str) -> StepEstimate:
    """The captured step on one GPU."""
    capture = captured(model, *RECOMPUTES[recompute])
    return measure(capture, find_cluster(gpu).accelerator, compiled=stack == "compiled")


ON = [GPUS[0], GPUS[-1], *(pytest.param(gpu, marks=pytest.mark.slow) for gpu in GPUS[1:-1])]
"""By default on two of the four GPUs: what differs between front ends differs on all."""


def cases(*axes: tuple[str, ...]) -> list[object]:
    """Every model along ``axes``."""
    names = [m.id for m in MODELS]
    for axis in axes:
        names = [f"{name} {word}" for name in names for word in axis]
    return [pytest.param(*name.split(" "), id=name.replace(" ", "-")) for name in names]


def off(values: dict[str, float], tolerance: float) -> dict[str, float]:
    """The ratios of catalogue to capture that are further from 1 than ``tolerance``."""
    return {name: round(ratio, 3) for name, ratio in values.items() if not 1 / (1 + tolerance) <= ratio <= 1 + tolerance}


@pytest.mark.parametrize("model", cases())
def test_parameters(model: str) -> None:
    assert captured(model).parameter_count == count_parameters(architecture(BY_ID[model])).total


@pytest.mark.parametrize(("model", "recompute"), cases(tuple(RECOMPUTES)))
def test_flop(model: str, recompute: str) -> None:
    one = analytic(BY_ID[model], GPUS[0], recompute=recompute)
    peak = find_cluster(GPUS[0]).accelerator.peak("bf16")
    assert one.hfu.expected * one.step_time_s.expected * peak == pytest.approx(
        captured(model, *RECOMPUTES[recompute]).flop(), rel=1e-9
    )


@pytest.mark.parametrize("gpu", ON)
@pytest.mark.parametrize(("model", "recompute", "stack"), cases(tuple(RECOMPUTES), tuple(STACKS)))
def test_memory_and_time(model: str, recompute: str, stack: str, gpu: str) -> None:
    one = analytic(BY_ID[model], gpu, recompute=recompute, stack=STACKS[stack])
    step = step_of(model, gpu, recompute, stack)
    assert step.step_time_s is not None
    assert off({"memory": one.memory_bytes.expected / step.memory_bytes.expected}, MEMORY) == {}
    assert off({"time": one.step_time_s.expected / step.step_time_s.expected}, TIME) == {}


@pytest.mark.slow
@pytest.mark.parametrize("model", ["gpt2", "llama-3.2-1b", "gemma-3-1b", "bert-base", "vit-b-16"])
def test_whole_models(model: str) -> None:
    """With all their layers: what holds of a few holds of all."""
    capture, gpu = captured(model, full=True), GPUS[0]
    card = find_cluster(gpu).accelerator
    one = analytic(BY_ID[model], gpu, full=True)
    step = measure(capture, card)
    assert step.step_time_s is not None
    assert capture.parameter_count == count_parameters(architecture(BY_ID[model], full=True)).total
    assert one.hfu.expected * one.step_time_s.expected * card.peak("bf16") == pytest.approx(capture.flop(), rel=1e-9)
    assert off({gpu: one.memory_bytes.expected / step.memory_bytes.expected}, MEMORY) == {}
    assert off({gpu: one.step_time_s.expected / step.step_time_s.expected}, TIME) == {}
