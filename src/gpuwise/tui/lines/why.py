"""All causes in full: worst first, with evidence, cost and advice. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from gpuwise.machine.telemetry.causes.cause import Cause
from gpuwise.machine.telemetry.frames import Frame
from gpuwise.tui.lines.cards import MARKS
from gpuwise.tui.lines.text_runs import BLANK, Line, line, run, wrap


def why_lines(frame: Frame, causes: Sequence[Cause], notices: Sequence[str], width: int) -> list[Line]:
    """Every cause, every vendor that does not answer, every driver error, and notices."""
    out = list[Line]()
    for cause in causes:
        glyph, role = MARKS[cause.severity]
        action = "" if cause.number is None else f"card:{cause.number}"
        for n, text in enumerate(wrap(cause.sentence, width - 4)):
            out.append(line(run(f" {glyph} " if n == 0 else "   ", role), run(text, "strong"), action=action))
        if cause.cost:
            out += _under("cost", cause.cost, "warn", width, action)
        for evidence in cause.evidence:
            out += _under("seen", evidence, "", width, action)
        if cause.hint:
            out += _under("try", cause.hint, "ok", width, action)
        out.append(BLANK)
    for vendor, reason in frame.failed.items():
        out += _plain(f"{vendor}: {reason}", width)
    for number, xid in frame.xids:
        where = "unknown GPU" if number is None else f"GPU {number}"
        out += _plain(f"the driver reported XID {xid.code} on {where}{': ' + xid.text if xid.text else ''}", width)
    for notice in notices:
        out += _plain(notice, width)
    if out and out[-1] == BLANK:
        out.pop()
    return out or [line(run(" ● ", "ok"), run("no GPU is slowed down" if frame.cards else "there is no GPU to judge"))]


def _under(word: str, text: str, role: str, width: int, action: str) -> list[Line]:
    lines = wrap(text, max(10, width - 10))
    return [line(run(f"   {word:<5} " if n == 0 else " " * 9, "faint"), run(t, role), action=action) for n, t in enumerate(lines)]


def _plain(text: str, width: int) -> list[Line]:
    return [line(run(" ! " if n == 0 else "   ", "warn"), run(t)) for n, t in enumerate(wrap(text, width - 4))]
