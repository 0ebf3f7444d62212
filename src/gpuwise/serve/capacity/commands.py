"""Commands to start what was chosen and to prove what was predicted: an engine's own command line, and load tests.

Flags of an engine are in its file (:mod:`gpuwise.serve.engines`); here ``vllm bench serve`` (vllm 0.33.0 benchmarks/serve.py),
guidellm 0.8.1 (cli/run.py, schemas) and inference-perf (kubernetes-sigs/inference-perf@7de5ef2 docs/config.md).
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gpuwise.serve.capacity.configurations import Configuration, published_format
from gpuwise.serve.engines.engine import DEFAULT_ENGINE, Command, Start, model_name, version_number
from gpuwise.serve.iteration_kernels import half_format
from gpuwise.serve.load.load import Load
from gpuwise.serve.load.requests import Requests
from gpuwise.serve.load.targets import Target, as_option
from gpuwise.serve.load.workloads import Workload

LOCAL = "http://localhost:8000"
PREFILL_PORT, DECODE_PORT = 8100, 8200
"""Ports of prefill and decode replicas."""
CLOSED_ROUNDS, LEAST_CLOSED = 10, 50
"""Requests of a closed load test for each one in flight, and in all."""
SECONDS = 180.0
"""Seconds of load in a test: long enough for a queue to grow."""
_CHECKPOINT = {"int4_wo": "AWQ or GPTQ", "nvfp4": "NVFP4", "mxfp4": "MXFP4", "int8_wo": "8-bit", "fp8": "FP8", "fp8_block": "FP8"}

LENGTH_STEP = 1024
"""Step in tokens of the reported length of a cache shorter than the model's context."""


def start_commands(configuration: Configuration) -> tuple[Command, ...]:
    """Commands that start one replica of ``configuration``, one for each host or part: the options that decide the answer, and
    those that differ from the engine's default."""
    engine, hosts = configuration.config.program, hosts_of(configuration)
    if configuration.apart is not None:
        return _apart(configuration, configuration.apart)
    start, note = _start(configuration), _note(configuration)
    if hosts > 1:
        return engine.on_hosts(start, hosts, note)
    return (Command(engine.name, shlex.join(engine.words(start)), note, engine.file(start)),)


def hosts_of(configuration: Configuration) -> int:
    """Hosts that one replica is spread over."""
    return -(-configuration.config.ranks // max(configuration.system.count, 1))


def _start(configuration: Configuration) -> Start:
    arch, options = configuration.arch, configuration.server.options
    half = half_format(configuration.system.accelerator) == "fp16"
    return Start(model_name(arch), arch, configuration.config, options, _context(configuration), half)


def _apart(configuration: Configuration, apart: tuple[int, int]) -> tuple[Command, ...]:
    """Replicas that read and replicas that write, each on its accelerators, and what sends requests to both."""
    c, count = configuration.config, max(configuration.system.count, 1)
    start, note = _start(configuration), _note(configuration)
    commands: list[Command] = []
    urls: dict[str, list[tuple[str, int]]] = {"prefill": [], "decode": []}
    for i in range(sum(apart)):
        role = "prefill" if i < apart[0] else "decode"
        host, gpus = divmod(i * c.ranks, count)
        port = (PREFILL_PORT if role == "prefill" else DECODE_PORT) + len(urls[role])
        address = "" if sum(apart) * c.ranks <= count else f"HOST{host + 1}"
        urls[role].append((address or "localhost", port))
        variables, words = c.program.part(start, role, i, port, address)
        does = "reads prompts" if role == "prefill" else "writes answers"
        if c.ranks > count:
            n = hosts_of(configuration)
            words += [*c.program.spread_words, "--nnodes", str(n), "--node-rank", "RANK", *c.program.host_words(0)]
            where = f" on {n} hosts, RANK 0 to {n - 1}"
            devices = ""
        else:
            where = f" on {address}" if address else ""
            devices = "CUDA_VISIBLE_DEVICES=" + ",".join(str(gpus + k) for k in range(c.ranks))
        before = " ".join(filter(None, (devices, variables)))
        commands.append(Command(f"{c.engine}, {does}{where}", f"{before} {shlex.join(words)}".strip(), note if not i else ""))
    return (*commands, c.program.router(urls))


def _note(configuration: Configuration) -> str:
    """Remark on what the user must provide or know."""
    length = _context(configuration)
    cut = length < configuration.server.max_model_len
    notes = [_weights_note(configuration), f"the cache holds requests of {length:,} tokens, no longer ones" if cut else ""]
    return "; ".join(n for n in notes if n)


def _context(configuration: Configuration) -> int:
    """Longest request in tokens; of an engine that starts with none longer, what its cache holds, to whole steps of 1,024
    where it holds one."""
    server = configuration.server
    tokens, longest = server.max_model_len, server.longest_request
    if longest >= tokens or not configuration.config.program.within_cache:
        return tokens
    return max(longest // LENGTH_STEP * LENGTH_STEP, min(longest, LENGTH_STEP))


def _weights_note(configuration: Configuration) -> str:
    c, model = configuration.config, model_name(configuration.arch)
    unpacked = c.program.unpacked.get(c.weights)
    if unpacked is not None:
        plugin = version_number(c.version or c.program.newest) >= version_number(unpacked.plugin_since)
        notes = [f"pip install {unpacked.plugin}"] if plugin else []
        notes += [] if c.weights in c.program.quantization else [f"give a GGUF file with {c.weights} weights in place of {model}"]
        return "; ".join(notes)
    if c.program.checkpoint:
        return c.program.checkpoint.format(model=model, weights=c.weights)
    if c.weights in ("bf16", "fp16") or c.weights in c.program.quantization:
        return ""
    if published_format(configuration.arch) == (c.weights, c.expert_weights):
        return ""
    return f"give a checkpoint with {_CHECKPOINT[c.weights]} weights in place of {model}"


def load_tests(configuration: Configuration, load: Load, targets: Sequence[Target], rate_per_s: float) -> tuple[Command, ...]:
    """Load tests of one replica at ``rate_per_s``, each with the lengths, the burstiness and the shared beginnings of the load as
    far as it can express them."""
    model, served = model_name(configuration.arch), configuration.config.program.served_as
    requests = load.at(rate_per_s, 2000)
    ours = _gpuwise(configuration, load, targets, rate_per_s)
    if served:  # the other two take the tokenizer of the name that they ask for
        return ours, _vllm_bench(model, load, requests, targets, rate_per_s, ["--served-model-name", served])
    return (
        ours,
        _vllm_bench(model, load, requests, targets, rate_per_s),
        _guidellm(model, requests, rate_per_s),
        _inference_perf(model, requests, rate_per_s),
    )


def closed_test(configuration: Configuration, load: Load, in_flight: int) -> Command:
    """A load test of one replica with ``in_flight`` requests in flight."""
    served = configuration.config.program.served_as
    named = ["--served-model-name", served] if served else []
    count = max(CLOSED_ROUNDS * in_flight, LEAST_CLOSED)
    return _vllm_bench(model_name(configuration.arch), load, load.at(1.0, 2000), (), None, named, (in_flight, count))


def _gpuwise(configuration: Configuration, load: Load, targets: Sequence[Target], rate_per_s: float) -> Command:
    source = load.source
    asked = ["--workload", source.name] if isinstance(source, Workload) else ["--trace", source.name]
    slo = as_option(targets)
    on = f"{configuration.ranks}x{configuration.system.accelerator.typed}"
    words = ["gpuwise", "capacity", configuration.arch.id, "--on", on]
    words += [*asked, "--slo", slo, "--rate", f"{rate_per_s:.3g}/s", *_options(configuration), "--measure", LOCAL]
    served = configuration.config.program.served_as
    words += ["--served-model", served] if served else []
    return Command("gpuwise", shlex.join(words), "measures and compares with what was predicted")


def _options(configuration: Configuration) -> list[str]:
    """The options that set the same split, engine and extras as the compared configuration."""
    c, s = configuration.config, configuration.settings
    words = ["--engine", c.engine + (f"@{c.version}" if c.version else "")] if c.engine != DEFAULT_ENGINE or c.version else []
    words += ["--tp", str(c.tp)] if c.tp > 1 else []
    words += ["--ep", str(c.moe_ep)] if c.attention_dp > max(configuration.system.count, 1) else []
    words += ["--pp", str(c.pp)] if c.pp > 1 and not c.program.in_turn else []
    words += ["--kv-cache", c.kv_dtype] if c.kv_dtype != "bf16" else []
    if s.drafts is not None:
        by = [s.drafts.drafter] if s.drafts.drafter else []
        words += ["--draft", ":".join([*by, str(s.drafts.tokens), f"{s.drafts.kept:g}"])]
    words += ["--enforce-eager"] if s.eager else []
    words += ["--lora", f"{s.adapters.count}:{s.adapters.rank}:{s.adapters.at_once}"] if s.adapters is not None else []
    return words + (["--disaggregate", "{}:{}".format(*configuration.apart)] if configuration.apart is not None else [])


def _shape(requests: Requests) -> tuple[float, float, float, float]:
    """Mean and standard deviation of prompts and of answers."""
    prompt, output = requests.prompt_tokens, requests.output_tokens
    return float(prompt.mean()), float(prompt.std()), float(output.mean()), float(output.std())


def _vllm_bench(
    model: str,
    load: Load,
    requests: Requests,
    targets: Sequence[Target],
    rate_per_s: float | None,
    named: Sequence[str] = (),
    closed: tuple[int, int] = (0, 0),
) -> Command:
    """At a rate; without one ``closed`` is how many are in flight, and how many are sent."""
    prompt, _, output, _ = _shape(requests)
    shared = load.source.shared_prefix if isinstance(load.source, Workload) else 0
    cv = load.source.gap_cv if isinstance(load.source, Workload) else 1.0
    words = ["--base-url", LOCAL, "--model", model, *named, "--dataset-name", "random"]
    words += ["--random-input-len", f"{prompt - shared:.0f}", "--random-output-len", f"{output:.0f}"]
    words += ["--random-prefix-len", str(shared)] if shared else []
    if rate_per_s is None:
        words += ["--max-concurrency", str(closed[0]), "--num-prompts", str(closed[1])]
    else:
        words += ["--request-rate", f"{rate_per_s:.3g}", "--num-prompts", str(_count(rate_per_s))]
        words += ["--burstiness", f"{1 / cv**2:.3g}"] if cv > 0 and not math.isclose(cv, 1.0, rel_tol=0.02) else []
    percentiles = sorted({50.0, *(t.percentile for t in targets if t.percentile is not None)})
    words += ["--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", ",".join(f"{p:g}" for p in percentiles)]
    names = {"ttft": "ttft", "tpot": "tpot", "e2e": "e2el"}
    goodput = [f"{names[t.metric]}:{t.milliseconds}" for t in targets if t.metric in names]
    words += ["--goodput", *goodput] if goodput else []
    line = f"vllm bench serve {shlex.join([*words, '--ignore-eos'])}"
    return Command("vllm bench", line, "requests of mean length, without the load's long ones")


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
