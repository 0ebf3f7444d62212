"""Fleets of two kinds against every fleet there is."""

from __future__ import annotations

import math
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwise.serve.capacity.mixed import CHEAPER, Kind, copies_alone, mixed_fleet

KINDS = st.lists(
    st.builds(
        Kind,
        st.just("any"),
        st.floats(0.5, 9.0),
        st.floats(0.1, 9.0),
        st.integers(1, 8),
        st.one_of(st.none(), st.floats(10.0, 900.0)),
    ),
    min_size=1,
    max_size=4,
)


@given(kinds=KINDS, rate=st.floats(0.5, 20.0), watts=st.one_of(st.none(), st.floats(100.0, 4000.0)))
def test_the_cheapest_pair_of_all_pairs(kinds, rate, watts):
    found = mixed_fleet(kinds, rate, watts)
    best_alone, best = math.inf, math.inf
    for a, b in product(range(len(kinds)), repeat=2):
        most = [copies_alone(kinds[i], rate) for i in (a, b)]
        for n, m in product(range(most[0] + 1), range(most[1] + 1)):
            if n * kinds[a].rate_per_s + m * kinds[b].rate_per_s < rate * (1 - 1e-9) or (a == b and m):
                continue
            used = [(n, kinds[a]), (m, kinds[b])]
            if watts is not None and (
                any(c and k.watts is None for c, k in used) or sum(c * (k.watts or 0.0) for c, k in used) > watts
            ):
                continue
            usd = n * kinds[a].usd_per_hour + m * kinds[b].usd_per_hour
            best = min(best, usd)
            if not (n and m):
                best_alone = min(best_alone, usd)
    if found is None:
        assert best >= CHEAPER * best_alone * (1 - 1e-9) or math.isinf(best)
    else:
        assert found.usd_per_hour == pytest.approx(best)
        assert sum(n * k.rate_per_s for n, k in zip(found.copies, found.kinds, strict=True)) >= rate * (1 - 1e-9)
        assert sum(found.shares) == pytest.approx(1.0)
        for n, k, share in zip(found.copies, found.kinds, found.shares, strict=True):
            assert share * rate / n <= k.rate_per_s * (1 + 1e-9)


def test_a_small_rest_goes_to_a_small_device():
    large, small = Kind("large", 10.0, 6.0, 1), Kind("small", 1.5, 1.2, 1)
    found = mixed_fleet([large, small], 11.0)
    assert found is not None
    assert found.copies == (1, 1)
    assert found.usd_per_hour == pytest.approx(7.2)
    assert found.alone_usd_per_hour == pytest.approx(9.6)
