"""Speculative decoding: a draft proposes tokens, one step of the model verifies them all.

With ``k`` draft tokens and ``L`` tokens per step on average (its own included, between 1 and ``k + 1``), a token takes

    ((work((k + 1) n) + attention) + k d (fixed(n) + slope(n) S) + host(n)) / L

seconds for ``n`` sequences with ``S`` cached tokens: the products run over ``k + 1`` rows of each, the caches are read once,
and each draft token takes the share ``d`` of a step; ``host`` is the scheduler's time if it waits for the accepted tokens.
Drafts are slower if rows cost more than the accepted tokens save: at large batches, or with few accepted. Tokens arrive in
bursts of ``L``; here they are spread evenly. ``L`` differs by model and text (SemiAnalysis InferenceX, golden_al_distribution:
2.5 to 3.4 for three guesses on code).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gpuwise.facts.models.architecture import Architecture
from gpuwise.serve.engines.settings import Drafts
from gpuwise.serve.simulate.kernel_steps import KernelSteps
from gpuwise.workload.transformer.parameters import count_parameters

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]


def draft_share(arch: Architecture) -> float:
    """Share of a step's time for a draft of one layer and the head, by the weights they read."""
    head = arch.vocab * arch.hidden
    part = head / max(count_parameters(arch).total - head, head)
    return part + (1.0 - part) / arch.n_layers


class DraftSteps:
    """:class:`~gpuwise.serve.simulate.step_time.StepTime` of a token under speculative decoding, from that of plain steps."""

    def __init__(self, plain: KernelSteps, drafts: Drafts, arch: Architecture, host_s: tuple[float, float] = (0.0, 0.0)) -> None:
        """``host_s`` of a step and of each sequence in it, which no kernel hides."""
        self.plain, self.tables = plain, plain.tables
        share = draft_share(arch) if drafts.share is None else drafts.share
        k, n_kept = drafts.tokens, drafts.kept
        wide, alone = (plain.products(width) for width in (k + 1, 1))
        fixed, slope = np.array(plain.fixed, np.float64), np.array(plain.slope, np.float64)
        host = host_s[0] + host_s[1] * np.arange(len(fixed))
        self._added: F64 = (fixed + (wide - alone) + k * share * fixed + host) / n_kept - fixed
        self._steeper: F64 = slope * (1.0 + k * share) / n_kept - slope
        self.fixed: Sequence[float] = (fixed + self._added).tolist()
        self.slope: Sequence[float] = (slope + self._steeper).tolist()
        self.host: Sequence[float] = (np.array(plain.host) / n_kept).tolist()

    def mixed(self, decoding: int, cached_tokens: int, chunks: Sequence[tuple[int, int]]) -> float:
        """Seconds of a step with the prompt chunks ``(new tokens, tokens before them)``."""
        seconds = self.plain.mixed(decoding, cached_tokens, chunks)
        if not decoding:
            return seconds
        return seconds + float(self._added[decoding]) + float(self._steeper[decoding]) * cached_tokens

    def parts(self, decoding: I64, prompt_tokens: I64, cached_tokens: I64, n_steps: I64, total_s: F64) -> dict[str, float]:
        """Parts of plain steps, scaled to the total time."""
        parts_s = self.plain.parts(decoding, prompt_tokens, cached_tokens, n_steps, total_s)
        factor = float(total_s.sum()) / max(sum(parts_s.values()), 1e-300)
        return {name: seconds * factor for name, seconds in parts_s.items()}
