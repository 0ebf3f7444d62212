"""The layout a submitter would have chosen: the fastest one that fits, for runs that state devices and batch
only.

MLPerf's results are tuned by their submitters, so that the best of the usual layouts is a defensible reading
of a row; the stated accumulation, where above one, narrows it. Splits tried: tensor and context over at most
eight, pipeline over up to sixteen devices, micro-batches of one, two, four or the whole batch, with and
without selective recomputation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np

from gpuwise.errors import UnpredictableError
from gpuwise.facts.hardware.systems import Cluster
from gpuwise.facts.models.architecture import Architecture
from gpuwise.predict.columns import Columns
from gpuwise.predict.memory.strategies import memory_columns
from gpuwise.predict.step.evaluate import evaluate
from gpuwise.workload.strategy import Strategy

TENSOR, CONTEXT, PIPELINE, MICRO = (1, 2, 4, 8), (1, 2, 4, 8), (1, 2, 4, 8, 16), (1, 2, 4)


@dataclass(frozen=True, slots=True)
class TunedRun:
    """A tuned run: everything but the layout."""

    architecture: Architecture
    cluster: Cluster
    precision: str
    seq_len: int
    global_batch: int
    accumulation: int
    """As stated; 1 leaves it open."""
    lora_rank: int = 0
    cuda_graphs: str = "partial"
    packed_document_len: int | None = None


def best_layout(job: TunedRun) -> tuple[Strategy, float]:
    """The fastest layout that fits, and its step seconds. Raises UnpredictableError when none does."""
    candidates = list(_candidates(job))
    exact = [s for s in candidates if s.accumulation == job.accumulation] if job.accumulation > 1 else []
    candidates = exact or candidates
    if not candidates:
        raise UnpredictableError("no layout divides the batch over the devices")
    system = job.cluster.system
    columns = Columns.from_strategies(candidates)
    done = evaluate(job.architecture, system, columns, job.seq_len, packed_document_len=job.packed_document_len)
    memory = memory_columns(job.architecture, system, done.costs, columns, done.point_index)
    fits = np.broadcast_to(memory.fits(), columns.shape)
    if not fits.any():
        raise UnpredictableError("no layout of those tried fits the memory")
    seconds = np.where(fits, done.times.step_s, np.inf)
    best = int(seconds.argmin())
    return candidates[best], float(seconds[best])


def _candidates(job: TunedRun) -> Iterator[Strategy]:
    arch, n = job.architecture, job.cluster.n_accelerators
    base = Strategy(
        precision=job.precision, stack="megatron-core", sharding="zero1", lora_rank=job.lora_rank, cuda_graphs=job.cuda_graphs
    )
    for tp, cp, pp, micro, recompute in product(TENSOR, CONTEXT, PIPELINE, (*MICRO, 0), ("none", "selective")):
        dp, rest = divmod(n, tp * cp * pp)
        if micro == 0:  # the whole batch at once
            micro = job.global_batch // max(dp, 1)
            if micro in MICRO or micro == 0 or pp > 1:
                continue
        if rest or dp == 0 or tp > job.cluster.system.domain_size or arch.heads % tp or arch.kv_heads % min(tp, arch.kv_heads):
            continue
        if job.global_batch % (dp * micro) or arch.n_layers < pp or (job.seq_len < 4096 and cp > 1):
            continue
        accumulation = job.global_batch // (dp * micro)
        if pp > 1 and accumulation < pp:
            continue
        virtual = _virtual_stages(arch.n_layers, pp, accumulation)
        yield base.with_(
            tp=tp,
            cp=cp,
            pp=pp,
            dp=dp,
            micro_batch=micro,
            accumulation=accumulation,
            recompute=recompute,
            virtual_stages=virtual,
            schedule="interleaved" if virtual > 1 else "1f1b",
            sequence_parallel=tp > 1,
            sharding="zero1" if dp * cp > 1 else "none",
        )


def _virtual_stages(n_layers: int, pp: int, accumulation: int) -> int:
    """The most interleaving up to eight chunks that gives every chunk as many layers."""
    if pp == 1 or accumulation % pp:
        return 1
    return max(v for v in range(1, 9) if (n_layers + 2) % (pp * v) == 0 or n_layers % (pp * v) == 0 or v == 1)
