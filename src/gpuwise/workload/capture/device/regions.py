# pyright: basic, reportPrivateImportUsage=false, reportAttributeAccessIssue=false
"""Where the program is: in a compiled region, in a checkpointed one, in the backward pass of a compiled one."""

from __future__ import annotations

import functools
from bisect import bisect_right
from typing import Any

import torch

from gpuwise.workload.capture.captured import OpFlag

_COMPILED, _CHECKPOINTED, _ENTRY = int(OpFlag.COMPILED), int(OpFlag.CHECKPOINTED), int(OpFlag.ENTRY)
_sequence = torch._C._autograd._get_sequence_nr


_node = torch._C._current_autograd_node


class Regions:
    """Current region of the program; autograd's sequence numbers identify the backward nodes of a compiled region."""

    def __init__(self) -> None:
        self.compiled_depth = 0
        self.checkpoint_depth = 0
        self.requests: list[dict[str, Any]] = []
        """Arguments of each ``torch.compile`` call: ``mode``, ``fullgraph``, ``dynamic``, ``backend``."""
        self._begins: list[int] = []
        self._ends: list[int] = []
        self._entered = False
        self._backward_of = -1
        """The region whose backward pass ran last."""

    def flags(self) -> int:
        """``OpFlag`` bits of an operation issued now."""
        bits = _CHECKPOINTED if self.checkpoint_depth else 0
        if self.compiled_depth:
            bits |= _COMPILED | (0 if self._entered else _ENTRY)
            self._entered = True
            return bits
        if self._begins:
            node = _node()
            if node is not None:
                number = node._sequence_nr()
                i = bisect_right(self._begins, number) - 1
                if i >= 0 and number < self._ends[i]:
                    bits |= _COMPILED | (0 if i == self._backward_of else _ENTRY)
                    self._backward_of = i
        return bits

    def compiled(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        """Call ``function`` as part of a compiled region."""
        outermost = not self.compiled_depth
        begin = _sequence()
        if outermost:
            self._entered, self._backward_of = False, -1
        self.compiled_depth += 1
        try:
            return function(*args, **kwargs)
        finally:
            self.compiled_depth -= 1
            if outermost and _sequence() > begin:
                self._begins.append(begin)
                self._ends.append(_sequence())

    def eager(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        """Call ``function`` as excluded from compilation."""
        depth, self.compiled_depth = self.compiled_depth, 0
        try:
            return function(*args, **kwargs)
        finally:
            self.compiled_depth = depth

    def checkpointed(self, function: Any) -> Any:
        """``function`` as part of a checkpointed region."""

        @functools.wraps(function, updated=())
        def run(*args: Any, **kwargs: Any) -> Any:
            self.checkpoint_depth += 1
            try:
                return function(*args, **kwargs)
            finally:
                self.checkpoint_depth -= 1

        return run
