# pyright: basic
"""Levers put on an unmodified script, in the process that runs it, and taken off again."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from gpuwise.errors import InputError
from gpuwise.train.cuda import has_cuda
from gpuwise.train.levers import checkpointing, modules, saving
from gpuwise.train.levers.batch import Batches, tell_device_memory
from gpuwise.train.levers.forward import Roots
from gpuwise.train.levers.groups import LengthGroups
from gpuwise.train.levers.loaders import ScriptTraits, change_arguments, change_batches, probe_loaders
from gpuwise.train.levers.micro import MicroBatches
from gpuwise.train.levers.optimizers import FusedOptimizers, Scaling, drop_gradients
from gpuwise.train.levers.padding import Padding
from gpuwise.train.levers.pruning import prune_model
from gpuwise.train.levers.real_columns import RealColumns
from gpuwise.train.levers.table import BY_NAME
from gpuwise.train.levers.trim import Trim
from gpuwise.train.ticks import DISCOVERY_TICKS, Tick
from gpuwise.workload.capture.device.patching import Patches

Tell = Callable[..., None]
OBSERVE, NO_DROPOUT, ROUNDING, LONGEST = "_observe", "_no_dropout", "_rounding", "_longest"
"""Internal levers: observation for the tuner, settings of the parity check, memory filling for the batch finder."""
INNER = (OBSERVE, NO_DROPOUT, ROUNDING, LONGEST)
LOADER_ARGUMENTS = ("workers", "prefetch", "pin_memory")
ATTENTION = {"flash": "FLASH_ATTENTION", "efficient": "EFFICIENT_ATTENTION", "cudnn": "CUDNN_ATTENTION", "math": "MATH"}


def apply_levers(levers: Mapping[str, object], *, tell: Tell) -> ActiveLevers:
    """Apply everything in ``levers`` (name to value) to torch before the script runs.

    ``tell("lever", name=..., applied=..., why=...)`` is called when one takes effect or cannot. Raises InputError for an
    unknown lever.
    """
    unknown = sorted(set(levers) - set(BY_NAME) - set(INNER))
    if unknown:
        raise InputError(f"there is no lever {unknown[0]!r}", hint="there are " + ", ".join(BY_NAME))
    return ActiveLevers(dict(levers), tell)


class ActiveLevers:
    """Result of :func:`apply_levers`; :meth:`close` undoes it."""

    def __init__(self, levers: dict[str, object], tell: Tell) -> None:
        self._levers, self._tell = levers, tell
        self._patches, self._stack = Patches(), ExitStack()
        self._undo: list[Callable[[], None]] = []
        self._fused: FusedOptimizers | None = None
        self._n_ticks = 0
        self._wrong: BaseException | None = None
        self._prepare: list[Callable[[nn.Module], Callable[[], None]]] = []
        self._roots: Roots | None = None
        self._calls: checkpointing.CountedCalls | None = None
        self._has_arguments = False
        self._batch_changes: list[Callable[[Any], Any]] = []
        for name, put_on in PUT_ON.items():
            if name in levers:
                put_on(self, levers[name])
        if "_columns" in vars(self):
            self._batch_changes.append(self._columns.see)
        if self._batch_changes:
            change_batches(self._patches, self._batch_changes)
        if self._prepare:
            self._roots = Roots(self._ready)

    # -- what the child calls

    @property
    def is_busy(self) -> bool:
        """False: levers measure nothing."""
        return False

    def before_optimizer(self, optimizer: Any) -> None:
        """See :meth:`Fused.before_optimizer`."""
        if self._fused is not None:
            self._fused.before_optimizer(optimizer)

    def on_tick(self, tick: Tick) -> None:
        """Count a step."""
        if self._calls is not None:
            self._calls.on_tick(tick)
        self.stepped()

    def stepped(self) -> None:
        """A turn of the loop: after the first ones no model is looked for any more."""
        self._n_ticks += 1
        if self._n_ticks == DISCOVERY_TICKS and self._roots is not None:
            self._roots.end_discovery()

    def close(self) -> None:
        """Everything as it was, the last first."""
        if OBSERVE in self._levers:
            tell_device_memory(self._tell)
        if self._roots is not None:
            self._roots.close()
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()
        self._patches.undo()
        self._stack.close()

    @functools.cached_property
    def _columns(self) -> RealColumns:
        """Columns of all levers that cut or split batches."""
        return RealColumns(self._patches)

    # -- the levers, by name in PUT_ON

    def tf32(self, _: object) -> None:
        """Products of fp32 in TF32."""
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high")
        self._undo.append(lambda: torch.set_float32_matmul_precision(before))
        self._flag(torch.backends.cudnn, "allow_tf32")
        self._tell("lever", name="tf32", applied=True)

    def cudnn_benchmark(self, _: object) -> None:
        """cuDNN measures its algorithms."""
        self._flag(torch.backends.cudnn, "benchmark")
        self._tell("lever", name="cudnn_benchmark", applied=True)

    def _flag(self, owner: Any, name: str) -> None:
        before = getattr(owner, name)
        saving.FLAGS.append((owner, name, before))
        setattr(owner, name, True)
        self._undo.append(lambda: setattr(owner, name, before))

    def threads(self, n: object) -> None:
        """``n`` threads of an operation."""
        before = torch.get_num_threads()
        torch.set_num_threads(int(str(n)))
        self._tell("lever", name="threads", applied=True)
        self._undo.append(lambda: torch.set_num_threads(before))

    def attention(self, kernel: object) -> None:
        """``kernel`` first for scaled dot-product attention."""
        from torch.nn.attention import SDPBackend, sdpa_kernel

        first = getattr(SDPBackend, ATTENTION[str(kernel)])
        # the others behind it: what it cannot do falls to them
        others = [b for b in (SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH) if b != first]
        self._stack.enter_context(sdpa_kernel([first, *others], set_priority=True))
        self._tell("lever", name="attention", applied=True)

    def allocator(self, conf: object) -> None:
        """``conf`` as ``PYTORCH_CUDA_ALLOC_CONF``."""
        if has_cuda():
            # torch from 2.10 warns at the older name
            newer = getattr(torch._C, "_accelerator_setAllocatorSettings", None)
            (newer or torch.cuda.memory._set_allocator_settings)(str(conf))
            self._tell("lever", name="allocator", applied=True)

    def observe(self, _: object) -> None:
        """Report what a tuning reads: devices, loaders, calls, padding."""
        ScriptTraits(self._patches, self._tell)
        probe_loaders(self._patches, self._tell)
        self._calls = checkpointing.CountedCalls(self._patches, self._tell)
        self._batch_changes.append(Padding(self._tell))

    def batch(self, size: object) -> None:
        """Loaders give batches of ``size``."""
        Batches(self._patches, int(str(size)), int(str(self._levers.get(LONGEST, 0))), self._tell)

    def longest(self, rows: object) -> None:
        """Loaders give ``rows`` of the longest samples first."""
        if "batch" not in self._levers:
            Batches(self._patches, None, int(str(rows)), self._tell)

    def loader_argument(self, _: object) -> None:
        """Apply all loader arguments at once; workers persist if items are cached."""
        if not self._has_arguments:
            self._has_arguments = True
            arguments = {name: self._levers[name] for name in LOADER_ARGUMENTS if name in self._levers}
            caches = "cache_decode" in self._levers or "cache_items" in self._levers
            change_arguments(self._patches, arguments, self._tell, keep_workers=caches)

    def cache_decode(self, most_bytes: object) -> None:
        """Keep decoded images, ``most_bytes`` of them."""
        from gpuwise.train.levers.decode import DecodedImages

        self.loader_argument(None)
        DecodedImages(self._patches, most_bytes, self._tell)

    def cache_items(self, most_bytes: object) -> None:
        """Keep a data set's items, ``most_bytes`` of them."""
        from gpuwise.train.levers.items import Items

        self.loader_argument(None)
        Items(self._patches, most_bytes, self._tell)

    def trim_padding(self, _: object) -> None:
        """Cut columns that are padding in every row."""
        self._batch_changes.append(Trim(self._columns, self._tell))
        self._prepare.append(self._columns.try_whole)

    def length_groups(self, n: object) -> None:
        """Run a batch as ``n`` groups of rows of like length."""
        self._prepare.append(LengthGroups(int(str(n)), self._columns, self._tell))

    def no_dropout(self, _: object) -> None:
        """Dropout passes its input on."""
        self._prepare.append(modules.without_dropout(self._patches))

    def rounding(self, unit: object) -> None:
        """Move what modules give by a random share of up to ``unit``, as rounding does."""
        self._prepare.append(modules.Rounding(float(str(unit))))

    def fp8(self, recipe: object) -> None:
        """Linear layers in fp8 by ``recipe``."""
        from gpuwise.train.levers import fp8

        self._prepare.append(lambda module: fp8.convert(module, str(recipe), self._tell))

    def channels_last(self, _: object) -> None:
        """Channels last in memory."""
        self._prepare.append(lambda module: modules.channels_last(module, self._tell))

    def checkpointing(self, which: object) -> None:
        """Compute the model's blocks again in the backward pass (``blocks``); keep what the script recomputes (``off``)."""
        if which == "off":
            checkpointing.plain_calls(self._patches, self._tell)
        if which == "blocks":
            self._prepare.insert(0, lambda module: checkpointing.recompute_blocks(module, self._tell))

    def micro_batches(self, n: object) -> None:
        """Run a batch in ``n`` parts, gradients added."""
        # inside groups of like length, outside of what is compiled
        self._prepare.insert(0, MicroBatches(int(str(n)), self._columns, self._tell))

    def compile(self, how: object) -> None:
        """``torch.compile`` in the mode ``how``."""
        self._prepare.insert(0, lambda module: modules.compile_model(module, str(how), self._tell))

    def autocast(self, form: object) -> None:
        """Products in ``form`` under autocast, with a scaled loss for fp16."""
        if form == "fp16":
            Scaling(self._patches, "cuda" if has_cuda() else "cpu", self._tell)
        self._prepare.append(lambda module: modules.autocast(module, str(form), self._tell))

    def fused_optimizer(self, _: object) -> None:
        """Update with the optimizer's fused kernels."""
        self._fused = FusedOptimizers(self._patches, self._tell)

    def pruning(self, value: object) -> None:
        """Mask weights by ``value``: a share of them, or two of four."""
        self._prepare.append(lambda module: prune_model(module, value, self._tell))

    def set_to_none(self, _: object) -> None:
        """Drop gradients instead of writing zeros."""
        drop_gradients(self._patches, self._tell)

    def _ready(self, module: nn.Module) -> None:
        self._undo += [prepare(module) for prepare in self._prepare]


PUT_ON: dict[str, Callable[[ActiveLevers, object], None]] = {
    "tf32": ActiveLevers.tf32,
    "cudnn_benchmark": ActiveLevers.cudnn_benchmark,
    "threads": ActiveLevers.threads,
    "attention": ActiveLevers.attention,
    "allocator": ActiveLevers.allocator,
    OBSERVE: ActiveLevers.observe,
    "batch": ActiveLevers.batch,
    LONGEST: ActiveLevers.longest,
    "workers": ActiveLevers.loader_argument,
    "prefetch": ActiveLevers.loader_argument,
    "pin_memory": ActiveLevers.loader_argument,
    "cache_decode": ActiveLevers.cache_decode,
    "cache_items": ActiveLevers.cache_items,
    "trim_padding": ActiveLevers.trim_padding,
    "length_groups": ActiveLevers.length_groups,
    NO_DROPOUT: ActiveLevers.no_dropout,
    ROUNDING: ActiveLevers.rounding,
    "fp8": ActiveLevers.fp8,
    "channels_last": ActiveLevers.channels_last,
    "checkpointing": ActiveLevers.checkpointing,
    "micro_batches": ActiveLevers.micro_batches,
    "compile": ActiveLevers.compile,
    "autocast": ActiveLevers.autocast,
    "fused_optimizer": ActiveLevers.fused_optimizer,
    "set_to_none": ActiveLevers.set_to_none,
    "pruning": ActiveLevers.pruning,
}
"""How each lever, and each of the tuner's own (``_observe``), is put on, in the order in which that happens."""
