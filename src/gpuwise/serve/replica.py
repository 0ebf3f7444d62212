"""One replica of a model as a program serves it, and which program and split serves it best.

A serving engine holds the replica in a tensor group and decodes a batch; llama.cpp holds layers in turn on its devices and
decodes one sequence. The same question has the same answer in every command: the faster of vLLM in its fastest split, where
its support tables list the accelerator, it holds the model and its kernels can be predicted, and for one sequence llama.cpp
with weights of the same width. Nothing queues here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from gpuwise.errors import GpuwiseError, InputError, UnpredictableError
from gpuwise.facts.hardware.systems import System
from gpuwise.facts.models.architecture import Architecture
from gpuwise.predict.estimate import Estimate
from gpuwise.serve.engines.engine import (
    ENGINES,
    LOCAL_ENGINE,
    Engine,
    EngineConfig,
    check_runs,
    engine_of,
    engine_runs,
    tensor_parallel,
)
from gpuwise.serve.engines.settings import Settings
from gpuwise.serve.formats import FORMATS, same_in_llama_cpp
from gpuwise.serve.memory import ServingMemory, local_memory, sequence_bytes
from gpuwise.serve.simulate import Server
from gpuwise.serve.simulate.front import known_error
from gpuwise.serve.simulate.pool_memory import engine_parts
from gpuwise.serve.splits import check_split
from gpuwise.serve.steady import Steady, first_token_time, largest, prompt_time, step_time
from gpuwise.serve.streams import token_time, vendors


@dataclass(frozen=True, slots=True)
class EngineReplica:
    """One tensor group of a serving engine on ``system``."""

    arch: Architecture
    system: System
    config: EngineConfig

    @property
    def program(self) -> str:
        return self.config.program.title

    @property
    def weights(self) -> str:
        return self.config.expert_weights or self.config.weights

    @property
    def ranks(self) -> int:
        return self.config.ranks

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for an answer."""
        widened = self.weights in ("fp8", "fp8_block") and "fp8" not in self.system.accelerator.peak_flop_per_s
        error = known_error(self.arch, self.system.accelerator, self.config.engine)
        return (("8-bit weights are widened on the way",) if widened else ()) + ((error,) if error else ())

    def server(self, sequences: int = 1, context: int = 1) -> Server:
        """The engine as installed; configured for ``sequences`` at once if that is more than its default, or if their caches
        of ``context`` tokens do not fit with its default."""
        plain = Server(self.arch, self.system, self.config)
        if sequences > (plain.options.max_num_seqs or 0) or not self._memory(plain, sequences, context).fits:
            return replace(plain, settings=Settings(max_num_seqs=max(sequences, 1)))
        return plain

    def memory(self, sequences: int, context: int) -> ServingMemory:
        """Bytes on a rank with ``sequences`` of ``context`` tokens."""
        mine = self._each(sequences)
        return self._memory(self.server(mine, context), mine, context)

    def _memory(self, server: Server, sequences: int, context: int) -> ServingMemory:
        parts = engine_parts(self.arch, self.system.accelerator, self.config, server.options, server.rules)
        each = sequence_bytes(self.arch, context, self.config.tp, self.config.kv_dtype)
        return ServingMemory(parts.weights, sequences * each, parts.other, parts.requested)

    def _each(self, sequences: int) -> int:
        """Those of ``sequences`` in one data-parallel group."""
        return -(-sequences // self.config.attention_dp)

    def most_sequences(self, context: int) -> float:
        """Sequences of ``context`` tokens whose cache fits beside the weights; below 1 when not one does."""
        one = self._memory(self.server(1, context), 1, context)
        return (one.most - one.weights - one.workspace) / one.cache

    def step(self, sequences: int, context: int) -> Estimate:
        """Seconds of one more token for each of ``sequences`` whose caches hold ``context`` tokens.

        Raises InputError for a split the model or the system cannot have, UnpredictableError for a kernel without a rate.
        """
        self._check()
        mine = self._each(sequences)
        return step_time(self.server(mine, context), mine, context)

    def first_token(self, tokens: int) -> Estimate:
        """Seconds to the first token of a request of ``tokens`` without others. Raises as :meth:`step`."""
        self._check()
        return first_token_time(self.server(1, tokens), tokens)

    def prompt(self, tokens: int) -> Estimate:
        """Seconds of prefill of one prompt of ``tokens`` alone. Raises as :meth:`step`."""
        self._check()
        return prompt_time(self.server(1, tokens), tokens)

    def largest(self, prompt_tokens: int, output_tokens: int, token_s: float = math.inf) -> Steady:
        """The largest rate of such requests whose tokens come within ``token_s``. Raises as :meth:`step`."""
        self._check()
        return largest(self.server(1, prompt_tokens + output_tokens), prompt_tokens, output_tokens, token_s)

    def _check(self) -> None:
        most = most_ranks(self.system)
        if self.ranks > most:
            raise InputError(
                f"{self.ranks} ranks are more than the {most} with fast links", hint="one engine runs in one host here"
            )
        check_split(self.arch, self.config, most)


@dataclass(frozen=True, slots=True)
class LocalReplica:
    """One sequence under a local program on ``ranks`` accelerators of ``system`` that hold layers in turn."""

    arch: Architecture
    system: System
    weights: str
    ranks: int
    engine: Engine = field(default_factory=lambda: ENGINES[LOCAL_ENGINE])

    @property
    def program(self) -> str:
        return self.engine.title

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for an answer."""
        fitted = vendors(self.engine)
        known = self.system.accelerator.vendor in fitted
        notes = () if known else (f"{self.program} was fitted on {' and '.join(fitted)} devices only",)
        return notes if self.ranks == 1 else (*notes, "layers in turn: bandwidths do not add")

    def memory(self, sequences: int, context: int) -> ServingMemory:
        """Bytes on a device with the cache of one sequence of ``context`` tokens. Raises InputError for several."""
        self._check(sequences)
        return local_memory(
            self.engine, self.arch, self.system.accelerator, self.weights, n_devices=self.ranks, context=context * sequences
        )

    def most_sequences(self, context: int) -> float:
        """Caches of ``context`` tokens that fit beside the weights, though only one sequence is decoded."""
        one = self.memory(1, context)
        return (one.most - one.weights - one.workspace) / one.cache

    def step(self, sequences: int, context: int) -> Estimate:
        """Seconds of one more token with ``context`` tokens in the cache. Raises InputError for several sequences."""
        self._check(sequences)
        return token_time(
            self.arch, self.system.accelerator, self.weights, context=context, n_devices=self.ranks, engine=self.engine
        )

    def _check(self, sequences: int) -> None:
        if sequences > 1:
            raise InputError(f"{self.weights} is one sequence in {self.program}", hint="for a batch take bf16, fp8 or int4_wo")


Replica = EngineReplica | LocalReplica


@dataclass(frozen=True, slots=True)
class ReplicaStep:
    """The engine, and the seconds of one more token for each sequence."""

    replica: Replica
    step: Estimate
    memory: ServingMemory

    def tokens_per_s(self, sequences: int = 1) -> Estimate:
        """Tokens written a second for all of ``sequences`` (1: for one user)."""
        return self.step.inverse(sequences)


@dataclass(frozen=True, slots=True)
class NoReplica:
    """No replica fits. ``memory`` is that of the closest configuration, None if none was tried; ``error`` is the reason why a
    fitting one could not be predicted."""

    memory: ServingMemory | None
    error: GpuwiseError | None

    @property
    def short_bytes(self) -> float:
        """Missing on the fullest rank."""
        return 0.0 if self.memory is None else max(self.memory.total - self.memory.most, 0.0)


def most_ranks(system: System) -> int:
    """Maximum accelerators of one replica: a host's, or those that share its fast links."""
    return max(system.domain_size, system.count)


def replicas(arch: Architecture, system: System, weights: str, ranks: int, *, sequences: int = 1) -> Iterator[Replica]:
    """The ways to hold ``arch`` in ``weights`` on ``ranks`` accelerators, the preferred one first: a local program's format is
    that program's alone. Raises UnknownNameError for a format of none, InputError where its program does not run."""
    form = FORMATS[weights]
    local = engine_of(weights) if form.local else ENGINES[LOCAL_ENGINE]
    check_runs(system.accelerator, local)
    accelerator = system.accelerator
    if not form.local and engine_runs(accelerator):
        yield EngineReplica(arch, system, tensor_parallel(arch, weights, ranks))
    held = weights if form.local else same_in_llama_cpp(arch, weights)
    if held is not None and (form.local or (sequences == 1 and ranks <= local.in_turn)):
        yield LocalReplica(arch, system, held, ranks, local)


def serve(
    arch: Architecture,
    system: System,
    formats: Sequence[str],
    ranks: Sequence[int],
    *,
    sequences: int = 1,
    context: int,
    least_tokens_per_s: float = 0.0,
) -> ReplicaStep | NoReplica:
    """The first of ``formats`` (widest first) in which something holds ``arch`` with ``sequences`` of ``context`` tokens and
    gives each ``least_tokens_per_s``: the fastest split over one of ``ranks`` accelerators. Where none is fast enough, the
    fastest that holds it: a format slower than a wider one is never the answer."""
    slow: ReplicaStep | None = None
    refusals: list[NoReplica] = []
    for weights in formats:
        fastest: dict[str, ReplicaStep] = {}
        for n in ranks:
            for replica in replicas(arch, system, weights, n, sequences=sequences):
                one = _replica_step(replica, sequences, context)
                if isinstance(one, NoReplica):
                    refusals.append(one)
                elif replica.program not in fastest or one.step.expected < fastest[replica.program].step.expected:
                    fastest[replica.program] = one
        for one in sorted(fastest.values(), key=lambda s: s.step.expected):
            if 1.0 / one.step.expected >= least_tokens_per_s:
                return one
            if slow is None or one.step.expected < slow.step.expected:
                slow = one
    if slow is not None:
        return slow
    memories = [r.memory for r in refusals if r.memory is not None]
    errors = [r.error for r in refusals if r.error is not None]
    return NoReplica(min(memories, key=lambda m: m.total - m.most, default=None), errors[0] if errors else None)


def _replica_step(replica: Replica, sequences: int, context: int) -> ReplicaStep | NoReplica:
    """``replica`` at work, or why it cannot be."""
    memory = replica.memory(sequences, context)
    if not memory.fits:
        return NoReplica(memory, None)
    try:
        return ReplicaStep(replica, replica.step(sequences, context), memory)
    except (InputError, UnpredictableError) as error:
        return NoReplica(None, error)
