"""The screen on a terminal of its own: what it writes there, and that it gives it back."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time

import pytest
from tests.tui.screens import watch_demo
from textual.app import App
from textual.driver import Driver

from gpuwise.errors import UnknownNameError
from gpuwise.machine.telemetry.options import ScreenOptions
from gpuwise.tui.app import TopApp
from gpuwise.tui.terminal import TerminalOutput
from gpuwise.tui.top import find_driver

LONG_S = 300.0


def painted(screen: list[list[str]], written: str) -> None:
    """What a terminal makes of moves, colours and text."""
    x = y = 0
    for move, colour, mode, text in re.findall(r"\x1b\[(\d+;\d+)H|\x1b\[([\d;]*m)|(\x1b\[\?2026[hl])|([^\x1b]+)", written):
        if move:
            y, x = (int(n) - 1 for n in move.split(";"))
        for c in text:
            screen[y][x] = c
            x += 1
        assert move or colour or mode or text


@pytest.mark.parametrize("size", [(120, 40), (60, 12)])
def test_what_goes_straight_to_the_terminal_is_what_textual_would_show(size) -> None:
    async def act(screen) -> None:
        app, written = screen.app, list[str]()
        seen = [list(text.ljust(size[0])) for text in screen.lines]
        app.write_whole = written.append
        for n in range(5):
            # parts move up and down as causes come and go, and as rows are chosen
            await screen.next_frame(7.0)
            if n == 2:
                await screen.press("down", "down")
        assert len(written) >= 5
        painted(seen, "".join(written))
        assert ["".join(row).rstrip() for row in seen] == screen.lines
        # a sheet lies over it: what is below must not be painted over it
        await screen.press("?")
        n = len(written)
        await screen.next_frame()
        assert len(written) == n and "keys" in screen.text

    watch_demo(8, act, size=size)


def test_colours_that_have_to_be_changed_on_the_way_go_textuals_way(monkeypatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")

    async def act(screen) -> None:
        screen.app.write_whole = pytest.fail
        await screen.next_frame()

    watch_demo(2, act)


async def _made(app: App) -> Driver:
    made = find_driver()
    assert made is not None
    return made(app)


def test_the_driver_gives_the_application_its_way_to_the_terminal(monkeypatch) -> None:
    app = TopApp(None, ScreenOptions())  # type: ignore[arg-type]
    driver = asyncio.run(_made(app))
    written = list[str]()
    monkeypatch.setattr(driver, "write", written.append)
    monkeypatch.setattr(driver, "flush", lambda: written.append("flushed"))
    assert app.write_whole is not None
    app.write_whole("text")
    assert written == ["\x1b[?2026htext\x1b[?2026l", "flushed"]
    other = App()
    asyncio.run(_made(other))
    assert not hasattr(other, "write_whole"), "an application that asks for nothing gets nothing"


def test_a_theme_that_there_is_not_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="nordd") as caught:
        TopApp(None, ScreenOptions(theme="nordd"))  # type: ignore[arg-type]
    assert "nord" in caught.value.nearest


def _start(tmp_path) -> tuple[int, int]:
    pid, fd = pty.fork()
    if pid == 0:
        env = dict(os.environ, TERM="xterm-256color", GPUWISE_HOME=str(tmp_path))
        words = "import sys; from gpuwise.cli.app import run; sys.exit(run())"
        os.execve(sys.executable, [sys.executable, "-c", words, "top", "--demo", "--theme", "nord", "--interval", "0.1"], env)
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    return pid, fd


def _read_until(fd: int, word: str) -> str:
    got, end_s = "", time.monotonic() + LONG_S
    while word not in got and time.monotonic() < end_s:
        try:
            got += os.read(fd, 65536).decode("utf-8", "replace") if select.select([fd], [], [], 1.0)[0] else ""
        except OSError:
            break
    return got


def _ended(pid: int, within_s: float) -> int | None:
    """Exit code of a child; None where it goes on, and it is ended then."""
    end_s = time.monotonic() + within_s
    while time.monotonic() < end_s:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


@pytest.mark.parametrize(
    "read_for_s", [0.0, pytest.param(0.3, marks=pytest.mark.slow), 1.0, pytest.param(1.7, marks=pytest.mark.slow)]
)
def test_it_ends_when_its_terminal_goes_away(tmp_path, read_for_s) -> None:
    pid, fd = _start(tmp_path)
    _read_until(fd, "DEMO")
    end_s = time.monotonic() + read_for_s
    while time.monotonic() < end_s:
        if select.select([fd], [], [], 0.05)[0]:
            os.read(fd, 65536)
    os.close(fd)
    assert _ended(pid, LONG_S) == 0


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_it_ends_although_its_terminal_takes_nothing(tmp_path, number) -> None:
    pid, fd = _start(tmp_path)
    try:
        _read_until(fd, "DEMO")
        # nobody reads: the pipe of the terminal fills, then the writer's queue, then the application waits
        time.sleep(3.0)
        os.kill(pid, number)
        assert _ended(pid, LONG_S) == 0
    finally:
        os.close(fd)


def test_what_a_terminal_that_is_gone_cannot_take_is_dropped() -> None:
    master, slave = os.openpty()
    with os.fdopen(slave, "w", encoding="utf-8") as file:
        output = TerminalOutput(file)
        output.write("seen")
        assert os.read(master, 16) == b"seen" and not output.gone
        os.close(master)
        output.write("lost")
        output.flush()
        assert output.gone
        output.close()


def test_an_error_of_a_file_that_is_no_terminal_is_kept_from_textual(tmp_path) -> None:
    file = (tmp_path / "file").open("w", encoding="utf-8")
    output = TerminalOutput(file)
    output.write("kept")
    output.flush()
    assert (tmp_path / "file").read_text(encoding="utf-8") == "kept"
    file.close()
    output.write("lost")
    assert output.gone


def test_told_to_end_it_gives_the_terminal_back(tmp_path) -> None:
    pid, fd = _start(tmp_path)
    try:
        before = termios.tcgetattr(fd)
        assert "DEMO" in _read_until(fd, "DEMO")
        assert termios.tcgetattr(fd)[3] & termios.ECHO == 0
        os.kill(pid, signal.SIGTERM)
        rest = _read_until(fd, "\x1b[?1049l")
        assert "\x1b[?1049l" in rest and "Traceback" not in rest
        _read_until(fd, "never")
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert before[3] & termios.ECHO
        assert termios.tcgetattr(fd)[3] == before[3]
    finally:
        os.close(fd)
