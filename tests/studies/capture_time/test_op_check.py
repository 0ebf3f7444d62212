"""Measured kernels as signatures of a capture."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from gpuwise.facts.hardware.naming import find_accelerator
from gpuwise.predict.coefficients import load_json
from gpuwise.predict.kernels import convolution
from gpuwise.predict.kernels.gemm.fp32 import linear_time
from gpuwise.workload.capture.record.families import family_of
from studies.capture_time.op_check import check, device_seconds, signature_of
from studies.neusight.bench_time import convolutions_of
from studies.neusight.tables import OpRows

V100 = find_accelerator("V100 PCIe 32GB")


def rows(op: str, *shapes: tuple[float, float, float, float]) -> OpRows:
    n = len(shapes)
    return OpRows(np.array(["Tesla V100"] * n, object), np.array([op] * n, object), np.array(shapes, float), np.ones(n))


@pytest.mark.parametrize(
    ("op", "family", "flop"),
    [
        ("linear", "matmul", 2 * 64 * 128 * 256),
        ("bmm", "matmul", 2 * 8 * 64 * 128 * 256),
        ("conv", "convolution", None),
        ("ln", "norm", 0),
        ("softmax", "softmax", 0),
        ("add", "elementwise", 0),
        ("gelu", "elementwise", 0),
    ],
)
def test_signatures_say_what_was_run(op, family, flop):
    made = signature_of(op, [8, 64, 128, 256])
    assert family_of(made) == family
    if flop is not None:
        assert made.flop == flop
    assert len(made.inputs) == (2 if op in ("linear", "bmm", "conv", "add") else 1)


def test_captured_products_and_convolutions_take_the_time_of_their_family():
    one = device_seconds(rows("linear", (1, 4096, 4096, 1024)), V100)
    assert one == pytest.approx(linear_time(V100, 4096, 4096, 1024).time_s)
    images = rows("conv", (32, 64, 128, 56), (32, 128, 128, 28))
    assert device_seconds(images, V100) == pytest.approx(
        convolution.vector_time(V100, convolutions_of(images), load_json("convolution"))
    )


def test_nothing_measured_nothing_checked(tmp_path):
    assert check(tmp_path) == []
    with (tmp_path / "x.csv").open("w") as out:
        csv.writer(out).writerow(["gpu"])
    assert check(tmp_path) == []
