"""The catalogue of XIDs."""

from __future__ import annotations

import pytest

from gpuwise.facts.hardware.xids import XID_ACTIONS, xid, xids
from gpuwise.facts.sources import sources


def test_every_row_is_whole() -> None:
    assert len(xids()) >= 100
    for code, fact in xids().items():
        assert code == fact.code and fact.source in sources()
        assert fact.meaning and not fact.meaning.endswith(".")
        assert fact.advice == XID_ACTIONS[fact.action]


@pytest.mark.parametrize(
    ("code", "action", "fault"),
    [
        (13, "restart-application", False),
        (31, "restart-application", False),
        (48, "reset-gpu", True),
        (63, "ignore", False),
        (64, "reset-gpu", True),
        (74, "check-nvlink", True),
        (79, "restart-host", True),
        (94, "restart-application", False),
        (95, "reset-gpu", True),
        (119, "reset-gpu", True),
    ],
)
def test_the_codes_that_matter_most(code: int, action: str, fault: bool) -> None:
    fact = xid(code)
    assert fact is not None
    assert (fact.action, fact.is_fault) == (action, fault)


def test_an_unknown_code_is_none() -> None:
    assert xid(4711) is None
    assert xid(1) is None  # unused
