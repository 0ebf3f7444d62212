"""Traps of training tools that touch what gpuwise does itself; those that a lever may spring are in test_gate.py."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from gpuwise.train.hook.launch import Limits, Outcome
from gpuwise.train.hook.settings import Parity, Profiling, Stop
from gpuwise.train.profile.session import Request, profile_script
from gpuwise.train.tune.trial import NO_DROPOUT, OBSERVE

STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
RESTARTS = 3

STEPS = """
import sys
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
x = torch.randn(32, 8)
for step in range(5):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    # the state as it is the moment before the step: a counter that anything else advanced shows here
    counters = {float(state["step"]) for state in optimizer.state.values()}
    assert counters == (set() if step == 0 else {float(step)}), (step, counters)
    optimizer.step()
print("weights", torch.cat([p.detach().flatten() for p in model.parameters()]).double().sum().item().hex())
"""


def test_trap_1_nothing_asks_for_the_state_before_the_first_step(run: Callable[..., Outcome], tmp_path: Path) -> None:
    """Watching, tracing and the parity gate leave the optimizer's counters alone: the weights at the end are those of a plain
    run to the last bit."""
    plain = io.StringIO()
    with redirect_stdout(plain):
        exec(compile(STEPS, "plain.py", "exec"), {"__name__": "__main__"})
    kept = str(tmp_path / "batches")
    for more in (
        {},
        {"levers": {OBSERVE: True}, "profiling": Profiling(str(tmp_path / "trace.json"), skip=1, steps=2, note_steps=1)},
        {"levers": {NO_DROPOUT: True}, "parity": Parity(5, record_batches=kept)},
        {"levers": {NO_DROPOUT: True}, "parity": Parity(5, replay_batches=kept)},
    ):
        (tmp_path / "output").unlink(missing_ok=True)
        outcome = run(STEPS, stop=Stop(), **more)
        assert (outcome.ended, outcome.code) == ("end", 0), outcome.error
        assert plain.getvalue() in (tmp_path / "output").read_text(), more


def test_trap_3_the_store_of_torchrun_is_not_shared_unless_asked(
    run: Callable[..., Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    script = f"import os, torch\nprint(os.environ.get({STORE!r}))\n"
    monkeypatch.delenv(STORE, raising=False)
    run(script)
    monkeypatch.setenv(STORE, "0")
    run(script)
    assert (tmp_path / "output").read_text().split() == ["1", "0"]


RANK = """
import os, signal
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, attempt = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
total = torch.full((4,), rank + 1.0)
dist.all_reduce(total)
if rank == 1 and attempt == 0:
    os.kill(os.getpid(), signal.SIGKILL)
os.write(1, f"attempt {attempt} rank {rank} total {total.tolist()}\\n".encode())  # in one piece, between the other's lines
dist.barrier()
dist.destroy_process_group()
"""

STARTS = """
import subprocess, sys

command = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "1"]
sys.exit(subprocess.run([*command, "--standalone", sys.argv[1]]).returncode)
"""


@pytest.mark.slow
def test_trap_3_torchrun_restarts_its_ranks(run: Callable[..., Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 1 is killed at its first attempt and the second ends well, every time. With a shared store about two restarts of five
    fail (torch 2.13: addresses of the first attempt are still in it), with --standalone as with any c10d rendezvous. The static
    rendezvous does not look at the variable, and fails as often with it as without."""
    monkeypatch.delenv(STORE, raising=False)
    (tmp_path / "rank.py").write_text(RANK)
    for _ in range(RESTARTS):
        (tmp_path / "output").unlink(missing_ok=True)
        outcome = run(STARTS, str(tmp_path / "rank.py"), limits=Limits(wall_s=600))
        said = (tmp_path / "output").read_text()
        assert (outcome.ended, outcome.code) == ("exit", 0), said
        for rank in (0, 1):
            assert f"attempt 1 rank {rank} total [3.0, 3.0, 3.0, 3.0]" in said


PRODUCTS = """
import torch
from torch import nn

assert not torch.cuda.is_available()
model = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512))
optimizer = torch.optim.SGD(model.parameters(), 0.01, fused=True)
x = torch.randn(256, 512)
for _ in range(40):
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_trap_5_products_in_fp32_on_a_processor_get_no_advice_for_a_gpu(run: Callable[..., Outcome], tmp_path: Path) -> None:
    """torch's own pattern matcher told 168 operations of a machine without a GPU to use TF32."""
    (tmp_path / "products.py").write_text(PRODUCTS)
    request = Request(str(tmp_path / "products.py"), steps=6)
    found = profile_script(request, tmp_path, zygote=run.zygote, output=tmp_path / "output").profile  # type: ignore[attr-defined]
    assert found.data.products, "there were products to judge"
    words = " ".join(w for f in found.findings for w in (f.kind, f.title, *f.fix)).lower()
    assert not [w for w in ("tf32", "autocast", "tensor core", "pin_memory", "channels_last", "cuda") if w in words], words
