# pyright: reportMissingImports=false
"""The names that fields suggest."""

from __future__ import annotations

from tests.ui.serving import Running

from gpuwise.facts.hardware.accelerators import accelerators
from gpuwise.facts.models.catalogue import models
from gpuwise.ui.names import names


def test_every_model_and_gpu_is_suggested_once_with_what_it_is() -> None:
    made = names()
    assert sorted(name for name, _ in made["models"]) == sorted(models())
    assert sorted(name for name, _ in made["gpus"]) == sorted(["this", *accelerators()])
    assert all(what for rows in made.values() for _, what in rows)


def test_common_names_come_first() -> None:
    made = names()
    first = [name for name, _ in made["models"][:20]]
    assert {"llama-3.1-8b", "qwen3-8b", "gemma-3-4b"} <= set(first)
    assert {"h100-sxm-80gb", "a100-sxm-80gb", "l40s"} <= {name for name, _ in made["gpus"][:8]}


def test_a_name_tells_its_size() -> None:
    made = dict(names()["models"])
    assert "8.03B parameters" in made["llama-3.1-8b"] and "active" in made["mixtral-8x7b"]
    assert "80 GB" in dict(names()["gpus"])["h100-sxm-80gb"]


def test_the_page_has_the_names(server: Running) -> None:
    assert server.get("/api/names").json["models"] == [list(row) for row in names()["models"]]
