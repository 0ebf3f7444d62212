"""Commands to start what was chosen and to prove what was predicted: an engine's own command line, and load tests.

Flags are those of ``vllm serve`` and ``vllm bench serve`` (docs.vllm.ai), ``sglang.launch_server`` (sglang 0.5.23,
srt/arg_groups/fields), ``trtllm-serve`` (TensorRT-LLM tensorrt_llm/commands/serve.py), guidellm
(github.com/vllm-project/guidellm) and inference-perf (github.com/kubernetes-sigs/inference-perf, docs/config.md).
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuwise.facts.models.architecture import Architecture
from gpuwise.serve.capacity.configurations import Configuration
from gpuwise.serve.engine import LLAMA_CPP, version_number
from gpuwise.serve.load.load import Load
from gpuwise.serve.load.requests import Requests
from gpuwise.serve.load.targets import Target
from gpuwise.serve.load.workloads import Workload
from gpuwise.serve.simulate.settings import NEWEST
from gpuwise.units import MILLI

DRAFT = "DRAFT-OF-THE-MODEL"
"""In place of the checkpoint of a draft, which is the model's own."""
LOCAL = "http://localhost:8000"
SECONDS = 180.0
"""Of load that a test sends: long enough for a queue to grow."""
TRTLLM_FILE = "trtllm.yml"
_QUANTIZATION = {
    "vllm": {"fp8": "fp8", "int8_wo": "bitsandbytes"},
    "sglang": {"fp8": "fp8", "int4_wo": "int4wo"},
}
"""Weight formats an engine makes itself while loading; others come as a checkpoint."""
_CHECKPOINT = {"int4_wo": "AWQ or GPTQ", "nvfp4": "NVFP4", "mxfp4": "MXFP4", "int8_wo": "8-bit", "fp8": "FP8", "fp8_block": "FP8"}


@dataclass(frozen=True, slots=True)
class Command:
    """A command line with what one has to know of it; ``file`` is a configuration it reads, as (name, text)."""

    name: str
    line: str
    note: str = ""
    file: tuple[str, str] | None = None


def model_name(arch: Architecture) -> str:
    """The repository of the checkpoint, the id where none is known."""
    return next((name for name in arch.aliases if "/" in name), arch.id)


def start_command(configuration: Configuration) -> Command:
    """The engine started as ``configuration`` says: the options that decide the answer, and what is not the engine's default."""
    writers = {"vllm": _vllm, "sglang": _sglang, "trtllm": _trtllm, LLAMA_CPP: _llama_cpp}
    words = writers[configuration.config.engine](configuration)
    options = _trtllm_options(configuration) if configuration.config.engine == "trtllm" else ""
    file = (TRTLLM_FILE, options) if options else None
    return Command(configuration.config.engine, shlex.join(words), _weights_note(configuration), file)


def _weights_note(configuration: Configuration) -> str:
    c = configuration.config
    if c.engine == LLAMA_CPP:
        return f"a GGUF file of {model_name(configuration.arch)} in {c.weights}"
    if c.weights in ("bf16", "fp16") or c.weights in _QUANTIZATION.get(c.engine, {}):
        return ""
    return f"give a checkpoint with {_CHECKPOINT[c.weights]} weights in place of {model_name(configuration.arch)}"


def _vllm(configuration: Configuration) -> list[str]:
    c, o = configuration.config, configuration.server.options
    words = ["vllm", "serve", model_name(configuration.arch), "--tensor-parallel-size", str(c.tp)]
    if c.attention_dp > 1:
        words += ["--data-parallel-size", str(c.attention_dp)]
    if c.moe_ep > 1:
        words += ["--enable-expert-parallel"]
    if c.weights in _QUANTIZATION["vllm"]:
        words += ["--quantization", _QUANTIZATION["vllm"][c.weights]]
    if c.kv_dtype != "bf16":
        words += ["--kv-cache-dtype", c.kv_dtype]
    words += ["--max-model-len", str(o.max_model_len or configuration.arch.max_seq_len)]
    words += ["--max-num-batched-tokens", str(o.max_num_batched_tokens), "--max-num-seqs", str(o.max_num_seqs)]
    words += ["--gpu-memory-utilization", f"{o.memory_share:g}"]
    words += [] if o.chunked_prefill else ["--no-enable-chunked-prefill"]
    words += [] if o.prefix_caching else ["--no-enable-prefix-caching"]
    if o.drafts is not None:
        guesses = {"method": "eagle3", "model": DRAFT, "num_speculative_tokens": o.drafts.tokens}
        words += ["--speculative-config", json.dumps(guesses)]
    if o.adapters is not None:
        a = o.adapters
        words += ["--enable-lora", "--max-loras", str(a.at_once), "--max-cpu-loras", str(a.count), "--max-lora-rank", str(a.rank)]
    return words


def _sglang(configuration: Configuration) -> list[str]:
    """The tensor group holds the groups that attend apart; before 0.5.23 they were asked for otherwise (server_args.py)."""
    c, o = configuration.config, configuration.server.options
    words = ["python", "-m", "sglang.launch_server", "--model-path", model_name(configuration.arch), "--tp-size", str(c.ranks)]
    if c.attention_dp > 1:
        old = version_number(c.version or NEWEST["sglang"]) < (0, 5, 23)
        words += ["--dp-size", str(c.attention_dp), "--enable-dp-attention"] if old else ["--attn-dp-size", str(c.attention_dp)]
    if c.moe_ep > 1:
        words += ["--ep-size", str(c.moe_ep)]
    if c.weights in _QUANTIZATION["sglang"]:
        words += ["--quantization", _QUANTIZATION["sglang"][c.weights]]
    if c.kv_dtype != "bf16":
        words += ["--kv-cache-dtype", "fp8_e5m2" if c.kv_dtype == "fp8" else c.kv_dtype]
    words += ["--context-length", str(o.max_model_len or configuration.arch.max_seq_len)]
    words += ["--chunked-prefill-size", str(o.max_num_batched_tokens if o.chunked_prefill else -1)]
    words += ["--max-running-requests", str(o.max_num_seqs), "--mem-fraction-static", f"{o.memory_share:g}", "--port", "8000"]
    words += [] if o.prefix_caching else ["--disable-radix-cache"]
    if o.drafts is not None:
        k = o.drafts.tokens
        words += ["--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", DRAFT, "--speculative-num-steps", str(k)]
        words += ["--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", str(k + 1)]
    return words


def _trtllm(configuration: Configuration) -> list[str]:
    c, o = configuration.config, configuration.server.options
    words = ["trtllm-serve", model_name(configuration.arch), "--tp_size", str(c.ranks)]
    if c.moe_ep > 1:
        words += ["--ep_size", str(c.moe_ep)]
    words += ["--max_seq_len", str(o.max_model_len or configuration.arch.max_seq_len)]
    words += ["--max_num_tokens", str(o.max_num_batched_tokens), "--max_batch_size", str(o.max_num_seqs)]
    words += ["--kv_cache_free_gpu_memory_fraction", f"{o.memory_share:g}", "--port", "8000"]
    words += ["--enable_chunked_prefill"] if o.chunked_prefill else []
    return [*words, "--config", TRTLLM_FILE] if _trtllm_options(configuration) else words


def _llama_cpp(configuration: Configuration) -> list[str]:
    """All slots share ``--ctx-size`` (llama.cpp tools/server/README.md)."""
    c, o = configuration.config, configuration.server.options
    slots = o.max_num_seqs or 1
    context = slots * (o.max_model_len or configuration.arch.max_seq_len)
    words = ["llama-server", "--model", f"{configuration.arch.id}-{c.weights}.gguf", "--n-gpu-layers", "999"]
    words += ["--parallel", str(slots), "--ctx-size", str(context), "--batch-size", str(o.max_num_batched_tokens)]
    words += ["--port", "8000"] + ([] if o.prefix_caching else ["--no-cache-prompt"])
    return words + (["--split-mode", "layer"] if c.pp > 1 else [])


def _trtllm_options(configuration: Configuration) -> str:
    """What ``trtllm-serve`` takes from a file alone (tensorrt_llm/llmapi/llm_args.py); empty where all is as usual."""
    c, o = configuration.config, configuration.server.options
    cache = ["  dtype: fp8"] if c.kv_dtype == "fp8" else []
    cache += [] if o.prefix_caching else ["  enable_block_reuse: false"]
    lines = ["enable_attention_dp: true"] if c.attention_dp > 1 else []
    if cache:  # the file's group stands in place of the flag's
        lines += ["kv_cache_config:", f"  free_gpu_memory_fraction: {o.memory_share:g}", *cache]
    if o.scheduler == "max_utilisation":
        lines += ["scheduler_config:", "  capacity_scheduler_policy: MAX_UTILIZATION"]
    if o.drafts is not None:
        lines += ["speculative_config:", "  decoding_type: Eagle3", f"  max_draft_len: {o.drafts.tokens}"]
        lines += [f"  speculative_model: {DRAFT}"]
    return "".join(f"{line}\n" for line in lines)


def load_tests(configuration: Configuration, load: Load, targets: Sequence[Target], rate_per_s: float) -> tuple[Command, ...]:
    """Load tests of one copy at ``rate_per_s``, each with the lengths, the burstiness and the shared beginnings of the load as
    far as it can express them."""
    model = model_name(configuration.arch)
    requests = load.at(rate_per_s, 2000)
    return (
        _gpuwise(configuration, load, targets, rate_per_s),
        _vllm_bench(model, load, requests, targets, rate_per_s),
        _guidellm(model, requests, rate_per_s),
        _inference_perf(model, requests, rate_per_s),
    )


def _gpuwise(configuration: Configuration, load: Load, targets: Sequence[Target], rate_per_s: float) -> Command:
    source = load.source
    asked = ["--workload", source.name] if isinstance(source, Workload) else ["--trace", source.name]
    slo = ",".join(f"{t.key}={t.limit_s / MILLI:g}ms" for t in targets)
    words = ["gpuwise", "capacity", configuration.arch.id, "--on", f"{configuration.ranks}x{configuration.system.accelerator.id}"]
    words += [*asked, "--slo", slo, "--rate", f"{rate_per_s:.3g}/s", "--measure", LOCAL]
    return Command("gpuwise", shlex.join(words), "measures and compares with what was predicted")


def _shape(requests: Requests) -> tuple[float, float, float, float]:
    """Mean and standard deviation of prompts and of answers."""
    prompt, output = requests.prompt_tokens, requests.output_tokens
    return float(prompt.mean()), float(prompt.std()), float(output.mean()), float(output.std())


def _vllm_bench(model: str, load: Load, requests: Requests, targets: Sequence[Target], rate_per_s: float) -> Command:
    prompt, _, output, _ = _shape(requests)
    shared = load.source.shared_prefix if isinstance(load.source, Workload) else 0
    cv = load.source.gap_cv if isinstance(load.source, Workload) else 1.0
    words = ["vllm", "bench", "serve", "--base-url", LOCAL, "--model", model, "--dataset-name", "random"]
    words += ["--random-input-len", f"{prompt - shared:.0f}", "--random-output-len", f"{output:.0f}"]
    words += ["--random-prefix-len", str(shared)] if shared else []
    words += ["--request-rate", f"{rate_per_s:.3g}", "--num-prompts", str(_count(rate_per_s))]
    words += ["--burstiness", f"{1 / cv**2:.3g}"] if cv > 0 and not math.isclose(cv, 1.0, rel_tol=0.02) else []
    percentiles = sorted({50.0, *(t.percentile for t in targets if t.percentile is not None)})
    words += ["--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", ",".join(f"{p:g}" for p in percentiles)]
    names = {"ttft": "ttft", "tpot": "tpot", "e2e": "e2el"}
    goodput = [f"{names[t.metric]}:{t.limit_s / MILLI:g}" for t in targets if t.metric in names]
    words += ["--goodput", *goodput] if goodput else []
    return Command("vllm bench", shlex.join([*words, "--ignore-eos"]), "mean lengths: none of the load's long requests are in it")


def _guidellm(model: str, requests: Requests, rate_per_s: float) -> Command:
    prompt, spread, output, out_spread = _shape(requests)
    data = {
        "prompt_tokens": round(prompt),
        "prompt_tokens_stdev": round(spread),
        "prompt_tokens_min": max(int(requests.prompt_tokens.min()), 1),
        "prompt_tokens_max": int(requests.prompt_tokens.max()),
        "output_tokens": round(output),
        "output_tokens_stdev": round(out_spread),
        "output_tokens_min": max(int(requests.output_tokens.min()), 1),
        "output_tokens_max": int(requests.output_tokens.max()),
    }
    words = ["guidellm", "benchmark", "--target", LOCAL, "--model", model, "--profile", "poisson", "--rate", f"{rate_per_s:.3g}"]
    return Command("guidellm", shlex.join([*words, "--max-seconds", f"{SECONDS:.0f}", "--data", json.dumps(data)]))


def _inference_perf(model: str, requests: Requests, rate_per_s: float) -> Command:
    def lengths(name: str, tokens: NDArray[np.int64]) -> list[str]:
        figures = {"min": max(int(tokens.min()), 1), "max": int(tokens.max()), "mean": round(float(tokens.mean()))}
        figures |= {"std_dev": round(float(tokens.std())), "total_count": _count(rate_per_s)}
        return [f"  {name}:", *(f"    {key}: {value}" for key, value in figures.items())]

    lines = ["load:", "  type: poisson", "  stages:", f"  - rate: {rate_per_s:.3g}", f"    duration: {SECONDS:.0f}"]
    lines += ["api:", "  type: completion", "  streaming: true", "server:", "  type: vllm", f"  model_name: {model}"]
    lines += [f"  base_url: {LOCAL}", "  ignore_eos: true", "data:", "  type: random"]
    lines += lengths("input_distribution", requests.prompt_tokens) + lengths("output_distribution", requests.output_tokens)
    text = "\n".join([*lines, ""])
    return Command("inference-perf", "inference-perf --config_file load.yml", file=("load.yml", text))


def _count(rate_per_s: float) -> int:
    """Requests of a test."""
    return max(round(rate_per_s * SECONDS), 50)
