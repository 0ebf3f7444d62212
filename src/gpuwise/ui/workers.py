"""Commands in separate processes, so that a search neither blocks the server nor outlives its client."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
import os
import signal
import stat
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuwise.errors import GpuwiseError
from gpuwise.processes import END_AT_ONCE
from gpuwise.ui.gathered import Query

SEARCHES = 2
"""Search processes: the current one, and one that takes over while another is being interrupted."""
FOLDER = "gpuwise-ui-"
"""Prefix of the workers' folders."""
NEW_S = 60.0
"""A folder so young may be that of an app that has not locked it yet."""
GRACE_S = 1.0
"""A command that does not end this long after an interrupt is ended by force, with its process."""
LONGEST_ANSWER = 64 << 20
TOLD, REFUSED = b'{"told"', b'{"error"'
Tell = Callable[[str], None]
Said = bytes | GpuwiseError
"""An answer as it is sent, or the reason without one."""
FIRST = (
    ("dp", "8"),
    ("micro_batch", "1"),
    ("model", "llama-3.1-8b"),
    ("on", "8xH100-SXM"),
    ("sharding", "zero3"),
    ("tokens", "1B"),
)
"""Layout that new processes answer first, to import and read what commands need."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Result of a command: exit code and the document of ``--json``, None if it ended without one; ``screen`` is what a terminal
    shows of it, with its summary, where that was asked for."""

    code: int
    document: dict[str, Any] | None
    screen: dict[str, Any] | None = None


class Worker:
    """One process; it runs one command at a time."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._process: asyncio.subprocess.Process | None = None
        self.warm = False
        """Whether it has answered."""

    async def start(self) -> asyncio.subprocess.Process:
        """The process, restarted if needed, in an empty folder, so that no name is a file."""
        if self._process is None or self._process.returncode is not None:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "gpuwise.ui.worker"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                cwd=self._folder,
                limit=LONGEST_ANSWER,
                start_new_session=True,  # Ctrl-C on the terminal is the server's, which ends its workers
            )
        return self._process

    async def ask(self, words: Sequence[str], folder: Path | None, tell: Tell, more: Mapping[str, Any]) -> Answer:
        """Run one command line, in ``folder`` where one is given. Where the caller is cancelled, the command is interrupted
        first."""
        process = await self.start()
        assert process.stdin is not None and process.stdout is not None
        asked = {"words": [*words], "folder": str(folder or self._folder), **more}
        process.stdin.write(json.dumps(asked).encode() + b"\n")
        answer = asyncio.ensure_future(_last_line(process.stdout, tell))
        try:
            line = await asyncio.shield(answer)
        except ValueError:  # longer than the reader takes
            self.kill()
            await process.wait()
            self.warm = False
            return Answer(1, {"error": f"the answer is larger than {LONGEST_ANSWER >> 20} MiB", "hint": "ask for less at once"})
        except asyncio.CancelledError:
            await self._interrupt(process, answer)
            raise
        if not line:
            await process.wait()
            self.warm = False
            return Answer(1, {"error": "the command ended without an answer", "hint": "run it in a terminal to see what it says"})
        self.warm = True
        return Answer(**json.loads(line))

    async def layouts(self, queries: Sequence[Query], today: datetime.date) -> AsyncGenerator[Said]:
        """Answer to each layout, in order, as soon as it is available; fewer if the process ends."""
        process = await self.start()
        assert process.stdin is not None and process.stdout is not None
        asked = {"layouts": [dict(query) for query in queries], "today": today.isoformat()}
        process.stdin.write(json.dumps(asked).encode() + b"\n")
        for _ in queries:
            line = (await process.stdout.readline())[:-1]
            if not line:
                self.warm = False
                await process.wait()
                break
            if line.startswith(REFUSED):
                error = json.loads(line)
                yield GpuwiseError(error["error"], hint=error["hint"])
            else:
                self.warm = True
                yield line

    async def _interrupt(self, process: asyncio.subprocess.Process, answer: asyncio.Future[bytes]) -> None:
        self._signal(signal.SIGINT)
        done, _ = await asyncio.wait([answer], timeout=GRACE_S)
        if not done or not answer.result():  # deaf, or interrupted before it could listen
            answer.cancel()
            self.kill()
            await process.wait()

    def kill(self) -> None:
        """End the process, if there is one."""
        self._signal(END_AT_ONCE)

    def _signal(self, number: signal.Signals) -> None:
        """Send by system call: asyncio would check whether the process has ended, and take its exit code from the waiting
        code."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, number)

    async def stopped(self) -> None:
        """Wait until the process has exited."""
        if self._process is not None:
            await self._process.wait()


async def _last_line(lines: asyncio.StreamReader, tell: Tell) -> bytes:
    """The line with the answer; earlier messages go to ``tell``."""
    while (line := await lines.readline()).startswith(TOLD):
        tell(json.loads(line)["told"])
    return line


Pool = asyncio.LifoQueue[Worker]


@dataclass(slots=True)
class Workers:
    """A few worker processes, lent to requests in order of arrival, and one that evaluates layouts, helped by a free one."""

    _free: Pool = field(default_factory=Pool)
    """The most recently used one first: it has imported and read what commands need."""
    _layouts: Pool = field(default_factory=Pool)
    _all: list[Worker] = field(default_factory=list[Worker])
    _folder: tempfile.TemporaryDirectory[str] | None = None
    _lock: int | None = None
    """Lock showing that the folder is in use, as long as this process lives."""
    _warming: asyncio.Task[None] | None = None
    running: int = 0
    """Commands in progress."""

    async def start(self) -> None:
        """Start the processes; they get ready behind the first page."""
        remove_left_folders()
        self._folder = tempfile.TemporaryDirectory(prefix=FOLDER)
        self._lock = locked(self._folder.name)
        self._all = [Worker(self._folder.name) for _ in range(SEARCHES + 1)]
        self._layouts.put_nowait(self._all[0])
        for worker in self._all[1:]:
            self._free.put_nowait(worker)
        self._warming = asyncio.create_task(self._warm())

    async def _warm(self) -> None:
        worker = await self._free.get()
        async for _ in self.layouts(worker, [FIRST], datetime.date.today()):
            pass

    def free(self) -> Worker | None:
        """A process for layouts: their own, or a search process that is warm and not needed by a waiting search."""
        pool = self._free if self._layouts.empty() and self.running < SEARCHES else self._layouts
        worker = None if pool.empty() else pool.get_nowait()
        if worker is None or worker.warm or pool is self._layouts:
            return worker
        pool.put_nowait(worker)
        return None

    async def layouts(self, by: Worker, queries: Sequence[Query], today: datetime.date) -> AsyncGenerator[Said]:
        """Answer to each layout, in order, as soon as it is available; fewer if the process ends."""
        try:
            async for said in by.layouts(queries, today):
                yield said
        finally:
            (self._layouts if by is self._all[0] else self._free).put_nowait(by)

    async def ask(
        self, words: Sequence[str], folder: Path | None = None, tell: Tell = lambda _: None, **more: Sequence[str] | None
    ) -> Answer:
        """Run ``words`` in the next free process, in an empty folder unless another is given; ``tell`` receives progress
        messages. ``show`` are parts of the answer, None for all: then it has a screen too."""
        self.running += 1
        try:
            worker = await self._free.get()
            try:
                return await worker.ask(words, folder, tell, more)
            finally:
                self._free.put_nowait(worker)
        finally:
            self.running -= 1

    async def stop(self) -> None:
        """End every process and remove their folder."""
        if self._warming is not None:
            self._warming.cancel()
        for worker in self._all:
            worker.kill()
        for worker in self._all:
            await worker.stopped()
        if self._folder is not None:
            self._folder.cleanup()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def locked(folder: str) -> int | None:
    """A descriptor that holds ``folder`` for this process, None where another one holds it or the system has no such locks."""
    try:
        import fcntl
    except ImportError:
        return None
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(held)
        return None
    return held


def remove_left_folders() -> None:
    """Remove the empty folders of this user's apps that were killed: those that no process holds."""
    for folder in Path(tempfile.gettempdir()).glob(FOLDER + "*") if os.name == "posix" else ():
        with contextlib.suppress(OSError):
            of = folder.lstat()
            if not stat.S_ISDIR(of.st_mode) or of.st_uid != os.getuid() or time.time() - of.st_mtime < NEW_S:
                continue
            held = locked(str(folder))
            if held is not None:
                try:
                    folder.rmdir()
                finally:
                    os.close(held)
