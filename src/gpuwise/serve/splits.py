"""Which splits of a model an engine starts with: the engines' own rules, written once.

Tensor parallel degree ``t`` (vllm 0.19 config/model.py verify_with_parallel_config, layers/linear.py QKVParallelLinear,
layers/vocab_parallel_embedding.py; sglang 0.5 layers/linear.py and layers/vocab_parallel_embedding.py; TensorRT-LLM
models/convert_utils.py duplicate_kv_weight):

- attention heads divide by ``t``
- key-value heads divide by ``t``, or ``t`` by them: each rank then has a copy (not of latent attention, which has one for all)
- each rank has the same width of the MLP, in whole groups of weights that share a scale, and of blocks also of keys and values
  (layers/quantization/utils/fp8_utils.py, validate_fp8_block_shape)
- rows of the embedding, padded to a multiple of 64, divide by ``t`` (TensorRT-LLM pads as it needs)
- ``t`` is no more than the experts (vllm and sglang models/mixtral.py, qwen2_moe.py, deepseek_v2.py)

llama.cpp has layers on its devices in turn, in any number. What the device itself refuses is in :func:`check_device`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gpuwise.errors import InputError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.models.architecture import Architecture
from gpuwise.serve.engines.engine import LOCAL_ENGINE, EngineConfig, check_formats, version_number
from gpuwise.serve.formats import BNB
from gpuwise.serve.iteration_kernels import half_format
from gpuwise.workload.blocks.kinds import attention_of, attention_sizes, block_counts

GROUPS = {"fp8_block": 128, "int4_wo": 128, "nvfp4": 16}
"""Inputs of a product that share a scale (vllm layers/quantization/fp8.py, awq.py, gptq_marlin.py, modelopt.py). MXFP4 is padded
(serve/memory.py)."""
EXPERT_GROUPS = GROUPS | {"int4_wo": 32}
"""For experts: groups of 4-bit weights are halved down to 32 (vllm layers/quantization/moe_wna16.py)."""
PADDED_FFN = {29568: 29696}
"""Qwen2-72B and Qwen2.5-72B in 4 bits are published with a wider MLP, so that groups divide (qwen.readthedocs.io,
quantization/gptq)."""
SHOWN_DEGREES = 16
"""Up to which a hint names degrees that work."""


def why_refused(arch: Architecture, config: EngineConfig) -> str:
    """Why the engine does not start ``arch`` split so; empty where it does."""
    return _stages_refused(arch, config) or _tensor_refused(arch, config)


def tensor_degrees(arch: Architecture, config: EngineConfig, most: int) -> tuple[int, ...]:
    """Tensor parallel degrees up to ``most`` with which the engine starts ``arch``, stored as in ``config``."""
    return tuple(t for t in range(1, most + 1) if not _tensor_refused(arch, in_tensor_group(arch, config, t)))


def in_tensor_group(arch: Architecture, config: EngineConfig, degree: int) -> EngineConfig:
    """``config`` with a tensor group of ``degree`` ranks, experts inside, like the rest."""
    return replace(config, tp=degree, attention_dp=1, moe_tp=degree if arch.moe is not None else 1, moe_ep=1)


def check_split(arch: Architecture, config: EngineConfig, most: int = SHOWN_DEGREES) -> None:
    """Raises InputError for a split the engine does not start with; its hint names those of up to ``most`` ranks that work."""
    why = _stages_refused(arch, config)
    if why:
        raise InputError(why, hint=f"give at most {arch.n_layers} stages")
    why = _tensor_refused(arch, config)
    if not why:
        return
    if arch.moe is not None and config.moe_ep > 1 and not _tensor_refused(arch, in_tensor_group(arch, config, config.tp)):
        raise InputError(why, hint="choose a divisor of the experts")
    able = [str(t) for t in tensor_degrees(arch, config, most)]
    works = f"tensor parallel {' or '.join(filter(None, (', '.join(able[:-1]), able[-1])))}"
    raise InputError(why, hint=f"choose {works}" if len(able) > 1 else f"{works} works, or another format of weights")


def check_device(arch: Architecture, accelerator: Accelerator, config: EngineConfig) -> None:
    """Raises InputError for formats of weights, of the cache and of numbers that the engine does not run on ``accelerator``."""
    check_formats(accelerator, config)
    if config.weights in config.program.unpacked:
        if arch.moe is not None:
            raise InputError(
                f"experts in {config.weights} are not predicted under {config.program.title}: no kernel of theirs was measured",
                hint=f"take --engine {LOCAL_ENGINE}, or --weights 4",
            )
        if config.weights != BNB and accelerator.vendor != "NVIDIA":
            raise InputError(
                f"{config.program.title}'s kernels for GGUF files are predicted on NVIDIA's GPUs, not on {accelerator.name}",
                hint=f"take --engine {LOCAL_ENGINE}",
            )
    engine, name = config.program, accelerator.name
    capability = version_number(accelerator.compute_capability or "99")
    if config.kv_dtype == "fp8" and accelerator.vendor == "NVIDIA" and capability < engine.fp8_cache_since:
        since = ".".join(map(str, engine.fp8_cache_since))
        raise InputError(
            f"{engine.title} writes no fp8 cache on {name}: it begins at compute capability {since}",
            hint="leave --kv-cache out, or take --engine sglang",
        )
    if arch.family in engine.refused_in_fp16 and half_format(accelerator) == "fp16":
        raise InputError(
            f"{engine.title} does not run {arch.name} in fp16, where it overflows, and {name} has no bf16",
            hint=f"take --engine {LOCAL_ENGINE}, or a GPU with bf16 (NVIDIA's from Ampere on)",
        )


def _stages_refused(arch: Architecture, config: EngineConfig) -> str:
    return f"{arch.n_layers} layers do not fill {config.pp} stages" if config.pp > arch.n_layers else ""


def _tensor_refused(arch: Architecture, config: EngineConfig) -> str:
    return next(_reasons(arch, config), "")


def _reasons(arch: Architecture, config: EngineConfig) -> Iterator[str]:
    """Why a tensor group of ``config`` does not start, one sentence each."""
    t, moe = config.tp, arch.moe
    ranks = f"{t} tensor parallel ranks"
    attends = arch.n_attention_layers > 0
    for sizes in attention_sizes(arch) if attends else ():
        if sizes.heads % t:
            yield f"{sizes.heads} attention heads of {arch.name} do not divide over {ranks}"
        shared = attention_of(sizes).shared_heads(sizes)
        if shared and shared % t and t % shared:
            yield f"{shared} key-value heads of {arch.name} do not divide over {ranks}, nor {t} by {shared}"
    mixers = [block for block in block_counts(arch) if block.divided_as == "mixer"]
    if any(part % t for block in mixers for part in block.served_parts(arch)):
        yield f"the state space of {arch.name} does not divide over {ranks}"
    step = config.program.vocabulary_step
    rows = -(-arch.vocab // step) * step if step else t
    if rows % t:
        yield f"the vocabulary of {arch.name}, padded to {rows:,}, does not divide over {ranks}"
    if moe is not None:
        if t > moe.n_experts:
            yield f"{ranks} are more than the {moe.n_experts} experts of {arch.name}"
        if moe.n_experts % config.moe_ep:
            yield f"{moe.n_experts} experts of {arch.name} do not divide over {config.moe_ep} ranks"
        yield from _widths(
            arch, config.expert_weights or config.weights, moe.expert_ffn, config.moe_tp, "an expert", EXPERT_GROUPS
        )
        yield from _widths(arch, config.weights, moe.shared_ffn, t, "the shared experts", GROUPS)
    if moe is None or moe.first_dense or moe.every > 1:
        ffn = PADDED_FFN.get(arch.ffn, arch.ffn) if config.weights == "int4_wo" else arch.ffn
        yield from _widths(arch, config.weights, ffn, t, "the MLP", GROUPS)
    for sizes in attention_sizes(arch) if attends else ():
        shared = attention_of(sizes).shared_heads(sizes)
        if shared and sizes.heads % t == 0:
            yield from _widths(arch, config.weights, sizes.heads * sizes.head_dim, t, "attention", GROUPS)
            if config.weights == "fp8_block" and t > 1 and max(shared // t, 1) * sizes.head_dim % GROUPS["fp8_block"]:
                yield f"key-value heads of {arch.name} on each of {ranks} are no whole blocks of weights that share a scale"


def _widths(arch: Architecture, weights: str, width: int, parts: int, what: str, groups: dict[str, int]) -> Iterator[str]:
    """Reason why ``width`` of ``what`` cannot be split that many ways; a whole width is in groups as its checkpoint has them."""
    group = groups.get(weights, 1)
    if parts > 1 and width % parts:
        yield f"the {width:,} wide {what.removeprefix('the ')} of {arch.name} does not divide over {parts} ranks"
    elif parts > 1 and (width // parts) % group:
        yield (
            f"{what} of {arch.name} has {width // parts:,} inputs on each of {parts} ranks, "
            f"no whole groups of {group} weights that share a scale ({weights})"
        )
