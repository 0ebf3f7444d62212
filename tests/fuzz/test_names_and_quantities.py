"""Names and quantities as people type them, and as nobody should."""

from __future__ import annotations

import math

from hypothesis import assume, given
from hypothesis import strategies as st

from gpuwise import units
from gpuwise.cli import options
from gpuwise.facts.hardware.accelerators import accelerators
from gpuwise.facts.hardware.naming import find_accelerator, find_cluster
from gpuwise.facts.hardware.systems import systems
from gpuwise.facts.models.catalogue import find_model, models

COUNTS = st.sampled_from(
    (
        "",
        "",
        "",
        "",
        "8x",
        "2x8x",
        "4x",
        "8x",
        "2x8x",
        "0x",
        "-1x",
        "1.5x",
        "3x2x1x",
        "999999999x",
        "x",
        "8 x ",
        "8×",
        "٣x",
        "1e3x",
    )
)
SUFFIX = st.sampled_from(("", "", "", "", "", " ", "-80gb", "gb", "-sxm", " (TM)", "/", "\x00", "()", "((", "x" * 300, "-", "16"))


def near(names: list[str]) -> st.SearchStrategy[str]:
    """A known name, cut, doubled or decorated; or any text."""
    known = st.sampled_from(sorted(names))
    cut = st.tuples(known, st.integers(0, 30), st.integers(0, 30)).map(lambda t: t[0][: t[1]] + t[0][t[1] + t[2] :])
    return st.tuples(COUNTS, known | cut | st.text(max_size=12), SUFFIX).map("".join)


GPU_NAMES = [*accelerators(), *(a.name for a in accelerators().values())]
SYSTEM_NAMES = [*systems(), *(alias for s in systems().values() for alias in s.aliases)]
MODEL_NAMES = [*models(), *(alias for m in models().values() for alias in m.aliases)]


@given(near(GPU_NAMES))
def test_accelerators(lawful, text: str) -> None:
    found = lawful(lambda: find_accelerator(text))
    assert found is None or found.id in accelerators()


@given(near(GPU_NAMES) | near(SYSTEM_NAMES))
def test_clusters(lawful, text: str) -> None:
    cluster = lawful(lambda: find_cluster(text))
    if cluster is not None:
        assert cluster.n_accelerators >= 1 and cluster.n_systems >= 1 and cluster.system.count >= 1


@given(near(MODEL_NAMES) | st.sampled_from((".", "/", "~", "~nobody-at-all", "/dev/null", "./no.json", "a" * 5000)))
def test_models(lawful, text: str) -> None:
    arch = lawful(lambda: find_model(text))
    assert arch is None or arch.n_layers >= 1


QUANTITIES = st.text(max_size=12) | st.tuples(
    st.sampled_from(("", "-", "+", " ", "$")),
    st.integers(0, 10**6).map(str)
    | st.floats().map(str)
    | st.sampled_from(("1e999", "1_0", "1,0", "٣", "0", "9" * 400, "1.", ".5")),
    st.sampled_from(("", "B", "GB", "GiB", "T", "k", "h", "d", "min", "ms", "GHz", "bytes", "\n")),
).map("".join)


@given(QUANTITIES)
def test_quantities(lawful, text: str) -> None:
    for parse in (units.parse_bytes, units.parse_count, units.parse_duration):
        value = lawful(lambda parse=parse: parse(text), hint=True)
        assert value is None or value >= 0
    for parse in (options.whole_number, options.positive_count, options.positive_duration, options.money):
        value = lawful(lambda parse=parse: parse(text, "--option"), hint=True)
        assert value is None or value > 0


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_finite_number_has_a_text(value: float) -> None:
    for text in (
        units.format_bytes(value),
        units.format_count(value),
        units.format_rate(value, "B/s"),
        units.format_usd(value),
    ):
        assert text.strip()
    assume(value >= 0)
    assert units.format_duration(value).strip()


@given(st.floats(1.0, 1e15))
def test_text_of_a_size_reads_back(value: float) -> None:
    assert math.isclose(units.parse_bytes(units.format_bytes(value).replace(" ", "")), value, rel_tol=0.006, abs_tol=0.5)
    assert math.isclose(units.parse_count(units.format_count(value)), value, rel_tol=0.006, abs_tol=0.5)
