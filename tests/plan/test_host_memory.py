"""The memory of a host that a person states: what is offloaded has to fit it."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwise.errors import InputError
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.hardware.systems import with_host_memory
from gpuwise.plan.api import make_fit, make_plan
from gpuwise.plan.document import answer_document
from gpuwise.plan.goal import Wishes
from gpuwise.plan.plan_file import job_of_document
from gpuwise.units import GIB

GB = 1e9

OFFLOADED = Wishes(fixed={"sharding": "zero3", "offload_optimizer": True})


def on(host_bytes: float | None, wishes: Wishes = OFFLOADED) -> Wishes:
    return replace(wishes, host_memory_bytes=host_bytes)


def test_what_is_offloaded_fits_the_stated_memory_or_nothing_does() -> None:
    usual = make_fit("llama-3.1-8b", "4xh100-sxm", OFFLOADED).estimate
    assert usual.fits and usual.host_bytes > 8.03e9 * 12  # fp32 weights and two moments, and gradients
    least = usual.host_bytes / 0.8
    for stated, fits in ((0.99 * least, False), (1.01 * least, True)):
        found = make_fit("llama-3.1-8b", "4xh100-sxm", on(stated)).estimate
        assert found.fits is fits and found.host_limit_bytes == pytest.approx(0.8 * stated)
        assert found.device_bytes == usual.device_bytes and found.step_time_s == usual.step_time_s


def test_the_default_is_the_system_s_own() -> None:
    system = find_cluster("4xh100-sxm").system
    own, stated = (make_fit("llama-3.1-8b", "4xh100-sxm", on(host)).estimate for host in (None, system.host_memory_bytes))
    assert own == stated
    plain, small = (make_fit("llama-3.1-8b", "4xh100-sxm", on(host, Wishes())).estimate for host in (None, 16 * GB))
    assert plain.host_bytes == 0 and replace(small, host_limit_bytes=plain.host_limit_bytes) == plain


@given(st.floats(1.0, 2048.0), st.floats(1.0, 2048.0))
def test_more_memory_never_makes_a_plan_slower(a: float, b: float) -> None:
    less, more = sorted((a, b))
    tokens = Wishes(tokens=1e8, stack="deepspeed")
    times = []
    for stated in (less, more):
        best = make_plan("llama-3.2-1b", "2x4060-ti-16gb", on(stated * GIB, tokens)).best
        times.append(math.inf if best is None else best.time_s.expected)
    assert times[1] <= times[0] * (1 + 1e-9)


def test_a_plan_offloads_only_what_the_host_holds() -> None:
    asked = Wishes(tokens=1e8, seq_len=2048)
    roomy, small = (make_plan("llama-3.1-8b", "1x4090", on(stated, asked)) for stated in (512 * GB, 32 * GB))
    assert roomy.best is not None and roomy.best.estimate.host_bytes > 0.8 * 32 * GB
    assert small.best is None or small.best.estimate.host_bytes <= 0.8 * 32 * GB
    document = json.loads(msgspec.json.encode(answer_document(roomy)))
    assert job_of_document(document).cluster.system.stated_host_memory_bytes == 512 * GB


@pytest.mark.parametrize("stated", [0.0, -1.0, math.nan, math.inf, 65 * 1024 * GIB])
def test_memory_that_no_host_has_is_refused(stated: float) -> None:
    with pytest.raises(InputError):
        make_fit("llama-3.1-8b", "4090", on(stated, Wishes()))


def test_shared_memory_is_that_of_the_device() -> None:
    with pytest.raises(InputError, match="shares its memory with the host") as refused:
        with_host_memory(find_cluster("M3 Max"), 64 * GB)
    assert "--on" in (refused.value.hint or "")


def test_a_stated_memory_is_not_assumed() -> None:
    cluster = find_cluster("8x4090")
    assert "host_memory_gib" in cluster.system.assumed
    assert "host_memory_gib" not in with_host_memory(cluster, 256 * GB).system.assumed
