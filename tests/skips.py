"""A test may be skipped because a package is not installed, never because one that is installed cannot be imported."""

import importlib.util
import re
from collections.abc import Generator
from typing import Any

import pytest

_NOT_IMPORTED = re.compile(r"could not import '([^'.]+)[^']*': (.*)", re.DOTALL)


def broken_import(reason: str) -> str | None:
    """What fails, where the reason of a skip is an import of something that is installed; None for any other reason."""
    found = _NOT_IMPORTED.search(reason)
    if found is None or importlib.util.find_spec(found[1]) is None:
        return None
    return f"{found[1]} is installed and cannot be imported: {found[2]}"


def _failed_where_broken(report: Any) -> Any:
    if report.skipped and isinstance(report.longrepr, tuple):
        broken = broken_import(report.longrepr[2])
        if broken is not None:
            report.outcome, report.longrepr = "failed", broken
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, Any, Any]:
    return _failed_where_broken((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, Any, Any]:
    return _failed_where_broken((yield))
