"""Commands to start what was chosen and to prove what was predicted: an engine's own command line, and load tests.

Flags are those of ``vllm serve`` and ``vllm bench serve`` (vllm 0.33.0 engine/arg_utils.py, benchmarks/serve.py),
``sglang.launch_server`` (sglang 0.5.23 srt/arg_groups/fields), ``trtllm-serve`` (TensorRT-LLM tensorrt_llm/commands/serve.py,
docs/source/features/lora.md), guidellm 0.8.1 (cli/run.py, schemas) and inference-perf (kubernetes-sigs/inference-perf@7de5ef2
docs/config.md). Prompts read apart: vllm docs/features/nixl_connector_usage.md, sglang
docs/advanced_features/pd_disaggregation.md.
"""

from __future__ import annotations

import json
import math
import shlex
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuwise.facts.models.architecture import Architecture
from gpuwise.serve.capacity.configurations import Configuration, published_format
from gpuwise.serve.engine import LLAMA_CPP, version_number
from gpuwise.serve.iteration_kernels import half_format
from gpuwise.serve.load.load import Load
from gpuwise.serve.load.requests import Requests
from gpuwise.serve.load.targets import Target, as_option
from gpuwise.serve.load.workloads import Workload
from gpuwise.serve.simulate.settings import NEWEST

DRAFT = "DRAFT-OF-THE-MODEL"
"""In place of the checkpoint of a draft, which is the model's own."""
LOCAL = "http://localhost:8000"
HEAD = "HEAD"
"""In place of the address of the first of several hosts."""
PORT, PREFILL_PORT, DECODE_PORT = 8000, 8100, 8200
"""Of the server that is asked, and of replicas that read and that write."""
NIXL_PORT, BOOTSTRAP_PORT = 5600, 8998
"""First side channels between them, of vLLM and of SGLang."""
SECONDS = 180.0
"""Of load that a test sends: long enough for a queue to grow."""
TRTLLM_FILE = "trtllm.yml"
_QUANTIZATION = {
    "vllm": {"fp8": "fp8", "int8_wo": "int8_per_channel_weight_only"},
    "sglang": {"fp8": "fp8"},
}
"""Weight formats an engine makes itself while loading (vllm 0.33.0 model_executor/layers/quantization/__init__.py, sglang 0.5.23
srt/arg_groups/choices.py); others come as a checkpoint."""
_CHECKPOINT = {"int4_wo": "AWQ or GPTQ", "nvfp4": "NVFP4", "mxfp4": "MXFP4", "int8_wo": "8-bit", "fp8": "FP8", "fp8_block": "FP8"}

LENGTH_STEP = 1024
"""Tokens that a cache shorter than the model's context is said to hold in whole steps of."""


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


def start_commands(configuration: Configuration) -> tuple[Command, ...]:
    """What is started for one replica as ``configuration`` says, one command on each host or for each part of it: the options
    that decide the answer, and what is not the engine's default."""
    engine, hosts = configuration.config.engine, hosts_of(configuration)
    if configuration.apart is not None:
        return _apart(configuration, configuration.apart)
    words, note = _words(configuration), _note(configuration)
    options = _trtllm_options(configuration) if engine == "trtllm" else ""
    file = (TRTLLM_FILE, options) if options else None
    if hosts == 1:
        return (Command(engine, shlex.join(words), note, file),)
    if engine == "trtllm":
        ranks = ["mpirun", "-n", str(configuration.ranks), "--hostfile", "HOSTS", "trtllm-llmapi-launch"]
        return (Command(engine, shlex.join([*ranks, *words]), "HOSTS names the hosts and their ranks", file),)
    where = f"{HEAD} is the address of the first host" + (f"; {note}" if note else "")
    return tuple(
        Command(f"{engine}, host {i + 1} of {hosts}", shlex.join(words + _host_words(engine, hosts, i)), "" if i else where)
        for i in range(hosts)
    )


def hosts_of(configuration: Configuration) -> int:
    """Hosts that one replica is spread over."""
    return -(-configuration.config.ranks // max(configuration.system.count, 1))


def _words(configuration: Configuration) -> list[str]:
    writers = {"vllm": _vllm, "sglang": _sglang, "trtllm": _trtllm, LLAMA_CPP: _llama_cpp}
    return writers[configuration.config.engine](configuration)


def _host_words(engine: str, hosts: int, host: int) -> list[str]:
    """What the same command has besides on each of several hosts."""
    words = ["--nnodes", str(hosts), "--node-rank", str(host)]
    if engine == "sglang":
        return [*words, "--dist-init-addr", f"{HEAD}:20000"]
    return [*words, "--master-addr", HEAD] + (["--headless"] if host else [])


def _apart(configuration: Configuration, apart: tuple[int, int]) -> tuple[Command, ...]:
    """Replicas that read and replicas that write, each on its accelerators, and what sends requests to both."""
    c, count = configuration.config, max(configuration.system.count, 1)
    note = _note(configuration)
    commands: list[Command] = []
    urls: dict[str, list[tuple[str, int]]] = {"prefill": [], "decode": []}
    for i in range(sum(apart)):
        role = "prefill" if i < apart[0] else "decode"
        host, gpus = divmod(i * c.ranks, count)
        port = (PREFILL_PORT if role == "prefill" else DECODE_PORT) + len(urls[role])
        address = "localhost" if sum(apart) * c.ranks <= count else f"HOST{host + 1}"
        urls[role].append((address, port))
        devices = ",".join(str(gpus + k) for k in range(c.ranks))
        words = _words(configuration)
        if c.engine == "sglang":
            words[words.index("--port") + 1] = str(port)
            words += ["--disaggregation-mode", role, "--disaggregation-transfer-backend", "nixl"]
            words += ["--disaggregation-bootstrap-port", str(BOOTSTRAP_PORT + i)] if role == "prefill" else []
            before = f"CUDA_VISIBLE_DEVICES={devices}"
        else:
            transfer = {"kv_connector": "NixlConnector", "kv_role": "kv_both"}
            words += ["--port", str(port), "--kv-transfer-config", json.dumps(transfer)]
            before = f"CUDA_VISIBLE_DEVICES={devices} VLLM_NIXL_SIDE_CHANNEL_PORT={NIXL_PORT + i}"
            before += "" if address == "localhost" else f" VLLM_NIXL_SIDE_CHANNEL_HOST={address}"
        does = "reads prompts" if role == "prefill" else "writes answers"
        where = "" if address == "localhost" else f" on {address}"
        commands.append(Command(f"{c.engine}, {does}{where}", f"{before} {shlex.join(words)}", note if not i else ""))
    if c.engine == "sglang":
        words = ["python", "-m", "sglang_router.launch_router", "--pd-disaggregation"]
        for i, (host, port) in enumerate(urls["prefill"]):
            words += ["--prefill", f"http://{host}:{port}", str(BOOTSTRAP_PORT + i)]
        for host, port in urls["decode"]:
            words += ["--decode", f"http://{host}:{port}"]
        commands.append(
            Command("router", shlex.join([*words, "--host", "0.0.0.0", "--port", str(PORT)]), "pip install sglang-router")
        )
        return tuple(commands)
    words = ["python", "tests/v1/kv_connector/nixl_integration/toy_proxy_server.py", "--port", str(PORT)]
    for role, name in (("prefill", "prefiller"), ("decode", "decoder")):
        words += [f"--{name}-hosts", *(h for h, _ in urls[role]), f"--{name}-ports", *(str(p) for _, p in urls[role])]
    commands.append(Command("proxy", shlex.join(words), "of vLLM's repository; its replicas need pip install nixl"))
    return tuple(commands)


def _note(configuration: Configuration) -> str:
    """What the person has to give or know besides."""
    length = _model_length(configuration)
    cut = length < (configuration.server.options.max_model_len or configuration.arch.max_seq_len)
    notes = [_weights_note(configuration), f"the cache holds requests of {length:,} tokens, no longer ones" if cut else ""]
    return "; ".join(n for n in notes if n)


def _model_length(configuration: Configuration) -> int:
    """Longest request in tokens; of vLLM, which starts with none longer, what its cache holds (v1/core/kv_cache_utils.py,
    check_enough_kv_cache_memory), to whole steps of 1,024 where it holds one."""
    server = configuration.server
    tokens = server.options.max_model_len or configuration.arch.max_seq_len
    if configuration.config.engine != "vllm":
        return tokens
    size = server.options.block_size or 1
    pool = server.memory.blocks_of(tokens) * size
    if pool >= tokens:
        return tokens
    return max(pool // LENGTH_STEP * LENGTH_STEP, min(pool, LENGTH_STEP))


def _weights_note(configuration: Configuration) -> str:
    c = configuration.config
    if c.engine == LLAMA_CPP:
        return f"a GGUF file of {model_name(configuration.arch)} in {c.weights}"
    if c.weights in ("bf16", "fp16") or c.weights in _QUANTIZATION.get(c.engine, {}):
        return ""
    if published_format(configuration.arch) == (c.weights, c.expert_weights):
        return ""
    return f"give a checkpoint with {_CHECKPOINT[c.weights]} weights in place of {model_name(configuration.arch)}"


def _dtype(configuration: Configuration) -> list[str]:
    """Of GPUs without bf16, in which most checkpoints are."""
    return ["--dtype", "half"] if half_format(configuration.system.accelerator) == "fp16" else []


def _vllm(configuration: Configuration) -> list[str]:
    c, o = configuration.config, configuration.server.options
    words = ["vllm", "serve", model_name(configuration.arch), "--tensor-parallel-size", str(c.tp)]
    if c.pp > 1:
        words += ["--pipeline-parallel-size", str(c.pp)]
    if c.attention_dp > 1:
        words += ["--data-parallel-size", str(c.attention_dp)]
    if c.moe_ep > 1:
        words += ["--enable-expert-parallel"]
    if c.weights in _QUANTIZATION["vllm"]:
        words += ["--quantization", _QUANTIZATION["vllm"][c.weights]]
    words += _dtype(configuration)
    if c.kv_dtype != "bf16":
        words += ["--kv-cache-dtype", c.kv_dtype]
    words += ["--max-model-len", str(_model_length(configuration))]
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
    words += _dtype(configuration)
    if c.kv_dtype != "bf16":
        words += ["--kv-cache-dtype", "fp8_e5m2" if c.kv_dtype == "fp8" else c.kv_dtype]
    words += ["--context-length", str(o.max_model_len or configuration.arch.max_seq_len)]
    assert o.max_num_batched_tokens is not None
    words += ["--chunked-prefill-size", str(o.max_num_batched_tokens * c.attention_dp if o.chunked_prefill else -1)]
    words += ["--max-running-requests", str(o.max_num_seqs), "--mem-fraction-static", f"{o.memory_share:g}", "--port", "8000"]
    words += [] if o.prefix_caching else ["--disable-radix-cache"]
    if o.drafts is not None:
        k = o.drafts.tokens
        words += ["--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", DRAFT, "--speculative-num-steps", str(k)]
        words += ["--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", str(k + 1)]
    if o.adapters is not None:
        a = o.adapters
        words += ["--enable-lora", "--lora-target-modules", "all", "--max-lora-rank", str(a.rank)]
        words += ["--max-loras-per-batch", str(a.at_once), "--max-loaded-loras", str(a.count)]
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
    if o.adapters is not None:
        a, dense = o.adapters, configuration.arch.moe is None
        modules = ["attn_q", "attn_k", "attn_v", "attn_dense"] + (["mlp_h_to_4h", "mlp_gate", "mlp_4h_to_h"] if dense else [])
        lines += ["lora_config:", f"  lora_target_modules: [{', '.join(modules)}]", f"  max_lora_rank: {a.rank}"]
        lines += [f"  max_loras: {a.at_once}", f"  max_cpu_loras: {a.count}"]
    return "".join(f"{line}\n" for line in lines)


def load_tests(configuration: Configuration, load: Load, targets: Sequence[Target], rate_per_s: float) -> tuple[Command, ...]:
    """Load tests of one replica at ``rate_per_s``, each with the lengths, the burstiness and the shared beginnings of the load as
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
    slo = as_option(targets)
    on = f"{configuration.ranks}x{configuration.system.accelerator.typed}"
    words = ["gpuwise", "capacity", configuration.arch.id, "--on", on]
    words += [*asked, "--slo", slo, "--rate", f"{rate_per_s:.3g}/s", *_options(configuration), "--measure", LOCAL]
    return Command("gpuwise", shlex.join(words), "measures and compares with what was predicted")


def _options(configuration: Configuration) -> list[str]:
    """The options that make the same split, engine and extras the one that is compared with."""
    c, s = configuration.config, configuration.settings
    words = ["--engine", c.engine + (f"@{c.version}" if c.version else "")] if c.engine != "vllm" or c.version else []
    words += ["--tp", str(c.tp)] if c.tp > 1 else []
    words += ["--pp", str(c.pp)] if c.pp > 1 and c.engine != LLAMA_CPP else []
    words += ["--kv-cache", c.kv_dtype] if c.kv_dtype != "bf16" else []
    words += ["--draft", f"{s.drafts.tokens}:{s.drafts.kept:g}"] if s.drafts is not None else []
    words += ["--lora", f"{s.adapters.count}:{s.adapters.rank}:{s.adapters.at_once}"] if s.adapters is not None else []
    return words + (["--disaggregate", "{}:{}".format(*configuration.apart)] if configuration.apart is not None else [])


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
    goodput = [f"{names[t.metric]}:{t.milliseconds}" for t in targets if t.metric in names]
    words += ["--goodput", *goodput] if goodput else []
    return Command(
        "vllm bench", shlex.join([*words, "--ignore-eos"]), "requests of mean length: the load's long ones are left out"
    )


def _guidellm(model: str, requests: Requests, rate_per_s: float) -> Command:
    prompt, spread, output, out_spread = _shape(requests)
    figures = {
        "prompt_tokens": round(prompt),
        "prompt_tokens_stdev": round(spread),
        "prompt_tokens_min": max(int(requests.prompt_tokens.min()), 1),
        "prompt_tokens_max": int(requests.prompt_tokens.max()),
        "output_tokens": round(output),
        "output_tokens_stdev": round(out_spread),
        "output_tokens_min": max(int(requests.output_tokens.min()), 1),
        "output_tokens_max": int(requests.output_tokens.max()),
    }
    data = json.dumps({"kind": "synthetic_text"} | {k: v for k, v in figures.items() if v})
    words = ["guidellm", "run", "--backend", json.dumps({"kind": "openai_http", "target": LOCAL, "model": model})]
    words += ["--profile", f"kind=poisson,rate={rate_per_s:.3g}", "--constraint", f"kind=max_duration,seconds={SECONDS:.0f}"]
    return Command("guidellm", shlex.join([*words, "--data", data]))


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


def shell_lines(line: str, width: int) -> list[str]:
    """``line`` as a shell reads it over several lines of ``width``: broken between words, and in JSON, where blanks say nothing,
    after its commas."""
    lines, now = list[str](), ""
    for word in (shlex.quote(w) for w in shlex.split(line)):
        if now and len(now) + len(word) + 3 > width:
            lines.append(now + " \\")
            now = "  "
        elif now:
            now += " "
        if word.startswith("'{"):
            *before, word = textwrap.wrap(word, width - 4, break_long_words=False, break_on_hyphens=False)
            lines += [(now if k == 0 else "    ") + part for k, part in enumerate(before)]
            now = "    " if before else now
        now += word
    return [*lines, now]
