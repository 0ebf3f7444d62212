"""Fits what each software stack costs a step, on the rows of published LLM training runs that are not kept aside
(:mod:`gpuwise.calibrate.llm_training.score` tells them apart)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from gpuwise.calibrate.llm_training.rows import LlmRow, read_rows
from gpuwise.calibrate.llm_training.score import RunGroup, build_groups, is_check
from gpuwise.predict.stack_costs import EXPERTS, StackCosts, find_stack_costs
from gpuwise.predict.step.times import step_inputs
from gpuwise.predict.step.training import runs_spread
from studies.llm_training.expert_fit import MATMUL, PRIORS, SCALE, Prior, fit_experts
from studies.llm_training.joined import joined
from studies.llm_training.leverage import Range, slopes, unseen_errors
from studies.llm_training.widths import Residuals, kernel_share, left_out_coverage, spreads
from studies.optimizers import least_squares

F64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Bound:
    """A coefficient's range and where the fit starts; times are fitted in log space."""

    low: float
    start: float
    high: float
    log: bool = False


MOST_UPDATE_S = 7e-3
"""Host time of norm, clipping and update for a layer's dozen shards, at some 0.2 ms for each tensor and operation: what of a step
is left over beyond that is no host time, and would be the half of a small model's step."""
MOST_CONTENTION = 0.25
"""NCCL runs a collective on 32 SMs at the most (its channels in a node): of 108 to 132 that is what a product loses beside it."""
BOUNDS: dict[str, Bound] = {
    "launch_s": Bound(1e-6, 6e-6, 4e-5, log=True),
    "kernel_gap_s": Bound(2e-7, 1e-6, 2e-5, log=True),
    "layer_overhead_s": Bound(1e-6, 3e-5, 3e-3, log=True),
    "stall_s": Bound(1e-7, 2e-6, 5e-3, log=True),
    "sync_s": Bound(1e-7, 3e-6, 5e-4, log=True),
    "micro_batch_overhead_s": Bound(1e-6, 3e-4, 2e-2, log=True),
    "step_overhead_s": Bound(1e-4, 5e-3, 0.1, log=True),
    "sharded_update_s": Bound(1e-6, 1e-4, MOST_UPDATE_S, log=True),
    "matmul_slowdown": Bound(0.85, 1.08, 1.6),
    "quantized_matmul_slowdown": Bound(0.6, 1.0, 1.6),
    "row_scales_slowdown": Bound(1.0, 1.2, 2.5),
    "attention_slowdown": Bound(0.5, 1.05, 2.5),
    "memory_slowdown": Bound(0.3, 1.05, 3.0),
    "communication_slowdown": Bound(0.7, 1.1, 3.0),
    "network_slowdown": Bound(0.4, 1.1, 3.0),
    "tp_overlap": Bound(0.0, 0.3, 1.0),
    "cp_overlap": Bound(0.0, 0.7, 1.0),
    "ep_overlap": Bound(0.0, 0.1, 1.0),
    "pp_overlap": Bound(0.0, 0.3, 1.0),
    "dp_overlap": Bound(0.0, 0.8, 1.0),
    "contention": Bound(0.0, 0.15, MOST_CONTENTION),
    "straggler": Bound(0.0, 0.005, 0.05),
    "gain_per_year": Bound(0.0, 0.05, 0.3),
}
UNMEASURED = {"gb300": ("gb300", "b300-sxm")}
"""Accelerators without published kernel times whose runs say how their matmuls differ from the family's, and for whom
the figure then stands; they take no part in fitting a stack."""
LAUNCH_STARTS = (6e-6, 1.2e-5, 2.2e-5)
BORROWED = {
    "eager": "eager-fsdp",
    "trainer": "eager-fsdp",
    "litgpt": "eager-fsdp",
    "apex": "eager-fsdp",
    "hf-fsdp": "eager-fsdp",
    "compiled": "compiled-fsdp",
    "nanogpt": "compiled-fsdp",
    "unsloth": "compiled-fsdp",
    "torchtune": "compiled-fsdp",
    "hai-llm": "megatron-core",
    "hai-llm+experts": "megatron-core+experts",
}
"""Stacks without a published run of their own, and the relative whose costs they take; modules that are written operation by
operation are timed as one's own code is and need none of them (``StackCosts.as_timed``)."""
SHARES_DENSE = ("megatron-core",)
"""Stacks whose costs with experts start from those without (:mod:`expert_fit`)."""
UNSEEN_SPREAD = 0.25
"""Least spread of a borrowed stack: between two stacks of one family here (a judgement, about their difference)."""
PRIOR_WEIGHT = 0.05
LOSS_SCALE = 0.04
"""Residual at which the loss turns from squares to logarithms."""
FIRM = {
    "communication_slowdown": 0.6,
    "network_slowdown": 0.6,
    "attention_slowdown": 0.5,
    "memory_slowdown": 1.0,
    "matmul_slowdown": 0.4,
    "quantized_matmul_slowdown": 0.2,
    "row_scales_slowdown": 0.1,
    "step_overhead_s": 0.3,
}
"""Stronger pulls: collectives and kernels were measured on their own, so a stack should need little correction."""
"""Pull towards the start, in residual units per unit of range: decides only what the rows do not."""


def fit_stack(stack: str, rows: Sequence[LlmRow], groups: Sequence[RunGroup]) -> tuple[StackCosts, dict[str, float]]:
    """Least squares on log(predicted / measured) of the stack's fit rows; a source weighs as the root of its rows.

    Returns the costs and the errors of both parts; the spreads are those of all stacks together (:mod:`widths`).
    """
    mine = [g for g in groups if profile_of(g) == stack]
    names = list(BOUNDS)
    low, start, high = (np.array([_to(BOUNDS[n], getattr(BOUNDS[n], e)) for n in names]) for e in ("low", "start", "high"))
    scale = high - low
    pull = np.array([FIRM.get(n, PRIOR_WEIGHT) for n in names])
    mine = [g for g in mine if g.system.accelerator.id not in UNMEASURED] or mine
    fit_rows = [i for g in mine for i in g.rows if not is_check(rows[i])]
    releases = [r for g in mine if (r := g.columns.base.release) is not None]
    first, last = (min(releases), max(releases)) if releases else (0.0, 0.0)
    per_source: dict[str, int] = {}
    for i in fit_rows:
        per_source[rows[i].source] = per_source.get(rows[i].source, 0) + 1

    def costs_of(x: F64) -> StackCosts:
        values: dict[str, Any] = {n: _from(BOUNDS[n], v) for n, v in zip(names, x * scale + low, strict=True)}
        return StackCosts(first_release=first, last_release=last, graph_launches=1.0, log_sigma=0.1, log_sigma_many=0.1, **values)

    order = [i for g in mine for i in g.rows]
    measured = np.array([rows[i].step_time_s for i in order])
    keep = np.array([not is_check(rows[i]) for i in order])
    weight = np.array([per_source.get(rows[i].source, 1) ** -0.25 for i in order])
    inputs = [step_inputs(g.architecture, g.system, g.costs, g.columns, g.point_index) for g in mine]
    together = joined(inputs, [g.system.accelerator for g in mine])

    def residuals(x: F64) -> F64:
        ratio = np.log(together.step_s(costs_of(x)) / measured)
        return np.concatenate([(ratio * weight)[keep], pull * (x - (start - low) / scale)])

    begin = (start - low) / scale
    base = residuals(begin)
    moved = [residuals(_moved(begin, i))[: -len(names)] for i in range(len(names))]
    active = np.array([bool((m != base[: -len(names)]).any()) for m in moved])

    def of_active(x: F64) -> F64:
        whole = begin.copy()
        whole[active] = x
        return residuals(whole)

    options: dict[str, Any] = {"bounds": (0, 1), "loss": "cauchy", "f_scale": LOSS_SCALE, "diff_step": 3e-3}
    begins: list[F64] = []
    for launch_s in LAUNCH_STARTS:  # whether launches bind has two sides with no slope between them
        x = begin.copy()
        x[names.index("launch_s")] = (math.log(launch_s) - low[0]) / scale[0]
        begins.append(x)
    if np.abs(residuals(begins[-1]) - residuals(begins[0])).mean() < 1e-3:
        begins = begins[:1]
    tried = [least_squares(of_active, x[active], max_nfev=6, **options) for x in begins]
    best = least_squares(of_active, min(tried, key=lambda t: t.cost).x, max_nfev=24, **options)
    solution = begin.copy()
    solution[active] = best.x
    sc = costs_of(solution)
    return sc, errors_by_source(sc, mine, rows)


def _moved(x: F64, i: int) -> F64:
    """``x`` with one coefficient a tenth of its range away: what no row depends on stays where it starts."""
    moved = x.copy()
    moved[i] += 0.1 if x[i] < 0.5 else -0.1
    return moved


def profile_of(group: RunGroup) -> str:
    """Name of the stack profile a group's runs belong to."""
    return group.columns.base.stack + (EXPERTS if group.architecture.moe is not None else "")


def errors_by_source(sc: StackCosts, groups: Sequence[RunGroup], rows: Sequence[LlmRow]) -> dict[str, float]:
    """Errors by source and part."""
    ratio = {i: float(t / rows[i].step_time_s) for g in groups for i, t in zip(g.rows, g.step_s(sc), strict=True)}
    report: dict[str, float] = {}
    for source in sorted({rows[i].source for i in ratio}):
        for part in ("fit", "check"):
            values = [abs(v - 1) for i, v in ratio.items() if rows[i].source == source and is_check(rows[i]) == (part == "check")]
            if values:
                report[f"{source} {part} mape ({len(values)} rows)"] = round(float(np.mean(values)), 4)
    return report


def fit_accelerator(
    accelerator_id: str, costs: dict[str, StackCosts], rows: Sequence[LlmRow], groups: Sequence[RunGroup]
) -> float:
    """Matmul time of an accelerator over the kernel model's, by least squares of the log error of its fit rows, each
    model weighing the same."""
    mine = [
        g for g in groups if g.system.accelerator.id == accelerator_id and g.architecture.moe is None and profile_of(g) in costs
    ]
    if not mine:
        return 1.0
    models = [rows[i].model for g in mine for i in g.rows]

    def error(factor: float) -> float:
        total = 0.0
        for g in mine:
            sc = costs[profile_of(g)]
            scaled = replace(
                sc,
                matmul_slowdown=sc.matmul_slowdown * factor,
                quantized_matmul_slowdown=sc.quantized_matmul_slowdown * factor,
            )
            for t, i in zip(g.step_s(scaled), g.rows, strict=True):
                if not is_check(rows[i]):
                    total += math.log(t / rows[i].step_time_s) ** 2 / models.count(rows[i].model)
        return total

    return float(min(np.arange(0.6, 1.21, 0.01), key=error))


def _to(b: Bound | Prior, value: float) -> float:
    return math.log(value) if b.log else value


def _from(b: Bound | Prior, value: float) -> float:
    return math.exp(value) if b.log else float(value)


def fit(folder: Path, stacks: Sequence[str] | None = None) -> dict[str, dict[str, float]]:
    """Refit the stacks that have rows under ``folder`` and write ``coefficients/stacks.json``; returns the errors."""
    from dataclasses import asdict

    from gpuwise.predict.coefficients import load_json
    from studies.coefficient_files import write

    rows = read_rows(folder)
    assert rows is not None
    groups, _ = build_groups(rows)
    document: dict[str, Any] = {
        k: dict(cast("dict[str, Any]", v)) if isinstance(v, dict) else v for k, v in load_json("stacks").items()
    }
    reports: dict[str, dict[str, float]] = {}
    in_force: dict[str, float] = document.get("matmul_slowdown_by_accelerator", {})
    document["matmul_slowdown_by_accelerator"] = dict(in_force)
    fitted: dict[str, StackCosts] = {}
    for stack in stacks or sorted({profile_of(g) for g in groups}):
        plain = stack.removesuffix(EXPERTS)
        if stack == plain or plain not in SHARES_DENSE:
            costs, report = fit_stack(stack, rows, groups)
        else:
            dense = fitted.get(plain) or find_stack_costs(plain)
            mine = [g for g in groups if profile_of(g) == stack]
            costs = fit_experts(dense, rows, mine, [is_check(r) for r in rows])
            report = errors_by_source(costs, mine, rows)
        document["stacks"][stack] = {k: v if isinstance(v, str) else round(v, 9) for k, v in asdict(costs).items()}
        document["provenance"][stack] = {"rows": "published training runs, split by model", "errors": report}
        reports[stack] = report
        fitted[stack] = costs
    for accelerator_id, same in UNMEASURED.items():
        # steps are evaluated with the factor in force, so what the search finds is on top of it
        further = fit_accelerator(accelerator_id, fitted, rows, groups) if fitted else 1.0
        factor = round(in_force.get(accelerator_id, 1.0) * further, 3)
        document["matmul_slowdown_by_accelerator"] |= dict.fromkeys(same, factor)
    write("stacks", with_spreads(with_borrowed(document), rows, groups))
    return reports


def refit_spreads(folder: Path) -> None:
    """Write the stacks' spreads anew from the rows under ``folder``; every other coefficient stays."""
    from gpuwise.predict.coefficients import load_json
    from studies.coefficient_files import write

    rows = read_rows(folder)
    assert rows is not None
    write("stacks", with_spreads(load_json("stacks"), rows, build_groups(rows)[0]))


def with_spreads(document: dict[str, Any], rows: Sequence[LlmRow], groups: Sequence[RunGroup]) -> dict[str, Any]:
    """``document`` with the spreads of its stacks; those without a run of their own have their relative's, or more."""
    stacks = {name: dict(costs) for name, costs in document["stacks"].items()}
    log_ratio: list[float] = []
    kernel: list[float] = []
    cell: list[tuple[str, bool]] = []
    model: list[tuple[str, str, str]] = []
    for stack in sorted({profile_of(g) for g in groups} & stacks.keys()):
        mine = [g for g in groups if profile_of(g) == stack]
        log_ratio += list(-unseen(StackCosts(**stacks[stack]), mine, rows))
        kernel += [runs_spread(g.costs, int(at)) for g in mine for at in g.point_index]
        cell += [(stack, rows[i].n_accelerators > g.system.count) for g in mine for i in g.rows]
        model += [(rows[i].source, rows[i].model, rows[i].gpu) for g in mine for i in g.rows]
    residuals = Residuals(np.array(log_ratio), np.array(kernel), cell, model)
    share = kernel_share(residuals)
    for (stack, several), width in spreads(residuals, share).items():
        stacks[stack]["log_sigma_many" if several else "log_sigma"] = round(width, 5)
    for stack, near in BORROWED.items():
        for key in ("log_sigma", "log_sigma_many"):
            stacks[stack][key] = max(UNSEEN_SPREAD, stacks[near][key])
    left_out = f"{left_out_coverage(residuals, share):.1%} of rows inside 80 % intervals found without their model"
    provenance = {**document["provenance"], "spreads": left_out}
    return {**document, "kernel_share": share, "stacks": stacks, "provenance": provenance}


def unseen(sc: StackCosts, mine: Sequence[RunGroup], rows: Sequence[LlmRow]) -> F64:
    """log(predicted / measured) of the runs of a stack's groups ``mine``, in their order; of a run that the stack was fitted on,
    as if its model had been left out (:mod:`leverage`)."""
    experts = profile_of(mine[0]).removesuffix(EXPERTS) in SHARES_DENSE and profile_of(mine[0]).endswith(EXPERTS)
    ranges: dict[str, Bound | Prior] = {"matmul_slowdown": MATMUL, **PRIORS} if experts else dict(BOUNDS)
    low, start, high = (np.array([_to(b, getattr(b, e)) for b in ranges.values()]) for e in ("low", "start", "high"))
    end = np.array([_to(b, min(max(getattr(sc, n), b.low), b.high)) for n, b in ranges.items()])
    pull = [b.pull if isinstance(b, Prior) else FIRM.get(n, PRIOR_WEIGHT) for n, b in ranges.items()]
    order = [rows[i] for g in mine for i in g.rows]
    measured = np.array([row.step_time_s for row in order])
    inputs = [step_inputs(g.architecture, g.system, g.costs, g.columns, g.point_index) for g in mine]
    together = joined(inputs, [g.system.accelerator for g in mine])

    def error(x: F64) -> F64:
        values = {n: _from(b, v) for (n, b), v in zip(ranges.items(), x * (high - low) + low, strict=True)}
        return np.log(together.step_s(replace(sc, **values)) / measured)

    at = Range((end - low) / (high - low), (start - low) / (high - low), np.array(pull))
    fit = np.array([not is_check(row) for row in order])
    block = [(row.source, row.model) for row in order]
    weighed = block if experts else [row.source for row in order]
    fitted = [w for w, in_fit in zip(weighed, fit, strict=True) if in_fit]
    weight = np.array([max(fitted.count(w), 1) ** -0.5 for w in weighed])
    now = np.log(together.step_s(sc) / measured)
    return unseen_errors(now, slopes(error, at.end), weight, at, SCALE if experts else LOSS_SCALE, fit, block)


def with_borrowed(document: dict[str, Any]) -> dict[str, Any]:
    """``document`` with the costs of stacks that no published run is fitted on."""
    stacks, provenance = dict(document["stacks"]), dict(document["provenance"])
    for stack, near in BORROWED.items():
        wider = {k: max(UNSEEN_SPREAD, stacks[near][k]) for k in ("log_sigma", "log_sigma_many")}
        stacks[stack] = {**stacks[near], **wider, "basis": "derived"}
        provenance[stack] = {"rows": "none of its own", "errors": {}, "from": near}
    return {**document, "stacks": stacks, "provenance": provenance}
