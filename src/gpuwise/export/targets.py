"""What a plan can be written for: training tools, and engines that start one of them on their nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gpuwise.errors import InputError, UnknownNameError
from gpuwise.export import deepspeed, hugging_face, megatron, torchtitan
from gpuwise.export.job import Job
from gpuwise.export.torchrun import torchrun
from gpuwise.export.written import Written, together


@dataclass(frozen=True, slots=True)
class Tool:
    """A program that trains. ``gaps`` says what of a job it cannot express, ``write`` makes its files."""

    name: str
    version: str
    """That its own parser has read such files of."""
    gaps: Callable[[Job], Iterator[str]]
    write: Callable[[Job], Written]
    layout: Callable[[Job], list[str]]
    """The script and the options that carry the layout alone: what a plan prints."""


def _deepspeed_gaps(job: Job) -> Iterator[str]:
    yield from hugging_face.gaps(job)
    yield from deepspeed.gaps(job)


def _trainer(job: Job) -> list[str]:
    return ["train.py", *hugging_face.arguments(job)]


TOOLS = {
    t.name: t
    for t in (
        Tool("megatron", megatron.VERSION, megatron.gaps, megatron.write, lambda j: ["pretrain_gpt.py", *megatron.arguments(j)]),
        Tool(
            "torchtitan",
            torchtitan.VERSION,
            torchtitan.gaps,
            torchtitan.write,
            lambda j: ["-m", "torchtitan.train", *torchtitan.arguments(j)],
        ),
        Tool("trainer", hugging_face.TRAINER, hugging_face.gaps, hugging_face.write_trainer, _trainer),
        Tool("accelerate", hugging_face.ACCELERATE, hugging_face.gaps, hugging_face.write_accelerate, _trainer),
        Tool("deepspeed", deepspeed.VERSION, _deepspeed_gaps, hugging_face.write_deepspeed, _trainer),
    )
}
_OF_STACK = {"megatron-core": "megatron", "megatron-legacy": "megatron", "compiled-fsdp": "torchtitan", "deepspeed": "deepspeed"}
_OF_STACK |= dict.fromkeys(("eager", "compiled", "eager-fsdp", "hf-fsdp", "trainer", "unsloth", "nanogpt"), "trainer")


def tool_of(stack: str) -> Tool | None:
    """The tool that a plan of ``stack`` is timed for; None where it is not one of these."""
    name = _OF_STACK.get(stack)
    return TOOLS[name] if name else None


def command(job: Job) -> list[str]:
    """The launcher with the layout's options, an option and its values an item; what has to be set or unset comes first. Empty
    for a stack that none of the tools is."""
    tool = tool_of(job.strategy.stack)
    if tool is None:
        return []
    variables, unset = megatron.environment(job) if tool.name == "megatron" else ({}, ())
    before = [f"env -u {name}" for name in unset] + [f"{name}={value}" for name, value in variables.items()]
    words = tool.layout(job)
    start = torchrun(job)
    head = words.index(next(w for w in words if w.endswith(".py") or w == "torchtitan.train")) + 1
    return [*before, start[0], *together(start[1:]), " ".join(words[:head]), *together(words[head:])]


def find_tool(name: str) -> Tool:
    """Raises UnknownNameError with the nearest names."""
    try:
        return TOOLS[name]
    except KeyError:
        raise UnknownNameError("target", name, TOOLS) from None


def gaps_of(job: Job, tool: Tool) -> list[str]:
    """What of the job ``tool`` cannot express, each once."""
    return list(dict.fromkeys(tool.gaps(job)))


def write(job: Job, tool: Tool) -> Written:
    """The job for ``tool``. Raises InputError where it cannot express a part, and says which."""
    missing = gaps_of(job, tool)
    if missing:
        able = [t.name for t in TOOLS.values() if t is not tool and not any(t.gaps(job))]
        words = "plan without it, as with --recompute full or --precision bf16" + (
            f", or --to {able[0]}, which has it" if able else ""
        )
        raise InputError(f"{tool.version} has no way to say: {'; '.join(missing)}", hint=words)
    return tool.write(job)
