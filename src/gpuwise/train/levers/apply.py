# pyright: basic
"""Levers put on an unmodified script, in the process that runs it, and taken off again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from gpuwise.errors import InputError
from gpuwise.train.hook.ticks import Tick
from gpuwise.train.hook.watch import DISCOVERY_TICKS
from gpuwise.train.levers import checkpointing, modules
from gpuwise.train.levers.batch import Batches, tell_device_memory
from gpuwise.train.levers.forward import Roots
from gpuwise.train.levers.groups import LengthGroups
from gpuwise.train.levers.loaders import Observed, change_arguments, change_batches, probe_loaders
from gpuwise.train.levers.micro import MicroBatches
from gpuwise.train.levers.optimizers import Fused, Scaling, drop_gradients
from gpuwise.train.levers.padding import Padding, Trim
from gpuwise.train.levers.table import BY_NAME
from gpuwise.workload.capture.device.patching import Patches

Tell = Callable[..., None]
OBSERVE, NO_DROPOUT, ROUNDING, LONGEST = "_observe", "_no_dropout", "_rounding", "_longest"
"""Not for people: what the tuner needs to see, what the parity gate compares under, what the batch finder fills memory with."""
INNER = (OBSERVE, NO_DROPOUT, ROUNDING, LONGEST)
LOADER_ARGUMENTS = ("workers", "prefetch", "pin_memory")
ATTENTION = {"flash": "FLASH_ATTENTION", "efficient": "EFFICIENT_ATTENTION", "cudnn": "CUDNN_ATTENTION", "math": "MATH"}


def apply_levers(levers: Mapping[str, object], *, tell: Tell) -> Applied:
    """Everything in ``levers`` (name to value), put on torch itself before the script runs.

    ``tell("lever", name=..., applied=..., why=...)`` is called where one takes hold or cannot. Raises InputError for a
    lever that there is not.
    """
    unknown = sorted(set(levers) - set(BY_NAME) - set(INNER))
    if unknown:
        raise InputError(f"there is no lever {unknown[0]!r}", hint="there are " + ", ".join(BY_NAME))
    return Applied(dict(levers), tell)


class Applied:
    """What :func:`apply_levers` did; :meth:`close` undoes it."""

    def __init__(self, levers: dict[str, object], tell: Tell) -> None:
        self._levers, self._tell = levers, tell
        self._patches, self._stack = Patches(), ExitStack()
        self._undo: list[Callable[[], None]] = []
        self._fused = Fused(tell) if "fused_optimizer" in levers else None
        self._n_ticks = 0
        self._wrong: BaseException | None = None
        self._prepare: list[Callable[[nn.Module], Callable[[], None]]] = []
        self._roots: Roots | None = None
        self._calls: checkpointing.CountedCalls | None = None
        self._settings()
        self._loaders()
        self._modules()
        if "set_to_none" in levers:
            drop_gradients(self._patches, tell)

    # -- what the child calls

    @property
    def is_busy(self) -> bool:
        return False

    def before_optimizer(self, optimizer: Any) -> None:
        if self._fused is not None:
            self._fused.before_optimizer(optimizer)

    def on_tick(self, tick: Tick) -> None:
        self._n_ticks += 1
        if self._calls is not None:
            self._calls.on_tick(tick)
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

    # -- the levers

    def _settings(self) -> None:
        levers = self._levers
        if "tf32" in levers:
            before = torch.get_float32_matmul_precision()
            cudnn = torch.backends.cudnn.allow_tf32
            torch.set_float32_matmul_precision("high")
            torch.backends.cudnn.allow_tf32 = True
            self._undo.append(lambda: torch.set_float32_matmul_precision(before))
            self._undo.append(lambda: setattr(torch.backends.cudnn, "allow_tf32", cudnn))
        if "cudnn_benchmark" in levers:
            held = torch.backends.cudnn.benchmark
            torch.backends.cudnn.benchmark = True
            self._undo.append(lambda: setattr(torch.backends.cudnn, "benchmark", held))
        if "threads" in levers:
            threads = torch.get_num_threads()
            torch.set_num_threads(int(str(levers["threads"])))
            self._undo.append(lambda: torch.set_num_threads(threads))
        if "attention" in levers:
            from torch.nn.attention import SDPBackend, sdpa_kernel

            first = getattr(SDPBackend, ATTENTION[str(levers["attention"])])
            # the others behind it: what it cannot do falls to them
            others = [b for b in (SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH) if b != first]
            self._stack.enter_context(sdpa_kernel([first, *others], set_priority=True))
        if "allocator" in levers and torch.cuda.is_available():
            torch.cuda.memory._set_allocator_settings(str(levers["allocator"]))

    def _loaders(self) -> None:
        levers, tell = self._levers, self._tell
        changes: list[Callable[[Any], Any]] = []
        if OBSERVE in levers:
            Observed(self._patches, tell)
            probe_loaders(self._patches, tell)
            self._calls = checkpointing.CountedCalls(self._patches, tell)
            changes.append(Padding(tell))
        if "batch" in levers or LONGEST in levers:
            size = int(str(levers["batch"])) if "batch" in levers else None
            Batches(self._patches, size, int(str(levers.get(LONGEST, 0))), tell)
        arguments = {name: levers[name] for name in LOADER_ARGUMENTS if name in levers}
        caches = "cache_decode" in levers or "cache_items" in levers
        if arguments or caches:
            change_arguments(self._patches, arguments, tell, keep_workers=caches)
        if "cache_decode" in levers:
            from gpuwise.train.levers.decode import DecodedImages

            DecodedImages(self._patches, levers["cache_decode"], tell)
        if "cache_items" in levers:
            from gpuwise.train.levers.items import Items

            Items(self._patches, levers["cache_items"], tell)
        if "trim_padding" in levers:
            changes.append(Trim(tell))
        if "length_groups" in levers:
            groups = LengthGroups(int(str(levers["length_groups"])), tell)
            changes.append(groups.see)
            self._prepare.append(groups)
        if changes:
            change_batches(self._patches, changes)

    def _modules(self) -> None:
        levers, tell = self._levers, self._tell
        if NO_DROPOUT in levers:
            self._prepare.append(modules.without_dropout(self._patches))
        if ROUNDING in levers:
            self._prepare.append(modules.Rounding(float(str(levers[ROUNDING]))))
        if "fp8" in levers:
            from gpuwise.train.levers import fp8

            self._prepare.append(lambda module: fp8.convert(module, str(levers["fp8"]), tell))
        if "channels_last" in levers:
            self._prepare.append(lambda module: modules.channels_last(module, tell))
        if levers.get("checkpointing") == "off":
            checkpointing.plain_calls(self._patches, tell)
        if levers.get("checkpointing") == "blocks":
            self._prepare.insert(0, lambda module: checkpointing.recompute_blocks(module, tell))
        if "micro_batches" in levers:
            # inside groups of like length, outside of what is compiled
            self._prepare.insert(0, MicroBatches(int(str(levers["micro_batches"])), tell))
        if "compile" in levers:
            self._prepare.insert(0, lambda module: modules.compile_model(module, str(levers["compile"]), tell))
        if "autocast" in levers:
            name = str(levers["autocast"])
            if name == "fp16":
                Scaling(self._patches, "cuda" if torch.cuda.is_available() else "cpu", tell)
            self._prepare.append(lambda module: modules.autocast(module, name, tell))
        if self._prepare:
            self._roots = Roots(self._ready)

    def _ready(self, module: nn.Module) -> None:
        self._undo += [prepare(module) for prepare in self._prepare]
