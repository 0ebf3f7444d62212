"""Activation checkpointing as a transformation of a captured step.

A checkpointed module (``torch.utils.checkpoint``) frees what its forward saved when it returns, keeps its inputs, and runs
its forward again when its backward starts. That a storage is no longer saved lets it go at its last use inside the forward
on a real device; here it goes when the module returns (an upper bound, and seldom the peak).
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from gpuwise.workload.capture.captured import I64, Capture, Category, OpFlag
from gpuwise.workload.capture.record.blocks import (
    Backward,
    Lives,
    ModuleTree,
    Pass,
    Segment,
    backward_of,
    module_mask,
    passes,
    segments,
)
from gpuwise.workload.capture.record.edit import Editor
from gpuwise.workload.row_codes import Phase


def outermost(paths: Collection[str]) -> tuple[str, ...]:
    """``paths`` without those inside another of them, sorted."""
    sorted_paths = sorted(set(paths))
    return tuple(p for p in sorted_paths if not any(p.startswith(q + ".") for q in sorted_paths if q != p))


def recomputed(capture: Capture, paths: Collection[str]) -> Capture:
    """The step with the modules ``paths`` checkpointed (a module inside another chosen one is part of it).

    Raises InputError if the capture has no such module.
    """
    return recomputed_with_source(capture, paths)[0]


def recomputed_with_source(capture: Capture, paths: Collection[str]) -> tuple[Capture, I64]:
    """Like :func:`recomputed`, with [new operations] the operation of ``capture`` that each is or repeats."""
    outer_paths = outermost(paths)
    if not outer_paths:
        return capture, np.arange(len(capture.op_phase))
    tree, lives, edit = ModuleTree.of(capture), Lives(capture), Editor(capture)
    masks = {path: module_mask(capture, tree, path) for path in outer_paths}
    until_by_storage: dict[int, int] = {}
    for span in capture.steps:
        for one in passes(capture, span):
            for segment in segments(capture, tree, one, outer_paths):
                if segment.path:
                    back = backward_of(capture, one, masks[segment.path])
                    if back is not None:
                        _checkpoint(edit, lives, one, segment, back, until_by_storage)
    for storage, until in until_by_storage.items():
        if lives.death_op[storage] < until:
            edit.drop_event(int(lives.death[storage]))
            edit.freed(storage, until)
    return edit.build(), edit.source


def _checkpoint(edit: Editor, lives: Lives, one: Pass, segment: Segment, back: Backward, kept: dict[int, int]) -> None:
    c = edit.capture
    storages = lives.storages_of(one, segment)
    saved = set(storages.saved)
    at = back.first_op
    handle = edit.copy_ops(segment.first_op, segment.end_op, at, Phase.RECOMPUTE, OpFlag.CHECKPOINTED)
    copies: dict[int, int] = {}
    for e in range(lives.event_at(segment.first_op), lives.event_at(segment.end_op)):
        s, mine = int(c.event_storage[e]), handle + int(c.event_op[e]) - segment.first_op
        if c.event_sign[e] > 0 and not lives.is_state[s]:
            copies[s] = edit.storage(
                int(c.storage_bytes[s]),
                _category(c, s),
                c.storage_dtype[s],
                module=int(c.storage_module[s]),
                stream=int(c.storage_stream[s]),
                op=at,
            )
            edit.born(copies[s], at, mine)
        elif c.event_sign[e] < 0 and s in copies:
            edit.freed(copies.pop(s), at, mine)
    last = handle + segment.end_op - segment.first_op - 1
    for s, copy in copies.items():
        if s in saved:
            _move(edit, lives, s, copy, segment)
        else:
            edit.freed(copy, at, last)
    for s in storages.inputs:
        kept[s] = max(kept.get(s, 0), back.end_op)


def _category(c: Capture, storage: int) -> Category:
    return Category(int(c.storage_category[storage]))


def _move(edit: Editor, lives: Lives, storage: int, copy: int, segment: Segment) -> None:
    """The saved ``storage`` is freed when the forward returns; its ``copy`` lives until the original would have been freed."""
    death = int(lives.death[storage])
    edit.freed(storage, segment.end_op)
    if death < len(edit.capture.event_op):
        edit.drop_event(death)
        edit.freed_instead(death, copy)
