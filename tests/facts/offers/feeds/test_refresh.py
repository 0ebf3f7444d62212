"""From a web server on this machine into the store: everything that goes wrong on the way, and what changed."""

from __future__ import annotations

import datetime
import re
import socket
from pathlib import Path

import pytest
from tests.facts.offers.stored import stored_offers

from gpuwise.errors import FieldError, UnknownNameError, UnpredictableError
from gpuwise.facts.offers.feeds import skypilot
from gpuwise.facts.offers.feeds.download import MOST_BYTES, OUT_OF_REACH, fetch_text
from gpuwise.facts.offers.feeds.refresh import RefreshResult, difference, refresh, sources_of
from gpuwise.facts.offers.offer import offers, offers_for
from gpuwise.facts.offers.store import stored_files

from .conftest import (
    AWS,
    CATALOGUES,
    VERDA,
    Site,
    binary,
    broken,
    cut_off,
    cut_off_unannounced,
    endless,
    info,
    page,
    slow,
)

DAY = datetime.date(2026, 11, 21)
LATER = datetime.date(2026, 11, 28)
PATH = "/v8/aws/vms.csv"


def one(site: Site, cloud: str = "aws", day: datetime.date = DAY, seconds: float = 20.0, save: bool = True) -> RefreshResult:
    (done,) = refresh([f"skypilot:{cloud}"], day, base_url=site.url, seconds=seconds, save=save)
    return done


def test_every_cloud_is_fetched_checked_and_kept(site: Site, home: Path) -> None:
    for cloud, text in CATALOGUES.items():
        site.put(cloud, text)
    done = {r.source: r for r in refresh(["skypilot"], DAY, base_url=site.url)}
    assert set(done) == {f"skypilot-{cloud}" for cloud in skypilot.CLOUDS}
    kept = {f.source for f in stored_files()}
    assert kept == {f"skypilot-{c}" for c in CATALOGUES if c not in ("mithril", "fluidstack")}
    assert all(len(done[source].offers) >= len(done[source].added) > 0 for source in kept)
    missing = done["skypilot-seeweb"].error
    assert isinstance(missing, UnpredictableError) and "no such file" in missing.message
    assert {o.as_of for o in stored_offers()} == {DAY}
    fed = [o for o in offers_for("h100-sxm-80gb", DAY) if o.source_key == "skypilot-catalog"]
    assert {o.provider for o in fed} >= {"aws", "azure", "gcp", "lambda", "vast", "verda"}


def test_older_folders_are_tried_when_the_newest_has_no_such_file(site: Site, home: Path) -> None:
    site.put("aws", AWS, version="v7")
    assert one(site).offers
    assert site.asked == ["/v8/aws/vms.csv", "/v9/aws/vms.csv", "/v7/aws/vms.csv"]


def test_what_changed_is_told(site: Site, home: Path) -> None:
    site.put("verda", VERDA)
    one(site, "verda")
    without = "".join(line for line in VERDA.splitlines(keepends=True) if not line.startswith("1A100"))
    dearer = without.replace(",2.4,0.84", ",3.0,1.05")
    new = f"1L40S.20V,1L40S.20V,20.0,60.0,L40S,1.0,{info('L40S', 1, 49152)},FIN-03,1.5,0.525\n"
    site.put("verda", dearer + new)
    done = one(site, "verda", LATER)
    assert [o.instance for o in done.added] == ["1L40S.20V"] and [o.instance for o in done.gone] == ["1A100.22V"]
    (change,) = done.changed
    assert (change.offer.instance, change.before_usd_per_hour, change.offer.on_demand_usd_per_hour) == ("1H100.80S.32V", 2.4, 3.0)
    assert change.share == pytest.approx(0.25)
    assert len(stored_files()) == 2, "what was said before is kept"
    assert not any(o.instance == "1A100.22V" for o in stored_offers())


def test_the_same_again_is_no_change(site: Site, home: Path) -> None:
    site.put("aws", AWS)
    one(site)
    again = one(site)
    assert not (again.added or again.changed or again.gone) and len(stored_files()) == 1


def test_a_dry_run_keeps_nothing(site: Site, home: Path) -> None:
    site.put("aws", AWS)
    assert one(site, save=False).offers and stored_files() == ()


def test_the_lint_refuses_what_no_one_rents_at(site: Site, home: Path) -> None:
    site.put("verda", VERDA.replace(",2.4,0.84", ",90.0,"))
    done = one(site, "verda")
    assert not any(o.instance == "1H100.80S.32V" for o in done.offers)
    assert any("outlier" in s.reason and "1H100.80S.32V" in s.example for s in done.skipped)


@pytest.mark.parametrize(
    ("behaviour", "message"),
    [
        (page, "a web page came instead"),
        (cut_off, "cut off"),
        (broken, "503"),
        (binary, "not UTF-8"),
    ],
)
def test_a_bad_answer_is_an_error_and_what_was_kept_stays(site: Site, home: Path, behaviour, message: str) -> None:
    site.put("aws", AWS)
    one(site)
    before = stored_offers()
    site.behaviour[PATH] = behaviour
    done = one(site, day=LATER)
    assert done.error is not None and re.search(message, done.error.message), done.error
    assert done.error.hint and "still serve" in done.error.hint
    assert stored_offers() == before


def test_half_a_file_of_unknown_length_is_refused(site: Site, home: Path) -> None:
    site.behaviour[PATH] = cut_off_unannounced
    done = one(site)
    assert isinstance(done.error, FieldError) and "cut off" in done.error.message


def test_a_server_too_slow_is_given_up(site: Site, home: Path) -> None:
    site.behaviour[PATH] = slow
    done = one(site, seconds=0.2)
    assert isinstance(done.error, UnpredictableError) and "within 0.2 s" in done.error.message


def test_a_file_without_end_is_given_up(site: Site) -> None:
    site.behaviour[PATH] = endless
    with pytest.raises(UnpredictableError, match="larger than 1 MiB"):
        fetch_text([site.url + PATH], most_bytes=2**20)
    assert MOST_BYTES >= 2**24


def test_a_file_that_says_it_is_too_large_is_not_read(site: Site) -> None:
    site.put("aws", AWS)
    with pytest.raises(UnpredictableError, match="larger than"):
        fetch_text([site.url + PATH], most_bytes=100)


def test_without_a_network_one_error_is_enough(home: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        nowhere = f"http://127.0.0.1:{taken.getsockname()[1]}"  # bound and not listening: refused at once
        (done,) = refresh(["skypilot"], DAY, base_url=nowhere)
    assert isinstance(done.error, UnpredictableError) and done.error.reason == OUT_OF_REACH
    assert offers() and offers_for("h100-sxm-80gb", DAY), "what is shipped still serves"


def test_feeds_by_name() -> None:
    assert sources_of(["skypilot:aws", "skypilot:aws"]) == (("skypilot", "aws"),)
    assert {feed for feed, _ in sources_of([])} == {"skypilot", "gpuhunt"}
    for bad in ("skypilto", "skypilot:awss", ""):
        with pytest.raises(UnknownNameError):
            sources_of([bad])


def test_difference_takes_the_cheapest_region() -> None:
    listed = skypilot.parse_skypilot(AWS, "aws", DAY).offers
    assert difference(listed, listed) == ((), (), ())
    added, changed, gone = difference((), listed)
    assert len(added) == len({(o.instance, o.count) for o in listed}) and changed == () and gone == ()
