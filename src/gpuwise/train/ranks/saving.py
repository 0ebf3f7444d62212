# pyright: basic
"""Checkpoints by DCP (``torch.distributed.checkpoint``): written behind the next steps, sealed by a manifest, verified on load.

Optimizer states are read directly, not by ``get_optimizer_state_dict``: without states that runs an additional step, after
which Adam counts one step too many (pytorch#164929).
"""

from __future__ import annotations

import json
import pickle
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save

from gpuwise.errors import DataError, InputError
from gpuwise.files import write_whole
from gpuwise.train.ranks.manifest import PARTIAL, entry, faults, folder_of, prune, read, saves, seal
from gpuwise.train.ranks.parallel.pieces import Order, PieceReader, PieceWriter, stored_orders
from gpuwise.train.ranks.wrap import control_group

Tell = Callable[..., None]
LOOK_S, PATIENCE_S = 0.02, 1800.0
"""Between looks for the other ranks' hashes, and how long they may take (that of torch's collectives)."""
PLAIN = "plain"
"""Key of what is no tensor; that of later pipeline stages has their number behind it."""
Optimizer = torch.optim.Optimizer


class Saver:
    """Checkpoints of one training in one folder."""

    def __init__(self, root: Path, *, keep: int, tell: Tell) -> None:
        self.root, self._keep, self._tell = root, keep, tell
        self._rank, self._n = dist.get_rank(), dist.get_world_size()
        # what is saved behind a step may not meet the step's own exchanges
        self._group: Any = dist.new_group(backend="gloo")
        self._thread: threading.Thread | None = None
        self._failed: BaseException | None = None
        self._last: int | None = None

    def save(self, step: int, state: dict[str, Any], about: dict[str, Any], orders: Mapping[str, Order] | None = None) -> None:
        """Start saving; returns when ``state`` may change again. One save at a time: an earlier one is awaited first.
        ``orders``: of tensors with columns in another order than in one process."""
        began_s = time.perf_counter()
        self.wait()
        if step == self._last:
            return
        began = time.perf_counter()
        final = folder_of(self.root, step)
        partial = final.with_name(final.name + PARTIAL)
        if self._rank == 0:
            shutil.rmtree(partial, ignore_errors=True)
            self.root.mkdir(parents=True, exist_ok=True)
        planner = PieceWriter(orders) if orders else None
        future = async_save(state, checkpoint_id=str(partial), process_group=self._group, planner=planner)
        self._last = step
        times = (began, time.perf_counter() - began_s)
        self._thread = threading.Thread(target=self._finish, args=(future, partial, final, about, times), daemon=True)
        self._thread.start()

    def loaded(self, step: int) -> None:
        """There is a good one of this step already."""
        self._last = step

    def wait(self) -> None:
        """Until the save under way is done."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def failure(self) -> BaseException | None:
        """Why the last save came to nothing, once."""
        failed, self._failed = self._failed, None
        return failed

    def _finish(self, future: Any, partial: Path, final: Path, about: dict[str, Any], times: tuple[float, float]) -> None:
        """``times``: when it began, and how long the step waited for it."""
        written = False
        try:
            future.result()
            written = True
            own = {p.name: entry(p) for p in sorted(partial.glob(f"__{self._rank}_*"))}
            write_whole(partial / f"hashes-{self._rank}.json", json.dumps(own))
            if self._rank == 0:
                entries = self._gather(partial)
                seal(partial, final, entries, about)
                prune(self.root, self._keep)
                size = sum(e["bytes"] for e in entries.values())
                save_s = time.perf_counter() - times[0]
                self._tell("saved", step=about["step"], bytes=size, save_s=save_s, block_s=times[1], at_s=time.time())
        except BaseException as error:  # noqa: BLE001 - DCP's are no Exception, and a full disk ends no training
            self._failed, self._last = error, None
            if written and self._rank:
                # the others know only of what DCP wrote
                with suppress(OSError):
                    (partial / f"failed-{self._rank}").touch()
            if self._rank == 0:
                shutil.rmtree(partial, ignore_errors=True)
            self._tell("not saved", step=about["step"], why=reason(error))

    def _gather(self, partial: Path) -> dict[str, dict[str, Any]]:
        """Hashes of all files, each rank's own by that rank."""
        entries: dict[str, dict[str, Any]] = {}
        until = time.monotonic() + PATIENCE_S
        for rank in range(self._n):
            path = partial / f"hashes-{rank}.json"
            while not path.exists():
                if time.monotonic() > until or any(partial.glob("failed-*")):
                    raise DataError(f"rank {rank} could not write its part")
                time.sleep(LOOK_S)
            entries |= json.loads(path.read_text("utf-8"))
            path.unlink()
        rest = [p for p in partial.iterdir() if p.name not in entries]
        return entries | {p.name: entry(p) for p in rest if p.is_file()}


def reason(error: BaseException) -> str:
    """The innermost words of an error of DCP, which holds one a rank."""
    inner = getattr(error, "failures", None)
    if inner:
        error = next(iter(inner.values()))[0]
    cause = error.__cause__ or error.__context__
    if isinstance(cause, OSError) and not isinstance(error, OSError):
        error = cause
    return f"{type(error).__name__}: {getattr(error, 'strerror', None) or error}"[:300]


# --- what is saved ---


def state_of(
    model: nn.Module, optimizer: Optimizer, scheduler: Any, *, stage: int = 0, trained_only: bool = False
) -> dict[str, Any]:
    """Weights, optimizer states by the names of their parameters, and of each pipeline stage what is no tensor, pickled.
    ``trained_only``: without frozen weights, which the task makes again."""
    names = {id(p): name for name, p in model.named_parameters()}
    states: dict[str, Any] = {}
    others: dict[str, Any] = {}
    for parameter, values in optimizer.state.items():
        for key, value in values.items():
            name = f"{names[id(parameter)]}.{key}"
            (states if isinstance(value, torch.Tensor) else others)[name] = value
    groups = [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
    plain = {"groups": groups, "others": others, "scheduler": None if scheduler is None else scheduler.state_dict()}
    packed = torch.frombuffer(bytearray(pickle.dumps(plain)), dtype=torch.uint8)
    weights = dict(model.state_dict())
    frozen = [n for n, p in model.named_parameters() if not p.requires_grad] if trained_only else []
    # quantised weights have their scales behind their own name
    for name in [k for k in weights if any(k == f or k.startswith(f"{f}.") for f in frozen)]:
        del weights[name]
    state = {"model": weights, f"{PLAIN}.{stage}" if stage else PLAIN: packed}
    return {**state, "optimizer": states} if states else state


def load_state(folder: Path, model: nn.Module, optimizer: Optimizer, scheduler: Any) -> None:
    """Load a verified checkpoint into the model and its optimizer, from any layout."""
    reader = FileSystemReader(str(folder))
    stored = reader.read_metadata().state_dict_metadata
    parameters = dict(model.named_parameters())
    states: dict[str, Any] = {}
    for name, parameter in parameters.items():
        for key, metadata in stored.items():
            head = f"optimizer.{name}."
            if key.startswith(head) and "." not in key[len(head) :] and isinstance(metadata, TensorStorageMetadata):
                states[key.removeprefix("optimizer.")] = _room(metadata, parameter)
    state: dict[str, Any] = {"model": {k: v for k, v in model.state_dict().items() if f"model.{k}" in stored}}
    for key, plain in stored.items():
        if key.partition(".")[0] == PLAIN and isinstance(plain, TensorStorageMetadata):
            state[key] = torch.empty(plain.size, dtype=torch.uint8)
    if states:
        state["optimizer"] = states
    orders = stored_orders(model, state)
    load(state, storage_reader=reader, process_group=control_group(), planner=PieceReader(orders) if orders else None)
    missing = model.load_state_dict(state["model"], strict=False).missing_keys
    wrong = [k for k in missing if k in parameters and parameters[k].requires_grad]
    if wrong:
        raise InputError(f"{folder} has no {wrong[0]}", hint="give another folder with --out: nothing was changed here")
    metadata = pickle.loads(bytes(state[PLAIN].tolist()))
    for key, packed in state.items():
        if key.startswith(f"{PLAIN}."):
            metadata["others"] |= pickle.loads(bytes(packed.tolist()))["others"]
    for group, values in zip(optimizer.param_groups, metadata["groups"], strict=True):
        group.update(values)
    for full, value in [*states.items(), *metadata["others"].items()]:
        name, _, key = full.rpartition(".")
        if name in parameters:
            optimizer.state[parameters[name]][key] = value
    if scheduler is not None:
        scheduler.load_state_dict(metadata["scheduler"])


def _room(metadata: TensorStorageMetadata, parameter: nn.Parameter) -> torch.Tensor:
    """A tensor to load into: laid out as the parameter where it has its shape, else whole on every rank."""
    dtype = metadata.properties.dtype
    if metadata.size == parameter.shape:
        return torch.zeros_like(parameter, dtype=dtype, requires_grad=False)
    return torch.zeros(metadata.size, dtype=dtype)


# --- which one is loaded ---


def newest(root: Path, tell: Tell) -> tuple[Path, dict[str, Any]] | None:
    """The newest valid checkpoint, with its manifest; None without checkpoints. Every rank reads a part of the files. Raises
    InputError if all are damaged."""
    rank, n = dist.get_rank(), dist.get_world_size()
    names: list[Any] = [[p.name for p in saves(root)] if rank == 0 else None]
    dist.broadcast_object_list(names, 0, group=control_group())
    found: list[str] = []
    for name in names[0]:
        folder = root / name
        document, fault = read(folder)
        files = {} if document is None else document["files"]
        problems = [fault] if fault else faults(folder, files, sorted(files)[rank::n])
        everybody: list[Any] = [None] * n
        dist.all_gather_object(everybody, problems, group=control_group())
        wrong = list(dict.fromkeys(w for each in everybody for w in each))
        if not wrong and document is not None:
            return folder, document["about"]
        found += wrong
        tell("damaged", folder=name, why=wrong)
    if found:
        raise InputError(
            f"no checkpoint in {root} is whole: {'; '.join(found[:3])}",
            hint="put a good copy back, or give another folder with --out to start again: nothing was changed here",
        )
    return None
