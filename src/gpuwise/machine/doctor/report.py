"""A diagnosis: the verdict, the findings and the machine, as a document, in a sentence, and as a script of its fixes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from typing import cast

from gpuwise.machine.doctor.checks.table import examine, verdict_of
from gpuwise.machine.doctor.finding import EXIT_CODES, Finding, Fix, Severity, Verdict
from gpuwise.machine.doctor.observation import DRIVER, Machine
from gpuwise.text import single_line
from gpuwise.units import format_bytes

_NAMES = {"torch": "PyTorch", "tensorflow": "TensorFlow", "jax": "JAX", "cupy": "CuPy"}
_SHELL_ONLY = ("export ", "unset ", "ulimit ")


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The doctor's result for one machine."""

    machine: Machine
    findings: tuple[Finding, ...]
    """Faults and notes, the gravest first."""

    @property
    def verdict(self) -> Verdict:
        """The verdict that the findings lead to."""
        return verdict_of(self.findings)

    @property
    def exit_code(self) -> int:
        """0 ready, 1 ready with limits, 2 not ready."""
        return EXIT_CODES[self.verdict]

    @property
    def faults(self) -> tuple[Finding, ...]:
        """The findings that limit or stop work."""
        return tuple(f for f in self.findings if f.severity is not Severity.NOTE)

    @property
    def notes(self) -> tuple[Finding, ...]:
        """The findings that are no fault."""
        return tuple(f for f in self.findings if f.severity is Severity.NOTE)


def diagnose(machine: Machine) -> Diagnosis:
    """The diagnosis of an observed machine."""
    return Diagnosis(machine, examine(machine))


def summary(m: Machine) -> str:
    """The machine in a line: cards, driver, Python, frameworks."""
    cards = [c.identity.name for c in m.cards]
    counts = [f"{cards.count(n)} x {n}" if cards.count(n) > 1 else n for n in dict.fromkeys(cards)]
    parts = [", ".join(counts) or "no GPU that answers"]
    if m.driver_version:
        vendor = m.vendor("nvidia")
        newest = vendor.driver.cuda_version if vendor and vendor.driver else None
        parts.append(f"driver {m.driver_version}" + (f" (CUDA up to {newest[0]}.{newest[1]})" if newest else ""))
    if m.python and m.python.version:
        parts.append("Python " + ".".join(map(str, m.python.version)))
    for f in (f for f in m.frameworks if f.name != DRIVER):
        build = f.cuda or f.answer.get("hip")
        name = _NAMES.get(f.name, f.name)
        parts.append(
            f"{name} {f.answer.get('version') or ''}".strip() + (f" ({'CUDA' if f.cuda else 'ROCm'} {build})" if build else "")
        )
    return "; ".join(parts)


def details(m: Machine) -> tuple[tuple[str, str], ...]:
    """Examined facts for a report: name and value, without unknown ones."""
    s, r, python = m.system, m.resources, m.python
    rows: list[tuple[str, str | None]] = [
        ("system", f"{s.name} {s.machine}, kernel {s.kernel}"),
        ("runs in", s.container or (f"WSL {s.wsl}" if s.wsl else None)),
        ("secure boot", None if s.secure_boot is None else "on" if s.secure_boot else "off"),
        ("kernel modules", " ".join(m.modules.loaded) or None),
        ("driver", m.driver_version),
        ("driver libraries", ", ".join(m.modules.libraries) or None),
        ("toolkits", ", ".join(f"{'.'.join(map(str, t.version))}{' (in use)' if t.on_path else ''}" for t in m.toolkits) or None),
    ]
    rows += [(f"GPU {c.identity.index}", _card_line(c)) for c in m.cards]
    rows.append(("python", f"{python.path} {'.'.join(map(str, python.version))}" if python and python.version else None))
    rows += [(p.name, p.version) for p in (python.packages if python else ()) if not p.name.startswith("nvidia-ml")]
    for f in m.frameworks:
        rows.append((f"{f.name} says", _answer_text(f.answer, f.outcome)))
    rows += [(k, v) for k, v in sorted(m.environment.items())]
    rows += [
        ("processors", None if r.cpus is None else f"{r.cpus}" + (f", {r.cpu_quota:g} allowed" if r.cpu_quota else "")),
        ("memory", None if r.memory_bytes is None else format_bytes(r.memory_bytes)),
        ("/dev/shm", None if r.shm_bytes is None else format_bytes(r.shm_bytes)),
        ("open files", None if r.nofile is None else "unlimited" if r.nofile < 0 else str(r.nofile)),
    ]
    rows += [(f"free, {n}", f"{format_bytes(f)} of {format_bytes(t)}") for n, (f, t) in r.disks.items()]
    return tuple((name, value) for name, value in rows if value)


def _card_line(card: object) -> str:
    """A GPU's name, capability and readings in one line."""
    from gpuwise.machine.doctor.observation import Card

    assert isinstance(card, Card)
    i, s = card.identity, card.sample
    parts = [i.name]
    if i.compute_capability:
        parts.append("sm_{}{}".format(*i.compute_capability))
    if i.memory_bytes:
        parts.append(format_bytes(i.memory_bytes))
    if s and s.state.value != "ok":
        parts.append(s.state.value)
    if s and s.temperature_c is not None:
        parts.append(f"{s.temperature_c:.0f} °C")
    if s and s.power_limit_w is not None:
        parts.append(f"limit {s.power_limit_w:.0f} W")
    if s and s.pcie_width:
        parts.append(f"PCIe x{s.pcie_width}")
    return ", ".join(parts)


def _answer_text(answer: Mapping[str, object], outcome: str) -> str:
    """The outcome of a framework's question and what it answered, in one line."""
    keys = ("cuda", "hip", "cudnn", "nccl", "available", "count", "error")
    values = [f"{k} {answer[k]}" for k in keys if answer.get(k) is not None]
    return ", ".join([outcome, *values])


def document(d: Diagnosis) -> dict[str, object]:
    """The diagnosis for programs."""
    return {
        "verdict": d.verdict.value,
        "exit_code": d.exit_code,
        "summary": summary(d.machine),
        "findings": [_finding(f) for f in d.faults],
        "notes": [_finding(f) for f in d.notes],
        "machine": plain(d.machine),
    }


def _finding(finding: Finding) -> dict[str, object]:
    """A finding's fields; fixes keep the key ``mends`` in the document, which scripts use."""
    return {"mends" if f.name == "fixes" else f.name: plain(getattr(finding, f.name)) for f in fields(finding)}


def plain(value: object) -> object:
    """Dataclasses, tuples, enumerations and mappings as what JSON has."""
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in cast("Mapping[object, object]", value).items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in cast("Sequence[object]", value)]
    return value


def fix_plan(d: Diagnosis) -> str:
    """A shell script that applies the first fix of each fault in order.

    It asks before each step and before a restart, and stops at the first command that fails. What has to be done elsewhere
    (outside the container, in Windows, by hand) is a comment.
    """
    lines = [
        "#!/usr/bin/env bash",
        f"# gpuwise doctor --fix-plan: {_comment(summary(d.machine))}",
        f"# Verdict: {d.verdict.value}. Read this before you run it; it asks before each step.",
        "set -euo pipefail",
        "",
        'ask() { local answer; read -r -p "$1 [y/N] " answer </dev/tty || return 1; [ "$answer" = y ]; }',
        "",
    ]
    restart = False
    for at, finding in enumerate(d.faults, start=1):
        lines += [f"# {at}. {_comment(finding.what)} ({finding.id})", f"#    Why: {_comment(finding.why)}"]
        for way, fix in enumerate(finding.fixes):
            instead = way > 0
            lines += _step(fix, instead, at)
            restart |= fix.reboot and fix.where == "here" and not instead
        if finding.check:
            lines.append(f"#    Check: {_comment(finding.check)}")
        lines.append("")
    if not d.faults:
        lines += ["# Nothing to fix.", ""]
    if restart:
        lines += [
            "# What was changed works after a restart; then run `gpuwise doctor` again.",
            'if ask "Restart this machine now?"; then sudo reboot; fi',
            "",
        ]
    return "\n".join(lines)


def _step(fix: Fix, instead: bool, at: int) -> list[str]:
    """One fix, as commands if requested, or as comments."""
    what = _comment(fix.what)
    commands = [c for c in fix.commands if c not in ("sudo reboot", "sudo poweroff", "gpuwise doctor")]
    typed = [c for c in commands if c.startswith(_SHELL_ONLY)]
    run = [c for c in commands if c not in typed]
    if instead or fix.where != "here":
        where = {"host": " [on the machine itself, not in the container]", "windows": " [in PowerShell]"}.get(fix.where, "")
        return [f"#    {what}{where}", *(f"#      {_comment(c)}" for c in fix.commands)]
    lines = [f"#    {what}"]
    lines += [f"#    Type this in your own shell, which a script cannot change: {_comment(c)}" for c in typed]
    if run:
        question = what.replace("\\", "").replace('"', "'").replace("$", "").replace("`", "'")
        lines += [f'if ask "{at}. {question}?"; then', *(f"  {c}" for c in run), "fi"]
    return lines


def _comment(text: str) -> str:
    """Text that cannot leave a comment: one line, no control characters."""
    return single_line(text)


def one_line(texts: Iterable[str]) -> str:
    """Evidence in a line."""
    return "; ".join(t for t in texts if t)
