# pyright: basic
"""Steps of any training loop in this process, observed at its optimizers, loaders and backward passes.

The loop is not edited: torch's own global optimizer hooks, one wrapper on each of five functions that a loop calls a few times
per step, and two hooks on each outermost module. :meth:`Watch.close` removes all of them. Forked processes (a loader's
workers) are not affected.
"""

from __future__ import annotations

import functools
import os
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import dataloader as torch_dataloader

from gpuwise.train.cuda import has_cuda
from gpuwise.train.hook.cuda_events import NewestLoss
from gpuwise.train.hook.describe import describe_loader, describe_model, describe_optimizer, size_of
from gpuwise.train.hook.run_queue import RunQueue, WorkerQueue
from gpuwise.train.ticks import BY_BACKWARD, CLOSURE, DISCOVERY_TICKS, QUEUED, Tick
from gpuwise.workload.capture.device.patching import Patches
from gpuwise.workload.capture.ops.nested import tensors_in

IDLE_PASSES = 256
"""Backward passes without a step of any optimizer after which the loop is assumed to update its parameters itself although it
created an optimizer. More than any gradient accumulation. Rule of this project."""
MOST_HELD_LOSSES = 512
"""Losses stored on the device before they are read together."""
CROWDED = 0.01
"""Share of a step without a processor above which the next step is measured phase by phase: a reading costs a microsecond,
which an idle machine need not pay. Rule of this project."""

ACTIVE: list[Watch] = []
"""Those that are open now, the innermost last."""


class Watch:
    """Counts and times the phases of every step.

    ``on_tick`` is called after every optimizer step with its :class:`Tick`, ``before_optimizer`` before it with the optimizer;
    either may raise to end the loop. ``tell`` receives one-time facts (optimizers, models, loaders) as a kind and values,
    ``losses`` numbered losses as they are read from the device; ``save`` may change the path of ``torch.save``, and ``load``
    that of ``torch.load``. With ``losses_every_s`` a loss is read about that often; without, hundreds together.
    """

    def __init__(
        self,
        *,
        on_tick: Callable[[Tick], None] = lambda tick: None,
        before_optimizer: Callable[[torch.optim.Optimizer], None] | None = None,
        tell: Callable[..., None] = lambda kind, **values: None,
        losses: Callable[[list[tuple[int, float]]], None] | None = None,
        save: Callable[[Any], Any] | None = None,
        load: Callable[[Any], Any] | None = None,
        losses_every_s: float | None = None,
    ) -> None:
        self._on_tick, self._before, self._tell = on_tick, before_optimizer, tell
        self._losses, self._save, self._load = losses, save, load
        self._newest = NewestLoss(losses_every_s) if losses_every_s is not None else None
        self._patches = Patches()
        self._handles: list[Any] = []
        self._pid = os.getpid()
        self._queue: RunQueue | None = None
        self._spans: dict[str, float] = dict.fromkeys(("data", "copy", "forward", "backward", "optimizer", "save"), 0.0)
        self._counts: dict[str, int] = dict.fromkeys(("batches", "forward", "backward", "optimizer", "samples", "tokens"), 0)
        self._open: str | None = None
        self._began_s = 0.0
        self._crowded = False
        self._ticked = (0.0, 0.0)
        self._ended_queue_s, self._bare_queue_s, self._worker_queue_s = 0.0, 0.0, 0.0
        self._delays: dict[str, float] = dict.fromkeys(QUEUED, 0.0)
        self._is_read = False
        self._phases = {name: _Span(self, name) for name in self._spans}
        self._optimizers: dict[int, tuple[int, Any]] = {}
        self._loaders: dict[int, Any] = {}
        self._roots: dict[int, Any] = {}
        self._taken: list[tuple[weakref.ref[torch.Tensor], int]] = []
        """Batches that are alive, and the module that was given each first."""
        self._learning: dict[int, bool] = {}
        self._unread_losses: list[tuple[int, Any]] = []
        self._unscaled: tuple[int, Any] | None = None
        self._n_ticks = 0
        self._has_optimizer = self._has_stepped = False

    # -- beginning and end

    def __enter__(self) -> Watch:
        self.open()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def open(self) -> None:
        """Install the hooks."""
        ACTIVE.append(self)
        self._handles += [
            register_optimizer_step_pre_hook(self._optimizer_begins),
            register_optimizer_step_post_hook(self._optimizer_ends),
        ]
        self._wrap(torch.optim.Optimizer, "__init__", self._optimizer_made)
        self._wrap(torch_dataloader.DataLoader, "__iter__", self._iterates)
        self._wrap(torch_dataloader._BaseDataLoaderIter, "__next__", self._next)
        self._wrap(torch.autograd, "backward", self._backward)
        self._wrap(torch.amp.GradScaler, "scale", self._scale)
        self._wrap(torch, "save", self._saves)
        if self._load is not None:
            self._wrap(torch, "load", self._loads)
        self._wrap(torch, "compile", self._compiles)
        self._wrap(nn.Module, "__call__", self._first_calls)
        if has_cuda():
            self._wrap(torch.Tensor, "to", self._copies)
            self._wrap(torch.Tensor, "cuda", self._copies)

    def __deepcopy__(self, memo: Any) -> Watch:
        """A copied model keeps its hooks, and they are these."""
        return self

    def close(self) -> None:
        """Remove the hooks; read losses that are still on the device."""
        if self in ACTIVE:
            ACTIVE.remove(self)
        self.read_losses()
        self._patches.undo()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        if self._queue is not None:
            self._queue.close()

    @property
    def roots(self) -> list[nn.Module]:
        """Outermost modules with parameters, in the order of their first call."""
        return [m for m in self._roots.values() if any(True for _ in m.parameters())]

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        """The optimizers seen so far."""
        return [o for _, o in self._optimizers.values()]

    def next_of(self, iterator: Iterator[Any]) -> Any:
        """The next batch of anything that gives them, its time with the data's; a ``DataLoader`` inside is counted once."""
        # samples are counted here, no longer at the model
        self._loaders.setdefault(id(iterator), iterator)
        before = self._counts["batches"]
        with self._span("data"):
            batch = next(iterator)
        if self._counts["batches"] == before:
            self._took(batch)
        return batch

    def read_losses(self) -> None:
        """Read the losses that are still on the device."""
        unread, self._unread_losses = self._unread_losses, []
        if unread and self._losses is not None:
            values = torch.stack([v.to(torch.float32).cpu() for _, v in unread]).tolist()
            self._losses([(n, value) for (n, _), value in zip(unread, values, strict=True)])

    # -- wrappers

    def _wrap(self, owner: Any, name: str, how: Callable[..., Any]) -> None:
        original = getattr(owner, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if self._pid != os.getpid():
                return original(*args, **kwargs)
            return how(original, *args, **kwargs)

        for attribute in ("__name__", "__qualname__", "__doc__", "__module__", "__wrapped__"):
            with suppress(AttributeError, TypeError):
                setattr(wrapped, attribute, original if attribute == "__wrapped__" else getattr(original, attribute))
        self._patches.set(owner, name, wrapped)

    def _span(self, name: str) -> _Span:
        """Attribute seconds to one phase; inside another phase they stay with that one."""
        return self._phases[name]

    def _begin(self, name: str) -> bool:
        """Whether this phase begins now; False inside another."""
        if self._open is not None:
            return False
        self._open = name
        self._is_read = self._crowded and self._queue is not None and name in QUEUED
        if self._is_read:
            self._take_delay()
        self._began_s = time.perf_counter()
        return True

    def _end(self) -> None:
        """The phase that is open ends."""
        if self._open is not None:
            self._spans[self._open] += time.perf_counter() - self._began_s
            if self._is_read:
                self._take_delay(self._open)
            self._open = None

    def _take_delay(self, phase: str = "") -> None:
        """Attribute the delay by other programs since the last reading to a phase, or to none."""
        assert self._queue is not None
        waited_s = self._queue.waited_s()
        if phase:
            self._delays[phase] += waited_s - self._ended_queue_s
        else:
            self._bare_queue_s += waited_s - self._ended_queue_s
        self._ended_queue_s = waited_s

    def _iterates(self, original: Callable[..., Any], loader: Any) -> Any:
        iterator = original(loader)
        with suppress(AttributeError):
            iterator._gpuwise_loader = loader
        if id(loader) not in self._loaders:
            self._loaders[id(loader)] = loader
            self._tell("loader", **describe_loader(loader))
        return iterator

    def _next(self, original: Callable[..., Any], iterator: Any) -> Any:
        worker, own_s = None, self._delays["data"]
        if self._crowded and self._open is None:
            worker, began_s = WorkerQueue(iterator), time.perf_counter()
        try:
            with self._span("data"):
                batch = original(iterator)
        finally:
            if worker is not None:
                # while this thread itself waits for the processor, the worker's delay no longer matters
                left_s = time.perf_counter() - began_s - (self._delays["data"] - own_s)
                self._worker_queue_s += max(min(worker.taken_s(), left_s), 0.0)
        self._took(batch)
        return batch

    def _took(self, batch: Any) -> None:
        self._counts["batches"] += 1
        samples, tokens = size_of(batch)
        self._counts["samples"] += samples
        self._counts["tokens"] += tokens

    def _backward(self, original: Callable[..., Any], tensors: Any, *args: Any, **kwargs: Any) -> Any:
        self._keep_loss(tensors)
        with self._span("backward"):
            result = original(tensors, *args, **kwargs)
        self._counts["backward"] += 1
        if not self._has_stepped and (not self._has_optimizer or self._counts["backward"] > IDLE_PASSES):
            self._tick(BY_BACKWARD)
        return result

    def _scale(self, original: Callable[..., Any], scaler: Any, outputs: Any) -> Any:
        scaled = original(scaler, outputs)
        if isinstance(outputs, torch.Tensor) and isinstance(scaled, torch.Tensor):
            self._unscaled = (id(scaled), outputs)
        return scaled

    def _keep_loss(self, tensors: Any) -> None:
        if self._losses is None:
            return
        root = tensors if isinstance(tensors, torch.Tensor) else next(iter(tensors), None) if tensors else None
        unscaled, self._unscaled = self._unscaled, None
        if unscaled is not None and unscaled[0] == id(root):
            root = unscaled[1]
        if isinstance(root, torch.Tensor) and root.numel() == 1 and root.device.type != "meta":
            # a copy: a captured graph writes the next step's loss into the same place
            loss = root.detach().clone()
            self._unread_losses.append((self._counts["backward"], loss.reshape(()) if loss.dim() else loss))
            newest = self._newest.take(*self._unread_losses[-1]) if self._newest is not None else None
            if newest is not None:
                self._losses([newest])
        if len(self._unread_losses) >= MOST_HELD_LOSSES:
            self.read_losses()

    def _saves(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self._save is not None:
            if len(args) > 1:
                args = (args[0], self._save(args[1]), *args[2:])
            elif "f" in kwargs:
                kwargs = {**kwargs, "f": self._save(kwargs["f"])}
        with self._span("save"):
            return original(*args, **kwargs)

    def _loads(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self._load is not None and args:
            args = (self._load(args[0]), *args[1:])
        elif self._load is not None and "f" in kwargs:
            kwargs = {**kwargs, "f": self._load(kwargs["f"])}
        return original(*args, **kwargs)

    def _copies(self, original: Callable[..., Any], tensor: Any, *args: Any, **kwargs: Any) -> Any:
        with self._span("copy"):
            return original(tensor, *args, **kwargs)

    def _first_calls(self, original: Callable[..., Any], module: Any, *args: Any, **kwargs: Any) -> Any:
        """Only the outermost call comes here: below it, the class is as torch has it."""
        with self._as_torch_has_it():
            # what a checkpoint runs again in the backward pass is no outermost module
            if id(module) not in self._roots and self._open != "backward":
                self._roots[id(module)] = module
                self._see_calls(module)
            return original(module, *args, **kwargs)

    def _see_calls(self, module: Any) -> None:
        compiled = getattr(module, "_compiled_call_impl", None)
        if compiled is None:
            self._handles += [
                module.register_forward_pre_hook(self._forward_begins, prepend=True, with_kwargs=True),
                module.register_forward_hook(self._forward_ends, always_call=True),
            ]
            return

        # compiled in place: hooks would be compiled with it
        def timed(*args: Any, **kwargs: Any) -> Any:
            self._forward_begins(module, args, kwargs)
            try:
                return compiled(*args, **kwargs)
            finally:
                self._forward_ends(module, args, None)

        self._patches.set(module, "_compiled_call_impl", timed)

    def _compiles(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """A compiled module keeps the ``__call__`` that the class has at this moment."""
        with self._as_torch_has_it():
            return original(*args, **kwargs)

    @contextmanager
    def _as_torch_has_it(self) -> Iterator[None]:
        """``Module.__call__`` unwrapped, so that neither inner modules nor a compiler meet the wrapper."""
        wrapped = vars(nn.Module)["__call__"]
        if not hasattr(wrapped, "__wrapped__"):
            # a caller stored the wrapper from before the discovery ended
            yield
            return
        nn.Module.__call__ = wrapped.__wrapped__  # type: ignore[method-assign]
        try:
            yield
        finally:
            if self._n_ticks < DISCOVERY_TICKS:
                nn.Module.__call__ = wrapped  # type: ignore[method-assign]

    def _forward_begins(self, module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if self._begin("forward"):
            self._forward_by = id(module)
            if not self._learns(module):
                return
            self._counts["forward"] += 1
            if not self._loaders and self._is_new(module, (args, dict(kwargs))):
                samples, tokens = size_of((args, dict(kwargs)))
                self._counts["samples"] += samples
                self._counts["tokens"] += tokens

    def _is_new(self, module: Any, given: Any) -> bool:
        """Whether a pass learns from samples of its own: a pass without gradients (a target network, an action for an
        environment), one on what another network made, and a second network on the same batch take no new ones."""
        first = next(iter(tensors_in(given)), None)
        if first is None or not torch.is_grad_enabled() or first.grad_fn is not None:
            return False
        # not held: a batch lives as long as it would without the watch
        self._taken = [(tensor, by) for tensor, by in self._taken if tensor() is not None]
        by = next((by for tensor, by in self._taken if tensor() is first), None)
        if by is None:
            self._taken.append((weakref.ref(first), id(module)))
        return by in (None, id(module))

    def _forward_ends(self, module: Any, args: Any, output: Any) -> None:
        if self._open == "forward" and self._forward_by == id(module):
            self._end()

    def _learns(self, module: Any) -> bool:
        """Whether it has parameters, asked once."""
        is_learning = self._learning.get(id(module))
        if is_learning is None:
            is_learning = self._learning[id(module)] = any(True for _ in module.parameters())
        return is_learning

    # -- optimizers

    def _optimizer_begins(self, optimizer: Any, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        if self._pid != os.getpid():
            return None
        self._has_optimizer = self._has_stepped = True
        if self._before is not None:
            self._before(optimizer)
        began = self._begin("optimizer")
        if not began:
            return None
        # what computes the loss inside the optimizer's step is not the optimizer's
        if len(args) > 1 and callable(args[1]):
            return (args[0], self._without_optimizer(args[1]), *args[2:]), kwargs
        if callable(kwargs.get("closure")):
            return args, {**kwargs, "closure": self._without_optimizer(kwargs["closure"])}
        return None

    def _without_optimizer(self, closure: Callable[..., Any]) -> Callable[..., Any]:
        """The closure of an optimizer's step, during which the optimizer's phase is closed, in the trace too."""

        @functools.wraps(closure)
        def timed(*args: Any, **kwargs: Any) -> Any:
            reopen = self._open == "optimizer"
            if reopen:
                self._end()
            try:
                with torch.profiler.record_function(CLOSURE) if torch.autograd.profiler._is_profiler_enabled else nullcontext():
                    return closure(*args, **kwargs)
            finally:
                if reopen:
                    self._begin("optimizer")

        return timed

    def _optimizer_ends(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._pid != os.getpid():
            return
        if self._open == "optimizer":
            self._end()
        self._counts["optimizer"] += 1
        self._tick(self._number_of(optimizer))

    def _optimizer_made(self, original: Callable[..., Any], optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        self._has_optimizer = True
        return original(optimizer, *args, **kwargs)

    def _number_of(self, optimizer: Any) -> int:
        entry = self._optimizers.get(id(optimizer))
        if entry is None:
            entry = self._optimizers[id(optimizer)] = (len(self._optimizers), optimizer)
            self._tell("optimizer", **describe_optimizer(optimizer), index=entry[0])
        return entry[0]

    def _tick(self, optimizer: int) -> None:
        self._n_ticks += 1
        if self._n_ticks == DISCOVERY_TICKS:
            self._end_discovery()
        spans, counts = self._spans, self._counts
        if self._queue is None:
            self._queue = RunQueue()
        at_s, queue_s = time.perf_counter(), self._queue.waited_s()
        if self._crowded and self._open is None:
            self._bare_queue_s += queue_s - self._ended_queue_s
        self._crowded = queue_s - self._ticked[1] > CROWDED * (at_s - self._ticked[0])
        self._ended_queue_s, self._ticked = queue_s, (at_s, queue_s)
        self._on_tick(
            Tick(
                at_s=at_s,
                optimizer=optimizer,
                **{f"{n}_s": s for n, s in spans.items()},
                n_batches=counts["batches"],
                n_forward=counts["forward"],
                n_backward=counts["backward"],
                n_optimizer=counts["optimizer"],
                samples=counts["samples"],
                tokens=counts["tokens"],
                queue_s=queue_s + self._worker_queue_s,
                bare_queue_s=self._bare_queue_s,
                worker_queue_s=self._worker_queue_s,
                **{f"{n}_queue_s": s + self._worker_queue_s * (n == "data") for n, s in self._delays.items()},
            )
        )

    def _end_discovery(self) -> None:
        wrapped = vars(nn.Module).get("__call__")
        if wrapped is not None and hasattr(wrapped, "__wrapped__"):
            nn.Module.__call__ = wrapped.__wrapped__  # type: ignore[method-assign]
        for module in self.roots:
            self._tell("model", **describe_model(module))


class _Span:
    """A phase as a context, made once and entered again and again, also inside itself: begins it where none is open, and ends
    what it began."""

    __slots__ = ("_began", "_depth", "_name", "_watch")

    def __init__(self, watch: Watch, name: str) -> None:
        self._watch, self._name = watch, name
        self._depth, self._began = 0, False

    def __enter__(self) -> None:
        self._depth += 1
        if self._depth == 1:
            self._began = self._watch._begin(self._name)

    def __exit__(self, *exc: object) -> None:
        self._depth -= 1
        if self._depth == 0 and self._began:
            self._began = False
            self._watch._end()
