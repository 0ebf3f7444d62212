"""Published LLM training runs as architecture, system and strategy.

A row without dimensions or layout in the table has the reason instead; it is counted, never dropped.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpuwise.calibrate.llm_training.expert_recipes import with_automodel, with_recipe
from gpuwise.calibrate.tables import read_columns
from gpuwise.errors import GpuwiseError
from gpuwise.facts.hardware.systems import System
from gpuwise.facts.models.architecture import Architecture
from gpuwise.facts.models.checks import check_architecture
from gpuwise.workload.adapters import DEFAULT_TARGETS
from gpuwise.workload.strategy import Strategy

TABLE = "llm_training.csv"
_TEXT = (
    "source",
    "model",
    "gpu",
    "sharding",
    "precision",
    "act_ckpt",
    "attn",
    "compile",
    "software",
    "task",
    "notes",
    "memory_kind",
    "derived",
)
_NUMBERS = (
    "params",
    "n_layers",
    "hidden",
    "ffn",
    "heads",
    "kv_heads",
    "vocab",
    "seq_len",
    "n_gpus",
    "tp",
    "pp",
    "vpp",
    "dp",
    "cp",
    "ep",
    "micro_batch",
    "grad_accum",
    "global_batch",
    "tokens_per_s_per_gpu",
    "step_time_s",
    "memory_gb",
)


@dataclass(frozen=True, slots=True)
class LlmRow:
    """One run. ``reason`` explains why it cannot be timed; empty if ``architecture``, ``system`` and ``strategy`` are all
    known."""

    source: str
    gpu: str
    model: str
    reason: str
    seq_len: int
    step_time_s: float
    memory_bytes: float
    """Measured peak in bytes, NaN when not stated."""
    memory_kind: str
    out_of_memory: bool
    n_accelerators: int
    global_batch: float
    software: str
    notes: str
    unstated: tuple[str, ...] = ()
    """Settings the table leaves open and the strategy guesses: ``recompute``, ``micro_batch``, ``sharding``."""
    architecture: Architecture | None = None
    system: System | None = None
    strategy: Strategy | None = None
    packed_document_len: int | None = None
    """Mean document length where sequences are packed and attention stays inside documents."""


def read_rows(folder: Path) -> list[LlmRow] | None:
    """Every row of ``llm_training.csv`` under ``folder``, in file order; None when the table is not there."""
    columns = read_columns(folder / TABLE, {**dict.fromkeys(_TEXT, "str"), **dict.fromkeys(_NUMBERS, "float")})
    if columns is None:
        return None
    n = len(columns["source"])
    return [_row({name: column[i] for name, column in columns.items()}) for i in range(n)]


_LARGEST = 1e13
"""No figure of a run is larger (parameters reach 1e12)."""


def _row(r: dict[str, Any]) -> LlmRow:
    wild = [name for name in _NUMBERS if not (math.isnan(r[name]) or 0 < r[name] < _LARGEST)]
    r = r | dict.fromkeys(wild, math.nan)
    r = r | {"seq_len": _seq_len(r)}
    r = r | {"step_time_s": _step_time_s(r)}
    oom = "OOM" in r["memory_kind"] or "OOM" in r["notes"].split(";")[0]
    base = LlmRow(
        source=source_name(r["source"]),
        gpu=r["gpu"],
        model=r["model"],
        reason="",
        seq_len=0 if math.isnan(r["seq_len"]) else int(r["seq_len"]),
        step_time_s=r["step_time_s"],
        memory_bytes=r["memory_gb"] * (2.0**30 if "GiB" in r["memory_kind"] else 1e9),
        memory_kind=r["memory_kind"],
        out_of_memory=oom,
        n_accelerators=_degree(r["n_gpus"]),
        global_batch=r["global_batch"],
        software=r["software"],
        notes=r["notes"],
        unstated=_unstated(r),
        packed_document_len=SQUAD_TOKENS if r["task"] in ("SFT", "LoRA") and source_family(r) in PACKED_SQUAD else None,
    )
    try:
        if wild:
            raise _UnstatedError("impossible value: " + ", ".join(wild))
        if math.isnan(r["n_gpus"]):
            raise _UnstatedError("number of accelerators not stated")
        arch = _architecture(r)
        strategy = _strategy(r, arch)
        if arch.moe is not None and strategy.stack == "megatron-core":
            stated = bool(r["act_ckpt"])
            strategy = with_recipe(strategy, r["model"], r["gpu"], strategy.release, recompute_stated=stated)
        elif arch.moe is not None and "AutoModel" in r["software"]:
            strategy = with_automodel(strategy, r["model"])
        base = replace(base, architecture=arch, strategy=strategy)
        return replace(base, system=_system(r))
    except _UnstatedError as error:
        return replace(base, reason=str(error))
    except GpuwiseError as error:
        return replace(base, reason=error.message.split("\n")[0][:80])


def _seq_len(r: dict[str, Any]) -> float:
    """As stated, or computed from the rate and the step time of the same row, if that is a multiple of 512 tokens."""
    if not math.isnan(r["seq_len"]):
        return r["seq_len"]
    tokens = r["tokens_per_s_per_gpu"] * r["n_gpus"] * r["step_time_s"] / r["global_batch"]
    if math.isnan(tokens):
        return tokens
    whole = 512 * max(1, round(tokens / 512))
    return float(whole) if abs(tokens / whole - 1) < SEQ_LEN_ROUNDING else math.nan


SEQ_LEN_ROUNDING = 0.02
"""Relative rounding of a step time printed with two digits."""


def _unstated(r: dict[str, Any]) -> tuple[str, ...]:
    recompute = not r["act_ckpt"] and not re.search("torchtitan|litgpt", r["software"])
    open_ = [
        ("recompute", recompute),
        ("micro_batch", math.isnan(r["micro_batch"])),
        ("sharding", not r["sharding"] or (recompute and r["sharding"] == "distributed-optimizer")),
    ]
    return tuple(name for name, is_open in open_ if is_open)


class _UnstatedError(Exception):
    """The table does not state what a prediction needs."""


PACKED_SQUAD = ("megatron-bridge", "nemo", "dgxc-benchmarking")
"""Sources whose fine-tuning rows run on packed SQuAD (Megatron-Bridge llama3_llm_finetune.py ``packed_sequence=True``)."""
SQUAD_TOKENS = 200
"""Tokens of one sample: a paragraph of 117 words, a question and an answer (arXiv 1606.05250), 1.4 tokens per word."""


def source_family(r: dict[str, Any]) -> str:
    """The source without its release: ``megatron-bridge``, ``nemo``."""
    return re.sub(r"-\d[\d.]*$", "", r["source"])


def source_name(source: str) -> str:
    """All releases of one page are one source."""
    return re.sub(r"^(megatron-bridge)-.*", r"\1", source)


# --- architecture ------------------------------------------------------------------------------------------------

CATALOGUE = {
    "llama3-8b": "llama-3-8b",
    "llama3-70b": "llama-3-70b",
    "llama3.1-8b": "llama-3.1-8b",
    "llama-3-8b": "llama-3-8b",
    "llama3.1-70b": "llama-3.1-70b",
    "llama3.1-405b": "llama-3.1-405b",
    "llama2-7b": "llama-2-7b",
    "llama-2-7b": "llama-2-7b",
    "llama2-13b": "llama-2-13b",
    "llama2-70b": "llama-2-70b",
    "deepseek-v3": "deepseek-v3",
    "llama3-70b-L12": "llama-3-70b",
    "deepseekv2-L4": "deepseek-v2",
    "deepseekv3-L4": "deepseek-v3",
    "qwen3-235b-a22b": "qwen3-235b-a22b",
    "qwen3-30b-a3b": "qwen3-30b-a3b",
    "gpt-oss-120b": "gpt-oss-120b",
    "kimi-k2": "kimi-k2",
    "nemotron-340b": "nemotron-4-340b",
    "falcon-7b": "falcon-7b",
    "mistral-7b": "mistral-7b",
    "tiny-llama": "tinyllama-1.1b",
    "phi-3-mini": "phi-3-mini",
    "gemma-2b": "gemma-2b",
    "gemma-7b": "gemma-7b",
    "mixtral-8x7b": "mixtral-8x7b",
    "mixtral-8x22b": "mixtral-8x22b",
    "nemotron3-nano": "nemotron-3-nano-30b-a3b",
    "nemotron-3-nano": "nemotron-3-nano-30b-a3b",
    "nemotron-3-super": "nemotron-3-super-120b-a12b",
    "nemotron-3-ultra": "nemotron-3-ultra-550b-a55b",
    "nemotronh-56b": "nemotron-h-56b",
    "nemotronh-8b": "nemotron-h-8b",
}
HYBRID = ("deepseekv4", "qwen3-next")
"""Models with linear or sparse attention: no analytic front end yet."""


def _architecture(r: dict[str, Any]) -> Architecture:
    name = r["model"]
    if name.lower().startswith(HYBRID):
        raise _UnstatedError("linear or sparse attention without analytic form")
    model_id = CATALOGUE.get(name)
    if model_id is None and not name.startswith(("gpt", "mpt", "llama", "nemotron-8b", "gpt3")):
        model_id = name
    if model_id is not None:
        from gpuwise.facts.models.catalogue import find_model

        arch = find_model(model_id)
        if not math.isnan(r["n_layers"]) and int(r["n_layers"]) != arch.n_layers:
            arch = replace(arch, n_layers=int(r["n_layers"]), prediction_layers=0, published_parameters=None)
            if arch.moe is not None and "dense_layers=1" in r["notes"]:
                arch = replace(arch, moe=replace(arch.moe, first_dense=1))
        return arch
    return _from_dimensions(r)


def _from_dimensions(r: dict[str, Any]) -> Architecture:
    missing = [k for k in ("n_layers", "hidden", "heads", "vocab", "seq_len") if math.isnan(r[k])]
    if missing:
        raise _UnstatedError("model dimensions not stated: " + ", ".join(missing))
    small = [k for k in ("n_layers", "hidden", "ffn", "heads", "kv_heads", "vocab", "seq_len") if r[k] < 1]
    if small:
        raise _UnstatedError("impossible value: " + ", ".join(small))
    heads, hidden = int(r["heads"]), int(r["hidden"])
    llama = r["model"].startswith("llama")
    arch = Architecture(
        id=r["model"],
        name=r["model"],
        kind="decoder",
        n_layers=int(r["n_layers"]),
        hidden=hidden,
        ffn=int(r["ffn"]) if not math.isnan(r["ffn"]) else 4 * hidden,
        heads=heads,
        kv_heads=int(r["kv_heads"]) if not math.isnan(r["kv_heads"]) else heads,
        head_dim=hidden // heads,
        vocab=int(r["vocab"]),
        max_seq_len=int(r["seq_len"]),
        gated_mlp=llama,
        activation="silu" if llama else "gelu",
        norm="rms" if llama else "layer",
        position="rope" if llama else "learned",
        qkv_bias=not llama,
        attention_out_bias=not llama,
        mlp_bias=not llama,
        tied_embeddings=not llama,
        source=r["source"],
    )
    return check_architecture(arch)


# --- system --------------------------------------------------------------------------------------------------------

SYSTEMS = {
    # spelling in the table -> cluster of the size the run had
    "A100": "A100-SXM4-80GB",
    "A100-80GB": "A100-SXM4-80GB",
    "A100-40GB": "A100-SXM4-40GB",
    "H100": "H100-SXM5-80GB",
    "H100-80GB-700W": "H100-SXM5-80GB",
    "H100-80GB": "H100-SXM5-80GB",
    "H200": "H200-SXM",
    "B200": "B200-SXM",
    "B200-SXM": "B200-SXM",
    "B300": "B300-SXM",
    "GB200": "GB200",
    "GB300": "GB300",
    "V100-32GB": "V100-SXM2-32GB",
    "V100-16GB": "V100-SXM2-16GB",
    "A10G-24GB": "A10G",
    "RTX4090-24GB": "RTX 4090",
    "A6000-48GB": "RTX A6000",
    "A10G": "A10G",
    "H100-96GB-HBM2e-500W (Grand Teton)": "H100-SXM-96GB-HBM2e",
    "H100-95GB-HBM2e": "H100-SXM-96GB-HBM2e",
    "B200 (184 GiB class, inferred from % memory)": "B200-SXM",
}


NETWORKS = {
    "nanotron-ultrascale": ("efa", 50e9),
    "bigscience-bloom-prequel": ("infiniband", 4 * 100e9 / 8 / 8),
}
"""Scale-out kind and bytes/s per accelerator where a source's cluster is not the usual one of its accelerator: the
Ultra-Scale Playbook ran on AWS p5 (EFA, 3.2 Tb/s a node), BLOOM on Jean Zay (4 Omni-Path ports of 100 Gb/s a node)."""


def _system(r: dict[str, Any]) -> System:
    if "power limited" in r["gpu"]:
        raise _UnstatedError("power limit not stated")
    from gpuwise.facts.hardware.naming import find_cluster

    name = SYSTEMS.get(r["gpu"], re.sub(r"\s*\(.*\)", "", r["gpu"]))
    system = find_cluster(f"{int(r['n_gpus'])}x{name}").system
    kind, rate = NETWORKS.get(r["source"], (system.network_kind, system.network_bytes_per_s))
    return replace(system, network_kind=kind, network_bytes_per_s=rate)


# --- strategy ------------------------------------------------------------------------------------------------------

PRECISION = [
    (r"nvfp4", "nvfp4"),
    (r"mxfp8|fp8-mx", "mxfp8"),
    (r"fp8|float8", "fp8"),
    (r"bf16", "bf16"),
    (r"fp16", "fp16"),
    (r"tf32", "tf32"),
    (r"fp32", "fp32"),
]
STACK = [
    (r"Megatron-DeepSpeed|Megatron-LM / Megatron-DeepSpeed", "megatron-deepspeed"),
    (r"nanotron", "nanotron"),
    (r"composer\+FSDP", "composer"),
    (r"AutoModel", "eager-fsdp"),
    (r"torchtune", "torchtune"),
    (r"HF \+ DeepSpeed", "deepspeed"),
    (r"litgpt", "litgpt"),
    (r"torchtitan", "compiled-fsdp"),
    (r"NeMo|Megatron|dgxc", "megatron-core"),
    (r"Paxml|MaxText", "compiled-fsdp"),
]


LAUNCHER_MICRO_BATCH = {"bert-4b": 8.0, "bert-20b": 4.0, "bert-100b": 8.0}
"""Default where the README's table lacks it: NVIDIA/NeMo-Framework-Launcher launcher_scripts/conf/training/bert."""


def _strategy(r: dict[str, Any], arch: Architecture) -> Strategy:
    if r["notes"].startswith("with LDDL"):
        raise _UnstatedError("sequence lengths vary by bin")
    # where no time was measured, one micro-batch a step serves: memory does not depend on the global batch
    untimed = math.isnan(r["step_time_s"]) and not math.isnan(r["micro_batch"])
    if (math.isnan(r["global_batch"]) and not untimed) or math.isnan(r["seq_len"]):
        raise _UnstatedError("global batch or sequence length not stated")
    if r["software"] == "torchtune" and r["gpu"].startswith("A6000"):
        raise _UnstatedError("faster than its GPU's peak allows")
    n, cp, pp = int(r["n_gpus"]), _degree(r["cp"]), _degree(r["pp"])
    if "all runs are single-GPU" in r["notes"]:
        n = 1
    if math.isnan(r["tp"]) and not r["sharding"].startswith(("FSDP", "single", "none", "ZeRO", "MaxText")):
        raise _UnstatedError("parallel layout not stated")
    tp = _degree(r["tp"])
    dp = max(1, n // (tp * pp * cp))
    if dp * tp * pp * cp != n:
        raise _UnstatedError("layout does not multiply to the accelerators")
    micro = r["micro_batch"]
    batch = r["global_batch"] if not math.isnan(r["global_batch"]) else r["micro_batch"] * dp
    vpp = _degree(r["vpp"])
    if pp > 1 and "torchtitan" in r["software"]:
        # the table's figure is the local batch; torchtitan cuts it into as many micro-batches as there are stages, two
        # on a rank when interleaved (d4c86e3 parallelisms/pipelining_utils.py)
        vpp = 2 if "Interleaved" in r["notes"] else vpp
        micro = max(1.0, micro // (pp * vpp))
    if math.isnan(micro) and r["source"] == "megatron-lm-readme":
        micro = 1.0  # not stated; Megatron's published pre-training configurations use 1
    if r["source"] == "nemo-framework-launcher" and math.isnan(micro):
        micro = LAUNCHER_MICRO_BATCH.get(r["model"], micro)
    if math.isnan(micro):
        micro = batch / dp if math.isnan(r["grad_accum"]) else batch / dp / r["grad_accum"]
    accumulation = max(1, round(batch / (dp * micro)))
    if math.isnan(r["vpp"]) and r["source"] == "dgxc-benchmarking" and arch.moe is None and pp > 1:
        # releases whose table lacks it have the same times as those with one layer per chunk
        vpp = arch.n_layers // pp if arch.n_layers % pp == 0 and accumulation % pp == 0 else 1
    stack = _stack(r)
    return Strategy(
        precision=_match(r["precision"], PRECISION, "bf16"),
        row_scales="rowwise" in r["precision"],
        micro_batch=max(1, round(micro)),
        accumulation=accumulation,
        dp=dp,
        tp=tp,
        pp=pp,
        virtual_stages=vpp,
        cp=cp,
        ep=_degree(r["ep"]),
        sequence_parallel=_sequence_parallel(r, stack),
        schedule="interleaved" if vpp > 1 else "1f1b",
        # SimuMax's launch scripts pass --cp-comm-type a2a
        context_parallel="ulysses" if r["source"].startswith("simumax") else "ring",
        sharding=_sharding(r),
        shard_group=0,
        recompute=_recompute(r, arch),
        recompute_every=2 if r["act_ckpt"] == "selective layer" else 1,  # torchtitan's "selective" with a layer number: 2
        optimizer="adamw8bit" if stack == "torchtune" and n == 1 else "adamw",  # its recipe for one device
        master_weights=stack != "torchtune" and "true" not in r["precision"] and "PURE" not in r["precision"],
        gradient_dtype=_gradient_dtype(r, stack),
        offload_optimizer="CPU AdamW" in r["sharding"] or (stack == "torchtune" and r["task"] == "full" and n > 1),
        fused_loss="Liger" in r["software"],
        overlap_tp=_overlaps_tp(r),
        overlap_dp="overlap OFF" not in r["software"],
        fused_attention="unfused" not in r["attn"] and stack != "megatron-legacy",
        release=_release(r["software"]),
        lora_rank=_lora_rank(r),
        lora_targets=LORA_TARGETS.get(source_family(r), DEFAULT_TARGETS),
        quantized_base="nf4" in r["precision"] or "qlora" in r["task"].lower(),
        stack=stack,
    )


def _step_time_s(r: dict[str, Any]) -> float:
    """Seconds a step; where torchtune's README states a rate only, by its batch of packed sequences."""
    if math.isnan(r["step_time_s"]) and r["software"] == "torchtune":
        return r["global_batch"] * r["seq_len"] / (r["tokens_per_s_per_gpu"] * r["n_gpus"])
    return r["step_time_s"]


def _degree(value: float) -> int:
    return 1 if math.isnan(value) else max(1, int(value))


def _match(text: str, table: list[tuple[str, str]], default: str) -> str:
    return next((value for pattern, value in table if re.search(pattern, text, re.IGNORECASE)), default)


def _stack(r: dict[str, Any]) -> str:
    if r["source"] in ("calculon-seqsel-tab5",) or (r["source"] == "megatron-lm-readme" and r["gpu"].startswith("A100")):
        return "megatron-legacy"
    if r["source"].startswith("vTrain"):
        return "vtrain"
    if r["compile"] == "no" and "torchtitan" in r["software"]:
        return "eager-fsdp"
    return _match(r["software"], STACK, "eager")


def _sequence_parallel(r: dict[str, Any], stack: str) -> bool:
    if stack == "megatron-legacy":
        return "sequence" in r["act_ckpt"]
    return stack in ("megatron-core", "nanotron", "compiled-fsdp", "eager-fsdp", "composer")


def _sharding(r: dict[str, Any]) -> str:
    s = r["sharding"]
    if s.startswith(("FSDP-SHARD_GRAD",)):
        return "zero2"
    if s.startswith(("FSDP", "MaxText")) or "ZeRO-3" in s:
        return "zero3"
    if "ZeRO-0" in s or s in ("", "none", "single/ddp"):
        return "none"
    return "zero1"


def _recompute(r: dict[str, Any], arch: Architecture) -> str:
    text = r["act_ckpt"]
    if not text and "torchtitan" in r["software"]:
        return "selective"  # the default of its Llama 3 configurations (mode "selective", option "op")
    return "full" if text in ("full", "selective layer") else "selective" if text.startswith("selective") else "none"


def _gradient_dtype(r: dict[str, Any], stack: str) -> str:
    if re.search("NeMo|dgxc", r["software"]) and stack == "megatron-core":
        return "bf16"  # NeMo's and Megatron-Bridge's recipes of measured speed: grad_reduce_in_fp32 = False
    if r["source"] == "megatron-lm-readme" and stack == "megatron-core":
        return "bf16"  # not stated; its 32B run takes less time than fp32 gradients would on the network
    if stack in ("megatron-core", "nanotron", "megatron-legacy"):
        return "fp32"
    if stack == "torchtune":
        return "bf16"
    if "fp32 grad accum" in r["precision"]:
        return "fp32"
    if stack in ("megatron-deepspeed", "vtrain"):
        return "fp16"
    return "bf16" if "PURE" in r["precision"] or "true" in r["precision"] else "fp32"


def _release(software: str) -> float | None:
    """Year with decimals of a release named ``25.11``, ``v24.11.1`` or ``24.07``; None when the row names none."""
    match = re.search(r"\bv?(2[3-9])\.(0[1-9]|1[0-2])\b", software)
    return 2000 + int(match[1]) + (int(match[2]) - 1) / 12 if match else None


def _overlaps_tp(r: dict[str, Any]) -> bool:
    if "overlap OFF" in r["software"]:
        return False
    return "async" in r["notes"].lower() if "torchtitan" in r["software"] else True


LORA_TARGETS = {
    "megatron-bridge": ("linear_qkv",),
    "nemo": ("linear_qkv",),
    "dgxc-benchmarking": ("linear_qkv",),
    "torchtune-readme": ("q_proj", "v_proj", "output_proj", "mlp"),
}
"""Adapter targets in the recipes of a source: NVIDIA's benchmarks use only the fused projection (Megatron-Bridge
scripts/performance/configs/llama/llama3_llm_finetune.py, NeMo conf megatron_gpt_finetuning_config.yaml ``attention_qkv``),
torchtune's recipes as listed (recipes/configs/llama3_1/8B_lora_single_device.yaml)."""


def _lora_rank(r: dict[str, Any]) -> int:
    if "lora" not in r["task"].lower():
        return 0
    return 8 if r["software"] in ("litgpt", "torchtune") else 16
