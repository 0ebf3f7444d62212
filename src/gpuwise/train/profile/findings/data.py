"""Wastes of the way data takes: loaders, copies, padding, size of the batch."""

from __future__ import annotations

import numpy as np

from gpuwise.train.profile.families import COMMUNICATION
from gpuwise.train.profile.findings.case import Case
from gpuwise.train.profile.findings.finding import Evidence, Finding
from gpuwise.train.profile.operations import Operations
from gpuwise.train.profile.spans import common, joined, length, spans, without
from gpuwise.train.profile.split import COPIES, DATA, HOST_GAPS, OPTIMIZER
from gpuwise.train.profile.trace import NONE

FEW_SAMPLES = 8
"""A step: fewer leave any device to its fixed costs. Rule of this project."""
CHEAP_OP_S = 10e-6
"""Below this an operation on a processor is dispatch more than work. Rule of this project."""
MAKERS, LEAST_OF_WAIT = 2, 0.1
"""Functions that are named, and the share of the wait from which one is. Rule of this project."""
ALIKE = 0.6
"""Loaders fast enough would save at least this share of the wait that was timed."""


def waiting(case: Case) -> Finding | None:
    """The loop waits for its loader."""
    waited = case.part(DATA)
    facts = case.facts
    proof, confidence = "", "medium"
    if facts is not None and facts.constant is not None:
        saved = max(facts.step.wall_s - facts.constant.wall_s, 0.0)
        if saved < ALIKE * waited:
            # the run without data is hardly faster: what was waited for was in its way anyhow
            waited = saved
        proof = f"with one batch given again and again a step takes {1e3 * facts.constant.wall_s:.3g} ms"
        confidence = "high"
    loader = facts.loaders[0] if facts is not None and facts.loaders else {}
    evidence = [
        Evidence(
            f"next of the DataLoader over {loader['dataset']}" if loader else "next of the DataLoader",
            count=_batches(case),
            seconds=case.part(DATA),
        )
    ]
    if proof:
        evidence.append(Evidence(proof))
    evidence += _makers(case)
    return Finding("data wait", "The step waits for its data", waited, confidence, tuple(evidence), _loader_mend(case))  # type: ignore[arg-type]


def _makers(case: Case) -> list[Evidence]:
    """The script's functions in which the wait is spent, where the loop's own process makes the batches."""
    if case.traced is None or case.lines is None:
        return []
    within = joined([own for name, own in case.traced.layers if name == DATA])
    traced_s = length(within) / case.n_steps
    if traced_s <= 0:
        return []
    undisturbed = case.part(DATA) / traced_s
    spent = sorted(((s, n, w) for w, (n, s) in case.lines.spent(within).items()), reverse=True)
    return [
        Evidence("of it", w, n / case.n_steps, s / case.n_steps * undisturbed)
        for s, n, w in spent[:MAKERS]
        if s / case.n_steps >= LEAST_OF_WAIT * traced_s
    ]


def _batches(case: Case) -> float | None:
    return None if case.facts is None else float(case.facts.step.n_batches)


def _loader_mend(case: Case) -> tuple[str, ...]:
    workers = 0
    if case.facts is not None and case.facts.loaders:
        workers = int(case.facts.loaders[0].get("num_workers") or 0)
    pin = ", pin_memory=True" if case.on_gpu else ""
    cores = max(case.device.n_cores, 1)
    if workers == 0:
        return (f"DataLoader(..., num_workers={max(cores - 1, 1)}, persistent_workers=True{pin})",)
    if workers < cores:
        return (f"DataLoader(..., num_workers={cores}, prefetch_factor=4, persistent_workers=True{pin})",)
    return ("# all cores are at work: cache what __getitem__ decodes, or do less of it for every sample",)


def unpinned(case: Case) -> Finding | None:
    """Copies to the device from pageable memory."""
    return _copies(
        case,
        lambda n: "HtoD" in n and "Pageable" in n,
        "unpinned copies",
        "Batches are copied from pageable memory",
        ("DataLoader(..., pin_memory=True)", "batch = batch.to(device, non_blocking=True)"),
    )


def unoverlapped(case: Case) -> Finding | None:
    """Pinned copies that nothing computes beside."""
    return _copies(
        case,
        lambda n: "HtoD" in n and "Pinned" in n,
        "copies not overlapped",
        "Copies to the device hold up its work",
        (
            "copies = torch.cuda.Stream()",
            "with torch.cuda.stream(copies):  # the next batch, while this one is computed",
            "    following = following.to(device, non_blocking=True)",
        ),
    )


def _copies(case: Case, matches: object, kind: str, title: str, mend: tuple[str, ...]) -> Finding | None:
    if case.trace is None or case.steps is None or not callable(matches):
        return None
    rows = case.rows(("gpu_memcpy",), matches)
    if not len(rows):
        return None
    trace = case.trace
    work = np.flatnonzero(trace.in_categories(("kernel",)))
    own = common(spans(trace.start_s[rows], trace.end_s[rows]), case.steps.windows)
    alone = length(without(own, spans(trace.start_s[work], trace.end_s[work]))) / case.n_steps
    moved = trace.n_bytes[rows]
    rate = float(moved[moved != NONE].sum()) / max(float(trace.duration_s[rows].sum()), 1e-12)
    said = Evidence(
        f"{trace.text(int(rows[0]))}, {rate / 1e9:.3g} GB/s",
        case.where(float(trace.start_s[rows[0]])),
        len(rows) / case.n_steps,
        case.seconds(rows),
    )
    return Finding(kind, title, min(alone, case.part(COPIES) + alone), "medium", (said,), mend)


def padding(case: Case) -> Finding | None:
    """Ids that stand for nothing are computed like the others."""
    facts = case.facts
    if facts is None or not facts.padding:
        return None
    share = float(facts.padding["share"])
    work = case.part("compute") + case.part(COMMUNICATION)
    said = Evidence(f"{100 * share:.0f} % of {facts.padding['longest']}-long rows is padding, by {facts.padding['by']}")
    return Finding(
        "padding",
        "The device computes padding",
        share * work,
        "high" if share > 0.2 else "medium",
        (said,),
        (
            "# batches of alike lengths: sort each few hundred samples by length before they are cut into batches,",
            "# and pad to the longest of the batch: torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)",
        ),
        note="attention costs the square of the length: more may be saved than this",
    )


def _cheap_s(case: Case, ops: Operations) -> float:
    """Seconds a step in operations that are hardly more than their dispatch: by the quicker quarter of each name's calls, as
    other processes slow single calls down."""
    if case.trace is None:
        return 0.0
    names, total = case.trace.name[ops.rows], 0.0
    for name in np.unique(names):
        own = ops.self_s[names == name] * case.factor
        usual = float(np.percentile(own, 25))
        if usual < CHEAP_OP_S:
            total += usual * len(own)
    return total / case.n_steps


def tiny_batch(case: Case) -> Finding | None:
    """Costs of every call, whatever is in it, outweigh the samples' own."""
    if case.samples is None or case.samples > FEW_SAMPLES or case.ops is None:
        return None
    a_call = case.samples / max(case.n_backward, 1.0)
    if case.on_gpu:
        fixed = case.part(HOST_GAPS) + case.part("other")
    else:
        fixed = _cheap_s(case, case.ops) + case.part(HOST_GAPS) + case.part(OPTIMIZER)
    if fixed < 0.3 * case.wall_s:
        return None
    said = Evidence(f"{a_call:g} sample{'s' * (a_call != 1)} a pass; costs that do not depend on the batch", seconds=fixed)
    return Finding(
        "tiny batch",
        "The batch is too small for its fixed costs",
        0.875 * fixed,
        "medium",
        (said,),
        (f"DataLoader(..., batch_size={8 * max(round(a_call), 1)})  # and the learning rate to match",),
        note="eight times the batch spreads the fixed costs over eight times the samples; it changes the training",
    )
