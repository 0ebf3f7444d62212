"""Findings about the host: synchronisation, launches, writing, Python, compilation."""

from __future__ import annotations

import numpy as np

from gpuwise.train.profile.finding import Evidence, Finding
from gpuwise.train.profile.findings.data import CHEAP_OP_S, dispatch_s
from gpuwise.train.profile.profile_data import LAUNCH_S, ProfileData
from gpuwise.train.profile.spans import inside
from gpuwise.train.profile.split import HOST_GAPS, OTHER, SAVE, SYNC, undisturbed_s
from gpuwise.train.profile.trace import NONE, RUNTIME_CATEGORIES
from gpuwise.train.profile.verdict import NAMED_IN_CROWD
from gpuwise.units import format_duration

LEAST_GAPS, LEAST_SMALL = 0.1, 0.2
"""Minimum shares of the step between short operations to report, without and with the dispatch of operations that are little
more than it. Rules of this project."""


def syncs(data: ProfileData) -> Finding | None:
    """Values read from the device, which wait for it while it has no other work queued."""
    saved = data.part(SYNC)
    noted = data.noted("read", "cuda")
    reads = data.rows(("cpu_op",), lambda n: n in ("aten::item", "aten::_local_scalar_dense", "aten::nonzero"))
    waits = data.rows(RUNTIME_CATEGORIES, lambda n: "Synchronize" in n)
    if not len(waits) and not noted:
        return None
    seen = list(noted[:4])
    if not seen and data.trace is not None:
        for rows in (reads, waits):
            if len(rows):
                first = int(rows[0])
                seen.append(
                    Evidence(
                        data.trace.text(first),
                        data.where(float(data.trace.start_s[first])),
                        len(rows) / data.n_steps,
                        data.seconds(rows),
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


def launch_bound(data: ProfileData) -> Finding | None:
    """Kernels shorter than their launch: the device waits for the next launch."""
    if data.trace is None or not data.is_launch_bound:
        return None
    median = float(np.median(data.trace.duration_s[data.kernels]))
    often = f", one every {1e6 * data.launch_s:.2g} us" if data.launch_s > LAUNCH_S else ""
    busy = f"the device is busy {100 * data.split.busy_share:.0f} % of the step"
    evidence = Evidence(
        f"kernels, {1e6 * median:.2g} us each (median){often}; {busy}",
        count=len(data.kernels) / data.n_steps,
    )
    return Finding(
        "launch-bound",
        "The host cannot launch kernels as fast as the device does them",
        data.part(HOST_GAPS),
        "medium",
        (evidence,),
        (data.compile_mend("CUDA graphs", ', mode="reduce-overhead"'), "# or a larger batch, if memory allows"),
    )


def small_operations(data: ProfileData) -> Finding | None:
    """Operations on a processor that are shorter than what the interpreter and the dispatcher take between two of them."""
    if data.trace is None or data.ops is None or data.steps is None:
        return None
    gaps = data.part(HOST_GAPS)
    trace, ops = data.trace, data.ops
    outer = ops.rows[(ops.parent == NONE)]
    outer = outer[inside(trace.start_s[outer], data.steps.windows)]
    cheap, n_cheap = dispatch_s(data, ops)
    if (gaps < LEAST_GAPS * data.wall_s and gaps + cheap < LEAST_SMALL * data.wall_s) or not len(outer):
        return None
    usual_s = float(np.median(trace.duration_s[outer])) * data.factor
    evidence = Evidence(
        f"operations of {format_duration(usual_s)} (median), and what Python and the dispatcher take between them",
        count=len(outer) / data.n_steps,
        seconds=gaps,
    )
    short = f"operations under {format_duration(CHEAP_OP_S)}, hardly more than their dispatch"
    under = Evidence(short, count=n_cheap, seconds=cheap)
    return Finding(
        "small operations",
        "The operations are shorter than the Python around them",
        gaps + cheap,
        "medium",
        (evidence, under) if n_cheap else (evidence,),
        (data.compile_mend("one call for many operations"), "# or a larger batch: the gaps do not grow with it"),
    )


def saving(data: ProfileData) -> Finding | None:
    """Checkpoints written inside steps."""
    if data.facts is None:
        return None
    saved = data.facts.step.save_s
    evidence = Evidence("torch.save", seconds=saved)
    return Finding(
        "checkpoint in the step",
        "Checkpoints are written in the steps",
        saved,
        "high",
        (evidence,),
        (
            "if step % 1000 == 0:  # not every step",
            "    torch.distributed.checkpoint.async_save(model.state_dict(), checkpoint_id=path)  # in the background",
        ),
    )


def logging(data: ProfileData) -> Finding | None:
    """Text and files written inside steps."""
    noted = data.noted("log")
    written = sum(e.seconds or 0.0 for e in noted)
    saved_s = data.facts.step.save_s if data.facts is not None else 0.0
    traced = max(data.part(SAVE) - saved_s, 0.0)
    evidence = noted[:3]
    if not evidence and data.trace is not None and data.steps is not None:
        from gpuwise.train.profile.families import family

        rows = data.rows(("python_function",), lambda n: family("python", n) == SAVE and "serialization" not in n)
        if len(rows):
            longest = int(rows[data.trace.duration_s[rows].argmax()])
            at = float(data.trace.start_s[longest])
            evidence = (Evidence(data.trace.text(longest), data.where(at), len(rows) / data.n_steps, data.seconds(rows)),)
    if not evidence:
        return None
    return Finding(
        "logging in the step",
        "The loop stops to write logs",
        min(max(written, traced), traced + data.part(OTHER)),
        "high" if noted else "medium",
        evidence,
        ("if step % 100 == 0:", "    print(...)  # and no flush or fsync in between"),
    )


def own_python(data: ProfileData) -> Finding | None:
    """Python code of the script between operations."""
    if data.trace is None or data.traced is None or data.steps is None:
        return None
    # the step with the least of it: what the machine's other processes take comes now and then only
    least = max(min(undisturbed_s(data.traced, data.steps, data.trace)), 0.0)
    compiling_s = data.facts.compiling_s if data.facts is not None else 0.0
    seconds = max(data.part(OTHER) - compiling_s, 0.0) * min(least / max(data.traced.parts[OTHER], 1e-12), 1.0)
    where: dict[str, float] = {}
    for name, stretches in data.traced.layers:
        if name == OTHER:
            for start, end in stretches[np.argsort(stretches[:, 0] - stretches[:, 1])][:200].tolist():
                place = data.where((start + end) / 2)
                where[place] = where.get(place, 0.0) + (end - start) / data.n_steps
    if data.crowded and seconds < NAMED_IN_CROWD * data.wall_s:
        return None
    shrunk = seconds / max(data.traced.parts[OTHER], 1e-12)
    top = sorted(((s * shrunk, w) for w, s in where.items() if w), reverse=True)[:2]
    rest = max(seconds - sum(s for s, _ in top), 0.0)
    evidence = tuple(Evidence("Python", w, seconds=s) for s, w in top)
    if rest > 0.01 * seconds or not evidence:
        evidence += (Evidence("Python between the operations" if not top else "elsewhere", seconds=rest),)
    return Finding(
        "python in the step",
        "The loop's own Python takes time in which nothing is computed",
        seconds,
        "medium" if top else "low",
        evidence,
        ("# move it out of the loop, do it every 100 steps, or write it as tensor operations",),
    )


def recompiles(data: ProfileData) -> Finding | None:
    """torch.compile recompiles during steady steps."""
    facts = data.facts
    if facts is None or not facts.n_graphs_steady:
        return None
    saved = facts.compiling_s
    reasons = [str(r) for r in dict(facts.compiler.get("graph_break", {}))][:2]
    evidence = [
        Evidence(f"{facts.n_graphs_steady} graphs compiled after the warm-up, in {len(facts.steps)} steps", seconds=saved)
    ]
    evidence += [Evidence(f"graph break: {' '.join(r.split())[:90]}") for r in reasons]
    return Finding(
        "recompiles",
        "torch.compile compiles again in the middle of training",
        saved,
        "high",
        tuple(evidence),
        (
            "torch._dynamo.mark_dynamic(batch, 0)  # or 1: the dimension that varies",
            "# or give every batch the same shape: DataLoader(..., drop_last=True), lengths padded to a few sizes",
        ),
        note="TORCH_LOGS=recompiles shows what changed",
    )


def anomaly(data: ProfileData) -> Finding | None:
    """Autograd's anomaly detection is on."""
    if data.facts is None or not data.facts.anomaly:
        return None
    checks = data.rows(("cpu_op",), lambda n: n in ("aten::isnan", "aten::_is_any_true", "aten::ne", "aten::any", "aten::item"))
    seconds = data.seconds(checks) * data.factor
    traced = data.rows(("python_function",), lambda n: n.startswith(("traceback.py(", "linecache.py(")))
    seconds += data.seconds(traced) * min(data.factor, 1.0)
    step = data.facts.step
    saved = max(seconds, 0.3 * (step.forward_s + step.backward_s))
    evidence = Evidence("every result of the backward pass is checked, every operation's stack is kept", seconds=saved)
    return Finding(
        "anomaly detection",
        "Anomaly detection is on",
        min(saved, data.wall_s),
        "medium",
        (evidence,),
        ("torch.autograd.set_detect_anomaly(False)",),
    )
