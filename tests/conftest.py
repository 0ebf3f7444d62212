"""What every test shares: no clock in a verdict (hypothesis deadlines are timed assertions), and a price store
of its own (the developer's contracts are nobody's test data)."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("gpuwise", deadline=None)
settings.load_profile("gpuwise")


@pytest.fixture(scope="session")
def _home_of_the_session(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gpuwise-home")


@pytest.fixture(scope="session", autouse=True)
def _no_home_of_a_developer(_home_of_the_session: Path) -> Iterator[None]:
    """``$GPUWISE_HOME`` is an empty folder; a test that writes there takes the fixture ``home``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPUWISE_HOME", str(_home_of_the_session))
        yield


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty ``$GPUWISE_HOME`` for one test."""
    monkeypatch.setenv("GPUWISE_HOME", str(tmp_path))
    return tmp_path
