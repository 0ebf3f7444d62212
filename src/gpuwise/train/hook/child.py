# pyright: basic
"""``python -m gpuwise.train.hook.child SETTINGS``: runs a script and observes it, as the settings say."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gpuwise.errors import GpuwiseError
from gpuwise.train.hook.children import LAUNCHERS, count_children, launcher_arguments, member_settings
from gpuwise.train.hook.journal import Writer
from gpuwise.train.hook.run_queue import RunQueue
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
    if settings.tidies:
        tell_made(journal, Path.cwd(), Path(settings.journal).resolve().parents[1])
    try:
        running.prepare()
        arguments = settings.arguments
        if settings.module and settings.script in LAUNCHERS and settings.profiling is not None:
            arguments = launcher_arguments(settings)
        queue, began_s = RunQueue(), time.perf_counter()
        before_s = queue.waited_s()
        ended = run_script(settings.script, arguments, module=settings.module)
        # a trial that is stopped does not run the script's exit
        journal.event("whole", wall_s=time.perf_counter() - began_s, queue_s=queue.waited_s() - before_s)
        queue.close()
        if ended.missing is not None and running.misses(ended.missing):
            # a trial wrote it elsewhere, and what copies or renames it knows nothing of that
            ended = ScriptEnd("end", 0)
    except GpuwiseError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        ended = ScriptEnd("error", 2, error.message)
    with contextlib.suppress(Exception):
        running.finish()
    return ended


def tell_made(journal: Writer, root: Path, ours: Path) -> None:
    """An event ``made`` for every file and folder below ``root`` that this process creates from here on, except below
    ``ours``. Not reported: anything that existed before, even if the script deletes and recreates it, and Python's compiled
    files."""
    below, except_below, process = f"{root}{os.sep}", f"{ours}{os.sep}", os.getpid()
    new_paths, before = set[str](), set[str]()

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in _ON_PATHS or os.getpid() != process:
            return
        # not resolved: a link is made and removed itself
        paths = [os.path.abspath(os.fsdecode(a)) for a in arguments[:2] if isinstance(a, (str, bytes, os.PathLike))]  # noqa: PTH100
        if not paths or (event == "open" and not (isinstance(arguments[2], int) and arguments[2] & os.O_CREAT)):
            return
        path = paths[0]
        if event in ("os.remove", "os.rmdir", "shutil.rmtree"):
            before.update({path} - new_paths)
            return
        if event in ("os.rename", "os.symlink") and len(paths) == 2:
            if event == "os.rename" and path not in new_paths:
                # the person's own, moved
                before.update((path, paths[1]))
                return
            path = paths[1]
        if not path.startswith(below) or path.startswith(except_below) or "__pycache__" in path or os.path.lexists(path):
            return
        if not any(path == b or path.startswith(f"{b}{os.sep}") for b in before):
            new_paths.add(path)
            journal.event("made", path=path)

    sys.addaudithook(hook)


_ON_PATHS = frozenset(("open", "os.mkdir", "os.rename", "os.symlink", "os.remove", "os.rmdir", "shutil.rmtree"))
"""Events of Python's audit whose first arguments are paths."""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
