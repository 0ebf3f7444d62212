"""What a rank calls in which order, and whether ranks with such orders can wait for each other for ever."""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from pathlib import Path
from typing import Any

COLLECTIVES = (
    "all_reduce",
    "all_to_all_single",
    "all_gather_into_tensor",
    "all_gather_single",
    "reduce_scatter_tensor",
    "reduce_scatter_single",
    "broadcast",
    "all_gather_object",
    "broadcast_object_list",
    "new_group",
)
FUNCTIONAL = ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single")
"""Operators that DTensors call, tensor parallel layers among them; their last argument is the group."""
Call = list[Any]
"""``["all", kind, group, ranks]``, ``["post", [[from, to, number], ..]]`` or ``["wait", [..]]``, in the order of the process."""


def record(path: Path) -> None:
    """From now on the collectives of this process's first thread and the messages of its pipeline go to a file."""
    import torch
    import torch.distributed as dist
    from torch.distributed.pipelining import schedules

    file, inside, number, known = path.open("w"), threading.local(), defaultdict[Any, int](int), dict[int, Any]()

    def note(*call: Any) -> None:
        if threading.current_thread() is threading.main_thread():
            file.write(json.dumps(call) + "\n")
            file.flush()

    def wrap(name: str, call: Any) -> Any:
        def noted(*args: Any, **kwargs: Any) -> Any:
            if getattr(inside, "now", False):
                return call(*args, **kwargs)
            given = None if name == "new_group" else kwargs.get("group") or next((a for a in args if is_group(a)), None)
            group: Any = given or dist.group.WORLD
            size = args[0].numel() if name == "all_reduce" else 0
            note("all", f"{name} {size}", group.group_name, dist.get_process_group_ranks(group))
            inside.now = True
            try:
                return call(*args, **kwargs)
            finally:
                inside.now = False

        return noted

    def is_group(value: Any) -> bool:
        return isinstance(value, dist.ProcessGroup)

    def operator(name: str, call: Any) -> Any:
        def noted(tensor: Any, *args: Any) -> Any:
            group = args[-1] if is_group(args[-1]) else dist.distributed_c10d._resolve_process_group(args[-1])
            note("all", f"{name} {tensor.numel()}", group.group_name, dist.get_process_group_ranks(group))
            return call(tensor, *args)

        noted.default = call.default  # type: ignore[attr-defined]
        return noted

    for name in COLLECTIVES:
        if hasattr(dist, name):
            setattr(dist, name, wrap(name, getattr(dist, name)))
    for name in FUNCTIONAL:
        setattr(torch.ops._c10d_functional, name, operator(name, getattr(torch.ops._c10d_functional, name)))
    post, wait = schedules._batch_p2p, schedules._wait_batch_p2p

    def posted(ops: list[Any], *args: Any, **kwargs: Any) -> list[Any]:
        messages = []
        for op in ops:
            ends = (dist.get_rank(), op.peer) if op.op is dist.isend else (op.peer, dist.get_rank())
            messages.append([*ends, number[ends]])
            number[ends] += 1
        note("post", messages)
        works = post(ops, *args, **kwargs)
        assert len(works) == len(ops)
        # kept, so that no other work gets its identity
        known.update((id(w), (w, m)) for w, m in zip(works, messages, strict=True))
        return works

    def waited(works: list[Any]) -> None:
        note("wait", [known[id(w)][1] for w in works])
        wait(works)

    schedules._batch_p2p, schedules._wait_batch_p2p = posted, waited


def stuck(calls: dict[int, list[Call]]) -> dict[int, Call]:
    """What each rank that comes to no end waits in, if every collective waits for all of its group; a call of another kind or
    size than the others' counts as waiting. No rank chooses whom it hears: one order of running them speaks for all."""
    at, moved = dict.fromkeys(calls, 0), True
    posted: dict[int, set[tuple[int, ...]]] = {r: set() for r in calls}

    def here(rank: int) -> Call | None:
        return calls[rank][at[rank]] if at[rank] < len(calls[rank]) else None

    while moved:
        moved = False
        for rank in calls:
            call = here(rank)
            if call is None:
                continue
            if call[0] == "all":
                members = call[3]
                if any(here(r) != call for r in members):
                    continue
            elif call[0] == "post":
                posted[rank] |= {tuple(m) for m in call[1]}
                members = [rank]
            else:
                if any(tuple(m) not in posted[end] for m in call[1] for end in m[:2]):
                    continue
                members = [rank]
            for member in members:
                at[member] += 1
            moved = True
    return {r: call for r in calls if (call := here(r)) is not None}


def read(folder: Path) -> dict[int, list[Call]]:
    """Calls of all ranks that wrote theirs to a folder."""
    return {
        int(p.stem.rpartition("-")[2]): [json.loads(line) for line in p.read_text().splitlines()]
        for p in folder.glob("orders-*.jsonl")
    }
