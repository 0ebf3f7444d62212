"""Runs commands of gpuwise without what Windows lacks. ``python without_posix.py FILE``: FILE has a JSON list of command lines;
the last line has one of the answers (exit code, stdout, stderr).

Only names are removed. The standard library and libraries that have Windows code of their own are imported first, as here they
use their POSIX code.
"""

from __future__ import annotations

import asyncio  # noqa: F401
import concurrent.futures.process  # noqa: F401
import contextlib
import io
import json
import multiprocessing.connection  # noqa: F401
import os
import select
import signal
import sys
import traceback
from pathlib import Path

import numpy as np  # noqa: F401
import platformdirs  # noqa: F401
import psutil  # noqa: F401

MODULES = ("curses", "fcntl", "grp", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty")
OF_OS = (
    *("fork", "forkpty", "killpg", "setsid", "setpgid", "getpgid", "getpgrp", "getsid", "getuid", "geteuid", "getgid", "getegid"),
    *("getloadavg", "getgroups", "mkfifo", "nice", "openpty", "pidfd_open", "posix_fadvise", "pread", "pwrite"),
    *("sched_getaffinity", "sched_setaffinity", "uname", "wait3", "wait4", "O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK"),
)
OF_SIGNAL = (
    *("SIGALRM", "SIGCHLD", "SIGCONT", "SIGHUP", "SIGKILL", "SIGPIPE", "SIGQUIT", "SIGSTOP", "SIGTSTP", "SIGUSR1", "SIGUSR2"),
    *("SIGWINCH", "alarm", "getitimer", "setitimer", "pthread_sigmask", "pidfd_send_signal"),
)


def take_away() -> None:
    """Remove what Windows lacks from this process."""
    for module, names in ((os, OF_OS), (signal, OF_SIGNAL), (select, ("poll", "epoll"))):
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    sys.modules.update(dict.fromkeys(MODULES))  # type: ignore[arg-type]


def answer(words: list[str]) -> tuple[int | None, str, str]:
    """Exit code and output of one command; no exit code where an exception ends it."""
    from gpuwise.cli.app import run

    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        try:
            code = run(words)
        except BaseException:  # noqa: BLE001
            traceback.print_exc()
            code = None
    return code, out.getvalue(), err.getvalue()


if __name__ == "__main__":
    commands = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    take_away()
    print(json.dumps([answer(words) for words in commands]))
