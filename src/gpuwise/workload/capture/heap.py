"""The garbage collector while steps are captured: with PyTorch imported a full collection takes a third of a second, a small
step's capture no longer than that."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def frozen_heap() -> Generator[None, None, None]:
    """Inside, the collector looks only at what is made there.

    Garbage of before is collected at the start, so that none of it dies inside. May be nested: the inner ones look only at what
    was made since, and all of it is given back to the collector at the end of the outermost, or stays where the program itself
    had frozen objects before.
    """
    outermost = not gc.get_freeze_count()
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        if outermost:
            gc.unfreeze()
