"""Arrays of coefficients: what is written is what is read, the same bytes each time, and no larger than numpy's own."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gpuwise.predict.coefficients import coefficient_path
from studies.coefficient_files import write_arrays


def test_arrays_are_read_as_they_were_written(tmp_path: Path) -> None:
    with np.load(coefficient_path("collectives.npz")) as file:
        arrays = {name: file[name] for name in file.files[:5]}
    ours, again, numpys = (tmp_path / name for name in ("ours.npz", "again.npz", "numpys.npz"))
    write_arrays(ours, arrays)
    write_arrays(again, dict(arrays))
    np.savez_compressed(numpys, **arrays)
    with np.load(ours) as file:
        assert file.files == list(arrays)
        for name, array in arrays.items():
            assert file[name].dtype == array.dtype
            np.testing.assert_array_equal(file[name], array)
    assert ours.read_bytes() == again.read_bytes()
    assert ours.stat().st_size <= numpys.stat().st_size
