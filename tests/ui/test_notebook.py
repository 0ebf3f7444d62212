# pyright: reportMissingImports=false
"""Answers in a notebook look as the pages do, and touch nothing beside themselves."""

from __future__ import annotations

import numpy as np
import pytest
from tests.ui.test_views import read

import gpuwise
from gpuwise import lab
from gpuwise.facts.hardware.naming import find_accelerator

KERNEL = "def double(x):\n    i = cuda.grid(1)\n    x[i] = x[i] * 2.0\n"


@pytest.mark.parametrize(
    "answer",
    [
        lambda: gpuwise.make_plan("gpt2", "4xA100-80GB", gpuwise.Wishes(tokens=1e9)),
        lambda: gpuwise.make_plan("llama-3.1-405b", "4090"),
        lambda: gpuwise.make_fit("llama-3.1-8b", "4090"),
        lambda: gpuwise.estimate("gpt2", "4xA100-80GB", gpuwise.Strategy(dp=4, micro_batch=16), seq_len=1024),
        lambda: gpuwise.make_capacity("llama-3.1-8b", "H100-SXM", users=5),
        lambda: lab.occupancy("7.0", block_threads=320, regs_per_thread=37),
        lambda: lab.simulate_kernel(KERNEL, {"x": np.ones(256)}, grid=(1,), block=(256,), accelerator=find_accelerator("a40")),
    ],
    ids=["plan", "nothing fits", "fit", "estimate", "capacity", "occupancy", "simulation"],
)
def test_an_answer_shows_itself(answer: object) -> None:
    made = answer()._repr_html_()  # type: ignore[operator]
    assert made.startswith('<div class="gpuwise"><style>.gpuwise') and ":root" not in made
    reader = read(made)
    assert reader.active == ["style"] and "<script" not in made
    assert len(reader.numbers) > 5
    for word in ("<button", "<input", "data-set=", "data-tick=", "choose a point"):  # nothing that would do nothing here
        assert word not in made


def test_a_capability_is_said_once() -> None:
    made = lab.occupancy("7.0", block_threads=320, regs_per_thread=37)._repr_html_()
    assert made.lower().count("compute capability") == 1


def test_an_estimate_shows_its_interval() -> None:
    assert gpuwise.Estimate(1.0, 2.0, 3.0, "fitted")._repr_html_() == "2 <small>1 to 3, fitted</small>"
