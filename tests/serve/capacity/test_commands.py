"""Each engine's own command line, by the flags of its own source."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.catalogue import find_model
from gpuwise.serve.capacity.commands import start_command
from gpuwise.serve.capacity.configurations import Configuration
from gpuwise.serve.engine import EngineConfig
from gpuwise.serve.simulate import Settings

DENSE = Configuration(
    find_model("llama-3.1-8b"), find_cluster("1xH100-SXM5-80GB").system, EngineConfig("vllm"), Settings(max_model_len=8192)
)
EXPERTS = Configuration(
    find_model("deepseek-v3"),
    find_cluster("8xH200-SXM").system,
    EngineConfig("sglang", "fp8_block", attention_dp=8, moe_ep=8),
    Settings(max_model_len=8192),
)


def line(configuration, **changed):
    return start_command(replace(configuration, config=replace(configuration.config, **changed)))


def test_sglang_by_its_own_flags():
    text = line(DENSE, engine="sglang").line
    assert text.startswith("python -m sglang.launch_server --model-path meta-llama/Llama-3.1-8B --tp-size 1")
    for flag in (
        "--context-length 8192",
        "--chunked-prefill-size 8192",
        "--max-running-requests 4096",
        "--mem-fraction-static 0.8",
    ):
        assert flag in text


@pytest.mark.parametrize(
    ("version", "flags"),
    [(None, "--tp-size 8 --attn-dp-size 8 --ep-size 8"), ("0.5.9", "--tp-size 8 --dp-size 8 --enable-dp-attention --ep-size 8")],
)
def test_sglang_attends_in_groups_by_the_flag_of_its_version(version, flags):
    assert flags in line(EXPERTS, version=version).line


def test_tensorrt_llm_takes_the_rest_from_a_file():
    plain = line(DENSE, engine="trtllm")
    assert plain.line.startswith("trtllm-serve meta-llama/Llama-3.1-8B --tp_size 1 --max_seq_len 8192 --max_num_tokens 8192")
    assert "--kv_cache_free_gpu_memory_fraction 0.9" in plain.line
    assert plain.file is None
    changed = replace(DENSE, settings=Settings(max_model_len=8192, scheduler="max_utilisation", chunked_prefill=True))
    command = line(changed, engine="trtllm", kv_dtype="fp8")
    assert "--enable_chunked_prefill --config trtllm.yml" in command.line
    assert command.file is not None
    assert command.file[1] == (
        "kv_cache_config:\n  free_gpu_memory_fraction: 0.9\n  dtype: fp8\n"
        "scheduler_config:\n  capacity_scheduler_policy: MAX_UTILIZATION\n"
    )
    assert "enable_attention_dp: true" in (line(EXPERTS, engine="trtllm").file or ("", ""))[1]


def test_the_first_engine_of_vllm_reads_whole_prompts_without_a_cache():
    text = line(DENSE, version="0.6.6").line
    assert "--no-enable-chunked-prefill" in text
    assert "--max-num-batched-tokens 8192 --max-num-seqs 256" in text
