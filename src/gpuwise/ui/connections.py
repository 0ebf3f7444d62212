# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUntypedBaseClass=false
# the extra `ui` may be absent where this is checked
"""Drops connections that do not send a whole request, so that they do not block others."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_S = 10.0
"""Time for one request to arrive whole, headers and body, from when the connection is made or the answer before it has ended."""
MOST_OPEN = 128
"""Open connections: half of the open files that a process may have on macOS. Browsers open six a page."""


class Connection(H11Protocol):
    """HTTP/1.1 as uvicorn speaks it, with a time limit for every request. If too many connections are open, the one with the
    oldest incomplete request is closed."""

    _deadline: asyncio.TimerHandle | None = None
    since = 0.0
    """When the request that is sent now began, on the clock of the loop."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._begin_request()
        if len(self.connections) > MOST_OPEN:
            waiting = [c for c in self.connections if isinstance(c, Connection) and c.is_incomplete]
            _, first = min((c.since, n) for n, c in enumerate(waiting))  # this one is among them
            waiting[first].drop()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        self._begin_request()
        super().on_response_complete()

    @property
    def is_incomplete(self) -> bool:
        """Whether the client has still to send a request, or the rest of one."""
        return self.conn.their_state in (h11.IDLE, h11.SEND_BODY)

    def drop(self) -> None:
        """Close without an answer."""
        self.connections.discard(self)
        self.transport.abort()

    def _begin_request(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self.since = self.loop.time()
        self._deadline = self.loop.call_later(REQUEST_S, self._check)

    def _check(self) -> None:
        if self.is_incomplete:
            self.drop()
