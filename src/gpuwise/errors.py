"""The error tree. Every error says what is wrong, where, and what to do about it.

``GpuwiseError``
├── ``InputError``            something a person or a file gave is wrong
│   ├── ``SeveralFaultsError`` several things that are wrong (carries an error for each)
│   ├── ``UnknownNameError``  a name that is not in a catalogue (carries the nearest ones)
│   ├── ``AmbiguousNameError`` a name that means several things (carries the candidates)
│   ├── ``FieldError``        a bad field in a file, option or config (carries file, line, field)
│   │   └── ``FileError``     a file that cannot be read: missing, no regular file, too large, of another form
│   ├── ``LayoutError``       a parallel layout that breaks a rule (carries the rule)
│   └── ``NoRoomError``       a model, or a request of it, that does not fit the accelerators: more of them may hold it
├── ``DataError``             a shipped or imported data file is corrupt or inconsistent
├── ``UnpredictableError``    nothing we know supports an answer (carries the reason)
│   └── ``UnsupportedFormatError`` a format that an accelerator lacks; an ``InputError`` too
├── ``NoFakeRuleError``       a custom operator gives no shape without running (carries the operator)
└── ``MissingExtraError``     an optional library is needed (carries the install command)
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Sequence
from functools import cached_property


class GpuwiseError(Exception):
    """Base of every error meant for a person; command-line shells print its ``hint`` on a ``hint:`` line."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self._hint = hint

    @property
    def hint(self) -> str | None:
        """What to do next."""
        return self._hint

    def __str__(self) -> str:
        return f"{self.message}\nhint: {self.hint}" if self.hint else self.message


class InputError(GpuwiseError):
    """Invalid input by the user or in a file."""


class SeveralFaultsError(InputError):
    """Several things that are wrong with one input; ``faults`` has an error for each, in the order of the input."""

    def __init__(self, faults: Sequence[GpuwiseError]) -> None:
        self.faults = tuple(faults)
        super().__init__("; ".join(f.message for f in faults), hint="; ".join(f.hint for f in faults if f.hint) or None)


class UnknownNameError(InputError):
    """A name that is in no catalogue; ``otherwise`` is the hint without a close match."""

    def __init__(
        self, kind: str, name: str, known: Iterable[str], *, hint: str | None = None, otherwise: str | None = None
    ) -> None:
        self.kind, self.name, self._known, self._otherwise = kind, name, tuple(known), otherwise
        super().__init__(f"unknown {kind} {name!r}", hint=hint)

    @cached_property
    def nearest(self) -> tuple[str, ...]:
        """Close matches, best first: looked for when they are asked for, as most of these errors are caught."""
        return nearest_names(self.name, self._known)

    @property
    def hint(self) -> str | None:
        """What to do next: the close matches, where nothing else was given."""
        if self._hint is not None:
            return self._hint
        if not self.nearest:
            return self._otherwise
        return "did you mean " + " or ".join(repr(n) for n in self.nearest) + "?"


_MOST_CANDIDATES = 12
"""Names in a message."""


class AmbiguousNameError(InputError):
    """A name that means several catalogue entries; ``candidates`` lists them, the most common one first if ``usual``."""

    def __init__(self, kind: str, name: str, candidates: Iterable[str], *, usual: bool = False) -> None:
        self.kind, self.name, self.candidates, self.usual = kind, name, tuple(candidates), usual
        shown, more = self.candidates[:_MOST_CANDIDATES], len(self.candidates) - _MOST_CANDIDATES
        super().__init__(
            f"{kind} {name!r} is ambiguous: " + ", ".join([*shown, *([f"{more} more"] if more > 0 else [])]),
            hint=f"choose one; the most common is {self.candidates[0]!r}"
            if usual
            else f"choose one, for example {self.candidates[0]!r}",
        )


class FieldError(InputError):
    """A field in a file, an option or a config is missing, misspelt or out of range."""

    def __init__(
        self,
        message: str,
        *,
        file: str | None = None,
        line: int | None = None,
        field: str | None = None,
        hint: str | None = None,
    ) -> None:
        self.file, self.line, self.field = file, line, field
        where = "" if file is None else file + (f":{line}" if line else "") + ": "
        super().__init__(where + message, hint=hint)


class FileError(FieldError):
    """A file named by the user cannot be read, or has the wrong form; ``file`` is its path."""


class LayoutError(InputError):
    """A parallel layout that cannot run; ``rule`` names the rule it breaks."""

    def __init__(self, rule: str, message: str, *, hint: str | None = None) -> None:
        self.rule = rule
        super().__init__(f"{message} (rule: {rule})", hint=hint)


class NoRoomError(InputError):
    """A model, or a request of it, that does not fit the accelerators; more of them may suffice. ``short_bytes`` are missing on
    one for the weights; 0 where these fit."""

    def __init__(self, message: str, *, hint: str | None = None, short_bytes: float = 0.0) -> None:
        self.short_bytes = short_bytes
        super().__init__(message, hint=hint)


class DataError(GpuwiseError):
    """A data file (catalogue, coefficients, prices) is corrupt: no number is made from it."""


class UnpredictableError(GpuwiseError):
    """No basis for a prediction; ``reason`` is a short stable phrase for counting."""

    def __init__(self, reason: str, message: str | None = None, *, hint: str | None = None) -> None:
        self.reason = reason
        super().__init__(message or reason, hint=hint)


class UnsupportedFormatError(UnpredictableError, InputError):
    """The requested number format has no matrix rate on the accelerator: bad input, and no prediction."""


class NoFakeRuleError(GpuwiseError):
    """An operator without a rule for its outputs when it is not run; ``operator`` is its name."""

    def __init__(self, operator: str, reason: str = "", *, hint: str | None = None) -> None:
        self.operator, self.reason = operator, reason
        super().__init__(
            f"the operator {operator} has no rule that gives its result's shape without running it"
            + (f" ({reason})" if reason else ""),
            hint=hint
            or f"register one with torch.library.register_fake({operator!r}), which takes the arguments and returns "
            "empty tensors",
        )


class DeviceError(GpuwiseError):
    """A device or its driver did not answer; ``vendor`` and ``code`` are the vendor library's own."""

    def __init__(self, message: str, *, vendor: str = "", code: int | None = None, hint: str | None = None) -> None:
        self.vendor, self.code = vendor, code
        super().__init__(message, hint=hint)


class NoDriverError(DeviceError):
    """No vendor library here, or the driver is not loaded."""


class DriverMismatchError(DeviceError):
    """The library and the loaded driver are of different versions: the driver was updated under a running kernel."""


class DeviceLostError(DeviceError):
    """The device fell off the bus or has to be reset; ``index`` is the one it had."""

    def __init__(self, index: int, message: str, *, vendor: str = "", code: int | None = None, hint: str | None = None) -> None:
        self.index = index
        super().__init__(message, vendor=vendor, code=code, hint=hint)


class DevicePermissionError(DeviceError):
    """The driver refuses this user."""


class ReadingError(DeviceError):
    """A device does not provide one reading; ``reading`` names it, ``reason`` is a short stable phrase."""

    def __init__(self, reading: str, reason: str, *, vendor: str = "", code: int | None = None, hint: str | None = None) -> None:
        self.reading, self.reason = reading, reason
        super().__init__(f"{reading}: {reason}", vendor=vendor, code=code, hint=hint)


class MissingExtraError(GpuwiseError):
    """An optional library is needed for this."""


EXTRAS = {
    "pyarrow": "parquet",
    "torch": "torch",
    "gpuhunt": "prices",
    "scipy": "calibrate",
    "starlette": "ui",
    "uvicorn": "ui",
    "mcp": "mcp",
}
"""Optional libraries and the extra of this package that brings each; pyproject.toml lists them."""


def require(library: str, purpose: str, *, otherwise: str = "") -> None:
    """Check that an optional library is installed, without importing it.

    ``purpose`` is a singular noun phrase for what needs it; ``otherwise`` what to do without it. Raises MissingExtraError with
    the command that installs it.
    """
    from importlib.util import find_spec

    if find_spec(library) is None:
        install = f"pip install 'gpuwise[{EXTRAS[library]}]'" if library in EXTRAS else f"pip install {library}"
        hint = f"{install}, or {otherwise}" if otherwise else install
        raise MissingExtraError(f"{purpose} needs {library}, which is not installed", hint=hint)


def require_posix(purpose: str) -> None:
    """Check that the system has what starts and ends a script with all its processes (process groups, signals, ``fork``).

    ``purpose`` is a singular noun phrase for what needs it. Raises GpuwiseError on Windows.
    """
    if not hasattr(os, "killpg"):
        raise GpuwiseError(f"{purpose} needs Linux or macOS", hint="on Windows, install it inside WSL and run it there")


def nearest_names(name: str, known: Iterable[str], n: int = 3, cutoff: float = 0.5) -> tuple[str, ...]:
    """The up to ``n`` known names closest to ``name``, best first (case-insensitive), at least ``cutoff`` alike (0 to 1)."""
    by_lower = {k.lower(): k for k in known}
    return tuple(by_lower[m] for m in difflib.get_close_matches(name.lower(), by_lower, n=n, cutoff=cutoff))
