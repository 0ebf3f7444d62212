"""Where in the user's code an operation comes from: the nearest frame that is neither torch nor another library."""

from __future__ import annotations

import os
import sys
from bisect import bisect_right
from pathlib import Path
from typing import Any

import torch

from gpuwise.workload.capture.places import is_library

LIBRARY, USER, ENGINE, OPTIMIZER, GRADIENT_ROOT = range(5)
"""Kinds of frames: skipped, the user's, the autograd engine's entry, an optimizer's own work, ``backward``'s first gradient."""

_OPTIMIZER_PARTS = (f"torch{os.sep}optim{os.sep}", f"utils{os.sep}clip_grad.py")
_SCALER = f"amp{os.sep}grad_scaler.py"
_next_sequence = torch.autograd._get_sequence_nr  # pyright: ignore[reportPrivateImportUsage, reportPrivateUsage]


def kind_of(code: Any) -> int:
    """Kind of the frames of ``code``."""
    filename, name = code.co_filename, code.co_name
    if name == "_engine_run_backward":
        return ENGINE
    if "torch" in filename and is_library(filename):
        if any(part in filename for part in _OPTIMIZER_PARTS) or name == "zero_grad":
            return OPTIMIZER
        if _SCALER in filename and name not in ("scale", "apply_scale", "__init__", "_lazy_init_scale_growth_tracker"):
            return OPTIMIZER
        if filename.endswith(f"autograd{os.sep}__init__.py"):
            return GRADIENT_ROOT
        return LIBRARY
    return LIBRARY if is_library(filename) else USER


class Lines:
    """Interns user lines; index 0 means none. A node of the autograd graph finds the line of its forward."""

    def __init__(self) -> None:
        self.all: list[str] = [""]
        self.kinds: dict[Any, int] = {}
        self._index: dict[tuple[Any, int], int] = {}
        self._last = 0
        self._sequence = 0
        self._starts: list[int] = [0]
        self._owners: list[int] = [0]

    def find(self) -> tuple[int, int]:
        """(line index, what was met on the way: LIBRARY, ENGINE, OPTIMIZER or GRADIENT_ROOT)."""
        frame: Any = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]
        kinds, library_kind = self.kinds, LIBRARY
        while frame is not None:
            code = frame.f_code
            kind = kinds.get(code)
            if kind is None:
                kind = kinds[code] = kind_of(code)
            if kind:
                if kind == USER:
                    key = (code, frame.f_lineno)
                    index = self._index.get(key)
                    return (self._new(key) if index is None else index), library_kind
                if library_kind == LIBRARY:
                    library_kind = kind
                if kind == ENGINE:
                    return 0, library_kind
            frame = frame.f_back
        return 0, library_kind

    def _new(self, key: tuple[Any, int]) -> int:
        code, line = key
        function = code.co_qualname.replace("<locals>.", "").removeprefix("<module>").rpartition("make_step.")[2]
        index = self._index[key] = len(self.all)
        self.all.append(f"{Path(code.co_filename).name}:{line}" + (f" in {function}" if function else ""))
        return index

    def forward(self, line: int) -> None:
        """A forward operation ran at ``line``: the nodes made since the last one are its own."""
        if line != self._last:
            self._last = line
            if self._starts[-1] == self._sequence:
                self._owners[-1] = line
            else:
                self._starts.append(self._sequence)
                self._owners.append(line)
        self._sequence = _next_sequence()

    def of_node(self, sequence: int) -> int:
        """The line that made the autograd node with this sequence number."""
        return self._owners[bisect_right(self._starts, sequence) - 1]

    def here(self) -> str:
        """The user line on the stack now, for findings."""
        return self.all[self.find()[0]]
