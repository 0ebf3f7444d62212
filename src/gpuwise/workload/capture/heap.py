"""The garbage collector while steps are captured: with PyTorch imported a full collection takes a third of a second, a small
step's capture no longer than that."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager

frozen_by_program: bool | None = None
"""Whether the capturing program has frozen objects itself. None: they are counted (30 ms per million). A program that captures
many steps after freezing its imports sets True."""
_within = 0


@contextmanager
def frozen_heap() -> Generator[None, None, None]:
    """Inside, the collector looks only at what is made there.

    Garbage of before is collected at the start, so that none of it dies inside. May be nested: the inner ones look only at what
    was made since, and all of it is given back to the collector at the end of the outermost, or stays where the program itself
    had frozen objects before.
    """
    global _within
    gives_back = not _within and not (gc.get_freeze_count() if frozen_by_program is None else frozen_by_program)
    gc.collect()
    gc.freeze()
    _within += 1
    try:
        yield
    finally:
        _within -= 1
        if gives_back:
            gc.unfreeze()
