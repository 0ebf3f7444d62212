from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

MAIN_JOB = ("plan", "llama-3.1-8b", "--on", "8xH100-SXM", "--tokens", "15B")


def test_the_main_job_is_a_plan_one_can_act_on(gpuwise: Callable[..., Any]) -> None:
    ran = gpuwise(*MAIN_JOB)
    assert ran.code == 0 and ran.err == ""
    assert re.match(r"Llama 3.1 8B on 8x H100 SXM5 80GB: 15.0B tokens take 2\.\d+ days and cost \$[12],\d+\n", ran.out)
    for part in ("a GPU-hour, median of", "fits with >99 %", "MFU", "Bottleneck", "--precision", "Assumed", "More: --"):
        assert part in ran.out
    assert ran.out.splitlines()[-1].strip() == "gpuwise export llama-3.1-8b --on 8xH100-SXM --tokens 15B"


def test_everything_of_the_main_job(gpuwise: Callable[..., Any]) -> None:
    out = gpuwise(*MAIN_JOB, "--all").out
    for part in (
        "The layout",
        "All numbers",
        "80 % interval",
        "Other layouts",
        "tuned",
        "torchrun --nproc-per-node 8",
        "evaluated",
    ):
        assert part in out
    assert "Published: 15.0T tokens" in out


def test_a_model_of_images_is_planned_in_images(gpuwise: Callable[..., Any]) -> None:
    out = gpuwise("plan", "vit-l-16", "--on", "4x4090", "--samples", "100M", "--all").out
    assert "images/s" in out and "100M images (19.7B tokens) take" in " ".join(out.split())
    assert "training script of its own" in " ".join(out.split()) and "torchrun" not in out and "export" not in out


@pytest.mark.parametrize("width", [60, 80, 120])
def test_nothing_is_wider_than_the_screen(width: int, gpuwise: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    for arguments in (MAIN_JOB, ("fit", "llama-3.1-8b", "--on", "4090"), ("gpus", "h100")):
        lines = gpuwise(*arguments).out.splitlines()
        long = [line for line in lines if len(line) > width and not line.lstrip().startswith("--")]
        assert not long


def test_a_pipe_gets_no_colour(gpuwise: Callable[..., Any]) -> None:
    assert "\x1b" not in gpuwise(*MAIN_JOB).out


def test_no_color_is_obeyed_on_a_terminal(gpuwise: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[32m" in gpuwise(*MAIN_JOB).out or "\x1b[1;32m" in gpuwise(*MAIN_JOB).out
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[32m" not in gpuwise(*MAIN_JOB).out and "\x1b[1;32m" not in gpuwise(*MAIN_JOB).out


def test_json_is_one_document_on_the_last_line(gpuwise: Callable[..., Any]) -> None:
    ran = gpuwise(*MAIN_JOB, "--json")
    assert len(ran.out.splitlines()) == 1
    document = ran.document
    assert document["search"]["strategies"] > 0
    best = document["best"]
    assert {"strategy", "step_time_s", "memory_bytes", "tokens_per_s_per_gpu", "mfu", "cost_usd"} <= set(best)
    for name in ("step_time_s", "memory_bytes", "tokens_per_s_per_gpu", "mfu", "cost_usd"):
        assert set(best[name]) == {"low", "expected", "high", "basis"}


def test_fixed_degrees_and_formats_are_held(gpuwise: Callable[..., Any]) -> None:
    ran = gpuwise(
        *MAIN_JOB,
        "--tp",
        "2",
        "--sharding",
        "zero1",
        "--precision",
        "fp8",
        "--seq",
        "4096",
        "--global-batch",
        "256",
        "--recompute",
        "selective",
        "--stack",
        "megatron-core",
        "--optimizer",
        "adamw8bit",
        "--json",
    )
    s = ran.document["best"]["strategy"]
    assert (s["tp"], s["sharding"], s["precision"], s["recompute"]) == (2, "zero1", "fp8", "selective")
    assert (s["global_batch"], s["optimizer"]) == (256, "adamw8bit")
    assert ran.document["goal"]["assumed"] == []


def test_several_formats_are_compared(gpuwise: Callable[..., Any]) -> None:
    one = gpuwise(*MAIN_JOB, "--precision", "bf16", "--json").document
    both = gpuwise(*MAIN_JOB, "--precision", "bf16,fp8", "--json").document
    assert both["search"]["strategies"] == 2 * one["search"]["strategies"]
    assert both["best"]["strategy"]["precision"] == "fp8"


def test_a_plan_that_cannot_be_is_code_1_with_the_distance(gpuwise: Callable[..., Any]) -> None:
    ran = gpuwise("plan", "llama-3.1-70b", "--on", "1x4090", "--tokens", "1B")
    assert ran.code == 1
    assert "does not fit" in ran.out and "needs" in ran.out
    assert ran.out.splitlines()[-1].endswith("gpuwise fit llama-3.1-70b --on 1x4090")


def test_experts_over_tensor_ranks_are_offered_where_whole_ones_do_not_fit(gpuwise: Callable[..., Any]) -> None:
    job = "mixtral-8x7b --on 4x8xH100-SXM --tokens 1B --seq 4096 --global-batch 1200 --stack megatron-core"
    layout = "--tp 8 --pp 2 --ep 1 --dp 2 --micro-batch 3 --recompute selective --sharding zero1"
    asked = ("plan", *shlex.split(f"{job} {layout}"))
    assert gpuwise(*asked).out.rstrip().endswith("--etp 8")
    divided = gpuwise(*asked, "--etp", "8", "--all").out
    assert "does not fit" not in divided and "over 8 tensor ranks" in divided


def test_a_reader_that_leaves_early_is_no_error() -> None:
    script = f"{sys.executable} -c 'from gpuwise.cli import main; main()' gpus | head -1"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env={**os.environ, "COLUMNS": "80"})
    assert "Traceback" not in done.stderr and done.stdout.endswith("with a rental price\n")


def test_the_headline_says_of_which_peak(gpuwise: Callable[..., Any]) -> None:
    words = ("plan", "llama-3.1-8b", "--on", "8xH100-SXM", "--tokens", "1B")
    assert "of the bf16 peak (MFU)" in gpuwise(*words).out
    assert "of the fp8 peak (MFU)" in gpuwise(*words, "--precision", "fp8").out


def test_a_model_of_images_is_counted_in_images(gpuwise: Callable[..., Any]) -> None:
    ran = gpuwise("plan", "vit-b-16", "--on", "a100-sxm-80gb", "--samples", "1.28M")
    assert "1.28M images (252M tokens) take" in ran.out


def test_memory_is_one_number_where_the_usual_slack_would_not_fit(gpuwise: Callable[..., Any]) -> None:
    out = gpuwise("plan", "qwen3-30b-a3b", "--on", "64xH100-SXM", "--tokens", "1T", "--all").out
    assert "The least it needs" in out or "the least it needs" in out
    shown = re.search(r"^  memory +(\S+ GiB)", out, re.MULTILINE)
    head = re.search(r"^What fills the memory: (\S+ GiB)", out, re.MULTILINE)
    assert shown and head and shown[1] == head[1]
