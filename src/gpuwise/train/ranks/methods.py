# pyright: basic
"""What of a task's model is trained, and towards what: adapters alone (PEFT), with zeros (pruning), to a teacher (distillation).

Each is another training than the file's own. It is put on before the optimizer is made, the same on every rank.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from gpuwise.errors import InputError, LayoutError, require
from gpuwise.train.levers.forward import replace_forward
from gpuwise.train.levers.pruning import NOTHING, WeightMasks, share_of, why_not_semi_structured
from gpuwise.train.ranks.hugging_face import PREFIX
from gpuwise.train.ranks.layout import Layout
from gpuwise.train.ranks.settings import RankSettings
from gpuwise.train.ranks.task import Task
from gpuwise.workload.capture.changes.model import adapted_layers
from gpuwise.workload.capture.packages import transformers
from gpuwise.workload.capture.target import attribute_of, find_target, keywords_for, load

TEMPERATURE, LABELS = 2.0, 0.5
"""Temperature of both distributions, and the share of the labels in the loss (Hinton et al. 2015, arXiv 1503.02531, section
4.1)."""
TEACHER = "write it like --teacher teacher.py:make_teacher (a function that returns a module), or hf:folder with weights"


def check_methods(layout: Layout, prune: str | None, teacher: str | None) -> None:
    """Raises LayoutError or InputError for what does not go together, before anything is started."""
    if prune is not None:
        share_of(prune)
    if teacher is not None and not teacher.startswith(PREFIX):
        find_target(teacher, [])
    if teacher is not None and teacher.startswith(PREFIX) and not Path(teacher.removeprefix(PREFIX)).is_dir():
        raise InputError(f"the folder {teacher.removeprefix(PREFIX)} does not exist", hint=TEACHER)
    if layout.quantized_base and layout.tp > 1:
        raise LayoutError("adapters", "4-bit weights are not divided here", hint="take --lora, or --pp in place of --tp")
    for name, value in {"pruning": prune, "distillation": teacher}.items():
        if value is not None and (layout.n_ranks > layout.dp or layout.ep > 1):
            raise LayoutError(name, "layers, stages, rows or experts are divided", hint="train by --sharding or DDP alone")
    if layout.sharding != "none" and layout.dp > 1:
        if layout.quantized_base:
            raise LayoutError("adapters", "4-bit weights are not sharded here", hint="leave --sharding out")
        if prune is not None:
            raise LayoutError("pruning", "masks are of whole weights, and FSDP2 shards them", hint="leave --sharding out")


def put_on(task: Task, settings: RankSettings, device: torch.device) -> tuple[Task, WeightMasks | None, Distillation | None]:
    """The task with the methods of the settings. Raises InputError where its model has nothing that they act on."""
    layout, model = settings.layout, task.model
    pruned = distilled = None
    if layout.lora_rank:
        task = replace(task, optimizer=_of_trained(task.optimizer))
        if layout.tp == 1:
            # beside layers that are divided they come later
            add_adapters(model, layout, device)
    if settings.prune is not None:
        why = why_not_semi_structured(device) if share_of(settings.prune) is None else None
        if why is not None:
            raise InputError(f"--prune {settings.prune}: {why}", hint="--prune 0.5 leaves that share of the weights out anywhere")
        pruned = WeightMasks(model, settings.prune)
        if not pruned.masks:
            raise InputError(f"--prune: {NOTHING}")
    if settings.teacher is not None:
        distilled = Distillation(task, load_teacher(settings.teacher, device), settings.teacher)
    return task, pruned, distilled


# --- adapters ---


def add_adapters(model: nn.Module, layout: Layout, device: torch.device) -> None:
    """Freeze the model, and put two trained factors beside each linear layer of the layout's targets (PEFT's ``LoraConfig``,
    alpha twice the rank as ``gpuwise export`` writes it). The frozen weights of these layers are in 4 bits (bitsandbytes, nf4)
    where the base is quantised, and in bf16 where that is the precision and they are not sharded.
    Raises MissingExtraError, InputError."""
    rank, targets = layout.lora_rank, layout.lora_targets
    require("peft", "training of adapters")
    chosen = {id(m) for m in adapted_layers(model, targets)}
    names = [n for n, m in model.named_modules() if id(m) in chosen and n]
    if not names:
        raise InputError(f"{type(model).__name__} has no linear layer but its head", hint="leave --lora and --qlora out")
    for name in names if layout.precision == "bf16" and layout.sharding == "none" else ():
        linear: Any = model.get_submodule(name)
        linear.weight = nn.Parameter(linear.weight.detach().bfloat16(), requires_grad=False)
    if layout.quantized_base:
        require("bitsandbytes", "4-bit weights")
        _quantize(model, names, device)
    transformers()  # which PEFT imports, also beside a torchvision of another torch
    from peft import LoraConfig, inject_adapter_in_model  # pyright: ignore[reportMissingImports]

    # as one expression: of a list PEFT takes the ends of paths too
    targets_word = "|".join(map(re.escape, names))
    with _whole_shapes([model.get_submodule(n) for n in names]):
        inject_adapter_in_model(LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=targets_word), model)


@contextmanager
def _whole_shapes(layers: list[Any]) -> Iterator[None]:
    """Represent tensor-parallel weights as whole ones without memory: PEFT would otherwise create factors for a rank's part,
    and draw other random numbers than in one process."""
    divided = [(m, m._parameters["weight"]) for m in layers if isinstance(m._parameters.get("weight"), DTensor)]
    for layer, weight in divided:
        stand_in = torch.zeros((), dtype=weight.dtype, device=weight.device).expand(weight.shape)
        layer._parameters["weight"] = nn.Parameter(stand_in, requires_grad=False)
    try:
        yield
    finally:
        for layer, weight in divided:
            layer._parameters["weight"] = weight.requires_grad_(False)


def _quantize(model: nn.Module, names: list[str], device: torch.device) -> None:
    bnb: Any = import_module("bitsandbytes")
    for name in names:
        parent, _, last = name.rpartition(".")
        linear = model.get_submodule(name)
        if type(linear) is not nn.Linear:
            raise InputError(
                f"{name} is a {type(linear).__name__}, which bitsandbytes does not hold in 4 bits", hint="take --lora"
            )
        four = bnb.nn.Linear4bit(
            linear.in_features,
            linear.out_features,
            bias=linear.bias is not None,
            compute_dtype=torch.bfloat16 if device.type == "cuda" else torch.float32,
            quant_type="nf4",
        )
        four.weight = bnb.nn.Params4bit(linear.weight.data, requires_grad=False, quant_type="nf4", module=four)
        four.bias = linear.bias
        setattr(model.get_submodule(parent), last, four.to(device))
    model.is_loaded_in_4bit = True  # type: ignore[assignment]


def _of_trained(make: Callable[[nn.Module], Any]) -> Callable[[nn.Module], Any]:
    """The file's optimizer, without the parameters that are frozen."""

    def trainable(model: nn.Module) -> Any:
        optimizer = make(model)
        for group in optimizer.param_groups:
            group["params"] = [p for p in group["params"] if p.requires_grad]
        optimizer.param_groups[:] = [g for g in optimizer.param_groups if g["params"]]
        return optimizer

    return trainable


# --- distillation ---


def load_teacher(text: str, device: torch.device) -> nn.Module:
    """The module that teaches, frozen and in ``eval()``. Raises InputError where ``text`` gives none."""
    if text.startswith(PREFIX):
        model = transformers().AutoModelForCausalLM.from_pretrained(text.removeprefix(PREFIX), local_files_only=True)
    else:
        target = find_target(text, [])
        if target.file is not None:
            sys.path.insert(0, str(target.file.parent))
        function = attribute_of(load(target), target)
        model = (
            function if isinstance(function, nn.Module) else function(**keywords_for(function, target, None, None, str(device)))
        )
    if not isinstance(model, nn.Module):
        raise InputError(f"{text} gives a {type(model).__name__}, which cannot be a teacher", hint=TEACHER)
    return model.requires_grad_(False).eval().to(device)


class _Taught(torch.autograd.Function):
    """Logits as they are; the gradient of their loss becomes that of the labels and of the teacher together.

    Of ``T^2 KL(teacher || student)`` at temperature T the gradient by the student's logits is ``T (p_student - p_teacher)``. It
    is added where the file's own loss depends on the logits, each place once: not where labels are ignored.
    """

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, teacher: torch.Tensor, seen: list[int]) -> torch.Tensor:
        ctx.save_for_backward(logits, teacher)
        ctx.seen = seen
        return logits.view_as(logits)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        logits, teacher = ctx.saved_tensors
        (gradient,) = gradients
        counted = gradient.ne(0).any(-1, keepdim=True)
        ctx.seen.append(int(counted.sum()))
        towards = (logits / TEMPERATURE).float().softmax(-1) - (teacher / TEMPERATURE).float().softmax(-1)
        return LABELS * gradient + (1 - LABELS) * TEMPERATURE * (towards * counted).to(gradient.dtype), None, None


class Distillation:
    """A model whose logits are also trained towards those of ``teacher`` for the same batch. The reported loss is the file's
    own."""

    def __init__(self, task: Task, teacher: nn.Module, name: str) -> None:
        self._task, self._teacher, self._name = task, teacher, name
        self._seen: list[int] = []
        replace_forward(task.model, self._taught)

    def check(self, number: float) -> None:
        """After a backward pass of ``number`` losses. Raises InputError where they are not one for each row of logits."""
        counted = sum(self._seen)
        self._seen.clear()
        if number and abs(counted - number) > 0.01 * number:
            raise InputError(
                f"distillation: the step of {self._task.name} counts {number:.0f} losses, and {counted} rows of logits have one",
                hint="the step returns the sum of cross-entropies over rows of logits, and their number",
            )

    def _taught(self, module: nn.Module, inner: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            output = inner(*args, **kwargs)
            if not (module.training and torch.is_grad_enabled()):
                return output
            with torch.no_grad():
                logits = _logits(self._teacher(*args, **kwargs))
            own = _logits(output)
            if own is None or logits is None or own.shape != logits.shape:
                shapes = " and ".join("none" if t is None else str(tuple(t.shape)) for t in (logits, own))
                raise InputError(
                    f"distillation: logits of {self._name} and of the model are {shapes}",
                    hint="give a teacher with the same classes",
                )
            taught = _Taught.apply(own, logits, self._seen)
            if isinstance(output, torch.Tensor):
                return taught
            if hasattr(output, "logits"):
                output.logits = taught
                return output
            return (taught, *output[1:])

        return run


def _logits(output: Any) -> torch.Tensor | None:
    logits = output if isinstance(output, torch.Tensor) else getattr(output, "logits", None)
    if logits is None and isinstance(output, tuple) and output:
        logits = output[0]
    return logits if isinstance(logits, torch.Tensor) and logits.is_floating_point() and logits.dim() > 1 else None
