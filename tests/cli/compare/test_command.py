from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

THREE = ("RTX 4090", "L40S", "A100 80GB")


def test_the_verdict_comes_first_and_the_rows_follow(gpuwise: Callable[..., Any]) -> None:
    ran = gpuwise("compare", *THREE)
    assert ran.code == 0 and ran.err == ""
    assert ran.out.startswith("In long runs of large bf16 matrix products A100 SXM4 80GB is ")
    for part in ("bf16 reached", "reads memory", "rent", "RTX 4090", "A100 SXM4 80GB", "Also", "days", "--rows --sources"):
        assert part in ran.out
    whole = gpuwise("compare", *THREE, "--all").out
    for part in ("Dense peak", "Really reached", "Price", "312 TFLOP/s", "days old", "vendor"):
        assert part.lower() in whole.lower()
    assert all(len(line) <= 80 for line in ran.out.splitlines())


def test_best_and_weak_are_marked_without_colour(gpuwise: Callable[..., Any]) -> None:
    lines = gpuwise("compare", *THREE, "--rows").out.splitlines()
    bandwidth = next(line for line in lines if line.strip().startswith("memory bandwidth"))
    assert bandwidth.rstrip().endswith("TB/s*") and bandwidth.count("*") == 1
    assert any("* best of the row" in line and "~ weak" in line for line in lines)


@pytest.mark.parametrize(("columns", "blocks"), [(80, 3), (200, 1)])
def test_many_columns_come_in_blocks(
    gpuwise: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, columns: int, blocks: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    out = gpuwise("compare", "t4", "l4", "l40s", "4090", "3090", "a10", "a30", "h100-sxm", "--rows").out
    assert sum(line.strip() == "Dense peak" for line in out.splitlines()) == blocks
    assert all(len(line) <= columns for line in out.splitlines())


def test_a_model_brings_predicted_work(gpuwise: Callable[..., Any]) -> None:
    ran = gpuwise("compare", *THREE, "--model", "llama-3.1-8b", "--for", "infer", "--seq", "2048", "--rows")
    assert ran.code == 0
    assert "Serving at 2,048 tokens of context, predicted" in ran.out and "tokens/s" in ran.out
    assert "x the first" in ran.out and "Training" not in ran.out


def test_json_has_every_cell_with_its_source(gpuwise: Callable[..., Any]) -> None:
    document = gpuwise("compare", *THREE, "--json").document
    row = next(r for r in document["rows"] if r["key"] == "peak_bf16")
    assert [c["value"] for c in row["cells"]] == pytest.approx([165.2e12, 362.05e12, 312e12], rel=1e-3)
    assert row["best"] == [1] and all(c["kind"] and c["source"] for c in row["cells"])


def test_every_source_can_be_listed(gpuwise: Callable[..., Any]) -> None:
    short, long = gpuwise("compare", *THREE), gpuwise("compare", *THREE, "--sources")
    assert len(long.out.splitlines()) > len(short.out.splitlines()) + 60
    assert "--sources" in short.out and "https://" not in short.out and "https://" in long.out


def test_a_page_and_figures_are_written(gpuwise: Callable[..., Any], tmp_path: Path) -> None:
    page, figures = tmp_path / "c.html", tmp_path / "c.svg"
    ran = gpuwise("compare", "l40s", "4090", "--html", str(page), "--svg", str(figures), "--json")
    assert ran.code == 0 and ran.document["rows"]
    assert page.read_text().startswith("<!DOCTYPE html>") and "<svg" in figures.read_text()
    assert f"wrote {page}" in ran.err and f"wrote {figures}" in ran.err


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("l40s",),
        ("rtx 6000", "l40s"),
        ("l40s", "nonsense"),
        ("l40s", "4090", "--model", "no-such-model"),
        ("l40s", "4090", "--for", "train"),
        ("l40s", "4090", "--model", "gpt2", "--for", "dance"),
        ("l40s", "4090", "--model", "gpt2", "--tokens", "-5"),
        ("l40s", "4090", "--model", "gpt2", "--seq", "0"),
        ("l40s", "4090", "--html", "report.pdf"),
        ("l40s", "4090", "--svg", "/"),
        ("0xl40s", "4090"),
        ("l40s", ""),
    ],
)
def test_bad_input_is_refused_with_a_hint(gpuwise: Callable[..., Any], arguments: tuple[str, ...]) -> None:
    ran = gpuwise("compare", *arguments)
    assert ran.code == 2 and ran.out == ""
    assert ran.err.startswith("error: ") and "hint: " in ran.err


def test_a_long_sentence_stays_behind_its_dash(gpuwise: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    _, *also = gpuwise("compare", "h100-sxm", "4090", "--also").out.split("\n\n")[1].splitlines()
    assert len(also) > 5 and all(line.startswith(("  - ", "    ")) and len(line) <= 60 for line in also)
