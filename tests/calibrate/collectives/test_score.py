"""Reading, splitting and scoring collective tables, on small tables made here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gpuwise.calibrate.collectives import published as collectives_published
from gpuwise.calibrate.collectives import score as collectives
from gpuwise.calibrate.collectives.rows import read_rows
from gpuwise.calibrate.collectives.systems import BOXES, system_of
from gpuwise.errors import InputError
from gpuwise.interval import Z80
from gpuwise.predict.comm.collectives import curve
from gpuwise.predict.comm.fabric import MEASURED_SIZES, shipped
from studies.collectives import fit as collectives_fit
from studies.collectives import refit

pyarrow = pytest.importorskip("pyarrow")

SIZES = [512, 65536, 2**20, 2**26]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An aiconfigurator table of two GPUs whose times are the shipped curves' times 1.1."""
    import pyarrow.parquet

    rows: list[dict[str, object]] = []
    for gpu, version in (
        ("h100_sxm", "2.27.3"),
        ("h100_sxm", "2.29.2"),
        ("h200_sxm", "2.27.3"),
        ("toaster", "1"),
    ):
        for dtype, width in (("half", 2), ("int8", 1)):
            for op in ("all_reduce", "alltoall"):
                one = curve(system_of("h100_sxm"), op.replace("alltoall", "all_to_all"), 8, 8, element_bytes=width)
                for size in SIZES:
                    rows.append(
                        {
                            "gpu": gpu,
                            "table": "nccl_perf",
                            "lib": "nccl",
                            "ver": version,
                            "op_name": op,
                            "kernel_source": "NCCL",
                            "dtype": dtype,
                            "num_gpus": 8,
                            "message_size": size // width,
                            "latency_ms": 1.1e3 * float(one.time_s(size)),
                        }
                    )
    (tmp_path / "ops").mkdir()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "ops" / "collectives.parquet")
    return tmp_path


def test_message_sizes_are_elements_and_latencies_milliseconds(folder: Path):
    rows = read_rows(folder)
    assert rows is not None
    assert sorted(set(rows.payload_bytes)) == SIZES
    assert set(rows.op) == {"all_reduce", "all_to_all"}
    first = rows.where((rows.gpu == "h100_sxm") & (rows.element_bytes == 2) & (rows.op == "all_reduce"))
    expected = curve(system_of("h100_sxm"), "all_reduce", 8, 8).time_s(first.payload_bytes)
    assert np.allclose(first.seconds, 1.1 * expected)


def test_the_split_keeps_whole_sweeps_and_one_of_each_cell_to_fit(folder: Path):
    rows = read_rows(folder)
    assert rows is not None
    check = rows.is_check
    for cell in set(rows.cell):
        here = rows.cell == cell
        assert not check[here].all()
        for sweep in set(rows.sweep[here]):
            assert len(set(check[here & (rows.sweep == sweep)])) == 1
    assert check.any()


def test_scores_cover_every_row_and_say_why_not(folder: Path):
    scores = collectives.score(folder, all_check=True)
    rows = read_rows(folder)
    assert scores is not None and rows is not None
    assert len(scores.measured) == len(rows) and set(scores.split) == {"check"}
    known = np.array([not r for r in scores.reason])
    assert np.array_equal(known, rows.gpu != "toaster")
    h100 = rows.gpu == "h100_sxm"
    assert np.allclose(scores.predicted[h100] / scores.measured[h100], 1 / 1.1)
    assert np.all(scores.log_sigma[known] > 0)
    typed = collectives.score(folder, all_check=False)
    assert typed is not None and "nccl-tests published" in typed.source


def test_a_folder_without_tables_is_none_or_an_error(tmp_path: Path):
    assert collectives.score(tmp_path, all_check=True) is None
    with pytest.raises(InputError):
        refit.fit(tmp_path)


def test_published_figures_are_within_reach():
    figures = [*collectives_published.fitted_on(), *collectives_published.OTHERS]
    predicted, sigma = collectives.predict_published(figures, shipped())
    error = np.abs(np.log(predicted / np.array([f.seconds for f in figures])))
    assert np.median(error) < 0.06 and np.mean(error < 1.2816 * sigma) > 0.75


def test_shipped_tables_are_positive_and_grow():
    for name, table in shipped().tables.items():
        assert table.shape[1] == MEASURED_SIZES.size and np.all(table > 0), name
        assert np.all(np.diff(table, axis=1) >= 0), name


def test_shipped_tables_all_reduce_is_no_faster_than_its_half():
    tables = shipped().tables
    for name in collectives_fit.CLASSES:
        reduce, scatter = (tables.get(f"{name}.nccl.{op}") for op in ("all_reduce", "reduce_scatter"))
        if reduce is not None and scatter is not None:
            assert np.all(reduce >= scatter)


@pytest.mark.parametrize("box", list(BOXES))
def test_every_described_box_can_be_built(box: str):
    system = system_of(box)
    assert system.link_bytes_per_s > 0
    assert curve(system, "all_reduce", 2, 2).time_s(1e6) > 0


def test_a_machine_with_many_rows_does_not_decide_the_interval_alone() -> None:
    """Four hundred sizes swept on one good machine, one on each of a hundred others that are 10 % off."""
    log_ratio = np.concatenate([np.full(400, 1e-3), np.full(100, 0.1)])
    machine = np.array(["swept"] * 400 + [f"other {i}" for i in range(100)])
    assert refit._machine_sigma(log_ratio, machine) == pytest.approx(0.1 / Z80)
    assert refit._machine_sigma(log_ratio, np.array(["one"] * 500)) == pytest.approx(1e-3 / Z80)
