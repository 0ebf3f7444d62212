"""Interface for observers of the fake accelerator: operations, allocations and frees of storages, findings."""

from __future__ import annotations

from typing import Any, Protocol


class Observer(Protocol):
    """Listens to a :class:`gpuwise.workload.capture.accelerator.FakeAccelerator`; called in program order."""

    def operation(self, func: Any, args: Any, kwargs: Any, result: Any, flags: int) -> None:
        """``func`` (a ``torch._ops.OpOverload``) has returned ``result``; ``flags`` are ``OpFlag`` bits.

        Called for every operation that takes or gives a device tensor, views included.
        """

    def born(self, storage: Any, nbytes: int, host: bool) -> None:
        """A ``torch.UntypedStorage`` was seen for the first time, before ``operation`` of what made it."""

    def freed(self, key: int, nbytes: int, host: bool) -> None:
        """The storage whose ``_cdata`` was ``key`` at allocation is freed; ``nbytes`` is its last size."""

    def resized(self, key: int, old: int, new: int) -> None:
        """A living storage now holds ``new`` bytes instead of ``old`` (FSDP frees by resizing to zero)."""

    def position(self) -> int:
        """Operations so far."""
        ...

    def replayed(self, first: int, end: int) -> None:
        """The operations from ``first`` up to ``end`` run again, out of a CUDA graph."""

    def finding(self, kind: str, message: str, hint: str) -> None:
        """Something a person should know about the step."""


class NullObserver:
    """Listens to nothing: for running code on the fake accelerator without a record."""

    def operation(self, func: Any, args: Any, kwargs: Any, result: Any, flags: int) -> None: ...

    def born(self, storage: Any, nbytes: int, host: bool) -> None: ...

    def freed(self, key: int, nbytes: int, host: bool) -> None: ...

    def resized(self, key: int, old: int, new: int) -> None: ...

    def position(self) -> int:
        return 0

    def replayed(self, first: int, end: int) -> None: ...

    def finding(self, kind: str, message: str, hint: str) -> None: ...
