"""Splits that an engine starts with: reported failures of engines, and laws over random models and systems."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwise.errors import InputError, NoRoomError
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.catalogue import find_model, models
from gpuwise.plan.one_model import decode
from gpuwise.serve.capacity.commands import start_commands
from gpuwise.serve.capacity.configurations import Requirements, holds, layouts
from gpuwise.serve.capacity.search import search
from gpuwise.serve.engines.engine import ENGINES, EngineConfig
from gpuwise.serve.load.load import Load
from gpuwise.serve.load.workloads import find_workload
from gpuwise.serve.splits import check_device, check_split, in_tensor_group, tensor_degrees, why_refused

DECODERS = sorted(m.id for m in models().values() if m.kind == "decoder")
LARGE = ("llama-2-13b", "llama-2-70b", "llama-3.1-405b", "qwen2.5-32b", "qwen2.5-72b", "mixtral-8x7b", "phi-4", "gemma-2-27b")
CARDS = ("V100-32GB", "T4", "4090", "A10", "A100-40GB", "L4", "3090")


@pytest.mark.parametrize(
    ("model", "weights", "degree", "words"),
    [
        ("phi-3-medium", "bf16", 4, "10 key-value heads"),  # vllm issue 5951
        ("phi-4", "bf16", 8, "10 key-value heads"),
        ("gpt2-xl", "bf16", 2, "25 attention heads"),  # vllm issue 1705
        ("llama-2-13b", "bf16", 3, "40 attention heads"),  # vllm issue 596
        ("qwen3-30b-a3b", "fp8_block", 4, "192 inputs"),  # vllm issue 25292
        ("mixtral-8x7b", "bf16", 16, "8 experts"),
        ("llama-2-7b", "int4_wo", 4, "groups of 128"),
        ("llama-3.2-1b", "fp8_block", 8, "key-value heads"),  # one of 64 on a rank
    ],
)
def test_engines_refuse_what_does_not_divide(model: str, weights: str, degree: int, words: str) -> None:
    arch, form = find_model(model), EngineConfig(weights=weights)
    with pytest.raises(InputError, match=words) as refused:
        check_split(arch, in_tensor_group(arch, form, degree))
    assert refused.value.hint and "tensor parallel 1" in refused.value.hint


@pytest.mark.parametrize(
    ("model", "weights", "degree"),
    [
        ("llama-3.1-8b", "bf16", 16),  # two copies of each of 8 key-value heads
        ("phi-4", "bf16", 2),
        ("qwen2.5-72b", "int4_wo", 8),  # published with a wider MLP
        ("deepseek-v3", "fp8_block", 8),  # one latent head
        ("gpt-oss-120b", "mxfp4", 8),  # padded by its kernels
    ],
)
def test_engines_start_with_what_divides(model: str, weights: str, degree: int) -> None:
    arch = find_model(model)
    check_split(arch, in_tensor_group(arch, EngineConfig(weights=weights), degree))


@given(st.sampled_from(DECODERS), st.sampled_from([e.name for e in ENGINES.values() if not e.in_turn]), st.integers(2, 16))
def test_degrees_of_a_hint_are_accepted(model: str, engine: str, degree: int) -> None:
    arch, form = find_model(model), EngineConfig(engine)
    able = tensor_degrees(arch, form, 16)
    assert 1 in able
    assert (degree in able) == (not why_refused(arch, in_tensor_group(arch, form, degree)))
    for t in able:
        check_split(arch, in_tensor_group(arch, form, t))


def test_more_stages_than_layers_are_refused() -> None:
    arch = find_model("llama-2-70b")
    with pytest.raises(InputError, match="80 layers"):
        check_split(arch, EngineConfig(pp=81))
    check_split(arch, EngineConfig(pp=80))


@settings(max_examples=25)
@given(
    st.sampled_from(LARGE),
    st.sampled_from(CARDS),
    st.sampled_from([1, 2, 3, 4, 5, 6, 7, 8, 16]),
    st.sampled_from([(16,), (16, 8)]),
)
def test_what_fits_with_an_option_fits_without(model: str, card: str, n: int, bits: tuple[int, ...]) -> None:
    """Of every tensor group within a host and every number of stages."""
    arch, cluster = find_model(model), find_cluster(f"{n}x{card}")
    asked = Requirements(bits=bits)
    usual = any(holds(c) for c in layouts(arch, cluster.system, n, asked))
    for tp in (t for t in range(1, min(n, cluster.system.count) + 1) if cluster.system.count % t == 0):
        for pp in range(1, n // tp + 1):
            try:
                explicit = any(holds(c) for c in layouts(arch, cluster.system, n, replace(asked, tp=tp, pp=pp)))
            except InputError:
                continue  # refused by the engine
            assert usual or not explicit, (tp, pp)


@given(st.sampled_from(LARGE), st.sampled_from(CARDS), st.sampled_from([2, 4, 6, 8, 16]))
def test_layouts_are_those_that_an_engine_starts_with(model: str, card: str, n: int) -> None:
    arch, cluster = find_model(model), find_cluster(f"{n}x{card}")
    for configuration in layouts(arch, cluster.system, n, Requirements()):
        check_split(arch, configuration.config)
        assert configuration.ranks <= n


def test_decoding_on_many_gpus_takes_as_many_as_divide() -> None:
    """vLLM does not split 10 key-value heads four ways: two GPUs work, and the answer says why."""
    arch, four = find_model("phi-3-medium"), find_cluster("4xA100-80GB")
    row = decode(arch, "bf16", [four], batch=8).rows[0]
    two = decode(arch, "bf16", [find_cluster("2xA100-80GB")], batch=8).rows[0]
    assert row.time_s is not None and two.time_s is not None
    assert row.time_s.expected == pytest.approx(two.time_s.expected, rel=0.2)
    assert any("tensor parallel 2" in note and "10 key-value heads" in note for note in row.notes)


def test_what_has_no_room_at_all_is_reported() -> None:
    arch, cluster = find_model("llama-2-70b"), find_cluster("3xV100-32GB")
    configurations = list(layouts(arch, cluster.system, 3, Requirements(bits=(16,))))
    assert configurations and not any(holds(c) for c in configurations)
    short: list[float] = []
    for configuration in configurations:
        with pytest.raises(NoRoomError) as refused:
            _ = configuration.server.memory
        short.append(refused.value.short_bytes)
    found = search(arch, cluster, Load(find_workload("chat"), arch.max_seq_len), (), Requirements(bits=(16,)))
    assert isinstance(found.error, NoRoomError) and found.error.short_bytes == min(short)


@pytest.mark.parametrize(
    ("model", "card", "config", "words"),
    [
        ("gemma-2-9b", "V100-32GB", EngineConfig(), "fp16"),  # vllm config/model.py, _FLOAT16_NOT_SUPPORTED_MODELS
        ("gemma-3-4b", "T4", EngineConfig(weights="int4_wo"), "fp16"),
        ("llama-3.1-8b", "3090", EngineConfig(kv_dtype="fp8"), "fp8 cache"),  # vllm issue 26431
        ("llama-3.1-8b", "V100-32GB", EngineConfig(weights="fp8"), "fp8 weights"),
    ],
)
def test_engines_refuse_what_a_device_does_not_run(model: str, card: str, config: EngineConfig, words: str) -> None:
    arch, cluster = find_model(model), find_cluster(card)
    with pytest.raises(InputError, match=words):
        check_device(arch, cluster.accelerator, config)
    for works in ("L40S", "H100-SXM"):
        check_device(arch, find_cluster(works).accelerator, config)


def test_a_model_that_no_format_runs_on_a_device_is_refused_before_its_size() -> None:
    arch = find_model("gemma-2-27b")
    error = search(arch, find_cluster("T4"), Load(find_workload("chat"), arch.max_seq_len), (), Requirements()).error
    assert error is not None and "no bf16" in error.message


def test_the_engine_whose_stages_have_room_is_named() -> None:
    arch, cluster = find_model("llama-2-70b"), find_cluster("6xV100-32GB")
    load, wanted = Load(find_workload("chat"), arch.max_seq_len), Requirements("sglang", bits=(16,))
    error = search(arch, cluster, load, (), wanted).error
    assert error is not None and error.hint is not None and "--engine vllm" in error.hint
    assert any(holds(c) for c in layouts(arch, cluster.system, 6, replace(wanted, engine="vllm")))


@settings(max_examples=40)
@given(
    st.sampled_from(DECODERS),
    st.sampled_from(["T4", "V100-32GB", "3090", "A100-80GB", "L40S", "H100-SXM", "MI300X", "B200"]),
    st.sampled_from([1, 2, 3, 4, 6, 8]),
    st.sampled_from(["vllm", "sglang", "trtllm"]),
    st.sampled_from([(16, 8), (8,), (4,)]),
    st.sampled_from(["bf16", "fp8"]),
)
def test_what_is_printed_starts(model: str, card: str, n: int, engine: str, bits: tuple[int, ...], cache: str) -> None:
    """Of every layout with room, and of its changes with a rate."""
    arch, cluster = find_model(model), find_cluster(f"{n}x{card}")
    try:
        every = list(layouts(arch, cluster.system, n, Requirements(engine, bits=bits, kv_dtype=cache)))
    except InputError:
        return
    for configuration in filter(holds, every):
        check_split(arch, configuration.config)
        check_device(arch, configuration.system.accelerator, configuration.config)
        assert configuration.config.ranks <= n and start_commands(configuration)
