"""``this``: the name of the current machine among the names of devices.

Its hardware is detected by :mod:`gpuwise.machine.this`, which the package registers here on import: facts do not depend on
drivers.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from gpuwise.errors import InputError

if TYPE_CHECKING:
    from gpuwise.facts.hardware.cpus import Cpu
    from gpuwise.facts.hardware.systems import Cluster

THIS = "this"
_THIS = re.compile(r"\s*(?:(\d{1,3})\s*[x×]\s*)?this(?:[\s-]+(?:machine|pc|computer|mac))?(?::(\d{1,3}))?\s*", re.IGNORECASE)
_cluster: list[Callable[[int | None, int | None], Cluster]] = []
_processor: list[Callable[[], Cpu]] = []


class NoGpuHereError(InputError):
    """This machine has no GPU."""


def find_with(cluster: Callable[[int | None, int | None], Cluster], processor: Callable[[], Cpu]) -> None:
    """Register ``cluster``, which finds that many GPUs of this machine (None: all) or the one with an index, and
    ``processor``, which finds its CPU."""
    _cluster[:], _processor[:] = [cluster], [processor]


def is_this(text: str) -> bool:
    """``this``, ``2xthis``, ``this:0``, ``this machine``."""
    return _THIS.fullmatch(text) is not None


def counted_here(text: str) -> tuple[int | None, int | None]:
    """The count of ``2xthis`` and the index of ``this:0``."""
    match = _THIS.fullmatch(text)
    assert match is not None
    count, index = (None if found is None else int(found) for found in match.groups())
    return count, index


def this_cluster(text: str) -> Cluster:
    """The GPUs of this machine that ``text`` means. Raises NoGpuHereError, InputError where there are fewer or they differ."""
    return _cluster[0](*counted_here(text))


def this_processor() -> Cpu:
    """The CPU of this machine, as measured. Raises InputError where it was not."""
    return _processor[0]()
