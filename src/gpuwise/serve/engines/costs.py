"""What a serving engine costs beside its kernels, fitted (``coefficients/inference.json``). The key is the engine, the versions
that were measured, and whether the engine was started with the flags of a performance recipe or as installed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from gpuwise.errors import DataError
from gpuwise.facts.models.architecture import Architecture
from gpuwise.predict.coefficients import load_json
from gpuwise.serve.engines.engine import EngineConfig, version_number


@dataclass(frozen=True, slots=True)
class EngineCosts:
    """Engine overhead on the kernels of an iteration of ``B`` sequences and ``L`` layers.

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
    """Additional time of an expert layer: kernels that route, sort and combine beside the products."""
    log_sigma: float = 0.0
    """Standard deviation of log(measured / predicted) time on held-out models."""

    def layers_s(self, arch: Architecture) -> float:
        """Seconds of an iteration between the kernels of all layers."""
        return arch.n_layers * (self.layer_s + (0.0 if arch.moe is None else self.experts_layer_s))


def engine_costs(config: EngineConfig) -> EngineCosts:
    """Fitted costs of the engine for how it is started (default: those of the tuned engine), from the newest fit that is not
    newer than the requested version, else from the oldest."""
    entries = [e for e in load_json("inference")["engines"] if e["engine"] == config.measured_as]
    started = [e for e in entries if e["tuned"] == config.tuned] or entries
    if not started:
        raise DataError(f"inference.json has no costs of {config.engine}")
    return entry_costs(newest_for(config.version, started, lambda e: e["versions"][0] if e["versions"] else ""), config)


def newest_for(version: str | None, entries: list[dict[str, Any]], since: Callable[[dict[str, Any]], str]) -> dict[str, Any]:
    """The newest entry that is not younger than ``version`` (None: of all), else the oldest."""
    by_age = sorted(entries, key=lambda e: version_number(since(e)))
    old_enough = [e for e in by_age if version is None or version_number(since(e)) <= version_number(version)]
    return old_enough[-1] if old_enough else by_age[0]


def entry_costs(entry: dict[str, Any], config: EngineConfig) -> EngineCosts:
    """Costs from an entry of the coefficient files. Communication between data-parallel attention groups and their experts is
    not the engine's own all-reduce: if fitted separately, it is ``communication_slowdown`` of such a layout."""
    costs = EngineCosts(**entry["costs"], log_sigma=entry["log_sigma"])
    if config.attention_dp > 1 and "exchange_slowdown" in entry:
        return replace(costs, communication_slowdown=entry["exchange_slowdown"])
    return costs
