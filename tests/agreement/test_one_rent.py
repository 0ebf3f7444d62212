"""One GPU-hour, one price: ``cost`` and ``plan`` say it in the same digits; around the clock is as many GPUs in any year."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import pytest

from gpuwise.cli.app import run
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.money.cost import price_of
from gpuwise.units import format_usd


@pytest.mark.parametrize("name", ["rtx-3090", "h100-sxm-80gb"])
def test_a_rent_has_the_same_digits_in_every_command(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The price of a 3090 was $0.205, $0.21 and $0.20 within two pages."""
    price = price_of(find_cluster(name), datetime.date.today())
    assert price is not None
    hour = format_usd(price.expected)
    assert run(["cost", "--on", name, "--hours", "100/month", "--years", "1", "--simple", "--scenarios", "1000"]) == 0
    bill = capsys.readouterr().out
    assert f"{hour}/h today" in bill
    assert f" {hour} " in bill.split("Every way")[1]
    assert run(["plan", "gpt2", "--on", name, "--tokens", "1B"]) == 0
    assert f"{hour} a GPU-hour" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("hours", [8 * 8760, 8 * 8766])
def test_eight_around_the_clock_are_eight(hours: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Of 8 x 8,766 hours a year, own 9 GPUs, it said."""
    assert run(["cost", "--on", "8xh100", "--hours", f"{hours}/year", "--years", "1", "--simple", "--scenarios", "1000"]) == 0
    assert "8 owned GPUs" in capsys.readouterr().out


@pytest.mark.thorough
def test_plan_and_pick_rent_the_same(ask: Callable[..., Any]) -> None:
    """``plan`` named eight RTX 5070 Ti that nobody rents out together, for $449; ``pick`` one GH200 for $568."""
    planned = ask("plan", "llama-3.1-8b", "--tokens", "10B")
    picked = ask("pick", "--for", "train", "--model", "llama-3.1-8b", "--tokens", "10B", "--by", "cost", "--rent")["ranked"]
    system, cost = planned["cluster"], planned["best"]["cost_usd"]["expected"]
    same = [row for row in picked if row["accelerator"] == system["accelerator"] and row["count"] == system["accelerators"]]
    assert same and same[0]["cost_usd"]["expected"] == cost
