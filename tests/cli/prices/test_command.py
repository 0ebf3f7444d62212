from __future__ import annotations

import datetime
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from gpuwise.cli.prices import command as prices
from gpuwise.cli.prices.document import document
from gpuwise.facts.offers.feeds import skypilot
from gpuwise.facts.offers.offer import offers
from gpuwise.facts.offers.search import OfferFilter, select, sort_offers
from gpuwise.facts.offers.sightings import sightings
from gpuwise.facts.offers.store import save_offers, store_dir, stored_files
from gpuwise.facts.offers.table import Offer
from gpuwise.money.cost import STALE_DAYS
from gpuwise.report.answers.prices import offers_answer

DAY = datetime.date(2026, 11, 21)
pytestmark = pytest.mark.usefixtures("home", "fixed_day")


@pytest.fixture
def fixed_day(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prices, "today", lambda: DAY)


def offer(**more: Any) -> Offer:
    fields = {
        "provider": "acme",
        "region": "here",
        "instance": "box",
        "accelerator_id": "h100-sxm-80gb",
        "count": 8,
        "on_demand_usd_per_hour": 0.5,
        "spot_usd_per_hour": None,
        "reserved_usd_per_hour": None,
        "as_of": DAY,
        "kind": "list",
        "source_key": "skypilot-catalog",
    }
    return Offer(**(fields | more))


# --- search ---


def test_an_accelerators_prices_with_their_age(gpuwise: Callable[..., Any]) -> None:
    ran = gpuwise("prices", "h100-sxm-80gb")
    assert ran.code == 0 and "H100 SXM5 80GB" in ran.out and "age" in ran.out and " d " in ran.out
    assert "$/PFLOP-h" in ran.out and "typical" in ran.out


def test_every_price_in_json_is_dated_and_sourced(gpuwise: Callable[..., Any]) -> None:
    document = gpuwise("prices", "h100", "--json").document
    shipped = [o for o in offers() if o.accelerator_id.startswith("h100")]
    assert document["as_of"] == "2026-11-21" and 0 < len(document["offers"]) <= len(shipped)
    for row in document["offers"]:
        assert row["age_days"] == (DAY - datetime.date.fromisoformat(row["as_of"])).days
        assert row["stale"] == (row["age_days"] > STALE_DAYS) and row["source"]
    prices_ = [row["usd_per_hour"] for row in document["offers"] if row["in_stock"] is not False]
    assert prices_ == sorted(prices_)


@pytest.mark.parametrize("days", [STALE_DAYS, STALE_DAYS + 1])
def test_past_sixty_days_a_price_is_said_to_be_old(gpuwise: Callable[..., Any], days: int) -> None:
    save_offers([offer(as_of=DAY - datetime.timedelta(days=days))], "skypilot-acme", DAY)
    ran = gpuwise("prices", "--provider", "acme")
    assert f"{days} d" in ran.out
    assert ("list, old" in ran.out and "read more than 60 days ago" in ran.out) == (days > STALE_DAYS)


def test_remarks_are_words(gpuwise: Callable[..., Any]) -> None:
    save_offers(
        [
            offer(spot_usd_per_hour=0.25, spot_kind="policy"),
            offer(kind="marketplace", in_stock=False, region="b"),
            offer(kind="contract", valid_to=datetime.date(2027, 1, 1), region="c"),
        ],
        "own-acme",
        DAY,
    )
    ran = gpuwise("prices", "acme", "--all")
    assert "no stock" in ran.out and "market" in ran.out and "to 2027-01-01" in " ".join(ran.out.split())
    assert "contract: your own" in " ".join(ran.out.lower().split())
    spot = gpuwise("prices", "acme", "--spot")
    assert "fixed share" in spot.out and "50 %" in spot.out


def test_filters_and_orders(gpuwise: Callable[..., Any]) -> None:
    rows = gpuwise("prices", "--min-memory", "100GB", "--max-price", "4", "--sort", "per-gb", "--json").document["offers"]
    assert rows and all(row["usd_per_hour"] <= 4 for row in rows)
    each = [row["usd_per_gb_hour"] for row in rows]
    assert each == sorted(each)
    aws = gpuwise("prices", "--provider", "aws", "--kind", "reserved", "--json").document["offers"]
    assert aws and all(r["provider"] == "aws" and r["usd_per_hour"] == r["reserved_usd_per_hour"] for r in aws)
    eight = gpuwise("prices", "h100", "--count", "8", "--region", "us", "--json").document["offers"]
    assert eight and all(r["count"] == 8 and any("us" in region for region in r["regions"]) for r in eight)


def test_the_first_screen_has_one_offer_of_each_provider() -> None:
    rows = [offer(), offer(region="eu"), offer(provider="aws", on_demand_usd_per_hour=9.0), offer(kind="contract")]
    priced = sort_offers(select(rows, OfferFilter()), "price", DAY)
    found = {"kind": "on-demand", "offers": [document(row, DAY) for row in priced]}
    for named, n in ((True, 3), (False, 2)):  # a contract stands beside the public price
        answer = offers_answer(found, named=named)
        by_part = {p.name: p.blocks[0] for p in answer.parts}
        assert [len(by_part[name].rows) for name in ("cheapest", "offers")] == [n, 4]  # pyright: ignore[reportAttributeAccessIssue]


def test_without_a_name_what_is_offered_most_comes_first(gpuwise: Callable[..., Any]) -> None:
    seen = sightings()
    for words in ((), ("--buy",)):
        lines = gpuwise("prices", *words, "--all").out.splitlines()
        assert "most offered first" in "".join(lines)
        at = [
            next(i for i, line in enumerate(lines) if line.startswith(f"  {name} "))
            for name in ("H100 SXM5 80GB", "V100 SXM2 16GB")
        ]
        assert at == sorted(at) and seen["h100-sxm-80gb"] > seen["v100-sxm-16gb"]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("nonsense-gpu",), 2, "unknown accelerator"),
        (("apple-m2-ultra",), 1, "--buy"),
        (("h100", "--max-price", "0.01"), 1, "loosen --max-price"),
        (("h100", "--max-price", "-1"), 2, "--max-price"),
        (("h100", "--max-price", "nan"), 2, "--max-price"),
        (("h100", "--count", "0"), 2, "--count"),
        (("h100", "--min-memory", "much"), 2, "--min-memory 40GB"),
        (("h100", "--min-memory", "0GB"), 2, "not above zero"),
        (("h100", "--kind", "stolen"), 2, "on-demand, spot, reserved"),
        (("h100", "--sort", "colour"), 2, "per-pflop"),
        (("h100", "--spot", "--kind", "reserved"), 2, "exclude each other"),
        (("h100", "--provider", " "), 2, "empty"),
        (("h100", "--buy", "--history"), 2, "exclude each other"),
        (("h100", "--dry-run"), 2, "--dry-run"),
        (("--usd-rate", "1.1"), 2, "--import"),
        (("h100", "--stored"), 2, "has no meaning here"),
        (("--import", "/no/such/file.csv"), 2, "cannot be read"),
        (("--remove", "nothing"), 2, "store is empty"),
        (("--remove", ""), 2, "--remove is empty"),
        (("--refresh", "nofeed"), 2, "feeds are skypilot, gpuhunt"),
        (("--history", "wormhole-n150"), 1, "there is one for"),
        (("--buy", "mi325x", "--max-price", "1"), 1, "--buy"),
    ],
)
def test_refusals(gpuwise: Callable[..., Any], arguments: tuple[str, ...], code: int, said: str) -> None:
    ran = gpuwise("prices", *arguments)
    assert ran.code == code and ran.out == ""
    assert said in ran.err and ran.err.startswith("error: ") and "\nhint: " in ran.err


@pytest.mark.parametrize("width", ["80", "120"])
@pytest.mark.parametrize(
    "arguments", [(), ("h100",), ("--all",), ("--spot",), ("--kind", "reserved"), ("--buy",), ("h100", "--history")]
)
def test_tables_keep_to_the_width(
    gpuwise: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, width: str, arguments: tuple[str, ...]
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    ran = gpuwise("prices", *arguments)
    assert ran.code == 0 and max(len(line) for line in ran.out.splitlines()) <= int(width)


# --- buy and history ---


def test_purchase_prices(gpuwise: Callable[..., Any]) -> None:
    assert "new" in gpuwise("prices", "4090", "--buy").out
    rows = gpuwise("prices", "--buy", "--min-memory", "20GB", "--max-price", "3000", "--json").document["purchases"]
    assert rows and all(row["usd"]["median"] <= 3000 for row in rows)
    assert all(row["usd"]["low"] <= row["usd"]["median"] <= row["usd"]["high"] for row in rows)


def test_history_goes_both_ways(gpuwise: Callable[..., Any]) -> None:
    ran = gpuwise("prices", "h100", "--history")
    assert "fell by" in ran.out and "Jan" not in ran.out
    ran = gpuwise("prices", "h100", "--history", "--all")
    assert "rose by" in ran.out and "a year" in ran.out and "Jan" in ran.out
    history = gpuwise("prices", "h100", "--history", "--json").document["history"]
    moves = {row["series"]: row["moves"] for row in history if row["accelerator"] == "h100-sxm-80gb"}
    assert {move["share"] > 0 for move in moves["median"]} == {True, False}


def test_what_was_fetched_here_is_history_too(gpuwise: Callable[..., Any]) -> None:
    for month, usd in ((9, 2.0), (10, 4.0)):
        day = datetime.date(2026, month, 1)
        save_offers([offer(accelerator_id="t4", on_demand_usd_per_hour=usd, as_of=day)], "skypilot-acme", day)
    ran = gpuwise("prices", "t4", "--history")
    assert ran.code == 0 and "rose by 100 %" in ran.out and "2026-09-01" in gpuwise("prices", "t4", "--history", "--months").out


# --- import ---

OWN = "accelerator,count,price,currency,unit\nh100-sxm-80gb,8,16,EUR,per_instance_hour\n"


def own_file(tmp_path: Path, text: str = OWN) -> str:
    path = tmp_path / "contract.csv"
    path.write_text(text)
    return str(path)


def test_a_contract_is_imported_listed_used_and_dropped(gpuwise: Callable[..., Any], tmp_path: Path) -> None:
    path = own_file(tmp_path)
    ran = gpuwise("prices", "--import", path, "--provider", "ACME Ltd.", "--usd-rate", "1.1")
    assert ran.code == 0 and "2.20" in ran.out and "EUR at 1.1 US dollars" in ran.out and "own-acme-ltd" in ran.out
    (row,) = gpuwise("prices", "acme", "--json").document["offers"]
    assert (row["usd_per_hour"], row["price_kind"]) == (pytest.approx(2.2), "contract")
    assert "own-acme-ltd" in gpuwise("prices", "--stored").out
    assert gpuwise("prices", "--remove", "own-acme-ltd").code == 0 and stored_files() == ()
    assert "nothing is kept yet" in gpuwise("prices", "--stored").out


def test_a_dry_run_keeps_nothing(gpuwise: Callable[..., Any], tmp_path: Path) -> None:
    ran = gpuwise("prices", "--import", own_file(tmp_path), "--provider", "a", "--usd-rate", "1.1", "--dry-run")
    assert ran.code == 0 and "nothing was kept" in ran.out and stored_files() == ()


def test_a_refused_file_keeps_nothing_and_names_the_line(gpuwise: Callable[..., Any], tmp_path: Path) -> None:
    path = own_file(tmp_path, OWN + "l4,1,-1,EUR,\n")
    ran = gpuwise("prices", "--import", path, "--provider", "a", "--usd-rate", "1.1")
    assert ran.code == 2 and f"{path}:3: price is -1.0, not above zero" in ran.err and stored_files() == ()
    without = gpuwise("prices", "--import", own_file(tmp_path), "--provider", "a")
    assert without.code == 2 and "--usd-rate" in without.err


def test_expired_rows_are_kept_and_said_not_to_be_used(gpuwise: Callable[..., Any], tmp_path: Path) -> None:
    path = own_file(tmp_path, "provider,accelerator,price,valid_to\na,l4,0.3,2026-01-01\nb,l4,0.4,\n")
    ran = gpuwise("prices", "--import", path)
    assert "1 expired" in ran.out and {f.source for f in stored_files()} == {"own-a", "own-b"}
    document = gpuwise("prices", "l4", "--json").document["offers"]
    assert [r["provider"] for r in document if r["price_kind"] == "contract"] == ["b"]


def test_the_template_can_be_imported(gpuwise: Callable[..., Any], tmp_path: Path) -> None:
    path = own_file(tmp_path, gpuwise("prices", "--template").out)
    document = gpuwise("prices", "--import", path, "--dry-run", "--json").document
    assert len(document["offers"]) == 2 and document["saved"] is False


def test_a_damaged_store_is_named_and_other_commands_go_on(gpuwise: Callable[..., Any]) -> None:
    path = save_offers([offer()], "skypilot-acme", DAY)
    path.write_text("not,prices\n1,2\n")
    ran = gpuwise("prices", "h100")
    assert ran.code == 1 and str(path) in ran.err and "hint: " in ran.err and "--remove skypilot-acme" in ran.err
    assert "damaged" in gpuwise("prices", "--stored").out
    for command in (("gpus",), ("gpus", "h100-sxm-80gb"), ("models",), ("fit", "llama-3.1-8b", "--on", "4090")):
        assert gpuwise(*command).code == 0, command
    assert gpuwise("prices", "--remove", "skypilot-acme").code == 0
    assert gpuwise("prices", "h100").code == 0


# --- refresh ---

CATALOGUE = (
    "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,Price,SpotPrice,Region,AvailabilityZone,Arch\n"
    "p5.48xlarge,H100,8.0,192,2048,,{price},20.0,us-east-1,a,x86_64\n"
    "g6.xlarge,L4,1.0,4,16,,0.8,0.8,us-east-1,a,x86_64\n"
    "x9.large,H100,1.0,4,16,,3.0,,us-east-1,a,x86_64\n"
)


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[float], None]]:
    """A server on this machine with one cloud's file; ``aws(56.0)`` sets the price of its H100 instance."""
    body = [b""]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = body[0] if self.path == "/v8/aws/vms.csv" else b""
            self.send_response(200 if found else 404)
            self.send_header("Content-Length", str(len(found)))
            self.end_headers()
            self.wfile.write(found)

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    from gpuwise.facts.offers.feeds import refresh

    real = refresh.refresh
    url = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(refresh, "refresh", lambda *a, **k: real(*a, **(k | {"base_url": url})))

    def serve(price: float) -> None:
        body[0] = CATALOGUE.format(price=price).encode()

    yield serve
    server.shutdown()
    server.server_close()
    thread.join()


def test_refresh_tells_what_is_new_changed_and_left_out(gpuwise: Callable[..., Any], aws: Callable[[float], None]) -> None:
    aws(56.0)
    ran = gpuwise("prices", "--refresh", "skypilot:aws")
    assert ran.code == 0 and "skypilot-aws" in ran.out and "form or memory not stated" in ran.out
    assert "not below the on-demand price" in ran.out and str(store_dir()) in ran.out.replace("\n", "")
    aws(64.0)
    again = gpuwise("prices", "--refresh", "skypilot:aws")
    assert "p5.48xlarge h100-sxm-80gb: 7 to 8 $/h (+14%)" in again.out.replace("\n  ", " ")
    assert len(stored_files()) == 2
    rows = gpuwise("prices", "h100-sxm-80gb", "--provider", "aws", "--json").document["offers"]
    assert min(row["age_days"] for row in rows) == 0 and any(row["usd_per_hour"] == 8.0 for row in rows)


def test_refresh_in_json(gpuwise: Callable[..., Any], aws: Callable[[float], None]) -> None:
    aws(56.0)
    document = gpuwise("prices", "--refresh", "skypilot:aws", "--dry-run", "--json").document
    (source,) = document["sources"]
    assert source["source"] == "skypilot-aws" and source["offers"] == 2 and source["path"] is None
    assert {s["reason"] for s in source["skipped"]} == {
        "form or memory not stated",
        "spot price dropped: not below the on-demand price",
    }
    assert stored_files() == ()


def test_without_a_network_the_shipped_prices_still_serve(gpuwise: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from gpuwise.facts.offers.feeds import refresh

    real = refresh.refresh
    monkeypatch.setattr(refresh, "refresh", lambda *a, **k: real(*a, **(k | {"base_url": "http://127.0.0.1:9"})))
    ran = gpuwise("prices", "--refresh", "skypilot")
    assert ran.code == 1 and "no prices could be fetched" in ran.err and "still serve" in ran.err
    assert gpuwise("prices", "h100").code == 0
    assert skypilot.BASE_URL.startswith("https://")


def test_json_is_one_document(gpuwise: Callable[..., Any], tmp_path: Path) -> None:
    path = own_file(tmp_path)
    for arguments in (
        ("h100",),
        ("h100", "--buy"),
        ("h100", "--history"),
        ("--template",),
        ("--stored",),
        ("--import", path, "--provider", "a", "--usd-rate", "1.1"),
        ("--remove", "own-a"),
    ):
        ran = gpuwise("prices", *arguments, "--json")
        assert ran.code == 0 and len(ran.out.splitlines()) == 1 and json.loads(ran.out), arguments
