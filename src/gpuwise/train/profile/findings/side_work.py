"""Findings about work in every step that is neither forward, backward nor the optimizer."""

from __future__ import annotations

from collections import Counter

import numpy as np

from gpuwise.train.profile.families import COPIES_ON_DEVICE, ELEMENTWISE, REDUCTIONS, family
from gpuwise.train.profile.findings.finding import Evidence, Finding
from gpuwise.train.profile.findings.profile_data import ProfileData
from gpuwise.train.profile.spans import inside, union
from gpuwise.train.profile.trace import NONE, Ints

MODULE = "nn.Module: "
SMALL = (ELEMENTWISE, COPIES_ON_DEVICE, REDUCTIONS)
"""Families of what is done to a parameter; and reading a value of it."""
READ = "aten::item"
LEAST_TENSORS = 4
"""A loop over fewer tensors is none. Rule of this project."""
LEAST_PASSES = 1.5
"""Operations on each tensor, from which fewer would do. Rule of this project."""


def evaluation(data: ProfileData) -> Finding | None:
    """The trained model is run again without gradients in every step."""
    roots = _roots(data)
    if data.trace is None or not len(roots):
        return None
    trace, learns = data.trace, dict[str, bool]()
    ops, silent = data.host_ops, list[int]()
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
    seconds = data.seconds_within(data.spans_of(again))
    first = int(again[0])
    name = trace.text(first).removeprefix(MODULE).rsplit("_", 1)[0]
    where = data.where(float(trace.start_s[first]))
    said = Evidence(f"{name} without gradients", where, len(again) / data.n_steps, seconds)
    return Finding(
        "evaluation in the step",
        "The model runs again without gradients in every step",
        seconds,
        "medium",
        (said,),
        ("if step % 100 == 0:  # if it is an evaluation: not every step", "    evaluate(model)"),
        note="a pass that the loss needs (pseudo-labels, samples of a policy) is no waste",
    )


def parameter_loop(data: ProfileData) -> Finding | None:
    """A Python loop that runs several small operations on every parameter."""
    if data.trace is None or data.steps is None or data.ops is None or data.facts is None:
        return None
    tensors = sum(int(o.get("n_tensors") or 0) for o in data.facts.optimizers)
    if tensors < LEAST_TENSORS:
        return None
    trace, ops = data.trace, data.ops
    outer = ops.rows[ops.parent == NONE]
    busy = union([data.annotated("Optimizer."), data.spans_of(_roots(data))])
    free = outer[~inside(trace.start_s[outer], busy) & inside(trace.start_s[outer], data.steps.windows)]
    named = [trace.text(r) for r in free.tolist()]
    counts = Counter(n for n in named if n == READ or family("op", n) in SMALL)
    often = {n: c for n, c in counts.items() if c >= tensors * data.n_steps}
    passes = sum(often.values()) / (tensors * data.n_steps)
    if passes < LEAST_PASSES:
        return None
    rows = np.array([r for r, n in zip(free.tolist(), named, strict=True) if n in often], np.int64)
    seconds = data.seconds_within(data.spans_of(rows))
    words = ", ".join(n.removeprefix("aten::") for n, _ in Counter(often).most_common(4))
    first = float(trace.start_s[rows[0]])
    said = Evidence(f"{words} on {tensors} tensors", data.where(first), len(rows) / data.n_steps, seconds)
    clips = any("norm" in n for n in often)
    fix = (
        ("torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # one norm of all",)
        if clips
        else (
            "torch._foreach_lerp_(averages, parameters, 1 - decay)  # all tensors at once",
            "# or every 10 steps, with decay ** 10",
        )
    )
    saved = seconds * (1.0 - 1.0 / passes)
    return Finding("loop over parameters", "A loop in Python works on every parameter", saved, "medium", (said,), fix)


def _roots(data: ProfileData) -> Ints:
    """Calls of modules that no other module made."""
    if data.trace is None or data.steps is None:
        return np.zeros(0, np.int64)
    rows = data.rows(("python_function",), lambda n: n.startswith(MODULE))
    rows = rows[data.trace.lane[rows] == data.steps.lane]
    kept: list[int] = []
    until = -1.0
    for row, start, end in zip(rows.tolist(), data.trace.start_s[rows].tolist(), data.trace.end_s[rows].tolist(), strict=True):
        if start >= until:
            kept.append(row)
            until = end
    return np.array(kept, np.int64)
