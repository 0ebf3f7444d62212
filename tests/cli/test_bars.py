from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpuwise.cli.bars import FREE, OVER, shares, single, stacked
from gpuwise.report.answers.answer import plain, span
from gpuwise.report.answers.values import At

amounts = st.lists(st.floats(0, 1e12), min_size=1, max_size=9)


@given(amounts, st.integers(1, 120))
def test_cells_sum_to_the_width_and_keep_the_order_of_size(values: list[float], width: int) -> None:
    cells = shares(values, width)
    if sum(values) > 0:
        assert sum(cells) == width
        for (a, n), (b, m) in zip(zip(values, cells, strict=True), zip(values[1:], cells[1:], strict=True), strict=False):
            assert not (a > b * 1.01 and n < m)


@given(amounts, st.floats(1, 1e12), st.integers(10, 120))
def test_a_bar_is_as_wide_as_asked_and_shows_what_is_too_much(values: list[float], whole: float, width: int) -> None:
    bar, keys = stacked({str(i): v for i, v in enumerate(values)}, whole, width)
    assert len(bar.plain) == width
    assert len(keys) == len(values)
    if sum(values) > 1.2 * whole:
        assert OVER in bar.plain and FREE not in bar.plain
    if sum(values) <= whole:
        assert OVER not in bar.plain


@given(st.floats(-1, 2))
def test_a_single_bar_stays_inside(share: float) -> None:
    assert 0 <= len(single(share, 20).plain) <= 20


def test_spans_name_a_shared_unit_once() -> None:
    ends = At({"time_s": {"low": 1.0, "high": 3.0}, "memory_bytes": {"low": 2.0**29, "high": 2.0**31}})
    assert plain(span(ends["time_s"])) == "1 to 3 s"
    assert plain(span(ends["memory_bytes"])) == "512 MiB to 2 GiB"
