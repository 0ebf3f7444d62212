"""``gpuwise export``: a plan as the files of the tool that runs it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from cyclopts import Parameter

from gpuwise.cli.options import LEFT_OPEN, NOTHING_FIXED, Count, Fixed, Training, wishes_of
from gpuwise.errors import InputError

if TYPE_CHECKING:
    from gpuwise.export.job import Job
    from gpuwise.export.targets import Tool
    from gpuwise.export.written import Written


def export(
    plan: str,
    *,
    to: str | None = None,
    on: str | None = None,
    tokens: Count | None = None,
    out: str | None = None,
    data: str | None = None,
    training: Training = LEFT_OPEN,
    fixed: Fixed = NOTHING_FIXED,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """What do I give Megatron, torchtitan, Accelerate, DeepSpeed to run this plan?

    Every file is complete but for the data, and of a form that the named version of the tool has itself read. What a
    tool has no option for is refused, not left out.

    Parameters
    ----------
    plan
        What `gpuwise plan --json` printed, as a file (- is stdin), or a model, which is planned first with the same
        options as there.
    to
        megatron, torchtitan, trainer (Hugging Face), accelerate or deepspeed. Left out: that of the plan's stack.
    on
        The GPUs, where a model is given: 8xH100-SXM, 2x8xH200.
    tokens
        Tokens to train on, where a model is given: 15B.
    out
        The folder to write to. Left out, everything is printed. Nothing is written over.
    data
        The data set, as the tool names it, in place of DATA.
    json
        One JSON document on the last line of stdout.
    """
    job, tool = _job(plan, on, tokens, training, fixed), None
    from dataclasses import replace

    from gpuwise.export.targets import find_tool, tool_of, write

    if data is not None:
        job = replace(job, data=_one_line(data))
    tool = tool_of(job.strategy.stack) if to is None else find_tool(to)
    if tool is None:
        raise InputError(f"there are no files for the stack {job.strategy.stack}", hint="name a tool with --to")
    written = write(job, tool)
    if json:
        from gpuwise.cli.out import print_json

        print_json({"target": tool.name, "version": tool.version, **_document(written)})
    if out is not None:
        from gpuwise.export.written import write_files

        made = write_files(Path(out), written.files)
        if not json:
            _show(job, tool, written, [str(path) for path in made])
    elif not json:
        _show(job, tool, written, None)
    return 0


def _job(plan: str, on: str | None, tokens: float | None, training: Training, fixed: Fixed) -> Job:
    if plan == "-" or plan.endswith(".json"):
        if on is not None or tokens is not None:
            raise InputError(
                "--on and --tokens are in the plan already", hint="leave them out, or give the model in place of the file"
            )
        return _read(plan)
    from gpuwise.cli.this_machine import cluster_or_text
    from gpuwise.plan.api import make_plan
    from gpuwise.plan.job import job_of

    if on is None:
        raise InputError(
            "a model needs GPUs", hint="name them with --on 8xH100-SXM, or give the file that `gpuwise plan --json` printed"
        )
    wishes = wishes_of(training, fixed, tokens=tokens)
    return job_of(make_plan(plan, cluster_or_text(on), wishes))


def _read(name: str) -> Job:
    import json

    from gpuwise.plan.job import job_of_document

    try:
        text = sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {name}: {error}", hint="give what `gpuwise plan MODEL --on GPUS --json` printed") from None
    lines = [line for line in text.splitlines() if line.strip()]
    try:
        document: Any = json.loads(lines[-1] if lines else "")
    except ValueError:
        try:
            document = json.loads(text)
        except ValueError:
            raise InputError(f"{name} is not JSON", hint="give what `gpuwise plan MODEL --on GPUS --json` printed") from None
    if not isinstance(document, dict):
        raise InputError(f"{name} is not a plan", hint="give what `gpuwise plan MODEL --on GPUS --json` printed")
    return job_of_document(cast(dict[str, Any], document))


def _one_line(data: str) -> str:
    if not data.strip() or not data.isprintable() or any(c in data for c in "\"'\\$`"):
        raise InputError(
            f"{data[:40]!r} cannot be written into a script", hint="a name or path without quotes, dollars and backslashes"
        )
    return data


def _document(written: Written) -> dict[str, Any]:
    return {
        "command": list(written.command),
        "environment": dict(written.environment),
        "unset": list(written.unset),
        "files": dict(written.files),
        "notes": list(written.notes),
    }


def _show(job: Job, tool: Tool, written: Written, made: list[str] | None) -> None:
    from gpuwise.cli.out import console

    to = console()
    to.print(f"{job.arch.name} on {job.cluster.label}, for {tool.version}", style="bold")
    if made is not None:
        for path in made:
            to.print(f"  {path}", soft_wrap=True, style="cyan")
    else:
        for name, text in written.files.items():
            to.print()
            to.print(name, style="bold")
            for line in text.splitlines():
                to.print(line, soft_wrap=True, markup=False, highlight=False)
    to.print()
    for note in written.notes:
        to.print(f"- {note}")
