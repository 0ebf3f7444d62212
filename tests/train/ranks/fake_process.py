"""One rank of many that are not there: a step whose collectives are counted, over torch's fake process group. ``GIVEN`` is set by
the process that starts it."""

from __future__ import annotations

import itertools
import json
import sys
import traceback
import warnings
from pathlib import Path
from types import SimpleNamespace

import msgspec
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from gpuwise.train.ranks import loop, wrap
from gpuwise.train.ranks.parallel.pipeline import PipelineStage
from gpuwise.train.ranks.settings import RankSettings
from gpuwise.train.ranks.task import load_task

sys.path.append(str(Path(__file__).parent))
from issued import Issued

encoded, rank, n_steps, place = GIVEN  # type: ignore[name-defined]  # noqa: F821
settings = msgspec.json.decode(encoded, type=RankSettings)
told: dict[str, object] = {}
warnings.simplefilter("default")
receive = dist.irecv


def nothing(tensor: torch.Tensor, *args: object, **kwargs: object) -> object:
    """What nobody sends is zeros, not what lay in memory."""
    return receive(tensor.zero_(), *args, **kwargs)


try:
    torch.set_num_threads(1)
    dist.irecv = dist.distributed_c10d.irecv = nothing
    torch.manual_seed(0)
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=settings.layout.n_ranks)
    # nobody is there to save with, and numbers of the processes go over the same group
    loop.Saver = lambda *_, **__: SimpleNamespace()
    for module in (loop, wrap):
        module.control_group = lambda: dist.group.WORLD
    # stages vote for shapes that each was given, which no other one hears (from PyTorch 2.13 on)
    for name in ("_warmup_forward_vote", "_warmup_backward_result"):
        setattr(PipelineStage, name, lambda *_, **__: torch.ones(1, dtype=torch.int32))
    journal = SimpleNamespace(event=lambda kind, **values: told.update({kind: values}))
    training = loop.Training(settings, load_task(settings.target, settings.settings, settings.layout, "cpu"), journal)
    batches = training._batches(training.cursor, n_steps)
    for cursor, parts in itertools.islice(training._plan(training.cursor, n_steps), n_steps):
        with Issued() as issued:
            training._step(cursor, parts, batches)
    counts = {"predicted": told["predicted"]["collectives"], "counted": told["step"]["collectives"], "issued": issued.counts}
    Path(place).write_text(json.dumps(counts))
except BaseException:  # noqa: BLE001 - the test says what it was
    traceback.print_exc(file=sys.stderr)
    Path(place).write_text(json.dumps({"error": traceback.format_exc()}))
