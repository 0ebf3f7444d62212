"""Every screen test has settings of its own, and waits for what it wants to see instead of for an idle machine."""

from __future__ import annotations

import asyncio

import pytest


@pytest.fixture(autouse=True)
def own_settings(tmp_path, monkeypatch):
    """Nothing of the person's own settings is read or written."""
    monkeypatch.setenv("GPUWISE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture(autouse=True)
def no_wait_for_idle(monkeypatch) -> None:
    """Textual's pilot waits until the process uses no processor time, which a loaded machine never shows."""

    async def turn(*_: float) -> None:
        for _ in range(3):
            await asyncio.sleep(0.01)

    monkeypatch.setattr("textual.pilot.wait_for_idle", turn)
    monkeypatch.setattr("textual.app.wait_for_idle", turn)
