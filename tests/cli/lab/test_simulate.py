"""``gpuwise lab simulate`` and ``cpu-vs-gpu``."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuwise.calibrate.machine.calibration import DeviceCoefficients
from gpuwise.calibrate.machine.devices import processor_from
from gpuwise.lab import stream

OWN = """import math

def scale(x, out, a):
    i = cuda.grid(1)
    out[i] = x[i{shift}] * a

def forever(x):
    while 1 < 2:
        x[0] = 1.0
"""


def test_a_task_beside_a_cpu(gpuwise: Callable[..., Any]) -> None:
    ran = gpuwise("lab", "simulate", "reduction", "--size", "4096", "--on", "v100", "--json")
    assert ran.code == 0 and ran.document["checked"] is True and ran.document["beside"]["cpu"]["time_s"] > 0
    assert ran.document["timeline"] and ran.document["beside"]["copy_s"] > ran.document["time_s"]


def test_ones_own_kernel(gpuwise: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "MOST_EVENTS", 2000)
    file = tmp_path / "k.py"
    launch = ("--grid", "4", "--block", "64", "--arg", "x=256", "--arg", "out=zeros:256", "--arg", "a=2.5")
    file.write_text(OWN.replace("{shift}", ""))
    ran = gpuwise("lab", "simulate", f"{file}:scale", *launch)
    assert ran.code == 0 and "values not checked" in ran.out
    file.write_text(OWN.replace("{shift}", " + 1"))
    ran = gpuwise("lab", "simulate", f"{file}:scale", *launch)
    assert ran.code == 1 and "out of bounds, line 5" in ran.out
    ran = gpuwise("lab", "simulate", f"{file}:forever", "--grid", "1", "--block", "32")
    assert ran.code == 2 and "missing: x (gpuwise lab simulate: --arg x=4096)" in ran.err
    ran = gpuwise("lab", "simulate", f"{file}:forever", "--grid", "4,4", "--block", "32", "--arg", "x=4")
    assert ran.code == 2 and "--grid 16x16" in ran.err
    ran = gpuwise("lab", "simulate", f"{file}:forever", "--grid", "1", "--block", "32", "--arg", "x=4")
    assert ran.code == 2 and "has not ended" in ran.err


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("dance", "unknown task"),
        ("gather --size 100M", "whole number"),
        ("gather --size 99999999", "a size is from"),
        ("gather --grid 3", "takes no --grid"),
        ("gather --on p100-pcie-16gb", "compute capability 6.0"),
        ("gather --on mi300x", "no CUDA"),
        ("nothing.py:k --grid 1 --block 32", "cannot be read"),
        ("nothing.py:k", "a grid and a block"),
        ("nothing.py:k --grid 1 --block 32 --arg x", "not an argument"),
        ("gather --against nope", "EPYC 9654"),
    ],
)
def test_bad_input_is_refused_with_a_hint(line: str, words: str, gpuwise: Callable[..., Any]) -> None:
    ran = gpuwise("lab", "simulate", *line.split())
    assert ran.code in (1, 2) and words in ran.err and "hint: " in ran.err and not ran.out


def test_cpu_vs_gpu(gpuwise: Callable[..., Any]) -> None:
    document = gpuwise("lab", "cpu-vs-gpu", "64", "--on", "4090", "--json").document
    first, *_, last = document["rows"]
    assert first["basis"] == "measured" and last["device"] == "RTX 4090"
    refused = gpuwise("lab", "cpu-vs-gpu", "100k")
    assert refused.code == 2 and "minutes" in refused.err


def test_the_processor_of_this_machine_stands_beside_as_it_was_measured(
    gpuwise: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUWISE_HOME", str(tmp_path))
    monkeypatch.delenv("GPUWISE_RECORDS", raising=False)
    line = ("lab", "cpu-vs-gpu", "64", "--on", "4090", "--against", "this", "--json")
    refused = gpuwise(*line)
    assert refused.code == 2 and "gpuwise bench" in refused.out + refused.err
    rates = {"fp32": 60e9, "memory": 20e9}
    measured = processor_from(DeviceCoefficients("cpu", "this one", None, 0.0, rates, {}), None, 2)
    monkeypatch.setattr("gpuwise.machine.this.processor_measured", lambda: measured)
    predicted = gpuwise(*line).document["rows"][-2]
    assert predicted["device"] == "this one" and predicted["time_s"] > 2 * 64**3 / rates["fp32"]


def test_the_processor_multiplies_on_every_core() -> None:
    """The command line starts numpy with one thread; a processor of 64 cores was one of them here."""
    code = "import os; from gpuwise.cli.app import run; run(['lab', 'cpu-vs-gpu', '16', '--on', '4090'])"
    code += "; from gpuwise.machine.devices.cpu import usable_cores; print(os.environ['OPENBLAS_NUM_THREADS'], usable_cores())"
    given = {k: v for k, v in os.environ.items() if not k.endswith("NUM_THREADS")}
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=given, timeout=120, check=True)
    used, there = made.stdout.split()[-2:]
    assert used == there
