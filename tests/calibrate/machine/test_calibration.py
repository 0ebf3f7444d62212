"""This machine's coefficients: learned from records, better on shapes kept aside or left alone, and kept in a file."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwise.calibrate.machine.calibration import (
    coefficients_path,
    corrected_accelerator,
    fit_device,
    load,
    newest,
    save,
)
from gpuwise.calibrate.machine.devices import accelerator_from, processor_from
from gpuwise.calibrate.machine.fit import fit_correction, fit_family
from gpuwise.errors import DataError
from gpuwise.facts.hardware.accelerators import Accelerator, accelerators
from gpuwise.predict.cpu import matmul_time
from gpuwise.predict.kernels.corrections import LARGEST_LOG_FACTOR, evaluate
from gpuwise.predict.kernels.gemm.product import gemm_time
from gpuwise.predict.kernels.memory_bound import memory_time
from gpuwise.predict.step.host_time import host_scale, launch_time
from gpuwise.records.record import Record

RNG = np.random.default_rng(4)
SIDES = 2.0 ** RNG.integers(8, 14, size=(120, 3))
L40S = accelerators()["l40s"]


def products(accelerator: Accelerator, factor: np.ndarray, dtype: str = "bf16", n: int = 120) -> list[Record]:
    """Records of a card that takes ``factor`` [R] times what the model says."""
    sides = SIDES[:n]
    time = gemm_time(accelerator, dtype, *sides.T, implementation=dtype, cold=True, sustained=True).time_s * factor[:n]
    made: list[Record] = []
    for i, (side, seconds) in enumerate(zip(sides, time, strict=True)):
        m, n_, k = (int(x) for x in side)
        sizes = {"m": m, "n": n_, "k": k, "variant": "product"}
        made.append(
            Record(
                float(i),
                f"p{i}",
                "matmul",
                "GPU-1",
                "L40S",
                accelerator.id,
                dtype,
                sizes,
                "FLOP/s",
                2.0 * m * n_ * k / seconds,
                time_s=float(seconds),
                correct=True,
            )
        )
    return made


def constant(value: float) -> np.ndarray:
    return np.full(120, value) * np.exp(0.01 * np.random.default_rng(1).standard_normal(120))


def test_a_card_that_is_slower_by_a_fifth_everywhere_is_predicted_so_afterwards() -> None:
    found = fit_device(products(L40S, constant(1.2)), L40S)
    family = found.families["matmul/bf16"]
    assert family.correction is not None
    assert family.before is not None
    assert family.after is not None
    assert family.before == pytest.approx(1 - 1 / 1.2, abs=0.02)
    assert family.after < 0.03
    this = corrected_accelerator(L40S, found)
    shape = (3000.0, 5120.0, 2000.0)
    plain, own = (gemm_time(a, "bf16", *shape, cold=True, sustained=True) for a in (L40S, this))
    assert float(own.time_s[0] / plain.time_s[0]) == pytest.approx(1.2, rel=0.04)
    assert float(own.log_sigma[0]) < float(plain.log_sigma[0])
    assert own.basis == "fitted"
    half = gemm_time(this, "fp16", *shape, cold=True, sustained=True)
    assert float(half.time_s[0] / plain.time_s[0]) == pytest.approx(1.2, rel=0.04), "fp16 runs the same kernels"
    assert gemm_time(this, "int8", *shape).time_s == gemm_time(L40S, "int8", *shape).time_s, "int8 was not measured"


def test_what_depends_on_the_shape_is_learned_near_it_and_fades_far_from_it() -> None:
    slow_when_thin = np.exp(0.3 * (np.log2(SIDES[:, 0]) < 10))
    found = fit_device(products(L40S, slow_when_thin), L40S)
    family = found.families["matmul/bf16"]
    assert family.before is not None
    assert family.after is not None
    assert family.after < 0.6 * family.before
    assert family.correction is not None
    near, far = np.array([[8.0, 11.0, 11.0]]), np.array([[60.0, 60.0, 60.0]])
    assert evaluate(family.correction, near)[0][0] > 0.15
    far_factor, closeness = evaluate(family.correction, far)
    assert abs(far_factor[0]) < 0.2
    assert closeness[0] < 1e-6


def test_a_card_that_is_as_its_kind_is_left_alone() -> None:
    accepted = 0
    for seed in range(12):
        noise = np.exp(0.05 * np.random.default_rng(seed).standard_normal(60))
        found = fit_family("x", np.log2(SIDES[:60]), np.log(noise), [tuple(s[1:]) for s in SIDES[:60].tolist()], 0.08)
        accepted += found.correction is not None
        assert found.after is not None
        assert found.before is not None
        assert found.after <= found.before
    assert accepted <= 2


def test_few_measurements_move_it_less_than_many() -> None:
    moved = []
    for n in (1, 3, 30):
        y = np.full(n, 0.2) + 0.1 * np.random.default_rng(2).standard_normal(n)
        moved.append(float(evaluate(fit_correction(np.log2(SIDES[:n]), y, 0.08), np.array([[30.0, 30.0, 30.0]]))[0][0]))
    assert 0 <= moved[0] < moved[2]
    assert abs(moved[2] - 0.2) < 0.06


@settings(max_examples=settings().max_examples)
@given(st.lists(st.floats(-50, 50), min_size=2, max_size=12), st.floats(0.01, 0.5))
def test_whatever_was_measured_a_factor_stays_physical(logs: list[float], sigma: float) -> None:
    points = np.log2(SIDES[: len(logs)])
    found = fit_family("x", points, np.array(logs), list(range(len(logs))), sigma)
    if found.correction is not None:
        factor, _ = evaluate(found.correction, points)
        assert np.all(np.isfinite(factor))
        assert np.all(np.abs(factor) <= LARGEST_LOG_FACTOR)


def test_no_correction_makes_a_product_faster_than_the_card_can_be() -> None:
    this = corrected_accelerator(L40S, fit_device(products(L40S, constant(0.45)), L40S))
    side = 8192.0
    seconds = float(gemm_time(this, "bf16", side, side, side, cold=True, sustained=True).time_s[0])
    assert 2 * side**3 / seconds <= L40S.peak("bf16") * 1.2, "a peak may be quoted below the boost clock, by up to a fifth"


def test_wrong_failed_and_older_answers_teach_nothing() -> None:
    good, other = products(L40S, constant(1.0), n=2)
    rows = [
        replace(good, at_s=1.0),
        replace(good, at_s=9.0, value=2.0),
        replace(other, correct=False),
        replace(other, value=None, failed="out of memory", time_s=None),
    ]
    assert [r.value for r in newest(rows)] == [2.0]
    with pytest.raises(DataError, match="has not been measured"):
        fit_device(rows[2:], L40S)


def test_streams_and_copies_have_coefficients_of_their_own() -> None:
    sizes = [2**p for p in range(26, 31)]
    rows = []
    for i, size in enumerate(sizes):
        time = float(memory_time(L40S, float(size), float(size)).time_s[0]) * 1.3
        rows.append(
            Record(
                float(i),
                f"s{i}",
                "memory",
                "GPU-1",
                "L40S",
                "l40s",
                "",
                {"bytes": size, "variant": "copy"},
                "B/s",
                2 * size / time,
                time_s=time,
            )
        )
    found = fit_device(rows, L40S)
    assert set(found.families) == {"memory"}
    assert found.families["memory"].rows == 2, "streams as small as a few caches say nothing about memory"
    assert found.rates["memory"] > 0


# --- the file ---


def test_the_host_is_learned_from_launches() -> None:
    """launch-eager of a GPU, and not that of the processor alone or of a graph."""

    def launch(device: str, variant: str, seconds: float) -> Record:
        sizes = {"operations": 1, "variant": variant}
        name = f"launch-{variant}-1"
        return Record(1.0, name, "launch", device, "L40S", L40S.id, "", sizes, "s", seconds, time_s=seconds, correct=True)

    fits = fit_device([launch("GPU-1", "eager", 4e-6), launch("GPU-1", "graph", 1.2e-6)], L40S).families
    assert list(fits) == ["launch/eager"]
    desktop = corrected_accelerator(L40S, fit_device([launch("GPU-1", "eager", 4e-6)], L40S))
    assert float(launch_time(desktop).time_s[0]) == pytest.approx(4e-6, rel=0.05)
    assert host_scale(desktop) < 0.55 * host_scale(L40S)
    assert not fit_device([launch("cpu", "eager", 2.5e-6)], L40S).families


def test_what_was_learned_is_read_back(home: Path) -> None:
    assert load() == []
    found = fit_device(products(L40S, constant(1.2), n=20), L40S)
    assert save([found]) == coefficients_path() == home / "coefficients.json"
    assert load() == [found]
    other = replace(found, device="GPU-2")
    save([other])
    assert {d.device for d in load()} == {"GPU-1", "GPU-2"}
    save([replace(found, name="again")])
    assert [d.name for d in load() if d.device == "GPU-1"] == ["again"]


@pytest.mark.parametrize("text", ["{", "[]", '{"devices": [1]}', '{"schema": 1, "devices": [{"device": "x"}]}', "\x00\x01"])
def test_a_corrupt_file_gives_advice_not_numbers(home: Path, text: str) -> None:
    (home / "coefficients.json").write_text(text)
    with pytest.raises(DataError, match="corrupt") as caught:
        load()
    assert "--calibrate" in (caught.value.hint or "")


def test_points_without_weights_are_corrupt(home: Path) -> None:
    path = save([fit_device(products(L40S, constant(1.2), n=20), L40S)])
    document = json.loads(path.read_text())
    document["devices"][0]["families"]["matmul/bf16"]["correction"]["weights"].pop()
    path.write_text(json.dumps(document))
    with pytest.raises(DataError, match="corrupt"):
        load()


def test_a_newer_file_is_refused(home: Path) -> None:
    (home / "coefficients.json").write_text('{"schema": 99, "devices": []}')
    with pytest.raises(DataError, match="newer"):
        load()


# --- devices of no catalogue ---


def unknown(found: object, **more: object) -> Accelerator:
    said = {
        "name": "ACME 9000",
        "vendor": "NVIDIA",
        "memory_bytes": 24 * 2.0**30,
        "capability": (8, 9),
        "units": 60,
        "clock_hz": 2.4e9,
        "power_w": 300.0,
        "l2_bytes": 32 * 2.0**20,
        "unified_memory": False,
        "pcie": (4, 16),
    }
    return accelerator_from(found, **{**said, **more})  # type: ignore[arg-type]


def test_a_card_of_no_catalogue_takes_its_measured_rates_and_what_its_driver_says() -> None:
    found = replace(fit_device(products(L40S, constant(1.0), n=20), None), rates={"bf16": 150e12, "fp32": 40e12, "memory": 7e11})
    made = unknown(found)
    assert made.peak("bf16") == 150e12
    assert made.memory_bandwidth_bytes_per_s == 7e11
    assert made.family == "Ada"
    assert "measured" in made.source
    side = 8192.0
    seconds = float(gemm_time(made, "bf16", side, side, side).time_s[0])
    assert 0.4 * 150e12 < 2 * side**3 / seconds <= 1.2 * 150e12


def test_a_card_of_no_catalogue_that_was_not_measured_gives_no_number() -> None:
    with pytest.raises(DataError, match="not measured") as caught:
        unknown(None)
    assert "bench --calibrate" in (caught.value.hint or "")
    found = replace(fit_device(products(L40S, constant(1.0), n=3), None), rates={"bf16": 1e14, "memory": 1e12})
    with pytest.raises(DataError, match="does not report the memory"):
        unknown(found, memory_bytes=None)


def test_a_processor_computes_as_it_was_measured() -> None:
    found = replace(fit_device(products(L40S, constant(1.0), n=3), None), name="Some CPU", rates={"fp32": 2e11, "memory": 2e10})
    cpu = processor_from(found, None, 4)
    seconds = matmul_time(cpu, "fp32", 4096, 4096, 4096).time_s.expected
    assert 2 * 4096**3 / seconds == pytest.approx(2e11, rel=0.1)
    assert cpu.cores == 4
    assert (cpu.vendor, cpu.family, cpu.allcore_hz) == ("unknown", "unknown", None)  # no other processor's
    assert processor_from(replace(found, name="AMD EPYC"), None, 4).vendor == "AMD"
    assert math.isfinite(cpu.memory_bandwidth_bytes_per_s)
    with pytest.raises(DataError, match="not measured"):
        processor_from(replace(found, rates={"fp32": 2e11}), None, 4)


def test_the_short_way_gives_what_solving_the_whole_matrix_gives() -> None:
    points, y = np.log2(SIDES[:30]), 0.1 + 0.05 * np.random.default_rng(3).standard_normal(30)
    found = fit_correction(points, y, 0.1)
    alike = np.exp(-((points[:, None] - points[None]) ** 2).sum(-1) / (2 * found.length**2))
    covariance = found.constant_variance + found.shape_variance * alike + found.log_sigma**2 * np.eye(30)
    assert np.allclose(found.weights, np.linalg.solve(covariance, y), rtol=1e-6, atol=1e-9)


def test_times_of_any_shape_are_corrected() -> None:
    this = corrected_accelerator(L40S, fit_device(products(L40S, constant(1.2), n=20), L40S))
    streams = replace(this, corrections={"memory": fit_correction(np.array([[28.0], [29.0]]), np.array([0.2, 0.2]), 0.2)})
    sizes = np.full((3, 1, 2), 2.0**29)
    assert memory_time(streams, sizes, sizes).time_s.shape == memory_time(L40S, sizes, sizes).time_s.shape
