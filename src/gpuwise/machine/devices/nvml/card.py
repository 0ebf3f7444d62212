"""State of one NVML device: its handle, and its unsupported readings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from gpuwise.machine.devices.nvml.calls import Handle, Library
from gpuwise.machine.devices.nvml.errors import LASTING_CODES, LOST_CODES, NvmlError, is_out_of_reach, reason_of

T = TypeVar("T")


@dataclass(slots=True)
class NvmlCard:
    """One device. Its handle is None while the device is lost."""

    index: int
    handle: Handle | None = None
    bus_id: str | None = None
    name: str | None = None
    unified: bool | None = None
    """Whether it shares the processor's memory, which NVML does not report; None: not checked yet."""
    lasting: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])
    """``sample``, ``health`` or ``identity`` -> reading -> why it is not there, and will not be while the device stays."""
    skipped: set[str] = field(default_factory=set[str])
    """Ways of asking that this driver or card does not have."""
    room: int = 16
    """How long the lists of processes are expected to be."""
    since_us: int = 0
    """The driver's clock at the last use of processes."""

    def forget(self) -> None:
        """Reset after the device was lost: support is checked again when it is back."""
        self.handle = None
        self.lasting = {}
        self.skipped = set()
        self.since_us = 0
        self.unified = None


class Reader:
    """Reads of one card at one moment; failures are stored with their reason, permanent ones are not tried again.

    A failure of the whole device or driver is raised.
    """

    __slots__ = ("_card", "_kind", "_lasting", "_transient", "handle", "last_code", "library", "n_read")

    def __init__(self, library: Library, card: NvmlCard, handle: Handle, kind: str) -> None:
        self.library, self.handle, self._card, self._kind = library, handle, card, kind
        self._lasting = card.lasting.setdefault(kind, {})
        self._transient: dict[str, str] | None = None
        self.last_code = 999
        """Code of the last failure; unknown error without one."""
        self.n_read = 0
        """Readings that were there."""

    def __call__(self, reading: str, ask: Callable[..., T], *arguments: object) -> T | None:
        """``ask(*arguments)``, or None with its reason under the name of the reading."""
        if reading in self._lasting:
            return None
        try:
            value = ask(*arguments)
        except NvmlError as refused:
            self.refused(reading, code=refused.code)
            return None
        self.n_read += 1
        return value

    def refused(self, *readings: str, code: int) -> None:
        """Keep why readings are not there. Raises NvmlError when the device or the driver is away."""
        if code in LOST_CODES or is_out_of_reach(code):
            raise NvmlError(code)
        self.last_code = code
        for reading in readings:
            self.unknown(reading, reason_of(code), lasting=code in LASTING_CODES)

    def unknown(self, reading: str, reason: str, *, lasting: bool = False) -> None:
        """Record why a reading is None."""
        if lasting:
            # a new dict: samples taken before hold the old one
            self._lasting = self._card.lasting[self._kind] = {**self._lasting, reading: reason}
        else:
            self._transient = {**(self._transient or {}), reading: reason}

    def same(self, of: str, *others: str) -> None:
        """Note one reason for readings that come from one call."""
        reason = self.reasons.get(of, reason_of(self.last_code))
        for other in others:
            self.unknown(other, reason, lasting=of in self._lasting)

    def known_missing(self, reading: str) -> bool:
        """Whether a reading is known to be unsupported."""
        return reading in self._lasting

    def skip(self, question: str) -> None:
        """Stop asking in this way; the reading comes from another call."""
        self._card.skipped.add(question)

    def skip_field(self, number: int) -> None:
        """Stop asking for a field."""
        self.skip(f"field {number}")

    def is_skipped(self, question: str) -> bool:
        """Whether a call or field is not to be asked."""
        return question in self._card.skipped

    @property
    def reasons(self) -> dict[str, str]:
        """Reading -> why it is None; one dict for all samples with the same gaps."""
        return {**self._lasting, **self._transient} if self._transient else self._lasting
