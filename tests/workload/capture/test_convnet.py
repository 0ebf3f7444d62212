"""Residual networks by name, built as PyTorch trains them."""

from __future__ import annotations

import pytest

from gpuwise.cli.step.options import NO_CODE, is_own_code, subject_of
from gpuwise.facts.models.convnets import convnets
from gpuwise.workload.convnet import training_table

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("name", ["resnet-18", "resnet-50", "resnext-50"])
def test_a_residual_network_by_name_has_the_published_parameters(name: str) -> None:
    from gpuwise.workload.capture.convnet import _residual

    net = next((n for n in convnets().values() if name in n.id), None)
    if net is None:
        pytest.skip("not in the catalogue")
    with torch.device("meta"):
        assert sum(p.numel() for p in _residual(net).parameters()) == net.published_parameters


@pytest.mark.thorough
def test_plan_and_pick_count_the_same_arithmetic_of_a_residual_network() -> None:
    assert is_own_code("resnet50") and not is_own_code("vit-b-16")
    subject, options = subject_of("resnet50", NO_CODE)
    capture = subject.capture(batch=4, **options)
    table = training_table(convnets()["resnet-50"], 4, "bf16")
    assert subject.text == "ResNet-50" and capture.flop() == pytest.approx(float((table.flop * table.count).sum()), rel=0.01)
