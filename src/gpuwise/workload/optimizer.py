"""What an optimizer keeps and moves for each parameter it updates."""

from __future__ import annotations

from dataclasses import dataclass

from gpuwise.dtypes import FORMAT_BYTES
from gpuwise.workload.blocks.point import NF4_BYTES_PER_PARAMETER
from gpuwise.workload.stacks.stack import find_stack
from gpuwise.workload.strategy import Strategy


@dataclass(frozen=True, slots=True)
class OptimizerRule:
    """``state_bytes`` a parameter beyond weight and gradient; ``traffic_bytes`` read and written of that state a step;
    ``foreach_passes`` fp32-size temporaries PyTorch's foreach path streams."""

    state_bytes: float
    traffic_bytes: float
    foreach_passes: float
    source: str


RULES: dict[str, OptimizerRule] = {
    "sgd": OptimizerRule(0.0, 0.0, 1.0, "torch.optim.SGD without momentum"),
    "momentum": OptimizerRule(4.0, 8.0, 2.0, "torch.optim.SGD momentum buffer"),
    "adamw": OptimizerRule(8.0, 16.0, 6.0, "arXiv 1711.05101: exp_avg and exp_avg_sq in fp32"),
    "adamw-bf16": OptimizerRule(4.0, 8.0, 6.0, "arXiv 2412.19437 section 3.3.2: both moments in bf16 beside fp32 weights"),
    "adamw8bit": OptimizerRule(
        2.0 + 2 * 4 / 256, 4.0, 2.0, "arXiv 2110.02861 (bitsandbytes blockwise: 1 B each, fp32 scale per 256 block)"
    ),
    "paged-adamw": OptimizerRule(
        8.0, 16.0, 2.0, "AdamW in unified memory, whose pages the driver moves (arXiv 2305.14314, section 3: paged_adamw_32bit)"
    ),
    "paged-adamw8bit": OptimizerRule(
        2.0 + 2 * 4 / 256,
        4.0,
        2.0,
        "the same in unified memory, whose pages the driver moves (arXiv 2305.14314, section 3)",
    ),
    "adafactor": OptimizerRule(
        2 * 4 / 1024, 0.1, 6.0, "arXiv 1804.04235: row and column sums of the second moment (matrices of about 1024 and wider)"
    ),
    "lion": OptimizerRule(4.0, 8.0, 3.0, "arXiv 2302.06675: one fp32 momentum"),
    "muon": OptimizerRule(4.0, 8.0, 4.0, "Jordan et al. 2024 (Muon): one momentum, Newton-Schulz of 5 steps in bf16"),
}


FOLLOWS_PARAMETER = ("momentum", "adamw", "lion", "muon")
"""Optimizers whose states take the parameter's format (torch.optim: zeros_like(parameter)): half of the fp32 bytes
when half-precision weights have no master copy."""


PAGED_FORM = {"adamw": "paged-adamw", "adamw8bit": "paged-adamw8bit"}
PAGED = tuple(PAGED_FORM.values())
"""Optimizers whose states the driver moves to the host where the device has no room for them."""
BITSANDBYTES = ("adamw8bit", *PAGED)
"""Optimizers whose kernels are bitsandbytes', on the GPU alone (its README: no 8-bit optimizers on a CPU)."""


@dataclass(frozen=True, slots=True)
class ParameterBytes:
    """Bytes a trained parameter takes in each place.

    ``weight`` is the copy the forward reads; ``master`` the fp32 copy beside a half-precision weight (0 when the weight
    itself is fp32); ``gradient`` the accumulated gradient; ``state`` the optimizer's.
    """

    weight: float
    master: float
    gradient: float
    state: float


def autocasts(strategy: Strategy) -> bool:
    """Whether the weights the forward reads are fp32 ones, cast for each product (autocast without a half copy)."""
    half = strategy.precision in ("bf16", "fp16") and not strategy.quantized_base
    return half and strategy.master_weights and find_stack(strategy.stack).weight_cast_per_micro_batch


def parameter_bytes(strategy: Strategy) -> ParameterBytes:
    """Bytes per trained parameter under the strategy's precision and optimizer."""
    half = strategy.precision not in ("fp32", "tf32")
    weight = 2.0 if half else 4.0
    master = 4.0 if half and strategy.master_weights else 0.0
    gradient = FORMAT_BYTES[strategy.gradient_dtype] if half else 4.0
    state = RULES[strategy.optimizer].state_bytes * _state_share(strategy)
    return ParameterBytes(weight, master, gradient, state)


def _state_share(strategy: Strategy) -> float:
    """Bytes of the optimizer's states over those of fp32: half where they follow weights in 16 bits without a copy."""
    half = strategy.precision not in ("fp32", "tf32")
    follows = half and not strategy.master_weights and strategy.optimizer in FOLLOWS_PARAMETER
    return 0.5 if follows else 1.0


def update_traffic_bytes(strategy: Strategy, fused: bool) -> float:
    """Bytes read and written per parameter by one optimizer step: gradient, weight, master and states, plus the
    gradient-norm pass, plus the temporaries of an unfused implementation."""
    b = parameter_bytes(strategy)
    rule = RULES[strategy.optimizer]
    wide = b.master or b.weight
    traffic = b.gradient + 2 * wide + (b.weight if b.master else 0.0) + rule.traffic_bytes * _state_share(strategy) + b.gradient
    # bitsandbytes updates with one kernel per tensor, whatever the framework does with others
    one_kernel = fused or strategy.optimizer in BITSANDBYTES
    return traffic if one_kernel else traffic + rule.foreach_passes * 8.0


def on_host(s: Strategy) -> list[str]:
    """Description of the parts of a strategy in host memory."""
    states = offloaded_states(s.stack, s.dp * s.cp, optimizer=s.offload_optimizer, parameters=s.offload_parameters)
    return list(filter(None, [states, "activations" if s.offload_activations else ""]))


def offloaded_states(stack: str, ranks: int, *, optimizer: bool, parameters: bool) -> str:
    """Description of what of the weights and the ``optimizer`` is in host memory: with FSDP on several data-parallel ``ranks``
    both together. Empty for neither."""
    if not optimizer:
        return "weights" if parameters else ""
    return "weights and optimizer" if _with_weights(stack, ranks, parameters) else "optimizer"


def weights_on_host(s: Strategy) -> bool:
    """Whether a strategy keeps the weights in host memory."""
    return s.offload_parameters or (s.offload_optimizer and _with_weights(s.stack, s.dp * s.cp, parameters=False))


def _with_weights(stack: str, ranks: int, parameters: bool) -> bool:
    return parameters or (ranks > 1 and find_stack(stack).offloads_parameters)


def frozen_bytes(base: Strategy) -> float:
    """Bytes of a frozen matrix parameter: the compute format, fp32 where autocast casts it, or 4 bits under QLoRA."""
    if base.quantized_base:
        return NF4_BYTES_PER_PARAMETER
    return 4.0 if autocasts(base) else parameter_bytes(base).weight
