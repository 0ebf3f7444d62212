"""The width of an engine's intervals, from rows of several configurations."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from studies.serving import client_fit
from studies.serving.client_fit import _widths  # pyright: ignore[reportPrivateUsage]


def test_a_configuration_with_many_rows_does_not_narrow_the_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine rows of one configuration 1 % off and one of another 50 %: the next configuration may be like either."""
    monkeypatch.setattr(
        client_fit, "_ratios", lambda runs, front: {"ttft": np.exp(np.array([0.5 if runs[0].name == "b" else -0.01]))}
    )
    runs: Any = [SimpleNamespace(name=name) for name in "aaaaaaaaab"]
    front: Any = None
    assert _widths(runs, front)["ttft"] == pytest.approx(0.5 / 1.2816, abs=1e-3)
    assert _widths(runs[:9], front)["ttft"] == pytest.approx(0.01 / 1.2816, abs=1e-3)
