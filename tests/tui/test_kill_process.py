"""Ending processes: real children of the test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
from tests.tui.screens import one_process, watch_cards

from gpuwise.machine.telemetry.frames import HostProcess
from gpuwise.tui import kill_dialog
from gpuwise.tui import kill_process as ending
from gpuwise.tui.kill_process import is_gone, kill_process, refusal, started_s

STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"


@pytest.fixture
def child():
    with subprocess.Popen([sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"], stdout=-1) as made:
        assert made.stdout is not None and made.stdout.readline()
        yield made
        made.kill()


@pytest.fixture
def stubborn():
    with subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=-1) as made:
        assert made.stdout is not None and made.stdout.readline()
        yield made
        made.kill()


def host_of(pid: int) -> HostProcess:
    return HostProcess(pid, "python", "python -c ...", "ada", started_s=started_s(pid))


def test_a_process_is_asked_to_end_after_a_question(child) -> None:
    cards, people = one_process(host_of(child.pid))

    async def act(screen) -> None:
        assert "choose a process first" in await screen.press("k")
        await screen.press("down")
        text = await screen.press("k")
        assert f"process {child.pid}" in text and "SIGTERM" in text
        await screen.press("n")
        assert child.poll() is None
        # the pointer begins on "leave it": enter alone ends nothing
        await screen.press("k", "enter")
        assert child.poll() is None
        await screen.press("k", "y")
        await screen.until(lambda: child.poll() is not None)
        await screen.until(lambda: "has ended" in screen.text)
        assert child.returncode == -signal.SIGTERM

    watch_cards(cards, act, people=people)


def test_one_that_stays_is_offered_sigkill(stubborn, monkeypatch) -> None:
    monkeypatch.setattr(kill_dialog, "PATIENCE_S", 0.3)
    cards, people = one_process(host_of(stubborn.pid))

    async def act(screen) -> None:
        await screen.press("down", "k", "y")
        await screen.until(lambda: "SIGKILL" in screen.text)
        assert stubborn.poll() is None
        await screen.press("down", "enter")
        await screen.until(lambda: stubborn.poll() is not None)
        assert stubborn.returncode == -signal.SIGKILL

    watch_cards(cards, act, people=people)


def test_a_number_given_to_another_is_refused(child) -> None:
    host = host_of(child.pid)
    assert host.started_s is not None
    other = replace(host, started_s=host.started_s - 3.0)
    assert not kill_process(other, signal.SIGKILL).ok and "given to another" in kill_process(other, signal.SIGKILL).words
    assert is_gone(other) and not is_gone(host)
    assert child.poll() is None


def test_what_is_refused(child) -> None:
    host = host_of(child.pid)
    assert refusal(host, live=True) is None
    assert "not a live view" in str(refusal(host, live=False))
    assert "system's own" in str(refusal(replace(host, pid=1), live=True))
    assert "this screen" in str(refusal(host_of(os.getpid()), live=True))
    assert "told apart" in str(refusal(replace(host, unknown={"name": "no permission"}), live=True))
    child.kill()
    child.wait()
    assert "already ended" in str(refusal(host, live=True)) and is_gone(host)
    assert "already ended" in kill_process(host, signal.SIGTERM).words


def test_not_permitted_is_said(child, monkeypatch) -> None:
    def no(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    with monkeypatch.context() as patch:
        patch.setattr(signal, "pidfd_send_signal", no, raising=False)
        patch.setattr(os, "kill", no)
        answer = kill_process(host_of(child.pid), signal.SIGTERM)
    assert not answer.ok and "not permitted" in answer.words and "belongs to ada" in answer.words
    assert child.poll() is None


def test_a_sandbox_without_handles_still_ends_it(child, monkeypatch) -> None:
    def no(_: int) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", no, raising=False)
    assert kill_process(host_of(child.pid), signal.SIGTERM).ok
    assert child.wait(300) == -signal.SIGTERM


def test_times_of_start_are_the_readers_own(child) -> None:
    from gpuwise.machine.telemetry.host_processes import default_reader

    read = default_reader().read([child.pid], 0.0)[child.pid]
    assert read.started_s is None or read.started_s == pytest.approx(started_s(child.pid), abs=ending.SAME_START_S)
