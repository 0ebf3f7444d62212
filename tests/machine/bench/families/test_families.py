"""Each family for real, small, on this machine's processor."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuwise.errors import DeviceError, InputError
from gpuwise.machine.bench.cases import BenchCase
from gpuwise.machine.bench.prepared_case import NotHereError
from gpuwise.machine.bench.run import Limits, prepare_case, run_case
from gpuwise.machine.bench.subjects import accelerator_named, machine_id, pick_subjects, this_processor

torch = pytest.importorskip("torch")
PROCESSOR = this_processor()


def small(family: str, variant: str, dtype: str = "", **sizes: int) -> BenchCase:
    return BenchCase(family, variant, dtype, sizes)


ROWS = [
    small("matmul", "product", "fp32", m=64, n=48, k=32),
    small("matmul", "product", "bf16", m=64, n=48, k=32),
    small("attention", "prefill", "fp32", batch=1, heads=2, kv_heads=1, queries=32, keys=32, head_dim=16),
    small("attention", "decode", "fp32", batch=2, heads=2, kv_heads=1, queries=1, keys=32, head_dim=16),
    small("memory", "copy", bytes=2**16),
    small("memory", "triad", "fp32", bytes=2**16),
    small("launch", "eager", operations=1),
    small("loader", "images", workers=0),
    small("disk", "write", bytes=2**20),
    small("disk", "read", bytes=2**20),
    small("disk", "random-read", bytes=2**20),
]


@pytest.mark.parametrize("case", ROWS, ids=lambda c: c.key)
def test_a_family_measures_and_its_answer_is_right(case: BenchCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("gpuwise.machine.bench.families.loaders.BATCH", 2)
    monkeypatch.setattr("gpuwise.machine.bench.families.loaders.IMAGES", 4)
    record = run_case(case, PROCESSOR, Limits(0.05))
    assert record.failed is None
    assert record.correct is True
    assert record.value is not None
    assert record.value > 0
    assert record.error is not None
    assert record.error <= 1.0
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


def test_settings_of_pytorch_are_put_back() -> None:
    before = torch.get_float32_matmul_precision()
    work = prepare_case(replace(ROWS[0]), PROCESSOR)
    work.sample()
    work.close()
    assert torch.get_float32_matmul_precision() == before


@pytest.mark.thorough
def test_gloo_sums_over_two_real_processes() -> None:
    from gpuwise.machine.bench.families.collectives import run_ranks

    seconds, error = run_ranks("gloo", 2, 4096, "fp32")
    assert len(seconds) > 6
    assert min(seconds) > 0
    assert error <= 1.0


def test_a_rank_that_dies_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from gpuwise.machine.bench.families import collectives

    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(DeviceError, match="rank 0 failed"):
        collectives.run_ranks("gloo", 2, 4096, "fp32")


def test_a_rank_that_hangs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpuwise.machine.bench.families import collectives

    script = tmp_path / "hang"
    script.write_text("#!/bin/sh\nexec sleep 60\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    with pytest.raises(DeviceError, match="did not answer"):
        collectives.run_ranks("gloo", 2, 4096, "fp32", limit_s=0.2)


def test_what_a_machine_lacks_is_no_failure() -> None:
    for case in (
        small("matmul", "product", "fp8", m=16, n=16, k=16),
        small("loader", "images", workers=PROCESSOR.units + 1),
        small("disk", "read", bytes=2**60),
    ):
        with pytest.raises(NotHereError):
            run_case(case, PROCESSOR, Limits(0.05))


def test_without_pytorch_products_and_streams_are_numpys(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("products", "streams", "attention"):
        monkeypatch.setattr(f"gpuwise.machine.bench.families.{module}.has_torch", lambda: False)
    for case in (ROWS[0], ROWS[4], ROWS[5]):
        record = run_case(case, PROCESSOR, Limits(0.02))
        assert record.correct is True
        assert record.conditions["library"] == "numpy"
    with pytest.raises(NotHereError, match="PyTorch"):
        run_case(ROWS[2], PROCESSOR, Limits(0.02))


def test_a_disk_that_returns_other_bytes_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    real = os.read
    monkeypatch.setattr(os, "read", lambda handle, n: bytes(len(real(handle, n))))
    record = run_case(ROWS[-2], PROCESSOR, Limits(0.02))
    assert record.correct is False


def test_a_folder_that_cannot_be_written_is_a_named_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    record = run_case(ROWS[-3], PROCESSOR, Limits(0.02))
    assert "No space left" in (record.failed or "")
    assert list(tmp_path.iterdir()) == []


# --- which device is which ---


def test_names_of_drivers_find_their_card_by_memory() -> None:
    gib = 2**30
    assert accelerator_named("NVIDIA H100 80GB HBM3", 79.6 * gib, (9, 0)).id == "h100-sxm-80gb"  # type: ignore[union-attr]
    a100 = accelerator_named("NVIDIA A100-SXM4-40GB", 39.5 * gib, (8, 0))
    assert a100 is not None
    assert "40gb" in a100.id
    assert accelerator_named("NVIDIA GeForce RTX 4090", 23.6 * gib, (8, 9)).id == "rtx-4090"  # type: ignore[union-attr]


def test_a_card_that_cannot_be_what_its_name_says_is_unknown() -> None:
    assert accelerator_named("NVIDIA GeForce RTX 4090", 47.5 * 2**30, (8, 9)) is None, "a 4090 of 48 GB is none of the catalogue"
    assert accelerator_named("NVIDIA H100 80GB HBM3", 79.6 * 2**30, (7, 0)) is None
    assert accelerator_named("ACME Frobnicator", 10**10) is None


def test_devices_are_picked_by_name() -> None:
    found = [replace(PROCESSOR, kind="cuda", index=i, device=f"GPU-{i}") for i in range(2)] + [PROCESSOR]
    assert [s.label for s in pick_subjects(found, ("gpu",))] == ["gpu0", "gpu1"]
    assert [s.label for s in pick_subjects(found, ("1", "cpu", "cuda:1"))] == ["gpu1", "cpu"]
    with pytest.raises(InputError, match="gpu7") as caught:
        pick_subjects(found, ("gpu7",))
    assert "gpu0, gpu1, cpu" in (caught.value.hint or "")


def test_the_machine_has_a_name_that_tells_nothing() -> None:
    assert machine_id() == machine_id()
    assert len(machine_id()) == 16
    assert int(machine_id(), 16) >= 0
