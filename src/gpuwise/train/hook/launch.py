"""Runs a script observed in its own process, with limits on time and memory. Every way it can end is a result."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from gpuwise.errors import require_posix
from gpuwise.processes import script_environment
from gpuwise.train.hook.journal import Follower, Journal
from gpuwise.train.hook.settings import Settings, write_settings
from gpuwise.train.hook.zygote import Run, Zygote
from gpuwise.units import KIB

if TYPE_CHECKING:
    import psutil

POLL_S = 0.1
MEMORY_LOOK_S = 0.5
MEMORY_LOOK_SHARE = 0.002
"""Maximum share of the time for reading memory use when no limit is set: the kernel sums every page of the process. Rule of
this project."""
GRACE_S = 5.0
"""Between asking a process to end and ending it."""
PATIENCE = 3
"""Signals after which a script that may take its time is ended. Rule of this project."""
FOR_SCRIPTS = {"PYTHONUNBUFFERED": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""Environment of a script, where the person has not set it. A script that starts torchrun (``--standalone`` or another c10d
rendezvous) can then restart its ranks: in a shared store a second attempt meets the addresses of the first (torch 2.13)."""


@dataclass(frozen=True, slots=True)
class Limits:
    """``wall_s`` from the start of the process; ``memory_bytes`` resident, of it and its children together."""

    wall_s: float | None = None
    memory_bytes: int | None = None
    first_step_s: float | None = None
    """Within which the first optimizer step has to come."""


NO_LIMITS = Limits()
HOW_ENDED = {
    "enough": "it was stopped after the steps that were asked for",
    "end": "it came to its end",
    "exit": "it exited",
    "error": "it raised an error",
    "time": "its time was over",
    "memory": "it took more memory than it may",
    "no step": "its first optimizer step did not come in time",
    "killed": "it was killed",
    "no torch": "it cannot import torch",
}
"""How a run ended, in words."""
Process = subprocess.Popen[bytes] | Run
Streams = tuple[int | None, int | None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a watched run ended, and its journal."""

    ended: str
    """A key of :data:`HOW_ENDED`."""
    code: int
    """Exit code as the shell gives it (128 + signal)."""
    journal: Journal = field(repr=False)
    wall_s: float
    peak_memory_bytes: int | None
    """Resident, with children, as sampled; no less than the process's own peak by the kernel."""
    error: str | None = None
    where: str | None = None
    out_of_memory: bool = False

    @property
    def how(self) -> str:
        """Its error, else how it ended."""
        return self.error or HOW_ENDED[self.ended]

    @property
    def ok(self) -> bool:
        """Whether it reached the end or the requested number of steps."""
        return self.ended in ("enough", "end") or (self.ended == "exit" and self.code == 0)


def launch(
    settings: Settings,
    folder: Path,
    *,
    limits: Limits = NO_LIMITS,
    environment: Mapping[str, str] | None = None,
    output: Path | None = None,
    python: str = sys.executable,
    zygote: Zygote | None = None,
    look: Callable[[Journal], None] | None = None,
    look_every_s: float = 1.0,
    streams: Streams = (None, None),
    let_end: bool = False,
) -> Outcome:
    """Run a script with the settings; ``folder`` receives the settings and the journal.

    ``output`` receives the script's output, at its end (None: it is printed). ``zygote`` starts the process with PyTorch
    imported; without one ``python`` does. ``look`` receives the journal periodically while the script runs; its exceptions end
    the script. ``streams`` are file descriptors for its standard output and error instead of ours.

    An interrupt of this process is passed to the script, which has ``GRACE_S`` to end. With ``let_end`` the script decides: it
    receives interrupts and requests to end (SIGTERM, SIGHUP) and may take its time to save; the outcome is returned as usual.
    The ``PATIENCE``-th signal ends it.

    Raises GpuwiseError on Windows.
    """
    require_posix("a watched run of a script")
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "settings.json"
    write_settings(settings, file)
    with suppress(FileNotFoundError):
        Path(settings.journal).unlink()
    environment = {**FOR_SCRIPTS, **{name: os.environ[name] for name in FOR_SCRIPTS if name in os.environ}, **(environment or {})}
    began, began_at_s = time.monotonic(), time.time()
    process: Process
    if zygote is not None:
        process = zygote.start(file, output=output, environment=environment)
    else:
        process = _start(python, file, output, environment, streams)
    guard = _Guard(process, Path(settings.journal), limits, began)
    try:
        with _passed_on(process) if let_end else nullcontext():
            _wait(process, guard, look, look_every_s)
    except KeyboardInterrupt:
        _end_group(process, signal.SIGINT)
        raise
    except BaseException:
        _end_group(process, signal.SIGTERM)
        raise
    finally:
        guard.reap()
        if settings.tidies:
            take_away(guard.journal.read(), began_at_s)
    return _outcome(process, guard, guard.journal.read(), time.monotonic() - began)


def take_away(journal: Journal, since_s: float) -> None:
    """Files and folders that a run made are removed; of a folder nothing is, where it holds something older than ``since_s``
    (seconds of the clock)."""
    for event in reversed(journal.of("made")):
        path = Path(str(event["path"]))
        with suppress(OSError):
            if not path.is_dir() or path.is_symlink():
                path.unlink()
            elif all(p.lstat().st_mtime >= since_s for p in path.rglob("*")):
                shutil.rmtree(path)


@contextmanager
def _passed_on(process: Process) -> Generator[None, None, None]:
    """Signals to this process go to the script and leave this one alone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    n = 0

    def pass_on(number: int, frame: FrameType | None) -> None:
        nonlocal n
        n += 1
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL if n >= PATIENCE else number)

    numbers = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    handlers = {number: signal.signal(number, pass_on) for number in numbers}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _start(
    python: str, settings: Path, output: Path | None, environment: Mapping[str, str], streams: Streams
) -> subprocess.Popen[bytes]:
    with ExitStack() as stack:
        file = None if output is None else stack.enter_context(output.open("ab"))
        return subprocess.Popen(
            [python, "-m", "gpuwise.train.hook.child", str(settings)],
            env={**script_environment(), **environment},
            stdin=subprocess.DEVNULL,
            stdout=streams[0] if file is None else file,
            stderr=streams[1] if file is None else subprocess.STDOUT,
            start_new_session=True,
        )


class _Guard:
    """Limits of one process and its children."""

    def __init__(self, process: Process, journal: Path, limits: Limits, began: float) -> None:
        self._process, self._limits, self._began = process, limits, began
        self.journal = Follower(journal)
        self._look_at_s = 0.0
        self.peak_bytes: int | None = None
        self.used_bytes: int | None = None
        self.broken: str | None = None

    @property
    def is_limited(self) -> bool:
        """Whether anything can end the run but itself."""
        return self._limits != NO_LIMITS

    def look(self) -> str | None:
        """The limit that is broken, if any."""
        limits, spent = self._limits, time.monotonic() - self._began
        process_bytes = None
        if spent >= self._look_at_s:
            process_bytes = resident_bytes(self._process.pid)
            took_s = time.monotonic() - self._began - spent
            rest_s = MEMORY_LOOK_S if limits.memory_bytes is not None else max(MEMORY_LOOK_S, took_s / MEMORY_LOOK_SHARE)
            self._look_at_s = spent + rest_s
        if process_bytes is not None:
            self.peak_bytes = max(self.peak_bytes or 0, process_bytes)
            self.used_bytes = process_bytes
        if limits.wall_s is not None and spent > limits.wall_s:
            self.broken = "time"
        elif limits.memory_bytes is not None and process_bytes is not None and process_bytes > limits.memory_bytes:
            self.broken = "memory"
        elif limits.first_step_s is not None and spent > limits.first_step_s and not self.journal.read().ticks:
            self.broken = "no step"
        return self.broken

    def reap(self) -> None:
        """Children that outlived it (workers of a loader)."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)


def _wait(process: Process, guard: _Guard, look: Callable[[Journal], None] | None, every_s: float) -> None:
    looked = time.monotonic()
    rest_s = min(POLL_S if guard.is_limited else MEMORY_LOOK_S, every_s)
    with _waiting(process) as has_ended:
        while not has_ended(rest_s):
            if guard.look() is not None:
                _end_group(process, signal.SIGTERM)
                return
            if look is not None and time.monotonic() - looked >= every_s:
                looked = time.monotonic()
                journal = guard.journal.read()
                journal.used_bytes = guard.used_bytes
                look(journal)


@contextmanager
def _waiting(process: Process) -> Generator[Callable[[float], bool], None, None]:
    """Function that waits for the end of the process up to a number of seconds, and returns whether it ended. The kernel
    notifies where possible (Linux); ``subprocess`` with a timeout polls 20 to 70 times a second."""
    with ExitStack() as stack:
        descriptor = None
        if isinstance(process, subprocess.Popen) and hasattr(os, "pidfd_open"):
            with suppress(OSError):
                descriptor = os.pidfd_open(process.pid)
                stack.callback(os.close, descriptor)

        def wait_process(rest_s: float) -> bool:
            try:
                process.wait(rest_s)
            except subprocess.TimeoutExpired:
                return False
            return True

        if descriptor is None:
            yield wait_process
            return
        ends = select.poll()
        ends.register(descriptor, select.POLLIN)

        def wait_end(rest_s: float) -> bool:
            return bool(ends.poll(rest_s * 1000)) and wait_process(GRACE_S)

        yield wait_end


def _end_group(process: Process, first: signal.Signals) -> None:
    """Ask, wait, then end."""
    for number, patience_s in ((first, GRACE_S), (signal.SIGKILL, GRACE_S)):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(patience_s)
            return


def _outcome(process: Process, guard: _Guard, journal: Journal, wall_s: float) -> Outcome:
    code = process.returncode if process.returncode is not None else -signal.SIGKILL
    end = journal.end
    ended = guard.broken or (str(end["reason"]) if end else "killed")
    error, memory = end.get("error"), bool(end.get("out_of_memory")) or ended == "memory"
    if ended == "killed" and code == -signal.SIGKILL:
        # not sent from here: the kernel's out-of-memory killer
        memory, error = True, "ended by the system (SIGKILL), most likely for want of memory"
    elif ended == "killed":
        error = f"ended by signal {-code}" if code < 0 else f"ended with exit code {code} before its end was seen"
    peak_bytes, own_bytes = guard.peak_bytes, journal.last("memory").get("peak_host_bytes")
    if own_bytes is not None:
        # looks are few, of a short run perhaps none after its imports
        peak_bytes = max(peak_bytes or 0, int(own_bytes))
    return Outcome(
        ended,
        128 - code if code < 0 else code,
        journal,
        wall_s,
        peak_bytes,
        error,
        end.get("where"),
        memory,
    )


def resident_bytes(pid: int) -> int | None:
    """Resident bytes of a process and its descendants, as the kernel counts those of one process; pages that several of them
    share (a loader's workers hold those of the loop) are counted once. Pages shared with others count whole: a run that was
    forked from a :class:`~gpuwise.train.hook.zygote.Zygote` has what it would have by itself."""
    import psutil

    try:
        parent = psutil.Process(pid)
        family = [parent, *parent.children(recursive=True)]
    except psutil.Error:
        return None
    own = shared = 0
    for member in family:
        with suppress(psutil.Error):
            member_bytes, member_shared = _resident_parts(member)
            own += member_bytes - member_shared
            shared = max(shared, member_shared)
    return own + shared


def _resident_parts(process: psutil.Process) -> tuple[int, int]:
    """Resident bytes, and those of them that other processes map too; none where the system does not report them."""
    try:
        rows = (line.split() for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text("ascii").splitlines()[1:])
        kib = {row[0]: int(row[1]) for row in rows}
        return int(kib["Rss:"] * KIB), int((kib["Shared_Clean:"] + kib["Shared_Dirty:"]) * KIB)
    except (OSError, ValueError, KeyError, IndexError):
        return process.memory_info().rss, 0
