"""Every fact file, damaged in every way a hand or a disk damages one."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwise.errors import DataError
from gpuwise.facts.hardware.accelerators import ACCELERATOR_SCHEMA
from gpuwise.facts.loading import Field, parse_csv, parse_toml, shipped_text
from gpuwise.facts.models.catalogue import CATALOGUE_FILES, read_catalogue
from gpuwise.facts.offers.offer import OFFER_SCHEMA, parse_offers, read_offers
from gpuwise.facts.sources import SOURCE_SCHEMA

NASTY = (
    "",
    " ",
    "nan",
    "NaN",
    "inf",
    "-inf",
    "1e999",
    "-1",
    "0",
    "1e-320",
    "99999999999999999999",
    "1_000",
    "0x10",
    "١٢",
    "true",
    "2026-02-30",
    "0000-00-00",
    '"',
    ",",
    ";",
    "=",
    "#",
    "\x00",
    "\ufeff",
    "\r",
    "[",
    "]",
    "{",
    "}",
    "'",
    "\\",
    "*",
    "a" * 300,
    "1" * 400,
    "sparse",
    "H100",
)
"""What people and programs write into cells by mistake."""


@st.composite
def damaged(draw: st.DrawFn, text: str) -> str:
    """``text`` with up to four cuts, insertions, swaps of lines or replaced cells."""
    for _ in range(draw(st.sampled_from((1, 1, 2, 4)))):
        at = draw(st.integers(0, len(text)))
        kind = draw(st.sampled_from(("cut", "insert", "cell", "drop line", "repeat line", "end")))
        lines = text.split("\n")
        i = draw(st.integers(min(1, len(lines) - 1), len(lines) - 1))
        if kind == "cut":
            text = text[:at] + text[at + draw(st.integers(1, 20)) :]
        elif kind == "insert":
            text = text[:at] + draw(st.sampled_from(NASTY) | st.text(max_size=8)) + text[at:]
        elif kind == "end":
            text = text[:at]
        elif kind == "cell":
            cells = lines[i].split(",")
            cells[draw(st.integers(0, len(cells) - 1))] = draw(st.sampled_from(NASTY))
            text = "\n".join([*lines[:i], ",".join(cells), *lines[i + 1 :]])
        else:
            text = "\n".join(lines[:i] + (2 if kind == "repeat line" else 0) * lines[i : i + 1] + lines[i + 1 :])
    return text


def _head(name: str, n: int) -> str:
    return "\n".join(shipped_text(name).split("\n")[:n]) + "\n"


@given(st.data())
def test_csv_tables(lawful, data: st.DataObject) -> None:
    name, schema = data.draw(
        st.sampled_from(
            (
                ("accelerators.csv", ACCELERATOR_SCHEMA),
                ("offers.csv", OFFER_SCHEMA),
                ("sources.csv", SOURCE_SCHEMA),
            )
        )
    )
    text = data.draw(damaged(_head(name, 6)) | st.text(max_size=60))
    lawful(lambda: parse_csv(text, schema, name), hint=True)


@given(st.data())
def test_offers(lawful, data: st.DataObject) -> None:
    text = data.draw(damaged(_head("offers.csv", 7)))
    for offer in lawful(lambda: parse_offers(text, "offers.csv"), hint=True) or ():
        assert 0 < offer.on_demand_usd_per_hour <= 1000


@given(st.binary(max_size=80))
def test_offers_file_of_any_bytes(lawful, tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
    path = tmp_path_factory.mktemp("offers") / "offers.csv"
    path.write_bytes(raw)
    lawful(lambda: read_offers(path), hint=True)


ANY_SCHEMA = {
    "text": Field("text", required=False),
    "number": Field("number", required=False),
    "share": Field("number", required=False, minimum=0.0),
    "count": Field("integer", required=False, maximum=100),
    "day": Field("date", required=False),
    "flag": Field("flag", required=False),
    "names": Field("names", required=False),
    "numbers": Field("numbers", required=False, choices=("a", "b")),
}


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{k} = {_toml(v)}" for k, v in value.items()) + " }"
    return str(value)


TOML_VALUES = st.recursive(
    st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(("''", '"x"', "2026-01-31", "2026-01-31T00:00:00", "10:00:00", "'h'")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(("a", "b", "c")), inner, max_size=3),
    max_leaves=4,
)


@given(st.dictionaries(st.sampled_from((*ANY_SCHEMA, *ANY_SCHEMA, "numbr")), TOML_VALUES, max_size=3))
def test_toml_values_of_every_type(lawful, table: dict[str, object]) -> None:
    text = "\n".join(f"{k} = {_toml(v)}" for k, v in table.items())
    lawful(lambda: parse_toml("[t]\n" + text, ANY_SCHEMA, "f.toml"), hint=True)


@contextmanager
def _shipped(room: str, name: str, text: str) -> Iterator[None]:
    """``text`` in place of the shipped file ``name`` for a module of ``facts``, with empty caches."""
    module = importlib.import_module(f"gpuwise.facts.hardware.{room}")
    real = module.shipped_text

    def empty() -> None:
        # every catalogue at once: a name table must not keep objects of a catalogue that is read again
        for name in [n for n in sys.modules if n.startswith("gpuwise.facts.")]:
            for thing in vars(sys.modules[name]).values():
                if hasattr(thing, "cache_clear"):
                    thing.cache_clear()

    empty()
    try:
        with mock.patch.object(module, "shipped_text", lambda n: text if n == name else real(n)):
            yield
    finally:
        empty()


@given(st.data())
def test_accelerators_file(lawful, data: st.DataObject) -> None:
    import gpuwise.facts.hardware.accelerators as room

    text = data.draw(damaged(_head("accelerators.csv", 5)))
    with _shipped("accelerators", "accelerators.csv", text):
        for accelerator in (lawful(lambda: dict(room.accelerators())) or {}).values():
            assert all(rate > 0 for rate in accelerator.peak_flop_per_s.values())


@given(st.data())
def test_systems_files(lawful, data: st.DataObject) -> None:
    import gpuwise.facts.hardware.systems as room

    name = data.draw(st.sampled_from(("systems.toml", "networks.toml", "links.toml")))
    text = data.draw(damaged(_head(name, 60 if name == "systems.toml" else 400)))
    with _shipped("systems", name, text):
        lawful(room.systems)
        lawful(room.networks)
        lawful(room.link_generations)


@given(st.data())
def test_model_files(lawful, data: st.DataObject) -> None:
    from gpuwise.workload.transformer.parameters import count_parameters

    name = data.draw(st.sampled_from(CATALOGUE_FILES))
    text = data.draw(damaged(_head(name, 24)))
    for arch in lawful(lambda: read_catalogue(text, name)) or ():
        assert count_parameters(arch).total > 0


def test_missing_fact_file_is_a_data_error() -> None:
    with pytest.raises(DataError):
        shipped_text("no-such-file.csv")
