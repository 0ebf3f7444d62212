"""Processes that a script starts. For a profile, training processes are watched like separate scripts: those of multiprocessing,
and the ranks of ``python -m torch.distributed.run``.

A member's journal and trace are in ``members`` beside the journal of the script, by its number (the rank, or the order of the
start). All members stop after the same number of steps, as one that ends early would leave the others in a collective.
"""

from __future__ import annotations

import multiprocessing.process
import os
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from gpuwise.train.hook.journal import Writer
from gpuwise.train.hook.settings import Settings, Stop, write_settings
from gpuwise.workload.capture.device.patching import Patches

_HELPERS = ("_worker_loop", "_pin_memory_loop")
"""Processes of a ``DataLoader``, which train nothing."""
MOST_TOLD = 16
LAUNCHERS = ("torch.distributed.run", "torch.distributed.launch")
STEPS_AFTER = 4
"""Steps of the members after the trace."""


def members_folder(settings: Settings) -> Path:
    """Folder of the members' journals and traces."""
    return Path(settings.journal).parent / "members"


def member_settings(settings: Settings, number: int) -> Settings:
    """The settings of one member. ``settings`` has to ask for a trace."""
    profiling = settings.profiling
    assert profiling is not None
    folder = members_folder(settings)
    folder.mkdir(parents=True, exist_ok=True)
    stop = settings.stop
    if stop.steps is not None:
        stop = Stop(most_steps=profiling.skip + profiling.note_steps + profiling.steps + STEPS_AFTER)
    child_profiling = msgspec.structs.replace(profiling, trace=str(folder / f"{number}.json.gz"))
    return msgspec.structs.replace(settings, journal=str(folder / f"{number}.jsonl"), profiling=child_profiling, stop=stop)


class Member:
    """A process's target, watched in the process that runs it. Pickled with the process where it is spawned."""

    def __init__(self, target: Callable[..., Any], settings: Settings) -> None:
        self._target, self._settings = target, msgspec.json.encode(settings)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # a process that has no torch trains nothing, and importing it would change what it is
        if "torch" not in sys.modules:
            return self._target(*args, **kwargs)
        from gpuwise.train.hook.script import EnoughError, ScriptEnd
        from gpuwise.train.hook.script_run import ScriptRun, write_beginning
        from gpuwise.train.hook.watch import ACTIVE

        # a fork has those of the process that started it
        for inherited in reversed(list(ACTIVE)):
            inherited.close()
        settings = msgspec.json.decode(self._settings, type=Settings)
        journal = Writer(Path(settings.journal))
        write_beginning(journal, settings)
        running = ScriptRun(settings, journal)
        ended = ScriptEnd("end", 0)
        try:
            running.prepare()
            return self._target(*args, **kwargs)
        except EnoughError:
            ended = ScriptEnd("enough", 0)
            return None
        except BaseException as error:
            ended = ScriptEnd("error", 1, f"{type(error).__name__}: {error}")
            raise
        finally:
            running.finish()
            running.close()
            journal.event("end", **asdict(ended))
            journal.close()


def launcher_arguments(settings: Settings) -> list[str]:
    """Arguments of torch's launcher with every rank watched; as they are where it starts something that is not Python."""
    from torch.distributed.run import get_args_parser

    arguments = list(settings.arguments)
    parsed = get_args_parser().parse_args(arguments)
    if parsed.no_python:
        return arguments
    n_script_arguments = len(parsed.training_script_args) + 1
    head = [a for a in arguments[:-n_script_arguments] if a not in ("-m", "--module")]
    folder = members_folder(settings)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "settings.json"
    rank = msgspec.structs.replace(
        settings,
        script=parsed.training_script,
        arguments=list(parsed.training_script_args),
        module=bool(parsed.module),
    )
    write_settings(rank, file)
    return [*head, "-m", "gpuwise.train.hook.child", "--rank", str(file)]


@contextmanager
def count_children(journal: Writer, settings: Settings) -> Generator[None]:
    """Report every process that the script starts with multiprocessing or ``os.fork``, except workers of a loader. For a profile,
    what multiprocessing starts is watched there."""
    patches, n_children, starting = Patches(), [0], [0]
    start, fork = multiprocessing.process.BaseProcess.start, os.fork
    pid = os.getpid()

    def tell(how: str, what: str) -> None:
        n_children[0] += 1
        if n_children[0] <= MOST_TOLD and os.getpid() == pid:
            journal.event("child", how=how, what=what)

    def started(process: Any) -> None:
        target = getattr(process, "_target", None)
        name = getattr(target, "__qualname__", None) or type(process).__qualname__
        if name not in _HELPERS:
            tell("multiprocessing", _inner_name(name, process))
            if target is not None and settings.profiling is not None and os.getpid() == pid:
                process._target = Member(target, member_settings(settings, n_children[0] - 1))
        starting[0] += 1
        try:
            start(process)
        finally:
            starting[0] -= 1

    def forked() -> int:
        number = fork()
        if number and not starting[0]:
            tell("fork", str(number))
        return number

    patches.set(multiprocessing.process.BaseProcess, "start", started)
    patches.set(os, "fork", forked)
    try:
        yield
    finally:
        patches.undo()


def _inner_name(name: str, process: Any) -> str:
    """torch.multiprocessing.spawn wraps the function that the script gave."""
    first = next(iter(getattr(process, "_args", ()) or ()), None)
    return getattr(first, "__qualname__", name) if name == "_wrap" else name
