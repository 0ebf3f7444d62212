"""A server started as a person starts it, and requests over real sockets."""

from __future__ import annotations

import http.client
import json
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import psutil

START_S = 300
CHROMIUM = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
WAIT_MS = 120_000


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def ended(process: psutil.Process) -> bool:
    """Whether ``process`` has ended, one that goes while it is looked at among them."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@dataclass
class Running:
    """A server of this test, and the token of its run."""

    process: subprocess.Popen[str]
    address: str
    port: int
    token: str
    cookies: dict[str, str] = field(default_factory=dict)

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def cookie(self) -> str:
        return f"gpuwise-{self.port}={self.token}"

    def request(
        self, method: str, path: str, headers: dict[str, str | None] | None = None, body: bytes | None = None, cookie: bool = True
    ) -> Reply:
        """One request on a connection of its own; a header of None is left out."""
        given: dict[str, str | None] = {"Host": self.host, "Cookie": self.cookie if cookie else None, **(headers or {})}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in given.items():
                if value is not None:
                    connection.putheader(name, value)
            if body is not None and "Content-Length" not in given:
                connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            response = connection.getresponse()
            return Reply(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        finally:
            connection.close()

    def get(self, path: str, **query: str) -> Reply:
        return self.request("GET", path + ("?" + urlencode(query) if query else ""))

    def post(self, path: str, document: object, **headers: str | None) -> Reply:
        """As a page of this server sends it."""
        usual = {"Origin": f"http://{self.host}", "Content-Type": "application/json", "Sec-Fetch-Site": "same-origin"}
        more = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.request("POST", path, {**usual, **more}, json.dumps(document).encode())


def start(*options: str, cwd: Path | None = None) -> Running:
    """A server on a free port; its stderr is the test's."""
    command = [sys.executable, "-m", "gpuwise", "ui", "--port", "0", "--no-browser", "--json", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=cwd)
    assert process.stdout is not None
    said = json.loads(process.stdout.readline())
    return Running(process, said["address"], said["port"], urlsplit(said["address"]).query.removeprefix("token="))


def stop(running: Running) -> int:
    running.process.send_signal(signal.SIGINT)
    try:
        return running.process.wait(timeout=START_S)
    finally:
        running.process.kill()
        if running.process.stdout is not None:
            running.process.stdout.close()
