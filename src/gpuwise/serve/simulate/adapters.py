"""Low-rank adapters served with one model: their memory, and their time in a step.

Each target of a layer has two more products, ``x A`` to the rank and back ``(x A) B``, as grouped kernels over the adapters of a
step (vllm lora/ops/triton_ops lora_shrink, lora_expand): they read the weights of each adapter in the step once and the rows of
all tokens. Query, key and value share one pair of kernels, gate and up another. An engine has ``resident`` adapters on the device
(``max_loras``) and schedules no more at once; prefix-cache hits are per adapter.

    bytes of one on a rank = sum of 2 r (in + out/t) (query, key, value, gate, up) and 2 r (in/t + out) (output, down)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.models.architecture import Architecture
from gpuwise.predict.kernels.memory_bound import memory_time
from gpuwise.serve.engines.settings import Adapters
from gpuwise.serve.simulate.step_time import Steps

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
BYTES = 2.0
"""Bytes per adapter weight: 16 bits in every model format."""


def targets(arch: Architecture, tp: int) -> list[tuple[float, float]]:
    """(numbers into the rank, numbers out of it) of each pair of kernels of a layer, on one of ``tp`` ranks: attention's, and the
    MLP's of a dense model."""
    attention = arch.heads * arch.head_dim
    wide = attention + 2 * arch.kv_heads * arch.head_dim
    shapes = [(float(arch.hidden), wide / tp), (attention / tp, float(arch.hidden))]
    if arch.moe is None:
        gates = 2 if arch.gated_mlp else 1
        shapes += [(float(arch.hidden), gates * arch.ffn / tp), (arch.ffn / tp, float(arch.hidden))]
    return shapes


def adapter_bytes(arch: Architecture, rank: int, tp: int) -> float:
    """Bytes of one adapter on a rank. Merged targets have an ``A`` each."""
    merged = [3, 1, 2 if arch.gated_mlp else 1, 1]
    pairs = zip(targets(arch, tp), merged, strict=False)
    return arch.n_layers * BYTES * rank * sum(m * into + out for (into, out), m in pairs)


class AdapterSteps:
    """:class:`~gpuwise.serve.simulate.step_time.StepTime` of steps whose sequences have adapters, from that of plain steps."""

    def __init__(
        self, plain: Steps, adapters: Adapters, arch: Architecture, accelerator: Accelerator, tp: int, most: int
    ) -> None:
        self.plain, self.tables = plain, plain.tables
        self._adapters = adapters
        self._tokens: I64 = np.unique(np.concatenate([[1, 16, 64, 256], np.geomspace(512, max(most, 513), 8).astype(np.int64)]))
        none, one = (_seconds(arch, accelerator, adapters.rank, tp, self._tokens, distinct) for distinct in (0.0, 1.0))
        self._cost: tuple[F64, F64] = (none, one)
        n = np.arange(len(plain.fixed))
        self.fixed: Sequence[float] = (np.array(plain.fixed) + self._more(n, n)).tolist()
        self.slope: Sequence[float] = plain.slope
        self.host: Sequence[float] = plain.host

    def _more(self, tokens: I64, sequences: I64) -> F64:
        """[N] seconds of the adapters for the given tokens [N] of the given sequences [N]."""
        none, one = (np.interp(tokens, self._tokens, row) for row in self._cost)
        return np.where(tokens > 0, none + (one - none) * self._adapters.distinct(sequences), 0.0)

    def mixed(self, decoding: int, cached_tokens: int, chunks: Sequence[tuple[int, int]]) -> float:
        """Seconds of a step with the prompt chunks ``(new tokens, tokens before them)``."""
        tokens = decoding + sum(new for new, _ in chunks)
        added = self._more(np.array([tokens]), np.array([decoding + len(chunks)]))
        return self.plain.mixed(decoding, cached_tokens, chunks) + float(added[0])

    def parts(self, decoding: I64, prompt_tokens: I64, cached_tokens: I64, n_steps: I64, total_s: F64) -> dict[str, float]:
        """Parts of plain steps; the adapters' time counts as memory."""
        tokens, sequences = decoding + prompt_tokens, decoding + (prompt_tokens > 0)
        added = np.minimum(self._more(tokens, sequences) * n_steps, total_s)
        parts_s = self.plain.parts(decoding, prompt_tokens, cached_tokens, n_steps, total_s - added)
        return parts_s | {"memory": parts_s["memory"] + float(added.sum())}


def _seconds(arch: Architecture, accelerator: Accelerator, rank: int, tp: int, tokens: I64, distinct: float) -> F64:
    """[T] seconds of all adapters' kernels over ``tokens`` with ``distinct`` adapters: they move more than they compute."""
    rows = tokens.astype(np.float64)
    total = np.zeros(len(tokens))
    for into, out in targets(arch, tp):
        shrink = memory_time(accelerator, BYTES * (rows * into + distinct * rank * into), BYTES * rows * rank)
        expand = memory_time(accelerator, BYTES * (rows * (rank + out) + distinct * rank * out), BYTES * rows * out)
        total = total + shrink.time_s + expand.time_s
    return arch.n_layers * total
