"""Comparisons as plain documents for ``--json``: SI values, with the source and kind of every cell."""

from __future__ import annotations

from typing import cast

from gpuwise.facts.sources import sources
from gpuwise.pick.compare.comparison import Comparison
from gpuwise.pick.compare.rows import Cell, FigureRow, Subject
from gpuwise.predict.estimate import to_document


def comparison_document(comparison: Comparison) -> dict[str, object]:
    """The whole comparison."""
    work = comparison.work
    document = {
        "as_of": comparison.today,
        "subjects": [_subject(s) for s in comparison.subjects],
        "work": None
        if work is None
        else {
            "model": {"id": work.arch.id, "name": work.arch.name},
            "purposes": work.purposes,
            "tokens": work.tokens,
            "seq_len": work.seq_len,
            "precision": work.precision,
            "context": work.context,
        },
        "rows": [_row(r) for r in comparison.rows],
        "verdict": comparison.verdict,
        "notes": comparison.notes,
        "sources": cited(comparison),
    }
    return cast("dict[str, object]", to_document(document))


def cited(comparison: Comparison) -> dict[str, dict[str, str]]:
    """The sources the cells cite, by key, in order of first use."""
    source_table, citations = sources(), dict[str, dict[str, str]]()
    for key in (c.source for r in comparison.rows for c in r.cells):
        if key in source_table and key not in citations:
            citations[key] = {"kind": source_table[key].kind, "title": source_table[key].title, "url": source_table[key].url}
    return citations


def _subject(s: Subject) -> dict[str, object]:
    return {
        "asked": s.asked,
        "name": s.name,
        "accelerator": s.accelerator.id,
        "accelerators": s.count,
        "system": s.cluster.system.id,
        "systems": s.cluster.n_systems,
        "notes": s.accelerator.notes,
    }


def _row(r: FigureRow) -> dict[str, object]:
    ratios = r.ratios
    return {
        "key": r.key,
        "title": r.title,
        "section": r.section,
        "unit": r.unit,
        "better": r.better or None,
        "best": r.best,
        "cells": [{**_cell(c), "ratio_to_first": ratio} for c, ratio in zip(r.cells, ratios, strict=True)],
    }


def _cell(c: Cell) -> dict[str, object]:
    interval = None if c.low is None or c.high is None else {"low": c.low, "high": c.high}
    return {
        "value": c.value,
        "words": c.words,
        "interval": interval,
        "kind": c.kind or None,
        "source": c.source or None,
        "weak": c.weak,
    }
