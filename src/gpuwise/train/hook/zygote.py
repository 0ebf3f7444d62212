"""Processes that start with PyTorch imported: one process imports it once, and forks for every requested run.

That saves two to twenty seconds of imports per run, and a tuner makes dozens of runs. The importing process never uses a device
and starts no thread, so its fork is equivalent to a new process.

Its protocol is lines of JSON: ``{"settings": FILE, "output": FILE or null, "environment": {…}}`` is answered by ``{"pid": N}``
at once and ``{"pid": N, "code": N}`` at the end of the run (negative: ended by that signal). No run outlives it: remaining
runs are ended when its standard input ends, because the requester has exited.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from gpuwise.errors import GpuwiseError
from gpuwise.processes import script_environment

FORKS = hasattr(os, "fork") and sys.platform == "linux"
"""Elsewhere a fork of a process with the system's frameworks loaded is not safe."""

PRELOADED = (
    "torch",
    "torch.utils.data",
    "torch._dynamo",
    "gpuwise.train.hook.child",
    "gpuwise.train.hook.watch",
    "gpuwise.train.hook.batches",
    "gpuwise.train.hook.children",
)
"""The first optimizer that a script makes imports torch._dynamo: half of all the imports."""


class Zygote:
    """The parent's side of the process that has PyTorch imported. Use as a context; :meth:`start` starts a run."""

    def __init__(self, python: str = sys.executable, *, environment: Mapping[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            [python, "-m", "gpuwise.train.hook.zygote"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            env={**script_environment(), **(environment or {})},
        )
        self._codes: dict[int, int] = {}
        self._lock = threading.Lock()
        self._asking = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._started: list[int] = []
        self._is_gone = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End the importing process, and with it the runs that are left."""
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._reader.join(5)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def start(self, settings: Path, *, output: Path | None = None, environment: Mapping[str, str] | None = None) -> Run:
        """Start a run with those settings, in a separate process and process group. Raises GpuwiseError if the importing
        process has exited."""
        line = {"settings": str(settings), "output": str(output) if output else None, "environment": dict(environment or {})}
        # one question at a time, so that answers need no names
        with self._asking:
            try:
                if self._process.stdin is None:
                    raise BrokenPipeError
                self._process.stdin.write(json.dumps(line).encode() + b"\n")
                self._process.stdin.flush()
            except OSError:
                raise _end_error() from None
            with self._changed:
                self._changed.wait_for(lambda: self._started or self._is_gone)
                if not self._started:
                    raise _end_error()
                return Run(self, self._started.pop())

    def wait(self, pid: int, timeout_s: float | None) -> int | None:
        """Exit code, or None if it has not ended by then (-9 if the importing process has exited)."""
        with self._changed:
            self._changed.wait_for(lambda: pid in self._codes or self._is_gone, timeout_s)
            return self._codes.get(pid, -signal.SIGKILL if self._is_gone else None)

    def _read(self) -> None:
        if self._process.stdout is None:
            return
        for line in self._process.stdout:
            answer = json.loads(line)
            with self._changed:
                if "code" in answer:
                    self._codes[answer["pid"]] = answer["code"]
                else:
                    self._started.append(answer["pid"])
                self._changed.notify_all()
        with self._changed:
            self._is_gone = True
            self._changed.notify_all()


class Run:
    """One run, with the part of the interface of ``subprocess.Popen`` that a launch uses."""

    def __init__(self, zygote: Zygote, pid: int) -> None:
        self._zygote, self.pid = zygote, pid
        self.returncode: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        """The exit code. Raises subprocess.TimeoutExpired."""
        code = self._zygote.wait(self.pid, timeout)
        if code is None:
            raise subprocess.TimeoutExpired("gpuwise", timeout or 0.0)
        self.returncode = code
        return code


def _end_error() -> GpuwiseError:
    return GpuwiseError(
        "the process that starts the runs has ended", hint="run the command again; earlier measurements are saved"
    )


def serve() -> int:
    """The loop of the importing process: one request a line until standard input ends."""
    answers = os.dup(1)
    os.dup2(2, 1)
    requests = os.fdopen(os.dup(0), "rb", buffering=0)
    # runs read nothing of the conversation
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    with contextlib.suppress(ImportError):
        for name in PRELOADED:
            importlib.import_module(name)
    lock, own, left = threading.Lock(), os.getpid(), set[int]()

    def answer(value: Mapping[str, Any]) -> None:
        with lock:
            os.write(answers, json.dumps(value).encode() + b"\n")

    signal.signal(signal.SIGCHLD, lambda _number, _frame: _reap(answer, left))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for line in requests:
        request = json.loads(line)
        # the answer with the number goes out before one with the end can
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        pid = os.fork()
        if pid == 0:
            os.close(answers)
            requests.close()
            _be(request, own)
        left.add(pid)
        answer({"pid": pid})
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    for pid in left:
        for end in (os.killpg, os.kill):  # a run has its process group from its start
            with contextlib.suppress(ProcessLookupError):
                end(pid, signal.SIGKILL)
    return 0


def end_with_parent(parent: int, number: int) -> None:
    """From here on the end of ``parent``, whose child this is, sends this process signal ``number`` (``PR_SET_PDEATHSIG`` of
    prctl(2), on Linux)."""
    import ctypes

    ctypes.CDLL(None).prctl(1, int(number), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _reap(answer: Any, left: set[int]) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        left.discard(pid)
        answer({"pid": pid, "code": os.waitstatus_to_exitcode(status)})


def _be(request: Mapping[str, Any], parent: int) -> None:
    """This fork of ``parent`` becomes the run."""
    code = 1
    try:
        os.setsid()
        end_with_parent(parent, signal.SIGKILL)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        if request["output"] is not None:
            file = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            os.dup2(file, 1)
            os.dup2(file, 2)
        os.environ.update(request["environment"])
        from gpuwise.train.hook.child import main

        code = main([request["settings"]])
    except BaseException as error:  # noqa: BLE001 - nothing may climb back into the importing process's loop
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        _leave(code)


def _leave(code: int) -> None:
    """Exit like an interpreter: exit functions, then streams."""
    import atexit

    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    sys.exit(serve())
