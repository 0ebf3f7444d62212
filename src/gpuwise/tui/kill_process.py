"""Send a signal to a process chosen on the screen, and never to another process that reuses its number.

The process is identified by a kernel handle (``pidfd``) if available, and its start time is compared with the displayed one,
so a reused number is rejected.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path

from gpuwise.machine.telemetry.frames import HostProcess

SAME_START_S = 0.011
"""Start times are counted in ticks of 10 ms: two of one process are not further apart."""


@dataclass(frozen=True, slots=True)
class KillResult:
    """Whether a signal was sent, with a sentence that reports it or the reason."""

    ok: bool
    words: str


def started_s(pid: int) -> float | None:
    """When a process started, in seconds since the machine booted (Linux) or since 1970 (elsewhere); None: it is not there."""
    try:
        raw = Path(f"/proc/{pid}/stat").read_bytes()
        values = raw.rpartition(b")")[2].split()
        # a zombie counts as ended for the user
        return None if values[0] == b"Z" else int(values[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        if Path("/proc/self/stat").exists():
            return None
    import psutil

    try:
        return psutil.Process(pid).create_time()
    except psutil.Error:
        return None


def refusal(host: HostProcess, *, live: bool) -> str | None:
    """Why this process may not be ended from here; None where it may."""
    if not live:
        return "this is not a live view: its processes are not here"
    if host.pid <= 1:
        return f"process {host.pid} is the system's own"
    if host.pid == os.getpid():
        return "that is this screen: press q to leave it"
    why = host.unknown.get("name")
    if why == "ended" or (why is None and started_s(host.pid) is None):
        return f"process {host.pid} has already ended"
    if why is not None:
        return f"process {host.pid} cannot be told apart: {why}"
    now_s = started_s(host.pid)
    if host.started_s is not None and now_s is not None and abs(now_s - host.started_s) > SAME_START_S:
        return f"process {host.pid} has ended and its number was given to another"
    return None


def kill_process(host: HostProcess, number: signal.Signals, *, live: bool = True) -> KillResult:
    """Send a signal to a process, after checking that it is still the displayed one."""
    handle = None
    try:
        # open the handle first: then the number cannot pass to another process after the check
        handle = _hold(host.pid)
        why = refusal(host, live=live)
        if why is not None:
            return KillResult(False, why)
        if handle is not None:
            signal.pidfd_send_signal(handle, number)
        else:
            os.kill(host.pid, number)
    except ProcessLookupError:
        return KillResult(False, f"process {host.pid} has already ended")
    except PermissionError:
        owner = f"it belongs to {host.user}" if host.user else "it is not yours"
        return KillResult(False, f"not permitted to end process {host.pid}: {owner}")
    except OSError as error:
        return KillResult(False, f"process {host.pid} could not be sent {number.name}: {error.strerror or error}")
    finally:
        if handle is not None:
            os.close(handle)
    return KillResult(True, f"sent {number.name} to process {host.pid}")


def _hold(pid: int) -> int | None:
    """The kernel's handle of a process; None if unavailable. Raises ProcessLookupError."""
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise
    except OSError:
        return None  # an old kernel or a sandbox: the start time alone has to do


def is_gone(host: HostProcess) -> bool:
    """Whether the process has ended (or its number belongs to another now)."""
    now_s = started_s(host.pid)
    return now_s is None or (host.started_s is not None and abs(now_s - host.started_s) > SAME_START_S)
