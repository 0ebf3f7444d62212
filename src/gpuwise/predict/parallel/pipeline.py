"""Pipeline schedules: time of m micro-batches through p stages.

With F, B, W the forward, backward and weight-gradient seconds of a stage (B includes W), v chunks a stage:

============  ===========================================================  ======================
schedule      bubble                                                       source
============  ===========================================================  ======================
gpipe, 1f1b   (p - 1)(F + B)                                               arXiv 1811.06965, 2104.04473 section 2.2
interleaved   (p - 1)(F + B) / v                                           arXiv 2104.04473 section 2.2
zero-bubble   (p - 1)(F + B - 2W), at least 0 (ZB-H1)                      arXiv 2401.10241 table 2
dualpipe      (p/2 - 1)(F&B + B - 3W), at least 0                          arXiv 2412.19437 table 2
dualpipe-v    (p - 1)(F&B + B - 3W) / 2, at least 0                        github.com/deepseek-ai/DualPipe
============  ===========================================================  ======================

Unequal stages: the slowest sets the rate, the ramp is the sum over the others. F&B is a forward and a backward that run at
once, which take F + B here: what of their transfers hides behind the other's work is the stack's overlap. DualPipe sends
micro-batches from both ends, so that every rank has two stages, the i-th and the i-th last: twice the parameters, and of
their mean time. DualPipeV folds 2p half stages over p ranks instead, first and last on the first, and needs no copy.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpuwise.workload.strategy import SCHEDULES

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]


INTERLEAVED, ZERO_BUBBLE, DUALPIPE, DUALPIPE_V = (
    SCHEDULES.index(name) for name in ("interleaved", "zero-bubble", "dualpipe", "dualpipe-v")
)


def copies(schedule: I64, pp: I64) -> I64:
    """Stages whose parameters a rank holds."""
    return np.where((schedule == DUALPIPE) & (pp > 1), 2, 1)


def folded(schedule: I64, pp: I64) -> NDArray[np.bool_]:
    """Whether a rank works for the i-th stage and the i-th last, so that the first has both ends of the model."""
    return ((schedule == DUALPIPE) | (schedule == DUALPIPE_V)) & (pp > 1)


def hiding_passes(micro_batches: I64, pp: I64, virtual_stages: I64, schedule: I64) -> F64:
    """[N] micro-batches whose passes on a stage run beside the gradients' reduction (and the parameters' gather).

    One, the last (the first), where all layers of a stage are done at once. Interleaved, a rank does its ``v`` chunks one after
    the other, ``p`` micro-batches each, and reduces a chunk when its last micro-batch is through (``grad_sync_func`` of
    Megatron-Core, core/pipeline_parallel/schedules.py): beside those reductions run ``p (v - 1) / v`` more."""
    more = np.minimum(micro_batches, pp) * (virtual_stages - 1) / np.maximum(virtual_stages, 1)
    return 1.0 + np.where((schedule == INTERLEAVED) & (pp > 1), more, 0.0)


def pipeline_time(
    slowest_s: F64,
    ramp_s: F64,
    backward_s: F64,
    wgrad_s: F64,
    micro_batches: I64,
    pp: I64,
    virtual_stages: I64,
    schedule: I64,
) -> tuple[F64, F64]:
    """Total seconds and the bubble's share of them in seconds.

    ``slowest_s`` is F + B of the slowest stage for one micro-batch, ``ramp_s`` the sum of F + B over the other stages,
    ``backward_s`` the backward of one stage with what it repeats, ``wgrad_s`` its weight-gradient part. All arrays [N].
    """
    divisor = np.where(schedule == INTERLEAVED, np.maximum(virtual_stages, 1), 1)
    bubble = ramp_s / divisor
    zero = schedule == ZERO_BUBBLE
    bubble = np.where(zero, np.maximum(bubble - 2 * (pp - 1) * wgrad_s, 0.0), bubble)
    both = np.maximum(slowest_s + backward_s - 3 * wgrad_s, 0.0)
    bubble = np.where(schedule == DUALPIPE, np.maximum(pp / 2 - 1, 0.0) * both, bubble)
    bubble = np.where(schedule == DUALPIPE_V, (pp - 1) * both / 2, bubble)
    bubble = np.where(pp > 1, bubble, 0.0)
    return micro_batches * slowest_s + bubble, bubble


def in_flight(stage_from_first: I64, micro_batches: I64, pp: I64, virtual_stages: I64, schedule: I64) -> F64:
    """Micro-batches whose activations a stage holds at its worst moment, in units of the whole stage's layers.

    gpipe keeps all m; 1F1B and ZB-H1 keep p - i on stage i; interleaving keeps p (1 + (p - 1) / (p v)) on stage 0
    (arXiv 2205.05198, section 4.3.2), one less per two later stages. DualPipe keeps p + 1 on every stage, those of its two
    together (arXiv 2412.19437 table 2), DualPipeV 2p + 1 of half the size.
    """
    depth = np.minimum(pp - stage_from_first, micro_batches).astype(np.float64)
    v = np.maximum(virtual_stages, 1)
    chunks = np.minimum((v - 1) * pp + 2 * (pp - stage_from_first - 1) + 1, micro_batches * v)
    interleaved = np.where(v > 1, chunks / v, depth)
    out = np.where(schedule == INTERLEAVED, interleaved, depth)
    out = np.where(schedule == DUALPIPE, np.minimum(pp + 1.0, micro_batches), out)
    out = np.where(schedule == DUALPIPE_V, np.minimum(pp + 0.5, micro_batches), out)
    return np.where(schedule == SCHEDULES.index("gpipe"), micro_batches.astype(np.float64), out)
