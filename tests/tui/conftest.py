"""Every screen test has settings of its own."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def own_settings(tmp_path, monkeypatch):
    """Nothing of the person's own settings is read or written."""
    monkeypatch.setenv("GPUWISE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"
