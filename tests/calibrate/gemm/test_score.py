"""Scoring matrix products from a table laid out like the published one."""

from pathlib import Path

import numpy as np
import pytest

from gpuwise.calibrate.gemm.rows import CHECK, FIT, INTERVAL, GemmRows, Words, part_of, read_gemm, site_hash
from gpuwise.calibrate.gemm.score import score
from gpuwise.errors import DataError
from gpuwise.facts.hardware.accelerators import accelerators
from gpuwise.predict.kernels.gemm.formats import IMPLEMENTATIONS
from gpuwise.predict.kernels.gemm.physics import PhysicalCoefficients, device_of, physical_time
from gpuwise.predict.kernels.gemm.product import gemm_time
from studies.gemm.fit import fit_physics, fit_rows

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

ROWS = {
    "gpu": ["h100_sxm", "h200_sxm", "l40s", "a100_sxm", "mystery_gpu", "b60"],
    "kernel_source": ["torch.nn.functional.linear"] * 6,
    "dtype": ["bfloat16", "bfloat16", "fp8", "fp8", "bfloat16", "fp8_block"],
    "m": [4096] * 6,
    "n": [4096, 5120, 8192, 4096, 4096, 4096],
    "k": [4096, 4096, 1024, 4096, 4096, 4096],
    "latency_ms": [0.19, 0.2, 0.5, 0.4, 0.2, 3.0],
}


def write(folder: Path, rows: dict[str, list[object]], *, categories: bool = False) -> Path:
    (folder / "ops").mkdir()
    columns = {name: pa.array(values) for name, values in rows.items()}
    if categories:
        columns |= {n: columns[n].dictionary_encode() for n in ("gpu", "kernel_source", "dtype")}
    pq.write_table(pa.table(columns), folder / "ops" / "gemm.parquet")
    return folder


@pytest.mark.parametrize("categories", [False, True])
def test_every_row_is_scored_or_has_a_reason(tmp_path: Path, categories: bool) -> None:
    scores = score(write(tmp_path, ROWS, categories=categories), all_check=True)
    assert scores is not None
    assert list(scores.split) == ["check"] * 6
    assert list(scores.source[:3]) == ["aiconfigurator bf16", "aiconfigurator bf16", "aiconfigurator fp8"]
    assert [bool(r) for r in scores.reason] == [False, False, False, True, True, True]
    assert np.isfinite(scores.predicted[:3]).all()
    assert np.isnan(scores.predicted[3:]).all()
    h100 = gemm_time(accelerators()["h100-sxm-80gb"], "bf16", 4096, 4096, 4096)
    assert scores.predicted[0] == pytest.approx(h100.time_s[0])
    assert scores.log_sigma[0] == pytest.approx(h100.log_sigma[0])
    assert scores.predicted[0] == pytest.approx(scores.measured[0], rel=0.25)
    assert scores.log_sigma[1] > scores.log_sigma[0]
    assert np.isfinite(scores.baseline[:3]).all()


def test_no_table_no_scores(tmp_path: Path) -> None:
    assert score(tmp_path, all_check=False) is None


def test_a_broken_table_is_refused(tmp_path: Path) -> None:
    write(tmp_path, {"gpu": ["l40s"], "kernel_source": ["x"], "dtype": ["bf16"], "m": [1], "n": [1]})
    with pytest.raises(DataError, match=r"gemm\.parquet"):
        score(tmp_path, all_check=False)
    (tmp_path / "ops" / "gemm.parquet").write_bytes(b"not a table")
    with pytest.raises(DataError, match=r"gemm\.parquet"):
        score(tmp_path, all_check=False)


def test_rows_without_a_time_are_left_out(tmp_path: Path) -> None:
    rows = ROWS | {"latency_ms": [0.19, 0.0, float("nan"), None, 0.2, 3.0]}
    read = read_gemm(write(tmp_path, rows))
    assert read is not None
    assert len(read) == 3


def test_sites_are_split_whole_and_for_good() -> None:
    n, k = (a.ravel() for a in np.meshgrid(np.arange(64, 4096, 64), np.arange(64, 4096, 64)))
    part = part_of(site_hash(n, k))
    shares = [float((part == p).mean()) for p in (FIT, INTERVAL, CHECK)]
    assert shares == pytest.approx([0.8, 0.1, 0.1], abs=0.03)
    known = part_of(site_hash(np.array([4096, 5120, 2048]), np.array([4096, 1536, 512])))
    assert known.tolist() == [FIT, INTERVAL, CHECK]


def synthetic(truth: PhysicalCoefficients, rows: int) -> GemmRows:
    rng = np.random.default_rng(0)
    m, n, k = (np.exp2(rng.integers(low, 14, rows)).astype(float) for low in (0, 6, 6))
    h100 = accelerators()["h100-sxm-80gb"]
    time = physical_time(truth, device_of(h100, "bf16"), IMPLEMENTATIONS["bf16"].form, m, n, k, np.ones(rows))
    one = np.zeros(rows, np.int32)
    words = [Words(one, np.array([w], dtype=object)) for w in ("h100_sxm", "torch", "bf16", "bf16")]
    return GemmRows(*words, m, n, k, time * np.exp(rng.normal(0, 0.02, rows)))


def test_physics_comes_back_from_its_own_numbers() -> None:
    pytest.importorskip("scipy")
    truth = PhysicalCoefficients(
        latency_clocks=4000,
        math_efficiency=0.93,
        load_bytes_per_clock=100,
        wave_rounding=0.5,
        wave_clocks=150,
        bandwidth_efficiency=0.8,
        p=4,
        split_clocks=4500,
        hot_weights=6,
        l2_bytes_per_clock=20,
        hot_sharpness=5,
        hot_activations=1,
        joules_per_flop=5e-13,
        joules_per_byte=2e-11,
        burst_s=5e-5,
        swizzle_tiles=5,
        l2_retained=0.6,
        step_clocks=140,
        epilogue_clocks=3000,
        output_weight=1,
        reduction_bytes_per_clock=30,
        quantise_clocks=0,
        quantise_efficiency=0,
    )
    rows = synthetic(truth, 800)
    found = PhysicalCoefficients(**fit_physics("bf16", "Hopper", {"h100_sxm": rows}, {"host_floor_s": {}}))
    h100 = device_of(accelerators()["h100-sxm-80gb"], "bf16")
    again = physical_time(found, h100, IMPLEMENTATIONS["bf16"].form, rows.m, rows.n, rows.k, np.ones(len(rows)))
    assert np.abs(again / rows.time_s - 1).mean() < 0.03


def test_a_whole_fit_has_all_that_prediction_reads() -> None:
    pytest.importorskip("scipy")
    rows = synthetic(PhysicalCoefficients(**fit_start()), 400)
    document, arrays = fit_rows(rows)
    assert document["measured"]["bf16"] == {"h100-sxm-80gb": "Hopper"}
    assert "bf16/Hopper" in arrays
    assert 0 < document["roofline_share"]["bf16"]["h100-sxm-80gb"]["share"] < 1


def fit_start() -> dict[str, float]:
    from studies.gemm.fit import PRIOR

    return {name: centre for name, (centre, _) in PRIOR.items()} | {"quantise_efficiency": 0.0, "quantise_clocks": 0.0}


def test_the_kernel_source_says_the_implementation(tmp_path: Path) -> None:
    rows = ROWS | {
        "dtype": ["int8_wo", "int8_wo", "bfloat16", "bfloat16", "bfloat16", "fp8_block"],
        "kernel_source": ["sglang", "trt_flow_/weight_only_quant_matmul", "sglang", *["torch.nn.functional.linear"] * 3],
    }
    read = read_gemm(write(tmp_path, rows))
    assert read is not None
    assert list(read.implementation.text()[:3]) == ["int8_wo_sglang", "int8_wo", "bf16"]
    scores = score(tmp_path, all_check=True)
    assert scores is not None
    assert list(scores.source[:2]) == ["aiconfigurator int8_wo"] * 2
    assert scores.predicted[0] > 1.5 * scores.predicted[1]
