"""What an engine's steps and its clients see beside the kernels: costs of a step, the scheduler's own time, and the server
in front that reads a request and writes an answer.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuwise.serve.engine import EngineConfig, EngineCosts, engine_costs


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


def front_of(config: EngineConfig) -> Front:
    """Of an engine that no load was measured with: the costs of its iterations alone."""
    return Front(engine_costs(config))
