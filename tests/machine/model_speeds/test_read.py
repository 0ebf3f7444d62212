"""The one reader of what programs print: each real format, and what is none of them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.machine.model_speeds.outputs import (
    FORMATS,
    MARKDOWN,
    MLX_BENCHMARK,
    MLX_GENERATE,
    OLLAMA,
    VLLM_LATENCY,
    VLLM_SERVE,
    VLLM_THROUGHPUT,
    as_csv,
    bench_row,
)

from gpuwise.errors import FileError
from gpuwise.machine.model_speeds.llama_bench import format_of
from gpuwise.machine.model_speeds.read import read_speeds
from gpuwise.serve.formats import find_format


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_of_llama_bench_has_the_same_speeds(form: str) -> None:
    speeds = read_speeds(FORMATS[form], "out")
    found = [(s.kind, s.tokens, s.before, s.tokens_per_s, s.sigma_tokens_per_s) for s in speeds]
    assert found == [("prompt", 512, 0, 1500.0, 15.0), ("decode", 128, 0, 50.0, 0.5), ("decode", 128, 8192, 43.0, 0.43)]
    assert all(s.whole and s.weights == "Q4_K_M" and s.engine == "llama.cpp" and s.build == "7163" for s in speeds)
    assert all(s.gpus == (() if form == "md" else ("NVIDIA GeForce RTX 3060",)) for s in speeds)


@pytest.mark.parametrize(
    ("setting", "whole", "on_processor"),
    [
        ({}, True, False),
        ({"n_gpu_layers": -1}, True, False),
        ({"n_gpu_layers": 20}, False, False),
        ({"n_cpu_moe": 4}, False, False),
        ({"type_k": "q8_0"}, False, False),
        ({"no_kv_offload": True}, False, False),
        ({"tensor_buft_overrides": "exps=CPU"}, False, False),
        ({"n_gpu_layers": 0}, True, True),
        ({"backends": "CPU", "gpu_info": ""}, True, True),
        ({"backends": "BLAS", "gpu_info": ""}, True, True),
    ],
)
def test_settings_that_are_not_predicted_are_marked(setting: dict[str, Any], whole: bool, on_processor: bool) -> None:
    row = bench_row(written=128, **setting)
    for text in (json.dumps([row]), as_csv([row])):
        (speed,) = read_speeds(text, "out")
        assert (speed.whole, speed.on_processor) == (whole, on_processor)


def test_a_prompt_with_its_answer_is_neither_speed() -> None:
    rows = [bench_row(prompt=512, written=128), bench_row(written=128)]
    assert [s.kind for s in read_speeds(json.dumps(rows), "out")] == ["decode"]
    table = MARKDOWN.replace("pp512 ", "pp512+tg128 ")
    assert [s.kind for s in read_speeds(table, "out")] == ["decode", "decode"]


@pytest.mark.parametrize(
    ("description", "form"),
    [
        ("llama 8B Q4_K - Medium", "Q4_K_M"),
        ("qwen2 7B Q5_K - Small", "Q5_K_S"),
        ("llama 8B Q2_K - Medium", "Q2_K"),
        ("gpt-oss 20B MXFP4 MoE", "MXFP4"),
        ("llama 7B mostly Q4_0", "Q4_0"),
        ("qwen3 8B IQ4_XS - 4.25 bpw", "IQ4_XS"),
        ("llama 8B F16", "F16"),
        ("llama 8B all F32", "F32"),
    ],
)
def test_formats_in_descriptions_are_formats_here(description: str, form: str) -> None:
    assert format_of(description) == form
    assert form == "F32" or find_format(form).name == form


def test_ollama_and_mlx_print_both_speeds() -> None:
    read, wrote = read_speeds("\x1b[?25l" + OLLAMA, "out")
    assert (read.kind, read.tokens, read.tokens_per_s, read.engine) == ("prompt", 26, 812.5, "llama.cpp")
    assert (wrote.kind, wrote.tokens, wrote.before, wrote.tokens_per_s) == ("decode", 290, 26, 46.03)
    assert wrote.context == 26 + 145
    assert len(read_speeds(OLLAMA + OLLAMA, "out")) == 4
    read, wrote = read_speeds(MLX_GENERATE, "out")
    assert (read.tokens_per_s, wrote.tokens_per_s, wrote.before, wrote.engine) == (210.512, 61.25, 36, "mlx-lm")
    read, wrote = read_speeds(MLX_BENCHMARK, "out")
    assert (read.tokens_per_s, wrote.tokens_per_s, wrote.tokens, wrote.before, wrote.samples) == (801.1, 61.0, 1024, 512, 2)
    batch = read_speeds(MLX_BENCHMARK.replace("batch_size=1", "batch_size=4"), "out")
    assert batch[1].tokens_per_s == 61.0 / 4 and batch[1].sequences == 4


def test_vllm_serve_is_read_as_one_sequence_of_several() -> None:
    read, wrote = read_speeds(json.dumps(VLLM_SERVE), "out")
    assert (read.tokens, read.tokens_per_s) == (512, 5120.0)
    assert (wrote.tokens, wrote.before, wrote.tokens_per_s) == (128, 512, 40.0)
    # 2 requests a second, each of 0.1 s + 127 x 0.025 s
    assert wrote.sequences == 7 and wrote.model == "Qwen/Qwen3-8B"
    (total,) = read_speeds(json.dumps(VLLM_THROUGHPUT), "out")
    assert (total.kind, total.tokens_per_s, total.sequences) == ("total", 3200.0, 100)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no speed"),
        ("hello\n", "has no speed"),
        ("[]", "has no speed"),
        ("{}", "has no speed"),
        ('[{"avg_ts": 1}, 2]', "row 2 is not an object"),
        (FORMATS["json"][:-3], "is not JSON"),
        (FORMATS["jsonl"][:-30], "is not JSON"),
        (FORMATS["csv"].replace('"50.0"', '"fast"'), "row 2: avg_ts is 'fast', not a number"),
        (FORMATS["csv"].replace('"50.0",', ""), "row 2: has another number of columns"),
        (json.dumps([bench_row(written=128, avg_ts=None)]), "row 1: avg_ts is missing"),
        (json.dumps([bench_row(written=128, avg_ts=-3.0)]), "row 1: avg_ts is '-3.0', not a number"),
        (json.dumps([bench_row(written=128, avg_ts=0.0)]), "avg_ts is not above zero"),
        (json.dumps([bench_row(written=128)]).replace("50.0", "NaN"), "has NaN"),
        (json.dumps([bench_row(written=128, n_depth=0.5)]), "n_depth is 0.5, not a whole number"),
        (MARKDOWN.replace("50.00 ±", "fast ±"), "row 2: avg_ts is 'fast', not a number"),
        (MARKDOWN.replace("tg128 @", "xx128 @"), "is not a test of llama-bench"),
        (MARKDOWN.replace(" t/s |", " speed |"), "without the columns test and t/s"),
        (OLLAMA.replace("46.03", "fast"), "eval rate is 'fast', not a number"),
        (OLLAMA.replace("eval count:           290 token(s)\n", ""), "eval rate without a count of tokens"),
        (MLX_BENCHMARK.partition("Averages")[0], "printed no averages"),
        (json.dumps({**VLLM_SERVE, "completed": 0}), "no request was answered"),
        (json.dumps({**VLLM_SERVE, "mean_tpot_ms": None}), "mean_tpot_ms is missing"),
        (json.dumps(VLLM_LATENCY), "vllm bench latency writes neither the batch nor the lengths"),
        ("\x00\x01\x02", "has no speed"),
        ("[" * 100_000, "out: "),
    ],
)
def test_another_text_is_one_error(text: str, message: str) -> None:
    with pytest.raises(FileError) as raised:
        read_speeds(text, "out")
    assert message in raised.value.message and raised.value.hint and "\n" not in raised.value.message
