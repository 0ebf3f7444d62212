# pyright: reportMissingImports=false
"""Each row of the table of threats, over real sockets: what another page, another site or another user could try."""

from __future__ import annotations

import socket

import psutil
import pytest
from tests.ui.serving import Running

CHANGING = "/api/files"
"""An address that takes POST; the guard is asked first."""


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "localhost.evil.example:{port}"]
)
def test_another_host_is_refused_with_the_token_too(server: Running, host: str) -> None:
    """DNS rebinding: the name of the attacker, the address of this machine."""
    reply = server.request("GET", f"/?token={server.token}", {"Host": host.format(port=server.port)})
    assert reply.status == 403 and "set-cookie" not in reply.headers
    assert server.token not in reply.text


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "LOCALHOST", "[::1]"])
def test_this_machine_by_its_usual_names(server: Running, name: str) -> None:
    assert server.request("GET", "/", {"Host": f"{name}:{server.port}"}).status == 200


def test_a_host_given_twice_or_not_at_all_is_refused(server: Running) -> None:
    for lines in (f"Host: {server.host}\r\nHost: {server.host}\r\n", ""):
        with socket.create_connection(("127.0.0.1", server.port), timeout=300) as raw:
            raw.sendall(f"GET / HTTP/1.1\r\n{lines}Cookie: {server.cookie}\r\nConnection: close\r\n\r\n".encode())
            assert raw.recv(65536).split()[1] in (b"400", b"403")


@pytest.mark.parametrize("path", ["/", "/plan", "/assets/style.css", "/api/state", "/api/ask/plan?model=gpt2", "/nothing"])
def test_nothing_is_told_without_a_token(server: Running, path: str) -> None:
    reply = server.request("GET", path, cookie=False)
    assert reply.status == 401 and "`gpuwise ui`" in reply.text and server.token not in reply.text


@pytest.mark.parametrize("token", ["", "x", "0" * 43, "é"])
def test_a_bad_token_is_refused_in_words(server: Running, token: str) -> None:
    from urllib.parse import quote

    reply = server.request("GET", f"/?token={quote(token)}x")
    assert reply.status == 403 and "not that of this run" in reply.text and "set-cookie" not in reply.headers
    assert server.request("GET", "/", {"Cookie": f"gpuwise-{server.port}=x{quote(token)}"}).status == 401


def test_the_token_becomes_a_cookie_that_no_other_site_sends_and_no_script_reads(server: Running) -> None:
    reply = server.request("GET", f"/?token={server.token}", cookie=False)
    cookie = reply.headers["set-cookie"]
    assert reply.status == 200 and "SameSite=Strict" in cookie and "HttpOnly" in cookie and f"gpuwise-{server.port}=" in cookie
    assert server.token not in reply.text


def test_no_address_gives_the_token_away(server: Running) -> None:
    for path in ("/", "/api/state", "/api/pages", "/assets/app.js"):
        reply = server.get(path)
        assert server.token not in reply.text and server.token not in str(reply.headers)


@pytest.mark.parametrize(
    "origin", [None, "http://evil.example", "null", "http://127.0.0.1:1", "https://127.0.0.1:{port}", "file://"]
)
def test_a_request_that_does_something_needs_our_origin(server: Running, origin: str | None) -> None:
    reply = server.post(CHANGING, {}, Origin=None if origin is None else origin.format(port=server.port))
    assert reply.status == 403 and "another page" in reply.json["error"]


@pytest.mark.parametrize("site", ["cross-site", "same-site", "none"])
def test_what_the_browser_says_of_the_sender_counts_too(server: Running, site: str) -> None:
    """same-site is another port of this machine: another program's page."""
    assert server.post(CHANGING, {}, Sec_Fetch_Site=site).status == 403


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", None, "application/jsonx"]
)
def test_a_form_of_another_page_is_not_json(server: Running, kind: str | None) -> None:
    assert server.post(CHANGING, {}, Content_Type=kind).status == 415


def test_a_body_without_end_is_refused(server: Running) -> None:
    assert server.post(CHANGING, {}, Content_Length="99999999").status == 413


@pytest.mark.parametrize("method", ["DELETE", "PUT", "PATCH", "OPTIONS", "TRACE", "BREW"])
def test_no_other_method_does_anything(server: Running, method: str) -> None:
    """Ray's CVE-2026-27482: POST and PUT were looked at, DELETE was forgotten."""
    for headers in (
        {},
        {"Origin": "http://evil.example"},
        {"Origin": f"http://{server.host}", "Content-Type": "application/json"},
    ):
        reply = server.request(method, "/api/state", headers)
        assert reply.status in (400, 405) and "access-control-allow-origin" not in reply.headers


@pytest.mark.parametrize("cookie", [True, False])
def test_no_websocket_is_opened(server: Running, cookie: bool) -> None:
    headers = {
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
        "Sec-WebSocket-Version": "13",
    }
    assert server.request("GET", "/api/state", headers, cookie=cookie).status == 403


def test_a_websocket_is_closed_even_where_a_server_would_speak_it() -> None:
    import asyncio

    from gpuwise.ui.guard import Guard

    reached, sent = [], []

    async def app(scope: object, receive: object, send: object) -> None:
        reached.append(scope)

    async def receive() -> dict[str, str]:
        return {"type": "websocket.connect"}

    async def send(message: object) -> None:
        sent.append(message)

    guard = Guard(app, ["127.0.0.1:1"], "token")
    asyncio.run(guard({"type": "websocket", "headers": [(b"cookie", b"gpuwise-1=token")]}, receive, send))  # type: ignore[arg-type]
    assert not reached and sent == [{"type": "websocket.close", "code": 1008}]


@pytest.mark.parametrize("path", ["/", "/assets/style.css", "/api/state", "/nothing", "/api/ask/fit?model=/etc/passwd"])
def test_every_answer_forbids_inline_scripts_frames_and_other_origins(server: Running, path: str) -> None:
    for reply in (server.get(path), server.request("GET", path, cookie=False)):
        policy = reply.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "script-src 'self'" in policy and "style-src 'self'" in policy
        assert "unsafe" not in policy and "frame-ancestors 'none'" in policy and "base-uri 'none'" in policy
        assert reply.headers["x-content-type-options"] == "nosniff" and reply.headers["referrer-policy"] == "no-referrer"
        assert "server" not in reply.headers and "access-control-allow-origin" not in reply.headers


@pytest.mark.parametrize(
    "path",
    [
        "/assets/../command.py",
        "/assets/%2e%2e/command.py",
        "/assets/..%2fcommand.py",
        "/assets//etc/passwd",
        "/assets/vendored.json/..",
    ],
)
def test_no_address_is_a_path(server: Running, path: str) -> None:
    assert server.get(path).status == 404


@pytest.mark.parametrize(
    "model", ["/etc/passwd", "../x", "~/model", "config.json", "train.py:make_step", "C:\\x", "--html", "os:system"]
)
@pytest.mark.parametrize("question", ["plan", "fit"])
def test_no_query_names_a_file_or_code(server: Running, question: str, model: str) -> None:
    reply = server.get(f"/api/ask/{question}", model=model, on="4090")
    assert reply.status == 422 and "is not a name" in reply.json["error"]


@pytest.mark.parametrize(
    "query",
    [
        {"html": "/tmp/x.html"},
        {"json": "yes"},
        {"model": "gpt2", "trace": "/etc/passwd"},
        {"on": "4090\x1b[2J"},
        {"on": "x" * 300},
    ],
)
def test_no_query_gives_what_the_page_does_not_ask(server: Running, query: dict[str, str]) -> None:
    reply = server.get("/api/ask/plan", **query)
    assert reply.status == 422 and reply.json["hint"]


def test_a_model_of_the_folder_one_stands_in_is_not_read(tmp_path_factory: pytest.TempPathFactory, server: Running) -> None:
    folder = psutil.Process(server.process.pid).cwd()
    assert folder
    from pathlib import Path

    (Path(folder) / "secret").mkdir(exist_ok=True)
    (Path(folder) / "secret" / "config.json").write_text("{}")
    assert "unknown model" in server.get("/api/ask/fit", model="secret", on="4090").json["error"]


def test_only_this_machine_is_listened_to(server: Running) -> None:
    listening = [c for c in psutil.Process(server.process.pid).net_connections("tcp") if c.status == psutil.CONN_LISTEN]
    assert [(c.laddr.ip, c.laddr.port) for c in listening] == [("127.0.0.1", server.port)]
