# pyright: reportMissingImports=false
"""One server for all tests of a process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
from tests.ui.serving import Running, start, stop

from gpuwise.cli.app import run


class Ran(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def gpuwise(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Run a command line in this process."""

    def call(*arguments: str) -> Ran:
        code = run(arguments)
        said = capsys.readouterr()
        return Ran(code, said.out, said.err)

    return call


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    pytest.importorskip("starlette")
    pytest.importorskip("uvicorn")
    running = start(cwd=tmp_path_factory.mktemp("folder"))
    yield running
    assert stop(running) == 0
