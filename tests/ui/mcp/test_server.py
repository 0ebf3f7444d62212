# pyright: reportMissingImports=false
"""The server for agents, asked by the SDK's own client: a real process over stdio, and HTTP."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("mcp")

import httpx2
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from gpuwise.ui.mcp.server import LONGEST, STORED

SERVER = [sys.executable, "-m", "gpuwise", "mcp"]
GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "agents.md"
SLOW_CALL = ("capacity", {"model": "llama-3.1-70b", "rate": "40/s", "workload": "chat"})


def asked(use: Callable[[Client], Awaitable[Any]], *words: str) -> Any:
    """What ``use`` returns of a client of ``gpuwise mcp WORDS``."""

    async def run() -> Any:
        async with Client(StdioServerParameters(command=SERVER[0], args=[*SERVER[1:], *words])) as client:
            return await use(client)

    return asyncio.run(asyncio.wait_for(run(), 240))


def text_of(result: Any) -> str:
    return str(result.content[0].text)


def recorded() -> dict[str, Any]:
    """The exchange of the guide: the call and its result."""
    return json.loads(re.findall(r"```json\n(\{\n \"method\".*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)[0])


def test_one_call_answers_whether_a_fine_tune_fits_on_two_3090s() -> None:
    exchange = recorded()
    assert exchange["params"]["arguments"]["on"] == "2x3090"

    async def use(client: Client) -> Any:
        return await client.call_tool(exchange["params"]["name"], exchange["params"]["arguments"])

    result = asked(use)
    assert not result.is_error
    assert result.structured_content.keys() == exchange["result"]["structuredContent"].keys()
    for key in ("state", "code", "command"):
        assert result.structured_content[key] == exchange["result"]["structuredContent"][key]
    screen = text_of(result)
    assert len(screen.splitlines()) <= 26 and screen.startswith("Llama 3.1 8B")
    assert result.content[1].uri == "gpuwise://answers/1"


def test_answers_are_short_and_the_rest_is_read_in_parts() -> None:
    seen: list[str] = []

    async def progress(_: float, __: float | None, message: str | None) -> None:
        seen.append(message or "")

    async def use(client: Client) -> None:
        listed = await client.list_tools()
        assert {"fit", "plan", "capacity", "read_answer"} <= {t.name for t in listed.tools} and "profile" not in {
            t.name for t in listed.tools
        }
        fit = await client.call_tool("fit", {"model": "gpt2", "on": "4090", "for": "train"})
        assert fit.structured_content["code"] == 0 and fit.structured_content["figures"]
        part = await client.call_tool("read_answer", {"answer": 1, "pointer": "/memory_bytes"})
        assert json.loads(text_of(part)).keys() >= {"low", "expected", "high"}
        whole = await client.read_resource("gpuwise://answers/1")
        assert json.loads(whole.contents[0].text)["model"]["id"] == "gpt2"
        for given, message in (
            ({"answer": 9}, "there is no answer 9"),
            ({"answer": 1, "pointer": "/nothing"}, "there is no 'nothing'"),
            ({"answer": 1, "pointer": 3}, "pointer: 3 is not text"),
        ):
            refused = await client.call_tool("read_answer", given)
            assert refused.is_error and message in text_of(refused)
        many = await client.call_tool("gpus", {"show": ["all"]})
        assert len(text_of(many)) < LONGEST + 200 and "characters more: call read_answer" in text_of(many)
        large = await client.call_tool("read_answer", {"answer": 2})
        assert large.is_error and "name a smaller one; it has" in text_of(large)
        wrong = await client.call_tool("fit", {"model": "gpt-2000", "on": 7})
        assert wrong.is_error and "write it in quotes" in text_of(wrong)
        unknown = await client.call_tool("fit", {"model": "gpt-2000", "on": "4090"})
        assert unknown.is_error and text_of(unknown).startswith("error: unknown model 'gpt-2000'\nhint: did you mean")
        none = await client.call_tool("fitt", {})
        assert none.is_error and "did you mean 'fit'" in text_of(none)
        served = await client.call_tool("capacity", {"model": "gpt2", "on": "4090", "rate": "2/s"}, progress_callback=progress)
        assert not served.is_error

    asked(use)
    assert any("simulating" in message for message in seen)
    assert STORED > 2


def test_a_cancelled_call_ends_and_the_next_is_answered() -> None:
    async def use(client: Client) -> None:
        started = asyncio.Event()

        async def progress(_: float, __: float | None, ___: str | None) -> None:
            started.set()

        call = asyncio.ensure_future(client.call_tool(*SLOW_CALL, progress_callback=progress))
        await asyncio.wait_for(started.wait(), 120)
        server = next(p for p in psutil.Process().children() if "mcp" in p.cmdline())
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        for _ in range(100):
            await asyncio.sleep(0.1)
            if all(_is_idle(p) for p in server.children(recursive=True)):
                break
        else:
            pytest.fail("the cancelled search still runs")
        answer = await client.call_tool("explain", {"word": ["MFU"]})
        assert not answer.is_error

    asked(use)


def _is_idle(process: psutil.Process) -> bool:
    try:
        return process.cpu_percent(0.2) < 20.0
    except psutil.NoSuchProcess:
        return True


def test_a_client_that_goes_away_ends_the_server_and_its_processes() -> None:
    with subprocess.Popen(SERVER, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as server:
        assert server.stdin is not None and server.stdout is not None and server.stderr is not None
        hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
        name, arguments = SLOW_CALL
        for message in (
            {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello},
            {"jsonrpc": "2.0", "method": "notifications/initialized"},
            {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": name, "arguments": arguments}},
        ):
            server.stdin.write(json.dumps(message).encode() + b"\n")
            server.stdin.flush()
        assert json.loads(server.stdout.readline())["result"]["serverInfo"]["name"] == "gpuwise"
        for _ in range(200):
            workers = psutil.Process(server.pid).children()
            if workers and any(p.cpu_percent(0.1) > 50 for p in workers):
                break
        server.stdout.close()
        server.stdin.close()
        assert server.wait(timeout=60) == 0
        assert server.stderr.read() == b""
        assert not [p for p in workers if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


def test_own_code_runs_where_it_was_allowed(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "net.py").write_text("import torch\n\ndef make_step():\n    return torch.nn.Linear(8, 8)\n")

    async def use(client: Client) -> Any:
        assert "profile" in {t.name for t in (await client.list_tools()).tools}
        return await client.call_tool("fit", {"model": "net.py:make_step", "on": "4090", "options": {"input": ["4x8"]}})

    assert "4090" in text_of(asked(use, "--folder", str(tmp_path), "--allow-code"))


def test_http_answers_those_that_have_the_token() -> None:
    with subprocess.Popen([*SERVER, "--http", "--port", "0", "--json"], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            printed = json.loads(server.stdout.readline())
            asyncio.run(asyncio.wait_for(_over_http(printed["address"], *printed["header"].split(": ")), 240))
        finally:
            server.terminate()


async def _over_http(address: str, name: str, value: str) -> None:
    async with (
        httpx2.AsyncClient(headers={name: value}, timeout=120) as http,
        Client(streamable_http_client(address, http_client=http)) as client,
    ):
        answer = await client.call_tool("fit", {"model": "gpt2", "on": "4090"})
        assert not answer.is_error and answer.structured_content["verdict"].startswith("GPT-2")
    async with httpx2.AsyncClient() as http:
        for headers, status in (({}, 401), ({name: "Bearer x"}, 401), ({name: value, "Host": "evil.example"}, 421)):
            reply = await http.post(address, headers=headers, json={})
            assert reply.status_code == status, (headers, reply.status_code)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--allow-code",), "--allow-code without --folder"),
        (("--folder", "/nowhere"), "/nowhere is not a folder"),
        (("--port", "1"), "--port is for --http"),
        (("--json",), "--json is for --http"),
    ],
)
def test_bad_options_are_refused(words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    from gpuwise.cli.app import run

    assert run(["mcp", *words]) == 2
    assert message in capsys.readouterr().err
