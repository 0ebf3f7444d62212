"""Findings about work in every step that is neither forward, backward nor the optimizer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from gpuwise.train.profile.families import family
from gpuwise.train.profile.finding import Evidence, Finding
from gpuwise.train.profile.operations import OP_CATEGORIES
from gpuwise.train.profile.passes import MODULE, NODE, SMALL, Passes
from gpuwise.train.profile.profile_data import ProfileData
from gpuwise.train.profile.spans import difference, inside, intersection, length, spans, union
from gpuwise.train.profile.split import DATA, PAUSES, played_of
from gpuwise.train.profile.trace import NONE, Floats, Ints
from gpuwise.units import format_duration

READ = "aten::item"
LEAST_TENSORS = 4
"""Minimum number of tensors of a loop over parameters. Rule of this project."""
MORE_PLAYED = 8
"""Factor on the number of environments that one pass of a policy serves at nearly the cost of one. Rule of this project."""
COVERED = 0.8
"""Share of the parameters whose shapes the operations of a loop must cover. Rule of this project."""
BETWEEN = "The loop spends its time between updates of the model"
VECTORISED = "gymnasium.vector.AsyncVectorEnv([...])  # more environments at once: one pass of the policy serves them all"
SAMPLED = "# sample more answers at once (a larger batch, or an engine such as vLLM): one pass of the model serves them all"
LEAST_PASSES = 1.5
"""Operations on each tensor, from which fewer would do. Rule of this project."""


def evaluation(data: ProfileData) -> Finding | None:
    """The trained model is run again in every step, without gradients or with such as no backward pass takes."""
    passes = data.passes
    if data.trace is None or passes is None:
        return None
    trace, roots, names, learns = data.trace, passes.roots, passes.names, passes.learns
    acting = set(passes.acting.tolist())
    again = [at for at in passes.silent if names[at] in learns and at not in acting]
    # between a pass and its gradients the loss is made: what runs there is for it
    again = [at for at in again if not any(a < trace.start_s[roots[at]] < b for a, b in passes.waits.get(names[at], ()))]
    again = _models(data, again, passes)
    rows = roots[again]
    if not again or not _in_most_steps(data, rows):
        return None
    seconds = data.seconds_within(_with_what_follows(data, rows, roots))
    name = names[again[0]].removeprefix(MODULE).rsplit("_", 1)[0]
    where = data.where(float(trace.start_s[rows[0]]))
    for_nothing = not passes.recorded.isdisjoint(again)
    how = "whose gradients are never used" if for_nothing else "without gradients"
    evidence = Evidence(f"{name} {how}", where, len(again) / data.n_steps, seconds)
    return Finding(
        "evaluation in the step",
        f"The model runs again {'for no gradient' if for_nothing else 'without gradients'} in every step",
        seconds,
        "medium",
        (evidence,),
        (
            "if step % 100 == 0:  # if it is an evaluation: not every step",
            *(("    with torch.no_grad():", "        evaluate(model)") if for_nothing else ("    evaluate(model)",)),
        ),
        note="a pass that the loss needs (pseudo-labels, samples of a policy) is not waste",
    )


def _in_most_steps(data: ProfileData, passes: Ints) -> bool:
    """Whether at least half of the steps have one: what comes at the end of an epoch is no matter of the step."""
    assert data.trace is not None and data.steps is not None
    starts = data.trace.start_s[passes]
    held = [bool(((starts >= begin) & (starts < end)).any()) for begin, end in data.steps.windows.tolist()]
    return 2 * sum(held) >= len(held)


def _with_what_follows(data: ProfileData, passes: Ints, roots: Ints) -> Floats:
    """Intervals [n, 2] of these passes, each up to the next other pass, batch, optimizer or end of a step: the loss of an
    evaluation and what it reads are in no module. Before a backward pass it is the loss of that."""
    assert data.trace is not None and data.steps is not None
    trace = data.trace
    others = trace.start_s[roots[~np.isin(roots, passes)]]
    starts = [others, _loading(data)[:, 0], data.annotated("Optimizer.")[:, 0], data.steps.windows[:, 1], [np.inf]]
    marks = np.sort(np.concatenate(starts))
    ends = marks[np.searchsorted(marks, trace.end_s[passes])]
    backward = np.append(np.sort(trace.start_s[data.rows(OP_CATEGORIES, lambda n: n.startswith(NODE))]), np.inf)
    learns = backward[np.searchsorted(backward, trace.end_s[passes])] < ends
    return spans(trace.start_s[passes], np.where(np.isfinite(ends) & ~learns, ends, trace.end_s[passes]))


def _models(data: ProfileData, places: list[int], passes: Passes) -> list[int]:
    """Passes of a model: of a module that calls others, or of single layers if every one that learns is called again. A layer
    whose output is used occasionally, like a recurrent net's last, is not an evaluation."""
    assert data.trace is not None
    trace = data.trace
    if {passes.names[at] for at in places} >= passes.learns.keys():
        return places
    calls = passes.roots[places]
    modules = data.rows(("python_function",), lambda n: n.startswith(MODULE))
    starts = np.sort(trace.start_s[modules])
    inner = np.searchsorted(starts, trace.end_s[calls]) - np.searchsorted(starts, trace.start_s[calls], side="right")
    return [at for at, n in zip(places, inner.tolist(), strict=True) if n > 0]


def loop_over_parameters(data: ProfileData) -> dict[str, list[int]]:
    """Rows of the operations that a Python loop runs on every parameter, by name; empty where there is no such loop."""
    if data.trace is None or data.steps is None or data.ops is None or data.facts is None:
        return {}
    shapes = _parameter_shapes(data)
    tensors = sum(shapes.values())
    if tensors < LEAST_TENSORS:
        return {}
    trace, ops = data.trace, data.ops
    outer = ops.rows[ops.parent == NONE]
    roots = data.passes.roots if data.passes is not None else ops.rows[:0]
    busy = union([data.annotated("Optimizer."), data.spans_of(roots), _loading(data)])
    free = outer[~inside(trace.start_s[outer], busy) & inside(trace.start_s[outer], data.steps.windows)]
    by_name: dict[str, list[int]] = {}
    for row in free.tolist():
        name = trace.text(row)
        if name == READ or family("op", name) in SMALL:
            by_name.setdefault(name, []).append(row)
    often = {n: rows for n, rows in by_name.items() if n != READ and _covers(data, rows, shapes)}
    # a value that is read of each, where something is done to each
    if often and len(by_name.get(READ, ())) >= tensors * data.n_steps:
        often[READ] = by_name[READ]
    return often if sum(map(len, often.values())) >= LEAST_PASSES * tensors * data.n_steps else {}


def parameter_loop(data: ProfileData) -> Finding | None:
    """A Python loop that runs several small operations on every parameter."""
    often = loop_over_parameters(data)
    if not often or data.trace is None or data.facts is None:
        return None
    trace, tensors = data.trace, sum(_parameter_shapes(data).values())
    passes = sum(map(len, often.values())) / (tensors * data.n_steps)
    rows = np.array(sorted(r for group in often.values() for r in group), np.int64)
    seconds = data.seconds_within(data.spans_of(rows))
    words = ", ".join(n.removeprefix("aten::") for n in sorted(often, key=lambda n: -len(often[n]))[:4])
    places = Counter(data.where(float(trace.start_s[r])) for r in rows[:: max(len(rows) // 50, 1)].tolist())
    evidence = Evidence(f"{words} on {tensors} tensors", places.most_common(1)[0][0], len(rows) / data.n_steps, seconds)
    fix = (
        "torch._foreach_lerp_(averages, parameters, 1 - decay)  # all tensors at once",
        "# or every 10 steps, with decay ** 10",
    )
    if any("norm" in n for n in often):
        fix = ("torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # one norm of all",)
    elif not data.facts.optimizers:
        fix = ("torch.optim.SGD(model.parameters(), lr, foreach=True).step()  # all tensors at once",)
    saved = seconds * (1.0 - 1.0 / passes)
    return Finding("loop over parameters", "A loop in Python works on every parameter", saved, "medium", (evidence,), fix)


def _parameter_shapes(data: ProfileData) -> Counter[tuple[int, ...]]:
    """Shapes of the parameters with their numbers: of the optimizers, else of the models."""
    counts: Counter[tuple[int, ...]] = Counter()
    if data.facts is not None:
        for described in data.facts.optimizers or data.facts.models:
            for shape, n in described.get("shapes", ()):
                counts[tuple(shape)] += int(n)
    return counts


def _covers(data: ProfileData, rows: Sequence[int], shapes: Counter[tuple[int, ...]]) -> bool:
    """Whether these operations, in every step, take tensors of the shapes of ``COVERED`` of the parameters."""
    assert data.trace is not None
    if len(rows) < sum(shapes.values()) * data.n_steps * COVERED:
        return False
    counts: Counter[tuple[int, ...]] = Counter()
    for row in rows:
        inputs = data.trace.inputs(row).shapes
        if inputs and inputs[0]:
            counts[tuple(inputs[0])] += 1
    met = sum(min(n, counts[shape] / data.n_steps) for shape, n in shapes.items())
    return met >= COVERED * sum(shapes.values())


def _loading(data: ProfileData) -> Floats:
    """Intervals ``[n, 2]`` in loaders."""
    rows = data.rows(("user_annotation", *OP_CATEGORIES), lambda n: family("range", n) == DATA)
    return data.spans_of(rows)


def pauses(data: ProfileData) -> Finding | None:
    """Occasional work of the loop between updates: evaluation, or an environment."""
    facts = data.facts
    if facts is None or not facts.pauses.n:
        return _moves(data)
    stops = facts.pauses
    each_s = stops.seconds * len(facts.steps) / stops.n
    passes = f", {stops.n_forward:.0f} passes of a model in each" if stops.n_forward >= 1 else ""
    plays = stops.n_forward >= 1 and stops.n_batches < 1
    evidence = [Evidence(f"{stops.n} of {len(facts.steps)} updates come after a pause of {format_duration(each_s)}{passes}")]
    bare_s = max(stops.seconds - stops.model_s, 0.0)
    if stops.model_s > 0:
        evidence.append(Evidence("passes of models", seconds=stops.model_s))
    evidence.append(Evidence("all else in the pauses", seconds=bare_s))
    return Finding(
        "between updates",
        BETWEEN,
        _played_s(data, stops.model_s, bare_s) if plays else stops.seconds,
        "medium",
        tuple(evidence),
        (VECTORISED,)
        if plays
        else ("if step % 1000 == 0:  # an evaluation, less often or on fewer batches", "    evaluate(model)"),
        note="seconds are the mean of all steps: most steps have none of it",
    )


def _moves(data: ProfileData) -> Finding | None:
    """Moves of an environment, or passes that sample text, before every update, by the names in the trace."""
    whole_s = data.part(PAUSES)
    if not whole_s or data.trace is None or data.steps is None or data.traced is None:
        return None
    calls, whole, fixed = played_of(data.trace, data.steps)
    calls, whole = (intersection(own, data.steps.windows) for own in (calls, whole))
    if not len(calls):
        return None
    calls_s = whole_s * length(difference(calls, data.stalled)) / max(length(difference(whole, data.stalled)), 1e-12)
    rest_s, are_moves = whole_s - calls_s, fixed is None
    turns = Evidence(
        "moves of an environment" if are_moves else "passes of the model that sample",
        data.where(float(calls[0, 0])),
        len(calls) / data.n_steps,
        calls_s,
    )
    return Finding(
        "between updates",
        BETWEEN,
        _played_s(data, rest_s, calls_s) if fixed is None else _played_s(data, calls_s * fixed, rest_s),
        "medium",
        (turns, Evidence("the policy between them" if are_moves else "all else between them", seconds=rest_s)),
        (VECTORISED if are_moves else SAMPLED,),
        note="moves are calls of a function `step` that is not an optimizer's" if are_moves else "",
    )


def _played_s(data: ProfileData, served_s: float, moved_s: float) -> float:
    """Saved where more environments are played at once: one pass serves them all, the processors share their moves."""
    return served_s * (1 - 1 / MORE_PLAYED) + moved_s * (1 - 1 / max(data.device.n_cores, 1))
