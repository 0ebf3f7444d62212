"""Measured tables a person points us at: any CSV, any Parquet, any values in the columns asked for."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwise.calibrate.llm_training.rows import read_rows
from gpuwise.calibrate.tables import read_columns
from gpuwise.errors import DataError, GpuwiseError

COLUMNS = (
    "source",
    "model",
    "gpu",
    "sharding",
    "precision",
    "act_ckpt",
    "attn",
    "compile",
    "software",
    "task",
    "notes",
    "memory_kind",
    "derived",
    "params",
    "n_layers",
    "hidden",
    "ffn",
    "heads",
    "kv_heads",
    "vocab",
    "seq_len",
    "n_gpus",
    "tp",
    "pp",
    "vpp",
    "dp",
    "cp",
    "ep",
    "micro_batch",
    "grad_accum",
    "global_batch",
    "tokens_per_s_per_gpu",
    "step_time_s",
    "memory_gb",
)
RUN = {
    "source": "somebody",
    "model": "gpt-3b",
    "gpu": "A100-80GB",
    "sharding": "FSDP",
    "precision": "bf16",
    "act_ckpt": "full",
    "software": "PyTorch FSDP",
    "memory_kind": "reserved GiB",
    "n_layers": "4",
    "hidden": "512",
    "ffn": "2048",
    "heads": "8",
    "vocab": "50257",
    "seq_len": "1024",
    "n_gpus": "8",
    "tp": "1",
    "pp": "1",
    "micro_batch": "2",
    "global_batch": "16",
    "step_time_s": "0.2",
    "memory_gb": "11.5",
}
CELLS = st.sampled_from(
    (
        "",
        "0",
        "-1",
        "nan",
        "inf",
        "1e30",
        "1.5",
        "3",
        "8",
        "x",
        "OOM",
        "H100",
        "4090",
        "llama3-8b",
        "nemotron-h",
        "1e-9",
        '"',
        "½",
    )
)


def _table(folder: Path, rows: list[dict[str, str]]) -> Path:
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, restval="")
    writer.writeheader()
    writer.writerows(rows)
    folder.mkdir(exist_ok=True)
    (folder / "llm_training.csv").write_text(text.getvalue())
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("measured")


def test_a_sound_run_is_understood(folder: Path) -> None:
    (row,) = read_rows(_table(folder, [RUN])) or []
    assert row.reason == "" and row.strategy is not None and row.strategy.dp == 8
    assert row.memory_bytes == 11.5 * 2**30


@settings(max_examples=3 * settings().max_examples)
@given(st.lists(st.dictionaries(st.sampled_from(COLUMNS), CELLS, max_size=4), min_size=1, max_size=4))
def test_rows_are_understood_or_say_why_not(folder: Path, changes: list[dict[str, str]]) -> None:
    try:
        rows = read_rows(_table(folder, [RUN | change for change in changes]))
    except GpuwiseError as error:
        assert error.message
        return
    assert rows is not None and len(rows) == len(changes), "a row was dropped"
    for row in rows:
        understood = None not in (row.architecture, row.system, row.strategy)
        assert understood != bool(row.reason), "a row without an answer and without a reason"


@given(
    st.binary(max_size=200) | st.sampled_from((b"a,b\n1,2\n", b"\xff\xfe", b"PAR1" * 9, b"")),
    st.sampled_from(("csv", "parquet")),
)
def test_any_bytes(folder: Path, raw: bytes, suffix: str) -> None:
    path = folder / f"any.{suffix}"
    path.write_bytes(raw)
    with pytest.raises(DataError):
        read_columns(path, {"time_s": "float", "n": "int", "gpu": "str"})


@given(st.lists(CELLS, min_size=1, max_size=4))
def test_columns_of_the_wrong_type(folder: Path, cells: list[str]) -> None:
    import pyarrow as pa
    import pyarrow.parquet

    pyarrow.parquet.write_table(pa.table({"time_s": cells}), folder / "typed.parquet")
    try:
        columns = read_columns(folder / "typed.parquet", {"time_s": "float"})
    except DataError:
        return
    assert columns is not None and columns["time_s"].dtype == np.float64


def test_a_table_that_is_not_there_is_none(folder: Path) -> None:
    assert read_columns(folder / "none.csv", {"a": "float"}) is None
