"""Scoring the memory of published runs, on a table of three of them."""

import csv
from pathlib import Path

import numpy as np
import pytest

from gpuwise.calibrate.llm_training.rows import _NUMBERS, _TEXT, TABLE
from gpuwise.calibrate.memory.llm_score import OUT_OF_MEMORY, RAN, metric_of, read_rows, score, targets, thumb_bytes
from gpuwise.facts.models.architecture import Architecture
from gpuwise.units import GIB
from gpuwise.workload.strategy import Strategy

GPT = {
    "model": "gpt-181B",
    "n_layers": "72",
    "hidden": "14336",
    "ffn": "57344",
    "heads": "64",
    "kv_heads": "64",
    "vocab": "250880",
    "seq_len": "2048",
    "gpu": "A100-80GB",
    "n_gpus": "384",
    "sharding": "ZeRO-1 (DeepSpeed)",
    "global_batch": "2048",
    "precision": "fp16",
    "act_ckpt": "full",
    "attn": "unfused",
    "software": "Megatron-DeepSpeed",
    "source": "bigscience-bloom-prequel",
}
RUNS = [
    # bigscience tr11-176B-ml chronicles-prequel
    {
        **GPT,
        "tp": "8",
        "pp": "12",
        "micro_batch": "2",
        "step_time_s": "134.02",
        "memory_gb": "37",
        "memory_kind": "nvidia-smi GB, max node",
    },
    {**GPT, "tp": "2", "pp": "6", "micro_batch": "2", "memory_kind": "OOM"},
    # MooreThreads SimuMax docs/b200
    {
        "model": "llama-L12",
        "n_layers": "12",
        "hidden": "8192",
        "ffn": "28672",
        "heads": "64",
        "kv_heads": "8",
        "vocab": "128256",
        "seq_len": "4096",
        "gpu": "B200-SXM",
        "n_gpus": "8",
        "tp": "4",
        "pp": "1",
        "dp": "2",
        "cp": "1",
        "ep": "1",
        "sharding": "Megatron distributed optimizer (ZeRO-1)",
        "micro_batch": "1",
        "grad_accum": "4",
        "global_batch": "8",
        "precision": "bf16",
        "act_ckpt": "none",
        "attn": "TE flash",
        "step_time_s": "0.4",
        "memory_gb": "39.07",
        "memory_kind": "max_allocated GiB, max over ranks",
        "software": "Megatron-LM",
        "notes": "real_reserved_gib=40.18",
        "source": "simumax-b200",
    },
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with (tmp_path / TABLE).open("w", newline="") as file:
        writer = csv.DictWriter(file, [*_TEXT, *_NUMBERS], restval="")
        writer.writeheader()
        writer.writerows(RUNS)
    return tmp_path


def test_every_number_is_a_target(folder: Path) -> None:
    rows = read_rows(folder)
    assert rows is not None
    found = [(t.source, t.metric, t.measured) for t in targets(rows)]
    assert found == [
        ("bigscience-bloom-prequel", "device", 37e9),
        ("bigscience-bloom-prequel verdict", "verdict", RAN),
        ("bigscience-bloom-prequel verdict", "verdict", OUT_OF_MEMORY),
        ("simumax-b200", "allocated", 39.07 * GIB),
        ("simumax-b200 reserved", "reserved", 40.18 * GIB),
        ("simumax-b200 verdict", "verdict", RAN),
    ]
    assert metric_of(rows[0]) == "device" and metric_of(rows[2]) == "allocated"


def test_scores(folder: Path) -> None:
    scores = score(folder, True)
    assert scores is not None
    assert set(scores.split) == {"check"} and not any(scores.reason)
    error = np.abs(scores.predicted / scores.measured - 1)
    assert error[0] < 0.08
    assert list(error[[1, 2, 5]]) == [0, 0, 0]
    assert error[3] < 0.005 and error[4] < 0.05
    assert np.isfinite(scores.baseline).all() and not (scores.log_sigma <= 0).any()
    assert np.array_equal(np.isfinite(scores.log_sigma), ~np.char.endswith(np.array(scores.source), "verdict"))


def test_no_table(tmp_path: Path) -> None:
    assert score(tmp_path, False) is None


def test_rule_of_thumb_by_hand() -> None:
    arch = Architecture(
        id="a",
        name="a",
        kind="decoder",
        n_layers=2,
        hidden=64,
        ffn=256,
        heads=4,
        kv_heads=4,
        head_dim=16,
        vocab=0,
        max_seq_len=128,
        lm_head=False,
        final_norm=False,
        norm="none",
        gated_mlp=False,
    )
    parameters = 2 * 12 * 64 * 64
    s = Strategy(gradient_dtype="bf16", micro_batch=2)
    assert thumb_bytes(arch, s, 128) == pytest.approx(16 * parameters + 2 * 128 * 64 * 2 * 34)
    sharded = s.with_(dp=4, sharding="zero1", recompute="full")
    assert thumb_bytes(arch, sharded, 128) == pytest.approx(7 * parameters + 2 * 128 * 64 * 2 * 2)
