# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUntypedBaseClass=false
# the extra `ui` may be absent where this is checked
"""The socket, the token and the run of the server, until it is interrupted."""

from __future__ import annotations

import errno
import ipaddress
import secrets
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from gpuwise.errors import InputError, require

if TYPE_CHECKING:
    import uvicorn

    from gpuwise.ui.guard import App

LOOPBACK = "127.0.0.1"
USUAL_PORT = 8317
LINGER_S = 1
"""Seconds for open streams to end when the server stops."""


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens on one address of this machine. Raises InputError where it cannot."""
    try:
        address = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        raise InputError(f"{host!r} is not an address", hint="give a number, like --host 192.168.1.20") from None
    if address.is_unspecified:
        raise InputError(
            f"{host} is every address of this machine at once",
            hint="name the one that others reach it by, like --host 192.168.1.20",
        )
    if not 0 <= port <= 65535:
        raise InputError(f"{port} is not a port", hint="ports go up to 65535; --port 0 takes a free one")
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # asyncio sets TCP_NODELAY where this is given
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((str(address), port))
        made.listen(128)
    except OSError as error:
        made.close()
        if error.errno == errno.EADDRINUSE:
            hint = "is another `gpuwise ui` running? open its address, or take a free port: --port 0"
            raise InputError(f"port {port} is taken", hint=hint) from None
        reason = error.strerror or str(error)
        raise InputError(f"cannot listen on {host} port {port}: {reason}", hint="try --port 0, or another --host") from None
    return made


def hosts_of(listening: socket.socket) -> list[str]:
    """Accepted host names of requests: the address itself, and for loopback its usual names."""
    host, port = listening.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    names = {shown, "localhost", LOOPBACK, "[::1]"} if is_loopback(listening) else {shown}
    return [f"{name}:{port}" for name in sorted(names)]


def is_loopback(listening: socket.socket) -> bool:
    """Whether ``listening`` is bound to an address that only this machine reaches."""
    return ipaddress.ip_address(listening.getsockname()[0]).is_loopback


def serve(listening: socket.socket, folder: Path, ready: Callable[[str], None]) -> None:
    """Serve until interrupted; own code is read from ``folder``, and ``ready`` is called with the address to open, which holds
    the token of this run.

    Raises MissingExtraError without the extra ``ui``.
    """
    for library in ("starlette", "uvicorn"):
        require(library, "the page")
    from gpuwise.ui.application import application
    from gpuwise.ui.guard import Guard
    from gpuwise.ui.workers import Workers

    token = secrets.token_urlsafe(32)
    host, port = listening.getsockname()[:2]
    guarded = Guard(application(Workers(), folder), hosts_of(listening), token)
    server_of(guarded, lambda: ready(f"http://{f'[{host}]' if ':' in host else host}:{port}/?token={token}")).run([listening])


def server_of(guarded: App, ready: Callable[[], None]) -> uvicorn.Server:
    """A server of ``guarded`` that calls ``ready`` once it listens."""
    import uvicorn

    from gpuwise.ui.connections import Connection

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets=sockets)
            if not self.should_exit:
                ready()

    config = uvicorn.Config(
        guarded,  # type: ignore[arg-type]
        log_level="critical",
        access_log=False,
        ws="none",
        http=Connection,
        loop="asyncio",
        lifespan="on",
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=LINGER_S,
    )
    return Server(config)
