"""A document as what a page shows of it, and as files to keep."""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpuwise.errors import UnknownNameError
from gpuwise.report.answers import choosing, costs, lab, machine, scores, serving, steps
from gpuwise.report.answers.answer import Answer, plain
from gpuwise.report.answers.exported import pictures
from gpuwise.report.answers.look import style
from gpuwise.report.answers.rl import rl_answer
from gpuwise.report.answers.running import run_answer
from gpuwise.report.answers.strategy import option_query
from gpuwise.report.answers.training import fit_answer, plan_answer
from gpuwise.report.answers.uses import uses_answer
from gpuwise.report.answers.values import At, inert
from gpuwise.report.answers.written import below, head, part_of
from gpuwise.report.answers.written import body as written
from gpuwise.report.page import page
from gpuwise.ui.questions import line_of

Document = Mapping[str, Any]
USES: Mapping[str, Callable[[Document], Answer]] = {"uses": uses_answer, "run": run_answer}
"""Answers of ``fit`` by what the document is for; training otherwise."""


def _fit(document: Document) -> Answer:
    return USES.get(str(document.get("for")), fit_answer)(document)


ANSWERS: Mapping[str, Callable[[Document], Answer]] = {
    "plan": plan_answer,
    "phases": rl_answer,
    "fit": _fit,
    "pick": choosing.pick_answer,
    "compare": choosing.compare_answer,
    "capacity": serving.capacity_answer,
    "cost": costs.cost_answer,
    "own": steps.fit_answer,
    "ranks": scores.ranks_answer,
    "runs": machine.runs_answer,
    "doctor": machine.doctor_answer,
    "history": machine.history_answer,
}
"""Answers by question."""
VIEWS: Mapping[str, Callable[[Document], list[str]]] = {
    "occupancy": lab.occupancy,
    "simulate": lab.simulation,
    "exercise": lab.exercise,
}
"""Those of them that are HTML directly."""
KINDS = {"html": "text/html", "svg": "image/svg+xml", "json": "application/json", "csv": "text/csv"}
_FRONT = re.compile(r'<figure id="front">.*?</figure>\n', re.DOTALL)
REGISTERS = [str(n) for n in range(16, 256, 1)]
BLOCKS = [str(n) for n in range(32, 1025, 32)]
"""Steps of the sliders of the lab."""


SLIDERS = "<!--sliders-->"
"""Where the sliders stand in an answer: below the verdict and its figures."""
_BRIEF = re.compile(r'<p class="(?:yes|no)">.*?</p>|<dl class="tiles">.*?</dl>\n', re.DOTALL)
"""Summary of an answer about own code: whether it fits, and the figures."""


def body_of(name: str, code: int, words: list[str], document: Document) -> dict[str, Any]:
    """Response for a page: exit code and document of a command, its command line, and the rendered part."""
    body = {"code": code, "command": line_of(words), "document": document}
    return body if "error" in document else body | shown(name, document, words)


def view(name: str, document: Document, asked: Sequence[str] = ()) -> str:
    """The answer as HTML; ``asked`` are the words of the command line."""
    return written(ANSWERS[name](document), asked) if name in ANSWERS else "".join(VIEWS[name](document))


def shown(name: str, document: Document, asked: Sequence[str] = ()) -> dict[str, Any]:
    """Further data of an answer for a page, beside the document."""
    if name not in ANSWERS:
        body = view(name, document, asked)
        made: dict[str, Any] = {"html": body, "brief": "".join(_BRIEF.findall(body))}
        if name == "simulate" and document.get("beside"):
            from gpuwise.lab.tasks import find_task  # numpy: a page is served without it

            size = document["beside"]["size"]
            made["held"] = {"size": str(size)}
            made["choices"] = [("size", "Size", [str(n) for n in find_task(document["task"]).sizes(size)])]
        if name == "occupancy":
            made["held"] = {"regs": str(document["regs_per_thread"]), "block": str(document["block_threads"])}
            made["choices"] = [("regs", "Registers a thread", REGISTERS), ("block", "Threads of a block", BLOCKS)]
        return made
    answer = ANSWERS[name](document)
    top, rest = head(answer), below(answer, asked)
    made = {
        "html": top + rest,
        "brief": (top + part_of(answer, "memory", "step")).replace('id="', 'id="last-'),
        "verdict": plain(answer.verdict),
    }
    if name == "plan":
        found = _FRONT.search(rest)
        made["front"] = found[0] if found else ""
        made["html"] = top + SLIDERS + _FRONT.sub("<!--front-->", rest)
        best = At(document)["best"]
        if best:
            made["held"] = option_query(best["strategy"])
            made["choices"] = choices(document)
    return made


def choices(document: Document) -> list[tuple[str, str, list[str]]]:
    """The sliders of a plan: option, name and the values it can have."""
    from gpuwise.facts.hardware.accelerators import accelerators
    from gpuwise.workload.strategy import RECOMPUTES

    at = At(document)
    strategy = at["best"]["strategy"].value
    share = at["goal"]["global_batch"].value // strategy["dp"]
    sizes = [str(1 << i) for i in range(12) if share % (1 << i) == 0]
    rates = accelerators()[str(at["cluster"]["accelerator"].value)].peak_flop_per_s
    formats = [f for f in ("fp32", "tf32", "fp16", "bf16", "fp8", "mxfp8", "nvfp4") if f in rates]
    found: list[tuple[str, str, list[str]]] = [
        ("micro_batch", "Micro-batch", sizes),
        ("recompute", "Recompute", list(RECOMPUTES)),
        ("precision", "Precision", formats),
    ]
    return [f for f in found if len(f[2]) > 1]


def export(name: str, kind: str, document: Document, command: str) -> str:
    """An answer as a self-contained file. Raises UnknownNameError."""
    if kind not in KINDS:
        raise UnknownNameError("kind of file", kind, KINDS)
    if kind == "json":
        return json.dumps(document, allow_nan=False, indent=1) + "\n"
    if kind == "csv":
        return _table(document)
    body = view(name, document, shlex.split(command)[1:] if command.startswith("gpuwise ") else ())
    if kind == "html":
        return page(f"gpuwise {name}", command, [f"<style>{style()}</style>", inert(body)])
    return pictures(body)


def _table(document: Document) -> str:
    """Every value of the document by its pointer."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("path", "value"))

    def walk(at: At) -> None:
        if isinstance(at.value, Mapping):
            for _, inner in at.items():
                walk(inner)
        elif isinstance(at.value, list):
            for inner in at:
                walk(inner)
        else:
            value = at.value
            text = "" if value is None else str(value)
            writer.writerow((at.pointer, "'" + text if isinstance(value, str) and text[:1] in "=+-@\t\r" else text))

    walk(At(document))
    return out.getvalue()
