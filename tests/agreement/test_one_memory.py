"""One memory: the KV cache, the CUDA context, the usable bytes and the answer built on them are the same in every command."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Ask = Callable[..., Any]
GPUS = ("RTX 4090", "A100-SXM-80GB", "H100-SXM")
TODAY_STEP = """\
import torch


def make_step():
    model = torch.nn.Linear(64, 64).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(8, 64, device="cuda")

    def step():
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()

    return step
"""


@pytest.fixture
def own_code(tmp_path: Path) -> str:
    """A step so small that its process holds little but what every process holds."""
    pytest.importorskip("torch")
    script = tmp_path / "train.py"
    script.write_text(TODAY_STEP)
    return f"{script}:make_step"


def decode(ask: Ask, model: str, gpu: str, weights: str, context: int) -> Any:
    return ask("op", "decode", model, "--on", gpu, "--weights", weights, "--context", str(context))


def served(ask: Ask, gpu: str, model: str, precision: str, context: int) -> dict[str, Any]:
    """Rows of ``compare`` about ``gpu``, by key."""
    words = ("--model", model, "--for", "infer", "--precision", precision, "--seq", str(context))
    return {row["key"]: row["cells"][0] for row in ask("compare", gpu, "H100-SXM", *words)["rows"]}


# --- the KV cache ---


@pytest.mark.parametrize("model", ["gemma-3-27b", "deepseek-v3", "llama-3.1-8b", "gpt2"])
def test_the_cache_of_op_is_the_one_function(model: str, ask: Ask) -> None:
    """8,192 tokens of Gemma 3 27B were 1.03 and 3.88 GiB, of DeepSeek-V3 0.54 and 45.75."""
    from gpuwise.facts.models.catalogue import find_model
    from gpuwise.predict.memory.kv_cache import PAGED, kv_cache_bytes

    context = 1024 if model == "gpt2" else 8192
    gpus, weights = ("8xH200", "fp8") if model == "deepseek-v3" else ("H100-SXM", "bf16")
    assert decode(ask, model, gpus, weights, context)["operation"]["cache_bytes"] == float(
        kv_cache_bytes(find_model(model), context, PAGED)
    )


@pytest.mark.parametrize("model", ["gemma-3-27b", "llama-3.1-8b", "qwen3-8b"])
@pytest.mark.parametrize("gpu", ["RTX 4090", "L40S", "A100-SXM-80GB"])
@pytest.mark.parametrize("context", [4096, 32768])
def test_op_and_compare_agree_on_what_fits(model: str, gpu: str, context: int, ask: Ask) -> None:
    """Gemma 3 27B in 4 bits, 32k on a 4090: ``op`` said 28.9 GiB do not fit, ``compare`` 37.9 tokens/s."""
    asked = decode(ask, model, gpu, "int4_wo", context)["rows"][0]
    assert asked["fits"] == (served(ask, gpu, model, "int4", context)["decode_one"]["value"] is not None)


# --- what serves one person ---


@pytest.mark.parametrize(("model", "gpu"), [("llama-3.1-8b", "RTX 3090"), ("qwen3-8b", "RTX 5090")])
def test_one_user_gets_the_same_tokens_everywhere(model: str, gpu: str, ask: Ask) -> None:
    context = 1024
    asked = decode(ask, model, gpu, "bf16", context)["rows"][0]["tokens_per_s"]["expected"]
    compared = served(ask, gpu, model, "bf16", context)["decode_one"]["value"]
    picked = ask(
        "pick", "--for", "infer", "--model", model, "--users", "1", "--context", str(context), "--weights", "16", "--top", "99"
    )["ranked"]
    rows = [row for row in picked if row["name"] == gpu and row["count"] == 1]
    assert rows
    assert {asked, compared} == {row["tokens_per_s"]["expected"] for row in rows}


def test_op_and_pick_hold_the_same_memory(ask: Ask) -> None:
    asked = decode(ask, "llama-3.1-8b", "RTX 3090", "bf16", 1024)["rows"][0]
    picked = ask(
        "pick", "--for", "infer", "--model", "llama-3.1-8b", "--users", "1", "--context", "1024", "--weights", "16", "--top", "99"
    )["ranked"]
    held = {row["memory_bytes"] for row in picked if row["name"] == "RTX 3090" and row["count"] == 1}
    assert held == {asked["needs_bytes"]}


# --- the context and the usable bytes ---


@pytest.mark.parametrize("gpu", GPUS)
def test_the_context_is_the_same_for_a_model_and_for_own_code(gpu: str, own_code: str, ask: Ask) -> None:
    model = ask("fit", "gpt2", "--on", gpu, "--stack", "eager")["memory_parts_bytes"]["context"]
    assert model == ask("fit", own_code, "--on", gpu)["memory"]["context_bytes"]["expected"]


@pytest.mark.parametrize("gpu", GPUS)
def test_the_usable_bytes_are_the_same_for_a_model_and_for_own_code(gpu: str, own_code: str, ask: Ask) -> None:
    model = ask("fit", "gpt2", "--on", gpu, "--for", "train")["device_bytes"]
    assert model == ask("fit", own_code, "--on", gpu)["memory"]["capacity_bytes"]


@pytest.mark.parametrize("gpu", GPUS)
def test_the_usable_bytes_are_what_compare_shows(gpu: str, ask: Ask) -> None:
    rows = {row["key"]: row["cells"][0] for row in ask("compare", gpu, "L40S")["rows"]}
    assert rows["memory"]["value"] == ask("fit", "gpt2", "--on", gpu, "--for", "train")["device_bytes"]


# --- a training run ---


@pytest.mark.thorough
def test_plan_and_pick_take_the_same_hours(ask: Ask) -> None:
    """GPT-2 on 10B tokens: 4.17 h on eight A100 in ``pick``, 2.33 h in ``plan``."""
    picked = ask("pick", "--for", "train", "--model", "gpt2", "--tokens", "10B", "--by", "time", "--rent", "--top", "99")[
        "ranked"
    ]
    several = [row for row in picked if row["count"] == 8][:3]
    assert several
    hours = {row["accelerator"]: row["time_s"]["expected"] for row in several}
    planned = {name: ask("plan", "gpt2", "--on", f"8x{name}", "--tokens", "10B")["best"]["time_s"]["expected"] for name in hours}
    assert planned == hours
