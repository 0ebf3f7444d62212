"""Calibration of attention: reading tables, splitting by site, scoring, and the fit on made-up
measurements."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gpuwise.calibrate.attention import score as attention
from gpuwise.calibrate.attention.fit import Fit, Rows, fit_network, fit_trees
from gpuwise.calibrate.attention.rows import ACCELERATORS, FILES, is_check_site, read_table
from gpuwise.calibrate.validation import summarise
from gpuwise.errors import DataError
from gpuwise.facts.hardware.accelerators import accelerators
from gpuwise.predict.kernels.attention.features import AttentionWork, Device, decode_work, free_features
from gpuwise.predict.kernels.attention.fused import shape_of
from gpuwise.predict.kernels.attention.net import bins, network_seconds, trees_log, unpack

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
    assert list(scores.source)[:12] == ["aiconfigurator prefill"] * 11 + ["aiconfigurator decode"]
    assert set(scores.source[12:]) == {"published attention forward", "published attention backward"}
    assert list(scores.reason)[7:12] == [
        "",
        "accelerator not in the catalogue",
        "kernel or format not measured",
        "no fp8 rate for accelerator",
        "",
    ]
    good = np.array([not r and s.startswith("aic") for r, s in zip(scores.reason, scores.source, strict=True)])
    assert np.isfinite(scores.predicted[good]).all() and np.isnan(scores.predicted[:12][~good[:12]]).all()
    assert np.abs(scores.predicted[good] / scores.measured[good] - 1).max() < 0.4
    assert set(scores.split) == {"fit", "check"} and scores.split[7] == "check"
    whole = next(r for r in summarise("attention", scores) if r.gpu is None and r.source.endswith("decode"))
    assert whole.rows == 1 and whole.mape is not None and whole.mape < 0.1
    everything = attention.score(tmp_path, True)
    assert everything is not None and set(everything.split[:12]) == {"check"}


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


def made_up(rows: int, bandwidth: float) -> tuple[AttentionWork, np.ndarray, np.ndarray]:
    """Decode calls of an imagined device: 10 us, plus the cache read at nine tenths of the bandwidth."""
    rng = np.random.default_rng(1)
    s = shape_of(2 ** rng.integers(0, 8, rows), 1, 2 ** rng.integers(0, 16, rows), 32, 8, 128, None, 0)
    device = Device(100.0, 1.5e9, 3e14, 16.0, bandwidth, 2e7)
    work = decode_work(device, s, 2.0, 2.0)
    return work, free_features(s), 1e-5 + work.memory_s / 0.9


@pytest.mark.thorough
def test_the_fit_finds_the_bandwidth_term_and_carries_it_to_another_device() -> None:
    work, free, seconds = made_up(3000, 2e12)
    flat = fit_network(Rows(work, free, seconds), Fit(1.03, 1.3, steps=1500))
    again = fit_network(Rows(work, free, seconds), Fit(1.03, 1.3, steps=1500))
    assert (flat == again).all()
    parameters = unpack(flat, work.features.shape[1])
    assert np.abs(network_seconds(parameters, work, free) / seconds - 1).mean() < 0.03
    faster, _, there = made_up(3000, 3e12)
    assert np.abs(network_seconds(parameters, faster, free) / there - 1).mean() < 0.06


def test_trees_learn_a_kernels_bad_corner() -> None:
    rng = np.random.default_rng(2)
    values = rng.integers(0, 6, (4000, 3)).astype(float)
    corner = (values[:, 0] == 4) & (values[:, 1] == 4)
    residual = np.where(corner, 0.4, 0.0) + rng.normal(0, 0.01, 4000)
    edges = [np.arange(5) + 0.5] * 3
    codes = bins(values, edges)
    trees = fit_trees(codes, residual, 20, rate=0.3)
    left = residual - trees_log(trees, codes)
    assert np.abs(left[corner]).mean() < 0.05 and np.abs(left[~corner]).mean() < 0.02


def test_the_catalogue_has_every_device_of_the_tables() -> None:
    for identity in ACCELERATORS.values():
        assert identity in accelerators()
