# pyright: basic
"""Collectives as this rank calls them: how many, of how many bytes, and how long it waited in them."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from gpuwise.workload.capture.device.patching import Patches

GATHERS = ("all_gather_single", "all_gather_into_tensor")
SCATTERS = ("reduce_scatter_single", "reduce_scatter_tensor")
"""Names under which FSDP2 calls them, from PyTorch 2.7 to 2.13."""
FUNCTIONAL = {"all_reduce": "all-reduce", "all_gather_into_tensor": "all-gather", "reduce_scatter_tensor": "reduce-scatter"}
"""Operators that DTensors call; the last argument is their group."""


class Meter:
    """Counts what passes through ``torch.distributed`` in Python, and what DDP gives its hook. Bytes are those of the larger
    side: what a gather makes, what a reduction takes. Time is the process's own: on a GPU a collective is awaited there, and
    the process does not see it."""

    def __init__(self) -> None:
        self.counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
        self.waits: dict[str, float] = defaultdict(float)
        """Seconds in collectives, by kind."""
        self._kinds: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
        self._operators = "other"
        """Kind of the operator that is waited for."""
        self._bucket_s: float | None = None
        self._inside = False
        self._patches = Patches()
        for names, kind, at in ((GATHERS, "all-gather", 0), (SCATTERS, "reduce-scatter", 1), (("all_reduce",), "all-reduce", 0)):
            for name in names:
                if hasattr(dist, name):
                    self._wrap(name, kind, at)
        wait = dist.Work.wait

        def waited(work: Any, *args: Any, **kwargs: Any) -> Any:
            return self._timed(self._kinds.get(work, "other"), wait, work, *args, **kwargs)

        self._patches.set(dist.Work, "wait", waited)

    def within(self, group: Any) -> None:
        """Count what DTensors exchange over ``group`` too, as tensor parallel layers do."""
        namespace: Any = torch.ops._c10d_functional
        for name, kind in FUNCTIONAL.items():
            self._patches.set(namespace, name, self._operator(getattr(namespace, name), kind, group))
        self._patches.set(namespace, "wait_tensor", self._operator(namespace.wait_tensor, None, group))

    def _operator(self, call: Any, kind: str | None, group: Any) -> Any:
        """``kind`` None: the wait for the previous one."""

        def counted(tensor: Any, *args: Any) -> Any:
            if kind is None:
                return self._timed(self._operators, call, tensor)
            if args[-1] not in (group.group_name, group):
                self._operators = "other"
                return call(tensor, *args)
            self._operators = kind
            result = self._timed(kind, call, tensor, *args)
            self.count(kind, tensor if kind == "reduce-scatter" else result)
            return result

        counted.default = call.default  # type: ignore[attr-defined]
        return counted

    def take(self) -> tuple[dict[str, list[int]], dict[str, float]]:
        """Counts and bytes, and seconds, since the last time; by kind."""
        taken = dict(self.counts), dict(self.waits)
        self.counts.clear()
        self.waits.clear()
        return taken

    def close(self) -> None:
        """Take the measuring wrappers off torch again."""
        self._patches.undo()

    def count(self, kind: str, tensor: torch.Tensor) -> None:
        """Count one more."""
        seen = self.counts[kind]
        seen[0] += 1
        seen[1] += tensor.numel() * tensor.element_size()

    def all_to_all(
        self,
        output: torch.Tensor,
        source: torch.Tensor,
        got: list[int] | None,
        sent: list[int] | None,
        group: Any,
        counted: torch.Tensor,
    ) -> None:
        """Parts of ``given`` to every rank of the group, theirs into ``output``; the bytes are those of ``counted``."""
        self.count("all-to-all", counted)
        self._timed("all-to-all", dist.all_to_all_single, output, source, got, sent, group=group)

    def bucket(self, group: Any, bucket: Any) -> Any:
        """DDP's hook: sums, and divides nothing."""
        buffer = bucket.buffer()
        return self.exchanged(group, buffer).then(lambda done: (done.value(), buffer)[1])

    def exchanged(self, group: Any, tensor: torch.Tensor) -> Any:
        """The future of a sum over the group, in place."""
        self.count("all-reduce", tensor)
        self._inside = True
        work: Any = dist.all_reduce(tensor, group=group, async_op=True)
        self._inside = False
        self._bucket_s = time.perf_counter()
        return work.get_future()

    def after_backward(self) -> None:
        """All that follows DDP's last bucket is waiting for it."""
        if self._bucket_s is not None:
            self.waits["all-reduce"] += time.perf_counter() - self._bucket_s
            self._bucket_s = None

    def _wrap(self, name: str, kind: str, at: int) -> None:
        original = getattr(dist, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            if self._inside:
                return original(*args, **kwargs)
            tensor = args[at] if len(args) > at else kwargs.get(("output", "input")[at], kwargs.get("tensor"))
            tensor = kwargs.get(("output_tensor", "input_tensor")[at]) if tensor is None else tensor
            if isinstance(tensor, torch.Tensor):
                self.count(kind, tensor)
            result = self._timed(kind, original, *args, **kwargs)
            if isinstance(result, dist.Work):
                self._kinds[result] = kind
            return result

        self._patches.set(dist, name, counted)

    def _timed(self, kind: str, call: Any, *args: Any, **kwargs: Any) -> Any:
        if self._inside:
            return call(*args, **kwargs)
        self._inside, began = True, time.perf_counter()
        try:
            return call(*args, **kwargs)
        finally:
            self._inside = False
            self.waits[kind] += time.perf_counter() - began
