"""Scoring expert layers from a table laid out like the published one."""

from pathlib import Path

import numpy as np
import pytest

from gpuwise.calibrate.experts.rows import read_moe
from gpuwise.calibrate.experts.score import score
from gpuwise.facts.hardware.accelerators import accelerators
from gpuwise.predict.kernels.experts.grouped import moe_layer_time
from studies.experts.fit import fit_rows, settings

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def table(**changed: list[object]) -> dict[str, list[object]]:
    return {
        "gpu": ["h100_sxm", "gb300", "a100_sxm", "h100_sxm"],
        "bver": ["0.5.14"] * 4,
        "kernel_source": ["sglang_fused_moe_triton", "sglang_flashinfer_trtllm_moe", "x", "sglang_fused_moe_triton"],
        "moe_dtype": ["bfloat16", "nvfp4", "fp8", "bfloat16"],
        "distribution": ["balanced", "power_law_1.01", "balanced", "power_law_1.2"],
        "num_tokens": [64, 64, 64, 64],
        "hidden_size": [4096, 7168, 7168, 2688],
        "inter_size": [1536, 2048, 2048, 1856],
        "topk": [8, 8, 8, 6],
        "num_experts": [128, 256, 256, 128],
        "moe_tp_size": [1] * 4,
        "moe_ep_size": [1] * 4,
        "latency_ms": [1.65, 0.6, 1.0, 1.0],
    } | changed


def write(folder: Path, rows: dict[str, list[object]]) -> Path:
    (folder / "ops").mkdir()
    columns = {n: pa.array(v) for n, v in rows.items()}
    columns["gpu"] = columns["gpu"].dictionary_encode()
    pq.write_table(pa.table(columns), folder / "ops" / "moe.parquet")
    return folder


def test_every_row_is_scored_or_has_a_reason(tmp_path: Path) -> None:
    scores = score(write(tmp_path, table()), all_check=True)
    assert scores is not None
    assert [bool(r) for r in scores.reason] == [False, False, True, False]
    assert list(scores.source) == ["aiconfigurator bf16", "aiconfigurator nvfp4", "aiconfigurator fp8", "aiconfigurator bf16"]
    direct = moe_layer_time(
        accelerators()["h100-sxm-80gb"], "bf16", 64, 4096, 1536, 8, 128, implementation="sglang_fused_moe_triton"
    )
    assert scores.predicted[0] == pytest.approx(direct.time_s[0])
    assert scores.predicted[0] == pytest.approx(scores.measured[0], rel=0.2)
    assert np.isfinite(scores.baseline[[0, 1, 3]]).all()


def test_models_known_to_differ_are_read_so(tmp_path: Path) -> None:
    rows = read_moe(write(tmp_path, table(distribution=["balanced"] * 4)))
    assert rows is not None
    assert rows.wide.tolist() == [2.0, 2.0, 2.0, 1.0]
    assert rows.reachable.tolist() == [1.0, 0.5, 1.0, 1.0]
    assert rows.distribution.distinct() == ["balanced"]


def test_no_table_no_scores(tmp_path: Path) -> None:
    assert score(tmp_path, all_check=False) is None


def test_few_shapes_get_stiff_trees() -> None:
    assert settings(1000, 10).trees < settings(10_000, 10).trees
    assert settings(10_000, 1).depth < settings(10_000, 10).depth


def test_a_whole_fit_follows_its_rows(tmp_path: Path) -> None:
    pytest.importorskip("scipy")
    tokens = [int(t) for t in np.exp2(np.arange(0, 14, 0.25))]
    n = len(tokens)
    h100 = accelerators()["h100-sxm-80gb"]
    time = moe_layer_time(h100, "bf16", tokens, 4096, 1536, 8, 128).time_s * 1e3
    rows = read_moe(
        write(
            tmp_path,
            {
                "gpu": ["h100_sxm"] * n,
                "bver": ["1"] * n,
                "kernel_source": ["k"] * n,
                "moe_dtype": ["bfloat16"] * n,
                "distribution": ["balanced"] * n,
                "num_tokens": tokens,
                "hidden_size": [4096] * n,
                "inter_size": [1536] * n,
                "topk": [8] * n,
                "num_experts": [128] * n,
                "moe_tp_size": [1] * n,
                "moe_ep_size": [1] * n,
                "latency_ms": [float(t) for t in time],
            },
        )
    )
    assert rows is not None
    document, arrays = fit_rows(rows)
    assert document["physics"]["bf16"]["k"]["Hopper"]["devices"] == ["h100-sxm-80gb"]
    assert "bf16/k/Hopper" in arrays
