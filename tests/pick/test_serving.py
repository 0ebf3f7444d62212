"""Serving: formats by room and speed, replicas by load, bounds below predictions."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwise.errors import UnpredictableError
from gpuwise.facts.hardware.accelerators import accelerators
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.catalogue import find_model
from gpuwise.pick.jobs import serving_job
from gpuwise.pick.serving import Service, TooLargeToServe, can_serve, least_replicas, least_token_s, serve_on, tier_of

EIGHT, SEVENTY = find_model("llama-3.1-8b"), find_model("llama-3.1-70b")


def served(job_of: object, name: str) -> Service:
    cluster = find_cluster(name)
    got = serve_on(job_of, cluster, cluster.n_accelerators)  # type: ignore[arg-type]
    assert isinstance(got, Service)
    return got


def test_the_widest_format_that_fits_is_taken() -> None:
    job = serving_job(EIGHT, bits=(16, 8, 4))
    assert served(job, "rtx-4090").bits == 16
    assert served(job, "rtx-3060-12gb").bits == 8
    assert served(job, "rtx-3070").bits == 4


def test_a_format_too_slow_to_read_gives_way_to_a_narrower_one() -> None:
    job = serving_job(SEVENTY, bits=(16, 8, 4))
    assert served(job, "apple-m2-ultra").bits < 16
    patient = serving_job(SEVENTY, bits=(16, 8, 4), least_tokens_per_s=1.0)
    assert served(patient, "apple-m2-ultra").bits == 16


def test_all_hardware_is_compared_in_one_format() -> None:
    alone, several = serving_job(EIGHT), serving_job(EIGHT, users=8)
    for name in ("rtx-3060-12gb", "rtx-3070", "rtx-4090", "h100-sxm-80gb"):
        assert served(alone, name).bits == 4, "more memory is no reason to read more"
    assert {served(several, name).bits for name in ("rtx-4090", "h100-sxm-80gb")} == {8}
    assert tier_of(alone, 4) == 0 and tier_of(several, 4) == 1


def test_what_does_not_fit_says_by_how_much() -> None:
    got = serve_on(serving_job(SEVENTY), find_cluster("rtx-4090"), 1)
    assert isinstance(got, TooLargeToServe) and 10e9 < got.short_bytes < 30e9


@settings(deadline=None, max_examples=15)
@given(st.sampled_from(["h100-sxm-80gb", "l4", "rtx-4090", "mi300x"]), st.floats(1e3, 1e7))
def test_replicas_grow_with_the_load_and_never_undercut_the_bound(name: str, requests: float) -> None:
    job, double = (serving_job(EIGHT, requests_per_day=r) for r in (requests, 2 * requests))
    one, two = served(job, name), served(double, name)
    assert one.replicas <= two.replicas <= 2 * one.replicas
    assert one.replicas >= least_replicas(job, accelerators()[name], 1)


@pytest.mark.parametrize("name", ["rtx-4090", "rtx-3060-12gb", "apple-m4", "h100-sxm-80gb", "t4", "mi300x", "rx-7900-xtx"])
def test_no_prediction_beats_the_bound(name: str) -> None:
    job = serving_job(EIGHT)
    assert 1 / served(job, name).tokens_per_s.expected >= least_token_s(job, accelerators()[name], 1)


def test_more_users_are_each_slower_and_together_faster() -> None:
    one, many = served(serving_job(EIGHT, users=2), "h100-sxm-80gb"), served(serving_job(EIGHT, users=32), "h100-sxm-80gb")
    assert many.tokens_per_s.expected < one.tokens_per_s.expected
    assert many.capacity_tokens_per_s > one.capacity_tokens_per_s


def test_a_vendor_the_fit_never_saw_is_marked() -> None:
    got = served(serving_job(EIGHT, context=2048), "snapdragon-8-elite-hexagon")
    assert got.tokens_per_s.basis == "extrapolated" and got.replica.notes


def test_where_no_engine_runs_several_users_are_not_served() -> None:
    with pytest.raises(UnpredictableError):
        serve_on(serving_job(EIGHT, requests_per_day=1000), find_cluster("p40"), 1)
    assert not can_serve(serving_job(EIGHT, users=2), accelerators()["p40"])
    assert served(serving_job(EIGHT), "p40").replica.program == "llama.cpp"
