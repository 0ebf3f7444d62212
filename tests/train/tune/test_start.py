"""What ``gpuwise run`` takes to start, measured."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gpuwise.train.tune.start import start_of_run

pytest.importorskip("torch")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="the system does not tell")
def test_the_start_of_run_is_part_of_a_second_and_no_levers_fail(tmp_path: Path) -> None:
    start_s = start_of_run(tmp_path, {"fused_optimizer": True})
    assert start_s is not None and 0.0 <= start_s < 5.0
    assert start_of_run(tmp_path, {"no_such_lever": True}) is None
