"""Answers as a notebook shows them: the HTML of the pages without what asks again, with its look held to itself."""

from __future__ import annotations

import re
from typing import Any, cast

from gpuwise.lab.documents import occupancy_document
from gpuwise.lab.residency import Occupancy
from gpuwise.lab.simulation import Simulation
from gpuwise.plan.answer import CapturedStep, Fit, Plan
from gpuwise.plan.document import answer_document, estimate_document
from gpuwise.predict.estimate import to_document
from gpuwise.predict.step.training import TrainingEstimate
from gpuwise.report.answers import lab, serving, steps
from gpuwise.report.answers.answer import Answer
from gpuwise.report.answers.look import style
from gpuwise.report.answers.training import estimate_answer, fit_answer, plan_answer
from gpuwise.report.answers.values import inert
from gpuwise.report.answers.written import body
from gpuwise.serve.capacity.answer import Capacity
from gpuwise.serve.capacity.document import capacity_document

_HOST_IS_DARK = ":is([data-jp-theme-light=false],.vscode-dark,html[theme=dark])"
"""The dark themes of JupyterLab and nbconvert, VS Code and Colab."""
_RESET = "& :where(:not(svg,svg *)){all:revert;box-sizing:border-box;animation:none}"
"""A notebook has its own rules for tables, lists and code."""
_OWN = """
&{color-scheme:light;background:var(--paper);color:var(--ink);padding:1rem;font:1rem/1.5 system-ui,sans-serif;max-width:64rem}
&>style+h2{margin-top:0}summary{cursor:pointer;padding:.3rem 0;color:var(--link)}code,pre{font-family:ui-monospace,monospace}
"""
_WEIGHT = ".gpuwise" * 4
"""A selector that outweighs those of a notebook."""
Answered = Plan[Any] | Fit[Any] | TrainingEstimate | Capacity
Shown = Answered | Occupancy | Simulation


def markup(value: Shown) -> str:
    """``value`` as HTML that does not change the rest of the notebook, nor is changed by it (nested CSS: browsers since 2023)."""
    return _framed(_body(value))


def answer_markup(answer: Answer) -> str:
    """``answer`` as :func:`markup` writes it."""
    return _framed([body(answer, folded=True)])


def _framed(parts: list[str]) -> str:
    shown = inert("".join(parts))
    look = re.sub(r"@media[^{]*\(prefers-color-scheme:dark\)", f"{_HOST_IS_DARK} &", style()).replace(":root", "&")
    return f'<div class="gpuwise"><style>{_WEIGHT}{{{_RESET}{look}{_OWN}}}</style>{shown}</div>'


def _body(value: Shown) -> list[str]:
    if isinstance(value, Occupancy):
        return lab.occupancy(occupancy_document(value, "Any GPU", chart=True))
    if isinstance(value, Simulation):
        return lab.simulation(value.to_document())
    return [body(answer_of(value), folded=True)]


def answer_of(value: Answered) -> Answer:
    """What the command shows of ``value``."""
    if isinstance(value, Capacity):
        return serving.capacity_answer(capacity_document(value))
    if isinstance(value, TrainingEstimate):
        head = {"head": f"{value.model} on {value.cluster}", "device_bytes": value.device_bytes}
        return estimate_answer({**head, **cast(dict[str, Any], to_document(estimate_document(value)))})
    document = answer_document(value)
    if isinstance(value.subject, CapturedStep):
        return steps.step_answer(document)
    return plan_answer(document) if isinstance(value, Plan) else fit_answer(document)
