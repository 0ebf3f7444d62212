from __future__ import annotations

import re
from pathlib import Path

import pytest

FAST = ("--scenarios", "1000")
NODE = ("cost", "--on", "8xH100-SXM", "--hours", "10000/month", *FAST)


def test_it_fits_eighty_columns_and_says_the_answer_first(gpuwise) -> None:
    ran = gpuwise(*NODE, "--country", "DE")
    assert ran.code == 0
    lines = ran.out.splitlines()
    assert max(map(len, lines)) <= 80
    assert " over 3 years" in lines[0] and "10,000 GPU-hours a month" in lines[1]
    assert "costs less than to" in " ".join(lines[1:4])
    for word in ("pays back", "owning wins", "Every way", "Assumed", "gpuwise prices"):
        assert word in ran.out
    parts = gpuwise(*NODE, "--country", "DE", "--drivers", "--energy").out
    assert "What drives it" in parts and "carbon" in parts
    assert "…" not in ran.out


def test_the_worked_case_of_eighty_gpus(gpuwise) -> None:
    ran = gpuwise(
        *NODE,
        "--own-count",
        "80",
        "--buy-price",
        "10k",
        "--opex-per-month",
        "5k",
        "--rent-price",
        "2",
        "--years",
        "5",
        "--simple",
        "--all",
    )
    assert "53.3 months" in ran.out and "17 %" in ran.out


@pytest.mark.thorough
def test_json_has_every_figure_and_is_reproducible(gpuwise) -> None:
    one, again = (gpuwise(*NODE, "--seed", "3", "--steps", "--json").document for _ in range(2))
    assert one == again
    assert one["best"] in {o["name"] for o in one["options"]} and one["scenarios"] == 1000
    assert set(one["options"][0]["total_usd"]) == {"low", "expected", "high", "basis"}
    assert one["break_even"]["hours_in_a_month"] == 730 and one["steps"]["together"]
    assert one["drivers"] and one["assumptions"]


def test_hours_mean_the_same_by_the_month_and_the_year(gpuwise) -> None:
    answers = [
        gpuwise("cost", "--on", "8xH100-SXM", *hours, *FAST, "--json").document["own_minus_rent_usd"]
        for hours in (("--hours", "1000"), ("--hours-per-month", "1k"), ("--gpu-hours-per-year", "12k"), ("--hours", "12k/year"))
    ]
    assert all(a == answers[0] for a in answers)


def test_another_currency_is_turned_into_dollars(gpuwise) -> None:
    euros = gpuwise(*NODE, "--rent-price", "2", "--buy-price", "20k", "--currency", "EUR", "--usd-rate", "1.1", "--json").document
    dollars = gpuwise(*NODE, "--rent-price", "2.2", "--buy-price", "22k", "--json").document
    assert euros["own_minus_rent_usd"]["expected"] == pytest.approx(dollars["own_minus_rent_usd"]["expected"], rel=1e-6)


def test_rules_of_thumb(gpuwise) -> None:
    ran = gpuwise("cost", "--on", "1x4090,8xH100-SXM", "--rules")
    assert ran.code == 0 and "RTX 4090" in ran.out and "H100" in ran.out
    assert max(map(len, ran.out.splitlines())) <= 80


def test_figures_are_written(gpuwise, tmp_path: Path) -> None:
    page = tmp_path / "cost.html"
    assert gpuwise(*NODE, "--html", str(page)).code == 0
    assert page.read_text().lstrip().lower().startswith("<!doctype html") and "<svg" in page.read_text()


BAD = [
    "--hours -5",
    "--hours 0",
    "--hours nan",
    "--hours 10/fortnight",
    "--hours 1e14",
    "--hours 1 --hours-per-month 2",
    "--hours 9 --country Atlantis",
    "--hours 9 --utilisation 120%",
    "--hours 9 --utilisation 0%",
    "--hours 9 --rent-price 0",
    "--hours 9 --buy-price -1",
    "--hours 9 --currency EUR",
    "--hours 9 --currency EUR --usd-rate -2",
    "--hours 9 --usd-rate 2",
    "--hours 9 --peak 0.5",
    "--hours 9 --years 40",
    "--hours 9 --residual 150%",
    "--hours 9 --burst-share 90% --peak 3",
    "--hours 9 --shape waves",
    "--hours 9 --shape steady --peak 3",
    "--hours 9 --pue 0.3",
    "--hours 9 --capital 300%",
    "--hours 9 --colo 250-150",
    "--hours 9 --seed -1",
    "--hours 9 --scenarios 5",
    "--hours 9 --reserved 2y",
    "--hours 9 --staff -5",
    "--hours 9 --profile 1,2",
    "--hours 9 --growth -200%",
    "--hours 9 --html /nonexistent/x.html",
    "--hours 9 --rent-price 2 --provider aws",
    "--hours 9 --provider nobody",
    "--hours 9 --tokens 1B",
    "--hours 9 --rules",
    "--hours 9 --own-count 0",
]


@pytest.mark.parametrize("options", BAD)
def test_bad_input_is_refused_with_a_hint(gpuwise, options: str) -> None:
    ran = gpuwise("cost", "--on", "8xH100-SXM", *options.split())
    assert ran.code == 2 and ran.out == ""
    assert ran.err.startswith("error: ") and "hint: " in ran.err


def test_a_model_needs_tokens_and_no_hours(gpuwise) -> None:
    assert gpuwise("cost", "gpt2", "--on", "8xH100-SXM").code == 2
    assert gpuwise("cost", "gpt2", "--on", "8xH100-SXM", "--tokens", "1B", "--hours", "5").code == 2


def test_a_pc_at_home_is_no_server(gpuwise) -> None:
    text = gpuwise("cost", "--on", "4090", "--hours", "100/month", "--scenarios", "2000", "--all").out
    assert "upkeep" not in text
    meter = text.split("Electricity at the meter")[1]
    # 3,600 hours at 450 W, the PC around the card and its losses: 1.7 MWh, not those of a server that never sleeps
    own = next(line for line in meter.splitlines() if line.strip().startswith("own"))
    assert 1.5 <= float(re.split(r"  +", own.strip())[1]) <= 2.2


def test_the_energy_alone_is_answered_first(gpuwise) -> None:
    out = gpuwise("cost", "own", "--on", "4090", "--energy").out
    assert re.match(r"1x RTX 4090: 0\.\d+ kW on average at the meter, [\d.]+ MWh for \$\d+ over 3 years\n", out)


def test_one_gpu_pays_for_itself(gpuwise) -> None:
    out = gpuwise("cost", "--on", "4090", "--hours", "300/month", "--simple").out
    assert "after 14" in out and "1 owned GPU" in out and "owning wins" in out
    assert "unpublished" not in out and "excludes electricity" in out
