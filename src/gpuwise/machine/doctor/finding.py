"""A finding of the doctor: what is wrong, the evidence, why it matters, the fixes and how to check them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How much a finding matters."""

    BLOCKER = "blocker"
    """GPU work does not run."""
    LIMIT = "limit"
    """It runs, but slower, on fewer devices, or not for long."""
    NOTE = "note"
    """Good to know; no fault."""


class Verdict(StrEnum):
    """The overall verdict on a machine."""

    READY = "ready"
    LIMITS = "ready with limits"
    NOT_READY = "not ready"


EXIT_CODES = {Verdict.READY: 0, Verdict.LIMITS: 1, Verdict.NOT_READY: 2}


@dataclass(frozen=True, slots=True)
class Fix:
    """One way to fix a finding."""

    what: str
    """In a few words, for a heading and a comment."""
    commands: tuple[str, ...] = ()
    """Shell commands in order; empty when a person has to do it."""
    where: str = "here"
    """``here``; ``host`` (outside the container); ``windows`` (PowerShell); ``person`` (nothing to type)."""
    reboot: bool = False
    """Works only after a restart of the machine."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, or good to know."""

    id: str
    """Stable: scripts may rely on it."""
    severity: Severity
    what: str
    evidence: tuple[str, ...]
    why: str
    fixes: tuple[Fix, ...] = ()
    """The best first: the others are instead of it."""
    check: str = ""
    """A command that shows whether it is fixed, with the output to expect."""
    cards: tuple[int, ...] = ()
    """Indices of the devices concerned."""
    hides: tuple[str, ...] = ()
    """Findings that are only consequences of this one; a ``*`` at the end takes all that begin so."""
    sources: tuple[str, ...] = ()
    """Keys of sources.csv behind the judgement."""
