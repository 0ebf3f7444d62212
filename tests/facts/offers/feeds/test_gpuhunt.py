"""gpuhunt: its own ``CatalogItem`` objects, from its own catalogue class with a provider of ours."""

from __future__ import annotations

import builtins
import datetime
import importlib
import sys
from typing import Any

import pytest

from gpuwise.errors import MissingExtraError, UnpredictableError
from gpuwise.facts.offers.feeds import gpuhunt as feed
from gpuwise.facts.offers.feeds.refresh import refresh

library = pytest.importorskip("gpuhunt")
DAY = datetime.date(2026, 11, 21)


def item(provider: str, instance: str, price: float, count: int, gpu: str | None, memory: float | None, **more: Any) -> Any:
    settings: dict[str, Any] = {
        "location": "us-1",
        "cpu": 8,
        "memory": 64.0,
        "spot": False,
        "disk_size": None,
        "gpu_vendor": library.AcceleratorVendor.NVIDIA if count else None,
    }
    return library.CatalogItem(
        provider=provider,
        instance_name=instance,
        price=price,
        gpu_count=count,
        gpu_name=gpu,
        gpu_memory=memory,
        **(settings | more),
    )


AWS = [
    item("aws", "m7i.large", 0.1, 0, None, None),
    item("aws", "p5.48xlarge", 56.0, 8, "H100", 80.0),
    item("aws", "p5.48xlarge", 28.0, 8, "H100", 80.0, spot=True),
    item("aws", "p5.48xlarge", 60.0, 8, "H100", 80.0, location="eu-1"),
    item("aws", "g6.xlarge", 0.8, 1, "L4", 24.0),
    item("aws", "g5.xlarge", 0.5, 1, "A10G", 24.0, spot=True),
    item("aws", "x1.mystery", 5.0, 1, "H100", 80.0),
]
RUNPOD = [
    item("runpod", "NVIDIA H100 80GB HBM3", 2.7, 1, "H100", 80.0, location="CA-MTL-1"),
    item("runpod", "NVIDIA H100 80GB HBM3", 5.4, 2, "H100", 80.0, location="CA-MTL-1"),
    item("runpod", "NVIDIA H100 PCIe", 2.0, 1, "H100", 80.0, location="CA-MTL-1"),
    item("runpod", "NVIDIA H100 NVL", 2.6, 1, "H100NVL", 94.0, location="CA-MTL-1"),
    item("runpod", "NVIDIA H100 80GB HBM3", 30.0, 8, "H100", 80.0, flags=["runpod-cluster"]),
    item("runpod", "AMD Instinct MI300X OAM", 2.5, 1, "MI300X", 192.0, gpu_vendor=library.AcceleratorVendor.AMD),
]
GCP = [
    item("gcp", "v5litepod-8", 9.6, 1, "v5litepod-8", 128.0, gpu_vendor=library.AcceleratorVendor.GOOGLE),
    item("gcp", "a3-highgpu-8g", 88.0, 8, "H100", 80.0),
]


class Fake:
    """A live provider of gpuhunt, as its catalogue calls one."""

    def __init__(self, name: str, items: list[Any] | Exception) -> None:
        self.NAME, self.items = name, items

    def get(self, query_filter: Any = None, balance_resources: bool = True, apply_filter: bool = False) -> list[Any]:
        if isinstance(self.items, Exception):
            raise self.items
        return list(self.items)


def catalog(**items: list[Any] | Exception) -> Any:
    """gpuhunt's own catalogue with live providers of ours; its published ones hold nothing."""
    made = library.Catalog(auto_reload=False)
    made.loaded_at = 1.0
    for name, listed in items.items():
        made.add_provider(Fake(name, listed))
    return made


def test_items_become_offers_per_accelerator_with_their_spot_price() -> None:
    parsed = feed.parse_items(AWS, "aws", DAY)
    found = {(o.instance, o.region): o for o in parsed.offers}
    p5 = found["p5.48xlarge", "us-1"]
    assert (p5.accelerator_id, p5.count, p5.on_demand_usd_per_hour, p5.spot_usd_per_hour) == ("h100-sxm-80gb", 8, 7.0, 3.5)
    assert (p5.spot_kind, p5.source_key, p5.as_of) == ("market", "gpuhunt", DAY)
    assert found["p5.48xlarge", "eu-1"].spot_usd_per_hour is None
    assert set(found) == {("p5.48xlarge", "us-1"), ("p5.48xlarge", "eu-1"), ("g6.xlarge", "us-1")}
    assert {s.reason: s.count for s in parsed.skipped} == {
        "form or memory not stated": 1,
        "spot price without an on-demand price": 1,
    }
    assert parsed.rows == 6


def test_forms_come_from_the_instance_and_clusters_are_left_out() -> None:
    parsed = feed.parse_items(RUNPOD, "runpod", DAY)
    assert {(o.accelerator_id, o.count, o.on_demand_usd_per_hour) for o in parsed.offers} == {
        ("h100-sxm-80gb", 1, 2.7),
        ("h100-sxm-80gb", 2, 2.7),
        ("h100-pcie-80gb", 1, 2.0),
        ("h100-nvl-94gb", 1, 2.6),
        ("mi300x", 1, 2.5),
    }


def test_tpus_count_chips() -> None:
    parsed = feed.parse_items(GCP, "gcp", DAY)
    assert {(o.accelerator_id, o.count, round(o.on_demand_usd_per_hour, 3)) for o in parsed.offers} == {
        ("tpu-v5e", 8, 1.2),
        ("h100-sxm-80gb", 8, 11.0),
    }


def test_prices_that_are_none_are_left_out() -> None:
    bad = [item("aws", "g6.xlarge", price, 1, "L4", 24.0) for price in (0.0, -1.0, float("nan"), float("inf"))]
    assert feed.parse_items(bad[:1], "aws", DAY).offers == ()
    for one in bad:
        assert feed.parse_items([one], "aws", DAY).skipped[0].reason == "no on-demand price"


def test_a_real_catalogue_is_queried(home: Any) -> None:
    made = catalog(vultr=[item("vultr", "vcg-l40s", 1.7, 1, "L40S", 48.0)])
    (done,) = refresh(["gpuhunt:vultr"], DAY, load_catalog=lambda: made)
    assert done.error is None and [o.accelerator_id for o in done.offers] == ["l40s"]
    assert done.path is not None and done.path.parent.name == "gpuhunt-vultr"


def test_a_provider_in_trouble_is_said_and_the_others_go_on(home: Any) -> None:
    made = catalog(
        vultr=library.ProviderError("no answer from vultr"),
        hotaisle=[item("hotaisle", "1x", 2.0, 1, "MI300X", 192.0, gpu_vendor=library.AcceleratorVendor.AMD)],
    )
    done = {r.source: r for r in refresh(["gpuhunt"], DAY, load_catalog=lambda: made)}
    assert isinstance(done["gpuhunt-vultr"].error, UnpredictableError)
    assert "no answer from vultr" in done["gpuhunt-vultr"].error.message
    assert len(done["gpuhunt-hotaisle"].offers) == 1
    assert isinstance(done["gpuhunt-crusoe"].error, UnpredictableError), "not set up on this machine"


def test_no_network_is_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUHUNT_CATALOG_URL", "http://127.0.0.1:9/nothing")
    importlib.import_module("gpuhunt._internal.default").default_catalog.cache_clear()
    with pytest.raises(UnpredictableError, match="could not fetch") as caught:
        feed.load_catalog()
    assert caught.value.hint and "still serve" in caught.value.hint


def test_without_gpuhunt_the_way_to_install_it_is_given(monkeypatch: pytest.MonkeyPatch, home: Any) -> None:
    real = builtins.__import__

    def no_gpuhunt(name: str, *more: Any) -> Any:
        if name.startswith("gpuhunt"):
            raise ImportError(name)
        return real(name, *more)

    for name in [n for n in sys.modules if n.split(".")[0] == "gpuhunt"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(builtins, "__import__", no_gpuhunt)
    for call in (feed.load_catalog, feed.provider_names, lambda: list(refresh(["gpuhunt"], DAY))):
        with pytest.raises(MissingExtraError) as caught:
            call()
        assert "pip install 'gpuwise[prices]'" in (caught.value.hint or "")
