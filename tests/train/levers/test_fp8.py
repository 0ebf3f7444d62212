"""fp8 in linear layers: which are taken, what becomes of their parameters, and where it cannot be had."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from gpuwise.train.levers import fp8
from gpuwise.train.levers.apply import apply_levers
from gpuwise.train.tune.parity import UNITS, precision_of


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Model(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.first, self.blocks, self.head = (
            nn.Linear(16, width),
            nn.ModuleList(Block(width) for _ in range(2)),
            nn.Linear(width, 64),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def test_layers_inside_the_blocks_are_taken() -> None:
    assert list(fp8.chosen_layers(Model())) == ["blocks.0.up", "blocks.0.down", "blocks.1.up", "blocks.1.down"]
    assert not fp8.chosen_layers(Model(width=20)), "20 is no multiple of 16"


def test_without_blocks_the_first_and_the_last_are_left() -> None:
    odd = nn.Sequential(*(nn.Linear(a, b) for a, b in ((16, 32), (32, 48), (48, 40), (40, 32), (32, 16))))
    assert list(fp8.chosen_layers(odd)) == ["1"]
    attention = nn.Sequential(nn.Linear(16, 16), nn.MultiheadAttention(16, 2), nn.Linear(16, 16))
    assert not fp8.chosen_layers(attention), "its output projection is never called"


def test_where_it_cannot_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fp8.why_not_fp8(None) == fp8.why_not_fp8((8, 6)) == "this GPU has no fp8 tensor cores"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "pip install torchao" in str(fp8.why_not_fp8((9, 0)))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    assert fp8.why_not_fp8((8, 9)) is None


def test_on_a_processor_the_script_goes_on_without_it() -> None:
    told: list[dict[str, Any]] = []
    applied = apply_levers({"fp8": "tensorwise"}, tell=lambda kind, **values: told.append(values))
    model = Model()
    model(torch.randn(4, 16))
    applied.close()
    assert told == [{"name": "fp8", "applied": False, "why": "the model is on no NVIDIA GPU"}]
    assert not [m for m in model.modules() if isinstance(m, nn.Linear) and type(m) is not nn.Linear]


@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise"])
def test_parameters_stay_and_results_are_off_by_rounding(recipe: str) -> None:
    """By torchao's emulation: the parameters stay the optimizer's own, an odd last batch goes through, and outputs and gradients
    are as far off as eight bits put them: not equal, and within a few units of e5m2."""
    pytest.importorskip("torchao")
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    ids, names = [id(p) for p in model.parameters()], list(model.state_dict())
    x = torch.randn(48, 16)
    plain = model(x)
    plain.square().mean().backward()
    gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    optimizer.zero_grad()
    told: list[dict[str, Any]] = []
    undo = fp8.convert(model, recipe, lambda kind, **values: told.append(values), emulate=True)
    assert told == [{"name": "fp8", "applied": True, "n_layers": 4}]
    assert [id(p) for p in model.parameters()] == ids and list(model.state_dict()) == names
    short = model(x)
    short.square().mean().backward()
    assert 1e-4 < float(((short - plain).norm() / plain.norm()).detach()) < 4 * UNITS["fp8"]
    for name, p in model.named_parameters():
        assert p.grad is not None
        assert float((p.grad - gradients[name]).norm() / gradients[name].norm()) < 8 * UNITS["fp8"], name
    inner = dict(model.named_parameters())["blocks.0.up.weight"]
    assert inner.grad is not None and not torch.equal(inner.grad, gradients["blocks.0.up.weight"])
    optimizer.step()
    optimizer.zero_grad()
    model(x[:7]).sum().backward()
    undo()
    assert {type(m) for m in model.modules() if isinstance(m, nn.Linear)} == {nn.Linear}
    assert [id(p) for p in model.parameters()] == ids and list(model.state_dict()) == names


def test_the_gate_allows_what_three_bits_round() -> None:
    assert precision_of({"fp8": "rowwise", "autocast": "bf16"}) == "fp8"
    assert UNITS["fp8"] == torch.finfo(torch.float8_e4m3fn).eps / 2
