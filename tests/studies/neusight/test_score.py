"""Single fp32 kernels of the NeuSight study: what the machine takes at least is read from its own rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gpuwise.calibrate.validation import summarise
from studies.neusight.host import host_floor_s, launch_growth_s
from studies.neusight.score import score
from studies.neusight.tables import OpRows


def rows(floor_s: float, n: int = 400) -> tuple[OpRows, np.ndarray]:
    """Additions of growing length on a machine that takes ``floor_s`` for each, and what the device takes."""
    lengths = np.round(np.geomspace(1e3, 1e8, n))
    device_s = 2e-6 + 12.0 * lengths / 5e11
    shape = np.column_stack([np.ones(n), lengths, np.zeros(n), np.zeros(n)])
    op = np.full(n, "add", dtype=object)
    return OpRows(np.full(n, "Tesla T4", dtype=object), op, shape, np.maximum(device_s, floor_s)), device_s


@pytest.mark.parametrize("floor_s", [15e-6, 25e-6, 55e-6])
def test_the_machine_is_told_by_its_shortest_rows(floor_s: float) -> None:
    table, device_s = rows(floor_s)
    assert host_floor_s(table, device_s) == pytest.approx(floor_s)


def test_long_rows_say_nothing_of_the_machine() -> None:
    table, device_s = rows(25e-6)
    long = device_s > 1e-3
    assert host_floor_s(table.select(long), device_s[long]) == 0.0
    assert host_floor_s(table.select(table.site == 1), device_s[table.site == 1]) == 0.0


def test_launching_that_grows_with_the_run_is_read_from_the_run() -> None:
    n = 4000
    random = np.random.default_rng(3)
    shape = np.floor(random.uniform(3, 60, (n, 4)))
    device_s = 1e-5 * np.exp(random.normal(3.0, 1.5, n))
    launch_s = np.linspace(50e-6, 700e-6, n)
    noise = np.exp(random.normal(0.0, 0.05, n))
    table = OpRows(np.full(n, "Tesla T4", dtype=object), np.full(n, "conv", dtype=object), shape, device_s * noise + launch_s)
    assert launch_growth_s(table, device_s) == pytest.approx(launch_s, rel=0.1, abs=3e-5)
    steady = OpRows(table.gpu, table.op, shape, device_s + 60e-6)
    assert launch_growth_s(steady, device_s) == pytest.approx(np.full(n, 60e-6))
    assert np.all(launch_growth_s(steady.select(table.site == 1), device_s[table.site == 1]) == 0.0)


def test_score_tells_machines_apart(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    import pyarrow as pa
    import pyarrow.parquet as parquet

    assert score(tmp_path, False) is None
    (tmp_path / "ops").mkdir()
    columns: dict[str, list[object]] = {name: [] for name in ("gpu", "op", "b", "h", "measured_ms")}
    for gpu, floor_s in (("Tesla T4", 20e-6), ("Tesla V100-PCIE-32GB", 60e-6), ("Imaginary GPU", 20e-6)):
        table, _ = rows(floor_s)
        for shape, measured_s in zip(table.shape, table.measured_s, strict=True):
            for name, value in zip(columns, (gpu, "add", shape[0], shape[1], measured_s * 1e3), strict=True):
                columns[name].append(value)
    empty = dict.fromkeys(("m", "n", "k", "input_channel", "output_channel", "input_size"), [float("nan")] * 1200)
    parquet.write_table(pa.table(columns | empty), tmp_path / "ops" / "neusight_fp32.parquet")
    scores = score(tmp_path, True)
    assert scores is not None and set(scores.split) == {"check"}
    total = next(r for r in summarise("neusight", scores) if r.gpu is None)
    assert total.rows == 1200 and total.unpredicted == {"accelerator not in the catalogue": 400}
    for gpu, floor_s in (("Tesla T4", 20e-6), ("Tesla V100-PCIE-32GB", 60e-6)):
        short = (np.array(scores.gpu) == gpu) & (scores.measured < 1.01 * floor_s)
        assert np.median(scores.predicted[short] / scores.measured[short]) == pytest.approx(1.0, abs=0.15)
