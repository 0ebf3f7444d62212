"""Published serving runs as rows: the measurement, and for predictable ones the corresponding iteration.

A row whose latency depends on arrivals, queueing or a separate prefill fleet is not one iteration: it has a reason.
"""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from gpuwise.calibrate.tables import each, read_columns
from gpuwise.errors import GpuwiseError
from gpuwise.facts.hardware.systems import System
from gpuwise.facts.models.architecture import Architecture
from gpuwise.predict.memory.device import usable_bytes
from gpuwise.serve.engines.engine import EngineConfig, version_number
from gpuwise.serve.formats import weight_bytes
from gpuwise.units import MILLI

QUEUEING = "needs the serving-engine simulation"
HYBRID = "hybrid or sparse-attention model without analytic form"
_MEASURED_TEXT = ("kind", "engine", "model", "gpu", "parallel", "precision", "notes")
_MEASURED_NUMBERS = ("n_gpu", "isl", "osl", "concurrency", "output_tok_s", "ttft_ms", "itl_ms", "prefill_tok_s")
_INFERENCEX_TEXT = ("backend", "backend_version", "model_path", "system", "precision", "mode", "silicon_data_source")
_INFERENCEX_NUMBERS = (
    "isl",
    "osl",
    "batch_size",
    "tp_size",
    "attention_dp_size",
    "moe_tp_size",
    "moe_ep_size",
    "silicon_ttft_ms",
    "silicon_tpot_ms",
)


@dataclass(frozen=True, slots=True)
class ServingRow:
    """``prompt`` and ``output`` tokens of a request and ``sequences`` at once; ``prefills``: whether the measured time
    includes the prefills of other requests (a mean over requests does, a median between tokens does not)."""

    source: str
    gpu: str
    model: str
    measured_s: float
    reason: str = ""
    architecture: Architecture | None = None
    system: System | None = None
    config: EngineConfig | None = None
    sequences: int = 1
    prompt: float = 0.0
    output: float = 0.0
    prefills: bool = False
    bits: str = ""
    """llama.cpp's format of the weights (``Q4_K_M``, ``F16``); those rows are its own engine."""
    n_devices: int = 1
    client: str = ""
    """Client of the measurement: ``inferencex``, or ``aiconfigurator`` for its authors' own rows."""
    prompt_per_s: float = 0.0
    """Tokens of a prompt a second, where it was measured apart; 0: not."""
    date: str = ""
    """Date of the measurement; may be empty."""


def read_rows(folder: Path) -> list[ServingRow] | None:
    """Every row of the serving tables under ``folder`` but diffusion and MLPerf; None when none is there."""
    rows: list[ServingRow] = []
    any_table = False
    for reader in (_measured, _inferencex):
        part = reader(folder)
        if part is not None:
            rows += part
            any_table = True
    return rows if any_table else None


def _records(folder: Path, name: str, text: tuple[str, ...], numbers: tuple[str, ...]) -> list[dict[str, Any]] | None:
    columns = read_columns(folder / name, {**dict.fromkeys(text, "str"), **dict.fromkeys(numbers, "float")})
    if columns is None:
        return None
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


# --- measured.csv
# --------------------------------------------------------------------------------------------------


def _measured(folder: Path) -> list[ServingRow] | None:
    records = _records(folder, "serving/measured.csv", _MEASURED_TEXT, _MEASURED_NUMBERS)
    loads = ("offline_max_throughput", "online_qps_sweep")  # replayed: see engine_loads
    return None if records is None else each([r for r in records if r["kind"] not in loads], _measured_row, "measured.csv")


def _measured_row(r: dict[str, Any]) -> ServingRow:
    base = ServingRow(source=r["kind"], gpu=r["gpu"], model=r["model"], measured_s=r["itl_ms"] * MILLI)
    kind = r["kind"]
    if kind == "single_stream":
        row = replace(
            base,
            source="llama.cpp decode",
            measured_s=1.0 / r["output_tok_s"],
            bits=r["precision"],
            prompt=r["isl"],
            output=r["osl"],
            n_devices=max(1, round(r["n_gpu"])),
            prompt_per_s=0.0 if math.isnan(r["prefill_tok_s"]) else r["prefill_tok_s"],
        )
        return _filled(row, r["model"], r["gpu"], row.n_devices)
    if kind != "online_saturated_maxseqs":
        return replace(base, reason="shape and load not stated")
    row = replace(
        base,
        source="batch sweep ITL",
        sequences=max(1, round(r["concurrency"])),
        output=r["osl"],
        n_devices=round(r["n_gpu"]),
    )
    if "SUSPECT" in r["notes"]:
        return replace(row, reason="flagged as suspect in the table")
    prompt = _task_prompt(r["notes"])
    if prompt is None:
        return replace(row, reason="prompt length not stated (images or video)")
    row = replace(row, prompt=prompt)
    return _filled(row, r["model"], r["gpu"], row.n_devices, _sweep_config(r))


def _task_prompt(notes: str) -> float | None:
    """Prompt tokens of a task, where the table leaves them out: typical of its data set, small beside the
    outputs (LM Arena chat, GPQA questions, fill-in-the-middle prompts)."""
    for task, tokens in (("LM Arena", 100.0), ("GPQA", 250.0), ("FIM", 250.0)):
        if task in notes:
            return tokens
    return None


def _sweep_config(r: dict[str, Any]) -> EngineConfig:
    """vLLM's flags read from ``TP1,EP8,DP8``. Expert parallelism borrows the tensor group, so that
    ``TP1,EP8`` on eight devices without DP is an attention split eight ways."""
    degrees = {k: int(v) for k, v in re.findall(r"(TP|EP|DP)(\d+)", r["parallel"])}
    n = round(r["n_gpu"])
    dp = degrees.get("DP", 1)
    tp, ep = max(1, n // dp), degrees.get("EP", 1)
    return EngineConfig(
        "vllm",
        *_weights(r["precision"], r["model"]),
        tp=tp,
        attention_dp=dp,
        moe_tp=max(1, n // ep),
        moe_ep=ep,
        tuned=False,
    )


# --- inferencex.csv
# -------------------------------------------------------------------------------------------------


def _inferencex(folder: Path) -> list[ServingRow] | None:
    records = _records(folder, "serving/inferencex.csv", _INFERENCEX_TEXT, _INFERENCEX_NUMBERS)
    if records is None:
        return None
    return each(records, _inferencex_row, "inferencex.csv")


def inferencex_rows(folder: Path) -> list[tuple[ServingRow, float]] | None:
    """Rows of InferenceX's closed loops, each with its mean time to the first token; None where there is no table."""
    records = _records(folder, "serving/inferencex.csv", _INFERENCEX_TEXT, _INFERENCEX_NUMBERS)
    if records is None:
        return None
    return each(records, lambda r: (_inferencex_row(r), r["silicon_ttft_ms"] * MILLI), "inferencex.csv")


def _inferencex_row(r: dict[str, Any]) -> ServingRow:
    base = ServingRow("inferencex TPOT", r["system"], r["model_path"], r["silicon_tpot_ms"] * MILLI)
    if r["mode"] != "agg":
        return replace(base, reason="separate prefill and decode fleets: " + QUEUEING)
    if not base.measured_s > 0:
        return replace(base, reason="time per token not measured")
    if not r["batch_size"] > 0:
        return replace(base, reason="concurrency not stated")
    try:
        config, n = _inferencex_config(r)
    except GpuwiseError as error:
        return replace(base, reason=error.message[:80])
    if config is None:
        return replace(base, reason="layout in the table is not that of one serving group")
    data_source = r["silicon_data_source"]
    batch, groups = int(r["batch_size"]), 1 if math.isnan(r["attention_dp_size"]) else max(1, int(r["attention_dp_size"]))
    published = re.search(r"silicon_concurrency=(\d+)", data_source)
    # the table's batch is one group's; the same layout is written with 8 and with 64 groups, so that the users as published count
    sequences = int(published[1]) if published else batch * config.attention_dp
    if published and sequences == batch * groups * n > batch and config.attention_dp == 1:
        config = replace(config, tp=1, attention_dp=n, moe_tp=1, moe_ep=n)  # each rank attends to users of its own
    elif published and sequences != batch * groups:
        return replace(base, reason="layout in the table is not that of one serving group")
    config = _as_started(config, r["model_path"])
    date = re.search(r"measured=(\d{4}-\d\d-\d\d)", data_source)
    row = replace(
        base,
        sequences=sequences,
        prompt=r["isl"],
        output=r["osl"],
        prefills=True,
        n_devices=n,
        client="aiconfigurator" if "aic-auto-gap-analysis" in data_source else "inferencex",
        date=date[1] if date else "",
    )
    return _filled(row, r["model_path"], r["system"], n, config)


def _inferencex_config(r: dict[str, Any]) -> tuple[EngineConfig | None, int]:
    """The layout. The table writes one group in three ways: tensor times expert degree where both were given
    (tp 64 on eight devices), data-parallel attention with the expert degree squared, or blanks."""

    def degree(name: str) -> int:
        return 1 if math.isnan(r[name]) else max(1, int(r[name]))

    tp, dp, moe_tp, ep = (degree(k) for k in ("tp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size"))
    if tp == moe_tp * ep and tp > 8 and moe_tp <= 8 and ep > 1:
        tp, moe_tp = moe_tp, max(1, moe_tp // ep)
    if dp > 1 and ep == tp * dp and tp > 1:
        ep = tp
        tp, dp = 1, ep
        moe_tp = 1
    if dp == 64 and ep == 8:
        dp, moe_tp = 8, 1
    if tp * dp != moe_tp * ep:
        moe_tp = max(1, tp * dp // ep)
    n = tp * dp
    if n > 8 or n & (n - 1):
        return None, n
    weights = _weights(r["precision"], r["model_path"])
    version = r["backend_version"] if r["backend_version"][:1].isdigit() else None
    kv = "fp8" if r["precision"] in ("fp8", "fp4") and not _wide_cache(r["backend"], r["model_path"], version) else "bf16"
    config = EngineConfig(r["backend"], *weights, kv_dtype=kv, tp=tp, attention_dp=dp, moe_tp=moe_tp, moe_ep=ep, version=version)
    return config, n


MINIMAX_UPGRADE = "0.19"
"""Date since which MiniMax in fp8 is started with an 8-bit cache, expert parallelism only on request, and vLLM's default
experts (InferenceX bddbf40; before, ``[ "$EP_SIZE" -ge 1 ]``, which always holds, ``VLLM_USE_FLASHINFER_MOE_FP8=0`` and
``VLLM_MOE_USE_DEEP_GEMM=0``)."""


def _wide_cache(engine: str, model: str, version: str | None) -> bool:
    """Whether a launch script uses no 8-bit cache with weights in 8 or 4 bits: gpt-oss' never, DeepSeek's not under SGLang
    (InferenceX gptoss_fp4_*, dsr1_fp8_h200.sh)."""
    name = model.lower()
    before = version is not None and version_number(version) < version_number(MINIMAX_UPGRADE)
    return "gpt-oss" in name or (engine == "sglang" and "deepseek" in name) or (before and "minimax" in name)


def _as_started(config: EngineConfig, model: str) -> EngineConfig:
    """Launch scripts that had an expert degree and no data-parallel attention: the table took one for the other. MiniMax in fp8
    was started with ``--tensor-parallel-size --enable-expert-parallel``, Kimi in 4 bits with the former alone
    (InferenceX benchmarks/single_node/minimaxm2.5_fp8_b200.sh, kimik2.5_fp4_b200.sh, March and April 2026)."""
    ranks = config.ranks
    if config.engine != "vllm":
        return config
    if config.kv_dtype == "bf16" and "minimax" in model.lower() and config.weights == "fp8_block":
        return replace(config, moe_tp=1, moe_ep=ranks, experts="triton")
    if config.attention_dp == 1:
        return config
    if "kimi" in model.lower():
        return replace(config, tp=ranks, attention_dp=1, moe_tp=ranks, moe_ep=1)
    if "minimax" in model.lower() and config.weights == "fp8_block":
        return replace(config, tp=ranks, attention_dp=1, moe_tp=1, moe_ep=ranks)
    return config


# --- what a name means
# ----------------------------------------------------------------------------------------------

MODELS = (
    (r"nemotron-(nano|h)|qwen3\.5|qwen3-next|glm-5|deepseek-v3\.2|omni", ""),
    (r"deepseek-(r1|v3)", "deepseek-v3"),
    (r"kimi-k2", "kimi-k2"),
    (r"minimax-m2", "minimax-m2"),
    (r"qwen3-(vl-)?235b", "qwen3-235b-a22b"),
    (r"qwen3-(vl-)?30b", "qwen3-30b-a3b"),
    (r"qwen3-coder-480b", "qwen3-coder-480b-a35b"),
    (r"qwen3-(vl-)?(\d+)b", r"qwen3-\2b"),
    (r"gpt-oss-(20|120)b", r"gpt-oss-\1b"),
    (r"llama-4-(scout|maverick)", r"llama-4-\1"),
    (r"llama-(3\.\d|3|2)-(\d+)b", r"llama-\1-\2b"),
    (r"gemma-3-(\d+)b", r"gemma-3-\1b"),
    (r"mixtral-8x(7|22)b", r"mixtral-8x\1b"),
)
"""Spelling -> catalogue; an empty name is a model without analytic form. Vision variants decode as their
language model."""
SYSTEMS = {
    "h100_sxm": "H100-SXM5-80GB",
    "h200_sxm": "H200-SXM",
    "b200_sxm": "B200-SXM",
    "b300_sxm": "B300-SXM",
    "H200 SXM 141GB": "H200-SXM",
    "H100 SXM5 80GB": "H100-SXM5-80GB",
    "GB200 (per GPU)": "GB200",
    "Apple M3 Max 40c": "Apple M3 Max",
}


@cache
def model_of(name: str) -> Architecture | None:
    """The architecture ``name`` means; None where it has no analytic form. Raises UnknownNameError."""
    from gpuwise.facts.models.catalogue import find_model

    for pattern, catalogue_name in MODELS:
        match = re.search(pattern, name, re.IGNORECASE)
        if match:
            return find_model(match.expand(catalogue_name).lower()) if catalogue_name else None
    return find_model(name)


@cache
def system_of(name: str, n: int) -> System:
    """The system of ``n`` devices called ``name``. Raises what ``find_cluster`` raises."""
    from gpuwise.facts.hardware.naming import find_cluster

    return find_cluster(f"{n}x{SYSTEMS.get(name, name)}").system


def _weights(precision: str, model: str) -> tuple[str, str | None]:
    """Formats of dense and of expert weights. gpt-oss holds experts in MXFP4 and the rest in bf16 (its model
    card); the 4-bit Kimi and DeepSeek checkpoints quantise the experts only; ``-FP8`` checkpoints scale
    blocks of 128 x 128."""
    p = precision.lower()
    if "gpt-oss" in model.lower():
        return "bf16", "mxfp4"
    if p == "int4":
        return "bf16", "int4_wo"
    if p in ("fp4", "nvfp4"):
        experts_only = re.search("kimi|deepseek", model, re.IGNORECASE)
        return ("bf16" if experts_only else "nvfp4"), "nvfp4"
    if p == "fp8":
        return ("fp8" if "llama" in model.lower() else "fp8_block"), None
    return ("fp16" if p == "fp16" else "bf16"), None


def _filled(row: ServingRow, model: str, gpu: str, n: int, config: EngineConfig | None = None) -> ServingRow:
    try:
        arch = model_of(model)
        if arch is None:
            return replace(row, reason=HYBRID)
        system = system_of(gpu, n)
        if config is not None:
            held = weight_bytes(arch, config.weights, config.expert_weights)
            if held > n * usable_bytes(system.accelerator):
                return replace(row, reason="the weights do not fit on the devices in the table")
        return replace(row, architecture=arch, system=system, config=config)
    except GpuwiseError as error:
        return replace(row, reason=error.message.split("\n")[0][:80])


def is_check(row: ServingRow) -> bool:
    """Whole models are held out of the engines' fit, whole GPUs out of llama.cpp's (which ran two models): by hash."""
    if row.bits:
        return hashlib.sha256(row.gpu.encode()).digest()[0] % 3 == 0
    name = row.architecture.id if row.architecture is not None else row.model
    return hashlib.sha256(name.encode()).digest()[0] % 3 == 0
