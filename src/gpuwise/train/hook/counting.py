# pyright: basic
"""FLOP of one turn of a training loop, counted as its operations run: one turn is slower for it, and no other.

Counted are the products (2 per multiply-add; :mod:`gpuwise.workload.capture.ops.flop`) of forward and backward, by format. What
activation checkpointing computes again in the backward is counted apart: it is no work of the model's.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import torch
import torch.utils.checkpoint
from torch import Tensor

from gpuwise.train.ticks import Tick, boundary, steps_of
from gpuwise.workload.capture.captured import TensorSpec
from gpuwise.workload.capture.device.mode import PlainMode, dispatches_itself
from gpuwise.workload.capture.ops.flop import RULES, flop_of
from gpuwise.workload.capture.record.signatures import Overload, spec_of

AFTER_STEPS = 3
"""Turns before the counted one: by then every optimizer has stepped and the loop is known."""
MOST_TRIES = 3
"""Turns that are counted at most until one is like those before it (no evaluation in it)."""
ROOM = 0.5
"""Share of the device's memory above which a compiled script is not counted, as its uncompiled step may not fit. Rule of this
project."""
NO_PRODUCTS = frozenset(
    {
        "aten",
        "prim",
        "prims",
        "rngprims",
        "profiler",
        "c10d",
        "c10d_functional",
        "_c10d_functional",
        "symm_mem",
        "torchvision",
    }
)
"""Namespaces of operations that either are counted or multiply nothing."""
_PRODUCTS_WITHOUT_RULE = frozenset({"deform_conv2d", "_deform_conv2d_backward", "miopen_rnn_backward", "mkldnn_linear"})


class Counting:
    """Counts the FLOP of the first regular turn after ``AFTER_STEPS`` and writes them as the event ``flop``."""

    def __init__(self, tell: Callable[..., None]) -> None:
        self._tell = tell
        self._ticks: list[Tick] = []
        self._mode: _Counter | None = None
        self._stance: Any = None
        self._from = self._first = 0
        self._tries = 0
        self._is_closed = False

    @property
    def is_busy(self) -> bool:
        """Whether a turn is being counted."""
        return self._mode is not None

    def before_optimizer(self, optimizer: Any) -> None:
        """Does nothing; part of the observer interface."""

    def on_tick(self, tick: Tick) -> None:
        """Start or end counting at the tick that closes a turn."""
        if self._is_closed:
            return
        self._ticks.append(tick)
        steps = steps_of(self._ticks[: (self._first or len(self._ticks) - 1) + 1])
        if len(steps) < AFTER_STEPS or tick.optimizer != boundary(self._ticks) or not _is_outside():
            return
        if self._mode is None:
            self._begin()
            return
        counter = self._stop()
        turn = steps_of(self._ticks[self._from :])
        usual = sorted(s.n_forward for s in steps)[len(steps) // 2]
        if counter is None or not turn:
            self._give_up("the turn that was counted did not end")
        elif turn[0].n_forward != usual or len(turn) > 1:
            self._tries += 1
            if self._tries < MOST_TRIES:
                self._begin()
            else:
                self._give_up("no turn of the loop was like the one before it")
        else:
            self._is_closed = True
            self._tell(
                "flop",
                from_tick=self._first,
                to_tick=len(self._ticks) - 1,
                flop=counter.flop,
                recomputed=counter.recomputed,
                uncounted=sorted(counter.uncounted),
                samples=turn[0].samples,
                tokens=turn[0].tokens,
            )

    def close(self) -> None:
        """Stop counting."""
        self._stop()

    def _begin(self) -> None:
        why = _why_not()
        if why is not None:
            self._give_up(why)
            return
        self._from = len(self._ticks) - 1
        self._first = self._first or self._from
        if _has_compiled():
            # compiled code does not pass through operation by operation
            self._stance = torch.compiler.set_stance("force_eager")
        self._mode = _Counter()
        self._mode.__enter__()

    def _stop(self) -> _Counter | None:
        counter, self._mode = self._mode, None
        if counter is not None:
            counter.__exit__(None, None, None)
        if self._stance is not None:
            self._stance.__exit__(None, None, None)
            self._stance = None
        return counter

    def _give_up(self, why: str) -> None:
        self._is_closed = True
        self._tell("flop", from_tick=self._first or None, to_tick=len(self._ticks) - 1, why=why)


def _is_outside() -> bool:
    """Whether the call is in the backward pass or another thread: a mode that begins there would not end where it began."""
    return threading.current_thread() is threading.main_thread() and torch._C._current_graph_task_id() == -1


def _why_not() -> str | None:
    """Why operations cannot be counted here; None where they can."""
    if torch._C._len_torch_dispatch_stack():
        return "the script watches its operations itself (a dispatch mode)"
    if _has_compiled() and torch.cuda.is_available() and torch.cuda.is_initialized():
        total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
        if torch.cuda.max_memory_allocated() > ROOM * total:
            return "the script is compiled and takes more than half of the device's memory: uncompiled its step may not fit"
    return None


def _has_compiled() -> bool:
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", None)
    return bool(counters and counters["frames"].get("total"))


class _Counter(PlainMode):
    """Sums the FLOP of every operation below autograd."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self._pid = os.getpid()
        self._overloads: dict[Any, Overload] = {}
        self.flop: dict[str, float] = {}
        self.recomputed: dict[str, float] = {}
        self.uncounted: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if types and dispatches_itself(types):
            return NotImplemented
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        # a loader's worker, forked from this process
        if self._pid == os.getpid():
            if isinstance(func, torch._ops.OpOverload):
                self._count(func, args, kwargs, result)
            else:
                self.uncounted.add(str(func))
        return result

    def _count(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> None:
        overload = self._overloads.get(func)
        if overload is None:
            overload = self._overloads[func] = Overload(func)
        name = overload.name
        if overload.namespace not in NO_PRODUCTS or name in _PRODUCTS_WITHOUT_RULE:
            self.uncounted.add(f"{overload.namespace}::{name}")
            return
        flop, dtype = _flop(overload, args, kwargs, result)
        if flop and dtype is not None:
            flop_by_module = self.recomputed if _is_recomputed() else self.flop
            flop_by_module[dtype] = flop_by_module.get(dtype, 0.0) + flop


def _flop(overload: Overload, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> tuple[float, str | None]:
    """FLOP of one call and the format in which it multiplies."""
    name = overload.name
    if name not in RULES and not name.startswith("mkldnn_rnn_layer"):
        return 0.0, None
    call = {k: _value(v) for k, v in {**dict(zip(overload.arguments, args, strict=False)), **kwargs}.items()}
    outputs = [r for r in (_value(result) if isinstance(result, (tuple, list)) else (_value(result),)) if _is_spec(r)]
    if name.startswith("mkldnn_rnn_layer"):
        weights = tuple(v for k, v in call.items() if k.startswith("weight") and _is_spec(v))
        backward = name.endswith("backward")
        name, call = ("_cudnn_rnn_backward" if backward else "_cudnn_rnn"), {**call, "weight": weights}
    with suppress(StopIteration, KeyError, IndexError):
        return flop_of(name, call, outputs), _format(call, convolution="conv" in name)
    return 0.0, None


def _format(call: Mapping[str, Any], *, convolution: bool) -> str | None:
    specs = [v for v in call.values() if _is_spec(v)]
    first = next((s.dtype for s in specs if s.dtype.startswith(("fp", "bf", "c")) or s.dtype == "i8"), None)
    if first == "fp32" and torch.cuda.is_available() and _tf32(convolution):
        return "tf32"
    return {"i8": "int8", "c64": "fp32", "c128": "fp64"}.get(first or "", first)


def _tf32(convolution: bool) -> bool:
    if torch.version.hip or torch.cuda.get_device_capability() < (8, 0):
        return False
    try:
        return bool(torch.backends.cudnn.allow_tf32 if convolution else torch.backends.cuda.matmul.allow_tf32)
    except RuntimeError:
        # set by the newer names only
        backend = torch.backends.cudnn.conv if convolution else torch.backends.cuda.matmul  # type: ignore[attr-defined]
        return getattr(backend, "fp32_precision", "ieee") == "tf32"


def _value(value: Any) -> Any:
    if isinstance(value, Tensor):
        return spec_of(value)
    if isinstance(value, (list, tuple)):
        return tuple(_value(v) for v in value)
    return value


def _is_spec(value: Any) -> bool:
    return isinstance(value, TensorSpec)


def _is_recomputed() -> bool:
    """Inside a backward pass, with gradients on, called by torch's checkpointing."""
    if torch._C._current_graph_task_id() == -1 or not torch.is_grad_enabled():
        return False
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename == _CHECKPOINT:
            return True
        frame = frame.f_back
    return False


_CHECKPOINT = torch.utils.checkpoint.__file__
