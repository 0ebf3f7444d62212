"""Weight formats: names, bytes held, bytes read."""

from __future__ import annotations

import pytest

from gpuwise.errors import InputError, UnknownNameError
from gpuwise.facts.models.catalogue import find_model
from gpuwise.serve.engines.engine import LOCAL_ENGINE, EngineConfig, stored_as
from gpuwise.serve.formats import (
    BNB,
    ENGINE_FORMATS,
    FORMAT_OF_BITS,
    FORMATS,
    LLAMA_CPP_FORMATS,
    MLX_FORMATS,
    asked_weights,
    find_format,
    format_of_precision,
    gguf_format,
    weight_bytes,
    weight_bytes_read,
    width_of,
)
from gpuwise.workload.transformer.parameters import count_parameters

LLAMA = find_model("llama-3.1-8b")


def test_names_in_any_case() -> None:
    assert find_format("q4_k_m").name == "Q4_K_M" and find_format("BF16").name == "BF16" and find_format("FP8").name == "fp8"
    with pytest.raises(UnknownNameError):
        find_format("Q2")
    assert find_format("UD-Q4_K_XL") is find_format("q4_k_xl") is FORMATS["UD-Q4_K_XL"]
    assert [find_format(name).name for name in ("UD-Q5_K_XL", "Q6_K_L", "UD-IQ2_M", "UD-Q4_K_M")] == [
        "Q5_K_M",
        "Q6_K",
        "IQ2_M",
        "Q4_K_M",
    ]
    assert [find_format(name).name for name in ("4bit", "MLX-8bit", "6bit-mlx", "awq-int4", "GPTQ", "fp8-dynamic", "w8a16")] == [
        "mlx_4bit",
        "mlx_8bit",
        "mlx_6bit",
        "int4_wo",
        "int4_wo",
        "fp8",
        "int8_wo",
    ]
    assert format_of_precision("int4").name == "int4_wo"
    with pytest.raises(UnknownNameError):
        format_of_precision("tf32")


def test_every_format_of_an_engine_has_a_nearest_one_in_llama_cpp() -> None:
    assert {*ENGINE_FORMATS, BNB, *LLAMA_CPP_FORMATS, *MLX_FORMATS} == set(FORMATS)
    for name in (*ENGINE_FORMATS, *MLX_FORMATS):
        nearest = FORMATS[FORMATS[name].llama_cpp]
        assert nearest.name in LLAMA_CPP_FORMATS and nearest.bytes_per_weight == pytest.approx(
            FORMATS[name].bytes_per_weight, rel=0.2
        )
    assert [FORMATS[name].llama_cpp for name in FORMAT_OF_BITS.values()] == ["F16", "Q8_0", "Q4_K_M"]


def test_published_sizes() -> None:
    assert weight_bytes(LLAMA, "bf16") == pytest.approx(16.06e9, rel=1e-3)
    assert weight_bytes(LLAMA, "Q4_K_M") == pytest.approx(4.92e9, rel=0.02)  # Meta-Llama-3.1-8B-Instruct-Q4_K_M.gguf
    # gpt-oss-120b on Hugging Face: 65.2 GB in MXFP4 experts and bf16 elsewhere
    assert weight_bytes(find_model("gpt-oss-120b"), "bf16", "mxfp4") == pytest.approx(65.2e9, rel=0.02)
    assert weight_bytes(find_model("gpt-oss-120b"), "mxfp4") == weight_bytes(find_model("gpt-oss-120b"), "bf16", "mxfp4")


def test_an_engine_keeps_tables_and_head_wide() -> None:
    count = count_parameters(LLAMA)
    assert weight_bytes(LLAMA, "fp8") == count.layers + 2.0 * (count.total - count.layers)
    assert weight_bytes(LLAMA, "Q8_0") == count.total * 8.5 / 8


@pytest.mark.parametrize("model", ["llama-3.1-8b", "gemma-3-27b", "mixtral-8x7b", "deepseek-v3"])
@pytest.mark.parametrize("name", FORMATS)
def test_no_token_reads_more_than_is_held(model: str, name: str) -> None:
    arch = find_model(model)
    assert 0 < weight_bytes_read(arch, name) <= weight_bytes(arch, name)


def test_a_token_reads_the_experts_it_is_sent_to() -> None:
    mixtral = find_model("mixtral-8x7b")
    assert weight_bytes_read(mixtral, "F16") == pytest.approx(2 * 12.8e9, rel=0.03)
    with pytest.raises(UnknownNameError):
        weight_bytes_read(LLAMA, "Q7")
    assert weight_bytes_read(LLAMA, "F16") == pytest.approx(2 * (8.03e9 - 128256 * 4096), rel=0.01)


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("llama-3.1-8b-Q4_K_M.gguf", "Q4_K_M"),
        ("Meta-Llama-3.1-8B-Instruct-q8_0.gguf", "Q8_0"),
        ("llama-3.1-8b.F16.gguf", "F16"),
        ("llama-3.1-8b.gguf", None),
        ("llama-3.1-8b", None),
    ],
)
def test_the_format_in_a_gguf_files_name(name: str, form: str | None) -> None:
    assert gguf_format(name) == form


def test_a_gguf_format_of_unknown_size_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="IQ5_XS"):
        gguf_format("llama-3.1-8b-IQ5_XS.gguf")
    assert [width_of(form) for form in ("F16", "Q8_0", "Q4_K_M", "Q6_K", "fp8_block", "nf4")] == [16, 8, 4, 8, 8, 4]


@pytest.mark.parametrize(
    ("text", "bits", "form"),
    [("16,8", (16, 8), None), ("fp8", (8,), None), ("int4", (4,), None), ("bnb4", (4,), "nf4"), ("q4_k_m", (4,), "Q4_K_M")],
)
def test_weights_are_asked_by_bits_or_by_a_format(text: str, bits: tuple[int, ...], form: str | None) -> None:
    assert asked_weights(text) == (bits, form) and asked_weights(None) == ((), None)


def test_a_format_selects_a_program_that_reads_it() -> None:
    assert stored_as("llama-3.1-8b-Q6_K.gguf", None, None, None) == (LOCAL_ENGINE, "Q6_K")
    assert stored_as("llama-3.1-8b-Q6_K.gguf", None, "vllm@0.9", None) == ("vllm@0.9", "Q6_K")
    assert stored_as("llama-3.1-8b", None, None, "bnb") == (None, "nf4")
    assert stored_as("llama-3.1-8b", None, None, "16,8") == (None, "16,8")
    with pytest.raises(InputError, match="SGLang reads no Q6_K weights"):
        stored_as("llama-3.1-8b-Q6_K.gguf", None, "sglang", None)
    with pytest.raises(InputError, match="contradicts --weights 8"):
        stored_as("llama-3.1-8b-Q4_K_M.gguf", None, None, "8")
    with pytest.raises(InputError, match=r"vLLM 0\.5 reads no Q6_K weights: it begins with 0\.5\.5"):
        EngineConfig("vllm", "Q6_K", version="0.5")
    with pytest.raises(UnknownNameError, match="bnb8"):
        asked_weights("bnb8")


@pytest.mark.parametrize(("model", "gib"), [("gpt-oss-20b", 11.27), ("gpt-oss-120b", 59.02)])
def test_files_in_mxfp4_are_their_size(model: str, gib: float) -> None:
    """ggml-org/gpt-oss-20b-GGUF and -120b: experts in MXFP4, the rest in Q8_0."""
    assert weight_bytes(find_model(model), "MXFP4") / 2**30 == pytest.approx(gib, rel=0.01)
    form = gguf_format(f"{model}-mxfp4.gguf")
    assert form == "MXFP4" and width_of(form) == 4
