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
    """Of decode attention in an engine's step over the kernel by itself, on top of all kernels'."""
    eager_layer_s: float = 0.0
    """Host time of a layer in a step of more tokens than the largest graph, which the host launches; 0: not known."""
    eager_experts_layer_s: float = 0.0
    """The same of a network of experts."""
    eager_latent_layer_s: float = 0.0
    """The same of one whose attention is latent, about twice as many kernels; 0: as of other experts."""
    ttft_log_sigma: float | None = None
    """Of measured over predicted time to the first token of closed loops; None: as of loads at a rate."""
    throughput_log_sigma: float | None = None
    """Of measured over predicted throughput of requests that all come at once; None: as a step's."""

    def eager_s(self, arch: Architecture) -> float:
        """Host seconds at least of a step of ``arch`` that the host launches; 0 where they are not known."""
        experts = (arch.mla is not None and self.eager_latent_layer_s) or self.eager_experts_layer_s
        return arch.n_layers * (self.eager_layer_s if arch.moe is None else experts)


def front_of(config: EngineConfig, *, in_process: bool = False) -> Front:
    """Of the engine at its version: of the newest fit that is not younger, else of the oldest; of an engine that no load was
    measured with, the costs of its iterations alone. ``in_process``: where a program calls the engine and a server would slow its
    steps."""
    entries: list[dict[str, Any]] = [e for e in load_json("load")["engines"] if e["engine"] == config.engine]
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
    """What of a model an engine has kernels of its own for."""
    return "latent attention" if arch.mla is not None else "dense layers" if arch.moe is None else "experts"


BIAS = 1.15
"""Median of predicted over measured time of an engine's runs, or its inverse, from which an answer says it."""


def known_error(arch: Architecture, accelerator: Accelerator, engine: str) -> str | None:
    """That no run of such a model by the engine on the accelerator was compared with what is predicted of it, or by how much
    those that were are off: runs of the very model, where there are some. None where they agree, and for engines whose runs are
    not told apart so."""
    of_engine: dict[str, dict[str, list[Any]]] | None = load_json("load")["checked"].get(engine)
    if of_engine is None:
        return None
    what, compared = f"{ENGINES[engine].title} with {kind_of(arch)} on {accelerator.name}", of_engine.get(accelerator.id, {})
    if kind_of(arch) not in compared:
        return f"{what} was never checked: no measured run of it is known here"
    by_size = {size: (name, runs, ratio) for size, name, runs, ratio in compared[kind_of(arch)]}
    name, runs, ratio = by_size.get(arch.published_parameters or 0) or by_size.get(0) or ("", 0, 1.0)
    if 1 / BIAS <= ratio <= BIAS:
        return None
    return f"{what} took {1 / ratio:.2f} times the time predicted in {runs} measured run{'s' * (runs > 1)} of {name}"
