"""The table of processes: contents, order, filter, tree; and its lines. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from gpuwise.machine.devices.readings import GpuProcess
from gpuwise.machine.telemetry.frames import Frame, HostProcess
from gpuwise.tui.lines.text_runs import UNKNOWN, Line, Run, clock_words, left, line, percent, right, run, short_bytes
from gpuwise.tui.state import Order

NO_NUMBER = 1 << 30


@dataclass(frozen=True, slots=True)
class Entry:
    """A row of the table: a process on a GPU, or (without ``gpu``) on the host only."""

    host: HostProcess
    number: int | None = None
    """Number of the card."""
    gpu: GpuProcess | None = None
    age_s: float | None = None
    branch: str = ""
    """Lines of the tree before its command."""

    @property
    def key(self) -> tuple[int, int]:
        """Identity of the row between frames: process and GPU."""
        return self.host.pid, -1 if self.number is None else self.number


Value = Callable[[Entry], float | str | None]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table."""

    name: str
    title: str
    width: int
    """0: the rest of the line."""
    value: Value
    """Sort value; None goes last."""
    text: Callable[[Entry], str]
    keep: int
    """Columns with a higher number go first where there is no room."""
    numeric: bool = True


def _of_gpu(reading: Callable[[GpuProcess], float | None]) -> Value:
    return lambda e: None if e.gpu is None else reading(e.gpu)


def _share(value: Value) -> Callable[[Entry], str]:
    def text(e: Entry) -> str:
        share = value(e)
        return UNKNOWN if share is None or isinstance(share, str) else percent(share)

    return text


def _bytes(value: Value) -> Callable[[Entry], str]:
    def text(e: Entry) -> str:
        size = value(e)
        return UNKNOWN if isinstance(size, str) else short_bytes(size)

    return text


_KINDS = {"compute": "C", "graphics": "G", "both": "C+G"}
_MEMORY, _SM = _of_gpu(lambda g: g.memory_bytes), _of_gpu(lambda g: g.sm_utilization)
_BUS = _of_gpu(lambda g: g.memory_utilization)
_ENCODER, _DECODER = _of_gpu(lambda g: g.encoder_utilization), _of_gpu(lambda g: g.decoder_utilization)
_CPU: Value = lambda e: e.host.cpu_share  # noqa: E731
_HOST_MEMORY: Value = lambda e: e.host.host_memory_bytes  # noqa: E731


def command_of(e: Entry) -> str:
    """Its command line, or why it is unknown."""
    return e.host.command or e.host.name or f"({e.host.unknown.get('name', 'unknown')})"


COLUMNS: tuple[Column, ...] = (
    Column("gpu", "GPU", 4, lambda e: e.number, lambda e: "" if e.number is None else str(e.number), 0),
    Column("pid", "PID", 7, lambda e: e.host.pid, lambda e: str(e.host.pid), 0),
    Column("user", "USER", 9, lambda e: e.host.user, lambda e: e.host.user or UNKNOWN, 3, False),
    Column(
        "kind",
        "KIND",
        4,
        lambda e: None if e.gpu is None else e.gpu.kind,
        lambda e: "" if e.gpu is None else _KINDS.get(e.gpu.kind, e.gpu.kind),
        6,
        False,
    ),
    Column("memory", "GPU MEM", 8, _MEMORY, _bytes(_MEMORY), 0),
    Column("sm", "SM", 4, _SM, _share(_SM), 1),
    Column("bus", "MEM BW", 7, _BUS, _share(_BUS), 8),
    Column("encoder", "ENC", 4, _ENCODER, _share(_ENCODER), 9),
    Column("decoder", "DEC", 4, _DECODER, _share(_DECODER), 9),
    Column("cpu", "CPU", 5, _CPU, _share(_CPU), 1),
    Column("host-memory", "HOST MEM", 9, _HOST_MEMORY, _bytes(_HOST_MEMORY), 4),
    Column("time", "TIME", 8, lambda e: e.age_s, lambda e: clock_words(e.age_s), 5),
    Column("container", "CONTAINER", 19, lambda e: e.host.container, lambda e: e.host.container or "", 7, False),
    Column("command", "COMMAND", 0, command_of, lambda e: e.branch + command_of(e), 0, False),
)
"""Columns by name, left to right."""
BY_NAME: Mapping[str, Column] = {c.name: c for c in COLUMNS}
SHORTEST_COMMAND = 20
HOST_ONLY = ("pid", "user", "cpu", "host-memory", "time", "container", "command")
"""Columns that say something of a process on no card."""


def entries_of(frame: Frame, boot_now_s: float | None) -> list[Entry]:
    """Every process of every GPU; ``boot_now_s`` is the time since boot in seconds, where known."""
    out = list[Entry]()
    for card in frame.cards:
        for row in card.processes or ():
            started_s = row.host.started_s
            age_s = None if started_s is None or boot_now_s is None else max(0.0, boot_now_s - started_s)
            out.append(Entry(row.host, row.number, row.gpu, age_s))
    return out


def arrange(entries: Sequence[Entry], order: Order, ancestors: Mapping[int, HostProcess] | None = None) -> list[Entry]:
    """Filtered and sorted; as a tree if requested, with ``ancestors`` (by process number) above the processes."""
    shown = [e for e in entries if (order.card is None or e.number == order.card) and matches(e, order.filter)]
    ordered = _sorted(shown, order)
    return _tree(ordered, ancestors or {}) if order.tree else ordered


def matches(e: Entry, words: str) -> bool:
    """Whether every word of the filter is in the process number, user, container or command; ``gpu:2`` means that card."""
    text = f"{e.host.pid} {e.host.user or ''} {e.host.container or ''} {e.host.name or ''} {command_of(e)}".lower()
    for word in words.lower().split():
        name, colon, value = word.partition(":")
        if colon and name == "gpu":
            if value and str(e.number) != value:
                return False
        elif word not in text:
            return False
    return True


def _sorted(entries: Sequence[Entry], order: Order) -> list[Entry]:
    value = BY_NAME[order.column].value
    by_place = sorted(entries, key=lambda e: (NO_NUMBER if e.number is None else e.number, e.host.pid))
    measured, unknown = [e for e in by_place if value(e) is not None], [e for e in by_place if value(e) is None]
    measured.sort(key=lambda e: _comparable(value(e)), reverse=order.falling)
    return measured + unknown


def _comparable(value: float | str | None) -> tuple[float, str]:
    return (0.0, value.lower()) if isinstance(value, str) else (value or 0.0, "")


def _tree(entries: Sequence[Entry], ancestors: Mapping[int, HostProcess]) -> list[Entry]:
    """Parents before their children, children in the order they had; a process without a known parent is a root."""
    rows: dict[int, list[Entry]] = {}
    for e in entries:
        rows.setdefault(e.host.pid, []).append(e)
    parents = {pid: entries_of_pid[0].host.parent_pid for pid, entries_of_pid in rows.items()}
    waiting = list(rows)
    while waiting:
        above = parents.get(waiting.pop())
        if above is not None and above > 1 and above not in rows and above in ancestors:
            rows[above] = [Entry(ancestors[above])]
            parents[above] = ancestors[above].parent_pid
            waiting.append(above)
    children: dict[int | None, list[int]] = {}
    for pid in rows:
        above = parents.get(pid)
        children.setdefault(above if above in rows and above != pid else None, []).append(pid)
    out, pids = list[Entry](), set[int]()

    def add(pid: int, before: str, last: bool, depth: int) -> None:
        if pid in pids:
            return
        pids.add(pid)
        mark = "" if depth == 0 else before + ("└─ " if last else "├─ ")
        out.extend(replace(e, branch=mark) for e in rows[pid])
        inner = before if depth == 0 else before + ("   " if last else "│  ")
        below = children.get(pid, [])
        for i, child in enumerate(below):
            add(child, inner, i == len(below) - 1, depth + 1)

    for root in children.get(None, []):
        add(root, "", True, 0)
    for pid in list(rows):
        add(pid, "", True, 0)
    return out


def columns_for(width: int, entries: Sequence[Entry], *, host_only: bool = False) -> list[tuple[Column, int]]:
    """The columns that fit, with their widths. Columns without any value are dropped first."""
    silent = {c.name for c in COLUMNS if c.keep >= 6 and all(c.text(e) in ("", UNKNOWN, "0%") for e in entries)}
    chosen = [c for c in COLUMNS if c.name not in silent and (not host_only or c.name in HOST_ONLY)]
    while len(chosen) > 1 and sum(c.width + 1 for c in chosen) + SHORTEST_COMMAND > width:
        worst = max(chosen, key=lambda c: c.keep)
        if worst.keep == 0:
            break
        chosen.remove(worst)
    rest = width - sum(c.width + 1 for c in chosen if c.width)
    return [(c, c.width or max(1, rest)) for c in chosen]


def heading(columns: Sequence[tuple[Column, int]], order: Order) -> Line:
    """Titles of the columns; a click on one sorts by it."""
    runs = list[Run]()
    for n, (c, width) in enumerate(columns):
        sorts = c.name == order.column
        arrow = ("▼" if order.falling else "▲") if sorts else ""
        title = arrow + c.title if c.numeric else c.title + arrow
        # an arrow that has no room takes the place of the title's last letter
        title = title if len(title) <= width else (arrow + c.title)[:width]
        fitted = right(title, width) if c.numeric else left(title, width)
        runs.append(run(fitted, "title" if sorts else "dim", f"sort:{c.name}"))
        if n < len(columns) - 1:
            runs.append(run(" ", "", f"sort:{c.name}"))
    return line(*runs, back="heading")


def row(e: Entry, columns: Sequence[tuple[Column, int]], *, selected: bool) -> Line:
    """One process."""
    runs = list[Run]()
    for n, (c, width) in enumerate(columns):
        text = c.text(e)
        if c.name == "command":
            runs.append(run(e.branch, "faint"))
            runs.append(run(left(command_of(e), max(0, width - len(e.branch))), "" if e.gpu else "dim"))
        else:
            runs.append(run(right(text, width) if c.numeric else left(text, width), _role(c, e, text)))
        if n < len(columns) - 1:
            runs.append(run(" "))
    return line(*runs, back="selected" if selected else "", action=f"process:{e.host.pid}:{e.key[1]}")


def _role(c: Column, e: Entry, text: str) -> str:
    if text in ("", UNKNOWN):
        return "faint"
    if c.name in ("memory", "sm"):
        return "strong"
    if c.name == "cpu" and e.host.pegged_thread is not None:
        return "warn"
    return "dim" if c.name in ("user", "kind", "time", "container") else ""
