"""The frames as Prometheus metrics, named as DCGM names them where the meaning is the same (``metrics.csv``).

A scrape gives the latest frame: it asks no device. Text format 0.0.4, which every Prometheus reads.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from gpuwise.errors import InputError
from gpuwise.facts.loading import Field, parse_csv
from gpuwise.machine.telemetry.causes.cause import Cause
from gpuwise.machine.telemetry.frames import Card, Frame

METRICS_FILE = Path(__file__).with_name("metrics.csv")
METRIC_SCHEMA: Mapping[str, Field] = {
    "metric": Field("text"),
    "kind": Field("text", choices=("gauge", "counter")),
    "reading": Field("text"),
    "factor": Field("number"),
    "help": Field("text"),
    "source": Field("text", required=False),
}
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of ``metrics.csv``."""

    name: str
    kind: str
    reading: str
    factor: float
    help: str
    source: str


_MADE: Mapping[str, Callable[[Card], float | None]] = {
    "up": lambda card: 1.0 if card.ok else 0.0,
    "memory_free_bytes": lambda card: _free(card),
}
"""Readings that are no field."""

OWN: Mapping[str, tuple[str, str]] = {
    "gpuwise_gpu_clocks_held_seconds_total": ("counter", "Time with reduced clocks since the driver was loaded, by reason."),
    "gpuwise_gpu_cause": ("gauge", "1 for each thing that holds the GPU back now."),
    "gpuwise_gpu_process_memory_bytes": ("gauge", "Memory of a process on the GPU."),
    "DCGM_FI_DEV_XID_ERRORS": ("gauge", "Value of the last XID error encountered."),
    "gpuwise_cards": ("gauge", "GPUs that are watched."),
    "gpuwise_frame_age_seconds": ("gauge", "Since the GPUs were last asked."),
}
"""Metrics with labels of their own: kind and help."""


@cache
def metrics() -> tuple[Metric, ...]:
    """Every metric that is one reading of a card."""
    rows = parse_csv(METRICS_FILE.read_text(encoding="utf-8"), METRIC_SCHEMA, METRICS_FILE.name)
    return tuple(
        Metric(r.text("metric"), r.text("kind"), r.text("reading"), r.number("factor"), r.text("help"), r.text("source"))
        for r in rows
    )


def read(card: Card, reading: str) -> float | None:
    """The value at a dotted path of a card; None where unknown."""
    derived = _MADE.get(reading)
    if derived is not None:
        return derived(card)
    value: object = card
    for part in reading.split("."):
        value = getattr(value, part)
        if value is None:
            return None
    return float(value)  # type: ignore[arg-type]


def _free(card: Card) -> float | None:
    s = card.sample
    if s.memory_total_bytes is None or s.memory_used_bytes is None:
        return None
    return max(0, s.memory_total_bytes - s.memory_used_bytes - (s.memory_reserved_bytes or 0))


def exposition(frame: Frame, causes: tuple[Cause, ...], age_s: float = 0.0) -> str:
    """A frame in Prometheus' text format. An unknown reading has no line."""
    labels = {c.number: _card_labels(c, frame) for c in frame.cards}
    parts: list[str] = []
    for metric in metrics():
        values = [(labels[c.number], v * metric.factor) for c in frame.cards if (v := read(c, metric.reading)) is not None]
        parts += block(metric.name, metric.kind, metric.help, values)
    for name, values in _own_metrics(frame, causes, age_s, labels).items():
        parts += block(name, *OWN[name], values)
    return "\n".join(parts) + "\n"


def _own_metrics(
    frame: Frame, causes: tuple[Cause, ...], age_s: float, labels: Mapping[int, dict[str, str]]
) -> dict[str, list[tuple[dict[str, str], float]]]:
    by_metric: dict[str, list[tuple[dict[str, str], float]]] = {name: [] for name in OWN}
    for card in frame.cards:
        card_labels = labels[card.number]
        held_back_s = card.health.held_back_s if card.health is not None else dict[str, float]()
        for reason, held_s in held_back_s.items():
            by_metric["gpuwise_gpu_clocks_held_seconds_total"].append((card_labels | {"reason": reason.lower()}, held_s))
        for row in card.processes or ():
            if row.gpu.memory_bytes is not None:
                about = {"pid": str(row.pid), "process": row.host.name or "", "user": row.host.user or ""}
                by_metric["gpuwise_gpu_process_memory_bytes"].append((card_labels | about, row.gpu.memory_bytes))
    for cause in causes:
        if cause.number is not None:
            about = {"cause": cause.id, "severity": cause.severity.value}
            by_metric["gpuwise_gpu_cause"].append((labels[cause.number] | about, 1.0))
    last = {number: xid.code for number, xid in frame.xids if number is not None}
    by_metric["DCGM_FI_DEV_XID_ERRORS"] = [(labels[n], float(last.get(n, 0))) for n in labels if frame.cards[n].ok or n in last]
    by_metric["gpuwise_cards"] = [({"Hostname": frame.host.name or ""}, float(len(frame.cards)))]
    by_metric["gpuwise_frame_age_seconds"] = [({"Hostname": frame.host.name or ""}, age_s)]
    return by_metric


def _card_labels(card: Card, frame: Frame) -> dict[str, str]:
    i = card.identity
    return {
        "gpu": str(card.number),
        "UUID": i.uuid or "",
        "pci_bus_id": i.pci_bus_id or "",
        "device": f"{i.vendor}{i.index}",
        "modelName": i.name,
        "Hostname": frame.host.name or "",
    }


def block(name: str, kind: str, about: str, values: Iterable[tuple[Mapping[str, str], float]]) -> list[str]:
    """The lines of one metric: help, kind, and a line for each set of labels; none without values."""
    lines = [f"{name}{{{','.join(f'{k}={_quoted(v)}' for k, v in labels.items())}}} {value!r}" for labels, value in values]
    return [f"# HELP {name} {_escape(about)}", f"# TYPE {name} {kind}", *lines] if lines else []


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _quoted(text: str) -> str:
    return '"' + _escape(text).replace('"', '\\"') + '"'


def parse_address(text: str) -> tuple[str, int]:
    """Host and port from ``9400``, ``:9400``, ``0.0.0.0:9400`` or ``[::1]:9400``; without a host only this machine is served.
    Raises InputError."""
    host, _, port = text.strip().rpartition(":")
    if not port.isascii() or not port.isdigit() or not 0 <= int(port) <= 65535:
        raise InputError(f"--prometheus: {text!r} has no port", hint="write it like --prometheus :9400")
    return host.strip("[]") or "127.0.0.1", int(port)


class TextServer:
    """Serves what ``text()`` gives at ``http://HOST:PORT/metrics``. Raises InputError where the port is taken."""

    def __init__(self, host: str, port: int, text: Callable[[], str]) -> None:
        from http.server import ThreadingHTTPServer

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            address_family = _family(host)

        try:
            self._server = Server((host, port), _handler(text))
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise InputError(f"--prometheus: {host}:{port} cannot be served: {reason}", hint="take another port") from error
        self.port = int(self._server.server_address[1])
        self.address = f"http://{f'[{host}]' if ':' in host else host}:{self.port}/metrics"
        self._thread = threading.Thread(target=self._server.serve_forever, name="gpuwise-exporter", daemon=True)
        self._thread.start()
        self._closed = False

    def close(self) -> None:
        """Stop serving."""
        if not self._closed:
            self._closed = True
            self._server.shutdown()
            self._server.server_close()
            self._thread.join(timeout=5.0)


class Exporter(TextServer):
    """A sink that serves the latest frame."""

    def __init__(self, host: str, port: int) -> None:
        self._lock = threading.Lock()
        self._latest: tuple[Frame, tuple[Cause, ...], float] | None = None
        super().__init__(host, port, self.text)

    @property
    def notices(self) -> tuple[str, ...]:
        return ()

    def text(self) -> str:
        """The text of a scrape now."""
        with self._lock:
            latest = self._latest
        if latest is None:
            return "\n"
        frame, causes, taken_s = latest
        return exposition(frame, causes, time.monotonic() - taken_s)

    def write(self, frame: Frame, causes: tuple[Cause, ...]) -> None:
        """Serve this frame from now on."""
        with self._lock:
            self._latest = (frame, causes, time.monotonic())


def _family(host: str) -> int:
    import socket

    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _handler(text: Callable[[], str]) -> type:
    from http.server import BaseHTTPRequestHandler

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.split("?")[0] not in ("/metrics", "/"):
                self.send_error(404)
                return
            body = text().encode("utf-8", "backslashreplace")
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """A scrape is nothing to report."""

    return Handler
