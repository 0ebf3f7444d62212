"""The store of prices: added to, never overwritten, never half a file, and merged with what is shipped."""

from __future__ import annotations

import datetime
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.facts.offers.stored import stored_offers

from gpuwise.errors import DataError, InputError, UnknownNameError
from gpuwise.facts.offers import store as offer_store
from gpuwise.facts.offers.offer import (
    book,
    contracts_for,
    current_by_provider,
    merge_offers,
    offers,
    offers_for,
    stored_history,
    typical_price_usd_per_hour,
)
from gpuwise.facts.offers.store import current_files, remove, save_offers, store_dir, stored_files
from gpuwise.facts.offers.table import Offer, format_offers, parse_offers

DAY = datetime.date(2026, 11, 21)
H100 = "h100-sxm-80gb"


def offer(**changes: object) -> Offer:
    base = Offer("acme", "here", "box", H100, 8, 2.0, None, None, DAY, "list", "feed")
    return replace(base, **changes)  # type: ignore[arg-type]


def test_the_store_is_where_gpuwise_home_says(home: Path) -> None:
    assert store_dir() == home / "prices"
    assert stored_files() == () and stored_offers() == ()


def test_what_is_saved_is_read_back(home: Path) -> None:
    path = save_offers([offer(), offer(count=1, on_demand_usd_per_hour=2.2)], "skypilot-acme", DAY)
    assert path == home / "prices" / "skypilot-acme" / "2026-11-21.csv"
    assert stored_offers() == (offer(), offer(count=1, on_demand_usd_per_hour=2.2))
    assert stored_offers("l4") == ()
    assert not list(home.rglob("*.part"))


def test_files_are_added_and_never_overwritten(home: Path) -> None:
    first = save_offers([offer()], "skypilot-acme", DAY)
    before = first.read_bytes()
    second = save_offers([offer(on_demand_usd_per_hour=3.0)], "skypilot-acme", DAY)
    assert second.name == "2026-11-21.2.csv" and first.read_bytes() == before
    assert save_offers([offer(on_demand_usd_per_hour=3.0)], "skypilot-acme", DAY) == second
    assert len(stored_files()) == 2
    assert [o.on_demand_usd_per_hour for o in stored_offers()] == [3.0]


def test_the_newest_file_of_a_feed_counts_and_the_others_are_history(home: Path) -> None:
    for month, price in ((9, 2.0), (11, 2.5), (10, 3.0)):
        day = datetime.date(2026, month, 1)
        save_offers([offer(on_demand_usd_per_hour=price, as_of=day)], "skypilot-acme", day)
    assert [o.on_demand_usd_per_hour for o in stored_offers()] == [2.5]
    assert [(day.month, usd, n) for day, usd, n in stored_history(H100)] == [(9, 2.0, 1), (10, 3.0, 1), (11, 2.5, 1)]


def test_all_of_a_persons_own_files_count(home: Path) -> None:
    save_offers([offer(kind="contract", region="a")], "own-acme", datetime.date(2026, 1, 1))
    save_offers([offer(kind="contract", region="b")], "own-acme", DAY)
    assert {o.region for o in stored_offers()} == {"a", "b"}
    assert len(current_files()) == 2


def test_a_process_killed_while_writing_loses_nothing(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = save_offers([offer()], "skypilot-acme", DAY)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(offer_store.os, "fsync", killed)
    with pytest.raises(KeyboardInterrupt):
        save_offers([offer(on_demand_usd_per_hour=9.0)], "skypilot-acme", DAY)
    assert [path for path in home.rglob("*") if path.is_file()] == [kept]
    assert stored_offers() == (offer(),)


def test_a_half_written_file_of_another_process_is_not_read(home: Path) -> None:
    save_offers([offer()], "skypilot-acme", DAY)
    (home / "prices" / "skypilot-acme" / ".abc.part").write_text("provider,reg")
    (home / "prices" / "skypilot-acme" / "2026-11-22.csv~").write_text("provider,reg")
    (home / "prices" / "notes.txt").write_text("mine")
    assert stored_offers() == (offer(),)


def test_two_processes_that_save_at_once_both_keep_theirs(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.link
    raced: list[str] = []

    def link(source: str, target: Path) -> None:
        if not raced:
            raced.append("other")
            Path(target).write_text(format_offers([offer(region="other")]))
        real(source, target)

    monkeypatch.setattr(offer_store.os, "link", link)
    path = save_offers([offer(region="mine")], "skypilot-acme", DAY)
    assert path.name == "2026-11-21.2.csv"
    assert [offer_store.offers_in(f)[0].region for f in stored_files()] == ["other", "mine"]


def test_a_file_system_without_links_still_keeps_both(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(*_: object) -> None:
        raise PermissionError("no links here")

    monkeypatch.setattr(offer_store.os, "link", link)
    save_offers([offer()], "skypilot-acme", DAY)
    save_offers([offer(region="b")], "skypilot-acme", DAY)
    assert len(stored_files()) == 2


@pytest.mark.parametrize("source", ["", "../up", "UPPER", ".hidden", "a/b", "x" * 200, "sp ace", "own-\n"])
def test_a_source_that_is_no_name_is_refused(home: Path, source: str) -> None:
    with pytest.raises(InputError):
        save_offers([offer()], source, DAY)
    assert not list(home.iterdir())


def test_nothing_to_save_is_refused(home: Path) -> None:
    with pytest.raises(InputError):
        save_offers([], "skypilot-acme", DAY)


def test_a_folder_that_cannot_be_written_is_said(home: Path) -> None:
    (home / "prices").write_text("a file in the way")
    with pytest.raises(DataError, match="cannot be saved") as caught:
        save_offers([offer()], "skypilot-acme", DAY)
    assert caught.value.hint and "GPUWISE_HOME" in caught.value.hint


@pytest.mark.parametrize("damage", [b"\xff\xfe", b"provider,price\nx,1\n", b"", b"a,b\x00\n", b'"'])
def test_a_damaged_file_is_named_with_how_to_drop_it(home: Path, damage: bytes) -> None:
    path = save_offers([offer()], "skypilot-acme", DAY)
    path.write_bytes(damage)
    for read in (stored_offers, lambda: stored_offers(H100), lambda: book(DAY), lambda: offers_for(H100, DAY)):
        with pytest.raises(DataError) as caught:
            read()
        assert str(path) in caught.value.message
        assert "gpuwise prices --remove skypilot-acme" in (caught.value.hint or "")
    assert offers(), "what is shipped stays readable"
    remove("skypilot-acme")
    assert offers_for(H100, DAY)


def test_a_damaged_row_of_another_accelerator_is_not_looked_at(home: Path) -> None:
    path = save_offers([offer(), offer(accelerator_id="l4")], "skypilot-acme", DAY)
    path.write_text(path.read_text().replace(",l4,8,2.0", ",l4,8,-2.0"))
    assert stored_offers(H100) == (offer(),)
    with pytest.raises(DataError, match=r"csv:3: .*not above zero"):
        stored_offers("l4")


def test_remove_drops_one_source_alone(home: Path) -> None:
    save_offers([offer()], "skypilot-acme", DAY)
    save_offers([offer(kind="contract")], "own-acme", DAY)
    assert len(remove("own-acme")) == 1
    assert {f.source for f in stored_files()} == {"skypilot-acme"}
    with pytest.raises(UnknownNameError) as caught:
        remove("own-acme")
    assert "skypilot-acme" in (caught.value.hint or "")


# --- the book ---


def test_without_a_store_the_book_is_what_is_shipped(home: Path) -> None:
    assert set(book(DAY)) <= set(offers())
    assert {o.accelerator_id for o in book(DAY)} == {o.accelerator_id for o in offers()}


def test_the_newest_of_one_thing_counts() -> None:
    old, new = offer(as_of=datetime.date(2026, 1, 1)), offer(on_demand_usd_per_hour=2.5)
    for shipped, own in (([old], [new]), ([new], [old])):
        assert merge_offers(shipped, [], own, DAY) == (new,)


def test_a_feed_supersedes_older_rows_of_the_same_provider_and_accelerator() -> None:
    summary = offer(region="cheapest", instance="", on_demand_usd_per_hour=1.0, as_of=datetime.date(2026, 9, 1))
    elsewhere = replace(summary, provider="other")
    another = replace(summary, accelerator_id="l4")
    fed = offer(region="a;b")
    assert set(merge_offers([summary, elsewhere, another], [fed], [], DAY)) == {elsewhere, another, fed}


def test_a_reserved_price_that_no_feed_has_stays() -> None:
    reserved = offer(instance="p5", reserved_usd_per_hour=1.2, as_of=datetime.date(2026, 9, 1))
    assert set(merge_offers([reserved], [offer()], [], DAY)) == {reserved, offer()}
    fed = offer(reserved_usd_per_hour=1.1)
    assert merge_offers([reserved], [fed], [], DAY) == (fed,)


def test_contracts_count_within_their_dates() -> None:
    past = offer(kind="contract", valid_to=DAY - datetime.timedelta(days=1))
    now = offer(kind="contract", valid_from=DAY, valid_to=DAY)
    to_come = offer(kind="contract", valid_from=DAY + datetime.timedelta(days=1))
    always = offer(kind="contract", region="x")
    assert set(merge_offers([], [], [past, now, to_come, always], DAY)) == {now, always}
    assert merge_offers([], [], [past, now, to_come, always], None) == (always,)


def test_typical_prices_see_the_store_but_not_contracts(home: Path) -> None:
    before = typical_price_usd_per_hour(H100, DAY)
    save_offers([offer(kind="contract", on_demand_usd_per_hour=0.01)], "own-acme", DAY)
    assert typical_price_usd_per_hour(H100, DAY) == before
    assert [o.provider for o in contracts_for(H100, DAY)] == ["acme"]
    save_offers([offer(on_demand_usd_per_hour=0.5)], "skypilot-acme", DAY)
    assert typical_price_usd_per_hour(H100, DAY).low == 0.5


def test_what_is_out_of_stock_makes_no_typical_price(home: Path) -> None:
    save_offers([offer(on_demand_usd_per_hour=0.5, in_stock=False)], "skypilot-acme", DAY)
    assert "acme" not in current_by_provider(H100, DAY)
    assert any(o.provider == "acme" for o in offers_for(H100, DAY))


def test_a_contract_alone_is_a_price_too(home: Path) -> None:
    save_offers([offer(accelerator_id="apple-m2-ultra", kind="contract")], "own-acme", DAY)
    assert typical_price_usd_per_hour("apple-m2-ultra", DAY).median == 2.0


def test_a_later_price_that_is_not_valid_yet_takes_no_place() -> None:
    now = offer(as_of=datetime.date(2020, 1, 1))
    later = offer(as_of=datetime.date(2020, 1, 2), valid_from=DAY + datetime.timedelta(days=40))
    assert merge_offers([], [now, later], [], DAY) == (now,)
    assert merge_offers([now], [later], [], DAY) == (now,)


# --- laws ---

texts = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), min_size=1, max_size=12).filter(
    lambda s: s.strip() and not s.startswith("#")
)
prices = st.floats(1e-6, 999.0)


@st.composite
def any_offer(draw: st.DrawFn) -> Offer:
    usd = draw(prices)
    spot = draw(st.none() | st.floats(1e-6, 1.0).map(lambda share: usd * share))
    start = draw(st.none() | st.dates(datetime.date(2020, 1, 1), datetime.date(2030, 1, 1)))
    return offer(
        provider=draw(texts),
        region=draw(texts),
        instance=draw(texts),
        accelerator_id=draw(st.sampled_from([H100, "l4", "mi300x"])),
        count=draw(st.integers(1, 64)),
        on_demand_usd_per_hour=usd,
        spot_usd_per_hour=spot,
        spot_kind="market" if spot is not None else "",
        in_stock=draw(st.sampled_from([None, True, False])),
        kind=draw(st.sampled_from(["list", "marketplace", "contract"])),
        as_of=draw(st.dates(datetime.date(2020, 1, 1), DAY)),
        valid_from=start,
    )


@given(st.lists(any_offer(), min_size=1, max_size=8))
def test_every_offer_survives_the_file_to_the_last_digit(listed: list[Offer]) -> None:
    assert parse_offers(format_offers(listed), "x.csv") == tuple(listed)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(shipped=st.lists(any_offer(), max_size=6), fed=st.lists(any_offer(), max_size=6), own=st.lists(any_offer(), max_size=6))
def test_merging_invents_nothing_and_keeps_every_accelerator(shipped: list[Offer], fed: list[Offer], own: list[Offer]) -> None:
    every = [*shipped, *fed, *own]
    found = merge_offers(shipped, fed, own, DAY)
    assert set(found) <= set(every) and len(set(found)) == len(found)
    held = {(o.provider, o.accelerator_id) for o in every if o.valid_on(DAY)}
    assert {(o.provider, o.accelerator_id) for o in found} == held
    assert merge_offers(found, [], [], DAY) == found, "merging again changes nothing"
