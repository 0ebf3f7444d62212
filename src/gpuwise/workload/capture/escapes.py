# pyright: basic, reportPrivateImportUsage=false, reportAttributeAccessIssue=false
"""Processes and threads that a script starts: what they train would not be captured, but run for real, so it is refused first.

Refused are processes that the person's own code starts and that are Python again (``multiprocessing``, ``concurrent.futures``,
``os.fork``, an interpreter or a launcher of ranks as a command), and those that any library starts to train in
(``torch.multiprocessing``, ``torch.distributed.run``). Other commands (``git``, ``nvidia-smi``) and what libraries start for
themselves (compilers, progress bars) run as they do outside. Threads may start, and end at their first training operation.
"""

from __future__ import annotations

import concurrent.futures.process
import multiprocessing.process
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.optim import optimizer as torch_optimizer

from gpuwise.errors import InputError
from gpuwise.workload.capture.device.patching import Patches
from gpuwise.workload.capture.places import is_library, is_standard

HINT = "name a function that returns the step, like train.py:make_step, or give the script that each process runs"
THREAD_HINT = "train in the main thread, or name a function that returns the step, like train.py:make_step"
_LAUNCHES = tuple(f"{os.sep}torch{os.sep}{name}{os.sep}" for name in ("multiprocessing", "distributed"))
"""Folders of code that starts processes to train in."""
_MACHINERY = (*_LAUNCHES, *(f"{os.sep}{name}{os.sep}" for name in ("multiprocess", "joblib", "billiard", "loky")))
"""Folders of code that starts processes for whoever asks."""
_PYTHON = re.compile(
    r"(python|pypy|ipython)[\d.]*(\.exe)?|torchrun|accelerate|deepspeed|horovodrun|mpirun|mpiexec|srun|sbatch|composer"
)
_HARMLESS = ("-V", "--version", "-VV", "pip")
"""Interpreter arguments that do not train: ``-V``, ``-m pip``."""
_SHELLS = ("sh", "bash", "zsh", "dash", "ksh")


class EscapeError(BaseException):
    """Something would run outside the capture. No ``except Exception`` of the script stops it."""

    def __init__(self, what: str, where: str, hint: str) -> None:
        super().__init__(what)
        self.error = InputError(f"{f'{where}: ' if where else ''}{what}", hint=hint)


class Escapes:
    """Records the first refused call."""

    def __init__(self) -> None:
        self.first: EscapeError | None = None
        self._capturing = threading.get_ident()
        self.handler: Any = None
        """Interrupt handler, if the capturing thread is the main one."""

    def refuse(self, what: str, where: str, hint: str = HINT) -> None:
        """Raises EscapeError; in another thread it also interrupts the capturing thread, which may wait for it."""
        error = EscapeError(what, where, hint)
        first, self.first = self.first, self.first or error
        if first is None and threading.get_ident() != self._capturing and signal.getsignal(signal.SIGINT) is self.handler:
            signal.pthread_kill(self._capturing, signal.SIGINT)
        raise error

    def in_thread(self, what: str) -> None:
        """Raises EscapeError outside the thread that captures."""
        if threading.get_ident() != self._capturing:
            name = threading.current_thread().name
            self.refuse(f"{what} in its own thread ({name}), which is not captured", _users_line(), THREAD_HINT)


_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT") if hasattr(signal, name))


@contextmanager
def _interruptible(escapes: Escapes) -> Iterator[None]:
    """Let a refusal in another thread stop the main one wherever it waits; handlers that the script sets are restored at the
    end."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "pthread_kill"):
        yield
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}

    def interrupted(number: int, frame: Any) -> None:
        if escapes.first is not None:
            raise escapes.first
        handler = before[signal.SIGINT]
        if callable(handler):
            handler(number, frame)

    escapes.handler = interrupted
    if callable(before[signal.SIGINT]):
        signal.signal(signal.SIGINT, interrupted)
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None and signal.getsignal(number) is not handler:
                signal.signal(number, handler)


@contextmanager
def no_escapes() -> Iterator[None]:
    """Processes and threads that would train are refused for the length of the context. Raises InputError for the first."""
    escapes, patches = Escapes(), Patches()
    _refuse_processes(escapes, patches)
    _refuse_commands(escapes, patches)
    handle = _refuse_threads(escapes, patches)
    try:
        with _interruptible(escapes):
            yield
    except BaseException as error:
        if escapes.first is None:
            raise
        raise escapes.first.error from (None if error is escapes.first else error)
    finally:
        handle.remove()
        patches.undo()
    if escapes.first is not None:
        raise escapes.first.error


# --- processes ---


def _refuse_processes(escapes: Escapes, patches: Patches) -> None:
    start, fork = multiprocessing.process.BaseProcess.start, os.fork if hasattr(os, "fork") else None

    def started(process: Any) -> None:
        where, trains = _starter()
        if where or trains:
            function = _function_of(process)
            escapes.refuse(f"a process is started for {function}, which would run for real and uncaptured", where)
        start(process)

    def forked() -> int:
        where, trains = _starter()
        if where or trains:
            escapes.refuse("os.fork starts a process, which would run for real and uncaptured", where)
        assert fork is not None
        return fork()

    def executor(original: Callable[..., Any]) -> Callable[..., Any]:
        def submit(pool: Any, function: Any, /, *args: Any, **kwargs: Any) -> Any:
            where, trains = _starter()
            if where or trains:
                name = getattr(function, "__qualname__", "a function")
                escapes.refuse(f"a process is started for {name}, which would run for real and uncaptured", where)
            return original(pool, function, *args, **kwargs)

        return submit

    patches.set(multiprocessing.process.BaseProcess, "start", started)
    pools = concurrent.futures.process.ProcessPoolExecutor
    patches.set(pools, "submit", executor(pools.submit))
    if fork is not None:
        patches.set(os, "fork", forked)


def _function_of(process: Any) -> str:
    """The name of the function that a process runs; of the one inside where torch wraps it."""
    target, arguments = getattr(process, "_target", None), getattr(process, "_args", None) or ()
    name = getattr(target, "__qualname__", None) or type(process).__qualname__
    return getattr(arguments[0], "__qualname__", name) if name == "_wrap" and arguments else name


# --- commands ---


def _refuse_commands(escapes: Escapes, patches: Patches) -> None:
    def checked(original: Callable[..., Any], at: int) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            command = args[at] if len(args) > at else kwargs.get("args", kwargs.get("command", ""))
            if _is_python(command):
                where, trains = _starter()
                if where or trains:
                    escapes.refuse(f"{_words(command)} would run for real and uncaptured", where)
            return original(*args, **kwargs)

        return run

    # each with the place of its command
    places = {"system": 0, "execv": 1, "execve": 1, "posix_spawn": 1, "posix_spawnp": 1}
    patches.set(subprocess.Popen, "__init__", checked(subprocess.Popen.__init__, 1))
    for name, at in places.items():
        if hasattr(os, name):
            patches.set(os, name, checked(getattr(os, name), at))


def _split(command: Any) -> list[str]:
    """The words of a command, however it is given, those of a shell's command too."""
    if isinstance(command, (str, bytes, os.PathLike)):
        text = os.fsdecode(command)
        try:
            return shlex.split(text)
        except ValueError:
            return text.split()
    if not isinstance(command, Sequence):
        return []
    words = [os.fsdecode(word) for word in command if isinstance(word, (str, bytes, os.PathLike))]
    if words and Path(words[0]).name in _SHELLS and "-c" in words[1:-1]:
        return [*words, *_split(words[words.index("-c") + 1])]
    return words


def _is_python(command: Any) -> bool:
    """Whether a command is Python, or starts it: an interpreter, a launcher of ranks, a script."""
    words = _split(command)
    if any(word in _HARMLESS for word in words[1:4]):
        return False
    shell = bool(words) and Path(words[0]).name in _SHELLS
    return any(_PYTHON.fullmatch(Path(word).name) or word == sys.executable for word in words) or any(
        word.endswith((".py", ".sh") if shell else ".py") for word in words[: 2 if not shell else None]
    )


def _words(command: Any) -> str:
    words = [Path(word).name if os.sep in word else word for word in _split(command)]
    return f"the command {' '.join(words[:4])}{' ...' if len(words) > 4 else ''}"


# --- threads ---


def _refuse_threads(escapes: Escapes, patches: Patches) -> Any:
    made, backward = torch.optim.Optimizer.__init__, torch.autograd.graph._engine_run_backward
    call, apply, capturing = torch.nn.Module.__call__, torch.nn.Module._apply, threading.get_ident()

    def used(module: Any) -> None:
        if threading.get_ident() != capturing and any(True for _ in module.parameters()):
            escapes.in_thread(f"{type(module).__name__} is used")

    def called(module: Any, *args: Any, **kwargs: Any) -> Any:
        used(module)
        return call(module, *args, **kwargs)

    def run_backward(*args: Any, **kwargs: Any) -> Any:
        escapes.in_thread("a backward pass runs")
        return backward(*args, **kwargs)

    def moved(module: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
        used(module)
        return apply(module, function, *args, **kwargs)

    def __init__(optimizer: Any, *args: Any, **kwargs: Any) -> None:
        escapes.in_thread(f"{type(optimizer).__name__} is built")
        made(optimizer, *args, **kwargs)

    def ended(arguments: Any) -> None:
        if not isinstance(arguments.exc_value, EscapeError):  # that is reported by the thread that captures
            hook(arguments)

    hook = threading.excepthook
    patches.set(threading, "excepthook", ended)
    patches.set(torch.nn.Module, "__call__", called)
    patches.set(torch.nn.Module, "_apply", moved)
    patches.set(torch.optim.Optimizer, "__init__", __init__)
    for owner in (torch.autograd.graph, torch.autograd):
        patches.set(owner, "_engine_run_backward", run_backward)
    return torch_optimizer.register_optimizer_step_pre_hook(lambda *_: escapes.in_thread("an optimizer updates"))


# --- who starts it ---


def _users_line() -> str:
    """The innermost line of the person's own that runs now: ``train.py:31 in main``."""
    frame = sys._getframe(1)
    while frame is not None and is_library(frame.f_code.co_filename):
        frame = frame.f_back
    return "" if frame is None else _place(frame)


def _place(frame: Any) -> str:
    name = frame.f_code.co_name
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}{'' if name == '<module>' else f' in {name}'}"


def _starter() -> tuple[str, bool]:
    """The person's own line that starts something (``train.py:31 in main``), empty where a library does it for itself; and
    whether it passes through what starts processes to train in."""
    frame, trains = sys._getframe(2), False
    while frame is not None:
        file = frame.f_code.co_filename
        trains = trains or (any(part in file for part in _LAUNCHES) and is_library(file))
        if not is_library(file):
            return _place(frame), trains
        if not trains and not is_standard(file) and not any(part in file for part in _MACHINERY):
            return "", False
        frame = frame.f_back
    return "", trains
