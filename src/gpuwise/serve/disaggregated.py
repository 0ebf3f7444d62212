"""Prefill-decode disaggregation: prompts run on prefill replicas, answers on decode replicas, and the cache of each prompt is
transferred.

A prefill replica runs a request as if for one token. Its cache then goes to a decode replica,

    transfer = latency + bytes(prompt) / (ranks x bandwidth),

over the links of a host if both replicas are in one, else over its network, one prompt after the other on the links of each
prefill replica. There it is admitted once blocks are free; the last token of the prompt is recomputed (vllm
v1/core/sched/scheduler.py, ``_update_waiting_for_remote_kv``), which gives the first token. A preempted request is recomputed
there in full. Blocks are allocated when the cache arrives, not at the start of the transfer; decode replicas have no prefix
cache.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gpuwise.errors import InputError
from gpuwise.serve.load.requests import ClosedLoop, Requests
from gpuwise.serve.memory import sequence_bytes
from gpuwise.serve.simulate import Run, Server
from gpuwise.serve.simulate.budget import BudgetEngine
from gpuwise.serve.simulate.core import PROMPT
from gpuwise.serve.simulate.server import open_loop

F64 = NDArray[np.float64]
LATENCY_S = 1e-3
"""Latency of a transfer before its first byte: metadata and setup pass through the servers (NIXL over their sockets); about
the latency of a request through a server."""


class DecodeEngine(BudgetEngine):
    """Requests come with the cache of their prompt."""

    def _admit_next(self, budget: int, chunks: list[tuple[int, int]], ended: list[int], skipped: list[int]) -> bool:
        limits, pool, waiting = self.limits, self.pool, self.waiting
        while waiting and budget > 0 and len(self.running) < limits.sequences:
            request = waiting[0]
            if self.arrived[request] > self.settled:
                return True
            if self.written[request]:  # it was sent back
                return super()._admit_next(budget, chunks, ended, skipped)
            wanted = self.prompt[request]
            blocks = -(-wanted // limits.block_tokens)
            if blocks > pool.free - (limits.watermark_blocks if self.running else 0):
                return False
            waiting.popleft()
            self.running[request] = PROMPT
            self.admissions += 1
            self.admitted[request] = self.admissions
            pool.admit(request, 0)
            pool.take(blocks)
            self.trace.cached_tokens[request] = 0
            chunks.append((1, wanted - 1))
            ended.append(request)
            budget -= 1
        return False


@dataclass(frozen=True)
class Disaggregation:
    """``prefill_copies`` of ``prefill`` read, ``decode_copies`` of ``decode`` write: the same model in the same cache format."""

    prefill: Server
    decode: Server
    prefill_copies: int = 1
    decode_copies: int = 1

    def __post_init__(self) -> None:
        if min(self.prefill_copies, self.decode_copies) < 1:
            raise InputError("no replica to read prompts or to write answers", hint="give at least one of each")
        if self.prefill.arch != self.decode.arch or self.prefill.config.kv_dtype != self.decode.config.kv_dtype:
            raise InputError("caches of another model or format cannot be sent", hint="give both the same")
        for server in (self.prefill, self.decode):
            if server.staged or not server.reads_apart:
                raise InputError(
                    f"{server.config.engine} is not simulated with prefill and decode disaggregated", hint="vllm or sglang"
                )

    @property
    def ranks(self) -> int:
        """Accelerators of all replicas."""
        return self.prefill_copies * self.prefill.config.ranks + self.decode_copies * self.decode.config.ranks

    @property
    def bandwidth_bytes_per_s(self) -> float:
        """Bandwidth of one rank's path from a prefill to a decode replica."""
        system = self.prefill.system
        inside = self.ranks <= system.count and system.id == self.decode.system.id
        return system.link_bytes_per_s if inside else min(system.network_bytes_per_s, self.decode.system.network_bytes_per_s)

    def transfer_s(self, tokens: int) -> float:
        """Seconds that the cache of a prompt takes."""
        config = self.prefill.config
        each = sequence_bytes(self.prefill.arch, tokens, config.tp, config.kv_dtype)
        return LATENCY_S + each / self.bandwidth_bytes_per_s

    def run(self, requests: Requests, *, closed: ClosedLoop | None = None) -> Run:
        """Serves ``requests``. Raises InputError for users who wait, and as Server.run."""
        if closed is not None:
            raise InputError("users who wait are not simulated with prefill and decode disaggregated", hint="give a rate")
        self.decode.check(requests, self.decode_copies, "round_robin")
        read = self.prefill.run(
            replace(requests, output_tokens=np.ones_like(requests.output_tokens)), replicas=self.prefill_copies
        )
        ready = read.arrival_s + read.ttft_s - self.prefill.front.answer_s
        came = self._sent(ready, requests)
        engines, timed = self.decode.engines(requests, self.decode_copies * self.decode.config.attention_dp, DecodeEngine)
        open_loop(engines, came.tolist(), "round_robin")
        run = self.decode.result(requests, requests.arrival_s, engines, timed)
        waited = float((read.stretches.waiting * read.stretches.total_s).sum() + (came - ready).sum())
        return replace(run, cached_tokens=read.cached_tokens, preemptions=run.preemptions + read.preemptions, waited_s=waited)

    def _sent(self, ready: F64, requests: Requests) -> F64:
        """[N] when each cache has come: replicas take requests in turn, and send one after the other."""
        order = np.argsort(requests.arrival_s, kind="stable")
        came, free = np.empty(len(ready)), [0.0] * self.prefill_copies
        copy = np.empty(len(ready), np.int64)
        copy[order] = np.arange(len(ready)) % self.prefill_copies
        for i in np.argsort(ready, kind="stable").tolist():
            start = max(float(ready[i]), free[copy[i]])
            free[copy[i]] = came[i] = start + self.transfer_s(int(requests.prompt_tokens[i]))
        return came
