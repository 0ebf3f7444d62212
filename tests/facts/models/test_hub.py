"""Models of the Hugging Face Hub, against a server on this machine that answers as the Hub does: an interface, files that
redirect to another host (a CDN), parts of files, gated and missing models, a limit of questions, slow and cut answers."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.facts.models.gguf_files import llama_8b
from tests.facts.models.test_safetensors import SMALL, llama, write

from gpuwise.errors import InputError, UnknownNameError
from gpuwise.facts.models import hub
from gpuwise.facts.models.catalogue import find_model, find_model_to_run
from gpuwise.facts.models.safetensors import INDEX, read_tensors
from gpuwise.serve.formats import weight_bytes


class Server:
    """The Hub at ``url``, and its CDN at another port. ``asked`` has path, range and token of each question."""

    def __init__(self) -> None:
        self.repos: dict[str, dict[str, Path]] = {}
        self.answers: dict[str, tuple[int, dict[str, str]]] = {}
        self.asked: list[tuple[str, str, str, str]] = []
        self.slow_s = 0.0
        self.cut = False
        self.servers = [self._serve("hub"), self._serve("cdn")]
        self.url, self.cdn = (f"http://127.0.0.1:{server.server_port}" for server in self.servers)

    def _serve(self, kind: str) -> ThreadingHTTPServer:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, format: str, *args: Any) -> None:
                pass

            def do_GET(self) -> None:
                headers = (self.headers.get("Range") or "", self.headers.get("Authorization") or "")
                outer.asked.append((kind, self.path, *headers))
                time.sleep(outer.slow_s)
                (outer.of_hub if kind == "hub" else outer.of_cdn)(self)

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server

    def of_hub(self, to: BaseHTTPRequestHandler) -> None:
        name = "/".join(to.path.removeprefix("/api/models").strip("/").split("/")[:2])
        if name in self.answers:
            code, headers = self.answers[name]
            return self.send(to, code, b"{}", headers)
        if name not in self.repos:
            return self.send(to, 401, b"{}", {"X-Error-Code": "RepoNotFound"})
        if to.path.startswith("/api/models/"):
            about = {"id": name, "siblings": [{"rfilename": file} for file in self.repos[name]]}
            return self.send(to, 200, json.dumps(about).encode())
        file = to.path.split("/resolve/main/")[1]
        if file not in self.repos[name]:
            return self.send(to, 404, b"")
        if file.endswith(".json"):
            return self.send(to, 200, self.repos[name][file].read_bytes())
        return self.send(to, 302, b"", {"Location": f"{self.cdn}/{name}/{file}?signed=1"})

    def of_cdn(self, to: BaseHTTPRequestHandler) -> None:
        name, _, file = to.path.split("?")[0].strip("/").rpartition("/")
        path = self.repos[name][file]
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", to.headers.get("Range") or "")
        if found is None:
            return self.send(to, 200, b"never the whole file")
        begin, size = int(found[1]), path.stat().st_size
        end = min(int(found[2]), size - 1)
        with path.open("rb") as content:
            content.seek(begin)
            part = content.read(end - begin + 1)
        return self.send(to, 206, part, {"Content-Range": f"bytes {begin}-{end}/{size}"})

    def send(self, to: BaseHTTPRequestHandler, code: int, content: bytes, headers: dict[str, str] | None = None) -> None:
        to.send_response(code)
        for name, value in (headers or {}).items():
            to.send_header(name, value)
        to.send_header("Content-Length", str(len(content)))
        to.end_headers()
        to.wfile.write(content[: len(content) // 2] if self.cut else content)
        to.close_connection = True

    def repo(self, name: str, folder: Path) -> None:
        self.repos[name] = {str(p.relative_to(folder)): p for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.fixture
def server(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    made = Server()
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("HF_ENDPOINT", made.url)
    monkeypatch.setenv("HF_HOME", str(home / "hf"))
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    yield made
    for one in made.servers:
        one.shutdown()
        one.server_close()


@pytest.fixture
def strange(server: Server, tmp_path: Path) -> Path:
    """A checkpoint of a kind that nobody described, in two parts."""
    folder = tmp_path / "strange"
    folder.mkdir()
    rows = list(llama(layers=4).items())
    weights: dict[str, str] = {}
    for name, part in (("model-00001-of-00002.safetensors", rows[:20]), ("model-00002-of-00002.safetensors", rows[20:])):
        write(folder / name, dict(part))
        weights |= {key: name for key, _ in part}
    (folder / INDEX).write_text(json.dumps({"weight_map": weights}))
    (folder / "config.json").write_text(json.dumps({**SMALL, "num_hidden_layers": 4, "model_type": "nobody_knows"}))
    (folder / "modeling_strange.py").write_text("raise SystemExit('code of a repository ran')")
    server.repo("someone/strange-v9", folder)
    return folder


def test_config_and_headers_alone_are_fetched_once(server: Server, strange: Path, home: Path) -> None:
    arch = find_model("someone/strange-v9")
    whole = sum(t.n_bytes for file in strange.glob("*.safetensors") for t in read_tensors(file))
    assert weight_bytes(arch, "bf16") == whole
    assert f"someone/strange-v9 is read as {server.url} has it" in arch.assumption
    assert str(home / "hub") in arch.assumption
    kept = sum(p.stat().st_size for p in (home / "hub").rglob("*") if p.is_file())
    assert kept < 30_000 < whole
    assert not any("modeling" in path for _, path, *_ in server.asked)
    assert all(given for kind, _, given, _ in server.asked if kind == "cdn"), "a part of a file each time"
    n = len(server.asked)
    assert find_model("someone/strange-v9") == arch
    assert len(server.asked) == n


def test_a_gguf_repository_is_its_usual_file_or_the_one_named(server: Server, tmp_path: Path, home: Path) -> None:
    folder = tmp_path / "ggufs"
    folder.mkdir()
    usual = llama_8b(folder / "Lexicon-Q4_K_M.gguf", vocab=32_000)
    (folder / "mmproj-Lexicon-f16.gguf").write_bytes(b"GGUF")
    (folder / "Lexicon-Q8_0.gguf").write_bytes(b"GGUF")
    server.repo("someone/Lexicon-GGUF", folder)
    arch = find_model("someone/Lexicon-GGUF")
    assert (arch.stored_format, arch.n_layers) == ("Q4_K_M", 32)
    assert weight_bytes(arch, "Q4_K_M") == weight_bytes(find_model(str(usual)), "Q4_K_M")
    assert sum(p.stat().st_size for p in (home / "hub").rglob("*.gguf")) < 2 * 2**20
    assert find_model("hf.co/someone/Lexicon-GGUF:q4_k_m").stored_bytes == arch.stored_bytes
    with pytest.raises(InputError, match="has no Q3_K_M file") as error:
        find_model("someone/Lexicon-GGUF:Q3_K_M")
    assert "Q4_K_M, Q8_0" in (error.value.hint or "")


def test_the_token_goes_to_the_hub_and_to_no_other_host(server: Server, strange: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    find_model("someone/strange-v9")
    assert {token for kind, *_, token in server.asked if kind == "hub"} == {"Bearer hf_secret"}
    assert {token for kind, *_, token in server.asked if kind == "cdn"} == {""}


@pytest.mark.parametrize(
    ("code", "headers", "says", "hint"),
    [
        (401, {"X-Error-Code": "GatedRepo"}, "is gated on the Hub", "set HF_TOKEN"),
        (401, {"X-Error-Code": "RepoNotFound"}, "is not on the Hub, or is gated", "check the name"),
        (404, {}, "is not on the Hub", "check the name"),
    ],
)
def test_a_model_that_the_hub_does_not_show_is_one_error(
    server: Server, code: int, headers: dict[str, str], says: str, hint: str
) -> None:
    server.answers["someone/strange-9b"] = (code, headers)
    for find in (find_model, find_model_to_run):
        with pytest.raises(InputError, match=says) as error:
            find("someone/strange-9b")
        assert hint in (error.value.hint or "")


@pytest.mark.parametrize("how", ["429", "500", "slow", "cut", "away"])
def test_without_an_answer_what_is_known_offline_answers(
    server: Server, strange: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "SECONDS", 1.0)
    server.repos["someone/strange-9b"] = server.repos["someone/strange-v9"]
    if how.isdigit():
        server.answers["someone/strange-9b"] = (int(how), {"Retry-After": "60"})
    server.slow_s = 0.7 if how == "slow" else 0.0
    server.cut = how == "cut"
    if how == "away":
        monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    begin = time.monotonic()
    with pytest.raises(UnknownNameError) as error:
        find_model("someone/strange-9b")
    assert time.monotonic() - begin < 3.0
    words = {"429": "in 60 s", "500": "answers 500", "slow": "within 1 s", "cut": "cut off|not answer", "away": "did not answer"}
    assert re.search(words[how], error.value.hint or "")
    assert find_model_to_run("someone/strange-9b").assumption.startswith("someone/strange-9b is not known and is read as")


def test_offline_and_known_names_ask_nothing(server: Server, strange: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find_model("meta-llama/Llama-3.1-8B")
    find_model("someone/Llama-3.1-8B-Lexi")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UnknownNameError):
        find_model("someone/strange-v9")
    assert server.asked == []
    monkeypatch.delenv("HF_HUB_OFFLINE")
    arch = find_model("someone/strange-v9")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert find_model("someone/strange-v9") == arch, "what was fetched before"


def test_a_name_server_that_hangs_is_not_waited_for(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "SECONDS", 0.2)
    over = threading.Event()

    def hangs(*_: object, **__: object) -> None:
        over.wait(20.0)
        raise socket.gaierror("no answer")

    monkeypatch.setattr("socket.getaddrinfo", hangs)
    begin = time.monotonic()
    with pytest.raises(UnknownNameError) as error:
        find_model("someone/strange-v9")
    assert time.monotonic() - begin < 5.0
    assert "did not answer within" in (error.value.hint or "")
    over.set()
