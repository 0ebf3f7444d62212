"""Collectives of 512 ranks, counted by one of them, are those that were predicted from shapes."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import msgspec
import pytest

pytest.importorskip("torch")

from gpuwise.train.ranks.layout import Layout
from gpuwise.train.ranks.settings import RankSettings

HERE = Path(__file__).parent
N = 512
CASES: dict[str, tuple[str, dict[str, Any], int]] = {
    "DDP 512": ("tokens", {"dp": N}, 2),
    "FSDP2 512, micro-batches, recompute": ("tokens", {"dp": N, "sharding": "zero3", "micro_batch": 1, "recompute": "full"}, 1),
    "FSDP2 512, weights kept, bf16": ("tokens", {"dp": N, "sharding": "zero2", "precision": "bf16"}, 1),
    "hybrid 64 x 8": ("tokens", {"dp": N, "sharding": "hybrid", "shard_group": 8}, 1),
    "FSDP2 128 x tensor 4": ("llama_like", {"dp": N // 4, "tp": 4, "sharding": "zero3"}, 1),
    "FSDP2 128 x tensor 4 of Transformers, recompute": (
        "llama",
        {"dp": N // 4, "tp": 4, "sharding": "zero3", "micro_batch": 1, "recompute": "full"},
        1,
    ),
    "FSDP2 128 x tensor 4, bf16": ("llama", {"dp": N // 4, "tp": 4, "sharding": "zero3", "precision": "bf16"}, 1),
    "FSDP2 128 x tensor 4 of OLMo 2, recompute": ("olmo2", {"dp": N // 4, "tp": 4, "sharding": "zero3", "recompute": "full"}, 1),
    "FSDP2 128 x tensor 4 of GPT-2": ("gpt_2_heads", {"dp": N // 4, "tp": 4, "sharding": "zero3", "micro_batch": 1}, 1),
    "FSDP2 128 x tensor 4 of Phi-3, recompute": ("phi3", {"dp": N // 4, "tp": 4, "sharding": "zero3", "recompute": "full"}, 1),
    "FSDP2 128 x tensor 4 of Falcon": ("falcon", {"dp": N // 4, "tp": 4, "sharding": "zero3"}, 1),
    "rows over 4 x tensor 2 x FSDP2 64": ("llama", {"dp": N // 8, "cp": 4, "tp": 2, "sharding": "zero3"}, 1),
    "rows over 8 x FSDP2 64": ("llama", {"dp": N // 8, "cp": 8, "sharding": "zero3"}, 1),
    "experts over 8 x DDP 512": ("qwen3_moe", {"dp": N, "ep": 8}, 2),
    "experts over 8 x FSDP2 512, recompute": ("qwen3_moe", {"dp": N, "ep": 8, "sharding": "zero3", "recompute": "full"}, 1),
    "experts over 8 x tensor 4 x FSDP2 128, recompute": (
        "qwen3_moe",
        {"dp": N // 4, "tp": 4, "ep": 8, "sharding": "zero3", "recompute": "full"},
        1,
    ),
    "experts over 8 x rows over 4 x DDP 128": ("qwen3_moe", {"dp": N // 4, "cp": 4, "ep": 8}, 2),
}
STAGES: dict[str, tuple[str, dict[str, Any], int]] = {
    "DDP 128": ("tokens", {"dp": N // 4, "pp": 4, "micro_batch": 1}, 2),
    "FSDP2 128, recompute": ("tokens", {"dp": N // 4, "pp": 4, "micro_batch": 1, "sharding": "zero3", "recompute": "full"}, 2),
    "tensor 4 x FSDP2 64, recompute": (
        "llama",
        {"dp": N // 8, "pp": 2, "tp": 4, "micro_batch": 1, "sharding": "zero3", "recompute": "full"},
        2,
    ),
}
RANK = 200
"""In the middle, and the first of two stages or the second of four."""
QUICK = ("DDP 512", "FSDP2 512, micro-batches, recompute", "FSDP2 128 x tensor 4")


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in CASES])
def test_collectives_of_512_ranks(name: str, server: Any, tmp_path: Path) -> None:
    """Rows of one length; number and bytes of every kind, on a rank in the middle."""
    check_exact(*CASES[name], RANK, server, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", STAGES)
def test_collectives_of_stages_of_512_ranks(name: str, server: Any, tmp_path: Path) -> None:
    """On a rank of every stage."""
    task, layout, n_steps = STAGES[name]
    width = N // layout["pp"]
    for stage in range(layout["pp"]):
        check_exact(task, layout, n_steps, stage * width + RANK % width, server, tmp_path)


def check_exact(task: str, layout: dict[str, Any], n_steps: int, rank: int, server: Any, tmp_path: Path) -> None:
    """What was predicted is what the meter counts, and what PyTorch's dispatcher was given."""
    given = Layout(**{"global_batch": 2 * layout["dp"], "micro_batch": 2, **layout})
    more = ["length=16", "n=2048", *(["layers=4"] if task == "tokens" else [])]
    more += ["key_heads=4"] if task == "qwen3_moe" or (layout.get("tp") == 4 and task == "llama") else []
    settings = RankSettings(f"{HERE / 'tasks.py'}:{task}", given, str(tmp_path), more, steps=n_steps)
    place = tmp_path / "told.json"
    process = server.Process(
        target=runpy.run_path,
        args=(str(HERE / "fake_process.py"), {"GIVEN": (msgspec.json.encode(settings), rank, n_steps, str(place))}),
    )
    process.start()
    process.join(300)
    told = json.loads(place.read_text())
    assert "error" not in told, told["error"]
    assert told["counted"] == told["predicted"] and told["counted"]
    # DDP tells the others its buckets once, before the second step
    assert told["issued"].pop("c10d.broadcast_", [2, 0])[1] < 1000
    # bytes of tokens that other ranks' experts have depend on the routing
    issued, counted = ({k: v[: 2 - (k == "all-to-all")] for k, v in told[of].items()} for of in ("issued", "counted"))
    assert issued == counted
