"""A process that runs command lines, one after another: ``python -m gpuwise.ui.worker``.

A line on stdin is JSON with ``words``, a command line, and ``folder``, where it runs; the answer is a line with its exit code and
the document of ``--json``. What commands print besides goes nowhere. An interrupt ends the command under way, not the process;
the end of stdin ends it.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
from types import FrameType
from typing import Any


def main() -> None:
    """Answer until stdin ends."""
    busy = False

    def interrupt(_: int, frame: FrameType | None) -> None:
        if busy:
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    lines, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    with open(os.devnull, "r+b", buffering=0) as nowhere:  # noqa: PTH123
        for stream in (0, 1, 2):
            os.dup2(nowhere.fileno(), stream)
    from gpuwise.cli.app import run

    for line in lines:
        asked: dict[str, Any] = json.loads(line)
        out, code = io.StringIO(), 130
        try:
            busy = True
            os.chdir(asked["folder"])
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
                code = run(asked["words"])
            busy = False
        except KeyboardInterrupt:  # before or after the command looked for it
            busy = False
        except SystemExit as stop:  # a user's own code
            busy = False
            code = stop.code if isinstance(stop.code, int) else 1
        text = out.getvalue().rstrip("\n").rpartition("\n")[2]
        answers.write(b'{"code":%d,"document":%s}\n' % (code, text.encode() if text.startswith("{") else b"null"))
        answers.flush()


if __name__ == "__main__":
    main()
