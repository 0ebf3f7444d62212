"""Layers that repeat are written once: the step is the one of which every layer is written, number for number."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from gpuwise.facts.models.architecture import Architecture
from gpuwise.facts.models.catalogue import find_model
from gpuwise.workload.blocks.point import Point
from gpuwise.workload.capture.captured import Capture
from gpuwise.workload.stacks.stack import find_stack
from gpuwise.workload.transformer import whole_step as writer
from gpuwise.workload.transformer.repetition import Period, period_of

POINT = Point(
    micro_batch=1,
    seq_len=64,
    precision="bf16",
    stack=find_stack("eager"),
    fused_attention=True,
    fused_loss=False,
    autocast=True,
)
WINDOWED = find_model("gemma-3-1b")


@pytest.mark.parametrize(
    ("kinds", "period"),
    [
        ("aaaa", Period(1, 1, 1)),
        ("aaaaaaaa", Period(1, 1, 5)),
        ("daaaaaaa", Period(2, 1, 4)),
        ("aab" * 6, Period(1, 3, 4)),
        ("aaa", None),
        ("abcd", None),
        ("", None),
    ],
)
def test_the_period_has_a_layer_on_either_side(kinds: str, period: Period | None) -> None:
    assert period_of(kinds) == period


@pytest.mark.parametrize("kinds", ["a" * 9, "aab" * 5 + "aa", "d" + "ab" * 7, "dd" + "aaab" * 5 + "c" * 3])
def test_layers_left_out_are_as_those_of_the_period(kinds: str) -> None:
    found = period_of(kinds)
    assert found is not None
    end = found.first + found.length
    block = kinds[found.first : end]
    assert kinds[end : end + found.length * found.times] == block * found.times
    assert kinds[found.first - 1] == block[-1] and kinds[end + found.length * found.times] == block[0]


def differences(one: Capture, other: Capture) -> list[str]:
    pairs = [(f.name, getattr(one, f.name), getattr(other, f.name)) for f in fields(Capture)]
    return [name for name, a, b in pairs if not (np.array_equal(a, b) if isinstance(a, np.ndarray) else a == b)]


CASES = [
    (replace(find_model("gpt2"), n_layers=6), POINT, "none", "adamw", 1),
    (replace(find_model("llama-3.2-1b"), n_layers=6), POINT, "full", "adamw8bit", 2),
    (
        replace(find_model("llama-3.2-1b"), n_layers=5),
        replace(POINT, lora_rank=8, quantized_base=True, autocast=False),
        "full",
        "adamw",
        2,
    ),
    (replace(find_model("bert-base"), n_layers=5), replace(POINT, fused_attention=False), "full", "sgd", 1),
    (replace(find_model("vit-b-16"), n_layers=5), POINT, "none", "momentum", 1),
    (replace(find_model("qwen3-30b-a3b"), n_layers=5), replace(POINT, autocast=False), "none", "adamw", 1),
    (WINDOWED, POINT, "full", "adamw", 1),
]


@pytest.mark.parametrize(("arch", "point", "recompute", "optimizer", "parts"), CASES, ids=lambda x: getattr(x, "name", None))
def test_a_period_written_once_is_every_layer_written(
    arch: Architecture, point: Point, recompute: str, optimizer: str, parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def step() -> Capture:
        return writer.whole_step(arch, point, recompute=recompute, optimizer=optimizer, micro_batches=parts)

    once, layers = step(), list[int]()
    written = writer.Network.layer
    monkeypatch.setattr(writer, "period_of", lambda kinds: None)
    monkeypatch.setattr(writer.Network, "layer", lambda self, *rest: layers.append(1) or written(self, *rest))
    assert differences(once, step()) == []
    assert len(layers) == arch.n_layers
    # and the other way does leave some out
    monkeypatch.undo()
    fewer = list[int]()
    monkeypatch.setattr(writer.Network, "layer", lambda self, *rest: fewer.append(1) or written(self, *rest))
    step()
    assert len(fewer) < len(layers)
