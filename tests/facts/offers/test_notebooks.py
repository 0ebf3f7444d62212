import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwise.errors import FieldError
from gpuwise.facts.hardware.accelerators import accelerators
from gpuwise.facts.offers.notebooks import NOTEBOOK_SCHEMA, Notebook, notebooks, parse_notebooks
from gpuwise.facts.sources import sources

TODAY = datetime.date(2026, 11, 21)
HEADER = ",".join(NOTEBOOK_SCHEMA) + "\n"
ROW = "me,free,t4,1,30,12,0,,,false,12,20,,2026-01-31,colab-faq,\n"


def test_every_plan_is_dated_and_sourced():
    assert len(notebooks()) >= 20 and len({plan.provider for plan in notebooks()}) >= 6
    for plan in notebooks():
        assert plan.accelerator_id in accelerators() and plan.source_key in sources()
        assert plan.age_days(TODAY) >= 0 and plan.count >= 1 and plan.usd_per_month >= 0
        assert plan.free == (plan.usd_per_month == 0)
        assert plan.weak == (sources()[plan.source_key].kind in ("third-party", "estimate"))
        if plan.until is not None:
            assert plan.until <= plan.as_of


def _offered(accelerator_id: str, day: datetime.date = TODAY) -> list[Notebook]:
    return [plan for plan in notebooks() if plan.accelerator_id == accelerator_id and plan.offered_on(day)]


def test_free_t4_on_kaggle_and_colab():
    offered = {(plan.provider, plan.plan): plan for plan in _offered("t4")}
    kaggle, colab = offered["kaggle", "free"], offered["colab", "free"]
    assert (kaggle.count, kaggle.hours_per_week, kaggle.session_hours) == (2, 30, 12)
    assert colab.hours_per_week is None and not colab.guaranteed and colab.hours_per_month is None


def test_a_withdrawn_plan_is_no_longer_offered():
    assert not _offered("p100-pcie-16gb")
    (old,) = _offered("p100-pcie-16gb", datetime.date(2026, 9, 14))
    assert old.provider == "kaggle" and not old.offered_on(datetime.date(2026, 9, 15))


def test_hours_the_fee_pays_for():
    plans = {(p.provider, p.plan, p.accelerator_id): p for p in notebooks()}
    modal = plans["modal", "starter", "h100-sxm-80gb"]
    assert modal.hours_per_month == pytest.approx(30 / (0.001097 * 3600))
    assert plans["kaggle", "free", "t4"].hours_per_month == pytest.approx(130)
    assert plans["colab", "pro", "l4"].hours_per_month is None


@given(
    st.floats(0.1, 168).map(lambda x: round(x, 3)),
    st.floats(0.01, 100).map(lambda x: round(x, 4)),
    st.floats(0.01, 1000).map(lambda x: round(x, 2)),
)
def test_the_tighter_limit_counts(weekly, rate, credit):
    both, cap, purse = (
        parse_notebooks(HEADER + f"me,x,t4,1,{w},,5,{r},{c},true,,,,2026-01-31,colab-faq,\n", "mine.csv")[0].hours_per_month
        for w, r, c in ((weekly, rate, credit), (weekly, "", ""), ("", rate, credit))
    )
    assert cap is not None and purse is not None
    assert both == pytest.approx(min(cap, purse)) and cap == pytest.approx(weekly * 52 / 12)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (",t4,", ",t5,", "not in accelerators.csv"),
        (",30,", ",169,", "hours_per_week"),
        (",30,", ",0,", "hours_per_week"),
        (",0,,,", ",-1,,,", "usd_per_month"),
        (",0,,,", ",inf,,,", "usd_per_month"),
        (",false,", ",perhaps,", "guaranteed"),
        ("2026-01-31", "31.1.2026", "as_of"),
        ("colab-faq", "hearsay", "not in sources.csv"),
        ("me,free", ",free", "provider"),
    ],
)
def test_bad_rows_are_refused(old, new, says):
    assert old in ROW
    with pytest.raises(FieldError, match=says) as caught:
        parse_notebooks(HEADER + ROW.replace(old, new, 1), "mine.csv")
    assert "mine.csv:2" in str(caught.value)


def test_a_plan_twice_is_refused():
    with pytest.raises(FieldError, match="twice"):
        parse_notebooks(HEADER + ROW + ROW, "mine.csv")
