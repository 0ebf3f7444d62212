"""No operation is faster than the data sheet allows, interval included, but where the cache that holds its data is named."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwise.errors import GpuwiseError
from gpuwise.facts.hardware.accelerators import accelerators
from gpuwise.facts.hardware.targets import find_target
from gpuwise.plan import one_op
from gpuwise.plan.op_document import document as op_document

_DEVICES = st.sampled_from(sorted(accelerators()))
_POWERS = st.integers(0, 14).map(lambda n: 2**n)
_SIZES = st.floats(3, 11).map(lambda n: 10.0**n)
_KINDS = st.one_of(
    st.tuples(st.just("matmul"), _POWERS, _POWERS, _POWERS, st.sampled_from(one_op.DTYPES), st.sampled_from([1, 8, 64])),
    st.tuples(
        st.just("attention"),
        st.sampled_from([1, 2, 8, 64]),
        st.sampled_from([1, 8, 32]),
        st.sampled_from([64, 512, 2048, 8192, 32768]),
        st.sampled_from([32, 64, 80, 96, 128, 256]),
        st.sampled_from(one_op.ATTENTION_DTYPES),
        st.booleans(),
    ),
    st.tuples(st.sampled_from(["stream", "copy"]), _SIZES),
    st.tuples(st.just("allreduce"), _SIZES),
)
_NOTHING_FASTER = 1.0 + 1e-9


def _answer(asked: tuple[Any, ...], device: str) -> one_op.Answer:
    kind, *sizes = asked
    if kind == "allreduce":
        return one_op.allreduce(sizes[0], [find_target(f"8x{device}")])
    on = [find_target(device)]
    if kind == "matmul":
        m, n, k, dtype, batch = sizes
        return one_op.matmul(m, n, k, dtype, on, batch=batch)
    if kind == "attention":
        batch, heads, seq, head_dim, dtype, causal = sizes
        return one_op.attention(batch, heads, seq, head_dim, dtype, on, causal=causal)
    return (one_op.copy if kind == "copy" else one_op.stream)(sizes[0], on)


def _check(asked: tuple[Any, ...], device: str) -> None:
    try:
        answer = _answer(asked, device)
    except GpuwiseError:
        return
    card, work = accelerators()[device], answer.work
    document = op_document(answer)
    for row, shown in zip(answer.rows, document["rows"], strict=True):
        fastest = row.time_s.low
        assert fastest <= row.time_s.expected <= row.time_s.high
        assert shown["cache"] == row.cache and shown["bound"] == row.bound
        assert shown["share_of_peak"] == row.share_of_peak <= _NOTHING_FASTER or any("switch adds" in n for n in row.notes)
        if work.flop:
            assert work.flop / fastest <= row.peak * _NOTHING_FASTER
        if row.cache:
            moved = work.bytes if work.kind != "copy" else 2 * work.bytes
            assert card.l2_bytes is not None and moved <= card.l2_bytes and row.cache in " ".join(row.notes)
            continue
        if work.kind == "allreduce":
            assert work.bytes / fastest <= row.peak * _NOTHING_FASTER
        elif row.path in ("", "own memory"):
            moved = work.bytes if work.kind != "copy" else 2 * work.bytes
            assert moved / fastest <= card.memory_bandwidth_bytes_per_s * _NOTHING_FASTER, (asked, device)
        else:
            assert work.bytes / fastest <= row.peak * _NOTHING_FASTER


@settings(max_examples=100)
@given(_KINDS, _DEVICES)
def test_no_operation_is_faster_than_the_data_sheet(asked, device):
    _check(asked, device)


@pytest.mark.slow
@settings(max_examples=5000)
@given(_KINDS, _DEVICES)
def test_no_operation_of_thousands_is_faster_than_the_data_sheet(asked, device):
    _check(asked, device)


def test_a_stream_that_the_cache_holds_names_it():
    """20 MB on L40S was at 533 % of the peak and bound by memory."""
    row = one_op.stream(20e6, [find_target("l40s")]).rows[0]
    assert (row.bound, row.cache) == ("cache", "96 MiB L2 cache") and row.share_of_peak < 1.0
    assert row.peak > accelerators()["l40s"].memory_bandwidth_bytes_per_s
    beyond = one_op.stream(80e6, [find_target("l40s")]).rows[0]
    assert not beyond.cache and beyond.bound == "memory"


def test_attention_on_geforce_30_stays_below_the_rate_with_fp32_sums():
    row = one_op.attention(1, 32, 8192, 128, "bf16", [find_target("rtx-3080-10gb")]).rows[0]
    assert row.share_of_peak <= 1.0 and row.peak == accelerators()["rtx-3080-10gb"].peak("bf16")
