"""Tokens a second by the formulas of other tools, with their own constants, for :mod:`local_cells`.

llmfit (3f44fd3, August 2026: llmfit-core/src/fit.rs ``estimate_tps``, models.rs): dense models read their weights at 0.55 of the
bandwidth; experts read those of a token, and all else as if it had 3.2 bytes a weight, slower where more than 0.6 of the memory
is full; a processor writes a constant over the parameters, of which the mode takes 0.3. whichllm (a897551, June 2026:
engine/performance.py): a share of the bandwidth by format and vendor, of experts no less than a part of the file that grows with
the bandwidth. fitllm-engine (b7cebcf, May 2026: engine.js ``estimateSpeed``): Apple's chips read active weights at 0.75 of the
bandwidth. Sizes of files are those of our formats.
"""

from __future__ import annotations

from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.hardware.cpus import Cpu
from gpuwise.facts.models.architecture import Architecture
from gpuwise.serve.formats import FORMATS, weight_bytes
from gpuwise.units import GIGA
from gpuwise.workload.transformer.parameters import count_parameters

LLMFIT_BYTES = {"16": 2.0, "Q8": 1.0, "Q6": 0.75, "Q5": 0.625, "Q4": 0.5, "Q3": 0.375, "Q2": 0.25, "mlx_8bit": 1.0}
LLMFIT_EXPERT_BYTES = {"16": 2.0, "Q8": 1.05, "Q6": 0.80, "Q5": 0.68, "Q4": 0.58, "Q3": 0.48, "Q2": 0.37, "mlx_4bit": 0.55}
LLMFIT_CPU = {"16": 0.6, "Q8": 0.8, "Q6": 0.95, "Q5": 1.0, "Q4": 1.15, "Q3": 1.25, "Q2": 1.35}
LLMFIT_SHARE, LLMFIT_FIXED_BYTES, LLMFIT_FULL, LLMFIT_LEAST = 0.55, 3.2, 0.6, 0.3
LLMFIT_CPU_X86, LLMFIT_CPU_ARM, LLMFIT_CPU_MODE, LLMFIT_CORES = 70.0, 90.0, 0.3, (8, 1.1)
WHICHLLM_SHARE = {
    "F16": 0.4,
    "BF16": 0.4,
    "Q8_0": 0.45,
    "Q6_K": 0.5,
    "Q5_K_M": 0.52,
    "Q5_0": 0.5,
    "Q4_K_M": 0.55,
    "Q4_K_S": 0.55,
    "Q4_0": 0.53,
    "MXFP4": 0.55,
    "Q3_K_M": 0.5,
    "Q3_K_S": 0.48,
    "Q3_K_L": 0.5,
    "Q2_K": 0.45,
    "IQ4_XS": 0.52,
    "IQ4_NL": 0.5,
    "IQ3_XXS": 0.42,
    "IQ2_S": 0.4,
    "IQ2_M": 0.4,
    "IQ2_XXS": 0.38,
    "IQ1_M": 0.35,
    "IQ1_S": 0.35,
}
WHICHLLM_OTHER = 0.45
WHICHLLM_VENDOR = {"NVIDIA": 1.0, "AMD": 0.78, "Apple": 0.82, "Intel": 0.65}
WHICHLLM_EXPERTS = (256.0, 0.05, 0.25)
"""Bandwidth in GB/s, the least part of the file that is read there, and the most that this part grows to."""
WHICHLLM_CPU = 18.0
FITLLM_SHARE = 0.75


def _by_width(table: dict[str, float], weights: str, other: float) -> float:
    """The entry whose name begins the format's, dynamic or not."""
    plain = weights.removeprefix("UD-").removeprefix("I")
    wide = "16" if weights in ("F16", "BF16", "bf16") else plain
    return next((v for name, v in table.items() if wide.startswith(name)), other)


def llmfit(arch: Architecture, device: Accelerator | Cpu, weights: str) -> float:
    """Tokens a second."""
    count = count_parameters(arch)
    active = (count.total if arch.moe is None else count.active) / GIGA
    if isinstance(device, Cpu):
        each = LLMFIT_CPU_X86 if device.vendor in ("Intel", "AMD") else LLMFIT_CPU_ARM
        base = each / active * _by_width(LLMFIT_CPU, weights, 1.0) * LLMFIT_CPU_MODE
        return base * (LLMFIT_CORES[1] if device.cores >= LLMFIT_CORES[0] else 1.0)
    bandwidth = device.memory_bandwidth_bytes_per_s / GIGA
    if arch.moe is None:
        return LLMFIT_SHARE * bandwidth / (active * _by_width(LLMFIT_BYTES, weights, 0.5))
    moe, each = arch.moe, _by_width(LLMFIT_EXPERT_BYTES, weights, 0.58)
    experts = arch.n_layers * moe.n_active * 3.0 * arch.hidden * moe.expert_ffn
    attention = arch.n_layers * 2.0 * (arch.heads + arch.kv_heads) * arch.head_dim * arch.hidden
    fixed = attention + arch.n_layers * (3.0 * arch.hidden * moe.shared_ffn + moe.n_experts * arch.hidden)
    fixed += 2.0 * arch.vocab * arch.hidden
    full = count.total * each / device.memory_bytes
    slower = 1.0 - (full - LLMFIT_FULL) * (1.0 - moe.n_active / moe.n_experts) if LLMFIT_FULL <= full <= 1.0 else 1.0
    return bandwidth / ((experts * each + fixed * LLMFIT_FIXED_BYTES) / GIGA) * max(slower, LLMFIT_LEAST)


def whichllm(arch: Architecture, device: Accelerator | Cpu, weights: str) -> float:
    """Tokens a second."""
    count = count_parameters(arch)
    share = WHICHLLM_SHARE.get(weights.removeprefix("UD-"), WHICHLLM_OTHER)
    if isinstance(device, Cpu):
        active = (count.total if arch.moe is None else count.active) / GIGA
        return max(0.3, WHICHLLM_CPU / max(active, 0.5) * share / WHICHLLM_OTHER)
    bandwidth = device.memory_bandwidth_bytes_per_s
    read = weight_bytes(arch, weights)
    if arch.moe is not None:
        at, least, most = WHICHLLM_EXPERTS
        read *= max(count.active / count.total, min(most, least * max(1.0, bandwidth / GIGA / at)))
    return share * WHICHLLM_VENDOR.get(device.vendor, 0.7) * bandwidth / read


def fitllm(arch: Architecture, device: Accelerator | Cpu, weights: str) -> float | None:
    """Tokens a second; None for what it does not know."""
    if device.vendor != "Apple" or isinstance(device, Cpu):
        return None
    active = count_parameters(arch).active * FORMATS[weights].bytes_per_weight
    return FITLLM_SHARE * device.memory_bandwidth_bytes_per_s / active


RIVALS = {"llmfit": llmfit, "whichllm": whichllm, "fitllm": fitllm}
