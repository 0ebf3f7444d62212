"""``fit --for run`` on a terminal: the verdict, the numbers, what starts it."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from typing import Any

import pytest
from tests.ui.test_views import at

from gpuwise.cli.answer import LINES, text
from gpuwise.report.answers.answer import shows
from gpuwise.report.answers.running import run_answer

RUNS = (
    "llama-3.1-8b --on 3060",
    "qwen3.6-35b-a3b --on 3090 --context 65536",
    "llama-3.3-70b --on 4090",
    "qwen3-30b-a3b --on 3060 --weights Q8_0",
    "gemma-4-e2b --on 'M3 Max 64GB'",
    "llama-3.1-8b --on h100-sxm --weights F16",
)


@pytest.mark.parametrize("question", RUNS)
def test_a_screen_has_the_numbers_of_the_document(question: str, gpuwise: Callable[..., Any]) -> None:
    words = ["fit", *shlex.split(question), "--for", "run"]
    ran = gpuwise(*words, "--json")
    document = json.loads(ran.out.splitlines()[-1])
    assert ran.code == (0 if document["fits"] else 1)
    answer = run_answer(document)
    lines = text(answer).splitlines()
    assert len(lines) <= LINES and max(map(len, text(answer, None).splitlines())) <= 80
    for place in shows(answer):
        assert place.value is None or place.value == at(document, place.pointer), place.pointer
    command = text(answer).rpartition("llama-server")[2].replace("\\\n", " ")
    assert shlex.split("llama-server" + command) == document["commands"][0]["words"]


def test_the_verdict_comes_first(gpuwise: Callable[..., Any]) -> None:
    out = gpuwise("fit", "llama-3.1-8b", "--on", "3060", "--for", "run").out
    assert out.splitlines()[0].startswith("Llama 3.1 8B on 1x RTX 3060 12GB: runs in Q8_0, ")
    assert "longest context" in out and "3060 is read as RTX 3060 12GB" in out
    partly = gpuwise("fit", "llama-3.3-70b", "--on", "4090", "--for", "run")
    assert partly.code == 1 and "only with a part of it in RAM" in partly.out


def test_the_program_that_is_much_faster_leads_on_several_gpus(gpuwise: Callable[..., Any]) -> None:
    """llama.cpp uses GPUs in turn; vLLM takes the published weights on all of them at once."""
    question = ("fit", "llama-3.1-70b", "--on", "8xA100-80GB")
    whole, brief = gpuwise(*question, "--for", "run"), gpuwise(*question)
    first = re.search(r"runs at ([\d.]+) tokens/s with vLLM in bf16, ([\d.]+)\s+with llama.cpp in Q8_0", whole.out)
    assert first is not None and first.group().split() == re.search(r"runs at[^;]*", brief.out).group().split()  # type: ignore[union-attr]
    assert float(first[1]) >= 1.5 * float(first[2])
    assert "\n  vllm serve" in whole.out and "llama-server" not in whole.out
    asked = gpuwise(*question, "--for", "run", "--weights", "Q4_K_M").out
    assert "runs in Q4_K_M" in asked and "\n  llama-server" in asked


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--for", "run", "--lora"), "options of a training with --for run"),
        (("--for", "run", "--recompute", "full"), "options of a training with --for run"),
        (("--for", "run", "--weights", "Q9_K"), "unknown weight format"),
        (("--for", "run", "--context", "200k"), "takes up to 131,072 tokens"),
        (("--context", "8k", "--lora"), "--context is for running"),
        (("--context", "200k"), "takes up to 131,072 tokens"),
        (("--weights", "Q9_K"), "unknown weight format"),
        (("--ram", "64GB", "--seq", "2048"), "of a training it is --host-memory"),
        (("--for", "run", "--ram", "ddr9"), "does not name memory"),
        (("--for", "fun"), "--for"),
    ],
)
def test_what_cannot_be_meant_is_refused(words: tuple[str, ...], message: str, gpuwise: Callable[..., Any]) -> None:
    ran = gpuwise("fit", "llama-3.1-8b", "--on", "4090", *words)
    assert ran.code == 2 and message in ran.err and ran.out == ""


@pytest.mark.parametrize(
    ("asked", "stands"), [("4", "Q4_K_M"), ("q5", "Q5_K_M"), ("8-bit", "Q8_0"), ("fp8", "Q8_0"), ("16", "BF16")]
)
def test_formats_are_read_as_people_write_them(asked: str, stands: str, gpuwise: Callable[..., Any]) -> None:
    ran = gpuwise("fit", "llama-3.2-1b", "--on", "4090", "--for", "run", "--weights", asked, "--json")
    assert ran.document["weights"] == stands
    assert f"{asked} weights are {stands} in llama.cpp" in ran.document["assumed"]


def test_for_finetune_is_adapters(gpuwise: Callable[..., Any]) -> None:
    short = gpuwise("fit", "gpt2", "--on", "4090", "--for", "finetune", "--json")
    long = gpuwise("fit", "gpt2", "--on", "4090", "--lora", "--json")
    assert short.out == long.out


def test_unlike_cards_run_a_model_and_train_none(gpuwise: Callable[..., Any]) -> None:
    ran = gpuwise("fit", "qwen3-8b", "--on", "3090+3060", "--json")
    document = json.loads(ran.out.splitlines()[-1])
    assert document["machine"]["label"] == "1x RTX 3090 + 1x RTX 3060 12GB"
    assert document["run"]["fits"]
    for use in ("finetune", "train"):
        assert document[use]["error"] == "training on unlike cards is not predicted"


def test_a_model_known_by_its_size_alone_runs_and_is_not_trained(gpuwise: Callable[..., Any]) -> None:
    document = json.loads(gpuwise("fit", "Tess-4-9B", "--on", "4090", "--json").out.splitlines()[-1])
    assert document["run"]["fits"] and not document["train"]["fits"]
    assert document["train"]["error"] == "training needs the model's dimensions"


def test_the_memory_of_the_host_decides_a_part_in_ram(gpuwise: Callable[..., Any]) -> None:
    words = ("fit", "llama-3.3-70b", "--on", "4090", "--for", "run", "--json")
    slow, fast = (json.loads(gpuwise(*words, "--ram", ram).out)["offload"] for ram in ("ddr5-4800x1", "ddr5-4800x2"))
    assert slow["host_bytes"] == fast["host_bytes"]
    assert fast["tokens_per_s"]["expected"] > 1.2 * slow["tokens_per_s"]["expected"]


@pytest.mark.parametrize(
    ("on", "program", "weights"),
    [("4090", "vLLM", "bf16"), ("h100-sxm", "vLLM", "bf16"), ("M3 Max 64GB", "MLX LM", "mlx_8bit")],
)
def test_other_programs_have_the_speed_that_op_gives(on: str, program: str, weights: str, gpuwise: Callable[..., Any]) -> None:
    document = gpuwise("fit", "llama-3.1-8b", "--on", on, "--for", "run", "--json").document
    (found,) = (c for c in document["commands"] if c["name"].partition(",")[0] == program)
    assert found["weights"] == weights and weights.removeprefix("mlx_") in " ".join(found["words"]) + "bf16"
    words = ("--on", on, "--weights", weights, "--context", str(document["context"]), "--json")
    seconds = gpuwise("op", "decode", "llama-3.1-8b", *words).document["rows"][0]["time_s"]
    for end, other in (("low", "high"), ("expected", "expected"), ("high", "low")):
        assert found["tokens_per_s"][end] == pytest.approx(1 / seconds[other], rel=1e-6)
    assert f"{program}  " in gpuwise("fit", "llama-3.1-8b", "--on", on, "--for", "run").out
    assert all("tokens_per_s" not in c for c in document["commands"] if c is not found)


def test_a_program_that_does_not_run_there_has_no_line(gpuwise: Callable[..., Any]) -> None:
    out = gpuwise("fit", "llama-3.1-8b", "--on", "3060", "--for", "run").out
    assert "MLX LM  " not in out
    assert "vLLM  " not in gpuwise("fit", "llama-3.1-8b", "--on", "M3 Max 64GB", "--for", "run").out
