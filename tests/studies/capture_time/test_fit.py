"""The fit finds factors and constants that made the times it is given."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("scipy")

from gpuwise.facts.hardware.naming import find_accelerator
from gpuwise.predict.coefficients import load_json
from gpuwise.predict.kernels.conditions import Conditions
from gpuwise.workload.row_codes import Kind, Phase
from gpuwise.workload.step import OpTableBuilder
from studies.capture_time.fit import (
    CONVOLUTIONS,
    FAMILY_FACTORS,
    LEAST_ON_MEMORY,
    constants_of,
    factors_of,
    fit_constants,
    parameters_of,
    predicted,
    values_of,
)
from studies.capture_time.problem import Part, Problem

CARDS = ("sm_86", "sm_89")
FAMILIES = (*FAMILY_FACTORS, "matmul", "fused")
TRUE = {"sm_86": {"matmul": 0.84, "elementwise": 1.2, "norm": 1.4}, "sm_89": {"matmul": 0.97, "elementwise": 1.2, "norm": 1.4}}


def convolutions(n: int, card: str, first: int) -> Part:
    """One convolution of 3 x 3 in each of ``n`` networks, of growing width."""
    rows = OpTableBuilder()
    for i in range(n):
        width = 32 * (1 + i % 16)
        shape = (64, width, width, 28, 28, 9, 1)
        flop = 2.0 * 64 * 28 * 28 * width * width * 9
        moved = 2.0 * 64 * 28 * 28 * width
        rows.add(
            "c",
            Kind.CONVOLUTION,
            Phase.FORWARD,
            "fp16",
            shape,
            flop=flop,
            read_bytes=moved,
            written_bytes=moved,
            family="convolution",
        )
    accelerator = find_accelerator({"sm_86": "RTX 3090", "sm_89": "RTX 4090"}[card])
    return Part(
        accelerator, Conditions(emulated=True), rows.build(), np.ones(n, bool), np.arange(first, first + n), np.full(n, 20.0)
    )


def problem(constants: dict[str, Any] | None = None) -> Problem:
    """Sixty made-up networks on two cards, whose products, pointwise operations and norms have factors."""
    rng = np.random.default_rng(20261121)
    n = 60
    seconds = np.zeros((2 * n, len(FAMILIES)))
    for family in ("matmul", "elementwise", "norm"):
        seconds[:, FAMILIES.index(family)] = np.tile(rng.uniform(1e-3, 1e-2, n), 2)
    p = Problem(
        families=FAMILIES,
        seconds=seconds,
        fixed=np.full(2 * n, 1e-3),
        host_s=np.zeros(2 * n),
        parts=tuple(convolutions(n, card, i * n) for i, card in enumerate(CARDS)),
        card=np.repeat(np.array(CARDS, dtype=object), n),
        at=np.arange(2 * n),
        gpu=np.repeat(np.array(["a", "b"], dtype=object), n),
        compiled=np.zeros(2 * n, bool),
        measured=np.ones(2 * n),
        network=np.tile(np.array([f"net{i}" for i in range(n)], dtype=object), 2),
    )
    p.measured[:] = predicted(p, TRUE, load_json("captured_kernels") if constants is None else constants)
    return p


def test_times_made_by_factors_are_found_again() -> None:
    p = problem()
    everything = np.ones(len(p.measured), bool)
    factors, constants = fit_constants(p, everything, load_json("captured_kernels"))
    assert np.abs(predicted(p, factors, constants) / p.measured - 1.0).mean() < 0.02
    assert factors["sm_86"]["matmul"] == pytest.approx(0.84, rel=0.08)
    assert factors["sm_89"]["matmul"] == pytest.approx(0.97, rel=0.08)


def test_slower_convolutions_are_the_convolutions() -> None:
    slow = {**load_json("captured_kernels")}
    slow["efficiency"] = {**slow["efficiency"], "spatial": 0.6 * slow["efficiency"]["spatial"]}
    p = problem(slow)
    everything = np.ones(len(p.measured), bool)
    factors, constants = fit_constants(p, everything, load_json("captured_kernels"))
    assert np.abs(predicted(p, factors, constants) / p.measured - 1.0).mean() < 0.02
    rate = constants["architecture"]["rate"]["sm_86"] * constants["efficiency"]["spatial"]
    assert rate < 0.8 * load_json("captured_kernels")["architecture"]["rate"]["sm_86"] * slow["efficiency"]["spatial"] / 0.6


def test_a_card_without_rows_has_no_factors() -> None:
    p = problem()
    only = p.gpu == "a"
    factors, constants = fit_constants(p, only, load_json("captured_kernels"), rounds=2)
    assert set(factors) == {"sm_86"}
    alone = sum(part.seconds(constants, len(p.card)) for part in p.parts)
    assert predicted(p, factors, constants)[~only] == pytest.approx((p.seconds.sum(axis=1) + 1e-3 + alone)[~only])


def test_the_host_bounds_a_step_of_many_small_kernels() -> None:
    p = problem()
    p.host_s[:] = 10.0
    assert predicted(p, TRUE, load_json("captured_kernels")) == pytest.approx(10.0, rel=0.01)


def test_no_stream_is_faster_than_the_memory() -> None:
    value = values_of(np.full(len(parameters_of(["sm_86"])), np.log(0.5)), ["sm_86"])
    low = factors_of(value, ["sm_86"])["sm_86"]
    assert low["copy"] == low["elementwise"] == LEAST_ON_MEMORY
    assert low["matmul"] == pytest.approx(0.5)


def test_every_constant_has_its_place() -> None:
    shipped = load_json("captured_kernels")
    cards = ["sm_86", "sm_89"]
    value = values_of(np.log([v[0] for v in parameters_of(cards).values()]), cards)
    made = constants_of(value, cards, shipped)
    assert made.keys() == shipped.keys()
    for name in CONVOLUTIONS:
        group, _, one = name.partition(".")
        assert (made[group][one] if one else made[group]) == pytest.approx(CONVOLUTIONS[name][0])
    assert made["architecture"]["rate"]["other"] == shipped["architecture"]["rate"]["other"]
