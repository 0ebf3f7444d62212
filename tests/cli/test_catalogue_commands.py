from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gpuwise.facts.hardware.accelerators import accelerators
from gpuwise.facts.models.catalogue import models


def test_gpus_lists_all(gpuwise: Callable[..., Any]) -> None:
    ran = gpuwise("gpus")
    assert ran.code == 0 and f"{len(accelerators())} accelerators" in ran.out
    assert len(gpuwise("gpus", "--json").document["accelerators"]) == len(accelerators())


def test_gpus_shows_one_with_its_sources(gpuwise: Callable[..., Any]) -> None:
    ran = gpuwise("gpus", "h100-sxm-80gb", "--all")
    for part in ("H100 SXM5 80GB", "3.35 TB/s", "Sources", "datasheet", "Systems", "Rent"):
        assert part in ran.out


def test_gpus_searches_by_words_and_ambiguous_names(gpuwise: Callable[..., Any]) -> None:
    assert len(gpuwise("gpus", "h100", "--json").document["accelerators"]) > 1
    found = gpuwise("gpus", "amd", "cdna3", "--json").document["accelerators"]
    assert found and all(a["vendor"] == "AMD" for a in found)


def test_models_lists_all(gpuwise: Callable[..., Any]) -> None:
    assert f"{len(models())} models" in gpuwise("models").out
    assert len(gpuwise("models", "--json").document["models"]) == len(models())


def test_models_shows_one_with_its_parameters(gpuwise: Callable[..., Any]) -> None:
    ran = gpuwise("models", "llama-3.1-8b", "--all")
    for part in ("8,030,261,248", "the same", "32 query, 8 key-value", "5,637,144,576"):
        assert part in ran.out
    parts = gpuwise("models", "llama-3.1-8b", "--json").document["models"][0]["parameters_by_part"]
    assert sum(parts.values()) == 8_030_261_248


def test_memory_of_a_model_is_that_of_a_run(gpuwise: Callable[..., Any]) -> None:
    rows = gpuwise("models", "llama-3.1-8b", "--json").document["models"][0]["memory"]
    formats = gpuwise("fit", "llama-3.1-8b", "--on", "4090", "--for", "run", "--json").document["formats"]
    held = {row["weights"]: row["contexts"][0] for row in rows}
    assert all(held[f["weights"]] == {"context": 8192, "memory_bytes": f["memory_bytes"]} for f in formats)
    assert "Memory to run it" in gpuwise("models", "llama-3.1-8b").out


def test_models_searches_by_words(gpuwise: Callable[..., Any]) -> None:
    found = gpuwise("models", "qwen3", "moe", "--json").document["models"]
    assert found and all(m["moe"] for m in found)


@pytest.mark.parametrize("command", ["gpus", "models"])
@pytest.mark.parametrize("width", ["60", "80", "140"])
def test_tables_keep_to_the_width(command: str, width: str, gpuwise: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", width)
    assert max(len(line) for line in gpuwise(command).out.splitlines()) <= int(width)


@pytest.mark.parametrize("width", [60, 80, 100, 120])
def test_gpus_are_whole_at_every_width(width: int, gpuwise: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def listed() -> str:
        monkeypatch.setenv("COLUMNS", str(width))
        return gpuwise("gpus", "--list").out

    text = listed()
    assert "…" not in text and max(map(len, text.splitlines())) <= width
    assert any({"name", "memory", "$/h"} <= set(line.split()) for line in text.splitlines())
    assert any("RTX 4090" in line and "24.0 GiB" in line for line in text.splitlines())


@pytest.mark.parametrize(
    ("query", "words"), [("--families", ("Zen 4", "Ivy Bridge")), ("zen 4 laptop --list", ("7840HS", "DDR5-5600 x 2"))]
)
@pytest.mark.parametrize("width", [60, 80, 120])
def test_cpus_are_whole_at_every_width(
    width: int, query: str, words: tuple[str, ...], gpuwise: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    text = gpuwise("cpus", *query.split()).out
    assert "…" not in text and max(map(len, text.splitlines())) <= width
    assert all(word in text for word in words)


def test_one_cpu_shows_its_memory_and_source(gpuwise: Callable[..., Any]) -> None:
    text = " ".join(gpuwise("cpus", "2x", "EPYC", "9334", "ddr5-4800x8").out.split())
    assert (
        "2x EPYC 9334" in text
        and "DDR5-4800 x 8" in text
        and "614 GB/s" in text
        and "AMD processor" in gpuwise("cpus", "2x", "EPYC", "9334", "--sources").out
    )
    document = gpuwise("cpus", "Ryzen 7 5700G", "--json").document["processors"]
    assert [d["id"] for d in document] == ["ryzen-7-5700g"] and document[0]["memory_channels"] == 2


@pytest.mark.parametrize("width", [60, 80, 120])
def test_models_are_whole_at_every_width(width: int, gpuwise: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    text = gpuwise("models", "--list").out
    assert "…" not in text and max(map(len, text.splitlines())) <= width
    assert any({"model", "parameters", "context"} <= set(line.split()) for line in text.splitlines())
