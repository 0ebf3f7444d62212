"""An engine on accelerators, ready to be given loads: its pool of blocks and the seconds of its steps are worked out once."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from heapq import heapify, heappop, heappush

import numpy as np
from numpy.typing import NDArray

from gpuwise.errors import InputError, NoRoomError
from gpuwise.facts.hardware.systems import System
from gpuwise.facts.models.architecture import Architecture
from gpuwise.serve.engines.engine import EngineConfig
from gpuwise.serve.engines.releases import engine_rules, prompt_graph_most, resolved
from gpuwise.serve.engines.settings import EngineRules, Settings
from gpuwise.serve.load.requests import ClosedLoop, Requests
from gpuwise.serve.load.targets import Target
from gpuwise.serve.simulate.adapters import AdapterSteps
from gpuwise.serve.simulate.batches import BatchesEngine
from gpuwise.serve.simulate.budget import BudgetEngine
from gpuwise.serve.simulate.core import STRETCH_COLUMNS, Engine, Limits, Reserve, Trace
from gpuwise.serve.simulate.drafts import DraftSteps
from gpuwise.serve.simulate.front import Front, front_of
from gpuwise.serve.simulate.kernel_steps import KernelSteps, kernel_tables
from gpuwise.serve.simulate.no_evict import NoEvictEngine, StaticEngine, until_each_has_one
from gpuwise.serve.simulate.pipeline import PipelineEngine, PipelineSteps, stages_of
from gpuwise.serve.simulate.pool_memory import PoolMemory, pool_memory
from gpuwise.serve.simulate.prefill_first import PrefillFirstEngine, RadixEngine
from gpuwise.serve.simulate.run import Run, Stretches, surely_missed
from gpuwise.serve.simulate.slot_steps import slot_steps
from gpuwise.serve.simulate.slots import SlotsEngine
from gpuwise.serve.simulate.step_time import Steps
from gpuwise.serve.simulate.texts import runs_of

F64 = NDArray[np.float64]
SGLANG_RESERVE = Reserve(first=0.7, least=0.14, steps=600, retract_tokens=20, most_tokens=4096, fixed_whole=True)
"""sglang v0.5.23 environ.py:646-649, managers/schedule_policy.py CLIP_MAX_NEW_TOKENS."""
POLICIES: dict[str, type[Engine]] = {
    "budget": BudgetEngine,
    "prefill_first": PrefillFirstEngine,
    "radix": RadixEngine,
    "no_evict": NoEvictEngine,
    "max_utilisation": BudgetEngine,
    "static": StaticEngine,
    "slots": SlotsEngine,
    "batches": BatchesEngine,
}
"""Which scheduler runs an engine: one class a policy, by the names in the files of engines."""
WITH_ADAPTERS = ("budget", "radix", "no_evict")
"""Schedulers whose rules with low-rank adapters are simulated."""
SPARE_BLOCKS = 2
"""Beside a request's own that SGLang keeps free."""
LOOKS = 12
"""How often a load is looked at on its way."""
ROUTINGS = ("round_robin", "least_load", "prefix_aware")


@dataclass(frozen=True)
class Server:
    """One or more replicas of ``arch`` under an engine on ``system``."""

    arch: Architecture
    system: System
    config: EngineConfig
    settings: Settings = field(default_factory=Settings)
    costs: Front | None = None
    """None: those of the engine at its version."""

    @cached_property
    def options(self) -> Settings:
        """Every option with its value."""
        return resolved(self.settings, self.config, self.system.accelerator, self.arch.max_seq_len)

    @cached_property
    def rules(self) -> EngineRules:
        """Rules of the engine: its defaults and policies."""
        return engine_rules(self.config)

    @cached_property
    def attending(self) -> Architecture:
        """The model as the engine's attention sees it."""
        return replace(self.arch, window=None) if self.rules.attends_all else self.arch

    @cached_property
    def front(self) -> Front:
        """Server in front of the engine, and the engine's costs beside its kernels."""
        return self.costs or front_of(self.config, in_process=self.settings.in_process)

    @cached_property
    def memory(self) -> PoolMemory:
        """Memory of a rank by part. Raises InputError if nothing is left for the cache."""
        return pool_memory(self.attending, self.system.accelerator, self.config, self.options, self.rules)

    @cached_property
    def limits(self) -> Limits:
        """Limits of a step. Raises as :attr:`memory`."""
        s = self.options
        assert s.max_num_batched_tokens is not None and s.max_num_seqs is not None and s.block_size is not None
        blocks, of_states = s.kv_blocks or self.memory.blocks, self.memory.sequences
        return Limits(
            s.max_num_batched_tokens,
            s.max_num_seqs if of_states is None else min(s.max_num_seqs, of_states),
            blocks,
            s.block_size,
            bool(s.chunked_prefill),
            bool(s.prefix_caching) and of_states is None,
            ahead=self.rules.ahead,
            prompts=self.rules.prompts,
            watermark_blocks=int(self.rules.watermark * blocks),
            asked=s.max_output,
            adapters=None if s.adapters is None else s.adapters.at_once,
            row_tokens=1 if s.drafts is None else 1 + s.drafts.tokens,
            reserve=replace(SGLANG_RESERVE, fixed_whole=self.rules.fixed_whole),
            wait_steps=s.balance_timeout_iters or s.batch_wait_timeout_iters,
            wait_tokens=s.batch_wait_max_tokens_ratio * s.max_num_batched_tokens,
            wait_prompts=until_each_has_one(self.config.attention_dp) if s.balance_timeout_iters else 0,
        )

    def limits_of(self, requests: Requests) -> Limits:
        """:attr:`limits` with the pool's number of blocks for sequences of these lengths, and the number that the longest
        takes alone."""
        if self.options.kv_blocks or self.memory.windowed is None:
            return self.limits
        lengths = requests.prompt_tokens + requests.output_tokens / 2
        longest = int((requests.prompt_tokens + requests.output_tokens).max())
        alone = min(-(-longest // self.limits.block_tokens) + SPARE_BLOCKS, self.memory.blocks_of(longest))
        return replace(self.limits, n_blocks=max(self.memory.blocks_of(lengths, requests.output_tokens), alone))

    @cached_property
    def max_model_len(self) -> int:
        """Longest request that the engine is started for: the model's context by default."""
        return self.options.max_model_len or self.arch.max_seq_len

    @cached_property
    def longest_request(self) -> int:
        """Longest request, at most the model's context, that the cache holds. Raises as :attr:`memory`."""
        if self.rules.pool == "slots":
            return self.max_model_len
        size, spare = self.limits.block_tokens, SPARE_BLOCKS if self.rules.scheduler == "radix" else 0
        fixed = self.options.kv_blocks
        lengths = range(self.arch.max_seq_len + 1)
        missing = bisect_left(lengths, True, key=lambda n: -(-n // size) + spare > (fixed or self.memory.blocks_of(n)))
        return missing - 1

    def steps(self, context: int) -> Steps:
        """Step times for sequences with about ``context`` tokens."""
        return _steps(self, 1 << max(int(context - 1).bit_length(), 5))

    def run(
        self, requests: Requests, *, closed: ClosedLoop | None = None, replicas: int = 1, routing: str = "round_robin"
    ) -> Run:
        """Serves ``requests``, each at its time or, of a closed loop, when one of its users is free.

        Raises InputError for requests the engine refuses (longer than a context or than the pool), and for a scheduler, a layout
        or a routing that is not simulated.
        """
        self.check(requests, replicas, routing)
        front = self.front
        # groups that attend apart have schedulers and caches of their own, and requests in turn
        engines, timed = self.engines(requests, replicas * self.config.attention_dp)
        before = (front.request_s + front.prompt_token_s * requests.prompt_tokens).tolist()
        if closed is None:
            arrival = requests.arrival_s
            open_loop(engines, (arrival + before).tolist(), routing)
        else:
            arrival = _closed_loop(engines, requests.arrival_s.tolist(), before, front.answer_s, closed, routing)
        return self.result(requests, arrival, engines, timed)

    def within(self, requests: Requests, targets: Sequence[Target]) -> Run | None:
        """Result of :meth:`run` for ``requests``, each at its time, on one replica; None as soon as one of ``targets`` is
        surely missed (a target on gaps between tokens is decided only at the end). Raises as :meth:`run`."""
        self.check(requests, 1, "round_robin")
        front = self.front
        engines, timed = self.engines(requests, self.config.attention_dp)
        at = requests.arrival_s + front.request_s + front.prompt_token_s * requests.prompt_tokens
        order = np.argsort(at, kind="stable")

        watched = [t for t in targets if t.metric != "itl"]

        def lost(sent: int) -> bool:
            if not watched:
                return False
            now, rows = min(e.now for e in engines), order[:sent]
            first, finish = (_merged(engines, name)[rows] for name in ("first_s", "finish_s"))
            return any(self._missed(t, requests, rows, now, first, finish) for t in watched)

        if not open_loop(engines, at.tolist(), "round_robin", lost):
            return None
        return self.result(requests, requests.arrival_s, engines, timed)

    def _missed(self, target: Target, requests: Requests, sent: NDArray[np.int64], now: float, first: F64, finish: F64) -> bool:
        """Whether the requests ``sent`` so far miss ``target``, whose ``first`` and last tokens came at these times: what has not
        come yet comes no earlier than ``now``."""
        front = self.front
        output, arrival = requests.output_tokens[sent], requests.arrival_s[sent]
        came = first if target.metric == "ttft" else finish
        answer_s = front.answer_s if target.metric == "ttft" else front.answer_s + front.answer_token_s * output
        if target.metric != "tpot":
            return surely_missed(target, np.where(np.isfinite(came), came, now) - arrival + answer_s, len(requests))
        ended = np.isfinite(came) & (output > 1)
        tpot = (came + answer_s - first - front.answer_s)[ended] / (output[ended] - 1)
        return surely_missed(target, tpot, int(np.count_nonzero(requests.output_tokens > 1)))

    def engines(self, requests: Requests, copies: int, policy: type[Engine] | None = None) -> tuple[list[Engine], Steps]:
        """The given number of idle engines for ``requests``, with another policy if given, and their step times."""
        limits = self.limits_of(requests)
        context = float(np.average(requests.prompt_tokens + requests.output_tokens / 2, weights=requests.output_tokens))
        steps = self.steps(max(int(context), 1))
        timed = self._timed(steps, requests)
        prompt, output = requests.prompt_tokens.tolist(), requests.output_tokens.tolist()
        if isinstance(steps, KernelSteps):
            steps.know_prompts(prompt)
        runs = runs_of(requests if requests.adapter is None else requests.apart_by_adapter(), limits.block_tokens)
        if self.staged:
            stages = stages_of(self.arch, self.system, self.config, hides_host=self.rules.ahead_in_stages)
            staged = [PipelineEngine(prompt, output, runs, limits, timed, stages) for _ in range(copies)]
            return list[Engine](staged), PipelineSteps(timed)
        made = policy or POLICIES[self.options.scheduler or self.rules.scheduler]
        engines = [made(prompt, output, runs, limits, timed) for _ in range(copies)]
        if requests.adapter is not None:
            for engine in engines:
                engine.adapter = requests.adapter.tolist()
        return engines, timed

    @property
    def staged(self) -> bool:
        """Over pipeline stages with a batch in flight on each."""
        return self.config.pp > 1 and self.config.program.stages

    @property
    def reads_apart(self) -> bool:
        """Whether replicas that only read prompts or only write answers are simulated."""
        return self.rules.scheduler in ("budget", "radix")

    def _has_kernel_spread(self, steps: Steps) -> bool:
        """Whether the engine's own spread has that of its kernels in it."""
        return not self.config.program.whole_steps and steps.tables.basis in ("measured", "fitted")

    def _timed(self, steps: Steps, requests: Requests) -> Steps:
        """``steps`` with guesses of a draft and with adapters. Raises InputError under llama.cpp, and for adapters of requests
        that the engine was not started with."""
        drafts, adapters = self.settings.drafts, self.settings.adapters
        if self.config.program.whole_steps and (drafts is not None or adapters is not None):
            raise InputError(
                f"speculative decoding and adapters are not simulated under {self.config.engine}", hint="take vllm or sglang"
            )
        if requests.adapter is not None and adapters is None:
            raise InputError(
                "the requests use adapters, and the engine has no adapters", hint="give their number: Settings(adapters=...)"
            )
        timed = steps
        if drafts is not None and isinstance(steps, KernelSteps):
            timed = DraftSteps(steps, drafts, self.arch, self.rules.draft_host_s)
        if adapters is None:
            return timed
        if (self.options.scheduler or self.rules.scheduler) not in WITH_ADAPTERS:
            raise InputError("adapters are not simulated under this engine's rules", hint="vllm from 0.8, sglang or trtllm")
        return AdapterSteps(timed, adapters, self.arch, self.system.accelerator, self.config.tp, self.limits.tokens)

    def check(self, requests: Requests, replicas: int, routing: str) -> None:
        """Refuse what this server cannot run: a policy, requests longer than its limits, a routing. Raises InputError."""
        limits, rules = self.limits, self.rules
        scheduler = self.options.scheduler or rules.scheduler
        if scheduler not in POLICIES:
            raise InputError(f"scheduler {scheduler!r} is not one of " + ", ".join(POLICIES))
        if self.staged and (scheduler != "budget" or self.settings.drafts is not None or self.settings.adapters is not None):
            raise InputError(
                "pipeline stages are simulated under vLLM from 0.8, without guesses of a draft or adapters",
                hint="leave the others out, or split with tensor parallelism alone",
            )
        if replicas < 1:
            raise InputError(f"{replicas} replicas", hint="give at least one")
        if routing not in ROUTINGS:
            raise InputError(f"routing {routing!r} is not one of " + ", ".join(ROUTINGS))
        if not len(requests):
            raise InputError("no requests to serve")
        most = self.max_model_len
        longest = int((requests.prompt_tokens + requests.output_tokens).max())
        if longest > most:
            raise InputError(f"a request of {longest} tokens is longer than the context of {most}", hint="cut it or leave it out")
        spare = SPARE_BLOCKS if scheduler == "radix" else 0
        blocks = limits.n_blocks if self.options.kv_blocks else max(limits.n_blocks, self.memory.blocks_of(longest))
        if -(-longest // limits.block_tokens) + spare > blocks:
            raise NoRoomError(
                f"a request of {longest} tokens does not fit the cache of {blocks * limits.block_tokens}",
                hint="split the model over more GPUs, or narrow weights or cache",
            )
        if scheduler == "radix" and limits.chunked and limits.tokens < limits.block_tokens:
            raise InputError(f"chunks of {limits.tokens} tokens are smaller than a page of {limits.block_tokens}")
        if not limits.chunked and longest > limits.tokens:
            raise InputError(f"a prompt of {longest} tokens is longer than a step of {limits.tokens}", hint="let prompts be cut")

    def result(self, requests: Requests, arrival: F64, engines: Sequence[Engine], steps: Steps) -> Run:
        """Results of engines that served ``requests`` sent at ``arrival``."""
        front, limits = self.front, engines[0].limits
        first, finish = _merged(engines, "first_s"), _merged(engines, "finish_s")
        output = requests.output_tokens
        answer = front.answer_s + front.answer_token_s * output
        ttft, e2e = first - arrival + front.answer_s, finish - arrival + answer
        with np.errstate(divide="ignore", invalid="ignore"):
            tpot = np.where(output > 1, (e2e - ttft) / (output - 1), math.nan)
        stretches = _stretches([e.trace for e in engines])
        return Run(
            arrival,
            ttft,
            e2e,
            tpot,
            output,
            requests.prompt_tokens,
            np.maximum(_merged(engines, "cached_tokens"), 0).astype(np.int64),
            stretches,
            np.concatenate([np.array(e.trace.gap_s, np.float64) for e in engines]),
            np.concatenate([np.array(e.trace.gap_tokens, np.int64) for e in engines]),
            sum(e.trace.preemptions for e in engines),
            limits.n_blocks,
            limits.sequences,
            limits.tokens,
            steps.parts(
                stretches.decoding, stretches.prompt_tokens, stretches.cached_tokens, stretches.n_steps, stretches.total_s
            ),
            math.hypot(front.costs.log_sigma, 0.0 if self._has_kernel_spread(steps) else steps.tables.log_sigma),
            len(engines),
        )


@lru_cache(maxsize=64)
def _steps(server: Server, near: int) -> Steps:
    limits, options = server.limits, server.options
    most = min(limits.sequences, limits.n_blocks)
    if server.config.program.whole_steps:
        return slot_steps(server.arch, server.system.accelerator, server.config, most, near)
    whole = replace(server.config, pp=1)  # stages share out the seconds of all layers
    sizes = (1 << (size - 1).bit_length() for size in (most, limits.tokens))  # engines of like size share their tables
    tables = kernel_tables(server.attending, server.system, whole, *sizes, near)
    front, rules = server.front, server.rules
    logits = np.arange(most + 1, dtype=np.float64) * server.arch.vocab
    eager_s = front.eager_s(server.arch)
    if options.eager and not eager_s:  # as the newest release launches
        eager_s = front_of(replace(server.config, version=None)).eager_s(server.arch)
    return KernelSteps(
        tables,
        front.costs,
        front.costs.layers_s(server.arch),
        most,
        graph_most=0 if options.eager else options.graph_most or 1,
        sizes=options.graph_sizes,
        host_s=front.host_s,
        host_sequence_s=front.host_sequence_s + rules.host_sequence_s,
        ahead=rules.ahead,
        attention_slowdown=front.attention_slowdown,
        sampling_s=rules.sampling_s(options.sampling, logits, server.system.accelerator.memory_bandwidth_bytes_per_s),
        prompt_graphs=rules.prompt_graphs,
        prompt_graph_most=prompt_graph_most(server.arch, server.system.accelerator, server.config, options),
        eager_s=eager_s,
    )


def _merged(engines: Sequence[Engine], name: str) -> F64:
    """Each request's value on the replica that served it."""
    columns = np.array([getattr(e.trace, name) for e in engines], np.float64)
    if len(engines) == 1:
        return columns[0]
    columns[columns < 0] = math.nan
    return np.fmax.reduce(columns, axis=0)


def _stretches(traces: Sequence[Trace]) -> Stretches:
    rows = [row for t in traces for row in t.rows]
    types = [(name, np.float64 if name.endswith("_s") else np.int64) for name in STRETCH_COLUMNS]
    table = np.array(rows, types)
    return Stretches(**{name: np.ascontiguousarray(table[name]) for name in STRETCH_COLUMNS})


def _choose(engines: Sequence[Engine], request: int, sent: int, routing: str) -> int:
    """The replica a request goes to. Prefix aware: where most of its prompt is cached, the load deciding among equals and
    whenever that replica has more than twice the mean in flight."""
    if len(engines) == 1:
        return 0
    if routing == "round_robin":
        return sent % len(engines)
    load = [len(e.running) + len(e.waiting) for e in engines]
    least = min(range(len(engines)), key=load.__getitem__)
    if routing == "least_load":
        return least
    found = [e.pool.found_blocks(request, e.prompt[request], e.limits.block_tokens) for e in engines]
    best = max(range(len(engines)), key=lambda i: (found[i], -load[i]))
    return least if load[best] > 2 * sum(load) / len(load) + 4 else best


def open_loop(
    engines: Sequence[Engine], at_s: Sequence[float], routing: str, lost: Callable[[int], bool] = lambda sent: False
) -> bool:
    """Send every request to an engine at its time; False if all is ``lost``, which is checked a few times on the way."""
    order = sorted(range(len(at_s)), key=at_s.__getitem__)
    each = max(len(order) // LOOKS, 1)
    for sent in range(0, len(order), each):
        if sent and lost(sent):
            return False
        if routing == "round_robin":
            for i, engine in enumerate(engines):
                own = [order[k] for k in range(sent, min(sent + each, len(order))) if k % len(engines) == i]
                engine.serve(own, [at_s[request] for request in own])
            continue
        for k, request in enumerate(order[sent : sent + each], start=sent):
            for engine in engines:
                engine.run_until(at_s[request])
            engines[_choose(engines, request, k, routing)].offer(request, at_s[request])
    for engine in engines:
        engine.serve((), (math.inf,))
    return True


def _closed_loop(
    engines: Sequence[Engine],
    first_s: Sequence[float],
    before_s: Sequence[float],
    answer_s: float,
    closed: ClosedLoop,
    routing: str,
) -> F64:
    """Users send the next request ``think_s`` after their answer; [N] when each was sent."""
    n = len(before_s)
    sent_s = [0.0] * n
    due = [(first_s[i] if i < len(first_s) else 0.0, i) for i in range(min(closed.users, n))]
    heapify(due)
    queue: list[tuple[float, int]] = []
    following = len(due)
    sent = 0
    while due or queue or any(not e.idle for e in engines):
        while due and (not queue or due[0][0] + before_s[due[0][1]] <= queue[0][0]):
            at, request = heappop(due)
            sent_s[request] = at
            heappush(queue, (at + before_s[request], request))
        arrival = queue[0][0] if queue else math.inf
        busy = [e for e in engines if not e.idle]
        behind = min(busy, key=lambda e: e.now, default=None)
        if behind is not None and behind.now < arrival:
            # a request that ends elsewhere may bring the next one here before this engine's own next event
            behind.step(min([arrival, *(e.next_finish_s() for e in busy if e is not behind)]))
            for request in behind.finished:
                if following < n:
                    heappush(due, (behind.trace.finish_s[request] + answer_s + closed.think_s, following))
                    following += 1
            behind.finished.clear()
            continue
        _, request = heappop(queue)
        engine = engines[_choose(engines, request, sent, routing)]
        sent += 1
        engine.offer(request, arrival)
    return np.array(sent_s)
