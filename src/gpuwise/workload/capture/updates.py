# pyright: basic, reportAttributeAccessIssue=false
"""Which optimizers a program has built, and whether each has updated: before that its states are not in the memory."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from typing import Any

import torch
from torch.optim import optimizer as torch_optimizer

from gpuwise.errors import InputError
from gpuwise.workload.capture.device.patching import Patches
from gpuwise.workload.capture.ops.nested import tensors_in
from gpuwise.workload.capture.record.recorder import Recorder

MOST_UPDATES = 256
"""Number of updates of all optimizers after which an optimizer without an update is no longer waited for. Rule of this
project."""
MOST_OPS = 400_000
"""Operations after which none is waited for, each some 50 us of capture. Rule of this project."""


class Updates:
    """Context manager inside the accelerator's: notes every optimizer that is built and every update.

    In a *round* every optimizer that lives and has parameters on the device updates at least once, with a gradient. After the
    first round all states exist, unless they still grow (a history of gradients); the second is a step with all of them.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder, self._patches = recorder, Patches()
        self._built: dict[int, tuple[weakref.ref[Any], str]] = {}
        """The optimizers that live, by identity, with the line where each was built."""
        self._ever: set[int] = set()
        """Those that have updated."""
        self._missing: set[int] = set()
        """Those that have not in this round."""
        self._parameters: set[int] = set()
        """Those that any optimizer has updated, by identity."""
        self._counts: Counter[int] = Counter()
        self._gone: list[tuple[int, str]] = []
        """Optimizers freed without an update: the total number of updates until then, and a description."""
        self.rounds = self._n_gone = self._n_states = 0

    def __enter__(self) -> Updates:
        made = torch.optim.Optimizer.__init__
        updates = self

        def __init__(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            made(optimizer, *args, **kwargs)
            updates._note(optimizer)

        self._patches.set(torch.optim.Optimizer, "__init__", __init__)
        self._handles = [
            torch_optimizer.register_optimizer_step_pre_hook(self._before),
            torch_optimizer.register_optimizer_step_post_hook(self._after),
        ]
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()
        self._patches.undo()
        self._built.clear()

    def _note(self, optimizer: Any) -> None:
        key, where = id(optimizer), self._recorder.lines.here()
        words, parameters = _words(optimizer, where), {id(p) for p in _trained(optimizer)}

        def gone(_: Any) -> None:
            if key not in self._ever and parameters and not parameters <= self._parameters:
                self._gone.append((self._n_all, words))
            self._built.pop(key, None)
            self._ever.discard(key)
            self._n_gone += self._counts.pop(key, 0)
            self._missing.discard(key)

        self._built[key] = weakref.ref(optimizer, gone), where
        self._missing.add(key)

    def _before(self, optimizer: Any, *_: Any) -> None:
        if id(optimizer) not in self._built:  # built before the capture
            self._note(optimizer)
        self._see(optimizer)

    def _after(self, optimizer: Any, *_: Any) -> None:
        self._see(optimizer)  # a closure's gradients come inside
        self._counts[id(optimizer)] += 1
        if not self._waiting():
            before, self._n_states = self._n_states, self._count_states()
            if not self.rounds or self._n_states <= before:
                self.rounds += 1
            self._missing = set(self._built)

    def _see(self, optimizer: Any) -> None:
        """Counts as an update if a parameter has a gradient, or had one that another optimizer has used in the meantime."""
        parameters = _parameters(optimizer)
        updated = {id(p) for p in parameters if p.grad is not None}
        if updated or any(id(p) in self._parameters for p in parameters):
            self._parameters |= updated
            self._ever.add(id(optimizer))
            self._missing.discard(id(optimizer))

    def _waiting(self) -> list[Any]:
        """The optimizers that have yet to update in this round."""
        return [o for key in list(self._missing) if (o := self._living(key)) is not None and not self._stands_for(o)]

    def _count_states(self) -> int:
        """Number of tensors in the states of all optimizers."""
        living = [o for key in self._built if (o := self._living(key)) is not None]
        return sum(1 for o in living for state in o.state.values() for _ in tensors_in(state))

    def _living(self, key: int) -> Any:
        """The optimizer, where it has parameters to train on the device."""
        entry = self._built.get(key)
        optimizer = None if entry is None else entry[0]()
        return optimizer if optimizer is not None and _trained(optimizer) else None

    def _stands_for(self, optimizer: Any) -> bool:
        """Whether it only wraps an optimizer that updates."""
        return any(id(v) in self._ever and id(v) not in self._missing for v in vars(optimizer).values())

    def is_complete(self, n_steps: int) -> bool:
        """Whether ``n_steps`` rounds are over; or the first is, and no more are waited for. Raises InputError, which names
        it, where an optimizer has not updated in all that time."""
        if self.rounds >= n_steps or not self._waiting():
            return True
        if not self.is_over:
            return False
        gc.collect()  # a scheduler and its optimizer hold one another
        self._raise([self._words(o) for o in self._waiting() if id(o) not in self._ever])
        return True

    @property
    def is_over(self) -> bool:
        """Whether no optimizer is waited for any longer."""
        return self._n_updates >= MOST_UPDATES or self._recorder.position() >= MOST_OPS

    @property
    def _n_updates(self) -> int:
        """Updates of the most active optimizer; number of steps if none has updated."""
        return max(len(self._recorder.spans), *self._counts.values(), 0)

    @property
    def _n_all(self) -> int:
        return self._n_gone + self._counts.total()

    def check(self) -> None:
        """Raises InputError where an optimizer lived to the end of the program and has not updated."""
        if self._n_all:
            never = [self._words(o) for o in self._waiting() if id(o) not in self._ever]
            self._raise(never + [words for n, words in self._gone if n == self._n_all])

    def _words(self, optimizer: Any) -> str:
        return _words(optimizer, self._built[id(optimizer)][1])

    def _raise(self, never: list[str]) -> None:
        if never:
            more = f" and {len(never) - 3} more have" if len(never) > 3 else " has" if len(never) == 1 else " have"
            raise InputError(
                f"{', '.join(never[:3])}{more} not updated in {self._n_updates} updates of others: "
                "without its states in memory, gpuwise cannot know whether it fits",
                hint="let every optimizer update early, by the script's own arguments after --, or name a function that returns "
                "a step in which each updates (train.py:make_step); do not build what is not used",
            )


def _words(optimizer: Any, where: str) -> str:
    n = sum(p.numel() for p in _parameters(optimizer))
    return f"{type(optimizer).__name__} ({n:,} parameters{f', built at {where}' if where else ''})"


def _trained(optimizer: Any) -> list[Any]:
    """Its parameters on the device."""
    return [p for p in _parameters(optimizer) if p.is_meta]


def _parameters(optimizer: Any) -> list[Any]:
    return [p for group in getattr(optimizer, "param_groups", ()) for p in group["params"]]
