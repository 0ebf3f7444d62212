"""One rank, its output in a file; as ``gpuwise.train.ranks.child`` but for the rendezvous, which is a file. ``GIVEN`` is set by
the process that starts it."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import resource
import signal
import sys
from datetime import timedelta
from pathlib import Path

import msgspec
import torch
import torch.distributed as dist

from gpuwise.train.ranks.child import train
from gpuwise.train.ranks.settings import RankSettings

encoded, rank, n_ranks, store, environment, wait_s = GIVEN  # type: ignore[name-defined]  # noqa: F821
settings = msgspec.json.decode(encoded, type=RankSettings)
os.environ.update(environment)
out = os.open(Path(settings.out) / f"output-{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
os.dup2(out, 1)
os.dup2(out, 2)
torch.set_num_threads(1)
# as in a rank that torchrun starts: loaders' workers are its own children, and end with it
multiprocessing.set_start_method("fork", force=True)
if "LARGEST_FILE" in environment:
    # as on a full disk: a write beyond it fails
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(environment["LARGEST_FILE"]), resource.RLIM_INFINITY))
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=n_ranks, timeout=timedelta(seconds=wait_s))
code = 1
try:
    code = train(settings, rank, "cpu")
finally:
    sys.stdout.flush()
    sys.stderr.flush()
    if code == 0:
        # with a rank that is gone this waits for what was to be exchanged with it
        with contextlib.suppress(Exception):
            dist.destroy_process_group()
    os._exit(code)
