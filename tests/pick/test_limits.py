"""What one has and what the answer must stay within: read strictly, applied with by how much."""

from __future__ import annotations

import datetime
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwise.errors import InputError, UnknownNameError
from gpuwise.facts.hardware.accelerators import accelerators
from gpuwise.facts.hardware.boards import board_of
from gpuwise.facts.models.catalogue import find_model
from gpuwise.pick.api import pick
from gpuwise.pick.candidates import ways
from gpuwise.pick.jobs import serving_job
from gpuwise.pick.limits import Have, Limits, check_limits, known_vendors, parse_have
from gpuwise.pick.outcomes import small

TODAY = datetime.date(2026, 11, 21)


def test_a_whole_machine_is_read() -> None:
    have = parse_have("PSU 850W, 2 slots, 330mm, 64GB RAM, PCIe 3.0 x16, 1x 12VHPWR, 3x 8-pin")
    assert have == Have(
        psu_w=850,
        slots=2,
        length_mm=330,
        memory_bytes=64e9,
        pcie_bytes_per_s=15.754e9,
        pcie="3.0 x16",
        connectors=(("16-pin", 1), ("8-pin", 3)),
    )


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ("850W PSU", "psu_w", 850),
        ("1000 w", "psu_w", 1000),
        ("33 cm", "length_mm", 330),
        ("1 slot", "slots", 1),
        ("32 GiB RAM", "memory_bytes", 32 * 2**30),
        ("pcie 4.0 x8", "pcie_bytes_per_s", 31.508e9 / 2),
    ],
)
def test_spellings(text: str, field: str, value: float) -> None:
    assert getattr(parse_have(text), field) == pytest.approx(value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " , ",
        "850W,",
        "PSU 0W",
        "PSU 99999W",
        "-2 slots",
        "2.5 slots",
        "a fast PC",
        "850W, 900W",
        "PCIe 9.0 x16",
        "3 cm",
        "0GB RAM",
        "64 RAM",
        "100x 8-pin",
        "nan W",
        "2 slots of something",
    ],
)
def test_what_cannot_be_meant_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InputError) as error:
        parse_have(text)
    assert error.value.hint is not None and "PSU 850W" in error.value.hint


@given(st.integers(100, 10_000), st.integers(1, 64), st.integers(100, 1000))
def test_parts_in_any_order_say_the_same(watts: int, slots: int, length: int) -> None:
    parts = [f"PSU {watts}W", f"{slots} slots", f"{length}mm"]
    assert parse_have(", ".join(parts)) == parse_have(", ".join(reversed(parts)))


@given(st.text(max_size=30))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        have = parse_have(text)
    except InputError:
        return
    assert have != Have()


def test_a_4090_in_machines_that_do_and_do_not_take_it() -> None:
    card, board = accelerators()["rtx-4090"], board_of("rtx-4090")
    roomy = Have(psu_w=1600, slots=6, length_mm=400, connectors=(("16-pin", 2),))
    assert roomy.refuses(card, board, 1) is None
    assert "slots" in str(replace(roomy, slots=2).refuses(card, board, 1))
    assert "mm too much" in str(replace(roomy, length_mm=200).refuses(card, board, 1))
    assert "power supply" in str(replace(roomy, psu_w=500).refuses(card, board, 1))
    assert "16-pin" in str(replace(roomy, connectors=(("8-pin", 4),)).refuses(card, board, 1))


def test_what_is_no_card_or_has_no_fan_does_not_go_into_a_pc() -> None:
    have = Have(slots=4)
    assert "airflow" in str(have.refuses(accelerators()["t4"], board_of("t4"), 1))
    assert "no card" in str(have.refuses(accelerators()["h100-sxm-80gb"], board_of("h100-sxm-80gb"), 1))


@given(st.floats(100, 10_000), st.floats(1, 2), st.integers(1, 4))
def test_a_larger_power_supply_never_refuses_more(watts: float, factor: float, n: int) -> None:
    card, board = accelerators()["rtx-3090"], board_of("rtx-3090")
    if Have(psu_w=watts).refuses(card, board, n) is None:
        assert Have(psu_w=watts * factor).refuses(card, board, n) is None


@pytest.mark.parametrize(
    "limits",
    [
        Limits(budget_usd=-1),
        Limits(budget_usd=float("nan")),
        Limits(budget_usd=float("inf")),
        Limits(deadline_s=0),
        Limits(max_watts=-5),
        Limits(count=0),
        Limits(count=10_000),
        Limits(ways=()),
        Limits(ways=("steal",)),
        Limits(by="beauty"),
        Limits(vendors=("acme",)),
    ],
)
def test_limits_that_cannot_be_meant_are_refused(limits: Limits) -> None:
    with pytest.raises(InputError):
        check_limits(limits)


def test_vendors_in_any_case_and_unknown_ones_with_the_list() -> None:
    assert known_vendors(("nvidia", "AMD")) == ("NVIDIA", "AMD")
    with pytest.raises(UnknownNameError) as error:
        known_vendors(("nvida",))
    assert "NVIDIA" in str(error.value.hint)


def test_a_budget_alone_asks_for_a_balance_and_a_deadline_for_money() -> None:
    assert Limits(budget_usd=100).objective == "balance"
    assert Limits(budget_usd=100, deadline_s=3600).objective == "cost"
    assert Limits().objective == "cost"
    assert Limits(by="energy", budget_usd=3).objective == "energy"


def test_a_card_of_8_gb_is_named_apart_while_a_larger_one_is_in_reach() -> None:
    """Guides advise against buying one for language models and images; rented, or for an encoder, it is as good as another."""
    bought = {w.accelerator.id: w for w in ways(Limits(ways=("buy",)), TODAY) if w.purchase is not None}
    assert small(bought["rtx-5050"], "infer") and not small(bought["rtx-5050"], "embed")
    assert not small(bought["rtx-3060-12gb"], "image") and not small(bought["jetson-orin-nano-super"], "infer")
    job = serving_job(find_model("llama-3.1-8b"))
    done = pick(job, Limits(ways=("buy",), budget_usd=300), today=TODAY)
    assert done.ranked and not any(small(o.way, "infer") for o in done.ranked)
    said = {out.way.accelerator.id: out.why for out in done.ranking.left_out if out.code == "behind"}
    assert "8 GB holds this and little after it" in said["rtx-5050"]
    poor = pick(job, Limits(ways=("buy",), budget_usd=165), today=TODAY)
    assert poor.ranked and small(poor.ranked[0].way, "infer")
