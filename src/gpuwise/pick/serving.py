"""Serving on one cluster: weight format that fits, speed per user, load per replica.

One replica of the model is computed by :mod:`gpuwise.serve`; here it is applied to a job: users who talk at once, or requests
that arrive.

    replicas     = ceil(peak rate / largest rate of a replica whose tokens come fast enough)

The rate is the closed form of the simulation of ``gpuwise capacity`` (:mod:`gpuwise.serve.steady`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from gpuwise.errors import GpuwiseError, InputError, UnpredictableError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.hardware.systems import Cluster, default_system
from gpuwise.pick.jobs import PEAK_OVER_MEAN, ModelJob
from gpuwise.pick.outcomes import CHANGED, SAME
from gpuwise.predict.estimate import Estimate
from gpuwise.serve.engines.engine import ENGINES, LOCAL_ENGINE, engine_runs, tensor_parallel
from gpuwise.serve.formats import FORMAT_OF_BITS, same_in_llama_cpp, served_bits, served_format, weight_bytes_read, width_of
from gpuwise.serve.memory import ServingMemory, local_memory
from gpuwise.serve.replica import EngineReplica, NoReplica, Replica, serve
from gpuwise.serve.splits import why_refused

SPLITS = (1, 2, 3, 4, 6, 8, 16)
"""Devices one replica is spread over. llama.cpp takes any number of layers on each; an engine what serve/splits.py allows."""


@dataclass(frozen=True, slots=True)
class Service:
    """One replica, and how many replicas the load takes."""

    bits: int
    replica: Replica
    replicas: int
    batch: int
    tokens_per_s: Estimate
    """Written a second for one user."""
    capacity_tokens_per_s: float
    """Under a load tokens read and written a second by all replicas when they stay full; tokens written for all users
    without one."""
    memory: ServingMemory
    tier: int

    @property
    def ranks(self) -> int:
        return self.replica.ranks


@dataclass(frozen=True, slots=True)
class TooLargeToServe:
    """The narrowest format allowed needs ``short_bytes`` more on each device."""

    short_bytes: float
    bits: int


def tier_of(job: ModelJob, bits: int) -> int:
    """8-bit weights answer like 16-bit ones, 4-bit weights nearly (Kurtic et al., arXiv 2411.02355): the latter count as a
    change unless only they were requested."""
    return CHANGED if bits == 4 and job.bits[0] > 4 else SAME


def can_serve(job: ModelJob, accelerator: Accelerator) -> bool:
    """Whether any program serves that many at once there: an engine, or for one user llama.cpp."""
    return engine_runs(accelerator) or job.load.users == 1


def ranks_for(job: ModelJob, accelerator: Accelerator) -> tuple[int, ...]:
    """Device counts of one replica that could hold the narrowest format allowed, fewest first."""
    return tuple(n for n in SPLITS if fitting_bits(job, accelerator, n) is not None)


def fitting_bits(job: ModelJob, accelerator: Accelerator, n: int) -> int | None:
    """The widest format whose weights and one sequence's cache fit on ``n`` devices; None when none does."""
    return next((bits for bits in job.bits if any(m.fits for m in _memories(job, accelerator, bits, n))), None)


def wider_fits(job: ModelJob, accelerator: Accelerator, bits: int, n: int) -> bool:
    """Whether weights of twice ``bits`` would fit on the same ``n`` devices."""
    wider = served_bits(job.arch, (2 * bits,))[0] > bits and 2 * bits in FORMAT_OF_BITS
    return wider and any(m.fits for m in _memories(job, accelerator, 2 * bits, n))


def least_short(job: ModelJob, accelerator: Accelerator, n: int) -> TooLargeToServe:
    """How much is missing on each of ``n`` devices in the narrowest format."""
    bits = job.bits[-1]
    short = [m.total - m.most for m in _memories(job, accelerator, bits, n)]
    return TooLargeToServe(min(short, default=0.0), bits)


def _memories(job: ModelJob, accelerator: Accelerator, bits: int, n: int) -> Iterator[ServingMemory]:
    """Memory of each program that runs there on ``n`` devices: an engine, and for one user llama.cpp."""
    weights, users = served_format(job.arch, bits), max(job.load.users, 1)
    replica = _replica(job, accelerator, weights, n)
    if engine_runs(accelerator) and not why_refused(job.arch, replica.config):
        yield replica.memory(users, _context(job))
    local = same_in_llama_cpp(job.arch, weights)
    if local is not None and job.load.users == 1 and n <= ENGINES[LOCAL_ENGINE].in_turn:
        yield local_memory(ENGINES[LOCAL_ENGINE], job.arch, accelerator, local, n_devices=n, context=_context(job))


def least_token_s(job: ModelJob, accelerator: Accelerator, n: int) -> float:
    """No step is shorter: the weights of one token, in the narrowest format allowed, read once at the specified bandwidth."""
    weights = served_format(job.arch, job.bits[-1])
    names = filter(None, (weights, same_in_llama_cpp(job.arch, weights)))
    weight_bytes = min(weight_bytes_read(job.arch, name) for name in names)
    return weight_bytes / (n * accelerator.memory_bandwidth_bytes_per_s)


def least_replicas(job: ModelJob, accelerator: Accelerator, ranks: int) -> int:
    """Minimum number of replicas for the load: every peak reached, weights read once for a full batch."""
    rate = job.load.requests_per_s
    if rate is None:
        return 1
    tokens = job.load.prompt_tokens + job.load.output_tokens
    peak = max(accelerator.peak_flop_per_s.values(), default=0.0)
    if not peak:
        return 1
    arithmetic = tokens * job.flop_per_served_token / (peak * ranks)
    stream = job.load.output_tokens * least_token_s(job, accelerator, ranks) / most_sequences(job, accelerator, ranks)
    return max(1, math.ceil(rate * PEAK_OVER_MEAN * max(arithmetic, stream)))


def most_sequences(job: ModelJob, accelerator: Accelerator, ranks: int) -> float:
    """The most sequences whose cache fits beside the narrowest weights, up to the largest batch."""
    replica = _replica(job, accelerator, served_format(job.arch, job.bits[-1]), ranks)
    return min(max(replica.most_sequences(_context(job)), 1.0), float(replica.server().options.max_num_seqs or 1))


def _replica(job: ModelJob, accelerator: Accelerator, weights: str, ranks: int) -> EngineReplica:
    """A tensor group of the accelerator's usual system."""
    return EngineReplica(job.arch, default_system(accelerator), tensor_parallel(job.arch, weights, ranks))


def serve_on(job: ModelJob, cluster: Cluster, ranks: int) -> Service | TooLargeToServe:
    """One replica on ``ranks`` devices of ``cluster`` in the widest format that fits and is fast enough.

    Raises UnpredictableError when no program's kernels can be predicted on the device, InputError for a split the model
    or the system cannot have.
    """
    if job.load.requests_per_s is not None:
        return _under_load(job, cluster, ranks)
    load, formats = job.load, [served_format(job.arch, bits) for bits in job.bits]
    served = serve(
        job.arch,
        cluster.system,
        formats,
        (ranks,),
        sequences=load.users,
        context=load.context,
        least_tokens_per_s=load.least_tokens_per_s,
    )
    if isinstance(served, NoReplica):
        return _refused(job, cluster, ranks, served.error)
    bits = bits_of(served.replica)
    tokens_per_s = load.users / served.step.expected
    return Service(bits, served.replica, 1, load.users, served.tokens_per_s(), tokens_per_s, served.memory, tier_of(job, bits))


def bits_of(replica: Replica) -> int:
    """Width of the weights it was chosen for."""
    return width_of(replica.weights)


def _under_load(job: ModelJob, cluster: Cluster, ranks: int) -> Service | TooLargeToServe:
    """Replicas of an engine for the peak of the requests."""
    slow: Service | None = None
    refusal: GpuwiseError | None = None
    if not can_serve(job, cluster.accelerator):
        raise UnpredictableError(f"vLLM is not known to run on {cluster.accelerator.name}")
    for bits in job.bits:
        replica = EngineReplica(job.arch, cluster.system, tensor_parallel(job.arch, served_format(job.arch, bits), ranks))
        if not replica.memory(1, _context(job)).fits:
            continue
        try:
            service = _full_service(job, replica, bits)
        except (InputError, UnpredictableError) as error:
            refusal = refusal or error
            continue
        if service.tokens_per_s.expected >= job.load.least_tokens_per_s:
            return service
        slow = service
    return slow or _refused(job, cluster, ranks, refusal)


def _full_service(job: ModelJob, replica: EngineReplica, bits: int) -> Service:
    """The replica at the largest rate whose answers arrive at reading speed."""
    load = job.load
    assert load.requests_per_s is not None
    full = replica.largest(load.prompt_tokens, load.output_tokens, 1.0 / load.least_tokens_per_s)
    n = max(1, math.ceil(load.requests_per_s * PEAK_OVER_MEAN / full.requests_per_s))
    return Service(
        bits,
        replica,
        n,
        full.sequences,
        full.token_s.inverse(),
        full.requests_per_s * _context(job) * n,
        replica.memory(full.sequences, _context(job)),
        tier_of(job, bits),
    )


def _refused(job: ModelJob, cluster: Cluster, ranks: int, error: GpuwiseError | None) -> TooLargeToServe:
    if error is not None:
        raise error
    return least_short(job, cluster.accelerator, ranks)


def _context(job: ModelJob) -> int:
    """Tokens of cache of a sequence: what each user keeps, or a whole request of a load."""
    if job.load.users:
        return job.load.context
    return min(job.load.prompt_tokens + job.load.output_tokens, job.arch.max_seq_len)
