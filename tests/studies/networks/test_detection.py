"""Detectors of public training benchmarks: the sizes that their papers and scripts state."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

pytest.importorskip("torch")
if find_spec("torchvision") is None:
    pytest.skip("torchvision is not installed", allow_module_level=True)

from gpuwise.workload.capture.api import capture
from studies.networks.zoo import build


def test_mlperf_retinanet_trains_its_last_stages_and_heads() -> None:
    """37 M parameters; 202 GMACs an image of 800 px (the layers of the paper summed), a little of it frozen."""
    factory = build("mlperf-retinanet", "own", precision="amp", channels_last=True, side=640)
    made = capture(lambda: factory(1), n_steps=1, capability=(8, 0), batch=1)
    anchors = 9 * sum(side * side for side in (80, 40, 20, 10, 5))
    outputs = [s for s in made.signatures if s.op == "aten.sigmoid.default"]
    assert {s.inputs[0].shape for s in outputs} == {(1, anchors, 264)}
    assert made.parameter_count == pytest.approx(37.0e6, rel=0.03)
    assert made.flop() / 3.0 == pytest.approx(2.0 * 202e9 * (640 / 800) ** 2, rel=0.1)
    assert not any("batch_norm" in s.op for s in made.signatures)
