# pyright: reportMissingImports=false
"""One server for all tests of a process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest
from tests.ui.serving import CHROMIUM, FLAGS, WAIT_MS, Running, start, stop

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


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("no Chromium here")
    with api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield started
        started.close()


@pytest.fixture
def visit(browser: Any, server: Running) -> Iterator[Callable[..., Any]]:
    """Open an address as the terminal prints it; what the console says fails the test."""
    said: list[str] = []
    contexts: list[Any] = []

    def open_page(path: str, width: int = 1280, **more: Any) -> Any:
        context = browser.new_context(viewport={"width": width, "height": 900}, accept_downloads=True, **more)
        contexts.append(context)
        context.set_default_timeout(WAIT_MS)
        page = context.new_page()
        page.on("console", lambda m: said.append(m.text) if m.type in ("error", "warning") and "422" not in m.text else None)
        page.on("pageerror", lambda e: said.append(str(e)))
        page.on("request", lambda r: said.append(r.url) if urlsplit(r.url).netloc not in (server.host, "") else None)
        page.goto(f"http://{server.host}{path}{'&' if '?' in path else '?'}token={server.token}")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert said == []
