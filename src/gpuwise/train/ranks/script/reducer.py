# pyright: basic
"""Gradients of the parameters of a script's optimizers, averaged over the ranks as the backward pass makes them.

DDP prepares for a backward pass in the ``forward`` of the one module it wraps. A script calls what it likes: parts of a model,
two models in turn, one of them twice, bare parameters. So the exchange begins where all of these end, at the parameter: what
torch calls after it has accumulated a gradient fills DDP's own buckets, which go on their way in one order on every rank.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist

from gpuwise.errors import InputError
from gpuwise.train.ranks.wrap import bucket_assignment


class Reducer:
    """Averages over all ranks. A gradient that holds what was averaged before (several backward passes a step) stays right, for
    that part is the same on every rank."""

    def __init__(self) -> None:
        self._world = dist.get_world_size()
        self._parameters: list[torch.nn.Parameter] = []
        self._known: set[int] = set()
        self._buckets: list[list[int]] = []
        self._bucket_of: dict[int, int] = {}
        self._ready: list[list[int]] = []
        self._next = 0
        self._sent: list[tuple[list[torch.Tensor], torch.Tensor, Any]] = []
        self._is_open = False

    @property
    def parameters(self) -> list[torch.nn.Parameter]:
        """All that were added, in that order."""
        return self._parameters

    @property
    def buckets(self) -> list[list[torch.nn.Parameter]]:
        """In the order in which they are exchanged."""
        self._arrange()
        return [[self._parameters[i] for i in bucket] for bucket in self._buckets]

    def add(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """From now on these too."""
        for parameter in parameters:
            if id(parameter) in self._known:
                continue
            self._known.add(id(parameter))
            n = len(self._parameters)
            self._parameters.append(parameter)
            parameter.register_post_accumulate_grad_hook(lambda p, n=n: self._accumulated(n, p))
            self._buckets = []

    def _arrange(self) -> None:
        if self._buckets:
            return
        trained = [i for i, p in enumerate(self._parameters) if p.requires_grad][::-1]
        buckets = bucket_assignment([self._parameters[i] for i in trained])
        self._buckets = [[trained[i] for i in bucket] for bucket in buckets]
        self._bucket_of = {i: at for at, bucket in enumerate(self._buckets) for i in bucket}
        self._ready = [[] for _ in self._buckets]

    def _accumulated(self, n: int, parameter: torch.Tensor) -> None:
        gradient = parameter.grad
        if gradient is None:
            return
        if gradient.is_sparse:
            raise InputError(
                "a gradient is sparse, which ranks do not exchange",
                hint="build the embedding with sparse=False to run it on ranks",
            )
        if not self._is_open:
            self._arrange()
            self._is_open, self._next = True, 0
            engine: Any = torch.autograd.Variable._execution_engine
            engine.queue_callback(self._finish)
        at = self._bucket_of.get(n)
        if at is None:
            # frozen when the buckets were made
            self._buckets = []
            self._arrange()
            at = self._bucket_of[n]
        self._ready[at].append(n)
        while self._next < len(self._buckets) and len(self._ready[self._next]) == len(self._buckets[self._next]):
            self._send(self._next)
            self._next += 1

    def _send(self, at: int) -> None:
        # in the bucket's order, regardless of this pass's order
        ready = set(self._ready[at])
        gradients = [g for i in self._buckets[at] if i in ready and (g := self._parameters[i].grad) is not None]
        self._ready[at].clear()
        flat = torch.cat([g.detach().reshape(-1) for g in gradients])
        flat.div_(self._world)
        self._sent.append((gradients, flat, dist.all_reduce(flat, async_op=True)))

    def _finish(self) -> None:
        for at, ready in enumerate(self._ready):
            if ready:
                self._send(at)
        for gradients, flat, work in self._sent:
            work.wait()
            parts = flat.split([g.numel() for g in gradients])
            torch._foreach_copy_(gradients, [part.view_as(g) for part, g in zip(parts, gradients, strict=True)])  # type: ignore[reportPrivateImportUsage]
        self._sent.clear()
        self._is_open = False
