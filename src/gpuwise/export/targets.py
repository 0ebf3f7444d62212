"""Targets of an export: training tools, and engines that start one of them on their nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from gpuwise.errors import InputError, UnknownNameError, nearest_names
from gpuwise.export import (
    axolotl,
    deepspeed,
    hugging_face,
    lightning,
    llama_factory,
    maxtext,
    megatron,
    megatron_bridge,
    nemo,
    ranks,
    torchtitan,
    torchtune,
    trl,
    unsloth,
)
from gpuwise.export.engines import containers, kubernetes, ray, skypilot, slurm
from gpuwise.export.engines.start import STORAGE, Start
from gpuwise.export.job import Job
from gpuwise.export.tool import Tool
from gpuwise.export.torchrun import host_threads
from gpuwise.export.written import Written, together
from gpuwise.workload.stacks.stack import find_stack
from gpuwise.workload.strategy import NEUTRAL, OPTIONS


@dataclass(frozen=True, slots=True)
class Engine:
    """A program that starts a tool on every node. ``files`` go beside the tool's own, ``command`` hands them over."""

    name: str
    version: str
    command: tuple[str, ...]
    files: Callable[[Start], Mapping[str, str]]
    notes: Callable[[Start], tuple[str, ...]]
    gaps: Callable[[Job], Iterator[str]] | None = None
    keeps: str = STORAGE
    """Folder of checkpoints; empty: beside the files."""


def _deepspeed_gaps(job: Job) -> Iterator[str]:
    yield from hugging_face.gaps(job)
    yield from deepspeed.gaps(job)


def _trainer(job: Job) -> list[str]:
    return ["train.py", *hugging_face.arguments(job)]


def _pip(*packages: str) -> str:
    return f"pip install --no-cache-dir {' '.join(packages)}"


_HUB = (*hugging_face.PACKAGES, "datasets==4.*", "peft==0.21.*", "bitsandbytes==0.49.*")
TOOLS = {
    t.name: t
    for t in (
        Tool(
            "megatron",
            megatron.VERSION,
            megatron.gaps,
            megatron.write,
            lambda j: ["pretrain_gpt.py", *megatron.arguments(j)],
            setup=megatron.SETUP,
            runs="megatron",
            stack="megatron-core",
        ),
        Tool(
            "megatron-bridge",
            megatron_bridge.VERSION,
            megatron_bridge.gaps,
            megatron_bridge.write,
            lambda _: ["train.py"],
            setup=_pip("megatron-bridge==0.6.0"),
            runs="megatron",
            stack="megatron-core",
        ),
        Tool(
            "torchtitan",
            torchtitan.VERSION,
            torchtitan.gaps,
            torchtitan.write,
            lambda j: ["-m", "torchtitan.train", *torchtitan.arguments(j)],
            torchtitan.ALWAYS,
            torchtitan.packs,
            _pip("torchtitan==0.3.0"),
            runs="torchtitan",
            stack="compiled-fsdp",
        ),
        Tool(
            "trainer",
            hugging_face.TRAINER,
            hugging_face.gaps,
            hugging_face.write_trainer,
            _trainer,
            setup=_pip(*_HUB),
        ),
        Tool(
            "accelerate",
            hugging_face.ACCELERATE,
            hugging_face.gaps,
            hugging_face.write_accelerate,
            _trainer,
            setup=_pip(*_HUB),
        ),
        Tool(
            "deepspeed",
            deepspeed.VERSION,
            _deepspeed_gaps,
            hugging_face.write_deepspeed,
            _trainer,
            setup=_pip(*_HUB, "deepspeed==0.19.*"),
            stack="deepspeed",
        ),
        Tool(
            "lightning",
            lightning.VERSION,
            lightning.gaps,
            lightning.write,
            _trainer,
            setup=_pip(*_HUB, "lightning==2.6.*", "'jsonargparse[signatures]==4.*'", "deepspeed==0.19.*"),
        ),
        Tool(
            "axolotl",
            axolotl.VERSION,
            axolotl.gaps,
            axolotl.write,
            _trainer,
            setup=_pip("'axolotl[deepspeed]==0.19.0'"),
        ),
        Tool(
            "llama-factory",
            llama_factory.VERSION,
            llama_factory.gaps,
            llama_factory.write,
            _trainer,
            setup=_pip("llamafactory==0.9.5", "deepspeed", "bitsandbytes==0.49.*"),
            may_run="unsloth",
            stack="deepspeed",
        ),
        Tool(
            "trl",
            trl.VERSION,
            trl.gaps,
            trl.write,
            lambda j: [*trl.MODULE, *hugging_face.words_of(trl.document(j))],
            trl.ALWAYS,
            trl.packs,
            _pip("trl==1.16.*", *_HUB),
            stack="trl",
            sharded="deepspeed",
        ),
        Tool(
            "unsloth",
            unsloth.VERSION,
            unsloth.gaps,
            unsloth.write,
            lambda _: ["train.py"],
            unsloth.ALWAYS,
            setup=_pip("unsloth==2026.10.*"),
            runs="unsloth",
            stack="unsloth",
        ),
        Tool(
            "torchtune",
            torchtune.VERSION,
            torchtune.gaps,
            torchtune.write,
            torchtune.words,
            torchtune.ALWAYS,
            lambda j: j.packed is not None,
            _pip("torchtune==0.6.1", "torch==2.7.*", "torchao==0.10.*", "bitsandbytes==0.49.*"),
            launcher=torchtune.launcher,
            runs="torchtune",
            stack="torchtune",
        ),
        Tool(
            "nemo",
            nemo.VERSION,
            nemo.gaps,
            nemo.write,
            lambda _: [*nemo.MODULE, "nemo.yaml"],
            packs=lambda j: j.packed is not None,
            setup=_pip("nemo-automodel==0.7.0", "bitsandbytes==0.49.*"),
        ),
        Tool(
            "maxtext",
            maxtext.VERSION,
            maxtext.gaps,
            maxtext.write,
            lambda _: [*maxtext.WORDS],
            maxtext.ALWAYS,
            lambda j: j.packed is not None,
            _pip("'maxtext[tpu]==0.2.5'"),
            launcher=maxtext.launcher,
            vendors={"google": ""},
            launched=False,
            runs="maxtext",
            stack="maxtext",
        ),
        Tool(
            "torchrun",
            ranks.VERSION,
            ranks.gaps,
            ranks.write,
            lambda _: list(ranks.CHILD),
            ranks.ALWAYS,
            setup=_pip("gpuwise", "transformers==5.23.*", "datasets==4.*", "peft==0.21.*"),
            runs="torchrun",
            stack="eager-fsdp",
        ),
    )
}


def stacks_of(target: str | None) -> tuple[str | None, ...]:
    """The stacks that a model is planned for where a tool is named, the next where nothing fits; a None where none is."""
    tool = TOOLS.get((target or "").rpartition(":")[2])
    return tuple(dict.fromkeys((tool.stack, tool.sharded or tool.stack))) if tool else (None,)


def _image_notes(start: Start) -> tuple[str, ...]:
    mounted = f"./{STORAGE.strip('/')} of the node is {STORAGE} in the container"
    return (
        *containers.notes(start.job),
        mounted,
        *(("start it on every node, with HEAD_NODE and NODE_RANK set",) * (start.job.n_nodes > 1)),
    )


_SKY = ("sky", "jobs", "launch", "sky.yaml")
ENGINES = {
    e.name: e
    for e in (
        Engine("slurm", slurm.VERSION, ("sbatch", "job.sbatch"), slurm.batch, slurm.notes, keeps=""),
        Engine("docker", containers.DOCKER, ("./docker.sh",), containers.docker, _image_notes, containers.gaps),
        Engine(
            "compose",
            containers.COMPOSE,
            ("docker", "compose", "up", "--build"),
            containers.compose,
            _image_notes,
            containers.gaps,
        ),
        Engine(
            "kubernetes",
            kubernetes.JOB,
            ("kubectl", "apply", "-f", "job.yaml"),
            kubernetes.job,
            kubernetes.notes,
            containers.gaps,
        ),
        Engine(
            "dra",
            kubernetes.DRA,
            ("kubectl", "apply", "-f", "job.yaml"),
            kubernetes.dra,
            kubernetes.dra_notes,
            containers.gaps,
        ),
        Engine(
            "kueue",
            kubernetes.KUEUE,
            ("kubectl", "apply", "-f", "job.yaml"),
            kubernetes.kueue,
            kubernetes.kueue_notes,
            containers.gaps,
        ),
        Engine(
            "runai",
            kubernetes.RUNAI,
            ("kubectl", "apply", "-f", "job.yaml"),
            kubernetes.runai,
            kubernetes.runai_notes,
            containers.gaps,
        ),
        Engine(
            "jobset",
            kubernetes.JOBSET,
            ("kubectl", "apply", "-f", "jobset.yaml"),
            kubernetes.jobset,
            kubernetes.notes,
            containers.gaps,
        ),
        Engine(
            "trainjob",
            kubernetes.TRAINJOB,
            ("kubectl", "apply", "-f", "trainjob.yaml"),
            kubernetes.trainjob,
            kubernetes.notes,
            containers.gaps,
        ),
        Engine("skypilot", skypilot.VERSION, _SKY, skypilot.task, skypilot.notes, skypilot.gaps),
        Engine("ray", ray.VERSION, ray.COMMAND, ray.driver, ray.notes),
    )
}


def tool_of(stack: str, *, adapters: bool = False) -> Tool | None:
    """The tool that a plan of ``stack`` is timed for; None where it is not one of these."""
    export = find_stack(stack).export
    return TOOLS.get((adapters and export.tool_with_adapters) or export.tool)


def command(job: Job) -> list[str]:
    """The launcher with the layout's options, an option and its values an item; what has to be set or unset comes first. Empty
    for a stack that none of the tools is."""
    tool = tool_of(job.strategy.stack, adapters=job.strategy.lora_rank > 0)
    if tool is None or device_gaps(job, tool):
        return []
    variables, unset = megatron.environment(job) if tool.name == "megatron" else ({}, ())
    before = [f"env -u {name}" for name in unset] + [f"{name}={value}" for name, value in variables.items()] + host_threads(job)
    words = tool.layout(job)
    start = tool.launcher(job)
    first = next((i for i, word in enumerate(start) if word.startswith("-")), len(start))
    head = 2 if words[0] == "-m" else 1
    return [*before, " ".join(start[:first]), *together(start[first:]), " ".join(words[:head]), *together(words[head:])]


def find_target(name: str | None, stack: str, *, adapters: bool = False) -> tuple[Tool, Engine | None]:
    """Tool and engine of ``torchtitan``, ``slurm`` (which starts the tool of the stack) or ``slurm:torchtitan``. Raises
    UnknownNameError with the nearest names, InputError if the stack has no tool and none is named."""
    first, _, second = (name or "").partition(":")
    engine = ENGINES.get(first)
    target_name = second if engine else name
    if target_name:
        targets = TOOLS if engine else {**TOOLS, **ENGINES}
        if target_name not in TOOLS:
            hint = None if nearest_names(target_name, targets) else f"it is one of {', '.join(targets)}"
            raise UnknownNameError("target", target_name, targets, hint=hint)
        return TOOLS[target_name], engine
    tool = tool_of(stack, adapters=adapters)
    if tool is None:
        raise InputError(f"there are no files for the stack {stack}", hint="name a tool with --to")
    return tool, engine


def able_tool(job: Job, tool: Tool, engine: Engine | None) -> Tool:
    """``tool`` where it and ``engine`` can express all of ``job``, else the first that can, the Trainer before others; ``tool``
    where none can."""
    tools = sorted((t for t in TOOLS.values() if t is not tool), key=lambda t: t.name != "trainer")
    return next((t for t in (tool, *tools) if not gaps_of(job, t, engine)), tool)


def device_gaps(job: Job, tool: Tool) -> tuple[str, ...]:
    """The device of ``job`` where ``tool`` does not start on it."""
    a = job.cluster.accelerator
    family = tool.vendors.get(a.vendor.lower())
    return () if family is not None and a.family.startswith(family) else (a.name,)


def check_device(job: Job) -> None:
    """Raises InputError where no tool here starts on the device."""
    if all(device_gaps(job, tool) for tool in TOOLS.values()):
        raise InputError(
            f"no tool that files are written for starts on {job.cluster.accelerator.name}",
            hint="files are for PyTorch on GPUs of NVIDIA, AMD and Intel, and for TPUs; the plan itself is of any",
        )


def gaps_of(job: Job, tool: Tool, engine: Engine | None = None) -> list[str]:
    """Parts of the job that ``tool`` and ``engine`` cannot express, each once."""
    gaps = [*device_gaps(job, tool), *tool.gaps(job), *(engine.gaps(job) if engine and engine.gaps else ())]
    if engine and not tool.launched:
        gaps.append(f"a start of {tool.name}")
    return list(dict.fromkeys(gaps))


def able_stack(job: Job) -> str | None:
    """The stack to plan with where the tool of the job's stack has no setting for the model itself, whatever the layout: the
    first of its replacements whose tool has them. None where only the layout has no setting."""
    instead = find_stack(job.strategy.stack).instead.asked

    def lacks(stack: str) -> bool:
        tool, plain = tool_of(stack), NEUTRAL.with_(stack=stack, dp=job.cluster.n_accelerators)
        return tool is None or bool(gaps_of(replace(job, strategy=plain), tool))

    return next((s for s in instead if not lacks(s)), None) if lacks(job.strategy.stack) else None


def not_written(job: Job, tool: Tool, engine: Engine | None = None) -> Iterator[str]:
    """A sentence for each option that a plan has and that makes no difference to the files of ``tool``, which does it in its own
    way."""
    s, made = job.strategy, tool.write(job)
    for field, o in OPTIONS.items():
        value, neutral = getattr(s, field), getattr(NEUTRAL, field)
        needed = not o.needs or getattr(s, o.needs) != getattr(NEUTRAL, o.needs)
        if not o.help or field == "stack" or value in (neutral, tool.always.get(field), "none") or not needed:
            continue  # no option is written for "none", so the tool's default must be that
        try:
            plain = replace(job, strategy=s.with_(**{field: neutral}))
        except InputError:
            continue  # a degree: the job has another number of GPUs
        if not any(tool.gaps(plain)) and tool.write(plain) == made:
            name = (o.name or field).replace("_", "-")
            option = f"--{name if value else f'no-{name}'}" if isinstance(value, bool) else f"--{name} {value}"
            yield f"{option}: {tool.version} as written here has no setting for it"
    own = tool_of(s.stack, adapters=s.lora_rank > 0)
    if s.stack not in (tool.stack, tool.sharded) and (own is None or own.runs not in (tool.runs, tool.may_run)):
        yield f"--stack {s.stack}: the time of the plan is that of its kernels and launches, not of {tool.version}"
    if job.packed is not None and not tool.packs(job):
        yield f"--packed {job.packed}: {tool.version} is not asked to keep attention inside documents, as the plan counts it"
    if job.driver is not None and (engine is None or engine.gaps is None):
        yield f"--driver {job.driver}: it chooses a container's image, and there is none here"


def write(job: Job, tool: Tool, engine: Engine | None = None) -> Written:
    """The job for ``tool``, started by ``engine``. Raises InputError naming the parts that they cannot express."""
    check_device(job)
    if device_gaps(job, tool):
        able = next((t.name for t in TOOLS.values() if not device_gaps(job, t)), "")
        raise InputError(f"{tool.version} does not start on {job.cluster.accelerator.name}", hint=f"--to {able} does")
    missing = gaps_of(job, tool)
    if missing:
        able = [t.name for t in TOOLS.values() if t is not tool and not gaps_of(job, t)]
        other = job.strategy.stack not in (tool.stack, tool.sharded) and not job.strategy.lora_rank
        words = (f"plan for it, with --stack {tool.stack}, or" if other else "plan") + " without that part"
        words += f"; or --to {able[0]}, which has it" if able else ""
        if (stack := able_stack(job)) is not None:
            words = f"no layout of this model has one: plan it with --stack {stack}"
        raise InputError(f"{tool.version} has no setting for: {'; '.join(missing)}", hint=words)
    asked = tuple(not_written(job, tool, engine))
    if engine is None:
        made = tool.write(job)
        return replace(made, notes=(*made.notes, *asked, f"{tool.version} has to be here: {tool.setup}"))
    lacking = gaps_of(job, tool, engine)
    if lacking:
        hint = (
            "--to slurm and --to ray start what the nodes have" if tool.launched else f"--to {tool.name}, started on every host"
        )
        raise InputError(f"{engine.name} has not: {'; '.join(lacking)}", hint=hint)
    if engine.keeps:
        job = replace(job, output=f"{engine.keeps}/{job.output}")
    inner = tool.write(job)
    start = Start(job, tool, inner, engine.version)
    notes = (*inner.notes, *asked, *engine.notes(start))
    return Written(engine.command, {**inner.files, **engine.files(start)}, notes=notes)
