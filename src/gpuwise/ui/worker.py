"""A process that runs command lines, one after another: ``python -m gpuwise.ui.worker``.

A line on stdin is JSON with ``words``, a command line, and ``folder``, where it runs; the answer is a line with its exit code
and the document of ``--json``, after lines with ``told``, its progress messages. With ``show``, parts of the answer or null for
all of them, the line has its ``screen`` too: what a terminal shows, and the verdict with the figures. Or it has ``layouts``,
queries of sliders, and ``today``; the answer is a line for each. Other output of commands is discarded. An interrupt ends the
current command, not the process; the end of stdin ends both.
"""

from __future__ import annotations

import contextlib
import datetime
import gc
import io
import json
import os
import signal
from collections.abc import Mapping
from queue import SimpleQueue
from threading import Thread
from types import FrameType
from typing import Any, BinaryIO


def main() -> None:
    """Answer until stdin ends."""
    busy = False

    def interrupt(_: int, frame: FrameType | None) -> None:
        if busy:
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    lines, answers = SimpleQueue[bytes](), os.fdopen(os.dup(1), "wb")
    Thread(target=_listen, args=(os.fdopen(os.dup(0), "rb"), lines), daemon=True).start()
    with open(os.devnull, "r+b", buffering=0) as nowhere:  # noqa: PTH123
        for stream in (0, 1, 2):
            os.dup2(nowhere.fileno(), stream)
    from gpuwise.cli import progress
    from gpuwise.cli.app import run
    from gpuwise.cli.asked import taking

    def tell(line: str) -> None:
        answers.write(json.dumps({"told": line}).encode() + b"\n")
        answers.flush()

    progress.listener = tell
    while True:
        asked: dict[str, Any] = json.loads(lines.get())
        if "layouts" in asked:
            _evaluate(asked, answers)
            continue
        out, code, document, screen = io.StringIO(), 130, "", None
        try:
            busy = True
            os.chdir(asked["folder"])
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
                if "show" in asked:
                    with taking() as taken:
                        code = run(asked["words"])
                    if taken:
                        document, screen = json.dumps(taken[-1][0], allow_nan=False), _screen(asked, *taken[-1])
                else:
                    code = run(asked["words"])
            busy = False
        except KeyboardInterrupt:  # before or after the command looked for it
            busy = False
        except SystemExit as stop:  # a user's own code
            busy = False
            code = stop.code if isinstance(stop.code, int) else 1
        text = document or out.getvalue().rstrip("\n").rpartition("\n")[2]
        answers.write(
            b'{"code":%d,"document":%s,"screen":%s}\n'
            % (code, text.encode() if text.startswith("{") else b"null", json.dumps(screen).encode())
        )
        answers.flush()


def _screen(asked: Mapping[str, Any], document: dict[str, Any], answer: Any) -> dict[str, Any] | None:
    """What a terminal shows of an answer, and its summary; None for a list, which has neither."""
    from gpuwise.cli.answer import summary, text
    from gpuwise.cli.asked import asking

    if answer is None:
        return None
    with asking([word for word in asked["words"] if word != "--json"]):
        made = answer(json.loads(json.dumps(document)))
        return {"text": text(made, asked["show"]), **summary(made)}


def _evaluate(asked: Mapping[str, Any], answers: BinaryIO) -> None:
    from gpuwise.ui.moment import replies  # others need nothing of it

    for line in replies(asked["layouts"], datetime.date.fromisoformat(asked["today"])):
        answers.write(line + b"\n")
        answers.flush()
    if not gc.get_freeze_count():
        # tables stay: to look through them for garbage again and again would hold answers up for a tenth of a second
        gc.collect()
        gc.freeze()


def _listen(stdin: BinaryIO, lines: SimpleQueue[bytes]) -> None:
    """Pass lines on; the process ends with the last of them, in the midst of a command too."""
    for line in stdin:
        lines.put(line)
    os._exit(0)


if __name__ == "__main__":
    main()
