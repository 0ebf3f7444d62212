# pyright: basic, reportPrivateImportUsage=false, reportAttributeAccessIssue=false
"""A whole training loop cut into steps: from one update of the optimizer to the next, ended after enough of them."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim import optimizer as torch_optimizer

from gpuwise.workload.capture.build import ItIsAStepError
from gpuwise.workload.capture.ops.nested import tensors_in
from gpuwise.workload.capture.record.recorder import Recorder
from gpuwise.workload.capture.updates import Updates

WARM_UPS = 16
"""Most updates of a function that builds a step; PyTorch's recipe for DDP in a CUDA graph warms up with 11 iterations
(docs.pytorch.org/docs/stable/notes/cuda.html, "Usage with DistributedDataParallel")."""


class LoopEnd(BaseException):
    """Enough updates were made; no ``except Exception`` of the loop stops it."""


class LoopFoundError(BaseException):
    """The object taken for one step, or for the function that builds it, updates repeatedly."""


@contextmanager
def steps_not_trained() -> Iterator[None]:
    """Allow warm-up in the function that builds a step; raises LoopFoundError if it trains: more updates than WARM_UPS, or
    several and nothing built."""
    updates: Counter[int] = Counter()

    def before(optimizer: Any, *_: Any) -> None:
        updates[id(optimizer)] += 1
        if updates[id(optimizer)] > WARM_UPS:
            raise LoopFoundError

    handle = torch_optimizer.register_optimizer_step_pre_hook(before)
    try:
        yield
    except ItIsAStepError:
        if max(updates.values(), default=0) > 1:
            raise LoopFoundError from None
        raise
    finally:
        handle.remove()


class Loop:
    """Cuts the running program into steps of the recorder: ``n_steps`` of them, and more until every optimizer has updated that
    often.

    The first step begins with the first module called with gradients. Each ends with the update of the optimizer that updated
    first; with several, as for a generator and a discriminator, updates of the others in between belong to it; if it is freed,
    the next one that updates takes its place. Without an optimizer object, a step ends when a module is called after
    parameters were written. A program without updates is one step, from the first call of a module to the end.
    """

    def __init__(self, recorder: Recorder, n_steps: int, updates: Updates) -> None:
        self.recorder, self.n_steps, self._updates = recorder, n_steps, updates
        self.batch: int | None = None
        """Samples of the last step: the first dimension of what its first module was given, over its micro-batches."""
        self._n_done, self._trains = 0, False
        self.n_elsewhere = 0
        """Updates before anything was recorded: of parameters on another device."""
        self._optimizers: list[weakref.ref[Any]] = []
        self._calls: list[tuple[int, int]] = []
        self._first_backward = self._looked = 0

    def run(self, program: Callable[[], Any]) -> None:
        """Call ``program`` until it ends or has made ``n_steps`` updates."""
        modules = self.recorder.modules
        noted = modules.on_enter

        def entered(index: int, args: Any, kwargs: Any) -> Any:
            self._called(index, args, kwargs)
            return noted(index, args, kwargs) if noted is not None else None

        modules.on_enter = entered
        handle = torch_optimizer.register_optimizer_step_post_hook(self._updated)
        try:
            program()
        except LoopEnd:
            return
        finally:
            handle.remove()
            modules.on_enter = noted
        self._updates.check()
        if self._n_done:
            self.recorder.drop_step()
        else:
            if not self.recorder.in_step:
                self.recorder.begin_step()
            self.batch = self._batch()
            self.recorder.end_step()

    def _called(self, index: int, args: Any, kwargs: Any) -> None:
        if len(self.recorder.modules.stack) > 2 or torch._C._current_graph_task_id() != -1:
            return
        given = [t for t in tensors_in((args, kwargs)) if t.is_meta]
        if not given and (args or kwargs):  # a transform of the data, on the host; a module without inputs holds its data
            return
        trains = torch.is_grad_enabled()
        if not self.recorder.in_step:
            self._begin()
        elif not self._n_done and trains and not self._trains:  # it evaluated before it trained
            self.recorder.drop_step()
            self._begin()
        elif trains and not self._optimizers and self._has_updated():
            self._end()
        self._trains = self._trains or trains
        if trains == self._trains and not (self._calls and self.recorder.in_update):  # a closure's next call has no new samples
            self._calls += [(index, int(t.shape[0])) for t in given if t.dim()][:1]

    def _has_updated(self) -> bool:
        """Whether parameters were written in the step; operations that were looked at before had written none."""
        looked, self._looked = self._looked, self.recorder.position()
        return self.recorder.has_updated(looked)

    def _begin(self) -> None:
        self.recorder.begin_step()
        self._calls.clear()
        self._looked = self.recorder.position()
        self._first_backward = len(self.recorder.storages.backwards)

    def _updated(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not (self.recorder.in_step or self._n_done or self.recorder.op_signature):
            self.n_elsewhere += 1
            if self.n_elsewhere > WARM_UPS:
                raise LoopEnd
            return
        self._optimizers = [o for o in self._optimizers if o() is not None]
        if all(o() is not optimizer for o in self._optimizers):
            self._optimizers.append(weakref.ref(optimizer))
        if not self.recorder.in_step:
            return
        if self._optimizers[0]() is optimizer:
            self._end()
        elif self._updates.is_over:  # the first updates no more: from here on steps are those of this one
            self._optimizers.insert(0, weakref.ref(optimizer))
            self._cut()

    def _end(self) -> None:
        self._cut(begins=False)
        if self._n_done >= self.n_steps and self._updates.is_complete(self.n_steps):
            raise LoopEnd
        self._begin()

    def _cut(self, *, begins: bool = True) -> None:
        self.recorder.end_step()
        self._n_done += 1
        self.batch = self._batch()
        if begins:
            self._begin()

    def _batch(self) -> int | None:
        if not self._calls:
            return None
        first, size = self._calls[0]
        sizes = [n for module, n in self._calls if module == first]
        n_backwards = len(self.recorder.storages.backwards) - self._first_backward
        return sum(sizes) if len(self._optimizers) == 1 and n_backwards == len(sizes) else size
