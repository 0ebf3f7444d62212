"""The table of options: each row is complete, and what is written from it by hand has the same fields."""

import dataclasses

import pytest

from gpuwise.cli.run.ranks import OTHERWISE, RankLayout
from gpuwise.export.ranks import LAYOUT
from gpuwise.plan.goal import WISHED, Wishes
from gpuwise.predict.columns import Columns
from gpuwise.train.ranks.layout import Layout
from gpuwise.workload.strategy import COLUMNS, NEUTRAL, OPTIONS, Strategy

ASKED = [name for name, o in OPTIONS.items() if o.help]


@pytest.mark.parametrize("name", ASKED)
def test_an_option_says_what_may_be_given(name: str) -> None:
    about, neutral = OPTIONS[name], getattr(NEUTRAL, name)
    assert about.help.endswith(".") and "default" not in about.help
    if isinstance(neutral, bool):
        assert not about.choices and not about.unit
    elif isinstance(neutral, str):
        assert neutral in about.choices
    else:
        assert about.unit


@pytest.mark.parametrize("name", [name for name in OPTIONS if name not in ASKED])
def test_what_nobody_asks_for_has_no_row_to_fill(name: str) -> None:
    assert OPTIONS[name] == type(OPTIONS[name])()


def test_columns_are_those_of_the_table() -> None:
    assert tuple(f.name for f in dataclasses.fields(Columns)) == ("base", *COLUMNS)


@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_gives_its_value_back(name: str) -> None:
    neutral, about = getattr(NEUTRAL, name), OPTIONS[name]
    values = about.choices or ((True, False) if isinstance(neutral, bool) else (1, 2, 8))
    for value in values:
        strategy = Strategy().with_(**{name: value})
        back = Columns.from_strategies([strategy]).strategy(0)
        assert back == strategy and type(getattr(back, name)) is type(neutral)


def test_what_is_searched_is_no_wish_of_its_own() -> None:
    assert not {f.name for f in dataclasses.fields(Wishes)} & set(COLUMNS), "these are values of Wishes.fixed"
    assert set(WISHED) <= set(ASKED)


def test_ranks_have_the_layout_that_the_table_gives_them() -> None:
    assert set(Layout.__struct_fields__) == {*LAYOUT, "compress"}
    for name, hint in Layout.__annotations__.items():
        if name in OPTIONS:
            assert hint == Strategy.__annotations__[name]


def test_run_asks_for_what_the_table_gives_to_ranks() -> None:
    assert {f.name for f in dataclasses.fields(RankLayout)} == {o.name or f for f, o in OPTIONS.items() if o.ranks} - set(
        OTHERWISE
    )
