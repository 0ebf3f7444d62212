"""The drawn reports of ``gpuwise cost``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwise.cli.reports import write_report

if TYPE_CHECKING:
    from pathlib import Path

    from gpuwise.money.rent_or_own.comparison import RentOrOwn
    from gpuwise.money.run.cost import RunCost


def write_figures(cost: RunCost | RentOrOwn, html: Path | None, svg: Path | None, **title: str) -> None:
    """The drawn reports."""
    if html is not None or svg is not None:
        from gpuwise.report.cost_page import write_cost_figure, write_cost_page

        write_report(html, lambda path: write_cost_page(cost, path, **title))
        write_report(svg, lambda path: write_cost_figure(cost, path))
