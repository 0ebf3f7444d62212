"""Transformer-XL: the parameters its authors and its logs count."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

from gpuwise.workload.capture.api import capture
from studies.networks.zoo import build


def parameter_count(name: str, **options: Any) -> int:
    factory = build(name, "own", **options)
    return capture(lambda: factory(1), n_steps=1, batch=1).parameter_count


def test_an_adaptive_softmax_has_the_parameters_of_the_whole_one_and_three_clusters() -> None:
    whole, adaptive = (parameter_count("transformer-xl-base", adaptive=a) for a in (False, True))
    assert adaptive - whole == 3 * (512 + 1)


@pytest.mark.parametrize(
    ("name", "options", "parameters"),
    [
        # lambdal/deeplearning-benchmark, logs of 1080 Ti: n_all_param
        ("transformer-xl-base", {"adaptive": False, "divide": 1, "optimizer": "lamb"}, 191_948_759),
        ("transformer-xl-large", {"adaptive": False, "divide": 1}, 519_963_095),
    ],
)
def test_parameters(name: str, options: dict[str, Any], parameters: int) -> None:
    assert parameter_count(name, **options) == parameters
