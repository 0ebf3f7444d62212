"""A report to paste in a bug report, without what names a person or a machine."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping

from gpuwise.machine.doctor.observation import Machine
from gpuwise.machine.doctor.report import Diagnosis, details, one_line, summary
from gpuwise.text import printable

_PATTERNS: tuple[tuple[str, str], ...] = (
    (r"\b(?:GPU|MIG)-[0-9a-fA-F]{6,}(?:-[0-9a-fA-F]+)*", "<uuid>"),
    (r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b", "<uuid>"),
    (r"\b(?:hf_|gh[opsu]_|github_pat_|sk-|pk-|xox[abp]-|glpat-|AKIA|nvapi-|wandb_)[A-Za-z0-9_-]{8,}", "<token>"),
    (r"\beyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*", "<token>"),
    (r"(?i)\b(token|secret|password|passwd|api[_-]?key)(\s*[=:]\s*)[^\s;,|&]+", r"\1\2<secret>"),
    (r"://[^/\s:@]+:[^/\s@]+@", "://<secret>@"),
    (r"[A-Za-z0-9._%+-]+@[A-Za-z0-9-]+\.[A-Za-z0-9.-]+", "<mail>"),
    (r"\b(?:[0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}\b", "<mac>"),
    (r"(?<![\d.])(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(?:25[0-5]|2[0-4]\d|1?\d?\d)(?![\d.])", "<address>"),
    (r"(?<![0-9a-fA-F:.])(?:[0-9a-fA-F]{1,4}:){4,7}[0-9a-fA-F]{1,4}(?![0-9a-fA-F:])", "<address>"),
    (r"(?<![0-9a-fA-F:])(?:fe80|fd[0-9a-fA-F]{2}|2[0-9a-fA-F]{3})(?::[0-9a-fA-F]{0,4}){2,7}", "<address>"),
    (r"(/home/|/Users/|C:\\Users\\)[^/\\\s:;,'\"]+", r"\1<user>"),
)


def share_text(d: Diagnosis, *, names: Mapping[str, str] | None = None) -> str:
    """The report in Markdown. ``names`` are further words to hide and their replacements."""
    lines = [f"gpuwise doctor: **{d.verdict.value}**", "", "```text", summary(d.machine), ""]
    for at, f in enumerate(d.faults, start=1):
        lines += [f"{at}. [{f.severity.value}] {f.what} ({f.id})", f"   seen: {one_line(f.evidence)}"]
        lines += [f"   fix: {m.what}" for m in f.fixes[:1]]
    lines += [""] if d.faults else []
    rows = details(d.machine)
    width = max((len(n) for n, _ in rows), default=0)
    for name, value in rows:
        lines.append(f"{name:<{width}}  {value}")
    if d.machine.kernel_log:
        lines += ["", "kernel log", *(f"  {line[:160]}" for line in d.machine.kernel_log[-10:])]
    lines += ["```", ""]
    return redact(printable("\n".join(lines)), d.machine, names or local_names())


def local_names() -> dict[str, str]:
    """This machine's and this user's names."""
    import os

    names = {socket.gethostname(): "<host>", os.environ.get("HOSTNAME", ""): "<host>"}
    for variable in ("USER", "LOGNAME", "USERNAME", "SUDO_USER"):
        names[os.environ.get(variable, "")] = "<user>"
    return names


def redact(text: str, machine: Machine, names: Mapping[str, str]) -> str:
    """``text`` without names, serial numbers, device identifiers, addresses, mail addresses and secrets.

    Four numbers with dots are an address unless they stand where versions do (cuDNN's have four).
    """
    versions = {p.version for p in (machine.python.packages if machine.python else ())}
    marks = {v: f"\x00{i}\x00" for i, v in enumerate(sorted(versions, key=len, reverse=True)) if v.count(".") >= 3}
    for version, mark in marks.items():
        text = text.replace(version, mark)
    exact = {i.serial: "<serial>" for c in machine.cards if (i := c.identity).serial}
    exact |= {i.uuid: "<uuid>" for c in machine.cards if (i := c.identity).uuid}
    home = machine.environment.get("HOME") or _home()
    if home and home not in ("/", "/root"):
        exact[home] = "~"
    for word, stands in sorted({**exact, **names}.items(), key=lambda kv: -len(kv[0])):
        if len(word) >= 2 and word not in ("root", "localhost"):
            text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(word)}(?![A-Za-z0-9])", stands, text)
    for pattern, stands in _PATTERNS:
        text = re.sub(pattern, stands, text)
    for version, mark in marks.items():
        text = text.replace(mark, version)
    return text


def _home() -> str:
    import os

    return os.environ.get("HOME", "")
