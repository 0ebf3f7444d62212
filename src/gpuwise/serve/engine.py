"""How a serving engine holds and splits a model, and what the engine costs beside the kernels.

Costs are fitted (``coefficients/inference.json``). Their key is the engine, the versions they were measured with, and
whether the engine was started with the flags of a performance recipe or as installed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from gpuwise.errors import DataError, InputError, UnknownNameError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.models.architecture import Architecture
from gpuwise.facts.software.support import support_of
from gpuwise.predict.coefficients import load_json
from gpuwise.serve.formats import ENGINE_FORMATS, LLAMA_CPP_FORMATS

LLAMA_CPP = "llama.cpp"
PROGRAMS = {"vllm": "vLLM", "sglang": "SGLang", "trtllm": "TensorRT-LLM", LLAMA_CPP: LLAMA_CPP}
"""Engines as their makers write them."""
ENGINES = tuple(PROGRAMS)
STAGED = ("vllm",)
"""Engines whose pipeline stages are simulated."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How an engine holds and splits a model.

    Dense weights are split over ``tp``; ``attention_dp`` groups of ``tp`` ranks each hold all of the
    attention and serve their share of the sequences. Experts are split ``moe_tp`` ways inside and ``moe_ep``
    ways among ranks; ``moe_tp * moe_ep`` is ``tp * attention_dp``.
    """

    engine: str = "vllm"
    weights: str = "bf16"
    expert_weights: str | None = None
    """None: as ``weights``."""
    kv_dtype: str = "bf16"
    tp: int = 1
    pp: int = 1
    """Pipeline stages that hold layers in turn: under llama.cpp its devices."""
    attention_dp: int = 1
    moe_tp: int = 1
    moe_ep: int = 1
    tuned: bool = True
    """Started with the flags of a performance recipe (kernel choice, graphs, scheduling); False: as
    installed."""
    attention: str | None = None
    """Kernel of the prompt's attention (``fa2``, ``fa3``, ``cudnn``); None: the one the engine picks."""
    experts: str | None = None
    """Kernels of experts: ``triton``; None: those that the engine picks at its version."""
    version: str | None = None
    """Of the engine (``0.19.0``); None: the newest its costs are known of."""

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise UnknownNameError("serving engine", self.engine, ENGINES)
        for name in (self.weights, self.expert_weights or self.weights):
            formats = LLAMA_CPP_FORMATS if self.engine == LLAMA_CPP else ENGINE_FORMATS
            if name not in formats:
                raise UnknownNameError("weight format", name, formats, hint="it is one of " + ", ".join(formats))
        if self.pp > 1 and (self.engine not in (LLAMA_CPP, *STAGED) or self.attention_dp > 1):
            raise InputError(
                f"pipeline stages of {self.engine} are not simulated" + (" in groups" if self.engine in STAGED else ""),
                hint="split with tp, or take vllm",
            )
        if self.engine == LLAMA_CPP and self.tp * self.attention_dp > 1:
            raise InputError("llama.cpp's layers are on its devices in turn", hint="pp is the number of devices")

    @property
    def ranks(self) -> int:
        """Accelerators of one replica."""
        return self.tp * self.pp * self.attention_dp


def tensor_parallel(arch: Architecture, weights: str, ranks: int, engine: str = "vllm") -> EngineConfig:
    """``arch`` split over ``ranks`` accelerators as the engine does unless told otherwise: experts inside, like the rest.
    Raises UnknownNameError."""
    return EngineConfig(engine, weights, tp=ranks, moe_tp=ranks if arch.moe is not None else 1)


MARLIN_SINCE = (7, 5)
"""Compute capability from which Marlin has kernels (vllm pull requests 5975, 29901)."""


def check_formats(accelerator: Accelerator, config: EngineConfig) -> None:
    """Raises InputError for 8-bit or 4-bit floating weights on an NVIDIA GPU before Turing: engines widen them in Marlin, which
    has no kernel there (vllm pull requests 5975, 29901)."""
    named = next((w for w in (config.weights, config.expert_weights or "") if w.startswith(("fp8", "nvfp4", "mxfp4"))), None)
    old = accelerator.vendor == "NVIDIA" and version_number(accelerator.compute_capability or "99") < MARLIN_SINCE
    if named is not None and old and config.engine != LLAMA_CPP:
        raise InputError(
            f"{accelerator.name} has no kernel for {named} weights: Marlin, which widens them, begins at compute capability 7.5",
            hint="take 16-bit weights (--weights 16), int4_wo (GPTQ), or --engine llama.cpp",
        )


@cache
def engine_runs(accelerator: Accelerator, engine: str = "vllm") -> bool:
    """Whether the engine's own tables of support list the accelerator, in full or in part."""
    return support_of(accelerator).of("framework", engine).level in ("full", "partial")


@dataclass(frozen=True, slots=True)
class EngineCosts:
    """What an engine adds to the kernels of an iteration of ``B`` sequences and ``L`` layers.

    ``decode = kernel_slowdown kernels + communication_slowdown collectives + iteration_s + sequence_s B + layer_s L``;
    a prompt that shares its iterations with decoding sequences adds ``prefill_slowdown kernels +
    communication_slowdown collectives``.
    """

    kernel_slowdown: float
    prefill_slowdown: float
    communication_slowdown: float
    iteration_s: float
    """Scheduler and sampling."""
    sequence_s: float
    """Bookkeeping of one sequence."""
    layer_s: float
    """Gaps between the kernels of a layer."""
    experts_layer_s: float = 0.0
    """What a layer of experts takes besides: the kernels that choose, sort and join beside their products."""
    log_sigma: float = 0.0
    """Of measured over predicted time on models kept from the fit."""

    def layers_s(self, arch: Architecture) -> float:
        """Seconds of an iteration between the kernels of all layers."""
        return arch.n_layers * (self.layer_s + (0.0 if arch.moe is None else self.experts_layer_s))


def engine_costs(config: EngineConfig) -> EngineCosts:
    """Fitted costs of the engine, started as it was (those of the tuned engine where no other was measured): of the newest
    fit that is not younger than the version asked for, else of the oldest."""
    entries = [e for e in load_json("inference")["engines"] if e["engine"] == config.engine]
    started = [e for e in entries if e["tuned"] == config.tuned] or entries
    if not started:
        raise DataError(f"inference.json has no costs of {config.engine}")
    by_age = sorted(started, key=_first_version)
    wanted = None if config.version is None else version_number(config.version)
    old_enough = [e for e in by_age if wanted is None or _first_version(e) <= wanted]
    entry = old_enough[-1] if old_enough else by_age[0]
    return entry_costs(entry, config)


def entry_costs(entry: dict[str, Any], config: EngineConfig) -> EngineCosts:
    """Costs of an entry of the coefficient files. What crosses between groups that attend apart and their experts is not the
    engine's own all-reduce: where it was fitted by itself, it is ``communication_slowdown`` of such a layout."""
    costs = EngineCosts(**entry["costs"], log_sigma=entry["log_sigma"])
    if config.attention_dp > 1 and "exchange_slowdown" in entry:
        return replace(costs, communication_slowdown=entry["exchange_slowdown"])
    return costs


def _first_version(entry: dict[str, Any]) -> tuple[int, ...]:
    """The oldest version an entry was measured with; below all others where none was said."""
    return version_number(entry["versions"][0]) if entry["versions"] else ()


def version_number(text: str) -> tuple[int, ...]:
    """``"0.19.0rc1"`` as ``(0, 19, 0)``: the leading whole numbers of its parts."""
    numbers: list[int] = []
    for part in text.split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
        if digits != part:
            break
    return tuple(numbers)
