"""``gpuwise export``: a plan as the files of the tool that runs it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from gpuwise.cli.options import LEFT_OPEN, NOTHING_FIXED, Count, LayoutOptions, Training, wishes_of
from gpuwise.cli.reports import report
from gpuwise.cli.shown import options_shown
from gpuwise.errors import InputError
from gpuwise.export.written import write_files

if TYPE_CHECKING:
    from gpuwise.cli.shown import Shown
    from gpuwise.export.job import Job
    from gpuwise.export.written import Written
else:
    Shown = options_shown("export")


def export(
    plan: str,
    *,
    to: Annotated[str | None, Parameter(show_default="that of the plan's stack", metavar="TOOL")] = None,
    on: Annotated[str | None, Parameter(metavar="GPUS")] = None,
    tokens: Count | None = None,
    out: Annotated[str | None, Parameter(metavar="FOLDER")] = None,
    data: Annotated[str | None, Parameter(metavar="DATA")] = None,
    driver: Annotated[str | None, Parameter(metavar="VERSION")] = None,
    training: Training = LEFT_OPEN,
    fixed: LayoutOptions = NOTHING_FIXED,
    shown: Shown | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Write the files that run this plan in Megatron, torchtitan, Hugging Face, Slurm, Kubernetes.

    Every file is complete except for the data. The named version of each tool has read files of this form. A setting that a
    tool does not have is refused, not left out.

    Parameters
    ----------
    plan
        A file with the output of `gpuwise plan --json` or `gpuwise capacity --json` (- is stdin), or a model. A model is
        planned first, with the same options, for the software of --to.
    to
        A training tool: torchrun (the ranks of `gpuwise run`), megatron, megatron-bridge (NeMo), torchtitan, trainer
        (Hugging Face), accelerate, deepspeed, lightning, axolotl, llama-factory, trl, unsloth, torchtune, nemo (AutoModel) or
        maxtext (TPUs). Or a launcher: slurm, docker, compose, kubernetes, dra (GPUs by claim), kueue, runai, jobset, trainjob
        (Kubeflow), skypilot or ray, alone or with the tool: slurm:torchtitan.
    on
        With a model: the GPUs, 8xH100-SXM, 2x8xH200.
    tokens
        With a model: tokens to train on, 15B.
    out
        The folder to write to. Existing files are not overwritten. Without it, --files prints them.
    data
        The data set, in the tool's own spelling. It replaces the placeholder DATA.
    driver
        NVIDIA driver version on the nodes, 570.86: the container image is chosen to run on it.
    json
        One JSON document on the last line of stdout.
    """
    from dataclasses import replace

    from gpuwise.export.targets import TOOLS, able_tool, check_device, find_target, gaps_of, write
    from gpuwise.facts.software.compatibility import parse_version

    document = None
    if plan == "-" or plan.endswith(".json"):
        from gpuwise.plan.plan_file import read_document

        document = read_document(plan)
    if document is not None and plan != "-" and "model_type" in document:
        document = None  # a configuration is a model
    if document is not None and "served" in document:
        if (on, tokens, data, driver) != (None,) * 4:
            raise InputError("--on, --tokens, --data and --driver are for training", hint="leave them out for a server")
        return _serve(document, plan, to, out, shown, json=json)
    if driver is not None and (not driver[:1].isdigit() or driver.strip(".0123456789") or parse_version(driver) < (100,)):
        raise InputError(f"--driver: {driver!r} is not a version of NVIDIA's driver", hint="write it like 570.86")
    job, lacking, unused = (
        (_read(document, plan, on, tokens), (), ()) if document is not None else _planned(plan, to, on, tokens, training, fixed)
    )
    job = replace(job, driver=driver)
    if data is not None:
        job = replace(job, data=_one_line(data))
    check_device(job)
    own, engine = find_target(to, job.strategy.stack, adapters=job.strategy.lora_rank > 0)
    # of a plan's file nothing can be planned again: where no tool is named, one that can express it
    tool = own if lacking or (to or "").rpartition(":")[2] in TOOLS else able_tool(job, own, engine)
    files = write(job, tool, engine)
    files = replace(files, notes=(*files.notes, *unused))
    if tool is not own:
        gaps = "; ".join(gaps_of(job, own, engine))
        files = replace(files, notes=(f"the times are planned for {own.version}, which has no setting for: {gaps}", *files.notes))
    if lacking:
        files = replace(
            files,
            notes=(f"the fastest plan has what {tool.version} cannot say, and was left: {'; '.join(lacking)}", *files.notes),
        )
    name, version = (tool.name, tool.version) if engine is None else (f"{engine.name}:{tool.name}", engine.version)
    by = "" if engine is None else f", started by {engine.version}"
    title = f"{job.arch.name} on {job.cluster.label} in {tool.version}{by}"
    return _answer(title, {"target": name, "version": version}, files, out, shown, json=json)


def _serve(document: dict[str, Any], file: str, to: str | None, out: str | None, shown: Shown | None, *, json: bool) -> int:
    from gpuwise.export.serving import served
    from gpuwise.serve.engines.engine import ENGINES

    name, files = served(document, to, file)
    title = f"{document.get('model')} on {document.get('on')} in {ENGINES[name].script}"
    return _answer(title, {"target": name, "version": ENGINES[name].script}, files, out, shown, json=json)


def _read(document: dict[str, Any], file: str, on: str | None, tokens: float | None) -> Job:
    from gpuwise.plan.plan_file import job_of_document

    if on is not None or tokens is not None:
        raise InputError(
            "--on and --tokens are in the plan already", hint="leave them out, or give the model in place of the file"
        )
    return job_of_document(document, file)


def _planned(
    model: str, to: str | None, on: str | None, tokens: float | None, training: Training, fixed: LayoutOptions
) -> tuple[Job, tuple[str, ...], tuple[str, ...]]:
    """The job that ``model`` is planned as for the tool of ``to``, what of the fastest plan the tool cannot say, and options that
    the job has no use for."""
    from dataclasses import replace

    from gpuwise.export.targets import check_device, find_target, gaps_of, stacks_of
    from gpuwise.plan.api import make_plan
    from gpuwise.plan.job import job_of, job_within
    from gpuwise.plan.unused import unused

    if on is None:
        raise InputError(
            "a model needs GPUs", hint="name them with --on 8xH100-SXM, or give the file that `gpuwise plan --json` printed"
        )
    wishes = wishes_of(training, fixed, tokens=tokens)
    plan = None
    if (fixed.stack, training.year) == (None, None) and not (training.lora or fixed.qlora):
        for stack in stacks_of(to):
            wishes = replace(wishes, stack=stack)
            plan = make_plan(model, on, wishes)
            if plan.best is not None:
                break
    plan = plan or make_plan(model, on, wishes)
    job = job_of(plan)
    check_device(job)
    tool, engine = find_target(to, job.strategy.stack, adapters=job.strategy.lora_rank > 0)
    made = job_within(lambda w: make_plan(model, on, w), wishes, plan, lambda j: gaps_of(j, tool, engine), stacks_of(to)[-1])
    job, lacking = made
    return job, lacking, tuple(unused(plan.goal, job.strategy))


def _one_line(data: str) -> str:
    if not data.strip() or not data.isprintable() or any(c in data for c in "\"'\\$`"):
        raise InputError(
            f"{data[:40]!r} cannot be written into a script", hint="a name or path without quotes, dollars and backslashes"
        )
    return data


def _document(files: Written) -> dict[str, Any]:
    return {
        "command": list(files.command),
        "environment": dict(files.environment),
        "unset": list(files.unset),
        "files": dict(files.files),
        "notes": list(files.notes),
    }


def _answer(title: str, names: dict[str, str], files: Written, out: str | None, shown: Shown | None, *, json: bool) -> int:
    """Writes the files where ``out`` says so, and shows them. 0."""
    from gpuwise.report.answers.written_files import export_answer

    folder = None if out is None else Path(out)
    if folder is not None:
        write_files(folder, files.files)
    report({**names, **_document(files)}, partial(export_answer, title=title, folder=folder), shown, json=json)
    return 0
