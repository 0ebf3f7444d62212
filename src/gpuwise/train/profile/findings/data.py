"""Findings about data: loaders, copies to the device, padding, batch size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gpuwise.train.profile.families import COMMUNICATION, CONVOLUTIONS
from gpuwise.train.profile.finding import Evidence, Finding
from gpuwise.train.profile.operations import OP_CATEGORIES, Operations
from gpuwise.train.profile.profile_data import ProfileData
from gpuwise.train.profile.run_facts import constant_batch_s
from gpuwise.train.profile.spans import difference, inside, intersection, length, spans, union
from gpuwise.train.profile.split import COPIES, DATA, HOST_GAPS, OPTIMIZER, PAUSES
from gpuwise.train.profile.steps import clean_s
from gpuwise.train.profile.trace import NONE

FEW_SAMPLES = 8
"""A step: fewer leave any device to its fixed costs. Rule of this project."""
CHEAP_OP_S = 10e-6
"""Below this an operation on a processor is dispatch more than work. Rule of this project."""
MAKERS, LEAST_OF_WAIT = 2, 0.1
"""Functions that are named, and the share of the wait from which one is. Rule of this project."""


def waiting(data: ProfileData) -> Finding | None:
    """The finding that the loop waits for its loader."""
    waited = data.part(DATA)
    facts = data.facts
    proof, confidence = "", "medium"
    if facts is not None and facts.constant is not None and not facts.is_void:
        # the run without data is hardly faster: what was waited for was in its way anyhow
        without_s = constant_batch_s(facts.step, facts.constant)
        waited = min(waited, max(facts.step.wall_s - without_s, 0.0))
        proof = f"with one batch given again and again a step takes {1e3 * without_s:.3g} ms"
        confidence = "high"
    loader = _loader(data)
    evidence = [
        Evidence(
            f"next of the DataLoader over {loader['dataset']}" if loader else "next of the DataLoader",
            count=_batches(data),
            seconds=data.part(DATA),
        )
    ]
    if proof:
        evidence.append(Evidence(proof))
    evidence += _makers(data)
    return Finding("data wait", "The step waits for its data", waited, confidence, tuple(evidence), _loader_fix(data))  # type: ignore[arg-type]


def _makers(data: ProfileData) -> list[Evidence]:
    """The script's functions in which the wait is spent, where the loop's own process makes the batches."""
    if data.traced is None or data.lines is None:
        return []
    within = union([stretches for name, stretches in data.traced.layers if name == DATA])
    traced_s = length(within) / data.n_steps
    if traced_s <= 0:
        return []
    undisturbed = data.part(DATA) / traced_s
    spent = sorted(((s, n, w) for w, (n, s) in data.lines.spent(within).items()), reverse=True)
    return [
        Evidence("of it", w, n / data.n_steps, s / data.n_steps * undisturbed)
        for s, n, w in spent[:MAKERS]
        if s / data.n_steps >= LEAST_OF_WAIT * traced_s
    ]


def _batches(data: ProfileData) -> float | None:
    return None if data.facts is None else float(data.facts.step.n_batches)


def _loader(data: ProfileData) -> Mapping[str, Any]:
    """The loader of the training: of several, that whose batches the steps have."""
    loaders = () if data.facts is None else data.facts.loaders
    if data.facts is not None and data.facts.step.n_batches:
        size = data.facts.step.samples / data.facts.step.n_batches
        loaders = sorted(loaders, key=lambda one: one.get("batch_size") != size)
    return loaders[0] if loaders else {}


def _starts_s(data: ProfileData, loader: Mapping[str, Any]) -> float:
    """Seconds per step that the first wait of every epoch takes beyond the others: workers that are restarted."""
    n, steps = loader.get("n_batches") or 0, () if data.facts is None else data.facts.steps
    if not loader.get("num_workers") or loader.get("persistent_workers") or not n or len(steps) < 2 * n:
        return 0.0
    waits = sorted((s.data_s for s in steps), reverse=True)
    firsts, others = waits[: len(steps) // n], waits[len(steps) // n :]
    return (sum(firsts) - len(firsts) * float(np.median(others or [0.0]))) / len(steps)


def _loader_fix(data: ProfileData) -> tuple[str, ...]:
    loader = _loader(data)
    workers = int(loader.get("num_workers") or 0)
    pin = ", pin_memory=True" if data.on_gpu else ""
    cores = max(data.device.n_cores, 1)
    if data.crowded and workers < cores:
        return ("# other programs have the processors, a worker would have none: keep what __getitem__ decodes",)
    if workers == 0:
        return (f"DataLoader(..., num_workers={max(cores - 1, 1)}, persistent_workers=True{pin})",)
    if data.facts is not None and _starts_s(data, loader) > sum(s.data_s for s in data.facts.steps) / (2 * len(data.facts.steps)):
        every = f"its workers restart every {loader['n_batches']} steps"
        return (f"DataLoader(..., num_workers={min(workers, cores)}, persistent_workers=True{pin})  # {every}",)
    if workers < cores:
        return (f"DataLoader(..., num_workers={cores}, prefetch_factor=4, persistent_workers=True{pin})",)
    return ("# all cores are at work: cache what __getitem__ decodes, or do less of it for every sample",)


def unpinned(data: ProfileData) -> Finding | None:
    """Copies to the device from pageable memory."""
    return _copies(
        data,
        lambda n: "HtoD" in n and "Pageable" in n,
        "unpinned copies",
        "Batches are copied from pageable memory",
        ("DataLoader(..., pin_memory=True)", "batch = batch.to(device, non_blocking=True)"),
    )


def unoverlapped(data: ProfileData) -> Finding | None:
    """Copies from pinned memory that no computation overlaps."""
    return _copies(
        data,
        lambda n: "HtoD" in n and "Pinned" in n,
        "copies not overlapped",
        "Copies to the device hold up its work",
        (
            "copies = torch.cuda.Stream()",
            "with torch.cuda.stream(copies):  # the next batch, while this one is computed",
            "    following = following.to(device, non_blocking=True)",
        ),
    )


def _copies(data: ProfileData, matches: Callable[[str], object], kind: str, title: str, fix: tuple[str, ...]) -> Finding | None:
    if data.trace is None or data.steps is None:
        return None
    rows = data.rows(("gpu_memcpy",), matches)
    if not len(rows):
        return None
    trace = data.trace
    work = np.flatnonzero(trace.in_categories(("kernel",)))
    copies = intersection(spans(trace.start_s[rows], trace.end_s[rows]), data.steps.work)
    alone = length(difference(copies, spans(trace.start_s[work], trace.end_s[work]))) / data.n_steps
    moved = trace.n_bytes[rows]
    rate = float(moved[moved != NONE].sum()) / max(float(trace.duration_s[rows].sum()), 1e-12)
    evidence = Evidence(
        f"{trace.text(int(rows[0]))}, {rate / 1e9:.3g} GB/s",
        data.where(float(trace.start_s[rows[0]])),
        len(rows) / data.n_steps,
        data.seconds(rows),
    )
    return Finding(kind, title, min(alone, data.part(COPIES) + alone), "medium", (evidence,), fix)


def padding(data: ProfileData) -> Finding | None:
    """Padding ids that are computed like the others."""
    facts = data.facts
    if facts is None or not facts.padding:
        return None
    share = float(facts.padding["share"])
    work = data.part("compute") + data.part(COMMUNICATION)
    evidence = Evidence(f"{100 * share:.0f} % of {facts.padding['longest']}-long rows is padding, by {facts.padding['by']}")
    return Finding(
        "padding",
        "The device computes padding",
        share * work * _of_ids(data),
        "high" if share > 0.2 else "medium",
        (evidence,),
        (
            "# batches of alike lengths: sort each few hundred samples by length before they are cut into batches,",
            "# and pad to the longest of the batch: torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)",
        ),
        note="attention costs the square of the length: more may be saved than this",
    )


def _of_ids(data: ProfileData) -> float:
    """The share of the products' and convolutions' time with the length of the ids in their shapes: an image encoder beside a
    text encoder has no padding. 1 without shapes."""
    if data.trace is None:
        return 1.0
    ids = [data.trace.inputs(row).shapes for row in data.rows(OP_CATEGORIES, lambda n: n == "aten::embedding").tolist()]
    sizes = {n for shapes in ids for s in shapes[1:2] if len(s) == 2 for n in (s[1], s[0] * s[1]) if n > 1}
    products = data.products
    total = sum(p.seconds for p in products) + data.part(CONVOLUTIONS)
    return sum(p.seconds for p in products if sizes & {p.m, p.n, p.k}) / total if sizes and total > 0 else 1.0


def dispatch_s(data: ProfileData, ops: Operations) -> tuple[float, float]:
    """Seconds a step in operations that are hardly more than their dispatch, with as much for each longer one, and the number of
    the former, without those of loaders, optimizers and moves: by the quicker quarter of each name's calls, as other processes
    slow single calls down, and in a crowd, where recording takes many times as long, at most the same share of the step
    without it.

    The profiler records an operation before its beginning and after its end, so that what this takes is in the operation or the
    gap around it: nothing is subtracted, but the whole is at most what longer operations and gaps leave of the step without it.
    """
    if data.trace is None or data.traced is None or data.steps is None:
        return 0.0, 0.0
    apart = union([stretches for name, stretches in data.traced.layers if name in (DATA, OPTIMIZER, PAUSES)])
    starts = data.trace.start_s[ops.rows]
    counted = inside(starts, data.steps.windows) & ~inside(starts, apart)
    clean = clean_s(data.steps, data.facts.step) if data.facts is not None else data.traced.wall_s
    shrunk = clean / data.traced.wall_s if data.crowded else 1.0
    names, total, n, longer_s, n_longer = np.where(counted, data.trace.name[ops.rows], NONE), 0.0, 0, 0.0, 0
    for name in np.unique(names[counted]):
        own = ops.self_s[names == name]
        usual = shrunk * float(np.percentile(own, 25))
        if usual < CHEAP_OP_S:
            total += usual * len(own)
            n += len(own)
        else:
            longer_s += usual * len(own)
            n_longer += len(own)
    each_s = total / n if n else 0.0
    rest_s = (clean - data.part(HOST_GAPS) / data.lengthening) * data.n_steps - (longer_s - each_s * n_longer)
    total = min(total + each_s * n_longer, max(rest_s, 0.0))
    return min(total / data.n_steps * data.lengthening, data.part("compute")), n / data.n_steps


def tiny_batch(data: ProfileData) -> Finding | None:
    """A batch so small that the fixed cost of each call outweighs that of the samples."""
    if data.samples is None or data.samples > FEW_SAMPLES or data.ops is None:
        return None
    a_call = data.samples / max(data.n_backward, 1.0)
    if data.on_gpu:
        fixed = data.part(HOST_GAPS) + data.part("other")
    else:
        fixed = dispatch_s(data, data.ops)[0] + data.part(HOST_GAPS) + data.part(OPTIMIZER)
    if fixed < 0.3 * data.wall_s:
        return None
    evidence = Evidence(f"{a_call:g} sample{'s' * (a_call != 1)} a pass; costs that do not depend on the batch", seconds=fixed)
    return Finding(
        "tiny batch",
        "The batch is too small for its fixed costs",
        0.875 * fixed,
        "medium",
        (evidence,),
        (f"DataLoader(..., batch_size={8 * max(round(a_call), 1)})  # and the learning rate to match",),
        note="eight times the batch spreads the fixed costs over eight times the samples; it changes the training",
    )
