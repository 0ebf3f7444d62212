"""Laws between answers of ``pick``, ``cost`` and ``compare``: two questions, or one figure and the sum that it comes from."""

from __future__ import annotations

import random
import re

import pytest
from tests.agreement.questions import BUDGETS, Draw, Words, answer, answers, compare, limits, own, pick, seeds

from gpuwise.cli.called import Asked
from gpuwise.report.answers.answer import Number, Table, plain, shows
from gpuwise.report.answers.choosing import BEHIND
from gpuwise.units import parse_bytes

EACH = 4
"""Questions of a seed."""
SWITCHES = ("--rent", "--own", "--no-used")


def stricter(draw: Draw, words: Words) -> Words:
    """More limits, of kinds that the question has not."""
    more: list[str] = []
    drawn = iter(limits(draw, 0.35))
    for option in drawn:
        value = () if option in SWITCHES else (next(drawn),)
        rules_out = {"--rent": {"--own", "--no-used"}, "--own": {"--rent"}, "--no-used": {"--rent", *more}}.get(option, set())
        if option not in words and not rules_out & {*words, *more}:
            more += [option, *value]
    return tuple(more)


@pytest.mark.parametrize("seed", seeds(1, 60))
def test_a_stricter_requirement_is_never_better_by_the_order_that_is_shown(seed: int) -> None:
    """``balance`` is left out: its order is another one with another budget."""
    draw = random.Random(seed)
    for words, loose in answers(draw, pick, EACH):
        order = loose["objective"]
        asked = words if "--by" in words else (*words, "--by", order)
        more = stricter(draw, asked)
        strict = answer((*asked, *more))
        if order == "balance" or not isinstance(strict, Asked) or not strict["ranked"]:
            continue
        assert loose["ranked"], (words, more)
        notebooks_last = 16 * ("--rent" in more)
        keys = [(row["level"] + notebooks_last * (row["way"] == "notebook"), row["counts_as"]) for row in loose["ranked"]]
        first = strict["ranked"][0]
        assert (first["level"], first["counts_as"] * (1 + 1e-9)) >= min(keys), (asked, more)


@pytest.mark.parametrize("seed", seeds(2, 60))
def test_rows_are_in_the_order_of_what_is_printed_of_them(seed: int) -> None:
    """Those with a letter of what puts a row behind come after those without, and notebooks after what ``--rent`` asks for; else
    what they count as decides."""
    for words, asked in answers(random.Random(seed), pick, EACH):
        ranked = asked["ranked"]
        keys = [(row["level"], row["counts_as"]) for row in ranked]
        assert keys == sorted(keys), words
        for row in ranked:
            assert bool(row["level"] % 16) == bool(row["behind_for"]), (words, row["name"])
        part = asked.answer.part("ways")
        for table in () if part is None else part.blocks:
            assert isinstance(table, Table)
            at = [column.title for column in table.columns].index("counts as")
            clean = [
                value.place.number
                for row in table.rows
                if not set(BEHIND) & set(plain(row.cells[-1].value))
                and not ("--rent" in words and plain(row.cells[1].value) == "notebook")
                and isinstance(value := row.cells[at].value, Number)
            ]
            assert clean == sorted(clean), words


@pytest.mark.parametrize("seed", seeds(1, 60))
def test_what_is_to_pay_is_within_the_budget_and_no_other_total_is_shown(seed: int) -> None:
    draw = random.Random(seed)
    for words, asked in answers(draw, lambda d: (*pick_without_budget(d), "--budget", d.choice(BUDGETS)), EACH):
        budget = asked["limits"]["budget_usd"]
        for row in asked["ranked"]:
            assert row["outlay_usd"] <= budget, (words, row["name"])
            if row["way"] != "buy":
                assert row["cost_usd"]["expected"] <= budget * (1 + 1e-9), (words, row["name"])
        for place in shows(asked.answer):
            assert "/cost_usd" not in place.pointer, (words, place.pointer)


def pick_without_budget(draw: Draw) -> Words:
    """Half of them for what is bought, where electricity comes on top."""
    words = next(words for words in iter(lambda: pick(draw), ()) if "--budget" not in words and "--rent" not in words)
    return (*words, "--own") if "--own" not in words and draw.random() < 0.5 else words


@pytest.mark.parametrize("seed", seeds(1, 60))
def test_the_break_even_is_where_both_totals_meet(seed: int) -> None:
    """Asked with as many hours a month, owning and renting on demand cost the same; after as many months both have spent it."""
    for words, asked in answers(random.Random(seed), own, EACH):
        even, ways = asked["break_even"], {option["name"]: option for option in asked["options"]}
        owned, rented = ways["own"], ways["on-demand"]
        hours, months = even["hours_per_month_and_gpu"], even["months"]
        if hours is not None and owned["owned_gpus"]:
            again = changed(words, "--hours", f"{hours['expected'] * owned['owned_gpus']}/month")
            there = answer((*again, "--own-count", str(owned["owned_gpus"])))
            assert isinstance(there, Asked), there
            totals = {o["name"]: o["total_usd"]["expected"] for o in there["options"]}
            assert totals["own"] == pytest.approx(totals["on-demand"], rel=0.01), words
        if months is not None and months["expected"] < asked["horizon_months"]:
            month, share = divmod(months["expected"], 1.0)
            own_usd, rent_usd = (
                (1 - share) * o["cumulative_usd"][1][int(month)] + share * o["cumulative_usd"][1][int(month) + 1]
                for o in (owned, rented)
            )
            assert own_usd == pytest.approx(rent_usd, rel=0.01), words


def changed(words: Words, option: str, value: str) -> Words:
    """The question with another value of an option."""
    i = words.index(option)
    return (*words[: i + 1], value, *words[i + 2 :])


@pytest.mark.parametrize("seed", seeds(2, 60))
def test_comparing_is_the_same_the_other_way_around(seed: int) -> None:
    for words, asked in answers(random.Random(seed), compare, EACH):
        back = answer((words[0], words[2], words[1], *words[3:]))
        assert isinstance(back, Asked), back
        assert asked["verdict"] == back["verdict"], words
        for one, other in zip(asked["rows"], back["rows"], strict=True):
            cells = [(c["value"], c["words"], c["interval"]) for c in one["cells"]]
            assert one["key"] == other["key"], words
            assert cells == [(c["value"], c["words"], c["interval"]) for c in other["cells"]][::-1], (words, one["key"])


SHORT = re.compile(r"(?:needs|takes) ([\d.,]+ \w+) of (?:the )?([\d.,]+ \w+)\b.*")


@pytest.mark.parametrize("seed", seeds(2, 60))
def test_the_memory_that_is_named_as_too_small_is(seed: int) -> None:
    """ "needs 26.6 of 31.4 GiB" was the reason where the host's memory did not suffice."""
    for words, asked in answers(random.Random(seed), compare, EACH):
        for cell in (c for row in asked["rows"] for c in row["cells"] if c["value"] is None):
            if match := SHORT.fullmatch(cell["words"] or ""):
                needed, has = (parse_bytes(size.replace(",", "")) for size in match.groups())
                assert needed > has, (words, cell["words"])
