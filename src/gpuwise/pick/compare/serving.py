"""Serving on one subject: widest weights that fit, cache, and tokens per second for one sequence and for many.

One sequence uses :func:`gpuwise.serve.replica.serve`. Batches are vLLM's: tensor groups, alone or several side by side;
llama.cpp has no batch figures.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from gpuwise.errors import InputError, UnpredictableError
from gpuwise.facts.hardware.systems import Cluster
from gpuwise.facts.models.architecture import Architecture
from gpuwise.predict.estimate import Estimate
from gpuwise.serve.engines.engine import engine_runs, tensor_parallel
from gpuwise.serve.formats import FORMAT_OF_BITS, format_of_precision, served_bits, served_format
from gpuwise.serve.iteration_kernels import half_format
from gpuwise.serve.replica import EngineReplica, NoReplica, ReplicaStep, most_ranks, serve
from gpuwise.serve.splits import why_refused
from gpuwise.units import format_bytes


@dataclass(frozen=True, slots=True)
class SubjectServing:
    """``weights`` None: it cannot serve, for the reason in ``why_not``. Rates are tokens a second of the whole subject;
    ``cache_tokens`` is the number that fits beside one copy of the weights."""

    weights: str | None
    words: str = ""
    why_not: str = ""
    cache_tokens: float | None = None
    single: Estimate | None = None
    single_words: str = ""
    first_token: Estimate | None = None
    """Seconds until a prompt as long as the context has its first token, asked alone."""
    batched: Estimate | None = None
    batch_words: str = "batches are not predicted on it"
    prefill: Estimate | None = None
    prefill_words: str = "not predicted on it"
    groups: tuple[_Group, ...] = ()
    """The ways to serve batches of these weights."""
    sequences: int | None = None
    """Sequences of the full batch."""
    program: str = ""
    """What writes one sequence."""

    def at_batch(self, sequences: int, context: int) -> Estimate | None:
        """Tokens a second with ``sequences`` at once, evenly over the replicas; None where batches are not predicted."""
        rates = [
            g.replica.step(-(-sequences // g.copies), context).inverse(sequences)
            for g in self.groups
            if g.sequences * g.copies >= sequences
        ]
        return max(rates, key=lambda rate: rate.expected, default=None)


@dataclass(frozen=True, slots=True)
class _Group:
    """A tensor group that holds the model once; ``copies`` of it side by side."""

    replica: EngineReplica
    copies: int
    cache_tokens: int
    sequences: int

    @property
    def words(self) -> str:
        split = f", tensor parallel {self.replica.ranks}" if self.replica.ranks > 1 else ""
        return split + (f", {self.copies} replicas" if self.copies > 1 else "")


def serve_alike(
    arch: Architecture, clusters: Sequence[Cluster], context: int, precision: str | None
) -> tuple[SubjectServing, ...]:
    """Serve ``arch`` on each of ``clusters``, with one weight format on all that can serve it: the widest that fits on all if
    ``precision`` is None, and where there is one, the widest that one program serves on all. Raises UnknownNameError for a
    precision that no engine serves."""
    widest = _formats(arch, precision)
    results = tuple(_serve(arch, cluster, context, widest) for cluster in clusters)
    if len({(d.weights, d.program) for d in results if d.weights is not None}) < 2:
        return results
    same_format = None
    for weights in widest:
        alike = tuple(
            d if d.weights is None else _serve(arch, cluster, context, (weights,))
            for d, cluster in zip(results, clusters, strict=True)
        )
        if all((a.weights is None) == (d.weights is None) for a, d in zip(alike, results, strict=True)):
            same_format = same_format or alike
            if len({a.program for a in alike if a.weights is not None}) == 1:
                return alike
    return same_format or results


def _formats(arch: Architecture, precision: str | None) -> tuple[str, ...]:
    if precision is not None:
        return (format_of_precision(precision).name,)
    return tuple(served_format(arch, bits) for bits in served_bits(arch, tuple(FORMAT_OF_BITS)))


def _serve(arch: Architecture, cluster: Cluster, context: int, formats: tuple[str, ...]) -> SubjectServing:
    if arch.kind != "decoder":
        return SubjectServing(None, why_not=f"{arch.name} writes no text")
    served = serve(arch, cluster.system, formats, _ranks(cluster), context=context)
    if isinstance(served, NoReplica):
        return SubjectServing(None, why_not=_why_not(served))
    one = _single(served, cluster, context)
    for weights in formats:
        try:
            groups = tuple(_groups(arch, cluster, weights, context))
            if groups:
                return _with_batches(one, groups, context)
        except (InputError, UnpredictableError):
            continue
    return one


def _ranks(cluster: Cluster) -> tuple[int, ...]:
    """Equal splits of the cluster, by powers of two."""
    n = cluster.n_accelerators
    most = min(n, most_ranks(cluster.system))
    return tuple(t for t in range(1, most + 1) if n % t == 0 and t & (t - 1) == 0)


def _single(served: ReplicaStep, cluster: Cluster, context: int) -> SubjectServing:
    """One sequence, by what serves it best."""
    replica = served.replica
    split = f"tensor parallel {replica.ranks}" if replica.ranks > 1 and isinstance(replica, EngineReplica) else ""
    tokens = int(replica.most_sequences(context) * context) * (cluster.n_accelerators // replica.ranks)
    held = half_format(cluster.accelerator) if replica.weights == "bf16" else replica.weights
    label = f"{held} ({replica.program})"
    first = replica.first_token(context) if isinstance(replica, EngineReplica) else None
    return SubjectServing(replica.weights, label, "", float(tokens), served.tokens_per_s(), split, first, program=replica.program)


def _groups(arch: Architecture, cluster: Cluster, weights: str, context: int) -> Iterator[_Group]:
    """Every way to split the cluster into tensor groups that hold the weights and one sequence each."""
    if not engine_runs(cluster.accelerator):
        return
    for tp in _ranks(cluster):
        replica = EngineReplica(arch, cluster.system, tensor_parallel(arch, weights, tp))
        most = 0.0 if why_refused(arch, replica.config) else replica.most_sequences(context)
        if most >= 1:
            at_once = min(int(most), replica.server().options.max_num_seqs or 1)
            yield _Group(replica, cluster.n_accelerators // tp, int(most * context), at_once)


def _with_batches(one: SubjectServing, groups: Sequence[_Group], context: int) -> SubjectServing:
    """``one`` with the best group for a full batch and for reading."""
    batched: list[tuple[Estimate, str, int]] = []
    prefill: list[tuple[Estimate, str]] = []
    for g in groups:
        n = g.sequences * g.copies
        batched.append((g.replica.step(g.sequences, context).inverse(n), f"{n} sequence{'' if n == 1 else 's'}{g.words}", n))
        prefill.append((g.replica.prompt(context).inverse(context * g.copies), g.words.removeprefix(", ")))
    many, many_words, sequences = max(batched, key=lambda option: option[0].expected)
    read, read_words = max(prefill, key=lambda option: option[0].expected)
    weights = groups[0].replica.weights
    # batches are vLLM's even where one sequence is another program's
    other = "" if weights == one.weights else f"{weights} ({groups[0].replica.program}), "
    return replace(
        one,
        cache_tokens=float(max(g.cache_tokens * g.copies for g in groups)),
        batched=many,
        batch_words=other + many_words,
        prefill=read,
        prefill_words=(other + read_words).removesuffix(", "),
        groups=tuple(groups),
        sequences=sequences,
    )


def _why_not(refusal: NoReplica) -> str:
    if refusal.error is not None:
        return refusal.error.message
    if refusal.memory is None:
        return "no kernel for these weights is predicted on it"
    return f"needs {format_bytes(refusal.memory.total)} of {format_bytes(refusal.memory.most)}"
