"""Wastes of the host: it waits, writes, compiles, or issues work too slowly."""

from __future__ import annotations

import numpy as np

from gpuwise.train.profile.findings.case import Case
from gpuwise.train.profile.findings.finding import Evidence, Finding
from gpuwise.train.profile.spans import common, joined, length
from gpuwise.train.profile.split import HOST_GAPS, OTHER, SAVE, SYNC
from gpuwise.train.profile.trace import RUNTIME_CATEGORIES

LAUNCH_S = 10e-6
"""A kernel shorter than it takes to launch one: 5 to 20 us (HolisticTraceAnalysis, documentation of its launch statistics)."""
BUSY_ENOUGH = 0.9
"""Share of the step: a device that is busier is not held up by the host."""


def syncs(case: Case) -> Finding | None:
    """Values read from the device while it should be given work."""
    saved = case.part(SYNC)
    noted = case.noted("read", "cuda")
    reads = case.rows(("cpu_op",), lambda n: n in ("aten::item", "aten::_local_scalar_dense", "aten::nonzero"))
    waits = case.rows(RUNTIME_CATEGORIES, lambda n: "Synchronize" in n)
    if not len(waits) and not noted:
        return None
    seen = list(noted[:4])
    if not seen and case.trace is not None:
        for rows in (reads, waits):
            if len(rows):
                first = int(rows[0])
                seen.append(
                    Evidence(
                        case.trace.text(first),
                        case.where(float(case.trace.start_s[first])),
                        len(rows) / case.n_steps,
                        case.seconds(rows),
                    )
                )
                break
    return Finding(
        "sync points",
        "The loop waits for values from the device",
        saved,
        "medium",
        tuple(seen),
        ("total += loss.detach()  # on the device; .item() only when a line is printed, every 100 steps",),
    )


def launch_bound(case: Case) -> Finding | None:
    """Kernels shorter than their launch, and a device that waits for the next."""
    if not len(case.kernels) or case.trace is None or case.split.busy_share >= BUSY_ENOUGH:
        return None
    median = float(np.median(case.trace.duration_s[case.kernels]))
    if median >= LAUNCH_S:
        return None
    said = Evidence(
        f"kernels, {1e6 * median:.2g} us each (median); the device is busy {100 * case.split.busy_share:.0f} % of the step",
        count=len(case.kernels) / case.n_steps,
    )
    return Finding(
        "launch-bound",
        "The host cannot launch kernels as fast as the device does them",
        case.part(HOST_GAPS),
        "medium",
        (said,),
        ('model = torch.compile(model, mode="reduce-overhead")  # CUDA graphs', "# or a larger batch, if memory allows"),
    )


def saving(case: Case) -> Finding | None:
    """Checkpoints in the steps."""
    if case.facts is None:
        return None
    saved = case.facts.step.save_s
    said = Evidence("torch.save", seconds=saved)
    return Finding(
        "checkpoint in the step",
        "Checkpoints are written in the steps",
        saved,
        "high",
        (said,),
        (
            "if step % 1000 == 0:  # not every step",
            "    torch.distributed.checkpoint.async_save(model.state_dict(), checkpoint_id=path)  # in the background",
        ),
    )


def logging(case: Case) -> Finding | None:
    """Words and files written in the steps."""
    noted = case.noted("log")
    written = sum(e.seconds or 0.0 for e in noted)
    saved_s = case.facts.step.save_s if case.facts is not None else 0.0
    traced = max(case.part(SAVE) - saved_s, 0.0)
    said = noted[:3]
    if not said and case.trace is not None and case.steps is not None:
        from gpuwise.train.profile.families import family

        rows = case.rows(("python_function",), lambda n: family("python", n) == SAVE and "serialization" not in n)
        if len(rows):
            longest = int(rows[case.trace.duration_s[rows].argmax()])
            at = float(case.trace.start_s[longest])
            said = (Evidence(case.trace.text(longest), case.where(at), len(rows) / case.n_steps, case.seconds(rows)),)
    if not said:
        return None
    return Finding(
        "logging in the step",
        "The loop stops to write logs",
        min(max(written, traced), traced + case.part(OTHER)),
        "high" if noted else "medium",
        said,
        ("if step % 100 == 0:", "    print(...)  # and no flush or fsync in between"),
    )


def own_python(case: Case) -> Finding | None:
    """Python of the script between the operations."""
    if case.trace is None or case.traced is None or case.steps is None:
        return None
    # the step with the least of it: what the machine's other processes take comes now and then only
    bare = joined([own for name, own in case.traced.layers if name == OTHER])
    least = min(length(common(bare, window.reshape(1, 2))) for window in case.steps.windows)
    told = case.facts.compiling_s if case.facts is not None else 0.0
    seconds = max(case.part(OTHER) - told, 0.0) * min(least / max(case.traced.parts[OTHER], 1e-12), 1.0)
    where: dict[str, float] = {}
    for name, own in case.traced.layers:
        if name == OTHER:
            for start, end in own[np.argsort(own[:, 0] - own[:, 1])][:200].tolist():
                place = case.where((start + end) / 2)
                where[place] = where.get(place, 0.0) + (end - start) / case.n_steps
    shrunk = seconds / max(case.traced.parts[OTHER], 1e-12)
    top = sorted(((s * shrunk, w) for w, s in where.items() if w), reverse=True)[:3]
    said = tuple(Evidence("Python", w, seconds=s) for s, w in top) or (
        Evidence("Python between the operations", seconds=seconds),
    )
    return Finding(
        "python in the step",
        "The loop's own Python takes time in which nothing is computed",
        seconds,
        "medium" if top else "low",
        said,
        ("# move it out of the loop, do it every 100 steps, or write it as tensor operations",),
    )


def recompiles(case: Case) -> Finding | None:
    """torch.compile compiles again and again."""
    facts = case.facts
    if facts is None or not facts.n_graphs_steady:
        return None
    saved = facts.compiling_s
    reasons = [str(r) for r in dict(facts.compiler.get("graph_break", {}))][:2]
    said = [Evidence(f"{facts.n_graphs_steady} graphs compiled after the warm-up, in {len(facts.steps)} steps", seconds=saved)]
    said += [Evidence(f"graph break: {' '.join(r.split())[:90]}") for r in reasons]
    return Finding(
        "recompiles",
        "torch.compile compiles again in the middle of training",
        saved,
        "high",
        tuple(said),
        (
            "torch._dynamo.mark_dynamic(batch, 0)  # or 1: the dimension that varies",
            "# or give every batch the same shape: DataLoader(..., drop_last=True), lengths padded to a few sizes",
        ),
        note="TORCH_LOGS=recompiles says what changed",
    )


def anomaly(case: Case) -> Finding | None:
    """Anomaly detection left on."""
    if case.facts is None or not case.facts.anomaly:
        return None
    checks = case.rows(("cpu_op",), lambda n: n in ("aten::isnan", "aten::_is_any_true", "aten::ne", "aten::any", "aten::item"))
    seconds = case.seconds(checks) * case.factor
    traced = case.rows(("python_function",), lambda n: n.startswith(("traceback.py(", "linecache.py(")))
    seconds += case.seconds(traced) * min(case.factor, 1.0)
    step = case.facts.step
    saved = max(seconds, 0.3 * (step.forward_s + step.backward_s))
    said = Evidence("every result of the backward pass is checked, every operation's stack is kept", seconds=saved)
    return Finding(
        "anomaly detection",
        "Anomaly detection is on",
        min(saved, case.wall_s),
        "medium",
        (said,),
        ("torch.autograd.set_detect_anomaly(False)",),
    )
