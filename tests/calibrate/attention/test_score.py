"""Calibration of attention: reading tables, splitting by site, scoring."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gpuwise.calibrate.attention import score as attention
from gpuwise.calibrate.attention.rows import ACCELERATORS, FILES, is_check_site, read_table
from gpuwise.calibrate.validation import summarise
from gpuwise.errors import DataError
from gpuwise.facts.hardware.accelerators import accelerators
from gpuwise.predict.kernels.attention.fused import shape_of

pa = pytest.importorskip("pyarrow")


def table(folder: Path, phase: str, rows: list[dict[str, object]]) -> None:
    import pyarrow.parquet as parquet

    (folder / "ops").mkdir(exist_ok=True)
    columns = {k: [r[k] for r in rows] for k in rows[0]}
    parquet.write_table(pa.table(columns), folder / "ops" / FILES[phase])


def row(gpu: str, heads: int, ms: float, **other: object) -> dict[str, object]:
    """A row of the tables; H100, vLLM, FlashAttention-3, 4 sequences of 2048, unless said otherwise."""
    return {
        "gpu": gpu,
        "backend": "vllm",
        "kernel_source": "vllm_flash_attn_fa3",
        "attn_dtype": "bfloat16",
        "kv_cache_dtype": "bfloat16",
        "batch_size": 4,
        "isl": 2048,
        "num_heads": heads,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "window_size": 0.0,
        "step": 0,
        "latency_ms": ms,
    } | other


def test_no_tables_no_scores(tmp_path: Path) -> None:
    assert attention.score(tmp_path, False) is None


def test_a_broken_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ops").mkdir()
    (tmp_path / "ops" / FILES["forward"]).write_bytes(b"PAR1 not really")
    with pytest.raises(DataError):
        attention.score(tmp_path, False)


def test_every_row_is_scored_or_says_why_not(tmp_path: Path) -> None:
    # 4 x 2048 tokens of 32 heads: 608 us measured on 8 sequences (aiconfigurator, H100): 315 us here
    rows = [row("h100_sxm", h, 0.315 * h / 32) for h in (16, 24, 32, 40, 48, 64, 16)]
    rows += [
        row("h200_sxm", 32, 0.31),
        row("h900_sxm", 32, 0.3),
        row("h100_sxm", 32, 0.3, kernel_source="unheard_of"),
    ]
    rows += [row("a100_sxm", 32, 0.3, attn_dtype="fp8", kv_cache_dtype="fp8")]
    table(tmp_path, "forward", rows)
    table(tmp_path, "decode", [row("h100_sxm", 32, 0.0405, isl=1, step=4095)])
    scores = attention.score(tmp_path, False)
    assert scores is not None
    assert list(scores.source) == ["aiconfigurator prefill"] * 11 + ["aiconfigurator decode"]
    assert list(scores.reason)[7:] == [
        "",
        "accelerator not in the catalogue",
        "kernel or format not measured",
        "no fp8 rate for accelerator",
        "",
    ]
    good = np.array([not r for r in scores.reason])
    assert np.isfinite(scores.predicted[good]).all() and np.isnan(scores.predicted[~good]).all()
    assert np.abs(scores.predicted[good] / scores.measured[good] - 1).max() < 0.4
    assert set(scores.split) == {"fit", "check"} and scores.split[7] == "check"
    whole = next(r for r in summarise("attention", scores) if r.gpu is None and r.source.endswith("decode"))
    assert whole.rows == 1 and whole.mape is not None and whole.mape < 0.1
    everything = attention.score(tmp_path, True)
    assert everything is not None and set(everything.split) == {"check"}


def test_a_site_is_on_one_side_whatever_the_call() -> None:
    rng = np.random.default_rng(0)
    heads, kv = rng.choice([1, 2, 4, 8, 16, 32, 64], 4000), rng.choice([1, 2, 4, 8], 4000)
    width, window = rng.choice([64, 128, 256], 4000), rng.choice([0, 128, 1024], 4000)
    s = shape_of(rng.integers(1, 64, 4000), 7, rng.integers(1, 999, 4000), heads * kv, kv, width, None, window)
    held = is_check_site(s)
    assert 0.05 < held.mean() < 0.25
    sites: dict[tuple[int, ...], set[bool]] = {}
    for i in range(4000):
        site = (int(s.heads[i]), int(kv[i]), int(width[i]), int(window[i]))
        sites.setdefault(site, set()).add(bool(held[i]))
    assert all(len(v) == 1 for v in sites.values())


def test_reading_keeps_the_shape(tmp_path: Path) -> None:
    table(
        tmp_path,
        "decode",
        [row("l40s", 32, 0.5, step=99, window_size=None), row("h100_sxm", 16, 0.25, step=0)],
    )
    found = read_table(tmp_path, "decode")
    assert found is not None
    assert found.shape.kv_len.tolist() == [100, 1] and found.shape.window.tolist() == [0, 0]
    assert found.seconds.tolist() == [5e-4, 2.5e-4] and len(found.groups) == 2
    assert read_table(tmp_path, "forward") is None


def test_the_catalogue_has_every_device_of_the_tables() -> None:
    for identity in ACCELERATORS.values():
        assert identity in accelerators()
