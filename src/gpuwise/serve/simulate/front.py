"""What an engine's steps and its clients see beside the kernels: costs of a step, the scheduler's own time, and the server
in front that reads a request and writes an answer.

Keyed by engine and version (``coefficients/serving/load.json``, fitted on published runs under load).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.models.architecture import Architecture
from gpuwise.predict.coefficients import load_json
from gpuwise.serve.engines.costs import EngineCosts, engine_costs, entry_costs, newest_for
from gpuwise.serve.engines.engine import ENGINES, EngineConfig


@dataclass(frozen=True, slots=True)
class Front:
    """``costs`` of a step on the device; ``host_s`` and ``host_sequence_s`` of the scheduler's step and of each sequence in it;
    ``request_s`` and ``prompt_token_s`` before the engine has a request, ``answer_s`` and ``answer_token_s`` after it."""

    costs: EngineCosts
    host_s: float = 0.0
    host_sequence_s: float = 0.0
    request_s: float = 0.0
    prompt_token_s: float = 0.0
    answer_s: float = 0.0
    answer_token_s: float = 0.0
    attention_slowdown: float = 1.0
    """Slowdown of decode attention in an engine's step relative to the kernel alone, on top of all kernels'."""
    eager_layer_s: float = 0.0
    """Host time per layer of a step with more tokens than the largest graph, which the host launches; 0: unknown."""
    eager_experts_layer_s: float = 0.0
    """The same of a network of experts."""
    eager_latent_layer_s: float = 0.0
    """The same for latent attention, with about twice as many kernels; 0: as for other experts."""
    ttft_log_sigma: float | None = None
    """Standard deviation of log(measured / predicted) time to first token of closed loops; None: as for loads at a rate."""
    throughput_log_sigma: float | None = None
    """The same for throughput of requests that all arrive at once; None: as for a step."""

    def eager_s(self, arch: Architecture) -> float:
        """Minimum host seconds of a step of ``arch`` that the host launches; 0 if unknown."""
        experts = (arch.mla is not None and self.eager_latent_layer_s) or self.eager_experts_layer_s
        return arch.n_layers * (self.eager_layer_s if arch.moe is None else experts)


def front_of(config: EngineConfig, *, in_process: bool = False) -> Front:
    """Front of the engine at its version, from the newest fit that is not newer, else from the oldest; for an engine without
    measured loads, only the costs of its iterations. ``in_process``: a program calls the engine, without a server that slows
    its steps."""
    entries: list[dict[str, Any]] = [e for e in load_json("load")["engines"] if e["engine"] == config.measured_as]
    if config.program.whole_steps:
        return Front(EngineCosts(1.0, 1.0, 1.0, 0.0, 0.0, 0.0))
    if not entries:
        return Front(engine_costs(config))
    entry = newest_for(config.version, entries, lambda e: e["since"])
    entry = entry | entry.get("in_process", {}) if in_process else entry
    return Front(
        entry_costs(entry, config),
        **entry["front"],
        ttft_log_sigma=entry.get("ttft_log_sigma"),
        throughput_log_sigma=entry.get("throughput_log_sigma"),
    )


def kind_of(arch: Architecture) -> str:
    """Kind of model for which an engine has special kernels."""
    return "latent attention" if arch.mla is not None else "dense layers" if arch.moe is None else "experts"


BIAS = 1.15
"""Median ratio of predicted to measured time of an engine's runs, or its inverse, above which an answer reports it."""


def known_error(arch: Architecture, accelerator: Accelerator, engine: str) -> str | None:
    """Note on the known error: no run of such a model by the engine on the accelerator was compared with the prediction, or
    the error of the compared ones (of the same model, if any). None if they agree, and for engines without such a comparison."""
    of_engine: dict[str, dict[str, list[Any]]] | None = load_json("load")["checked"].get(engine)
    if of_engine is None:
        return None
    what, compared = f"{ENGINES[engine].title} with {kind_of(arch)} on {accelerator.name}", of_engine.get(accelerator.id, {})
    if kind_of(arch) not in compared:
        return f"{what} was never checked: there is no measured run of it"
    by_size = {size: (name, runs, ratio) for size, name, runs, ratio in compared[kind_of(arch)]}
    name, runs, ratio = by_size.get(arch.published_parameters or 0) or by_size.get(0) or ("", 0, 1.0)
    if 1 / BIAS <= ratio <= BIAS:
        return None
    return f"{what} took {1 / ratio:.2f} times the time predicted in {runs} measured run{'s' * (runs > 1)} of {name}"
