"""Work beside the training: what runs in every step and is neither forward, backward nor the optimizer."""

from __future__ import annotations

from collections import Counter

import numpy as np

from gpuwise.train.profile.families import COPIES_ON_DEVICE, ELEMENTWISE, REDUCTIONS, family
from gpuwise.train.profile.findings.case import Case
from gpuwise.train.profile.findings.finding import Evidence, Finding
from gpuwise.train.profile.spans import inside, joined
from gpuwise.train.profile.trace import NONE, Ints

MODULE = "nn.Module: "
SMALL = (ELEMENTWISE, COPIES_ON_DEVICE, REDUCTIONS)
"""Families of what is done to a parameter; and reading a value of it."""
READ = "aten::item"
LEAST_TENSORS = 4
"""A loop over fewer tensors is none. Rule of this project."""
LEAST_PASSES = 1.5
"""Operations on each tensor, from which fewer would do. Rule of this project."""


def evaluation(case: Case) -> Finding | None:
    """The model that learns runs again without gradients."""
    roots = _roots(case)
    if case.trace is None or not len(roots):
        return None
    trace, learns = case.trace, dict[str, bool]()
    ops, silent = case.host_ops, list[int]()
    first_op = np.searchsorted(trace.start_s[ops], trace.start_s[roots])
    after_op = np.searchsorted(trace.start_s[ops], trace.end_s[roots])
    for row, low, high in zip(roots.tolist(), first_op.tolist(), after_op.tolist(), strict=True):
        if bool((trace.sequence[ops[low:high]] != NONE).any()):
            learns[trace.text(row)] = True
        elif high > low:
            silent.append(row)
    again = np.array([row for row in silent if learns.get(trace.text(row))], np.int64)
    if not len(again):
        return None
    seconds = case.seconds_within(case.spans_of(again))
    first = int(again[0])
    name = trace.text(first).removeprefix(MODULE).rsplit("_", 1)[0]
    where = case.where(float(trace.start_s[first]))
    said = Evidence(f"{name} without gradients", where, len(again) / case.n_steps, seconds)
    return Finding(
        "evaluation in the step",
        "The model runs again without gradients in every step",
        seconds,
        "medium",
        (said,),
        ("if step % 100 == 0:  # if it is an evaluation: not every step", "    evaluate(model)"),
        note="a pass that the loss needs (pseudo-labels, samples of a policy) is no waste",
    )


def parameter_loop(case: Case) -> Finding | None:
    """Several small operations on every parameter, written as a loop in Python."""
    if case.trace is None or case.steps is None or case.ops is None or case.facts is None:
        return None
    tensors = sum(int(o.get("n_tensors") or 0) for o in case.facts.optimizers)
    if tensors < LEAST_TENSORS:
        return None
    trace, ops = case.trace, case.ops
    outer = ops.rows[ops.parent == NONE]
    busy = joined([case.annotated("Optimizer."), case.spans_of(_roots(case))])
    free = outer[~inside(trace.start_s[outer], busy) & inside(trace.start_s[outer], case.steps.windows)]
    named = [trace.text(r) for r in free.tolist()]
    counts = Counter(n for n in named if n == READ or family("op", n) in SMALL)
    often = {n: c for n, c in counts.items() if c >= tensors * case.n_steps}
    passes = sum(often.values()) / (tensors * case.n_steps)
    if passes < LEAST_PASSES:
        return None
    rows = np.array([r for r, n in zip(free.tolist(), named, strict=True) if n in often], np.int64)
    seconds = case.seconds_within(case.spans_of(rows))
    words = ", ".join(n.removeprefix("aten::") for n, _ in Counter(often).most_common(4))
    first = float(trace.start_s[rows[0]])
    said = Evidence(f"{words} on {tensors} tensors", case.where(first), len(rows) / case.n_steps, seconds)
    clips = any("norm" in n for n in often)
    mend = (
        ("torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # one norm of all",)
        if clips
        else (
            "torch._foreach_lerp_(averages, parameters, 1 - decay)  # all tensors at once",
            "# or every 10 steps, with decay ** 10",
        )
    )
    saved = seconds * (1.0 - 1.0 / passes)
    return Finding("loop over parameters", "A loop in Python works on every parameter", saved, "medium", (said,), mend)


def _roots(case: Case) -> Ints:
    """Calls of modules that no other module made."""
    if case.trace is None or case.steps is None:
        return np.zeros(0, np.int64)
    rows = case.rows(("python_function",), lambda n: n.startswith(MODULE))
    rows = rows[case.trace.lane[rows] == case.steps.lane]
    kept: list[int] = []
    until = -1.0
    for row, start, end in zip(rows.tolist(), case.trace.start_s[rows].tolist(), case.trace.end_s[rows].tolist(), strict=True):
        if start >= until:
            kept.append(row)
            until = end
    return np.array(kept, np.int64)
