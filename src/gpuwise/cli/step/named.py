"""``fit``, ``plan`` and ``cost run`` on networks that are trained by name: their options as a step of a shipped table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter

from gpuwise.cli.options import (
    LEFT_OPEN,
    NOTHING_FIXED,
    LayoutOptions,
    Training,
    Whole,
    given,
    option_name,
    refuse,
)
from gpuwise.errors import InputError, UnknownNameError

if TYPE_CHECKING:
    from gpuwise.facts.models.trained import Trained
    from gpuwise.plan.own.named import NamedStep

PICTURES = Group("Of images, video and sound", sort_key=35)
CACHES = {"kohya": True, "diffusers": False}
"""Software that trains networks of images, and whether it computes latents and the text's features beforehand: sd-scripts does
(``--cache_latents``, ``--cache_text_encoder_outputs``), the training scripts of diffusers run the encoders in every step."""
TASKS = ("lora", "full", "finetune", "qlora", "dreambooth", "pretrain", "train")


@Parameter(name="*", group=PICTURES)
@dataclass(frozen=True, slots=True)
class PictureOptions:
    """What a sample is."""

    resolution: Annotated[Whole | None, Parameter(show_default="the network's", metavar="PIXELS")] = None
    """Side of the square images, or of the frames of a video: 1024."""
    frames: Annotated[Whole | None, Parameter(show_default="81", metavar="FRAMES")] = None
    """Frames of a video."""
    seconds: Annotated[Whole | None, Parameter(show_default="15", metavar="SECONDS")] = None
    """Length of a sound."""
    cached: Annotated[bool | None, Parameter(show_default="yes, and no of --stack diffusers")] = None
    """Latents and the text's features were computed before the training; otherwise the encoders run in every step."""


NO_PICTURES = PictureOptions()


def is_named(text: str) -> bool:
    """Whether ``text`` is a network that is trained by name from a shipped table."""
    return _network(text) is not None


def _network(text: str) -> Trained | None:
    from gpuwise.facts.models.trained import known_trained

    return known_trained(text)


def refuse_pictures(pictures: PictureOptions) -> None:
    """Raises InputError when an option of images is given with another model."""
    refuse(
        given(pictures, NO_PICTURES), "is for networks of images, video and sound", "sdxl, flux and wan are; leave it out here"
    )


def named_step(
    text: str,
    training: Training,
    fixed: LayoutOptions,
    pictures: PictureOptions,
    batch: Any,
) -> NamedStep | None:
    """The step of the network that ``text`` names as the options have it; None where it names none. Raises InputError for what it
    does not take."""
    network = _network(text)
    if network is None:
        return None
    from gpuwise.plan.own.named import NamedStep, check_frames, check_size
    from gpuwise.workload.changes.strategy import LORA_RANK

    _refuse_others(network, training, fixed)
    method = _method(network, training, fixed)
    if fixed.lora_rank is not None and method != "lora":
        raise InputError("--lora-rank without adapters", hint="add --for lora")
    if training.half_weights and method == "lora":
        raise InputError("--half-weights with adapters", hint="the frozen weights are in 16 bits already: leave it out")
    cached = _cached(network, fixed.stack, pictures.cached)
    size = check_size(network, _size(network, training, pictures))
    optimizer = _optimizer(fixed.optimizer)
    batch = batch if isinstance(batch, int) else network.batch
    step = NamedStep(
        network,
        method,
        size,
        check_frames(network, pictures.frames),
        fixed.lora_rank or LORA_RANK,
        optimizer,
        half=training.half_weights,
        recompute=None if fixed.recompute is None else fixed.recompute != "none",
        cached=cached,
        batch=batch,
        quantized=bool(fixed.qlora or training.purpose == "qlora"),
        notes=tuple(_assumed(network, method, training, pictures, cached=cached)),
    )
    if training.half_weights and step.variant not in step.variants and f"{step.variant}+recompute" not in step.variants:
        raise InputError(f"--half-weights with {network.name}", hint="its weights are trained in 32 bits: leave it out")
    if step.recompute and step.variant not in step.variants:
        raise InputError(f"--recompute full with {network.name}", hint="its blocks are not recomputed in practice: leave it out")
    return step


def _assumed(network: Trained, method: str, training: Training, pictures: PictureOptions, *, cached: bool) -> list[str]:
    notes: list[str] = []
    if training.purpose is None and not training.lora:
        notes.append("LoRA (--for full trains every weight)" if method == "lora" else "every weight is trained")
    if network.text_encoders and pictures.cached is None:
        what = "latents and the text's features" if network.autoencoder or network.frames else "the text's features"
        notes.append(f"{what} were computed before" if cached else f"{what} are computed in every step")
    return notes


def _refuse_others(network: Trained, training: Training, fixed: LayoutOptions) -> None:
    """Raises InputError for options that such a step does not have."""
    taken = {
        "purpose",
        "lora",
        "half_weights",
        "precision",
        "optimizer",
        "recompute",
        "lora_rank",
        "qlora",
        "stack",
        "micro_batch",
    }
    taken |= {"seq"} if network.unit == "tokens" else set()
    for field in {**given(training, LEFT_OPEN), **given(fixed, NOTHING_FIXED)}:
        if field not in taken:
            size = f"the size of a sample is {network.option}" if field == "seq" else "--batch sets the samples of a GPU"
            raise InputError(f"{option_name(field)} with {network.name}", hint=f"{size}; leave it out")
    if fixed.precision not in (None, "bf16", "fp16"):
        raise InputError(f"--precision {fixed.precision} with {network.name}", hint="it is trained in bf16 or fp16: leave it out")


def _method(network: Trained, training: Training, fixed: LayoutOptions) -> str:
    from gpuwise.workload.tasks import find_task

    method = network.method
    if training.purpose is not None:
        task = find_task(training.purpose)
        if task.prompts:
            raise InputError(f"--for {training.purpose} with {network.name}", hint="--for lora or --for full")
        method = "lora" if task.method == "qlora" else task.method
    if training.lora or fixed.qlora:
        if training.purpose is not None and method == "full":
            raise InputError(f"--for {training.purpose} with --lora", hint="leave one out")
        method = "lora"
    if method not in network.methods:
        raise InputError(f"{network.name} is not trained with adapters", hint="--for full trains every weight")
    return method


def _cached(network: Trained, stack: str | None, asked: bool | None) -> bool:
    """Whether latents and the text's features are there before the step."""
    encoders = network.text_encoders or network.autoencoder
    if stack is not None and stack not in CACHES:
        hint = "it is one of " + ", ".join(CACHES) if encoders else "it is trained by plain PyTorch: leave --stack out"
        raise UnknownNameError(f"software for {network.name}", stack, tuple(CACHES) if encoders else (), hint=hint)
    if stack is not None and not encoders:
        raise InputError(f"--stack {stack} with {network.name}", hint="it is for images and video: leave it out")
    if asked is not None and not encoders:
        raise InputError(
            f"--{'' if asked else 'no-'}cached with {network.name}", hint="it has no encoders beside it: leave it out"
        )
    if network.frames and asked is False:
        raise InputError(f"--no-cached with {network.name}", hint="latents of videos are always computed before: leave it out")
    default = True if stack is None or network.frames else CACHES[stack]
    return default if asked is None else asked


def _size(network: Trained, training: Training, pictures: PictureOptions) -> int:
    options = {"pixels": pictures.resolution, "seconds": pictures.seconds, "tokens": training.seq}
    for unit, value in options.items():
        if value is not None and unit != network.unit:
            name = {"pixels": "--resolution", "seconds": "--seconds", "tokens": "--seq"}[unit]
            raise InputError(f"{name} with {network.name}", hint=f"its samples are set by {network.option} {network.size}")
    return options[network.unit] or network.size


def _optimizer(name: str | None) -> str:
    from gpuwise.workload.tables.table import OPTIMIZERS

    if name is not None and name not in OPTIMIZERS:
        raise UnknownNameError("optimizer", name, OPTIMIZERS, hint="it is one of " + ", ".join(OPTIMIZERS))
    return name or "adamw"
