"""Commands that start a model on your own device, by program: llama.cpp and programs that run its files, MLX LM, vLLM."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpuwise.errors import GpuwiseError
from gpuwise.predict.estimate import Estimate
from gpuwise.serve.engines.engine import (
    DEFAULT_ENGINE,
    ENGINES,
    LOCAL_ENGINE,
    Engine,
    EngineConfig,
    Start,
    engine_runs,
    model_name,
)
from gpuwise.serve.engines.settings import Settings
from gpuwise.serve.iteration_kernels import half_format
from gpuwise.serve.local_run import LocalRun
from gpuwise.serve.replica import NoReplica, serve
from gpuwise.serve.splits import check_device

BOTH_BITS = 6.0
"""Bits a weight from which on a program with 4 and 8 bits alone is started with 8."""


@dataclass(frozen=True, slots=True)
class LocalCommand:
    """A program, the words of its command and a file that it reads, as (name, text)."""

    name: str
    words: tuple[str, ...]
    file: tuple[str, str] | None = None
    weights: str = ""
    """Format that it runs, where that is not the answer's."""
    tokens_per_s: Estimate | None = None
    """Of one conversation, where it is not the answer's and is predicted."""


def commands(run: LocalRun) -> Iterator[LocalCommand]:
    """The commands, llama.cpp's first; none where nothing fits, not even with a part in RAM."""
    held, offload = run.chosen, run.offload
    weights = held.weights if held is not None else offload.weights if offload is not None else None
    if weights is None:
        return
    engine = ENGINES[LOCAL_ENGINE]
    words = _words(run, engine, weights)
    layers = 0 if run.machine.cluster is None else None if offload is None else offload.device_layers
    if layers is not None:
        words[words.index("--n-gpu-layers") + 1] = str(layers)
    if offload is not None and offload.host_expert_layers:
        words += ["--n-cpu-moe", str(offload.host_expert_layers)]
    yield LocalCommand(engine.title, tuple(words))
    yield from _of_the_same_file(run, words[words.index("--model") + 1], weights, layers)
    if held is not None and run.machine.cluster is not None and run.arch.stored_bytes is None:
        yield from _of_other_engines(run, held.bits)


def _words(run: LocalRun, engine: Engine, weights: str) -> list[str]:
    """The command of a program for one conversation at a time, the devices in turn."""
    tokens = engine.rules.tiers[0].tokens if engine.rules is not None else engine.prompt_batch
    options = Settings(max_num_batched_tokens=tokens, max_num_seqs=1, prefix_caching=True)
    config = EngineConfig(engine.name, weights, pp=run.machine.n_devices)
    return engine.words(Start(run.arch.id, run.arch, config, options, run.context))


def _of_the_same_file(run: LocalRun, file: str, weights: str, layers: int | None) -> Iterator[LocalCommand]:
    """Ollama and LM Studio run llama.cpp's files (docs.ollama.com/modelfile; lmstudio.ai/docs/cli/load)."""
    name = f"{run.arch.id}-{weights}".lower()
    # an experts' place is chosen by neither: whole layers are, so that they leave more to the processor
    experts = run.offload is not None and run.offload.host_expert_layers
    lines = [f"FROM ./{file}" if "/" not in file else f"FROM {file}", f"PARAMETER num_ctx {run.context}"]
    lines += [f"PARAMETER num_gpu {layers}"] if layers is not None and not experts else []
    yield LocalCommand(
        f"Ollama, then `ollama run {name}`", ("ollama", "create", name, "-f", "Modelfile"), ("Modelfile", "\n".join(lines))
    )
    share = "max" if layers is None else "off" if not layers else f"{layers / run.arch.n_layers:.2f}"
    words = ("lms", "load", name, "--gpu", share, "--context-length", str(run.context))
    yield LocalCommand(f"LM Studio, after `lms import {file}`", words if not experts else words[:3] + words[5:])


def _of_other_engines(run: LocalRun, bits: float) -> Iterator[LocalCommand]:
    cluster = run.machine.cluster
    assert cluster is not None
    for engine in ENGINES.values():
        if engine.name == LOCAL_ENGINE or not engine_runs(cluster.accelerator, engine.name):
            continue
        if engine.streams:
            if cluster.n_accelerators > engine.in_turn:
                continue
            form = engine.by_bits[8 if bits > BOTH_BITS else 4]
            rate = _rate(run, engine, form)
            yield LocalCommand(engine.title, tuple(_words(run, engine, form)), None, form, rate)
        elif engine.name == DEFAULT_ENGINE and run.arch.published_experts is None:
            found = _serving(run, engine.name)
            if found is not None:
                made = found.config.weights in (engine.by_bits[16], *engine.quantization)
                own = "" if made else f", of a checkpoint in {found.config.weights} (AWQ, GPTQ)"
                rate = _rate(run, engine, found.config.weights)
                yield LocalCommand(engine.title + own, tuple(engine.words(found)), None, found.config.weights, rate)


def _rate(run: LocalRun, engine: Engine, weights: str) -> Estimate | None:
    """Tokens a second of one conversation under ``engine``; None where that is not predicted."""
    cluster = run.machine.cluster
    assert cluster is not None
    served = serve(run.arch, cluster.system, (weights,), (cluster.n_accelerators,), sequences=1, context=run.context)
    if isinstance(served, NoReplica) or served.replica.program != engine.title:
        return None
    return served.tokens_per_s(1)


def _serving(run: LocalRun, name: str) -> Start | None:
    """The widest weights with which the engine has a cache of one context; None where none has."""
    from gpuwise.serve.engines.releases import engine_rules, resolved
    from gpuwise.serve.simulate.pool_memory import pool_memory

    cluster, engine = run.machine.cluster, ENGINES[name]
    assert cluster is not None
    for weights in engine.by_bits.values():
        try:
            config = EngineConfig(name, weights, tp=cluster.n_accelerators, moe_tp=cluster.n_accelerators if run.arch.moe else 1)
            check_device(run.arch, cluster.accelerator, config)
            options = resolved(Settings(max_model_len=run.context), config, cluster.accelerator)
            memory = pool_memory(run.arch, cluster.accelerator, config, options, engine_rules(config))
        except GpuwiseError:
            continue
        if memory.tokens >= run.context:
            return Start(model_name(run.arch), run.arch, config, options, run.context, half_format(cluster.accelerator) == "fp16")
    return None
