# pyright: basic
"""``python -m gpuwise.train.hook.child SETTINGS``: runs a script and observes it, as the settings say."""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import asdict
from pathlib import Path

from gpuwise.errors import GpuwiseError
from gpuwise.train.hook.children import LAUNCHERS, count_children, launcher_arguments, member_settings
from gpuwise.train.hook.journal import Writer
from gpuwise.train.hook.script import NoInput, ScriptEnd, run_script
from gpuwise.train.hook.script_run import ScriptRun, write_beginning
from gpuwise.train.hook.settings import Settings, read_settings


def main(arguments: list[str]) -> int:
    """Run the script of a settings file; after ``--rank``, as one rank of a launcher. Returns the exit code of the script."""
    settings = read_settings(Path(arguments[-1]))
    if arguments[0] == "--rank":
        settings = member_settings(settings, int(os.environ.get("RANK", "0")))
    journal = Writer(Path(settings.journal), sparse=settings.live)
    try:
        import torch  # noqa: F401 - whether it can be
    except ImportError as error:
        journal.event("end", reason="no torch", code=1, error=str(error))
        print(f"error: PyTorch does not import here: {error}\nhint: run gpuwise with the Python of the script", file=sys.stderr)  # noqa: T201
        return 1
    write_beginning(journal, settings)
    with contextlib.ExitStack() as stack:
        running = ScriptRun(settings, journal)
        stack.callback(running.close)
        ended = _run(settings, journal, running, stack)
    journal.event("end", **asdict(ended))
    journal.close()
    sys.stdout.flush()
    return ended.code


def _run(settings: Settings, journal: Writer, running: ScriptRun, stack: contextlib.ExitStack) -> ScriptEnd:
    sys.stdin = NoInput()
    stack.enter_context(count_children(journal, settings))
    try:
        running.prepare()
        arguments = settings.arguments
        if settings.module and settings.script in LAUNCHERS and settings.profiling is not None:
            arguments = launcher_arguments(settings)
        ended = run_script(settings.script, arguments, module=settings.module)
    except GpuwiseError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        ended = ScriptEnd("error", 2, error.message)
    with contextlib.suppress(Exception):
        running.finish()
    return ended


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
