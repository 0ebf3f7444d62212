"""What the process that forks runs leaves behind: nothing."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from gpuwise.train.hook.zygote import FORKS

pytestmark = pytest.mark.skipif(not FORKS or not hasattr(os, "pidfd_open"), reason="forks of Linux")
SERVER = """
import os, sys, time
from gpuwise.train.hook import child, zygote
def endless(arguments):
    worker = os.fork()
    if worker:
        print(worker, flush=True)
    time.sleep(3600)
child.main, zygote.PRELOADED = endless, ()
sys.exit(zygote.serve())
"""
LONG_MS = 120_000


def has_ended(pid: int) -> bool:
    """Waits for it, at most two minutes."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    ends = select.poll()
    ends.register(process, select.POLLIN)
    try:
        return bool(ends.poll(LONG_MS))
    finally:
        os.close(process)


@pytest.mark.parametrize("ends", ["the asker is gone", "it is killed"])
def test_no_run_outlives_the_process_that_forked_it(ends: str, tmp_path: Path) -> None:
    server = subprocess.Popen([sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert server.stdin is not None and server.stdout is not None
    words = tmp_path / "words"
    os.mkfifo(words)
    reader = os.open(words, os.O_RDONLY | os.O_NONBLOCK)  # it can be opened for writing from here on
    server.stdin.write(json.dumps({"settings": "none", "output": str(words), "environment": {}}).encode() + b"\n")
    server.stdin.flush()
    run = json.loads(server.stdout.readline())["pid"]
    started = select.poll()
    started.register(reader, select.POLLIN)
    assert started.poll(LONG_MS)
    worker = int(os.read(reader, 100))
    try:
        if ends == "it is killed":
            server.kill()
        else:
            server.stdin.close()
        assert server.wait(LONG_MS / 1000) == (-signal.SIGKILL if ends == "it is killed" else 0)
        assert has_ended(run)
        assert ends == "it is killed" or has_ended(worker)
    finally:
        os.close(reader)
        server.stdout.close()
        server.stdin.close()
        for pid in (run, worker):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
