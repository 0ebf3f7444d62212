"""The levers, as one table: what each changes, where it can work at all, and the lines that a person would write for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Changes = Literal["exact", "order", "precision", "maths"]
"""``exact``: the same numbers, or sums in another order. ``order``: which process makes an item, so that random augmentation
draws other numbers. ``precision``: a shorter format in some operations. ``maths``: another training."""
Group = Literal["precision", "compiler", "layout", "optimizer", "loader", "padding", "threads", "libraries", "memory", "batch"]


@dataclass(frozen=True, slots=True)
class Lever:
    """One thing to change. ``values`` are tried in turn, the most promising first."""

    name: str
    group: Group
    what: str
    changes: Changes
    values: tuple[object, ...]
    devices: tuple[str, ...]
    """Kinds of device on which it can make a difference."""
    code: str
    """For a person who wants it in the script; ``{value}`` is the value's place."""
    in_script: bool = True
    """Whether those lines are all of it; where not, ``gpuwise run`` does what they only sketch."""


ANY, CUDA, CPU = ("cpu", "cuda"), ("cuda",), ("cpu",)

LEVERS: tuple[Lever, ...] = (
    Lever(
        "length_groups",
        "padding",
        "rows of like length go through the model together, each group cut to its longest",
        "exact",
        (8, 4),
        ANY,
        "sort the rows of a batch by length and run the model on each part",
        in_script=False,
    ),
    Lever(
        "trim_padding",
        "padding",
        "columns that are padding in every row of a batch are cut off",
        "exact",
        (True,),
        ANY,
        "ids = ids[:, : lengths.max()]",
        in_script=False,
    ),
    Lever(
        "cache_decode",
        "loader",
        "each image is decoded (and converted and resized the same way) once and kept in memory",
        "exact",
        (True,),
        ANY,
        "self.images = [Image.open(p).convert('L') for p in paths]",
        in_script=False,
    ),
    Lever(
        "cache_items",
        "loader",
        "items of a dataset that come out the same every time are made once and kept in memory",
        "exact",
        (True,),
        ANY,
        "self.items = [make(i) for i in range(len(self))]",
        in_script=False,
    ),
    Lever(
        "workers",
        "loader",
        "items are made in processes beside the training, which stay from epoch to epoch",
        "order",
        (2, 4, 8),
        ANY,
        "DataLoader(..., num_workers={value}, persistent_workers=True)",
    ),
    Lever(
        "prefetch",
        "loader",
        "each worker makes more batches ahead",
        "exact",
        (4,),
        ANY,
        "DataLoader(..., prefetch_factor={value})",
    ),
    Lever(
        "pin_memory",
        "loader",
        "batches lie in page-locked memory, so that copies to the device overlap with work",
        "exact",
        (True,),
        CUDA,
        "DataLoader(..., pin_memory=True)",
    ),
    Lever(
        "autocast",
        "precision",
        "matrix products and convolutions of the model in a 16-bit format",
        "precision",
        ("bf16", "fp16"),
        ANY,
        "with torch.autocast(device.type, torch.{value}): output = model(inputs)",
        in_script=False,
    ),
    Lever(
        "tf32",
        "precision",
        "fp32 matrix products with 10-bit mantissas on tensor cores",
        "precision",
        (True,),
        CUDA,
        'torch.set_float32_matmul_precision("high")',
    ),
    Lever(
        "compile",
        "compiler",
        "the model's repeated blocks, or all of it, compiled by torch.compile",
        "exact",
        ("regional", "whole", "reduce-overhead"),
        ANY,
        "model.compile(), or block.compile() for each of its blocks (regional)",
        in_script=False,
    ),
    Lever(
        "fp8",
        "precision",
        "matrix products of the inner linear layers in 8 bits (torchao)",
        "precision",
        ("tensorwise", "rowwise"),
        CUDA,
        'convert_to_float8_training(model, config=Float8LinearConfig.from_recipe_name("{value}"))  # torchao.float8',
        in_script=False,
    ),
    Lever(
        "channels_last",
        "layout",
        "convolutions on images with channels innermost",
        "exact",
        (True,),
        ANY,
        "model.to(memory_format=torch.channels_last)",
        in_script=False,
    ),
    Lever(
        "fused_optimizer",
        "optimizer",
        "one kernel updates all parameters",
        "exact",
        (True,),
        ANY,
        "{optimizer}(..., fused=True)",
    ),
    Lever(
        "set_to_none",
        "optimizer",
        "gradients are dropped, not filled with zeros",
        "exact",
        (True,),
        ANY,
        "optimizer.zero_grad(set_to_none=True)",
    ),
    Lever(
        "attention",
        "libraries",
        "which kernel scaled_dot_product_attention takes",
        "exact",
        ("cudnn", "flash", "efficient"),
        CUDA,
        "with torch.nn.attention.sdpa_kernel(...): ...",
        in_script=False,
    ),
    Lever(
        "cudnn_benchmark",
        "libraries",
        "cuDNN tries its convolutions and takes the fastest",
        "exact",
        (True,),
        CUDA,
        "torch.backends.cudnn.benchmark = True",
    ),
    Lever(
        "allocator",
        "libraries",
        "the allocator's segments grow in place",
        "exact",
        ("expandable_segments:True",),
        CUDA,
        'os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "{value}"  # before torch is imported',
    ),
    Lever(
        "checkpointing",
        "memory",
        "activations: the script's own recomputing is left out (off), or the repeated blocks recompute (blocks)",
        "exact",
        ("off", "blocks"),
        ANY,
        "without torch.utils.checkpoint (off); each block under it (blocks)",
        in_script=False,
    ),
    Lever(
        "micro_batches",
        "memory",
        "the batch goes through the model in parts; one part's activations are held at a time",
        "exact",
        (),
        ANY,
        "the model on each part of the batch, under torch.utils.checkpoint",
        in_script=False,
    ),
    Lever(
        "batch",
        "batch",
        "samples in a batch of the loader that is made first",
        "maths",
        (),
        ANY,
        "DataLoader(..., batch_size={value})",
    ),
    Lever(
        "threads",
        "threads",
        "threads of one operation on the processor",
        "exact",
        (),
        CPU,
        "torch.set_num_threads({value})",
    ),
)
"""In the order in which they are tried: what removes work comes first, for it changes what the rest is worth."""

BY_NAME = {lever.name: lever for lever in LEVERS}

SUGGESTED_ONLY = {
    "sync removal": "values read from the device in every step (.item(), print of a loss) hold the host until the device is "
    "done; read them every so many steps",
}
"""What only a person can change safely."""
