from __future__ import annotations

import datetime
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwise.errors import AmbiguousNameError, FieldError, GpuwiseError, InputError, UnknownNameError
from gpuwise.facts.grid import find_grid, grids, parse_grids
from gpuwise.facts.loading import shipped_text
from gpuwise.facts.sources import sources


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("DE", "DEU"),
        ("deu", "DEU"),
        ("Germany", "DEU"),
        ("  germany ", "DEU"),
        ("UK", "GBR"),
        ("USA", "USA"),
        ("US-VA", "US-VA"),
        ("Virginia", "US-VA"),
        ("aws:eu-central-1", "aws:eu-central-1"),
        ("eu-central-1", "aws:eu-central-1"),
        ("us-east-1", "aws:us-east-1"),
        ("us-east1", "gcp:us-east1"),
        ("gcp:europe-west1", "gcp:europe-west1"),
        ("azure:swedencentral", "azure:swedencentral"),
        ("AWS:US-EAST-1", "aws:us-east-1"),
    ],
)
def test_names_people_use(text: str, key: str) -> None:
    assert find_grid(text).key == key


def test_two_places_of_one_name() -> None:
    with pytest.raises(AmbiguousNameError) as caught:
        find_grid("Georgia")
    assert set(caught.value.candidates) == {"GEO", "US-GA"}


def test_an_unknown_country_has_nearest_names() -> None:
    with pytest.raises(UnknownNameError) as caught:
        find_grid("Germny")
    assert "germany" in caught.value.nearest


@pytest.mark.parametrize("text", ["", " ", "Atlantis", "aws:mars-1", "x" * 500, "\x00", "-", "12", "gcp:"])
def test_nonsense_is_refused_with_a_hint(text: str) -> None:
    with pytest.raises(InputError):
        find_grid(text)


@given(st.text(max_size=40))
def test_any_text_is_a_grid_or_an_error(text: str) -> None:
    try:
        assert find_grid(text).key in grids()
    except GpuwiseError as error:
        assert error.message


def test_every_grid_is_credible_and_cited() -> None:
    for grid in grids().values():
        assert 0.001 < grid.kg_co2e_per_kwh < 1.4 and grid.source_key in sources()
        assert grid.country in grids() and grids()[grid.country].scope == "country"
        for price in (grid.industrial, grid.household):
            if price is not None:
                assert 0.001 <= price.usd_per_kwh < 1.0 and price.source_key in sources()
                assert datetime.date(2023, 1, 1) <= price.as_of <= datetime.date(2026, 11, 21)


def test_the_catalogue_is_as_large_as_promised() -> None:
    found = grids().values()
    countries = [g for g in found if g.scope == "country"]
    assert len(countries) > 200
    assert sum(g.usd_per_kwh is not None for g in countries) >= 60
    assert sum(g.household is not None for g in countries) >= 40
    assert sum(g.scope == "region" for g in found) >= 100
    for key in ("USA", "DEU", "FRA", "GBR", "CHN", "CAN", "IRL", "SWE", "FIN", "NLD"):
        assert grids()[key].usd_per_kwh is not None


def test_a_region_without_a_figure_has_that_of_its_state_or_country() -> None:
    virginia, region = find_grid("US-VA"), find_grid("aws:us-east-1")
    assert region.kg_co2e_per_kwh == virginia.kg_co2e_per_kwh and region.inherited_from == "US-VA"
    assert region.usd_per_kwh == virginia.usd_per_kwh
    sweden = find_grid("azure:swedencentral")
    assert sweden.inherited_from == "SWE" and sweden.usd_per_kwh == find_grid("SE").usd_per_kwh
    assert find_grid("gcp:europe-west1").inherited_from == ""


def test_figures_of_the_sources() -> None:
    # EPA eGRID2023 Virginia: 539.599 lb/MWh; EIA 2023 Virginia, industrial: 8.92 ct; Eurostat 2024 H2 Germany 0.2359 EUR
    assert find_grid("US-VA").kg_co2e_per_kwh == pytest.approx(539.599 * 0.45359237 / 1000, rel=1e-3)
    assert find_grid("US-VA").usd_per_kwh == 0.0892
    assert find_grid("DE").usd_per_kwh == pytest.approx(0.2359 * 1.0824)


def test_the_sectors_differ() -> None:
    germany = find_grid("DE")
    assert germany.price("household") == germany.household and germany.price("industrial") == germany.industrial
    assert germany.household is not None and germany.usd_per_kwh is not None
    assert germany.household.usd_per_kwh > germany.usd_per_kwh
    assert germany.industrial is not None and germany.industrial.age_days(datetime.date(2026, 11, 21)) == 690


def _electricity(row: str) -> str:
    head = next(line for line in shipped_text("electricity.csv").split("\n") if line.startswith("key,"))
    return f"{head}\n{row}\n"


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("DEU,industrial,23.6,EUR,1.08,2024-12-31,eia-us-average", "not credible"),
        ("DEU,industrial,0.2,EUR,0,2024-12-31,eia-us-average", "not above zero"),
        ("DEU,industrial,-0.2,EUR,1.08,2024-12-31,eia-us-average", "not above zero"),
        ("DEU,industrial,nan,EUR,1.08,2024-12-31,eia-us-average", "not a number"),
        ("DEU,industrial,0.2,USD,1.08,2024-12-31,eia-us-average", "US dollar"),
        ("DEU,industrial,0.2,EUR,,2024-12-31,eia-us-average", "empty"),
        ("XXX,industrial,0.2,USD,1,2024-12-31,eia-us-average", "grid.csv"),
        ("DEU,farm,0.2,USD,1,2024-12-31,eia-us-average", "sector"),
        ("DEU,industrial,0.2,USD,1,2024-12-31,nobody", "sources.csv"),
        ("DEU,industrial,0.2,USD,1,2024-13-31,eia-us-average", "date"),
    ],
)
def test_a_bad_price_is_refused_with_its_line(row: str, words: str) -> None:
    with pytest.raises(FieldError, match=words) as caught:
        parse_grids(shipped_text("grid.csv"), _electricity(row))
    assert "electricity.csv:2" in str(caught.value)


def test_a_price_twice_is_refused() -> None:
    row = "DEU,industrial,0.2,USD,1,2024-12-31,eia-us-average"
    with pytest.raises(FieldError, match="twice"):
        parse_grids(shipped_text("grid.csv"), _electricity(f"{row}\n{row}"))


def test_a_region_of_no_country_is_refused() -> None:
    text = shipped_text("grid.csv") + "aws:x,region,,XXX,,,,Nowhere,,,aws-regions\n"
    with pytest.raises(FieldError, match="XXX"):
        parse_grids(text, _electricity("DEU,industrial,0.2,USD,1,2024-12-31,eia-us-average"))


def test_intensities_lie_where_grids_do() -> None:
    """Hydro and nuclear grids are far below coal ones."""
    low = [find_grid(c).kg_co2e_per_kwh for c in ("NO", "SE", "CH", "FR", "IS")]
    high = [find_grid(c).kg_co2e_per_kwh for c in ("PL", "ZA", "IN", "KZ")]
    assert max(low) < 0.1 < 0.5 < min(high)
    assert math.isclose(find_grid("FR").kg_co2e_per_kwh, 0.056, rel_tol=0.02)
