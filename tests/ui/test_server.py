# pyright: reportMissingImports=false
"""Starting, stopping, two at once, a browser that leaves: each with an answer, and nothing left behind."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import psutil
import pytest
from tests.ui.serving import Running, ended, start, stop

from gpuwise.ui.workers import FIRST, SEARCHES, Worker, Workers, locked, remove_left_folders

SLOW = "/api/ask/plan?" + urlencode({"model": "llama-3.1-405b", "on": "512xH100-SXM", "tokens": "1T", "precision": "auto"})


def until(true: Callable[[], object], within_s: float = 300.0) -> None:
    end = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < end, "never came true"
        time.sleep(0.02)


def test_a_query_gives_what_the_command_line_beside_it_prints(server: Running) -> None:
    query = {"model": "gpt2", "on": "4xA100-80GB", "tokens": "1B", "micro_batch": "8"}
    reply = server.get("/api/ask/plan", **query).json
    assert reply["command"] == "gpuwise plan gpt2 --on 4xA100-80GB --tokens 1B --micro-batch 8"
    words = [sys.executable, "-m", *reply["command"].split(), "--json"]
    printed = json.loads(subprocess.run(words, capture_output=True, text=True, timeout=300).stdout)
    assert reply["code"] == 0
    for document in (printed, reply["document"]):
        document["search"].pop("seconds")
    assert reply["document"] == printed


@pytest.mark.parametrize(
    ("question", "query", "error"),
    [
        ("plan", {"model": "gpt9", "on": "4090"}, "unknown model 'gpt9'"),
        ("plan", {"model": "gpt2", "on": "0x4090"}, "0"),
        ("plan", {"model": "gpt2", "on": "4090", "tokens": "-3"}, "count"),
    ],
)
def test_what_a_command_refuses_is_refused_in_its_words(
    server: Running, question: str, query: dict[str, str], error: str
) -> None:
    reply = server.get(f"/api/ask/{question}", **query)
    assert reply.status == 422 and error in reply.json["error"] and reply.json["hint"]


def test_an_unknown_question_and_an_unknown_page(server: Running) -> None:
    assert server.get("/api/ask/rm").status == 422
    assert server.get("/nothing").status == 404


def test_a_browser_that_leaves_ends_its_search_and_the_next_is_answered(server: Running) -> None:
    server.get("/api/ask/plan", model="gpt2", on="4090", tokens="1B")  # the processes are ready
    with socket.create_connection(("127.0.0.1", server.port), timeout=300) as raw:
        raw.sendall(f"GET {SLOW} HTTP/1.1\r\nHost: {server.host}\r\nCookie: {server.cookie}\r\n\r\n".encode())
        until(lambda: server.get("/api/state").json["running"] == 1)
    until(lambda: server.get("/api/state").json["running"] == 0)
    assert server.get("/api/ask/plan", model="gpt2", on="4090", tokens="1B").json["code"] == 0


def test_a_second_one_on_the_same_port_is_told_so(gpuwise: Any, server: Running) -> None:
    ran = gpuwise("ui", "--port", str(server.port), "--no-browser")
    assert ran.code == 2 and f"port {server.port} is taken" in ran.err and "--port 0" in ran.err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--host", "0.0.0.0"], "every address"),
        (["--host", "example.org"], "not an address"),
        (["--host", "203.0.113.7"], "cannot listen"),
        (["--port", "70000"], "not a port"),
    ],
)
def test_an_address_that_cannot_be_is_refused(gpuwise: Any, options: list[str], words: str) -> None:
    pytest.importorskip("starlette")
    ran = gpuwise("ui", "--no-browser", *options)
    assert ran.code == 2 and words in ran.err and "hint:" in ran.err


def test_without_the_extra_the_hint_installs_it(gpuwise: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "starlette" else found(name, *more))
    ran = gpuwise("ui")
    assert ran.code == 1 and "pip install 'gpuwise[ui]'" in ran.err


def test_layouts_are_answered_beside_searches_and_again_after_their_process_has_died() -> None:
    pytest.importorskip("starlette")
    running = start()
    query = {"model": "gpt2", "on": "4xA100-80GB", "tokens": "1B", "micro_batch": "2"}
    try:
        refused = running.get("/api/moment", **query, dp="3", global_batch="512")
        assert (
            refused.status == 422
            and set(refused.json) == {"error", "hint", "faults"}
            and "3 data-parallel ranks" in refused.json["error"]
        )
        one = running.get("/api/moment", **query, dp="4")
        assert one.status == 200 and one.json["document"]["best"]["strategy"]["micro_batch"] == 2
        assert running.get("/api/moment", **query, dp="4").body == one.body
        for worker in psutil.Process(running.process.pid).children():
            worker.kill()
        until(lambda: running.get("/api/moment", **query, dp="4", recompute="full").status == 200)
    finally:
        assert stop(running) == 0


def test_a_page_is_served_without_what_only_answers_need() -> None:
    pytest.importorskip("starlette")
    script = "import sys, gpuwise.ui.server, gpuwise.ui.application; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], timeout=300).returncode == 0


def test_a_process_of_searches_evaluates_layouts_once_it_is_warm_and_while_no_search_wants_it() -> None:
    async def lent() -> list[Worker | None]:
        workers = Workers()
        await workers.start()
        try:
            found = [workers.free(), workers.free()]
            async with asyncio.timeout(300):
                while found[-1] is None:
                    await asyncio.sleep(0.02)
                    found[-1] = workers.free()
            assert found[-1] is not found[0] and found[-1].warm
            said = [one async for one in workers.layouts(found[-1], [FIRST], datetime.date(2026, 11, 28))]
            assert len(said) == 1 and isinstance(said[0], bytes)
            workers.running = SEARCHES
            return [*found, workers.free()]
        finally:
            await workers.stop()

    own, of_searches, wanted = asyncio.run(lent())
    assert own is not None and of_searches is not None and wanted is None


@pytest.mark.parametrize("busy", [False, True])
def test_nothing_is_left_behind(busy: bool) -> None:
    pytest.importorskip("starlette")
    running = start()
    parent = psutil.Process(running.process.pid)
    opened = contextlib.ExitStack()
    try:
        until(lambda: len(parent.children()) == 2)  # of layouts, and of the first search
        workers = parent.children()
        folder = Path(workers[0].cwd())
        if busy:
            raw = opened.enter_context(socket.create_connection(("127.0.0.1", running.port), timeout=300))
            raw.sendall(f"GET {SLOW} HTTP/1.1\r\nHost: {running.host}\r\nCookie: {running.cookie}\r\n\r\n".encode())
            until(lambda: running.get("/api/state").json["running"] == 1)
            workers = parent.children()
    finally:
        code = stop(running)
        opened.close()
    assert code == 0
    until(lambda: all(ended(worker) for worker in workers))
    assert not folder.exists()


@pytest.mark.parametrize("busy", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_a_server_that_is_killed_leaves_no_process(busy: bool) -> None:
    pytest.importorskip("starlette")
    running = start()
    parent = psutil.Process(running.process.pid)
    until(lambda: len(parent.children()) == 2)  # of layouts, and of the first search
    with contextlib.ExitStack() as opened:
        if busy:
            raw = opened.enter_context(socket.create_connection(("127.0.0.1", running.port), timeout=300))
            raw.sendall(f"GET {SLOW} HTTP/1.1\r\nHost: {running.host}\r\nCookie: {running.cookie}\r\n\r\n".encode())
            until(lambda: running.get("/api/state").json["running"] == 1)
        workers = parent.children()
        folder = Path(workers[0].cwd())
        running.process.kill()
        running.process.wait(timeout=300)
    assert running.process.stdout is not None
    running.process.stdout.close()
    until(lambda: all(ended(worker) for worker in workers))
    os.utime(folder, (0, 0))  # not one that another app has just made
    remove_left_folders()
    assert not folder.exists()


def test_only_an_empty_folder_that_nobody_holds_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for name in ("left", "held", "full", "new", "elsewhere"):
        (tmp_path / (f"gpuwise-ui-{name}" if name != "elsewhere" else name)).mkdir()
    (tmp_path / "gpuwise-ui-link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "gpuwise-ui-full" / "file").write_text("")
    held = locked(str(tmp_path / "gpuwise-ui-held"))
    assert held is not None and locked(str(tmp_path / "gpuwise-ui-held")) is None
    for folder in tmp_path.iterdir():
        if not folder.name.endswith("new"):
            os.utime(folder, (0, 0), follow_symlinks=False)
    remove_left_folders()
    os.close(held)
    assert {p.name.removeprefix("gpuwise-ui-") for p in tmp_path.iterdir()} == {"held", "full", "new", "link", "elsewhere"}
