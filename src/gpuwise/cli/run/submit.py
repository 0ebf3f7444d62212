"""``gpuwise run PLAN train.py:make_step --on ENGINE``: the files of the ranks, handed to what starts them on other machines."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpuwise.errors import InputError
from gpuwise.files import read_text

if TYPE_CHECKING:
    from gpuwise.export.job import Job
    from gpuwise.export.written import Written
    from gpuwise.train.ranks.launch import RankJournal
    from gpuwise.train.ranks.settings import RankSettings

ENGINES = {"slurm": "slurm", "ray": "ray", "k8s": "kubernetes", "sky": "skypilot"}
"""By the name of an export target."""


Words = Callable[["tuple[RankJournal, ...]", "int | None"], str]
"""Of journals and the steps asked for: a line."""
POLL_S = 5.0
"""Between looks at the queue and the journals."""


def submit(on: str, job: Job | None, settings: RankSettings, out: Path, *, follow: Words | None = None) -> int:
    """Write the files into ``out``, where nothing may lie, and hand them over. Returns the exit code of the engine's own command,
    or with ``follow`` that of the training, whose journals are watched where ``out`` is a folder that the nodes see.
    Raises InputError where the engine is not known or not on this machine, or where there is no plan."""
    from gpuwise.export.targets import ENGINES as KNOWN
    from gpuwise.export.written import write_files

    if on not in ENGINES:
        raise InputError(f"--on {on}: unknown launcher", hint=f"--on here, {', '.join(ENGINES)}")
    if follow is not None and on != "slurm":
        raise InputError(f"--follow: {on} does not report the progress of its jobs", hint="leave it out, or --on slurm")
    if job is None:
        raise InputError(
            f"--on {on} needs a plan, which names the machines", hint="gpuwise plan MODEL --on GPUS --json > plan.json"
        )
    program = KNOWN[ENGINES[on]].command[0]
    if shutil.which(program) is None:
        raise InputError(
            f"{program} is not on this machine",
            hint=f"`gpuwise export plan.json --to {ENGINES[on]}:torchrun --out DIR` writes the files for a machine that has it",
        )
    job_files = files(on, job, settings)
    write_files(out, job_files.files)
    sys.stderr.write(f"gpuwise: {out}: {' '.join(job_files.command)}\n")
    for note in job_files.notes:
        sys.stderr.write(f"gpuwise: {note}\n")
    if follow is None:
        return subprocess.run(job_files.command, cwd=out).returncode
    done = subprocess.run(job_files.command, cwd=out, stdout=subprocess.PIPE, text=True)
    sys.stdout.write(done.stdout)
    number = re.search(r"Submitted batch job (\d+)", done.stdout)
    if done.returncode or number is None:
        return done.returncode or 1
    return _followed(number[1], out / job.output, settings, follow)


def _followed(number: str, folder: Path, settings: RankSettings, words: Words) -> int:
    """Show the steps of a job of Slurm until it is gone from the queue. Returns 0 where every rank came to its end."""
    import time

    from gpuwise.cli.run.screen import screen
    from gpuwise.train.ranks.launch import RankJournal

    journals = tuple(RankJournal(folder / f"rank-{r}.jsonl") for r in range(settings.layout.n_ranks))
    before = ""
    with screen() as shown:
        while True:
            state = _state(number)
            for journal in journals:
                journal.read()
            now = words(journals, settings.steps) if journals[0].last else f"gpuwise: job {number} {(state or 'is gone').lower()}"
            if now != before:
                shown.show(now)
            before = now
            if state is None:
                break
            time.sleep(POLL_S)
    ends = [j.end for j in journals]
    sys.stderr.write(f"gpuwise: job {number} ended, step {int(journals[0].last.get('step', 0)):,}; journals in {folder}\n")
    return 0 if set(ends) <= {"done", "asked"} else 1


def _state(number: str) -> str | None:
    """As ``squeue`` has it; None where the job is gone."""
    told = subprocess.run(["squeue", "-h", "-j", number, "-o", "%T"], capture_output=True, text=True)
    return told.stdout.strip() or None


def files(on: str, job: Job, settings: RankSettings) -> Written:
    """The file of the function, the ranks' settings, ``train.sh`` and what the engine reads. Raises InputError for what
    the engine cannot start, and for a function that is in no file."""
    import json

    import msgspec

    from gpuwise.export import ranks
    from gpuwise.export.engines.start import Start
    from gpuwise.export.targets import ENGINES as KNOWN
    from gpuwise.export.targets import TOOLS
    from gpuwise.export.torchrun import started, torchrun
    from gpuwise.export.written import Written

    place, _, name = settings.target.rpartition(":")
    if not place.endswith(".py"):
        raise InputError(f"{settings.target} is not a function in a file", hint="name it: train.py:make_step")
    engine, tool = KNOWN[ENGINES[on]], TOOLS["torchrun"]
    lacking = list(dict.fromkeys(engine.gaps(job) if engine.gaps else ()))
    if lacking:
        raise InputError(f"{engine.name} has not: {'; '.join(lacking)}", hint="--on slurm and --on ray start what the nodes have")
    if engine.keeps:
        job = replace(job, output=f"{engine.keeps}/{job.output}")
    there = msgspec.structs.replace(settings, target=f"{Path(place).name}:{name}", out=job.output)
    own = {
        Path(place).name: read_text(Path(place)),
        "settings.json": json.dumps(msgspec.to_builtins(there), indent=2) + "\n",
    }
    inner = started(
        job, ranks.VERSION, [*torchrun(job), *ranks.CHILD], own, [f"of your files {Path(place).name} alone goes along"]
    )
    start = Start(job, tool, inner, engine.version)
    return Written(engine.command, {**inner.files, **engine.files(start)}, notes=(*inner.notes, *engine.notes(start)))
