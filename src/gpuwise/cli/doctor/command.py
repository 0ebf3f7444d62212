"""``gpuwise doctor``: check this machine's GPU setup and print the commands that fix it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from gpuwise.cli.options import Duration, NewFile, Whole
from gpuwise.cli.reports import report
from gpuwise.cli.shown import options_shown
from gpuwise.errors import InputError

if TYPE_CHECKING:
    from gpuwise.cli.shown import Shown
    from gpuwise.machine.doctor.report import Diagnosis
else:
    Shown = options_shown("doctor")


def doctor(
    *,
    gpus: Whole | None = None,
    python: Annotated[str | None, Parameter(metavar="PATH")] = None,
    limit: Duration | None = None,
    frameworks: bool = True,
    fix_plan: NewFile | None = None,
    dockerfile: NewFile | None = None,
    compose: NewFile | None = None,
    share: Annotated[bool, Parameter(negative="")] = False,
    shown: Shown | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Check this machine's GPU setup and print the commands that fix it.

    Checks the system, the driver, every GPU, containers, the Python environment and each framework (in its own process).
    Changes nothing. Exit code 0: ready; 1: ready with limits; 2: not ready.

    Parameters
    ----------
    gpus
        Number of GPUs expected; fewer is a fault. Without it, a machine without a GPU is ready for work on the CPU.
    python
        The Python interpreter whose packages are checked. Without it: that of the active environment.
    limit
        How long each framework may take to answer: 90s.
    frameworks
        Start the installed frameworks to check them; --no-frameworks only reads their files.
    fix_plan
        Write a script that fixes the faults to this file (- prints it). It asks before each step. gpuwise never runs it.
    dockerfile
        Write a Dockerfile for this driver and these GPUs to this file (- prints it).
    compose
        Write a compose file to go with it (- prints it).
    share
        Print a report for a bug report, without names, addresses, serial numbers and secrets.
    json
        One JSON document on the last line of stdout.
    """
    if limit is not None and not frameworks:
        raise InputError(
            "--limit is for starting the frameworks, and --no-frameworks does not start them", hint="leave one of them out"
        )
    diagnosis = _look(gpus, python, limit, frameworks)
    paths = _write(diagnosis, fix_plan, dockerfile, compose)
    if share and not json:
        import sys

        from gpuwise.machine.doctor.share import share_text

        sys.stdout.write(share_text(diagnosis))
    elif json or not paths:
        from gpuwise.machine.doctor.report import document
        from gpuwise.report.answers.machine import doctor_answer

        report(document(diagnosis), doctor_answer, shown, json=json)
    return diagnosis.exit_code


def _look(gpus: int | None, python: str | None, limit_s: float | None, frameworks: bool) -> Diagnosis:
    from contextlib import nullcontext

    from gpuwise.cli.progress import progress
    from gpuwise.machine.doctor.probes.frameworks import LIMIT_S
    from gpuwise.machine.doctor.probes.machine import probe
    from gpuwise.machine.doctor.report import diagnose

    with progress("asking the frameworks (--no-frameworks does not)") if frameworks else nullcontext():
        return diagnose(probe(python=python, frameworks=frameworks, limit_s=limit_s or LIMIT_S, wanted_gpus=gpus))


def _write(diagnosis: Diagnosis, fix_plan: str | None, dockerfile: str | None, compose: str | None) -> bool:
    """Write what was asked for; whether stdout was used for it. Raises InputError where a file is in the way."""
    import sys

    from gpuwise.machine.doctor import images, report

    writers = (
        (fix_plan, lambda: report.fix_plan(diagnosis)),
        (dockerfile, lambda: images.dockerfile(diagnosis.machine)),
        (compose, lambda: images.compose(diagnosis.machine)),
    )
    printed = False
    for name, make in writers:
        if name is None:
            continue
        if name == "-":
            sys.stdout.write(make())
            printed = True
        else:
            _create(name, make())
    return printed


def _create(name: str, text: str) -> None:
    """A new file; one that is there is left alone. Raises InputError."""
    import sys
    from pathlib import Path

    try:
        with Path(name).open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise InputError(f"{name} already exists", hint="name another file, or - to print it") from error
    except (OSError, ValueError) as error:
        raise InputError(f"{name} cannot be written: {error}", hint="check the path") from error
    sys.stderr.write(f"wrote {name}\n")
