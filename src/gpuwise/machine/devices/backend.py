"""The interface of a vendor's backend. A backend raises only errors of :mod:`gpuwise.errors`.

``open_devices`` (in :mod:`gpuwise.machine.devices.find`) opens those that are here.
"""

from __future__ import annotations

from typing import Protocol

from gpuwise.machine.devices.readings import Driver, Health, Identity, Peer, Sample, Xid


class Devices(Protocol):
    """The devices of one vendor on this machine."""

    @property
    def vendor(self) -> str: ...

    def driver(self) -> Driver:
        """Versions of the driver."""
        ...

    def identities(self) -> tuple[Identity, ...]:
        """Every device, in the vendor's order; a lost one keeps its place (name as last known, else ``lost``). Read again
        at every call."""
        ...

    def sample(self, index: int, *, processes: bool = True) -> Sample:
        """The quick readings of one device. A lost or unreachable device gives a sample with that state, never an error; a
        device that comes back is read again. No driver call in here may take longer than about a millisecond."""
        ...

    def health(self, index: int) -> Health:
        """The slow and seldom changing readings of one device. Raises DeviceLostError, DeviceError."""
        ...

    def peers(self) -> tuple[Peer, ...]:
        """Every pair of devices, ``a < b``."""
        ...

    def wait_for_xid(self, timeout_s: float) -> Xid | None:
        """The next error the driver reports, or None after ``timeout_s``. Raises ReadingError where it cannot be asked."""
        ...

    def close(self) -> None:
        """Release the library; safe to call twice."""
        ...
