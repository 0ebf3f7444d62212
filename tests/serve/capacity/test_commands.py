"""Each engine's own command line, by the flags of its own source."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.catalogue import find_model
from gpuwise.serve.capacity.commands import start_commands
from gpuwise.serve.capacity.configurations import Configuration, Requirements, layouts
from gpuwise.serve.engines.engine import EngineConfig
from gpuwise.serve.engines.settings import Adapters, Settings

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
    return start_commands(replace(configuration, config=replace(configuration.config, **changed)))[0]


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


def test_stages_over_two_hosts_are_started_on_each():
    system = find_cluster("16xH100-SXM5-80GB").system
    two = Configuration(find_model("llama-3.1-405b"), system, EngineConfig("vllm", tp=8, pp=2), Settings(max_model_len=8192))
    first, second = start_commands(two)
    for command in (first, second):
        assert "--tensor-parallel-size 8 --pipeline-parallel-size 2" in command.line
        assert "--nnodes 2" in command.line and "--master-addr HEAD" in command.line
    assert "--node-rank 0" in first.line and "--headless" not in first.line
    assert "--node-rank 1" in second.line and "--headless" in second.line


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_prompts_read_apart_have_a_command_each_and_one_that_is_asked(engine):
    apart = replace(DENSE, config=EngineConfig(engine, tp=2), apart=(2, 1))
    *copies, router = start_commands(apart)
    assert [c.line.split()[0] for c in copies] == [
        "CUDA_VISIBLE_DEVICES=0,1",
        "CUDA_VISIBLE_DEVICES=2,3",
        "CUDA_VISIBLE_DEVICES=4,5",
    ]
    assert len({w for c in copies for w in c.line.split("--port ")[1].split()[:1]}) == 3
    if engine == "vllm":
        assert all("NixlConnector" in c.line for c in copies)
        assert "--prefiller-ports 8100 8101" in router.line and "--decoder-ports 8200" in router.line
    else:
        modes = [c.line.split("--disaggregation-mode ")[1].split()[0] for c in copies]
        assert modes == ["prefill", "prefill", "decode"]
        assert "--prefill http://localhost:8100 8998 --prefill http://localhost:8101 8999" in router.line
    assert "--port 8000" in router.line


def test_adapters_by_each_engines_own_flags():
    wanted = replace(DENSE, settings=Settings(max_model_len=8192, adapters=Adapters(50, 32, 8)))
    assert "--enable-lora --max-loras 8 --max-cpu-loras 50 --max-lora-rank 32" in line(wanted).line
    flags = "--enable-lora --lora-target-modules all --max-lora-rank 32 --max-loras-per-batch 8 --max-loaded-loras 50"
    assert flags in line(wanted, engine="sglang").line
    file = line(wanted, engine="trtllm").file
    assert file is not None
    assert "lora_config:" in file[1] and "max_lora_rank: 32\n  max_loras: 8\n  max_cpu_loras: 50" in file[1]


def test_vllm_is_not_asked_for_a_longer_context_than_its_cache_holds():
    """It would not start; a cache whose layers mostly have windows holds more than it logs."""
    small = replace(DENSE, system=find_cluster("rtx-4090").system, settings=Settings())
    tokens = small.server.memory.tokens
    assert tokens < small.arch.max_seq_len
    asked = int(line(small).line.partition("--max-model-len ")[2].split()[0])
    assert tokens - 1024 < asked <= tokens
    assert f"{asked:,} tokens" in line(small).note
    windowed = replace(small, arch=find_model("gemma-3-27b"), system=find_cluster("h100-sxm").system)
    assert windowed.server.memory.tokens < windowed.arch.max_seq_len
    assert "--max-model-len 131072" in line(windowed).line


def test_llama_cpp_serves_a_model_published_in_mxfp4_as_it_is():
    """Nobody writes files of gpt-oss in wider formats; other models come in those that were asked for."""
    system = find_cluster("rtx-5090").system
    for model, bits, formats in (
        ("gpt-oss-20b", (16, 8), {"MXFP4"}),
        ("gpt-oss-20b", (4,), {"MXFP4"}),
        ("llama-3.1-8b", (16, 8), {"F16", "Q8_0"}),
    ):
        found = layouts(find_model(model), system, 1, Requirements(engine="llama.cpp", bits=bits, context=4096))
        assert {c.config.weights for c in found} == formats


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_gpus_without_bf16_are_asked_for_half(engine):
    assert "--dtype" not in line(DENSE, engine=engine).line
    assert " --dtype half " in line(replace(DENSE, system=find_cluster("1xv100-sxm2-32gb").system), engine=engine).line
