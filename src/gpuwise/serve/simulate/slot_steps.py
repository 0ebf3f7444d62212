"""Seconds of a local program's batches and the memory of its sequences, by :mod:`gpuwise.serve.streams`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.errors import NoRoomError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.models.architecture import Architecture
from gpuwise.predict.coefficients import load_json
from gpuwise.predict.estimate import Basis
from gpuwise.serve.engines.engine import EngineConfig
from gpuwise.serve.engines.settings import Settings
from gpuwise.serve.memory import ServingMemory, local_memory
from gpuwise.serve.streams import batch_spread, prompt_time, seconds
from gpuwise.units import GIB

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SlotTables:
    """Further figures for an answer, beside the times."""

    log_sigma: float
    basis: Basis


class SlotSteps:
    """:class:`~gpuwise.serve.simulate.step_time.StepTime` of batches of up to ``most`` sequences that hold about ``context``
    tokens. Raises UnpredictableError for a device without published rates, UnknownNameError for a format."""

    def __init__(self, arch: Architecture, accelerator: Accelerator, config: EngineConfig, most: int, context: int) -> None:
        self.arch, self.accelerator, self.config = arch, accelerator, config
        self._form: dict[str, Any] = load_json(config.program.streams)["form"]
        self.tables = SlotTables(*batch_spread(arch, accelerator, config.program))
        low, high = max(context // 2, 16), max(context * 2, 64)
        at_low, at_high = (np.array([self._written(n, c) for n in range(1, most + 1)]) for c in (low, high))
        n = np.arange(1, most + 1)
        slope = (at_high - at_low) / ((high - low) * n)
        fixed = np.maximum(at_low - slope * low * n, 0.0)
        self.fixed: Sequence[float] = [0.0, *fixed.tolist()]
        self.slope: Sequence[float] = [float(slope[0]), *slope.tolist()]
        self._prompt = prompt_time(self._form, arch, accelerator, config.weights, batch=config.program.prompt_batch)
        self.host: Sequence[float] = [0.0] * (most + 1)

    def _written(self, sequences: int, context: float) -> float:
        """Seconds of a token of each of ``sequences``."""
        c = self.config
        return seconds(self._form, self.arch, self.accelerator, c.weights, context, c.pp, sequences)

    def mixed(self, decoding: int, cached_tokens: int, chunks: Sequence[tuple[int, int]]) -> float:
        """Seconds of a batch with the prompt chunks ``(new tokens, tokens before them)``."""
        found = self.fixed[decoding] + self.slope[decoding] * cached_tokens
        for new, before in chunks:
            found += self._prompt(new, before)
        return max(found, self.fixed[1])  # any batch reads the weights

    def parts(self, decoding: I64, prompt_tokens: I64, cached_tokens: I64, n_steps: I64, total_s: F64) -> dict[str, float]:
        """Seconds of steps by what they went to: prompts and rows are compute, what one sequence's token takes is memory."""
        one = np.where(decoding > 0, self.fixed[1], 0.0)
        slope = np.array(self.slope, np.float64)[decoding]
        mean = cached_tokens + decoding * (n_steps - 1) / 2.0
        memory = np.minimum((one + slope * mean) * n_steps, total_s)
        return {
            "compute": float((total_s - memory).sum()),
            "memory": float(memory.sum()),
            "communication": 0.0,
            "host": 0.0,
        }


@lru_cache(maxsize=256)
def slot_steps(arch: Architecture, accelerator: Accelerator, config: EngineConfig, most: int, context: int) -> SlotSteps:
    """:class:`SlotSteps`, worked out once."""
    return SlotSteps(arch, accelerator, config, most, context)


def slot_memory(arch: Architecture, accelerator: Accelerator, config: EngineConfig, options: Settings) -> ServingMemory:
    """Bytes on a device with all slots' caches. Raises NoRoomError where they do not fit beside the weights."""
    assert options.max_num_seqs is not None
    context = options.max_model_len or arch.max_seq_len
    one = local_memory(config.program, arch, accelerator, config.weights, n_devices=config.pp, context=context)
    memory = replace(one, cache=one.cache * options.max_num_seqs)
    if not memory.fits:
        short = (memory.total - memory.most) / GIB
        raise NoRoomError(
            f"{options.max_num_seqs} {config.program.place}s of {context:,} tokens of {arch.id} do not fit: "
            f"{short:.1f} GiB short on {accelerator.name}",
            hint=f"fewer {config.program.place}s, a shorter context (--context), narrower weights (--weights 4) or more devices",
        )
    return memory
