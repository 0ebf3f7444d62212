"""Findings about several GPUs: collectives of every micro-batch, communication that is not overlapped, stragglers."""

from __future__ import annotations

import numpy as np

from gpuwise.train.profile.families import COMMUNICATION
from gpuwise.train.profile.finding import Evidence, Finding
from gpuwise.train.profile.operations import OP_CATEGORIES
from gpuwise.train.profile.profile_data import ProfileData
from gpuwise.train.profile.spans import difference, intersection, length, spans
from gpuwise.train.profile.trace import Ints

STRAGGLER = 0.05
"""Minimum skew between ranks at the start of a collective, as a share of the step: less is normal jitter. Rule of this
project."""


def ddp_every_micro_batch(data: ProfileData) -> Finding | None:
    """Gradients all-reduced after every micro-batch although only their sum is used (DDP)."""
    return _every(
        data,
        ("all_reduce", "allreduce"),
        "DDP syncs every micro-batch",
        "Gradients are exchanged for every micro-batch",
        ("with contextlib.nullcontext() if last_micro_batch else model.no_sync():", "    loss.backward()"),
        needs="DistributedDataParallel",
    )


def fsdp_every_micro_batch(data: ProfileData) -> Finding | None:
    """Gradients reduce-scattered after every micro-batch although only their sum is used (FSDP)."""
    return _every(
        data,
        ("reduce_scatter",),
        "FSDP syncs every micro-batch",
        "Sharded gradients are exchanged for every micro-batch",
        ("model.set_requires_gradient_sync(last_micro_batch)", "loss.backward()"),
        needs="",
    )


def _every(
    data: ProfileData, names: tuple[str, ...], kind: str, title: str, fix: tuple[str, ...], *, needs: str
) -> Finding | None:
    micro = data.n_backward
    if data.trace is None or micro < 2:
        return None
    rows = _collectives(data, names)
    if needs and not data.rows(("user_annotation", *OP_CATEGORIES), lambda n: n.startswith(needs)).size:
        return None
    backward = _backward_ends(data)
    if not len(rows) or len(backward) < 2:
        return None
    # exchanged in the first as in the last
    in_each = np.bincount(np.searchsorted(backward, data.trace.start_s[rows]), minlength=len(backward) + 1)
    busy = int((in_each[: len(backward)] > 0).sum())
    if busy <= data.n_steps * 1.5:
        return None
    spent = data.part(COMMUNICATION)
    first = int(rows[0])
    return Finding(
        kind,
        title,
        spent * (1 - 1 / micro),
        "high",
        (
            Evidence(
                f"{data.trace.text(first)[:60]}: in {busy / data.n_steps:g} of {micro:g} micro-batches a step",
                data.where(float(data.trace.start_s[first])),
                len(rows) / data.n_steps,
                spent,
            ),
        ),
        fix,
        note="losses stay the same: the gradients are added up on each GPU first",
    )


def _backward_ends(data: ProfileData) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """When each backward pass begins, in order."""
    assert data.trace is not None
    rows = data.rows(OP_CATEGORIES, lambda n: n.startswith("DistributedDataParallel.forward"))
    if not len(rows):
        rows = data.rows(
            ("user_annotation",), lambda n: n.startswith(("DistributedDataParallel.forward", "FSDP::root_pre_forward"))
        )
    return np.sort(data.trace.start_s[rows])


def _collectives(data: ProfileData, names: tuple[str, ...]) -> Ints:
    """Calls of the host, each once."""
    rows = data.rows(OP_CATEGORIES, lambda n: n.startswith(("nccl:", "gloo:", "c10d::")) and any(w in n.lower() for w in names))
    if data.trace is None:
        return rows
    kinds = {data.trace.text(r).split(":")[0] for r in rows.tolist()}
    # the backend's own range inside c10d's: the same call
    prefix = "c10d" if "c10d" in kinds else next(iter(kinds), "")
    return np.array([r for r in rows.tolist() if data.trace.text(r).startswith(prefix)], np.int64)


def unoverlapped(data: ProfileData) -> Finding | None:
    """Communication that no computation overlaps."""
    if data.trace is None or data.steps is None or not len(data.kernels):
        return None
    names = np.array(data.kernel_family, dtype=object)
    sent, work = data.kernels[names == COMMUNICATION], data.kernels[names != COMMUNICATION]
    if not len(sent):
        return None
    trace = data.trace
    both = intersection(spans(trace.start_s[sent], trace.end_s[sent]), data.steps.work)
    bare = length(difference(both, spans(trace.start_s[work], trace.end_s[work]))) / data.n_steps
    whole = length(both) / data.n_steps
    if ddp_every_micro_batch(data) is not None or fsdp_every_micro_batch(data) is not None:
        # what is left of it when it is done once a step
        bare /= data.n_backward
    longest = int(sent[trace.duration_s[sent].argmax()])
    evidence = Evidence(
        f"{trace.text(longest)[:60]}: {100 * bare / whole:.0f} % of communication is alone on the device",
        data.where(float(trace.start_s[longest])),
        len(sent) / data.n_steps,
        whole,
    )
    return Finding(
        "communication not overlapped",
        "The device waits for communication",
        bare,
        "medium",
        (evidence,),
        (
            "DistributedDataParallel(model, bucket_cap_mb=25, static_graph=True)  # buckets go out while the rest is computed",
            "fully_shard(layer) for every layer, then the model  # gathers the next while one computes",
        ),
    )


def straggler(data: ProfileData) -> Finding | None:
    """One rank that reaches its collectives later than the others."""
    if len(data.ranks) < 2:
        return None
    lengths = {v.rank: v.steps.wall_s for v in data.ranks}
    waits: dict[int, float] = {}
    for view in data.ranks:
        trace = view.trace
        rows = np.flatnonzero(
            trace.in_categories(("kernel", "gpu_memcpy")) if trace.has_device else trace.in_categories(OP_CATEGORIES)
        )
        sent = rows[trace.named(lambda n: "nccl" in n.lower() or n.startswith("gloo:"))[rows]]
        stretches = intersection(spans(trace.start_s[sent], trace.end_s[sent]), view.steps.work)
        waits[view.rank] = length(stretches) / view.steps.n
    # who comes last waits least: the others' collectives last longer by as much
    late = min(waits, key=lambda r: waits[r])
    others = [s for r, s in waits.items() if r != late]
    lost = float(np.median(others)) - waits[late]
    wall = max(lengths.values())
    if lost < STRAGGLER * wall:
        return None
    evidence = (
        Evidence(f"rank {late} is in collectives", seconds=waits[late]),
        Evidence(f"the other {len(others)}, waiting for it (median)", seconds=float(np.median(others))),
    )
    return Finding(
        "straggler",
        f"All wait for rank {late}",
        lost,
        "medium",
        evidence,
        (f"gpuwise top  # on the machine of rank {late}: clocks, temperature, other processes, its loader",),
    )
