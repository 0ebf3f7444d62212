"""Every change to a training step that gpuwise knows, as one table: its name, what it does to the training, its effect on a
strategy of the catalogue and on a captured step, how it is put on a running script, how it is written into one, its risk.

Remedies (``fit``), speed-ups (``plan``), levers (``tune``), neighbours (why a plan is what it is) and fallbacks (``pick``) are
choices from this table. An effect that a change does not have is a :class:`Why`. The torch side registers by name:
:mod:`gpuwise.workload.capture.changes.contexts` makes the changes marked ``captured``, :mod:`gpuwise.train.levers.apply` the
levers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from gpuwise.errors import UnknownNameError
from gpuwise.workload.adapters import DEFAULT_TARGETS, targets_text
from gpuwise.workload.changes import strategy as on
from gpuwise.workload.changes.change import Change
from gpuwise.workload.changes.strategy import StrategyEffect
from gpuwise.workload.strategy import Strategy

Training = Literal["exact", "order", "precision", "states", "adapters", "maths"]
"""``exact``: the same numbers, or sums in another order. ``order``: which process makes an item, so that random augmentation
draws other numbers. ``precision``: a shorter format in some operations. ``states``: another optimizer, or its states, gradients
or weights in a lower precision. ``adapters``: frozen weights with trained adapters. ``maths``: another training."""
SAME, NUMBERS, STATES, ADAPTERS, OTHER = (
    "same training",
    "other precision",
    "lighter states",
    "trains adapters only",
    "other training",
)
KINDS = (SAME, NUMBERS, STATES, ADAPTERS)
"""Possible effects of a remedy on the training, least to most."""
TRAINING_WORDS: dict[Training, str] = {
    "exact": SAME,
    "order": SAME,
    "precision": NUMBERS,
    "states": STATES,
    "adapters": ADAPTERS,
    "maths": OTHER,
}
Group = Literal[
    "precision",
    "compiler",
    "layout",
    "optimizer",
    "loader",
    "padding",
    "threads",
    "libraries",
    "memory",
    "batch",
    "states",
    "adapters",
    "parallel",
]
StepEffect = Literal["captured", "batch", "timing", "allocator", "ranks"]
"""How a captured step shows the change: captured again while it is made; captured at another batch; its operations timed
otherwise; its memory replayed with other settings; turned into the step of one rank."""


@dataclass(frozen=True, slots=True)
class Why:
    """Why a change has no such effect."""

    text: str


@dataclass(frozen=True, slots=True)
class Lever:
    """How a change is put on a running script. ``values`` are tried in turn, the most promising first."""

    values: tuple[object, ...]
    devices: tuple[str, ...]
    """Kinds of device on which it can make a difference."""
    code: str = ""
    """Code to write in the script where no writer does; ``{value}`` is the placeholder of the value."""


@dataclass(frozen=True, slots=True)
class ChangeKind:
    """One kind of change. ``label`` names the change with its argument as people read it."""

    name: str
    label: Callable[[Any], str]
    group: Group
    training: Training
    what: str
    risk: str
    strategy: StrategyEffect | Why
    step: StepEffect | Why
    lever: Lever | Why
    writer: Literal["diff"] | Why
    """``diff``: :data:`gpuwise.workload.changes.writers.WRITERS` writes it into a script."""

    @property
    def title(self) -> str:
        """The name in words: ``tensor parallel``."""
        return self.name.replace("_", " ")

    @property
    def training_words(self) -> str:
        """``same training``, ``lighter states``."""
        return TRAINING_WORDS[self.training]

    @property
    def is_lever(self) -> bool:
        return isinstance(self.lever, Lever)

    @property
    def put_on(self) -> Lever:
        """The lever. Raises ValueError if it is not a change."""
        if isinstance(self.lever, Why):
            raise ValueError(f"{self.name} is not a lever: {self.lever.text}")
        return self.lever


DIFF: Literal["diff"] = "diff"
ANY, CUDA, CPU = ("cpu", "cuda"), ("cuda",), ("cpu",)
NO_LOADER = Why("the catalogue's step finds its batch on the device: loading is not in its time")
NOT_IN_STEP = Why("a captured step begins with its batch on the device")
STACK = Why("the software stack decides it: --stack names one")
OWN_LOOP = Why("applies to own code; steps of catalogue models already free gradients and outputs early")
BY_FIT = Why("`tune` keeps what measures faster; this frees memory at the cost of time, and `fit` tries it")
KEEPS_LOSS = Why("`tune` keeps only what gives the same loss; this trains something else")
NO_ZEROS = Why("products take as long with zeros as without them")
RANKS = Why("it takes several processes: `gpuwise run` and `export` start them")
ONE_RANK = Why("own code is split only along the batch: modules do not define how to split their products")
PLAN_WRITES = Why("`gpuwise export` writes it as launch flags")
BY_RUN = Why("it acts before the optimizer is made: `gpuwise run FILE.py:function` does it on any number of ranks")
NO_DIFF = Why("more than a diff of the script: `gpuwise run` does it")


def _title(text: str) -> Callable[[Any], str]:
    """``text`` with the argument in place of ``{}``."""
    return lambda argument: text.format(argument)


def _offload_label(what: Any) -> str:
    return f"{'weights and ' if what == on.PARAMETERS else ''}optimizer in host memory"


def _adapters_label(text: str) -> Callable[[Any], str]:
    """``text`` with the rank, and the linear layers where they are not all."""

    def label_of(argument: Any) -> str:
        rank, targets = on.rank_and_targets(argument)
        return text.format(rank, "" if targets == DEFAULT_TARGETS else f", of {targets_text(targets)}")

    return label_of


def _checkpointing_label(which: Any) -> str:
    if which in (None, "blocks", 1):
        return "full recompute"
    if isinstance(which, int):
        return "full recompute of every second layer" if which == 2 else f"full recompute of one layer in {which}"
    if isinstance(which, tuple):
        n = len(cast("tuple[str, ...]", which))
        return f"recompute of {n} module{'s' * (n > 1)}"
    return "no recompute" if which == "off" else f"{which} recompute"


_OPTIMIZER_LABEL = {
    "adamw-bf16": "AdamW with moments in bf16",
    "adamw8bit": "8-bit AdamW",
    "paged-adamw": "paged AdamW",
    "paged-adamw8bit": "paged 8-bit AdamW",
    "lion": "Lion",
    "adafactor": "Adafactor",
    "momentum": "SGD with momentum",
    "sgd": "SGD",
    "adamw": "AdamW",
    "adam": "Adam",
    "muon": "Muon",
    "rmsprop": "RMSprop",
    "adagrad": "Adagrad",
}


def _optimizer_label(name: Any) -> str:
    return _OPTIMIZER_LABEL.get(str(name), str(name))


def _autocast_label(form: Any) -> str:
    return "no mixed precision" if form == "fp32" else f"{form} mixed precision"


def _stages_label(n: Any) -> str:
    return "1F1B without virtual stages" if n == 1 else f"{n} virtual stages"


CHANGES: tuple[ChangeKind, ...] = (
    ChangeKind(
        "length_groups", _title("rows grouped by length"), "padding", "exact",
        "rows of like length go through the model together, each group cut to its longest",
        "the model must treat the rows of a batch one by one", NO_LOADER, NOT_IN_STEP,
        Lever((8, 4), ANY, "sort the rows of a batch by length and run the model on each part"), NO_DIFF,
    ),
    ChangeKind(
        "trim_padding", _title("padding cut off"), "padding", "exact",
        "columns that are padding in every row of a batch are cut off",
        "shapes vary from step to step, which a compiler may compile again", NO_LOADER, NOT_IN_STEP,
        Lever((True,), ANY, "ids = ids[:, : lengths.max()]  # the mask and the labels too"), NO_DIFF,
    ),
    ChangeKind(
        "cache_decode", _title("cached decoded images"), "loader", "exact",
        "each image is decoded (and converted and resized the same way) once and cached in memory",
        "takes host memory for the whole dataset", NO_LOADER, NOT_IN_STEP,
        Lever((True,), ANY, "images = [Image.open(path).copy() for path in paths]  # once, and indexed in __getitem__"), NO_DIFF,
    ),
    ChangeKind(
        "cache_items", _title("cached items"), "loader", "exact",
        "dataset items that are the same every time are created once and cached in memory",
        "takes host memory for the whole dataset", NO_LOADER, NOT_IN_STEP,
        Lever((True,), ANY, "items = [dataset[i] for i in range(len(dataset))]  # in place of the dataset"), NO_DIFF,
    ),
    ChangeKind(
        "workers", _title("{} loader workers"), "loader", "order",
        "items are made in processes beside the training, which stay from epoch to epoch",
        "random augmentation draws other numbers; each worker holds the dataset object", NO_LOADER, NOT_IN_STEP,
        Lever((2, 4, 8), ANY), DIFF,
    ),
    ChangeKind(
        "prefetch", _title("{} batches prefetched"), "loader", "exact", "each worker makes more batches ahead",
        "takes host memory for them", NO_LOADER, NOT_IN_STEP,
        Lever((4,), ANY), DIFF,
    ),
    ChangeKind(
        "pin_memory", _title("page-locked batches"), "loader", "exact",
        "batches are in page-locked memory, so that copies to the device overlap with work",
        "takes host memory that cannot be swapped out", NO_LOADER, NOT_IN_STEP,
        Lever((True,), CUDA), DIFF,
    ),
    ChangeKind(
        "autocast", _autocast_label, "precision", "precision",
        "matrix products and convolutions of the model in a 16-bit format",
        "losses differ by the rounding of the format; fp16 needs a gradient scaler", on.AUTOCAST, "captured",
        Lever(("bf16", "fp16"), ANY),
        DIFF,
    ),
    ChangeKind(
        "tf32", _title("TF32"), "precision", "precision", "fp32 matrix products with 10-bit mantissas on tensor cores",
        "products lose 13 bits of mantissa", on.TF32, "captured",
        Lever((True,), CUDA), DIFF,
    ),
    ChangeKind(
        "compile", _title("torch.compile"), "compiler", "exact",
        "the model's repeated blocks, or all of it, compiled by torch.compile",
        "minutes of compiling first, and again where shapes change", on.COMPILE, "timing",
        Lever(("regional", "whole", "reduce-overhead"), ANY),
        DIFF,
    ),
    ChangeKind(
        "fp8", _title("fp8 products, {} scales"), "precision", "precision",
        "matrix products of the inner linear layers in 8 bits (torchao)",
        "training may diverge; needs an NVIDIA GPU of compute capability 8.9 or later", on.FP8,
        Why("torchao's linear layers are not captured: they need its kernels"),
        Lever(("tensorwise", "rowwise"), CUDA,
              'convert_to_float8_training(model, config=Float8LinearConfig.from_recipe_name("{value}"))  # torchao.float8'),
        NO_DIFF,
    ),
    ChangeKind(
        "channels_last", _title("channels last"), "layout", "exact", "convolutions on images with channels innermost",
        "operations that know no such layout copy", Why("the catalogue's models have no convolutions but the first"), "captured",
        Lever((True,), ANY), DIFF,
    ),
    ChangeKind(
        "fused_optimizer", lambda fused: "optimizer in a loop" if fused is False else "fused optimizer", "optimizer", "exact",
        "one kernel updates all parameters", "sums round in another order", STACK, "captured",
        Lever((True,), ANY), DIFF,
    ),
    ChangeKind(
        "set_to_none", _title("zero_grad sets to None"), "optimizer", "exact", "gradients are dropped, not filled with zeros",
        "code that reads a gradient before the first backward pass finds None", OWN_LOOP, "captured",
        Lever((True,), ANY), DIFF,
    ),
    ChangeKind(
        "attention", lambda kernel: "fused attention" if kernel is None else f"{kernel} attention", "libraries", "exact",
        "which kernel scaled_dot_product_attention takes; scores are never written out",
        "attention weights cannot be returned any more", on.ATTENTION, "captured",
        Lever(("cudnn", "flash", "efficient"), CUDA),
        DIFF,
    ),
    ChangeKind(
        "cudnn_benchmark", lambda on_: "no cuDNN benchmark" if on_ is False else "cuDNN benchmark", "libraries", "exact",
        "cuDNN tries its convolutions and takes the fastest", "trying takes workspace memory, and time where shapes change",
        Why("the catalogue's models have no convolutions but the first"), "captured",
        Lever((True,), CUDA), DIFF,
    ),
    ChangeKind(
        "allocator", lambda conf: "expandable segments" if "expandable" in str(conf) else f"allocator {conf}", "libraries",
        "exact", "the allocator's segments grow in place", "not with memory shared between processes",
        Why("the catalogue's memory has no gaps between segments: its interval covers them"), "allocator",
        Lever(("expandable_segments:True",), CUDA),
        DIFF,
    ),
    ChangeKind(
        "checkpointing", _checkpointing_label, "memory", "exact",
        "activations are dropped and recomputed in the backward pass (off: disables the step's own recomputation)",
        "the forward pass runs twice; random numbers must be the same in both", on.CHECKPOINTING, "captured",
        Lever(("off", "blocks"), ANY),
        DIFF,
    ),
    ChangeKind(
        "micro_batches", _title("{} micro-batches"), "memory", "exact",
        "the batch runs through the model in parts; only one part's activations are in memory at a time",
        "batch statistics (BatchNorm) are of a part", on.MICRO_BATCHES, "captured",
        Lever((), ANY),
        DIFF,
    ),
    ChangeKind(
        "batch", _title("batch {}"), "batch", "maths", "samples in a batch of the loader that is made first",
        "another training: the learning rate may need another value", on.BATCH, "batch",
        Lever((), ANY), DIFF,
    ),
    ChangeKind(
        "threads", _title("{} threads"), "threads", "exact", "threads of one operation on the processor",
        "none", Why("the catalogue trains on accelerators"), Why("a captured step runs on an accelerator"),
        Lever((), CPU), DIFF,
    ),
    ChangeKind(
        "zero_after_step", _title("zero_grad after the step"), "optimizer", "exact",
        "the gradients go as soon as the optimizer has used them", "what reads them after the step finds none", OWN_LOOP,
        "captured", BY_FIT, DIFF,
    ),
    ChangeKind(
        "free_outputs", _title("last outputs freed"), "memory", "exact",
        "the model's outputs of the last step are freed before the next",
        "values kept for later must be copied first", OWN_LOOP, "captured", BY_FIT, DIFF,
    ),
    ChangeKind(
        "step_in_backward", _title("step in backward"), "optimizer", "exact",
        "each parameter is updated as soon as its gradient is there, and the gradient freed",
        "no gradient clipping, accumulation or GradScaler", on.STEP_IN_BACKWARD, "captured", BY_FIT,
        DIFF,
    ),
    ChangeKind(
        "chunked_loss", _title("chunked loss"), "memory", "exact",
        "head and cross entropy run on a chunk of rows at a time, so that all logits never exist",
        "logits cannot be returned any more", on.CHUNKED_LOSS, "captured", BY_FIT, DIFF,
    ),
    ChangeKind(
        "offload_optimizer", _offload_label, "memory", "exact",
        "optimizer states are in host memory and the host updates: gradients are copied to it, parameters back",
        "takes host memory, its bandwidth and the host's cores", on.OFFLOAD_OPTIMIZER, "ranks", BY_FIT, DIFF,
    ),
    ChangeKind(
        "offload_activations", _title("activations in host memory"), "memory", "exact",
        "what the forward pass keeps waits in host memory for the backward pass", "takes host memory and its bandwidth",
        on.OFFLOAD_ACTIVATIONS, Why("recomputing is tried instead: a saved tensor's hook has no place in a capture"), BY_FIT,
        PLAN_WRITES,
    ),
    ChangeKind(
        "optimizer", _optimizer_label, "states", "states", "another optimizer, with fewer or shorter states",
        "another path of training: learning rate and decay may need other values", on.OPTIMIZER, "captured", KEEPS_LOSS,
        DIFF,
    ),
    ChangeKind(
        "gradient_dtype", _title("{} gradients"), "states", "states", "gradients are summed in a 16-bit format",
        "small updates round away over many micro-batches", on.GRADIENT_DTYPE,
        Why("a gradient has its parameter's format in PyTorch: low_precision changes both"), KEEPS_LOSS, PLAN_WRITES,
    ),
    ChangeKind(
        "low_precision", _title("{} weights without fp32 copies"), "states", "states",
        "the weights themselves in a 16-bit format, and no autocast",
        "small updates round away: needs stochastic rounding or a high rate", on.LOW_PRECISION, "captured", KEEPS_LOSS, DIFF,
    ),
    ChangeKind(
        "lora", _adapters_label("LoRA, rank {}{}"), "adapters", "adapters",
        "the weights are frozen and two factors of a low rank beside each linear layer (or those named) are trained",
        "may learn less than full training", on.LORA, "captured", BY_RUN, DIFF,
    ),
    ChangeKind(
        "qlora", _adapters_label("QLoRA, rank {} on 4-bit weights{}"), "adapters", "adapters",
        "like LoRA, with the frozen weights stored in 4 bits",
        "may learn less than full training; the weights are rounded", on.QLORA,
        Why("4-bit weights need bitsandbytes' kernels, which no capture sees"), BY_RUN,
        Why("bitsandbytes converts the model as it is loaded"),
    ),
    ChangeKind(
        "pruning", lambda share: "2:4 zeros" if share == "2:4" else f"{share} of the weights pruned", "states", "maths",
        "the smallest weights of each linear and convolution layer become zeros and stay so (torch.nn.utils.prune)",
        "learns less; kernels skip zeros only in the form 2:4, on GPUs that have it", NO_ZEROS, NO_ZEROS,
        Lever((), ANY, 'prune.l1_unstructured(layer, "weight", amount={value})  # torch.nn.utils.prune'), NO_DIFF,
    ),
    ChangeKind(
        "distillation", _title("distilled from {}"), "adapters", "maths",
        "the loss is half that of the labels and half the distance to a teacher's probabilities at temperature 2",
        "a forward pass of the teacher a step; what it is wrong in is learnt too",
        Why("the catalogue has no teacher models"), Why("a captured step has no second model"), BY_RUN, NO_DIFF,
    ),
    ChangeKind(
        "compress", _title("gradients compressed by {}"), "parallel", "maths",
        "DDP exchanges gradients in fp16 (another precision), or as products of two thin matrices (PowerSGD)",
        "small gradients round away; PowerSGD is another training",
        Why("strategies of the catalogue exchange gradients as they are"), ONE_RANK, RANKS, NO_DIFF,
    ),
    ChangeKind(
        "sharding", lambda kind: "no sharding" if kind == "none" else f"{kind} sharding", "parallel", "exact",
        "optimizer states (zero1), gradients (zero2) and weights (zero3) are sharded over the data-parallel ranks",
        "more traffic between them", on.SHARDING, "ranks", RANKS, PLAN_WRITES,
    ),
    ChangeKind(
        "tensor_parallel", _title("tensor parallel {}"), "parallel", "exact", "each layer's products are cut over accelerators",
        "collectives in every layer", on.TENSOR_PARALLEL, ONE_RANK, RANKS, PLAN_WRITES,
    ),
    ChangeKind(
        "pipeline_parallel", _title("pipeline parallel {}"), "parallel", "exact", "the layers are cut into stages",
        "stages wait for one another", on.PIPELINE_PARALLEL, ONE_RANK, RANKS, PLAN_WRITES,
    ),
    ChangeKind(
        "context_parallel", _title("context parallel {}"), "parallel", "exact", "each sequence is cut over accelerators",
        "collectives in every attention", on.CONTEXT_PARALLEL, ONE_RANK, RANKS, PLAN_WRITES,
    ),
    ChangeKind(
        "virtual_stages", _stages_label, "parallel", "exact", "each stage holds several runs of layers", "more sends",
        on.VIRTUAL_STAGES, ONE_RANK, RANKS, PLAN_WRITES,
    ),
)  # fmt: skip
"""Levers first, in the order in which they are tried: what removes work comes first, for it changes what the rest is worth."""

BY_NAME: dict[str, ChangeKind] = {kind.name: kind for kind in CHANGES}


def kind_of(change: Change | str) -> ChangeKind:
    """Raises UnknownNameError for a change that there is not."""
    name = change if isinstance(change, str) else change.name
    if name not in BY_NAME:
        raise UnknownNameError("change", name, BY_NAME)
    return BY_NAME[name]


def label(change: Change) -> str:
    """``full recompute``, ``LoRA, rank 16``."""
    return kind_of(change).label(change.argument)


def labels(changes: Sequence[Change]) -> str:
    """Changes made together: ``full recompute + chunked loss``."""
    return " + ".join(label(c) for c in changes)


def training_of(changes: Sequence[Change]) -> str:
    """Effect of combined changes on the training: the strongest of theirs."""
    order = [*KINDS, OTHER]
    return max((kind_of(c).training_words for c in changes), key=order.index, default=SAME)


def on_strategy(change: Change, strategy: Strategy) -> Strategy:
    """``strategy`` with the change made. Raises ValueError for a change without such an effect."""
    effect = kind_of(change).strategy
    if isinstance(effect, Why):
        raise ValueError(f"{change.name} changes no strategy: {effect.text}")
    return effect.apply(strategy, change.argument)


EXCLUSIVE: tuple[frozenset[str], ...] = (
    frozenset({"optimizer", "fused_optimizer"}),
    frozenset({"micro_batches", "step_in_backward", "set_to_none", "zero_after_step"}),
    frozenset({"step_in_backward", "offload_optimizer"}),
    frozenset({"autocast", "low_precision"}),
    frozenset({"checkpointing"}),
)
"""Changes of one thing: a stack of changes holds one of each set."""


def clash(changes: Sequence[Change], other_changes: Sequence[Change]) -> bool:
    """Whether one of ``changes`` changes the same thing as one of ``others``."""
    names, other_names = {c.name for c in changes}, {c.name for c in other_changes}
    return any(names & group and other_names & group for group in EXCLUSIVE)
