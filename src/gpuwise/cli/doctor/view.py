"""A diagnosis for people: the verdict, then each finding with what was seen, why it matters, how to fix it and how to check."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwise.cli.out import console
from gpuwise.machine.doctor.report import Diagnosis, one_line, summary
from gpuwise.text import broken_command

if TYPE_CHECKING:
    from rich.console import Console

    from gpuwise.machine.doctor.finding import Finding, Fix

_STYLES = {"ready": "bold green", "ready with limits": "bold yellow", "not ready": "bold red"}
_WHERE = {"host": " (on the machine itself)", "windows": " (in PowerShell)", "person": "", "here": ""}
_INDENT = 9


def show_diagnosis(d: Diagnosis, *, notes: bool = False) -> None:
    """Print the diagnosis."""
    from rich.text import Text

    to = console()
    head = Text(d.verdict.value, style=_STYLES[d.verdict.value])
    n = len(d.faults)
    if n:
        head.append(f": {n} finding{'s' if n > 1 else ''}", style="default")
    to.print(head)
    to.print(summary(d.machine), style="dim")
    for at, finding in enumerate(d.faults, start=1):
        _finding(to, f"{at}.", finding)
    # what explains a machine that does nothing on a GPU is said even when not asked for
    for note in d.notes:
        if notes or note.id == "no-gpu":
            _note(to, note)
    if n:
        to.print("\ngpuwise doctor --fix-plan fix.sh writes these steps as a script.", style="dim")
    elif d.notes and not notes and any(note.id != "no-gpu" for note in d.notes):
        to.print("--notes shows what is good to know.", style="dim")


def _finding(to: Console, number: str, f: Finding) -> None:
    import textwrap

    from rich.text import Text

    to.print()
    lines = textwrap.wrap(f"{number} {f.what}", max(20, to.width), subsequent_indent="   ", break_on_hyphens=False)
    name = f"[{f.severity.value}: {f.id}]"
    # the name in one piece, for a search
    between = " " if len(lines[-1]) + 1 + len(name) <= to.width else "\n   "
    title = Text("\n".join(lines) + between, style="bold")
    title.append(name, style="red" if f.severity.value == "blocker" else "yellow")
    to.print(title, soft_wrap=True)
    if f.evidence:
        _row(to, "seen", one_line(f.evidence))
    _row(to, "why", f.why)
    for at, fix in enumerate(f.fixes):
        _fix(to, "fix" if at == 0 else "", fix)
    if f.check:
        _command(to, "check", f.check)


def _note(to: Console, f: Finding) -> None:
    to.print()
    to.print(f.what, style="bold")
    if f.evidence:
        _row(to, "seen", one_line(f.evidence))
    _row(to, "why", f.why)
    for fix in f.fixes:
        _fix(to, "do", fix)


def _fix(to: Console, name: str, m: Fix) -> None:
    _row(to, name, m.what + _WHERE[m.where] + (":" if m.commands else "."))
    for command in m.commands:
        _command(to, "", "  " + command, posix=m.where != "windows")


def _row(to: Console, name: str, text: str) -> None:
    import textwrap

    # whole words, and long ones (paths, options) in one piece: they are there to be copied
    room = max(20, to.width - _INDENT)
    lines = textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False) or [""]
    for at, line in enumerate(lines):
        to.print(f"{'   ' + name if at == 0 else '':<{_INDENT}}{line}", soft_wrap=True)


def _command(to: Console, name: str, text: str, *, posix: bool = True) -> None:
    """One command, over several lines as a shell reads them where it is long; a word is never broken."""
    blanks = " " * (len(text) - len(text.lstrip()))
    lines = broken_command(text.strip(), max(20, to.width - _INDENT - len(blanks))) if posix else [text.strip()]
    for at, line in enumerate(lines):
        start = "   " + name if at == 0 else ""
        to.print(f"{start:<{_INDENT}}{blanks}{line}", style="cyan" if not name else None, soft_wrap=True)
