"""Answers to draw, made once a process, and readers of what was drawn."""

from __future__ import annotations

import datetime
import re
import xml.etree.ElementTree as ET
from functools import cache
from html.parser import HTMLParser
from typing import Any

import pytest

from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.offers.storage import storage_price
from gpuwise.money.cost import user_price
from gpuwise.money.rent_or_own.demand import Demand
from gpuwise.money.rent_or_own.document import comparison_document
from gpuwise.money.rent_or_own.ownership import catalogue_ownership
from gpuwise.money.rent_or_own.renting import rent_of
from gpuwise.money.rent_or_own.scenarios import rent_or_own
from gpuwise.money.run.cost import Run, run_cost
from gpuwise.money.run.document import run_document
from gpuwise.pick.compare.comparison import compare_accelerators
from gpuwise.pick.compare.document import comparison_document as compared_document
from gpuwise.plan.cluster_document import cluster_document
from gpuwise.predict.estimate import Estimate
from gpuwise.report.answers.choosing import compare_answer
from gpuwise.report.answers.costs import own_answer, run_answer
from gpuwise.report.answers.written import page_of

TODAY = datetime.date(2026, 11, 21)
VOID = {"meta", "link", "br", "img", "hr", "input"}


@cache
def _comparison(model: str | None) -> dict[str, Any]:
    return compared_document(compare_accelerators(["RTX 4090", "L40S", "A100 80GB"], today=TODAY, model=model))


@cache
def _owned() -> dict[str, Any]:
    cluster = find_cluster("8xH100-SXM")
    demand = Demand(10_000.0, peak_over_mean=2.0)
    result = rent_or_own(demand, catalogue_ownership(cluster), rent_of(cluster, TODAY), 36, n_scenarios=2000, accelerator="H100")
    return comparison_document(result)


@cache
def _billed() -> dict[str, Any]:
    from gpuwise.facts.grid import find_grid

    cost = run_cost(
        Run(
            time_s=Estimate(1.2e6, 1.5e6, 1.9e6, "derived"),
            cluster=find_cluster("64xH100-SXM"),
            price=user_price(3.5),
            state_bytes=1.3e11,
            weight_bytes=1.6e10,
            data_bytes=4e12,
            storage=storage_price(None),
            grid=find_grid("France"),
        )
    )
    asked = {"model": {"id": None, "name": "My run"}, "tokens": 1e12, "cluster": cluster_document(cost.run.cluster)}
    return asked | run_document(cost)


@cache
def _page(name: str) -> str:
    return {
        "compare": lambda: page_of(compare_answer(_comparison("llama-3.1-8b")), "Compared", ""),
        "compare-plain": lambda: page_of(compare_answer(_comparison(None)), "Compared", ""),
        "rent-or-own": lambda: page_of(own_answer(_owned()), "Rent or own", ""),
        "run": lambda: page_of(run_answer(_billed()), "A run", ""),
    }[name]()


PAGES = ("compare", "compare-plain", "rent-or-own", "run")


@pytest.fixture
def comparison() -> dict[str, Any]:
    return _comparison("llama-3.1-8b")


@pytest.fixture
def plain_comparison() -> dict[str, Any]:
    return _comparison(None)


@pytest.fixture
def owned() -> dict[str, Any]:
    return _owned()


@pytest.fixture
def billed() -> dict[str, Any]:
    return _billed()


@pytest.fixture(params=PAGES)
def page(request: pytest.FixtureRequest) -> str:
    """Each kind of page in turn."""
    return _page(request.param)


class Reader(HTMLParser):
    """Collects elements and text; raises on tags that do not nest."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.words: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == [], f"left open: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {k: v or "" for k, v in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {k: v or "" for k, v in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.words.append(data)

    def attributes(self, tag: str) -> list[dict[str, str]]:
        return [a for t, a in self.elements if t == tag]

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


@pytest.fixture
def read() -> type[Reader]:
    return Reader


def svgs(html: str) -> list[ET.Element]:
    """Every SVG of a page as XML; raises when one is not well-formed."""
    return [ET.fromstring(match) for match in re.findall(r"<svg .*?</svg>", html, re.DOTALL)]


@pytest.fixture
def svgs_of() -> object:
    return svgs
