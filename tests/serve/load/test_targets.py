"""Latency targets as one writes them."""

from __future__ import annotations

import pytest

from gpuwise.errors import InputError
from gpuwise.serve.load.targets import Attainment, Target, parse_targets


def test_targets_are_read_with_their_percentiles() -> None:
    found = parse_targets("ttft_p95=1s, itl_p99=50ms,e2e_mean=10s,tpot=30ms")
    assert found == (
        Target("ttft", 95, 1.0),
        Target("itl", 99, 0.05),
        Target("e2e", None, 10.0),
        Target("tpot", 95, 0.03),
    )
    assert [t.key for t in found] == ["ttft_p95", "itl_p99", "e2e_mean", "tpot_p95"]
    assert found[0].words == "p95 time to first token within 1 s"


def test_a_target_is_met_up_to_its_limit_and_by_nothing_that_was_not_reached() -> None:
    target = Target("ttft", 95, 1.0)
    assert Attainment(target, 1.0).met
    assert not Attainment(target, 1.01).met
    assert not Attainment(target, None).met
    assert Attainment(target, 1.5).ratio == 1.5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not a target"),
        ("ttft_p95", "not a target"),
        ("ttft_p95=", "not a target"),
        ("speed_p95=1s", "unknown latency"),
        ("ttft_p0=1s", "neither mean nor"),
        ("ttft_p100=1s", "neither mean nor"),
        ("ttft_median=1s", "neither mean nor"),
        ("ttft_p95=soon", "not a duration"),
        ("ttft_p95=-1s", "not a duration"),
        ("ttft_p95=0s", "not above zero"),
        ("ttft_p95=1s,ttft_p95=2s", "twice"),
    ],
)
def test_what_is_no_target_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_targets(text)
