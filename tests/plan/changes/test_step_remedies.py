"""Changes tried on a small real step: the cheapest checkpoints under a limit, what is kept too long, what makes it faster."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")

from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.plan.changes.step_remedies import find_remedies
from gpuwise.plan.changes.step_speedups import WORTH_SPEED, find_speedups
from gpuwise.plan.changes.trial import Trial
from gpuwise.plan.own.fit import source_of
from gpuwise.plan.step.estimates import measure
from gpuwise.workload.capture.captured import Category
from gpuwise.workload.changes.change import Change

STEP = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, wide):
        super().__init__()
        self.up, self.act, self.down = nn.Linear(64, wide), nn.GELU(), nn.Linear(wide, 64)

    def forward(self, x):
        return x + self.down(self.act(self.up(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block(w) for w in (64, 512, 128, 512, 256, 512))
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def make_step(batch=65536):
    net = Net().cuda()
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    x = torch.randn(batch, 64, device="cuda")
    kept = {}

    def step():
        out = net(x)
        out.square().mean().backward()
        opt.step()
        opt.zero_grad()
        kept["out"] = out

    return step
"""
MIB = 2**20


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("step") / "uneven.py"
    path.write_text(STEP)
    return path


@pytest.mark.thorough
def test_the_cheapest_checkpoints_make_it_fit(file: Path) -> None:
    card = find_cluster("RTX 3060").accelerator
    source = source_of(f"{file}:make_step")
    capture, sites = source.captured(card, 65536)
    context = measure(capture, card).memory.context.expected
    allocated = measure(capture, card).memory.allocated.expected
    small = replace(card, memory_visible_bytes=int(context + 0.9 * allocated))
    conf = "expandable_segments:True"
    base = measure(capture, small, allocator_conf=conf)
    assert not base.fits
    found = find_remedies(source, small, capture, sites, base, batch=65536, conf=conf)
    by_name = {r.name: r for r in found.singles}
    chosen = next(r for r in found.singles if r.name.startswith("recompute of "))
    assert chosen.fits and chosen.slower is not None and chosen.slower > 0
    every = by_name["full recompute"]
    assert every.slower is not None and chosen.slower < every.slower
    assert 0 < len(chosen.changes[0].argument) < 5  # type: ignore[arg-type]
    assert any(".get_submodule(name)" in line for line in chosen.lines)


@pytest.mark.thorough
def test_what_makes_it_faster_is_sorted_and_fits(file: Path) -> None:
    card = find_cluster("A100-80GB").accelerator
    source = source_of(f"{file}:make_step")
    capture, sites = source.captured(card, 4096)
    base = measure(capture, card)
    told: list[str] = []
    found, captures = find_speedups(source, card, capture, sites, base, batch=4096, tell=told.append)
    slower = [r.slower for r in found if r.slower is not None]
    assert len(slower) == len(found) >= 2 and slower == sorted(slower) and slower[-1] < -WORTH_SPEED
    assert all(r.fits and r.lines for r in found)
    assert captures == len(told) >= 3
    larger = next(r for r in found if r.name == "batch 16384")
    assert larger.estimate.step_time_s is not None and base.step_time_s is not None
    assert larger.slower == pytest.approx(larger.estimate.step_time_s.expected / 4 / base.step_time_s.expected - 1)


def test_the_optimizer_on_the_host_frees_its_states_for_time(file: Path) -> None:
    card = find_cluster("A100-80GB").accelerator
    source = source_of(f"{file}:make_step")
    capture, sites = source.captured(card, 4096)
    base = measure(capture, card)
    trial = Trial(source, card, capture, sites, base, 4096, None, None, None, lambda _: None)
    moved = trial.tried((Change("offload_optimizer"),))
    assert moved is not None and trial.captures == 0
    assert Category.OPTIMIZER in base.memory.by_category and Category.OPTIMIZER not in moved.estimate.memory.by_category
    assert moved.slower is not None and moved.slower > 0 and moved.estimate.once_s > 0
    assert any("CPUOffloadOptimizer(net.parameters(), torch.optim.AdamW, lr=1e-3)" in line for line in moved.lines)


SCRIPT = """
import torch
from torch import nn
{data}
model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 10)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for x, y in {batches}:
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x.cuda()), y.cuda()).backward()
    optimizer.step()
"""
LOADED = """
data = torch.utils.data.TensorDataset(torch.randn(256, 64), torch.randint(0, 10, (256,)))
loader = torch.utils.data.DataLoader(data, batch_size=64)
"""


def test_a_whole_script_is_changed_too_and_its_loader_cut(tmp_path: Path) -> None:
    card = find_cluster("4090").accelerator
    path = tmp_path / "train.py"

    def trial(text: str) -> Trial:
        path.write_text(text)
        source = source_of(str(path))
        capture, sites = source.captured(card, None)
        return Trial(source, card, capture, sites, measure(capture, card), capture.batch, None, None, None, lambda _: None)

    loaded = trial(SCRIPT.format(data=LOADED, batches="loader"))
    parts = (Change("micro_batches", 4),)
    made = loaded.measured(parts)
    assert loaded.batch == 64 and made is not None and made[0].batch == 16
    assert loaded.tried((Change("optimizer", "momentum"),)) is not None and not loaded.failed
    plain = trial(SCRIPT.format(data="", batches="[(torch.randn(64, 64), torch.randint(0, 10, (64,)))] * 3"))
    assert plain.tried(parts) is None and plain.failed == [("micro-batch 16", "its batch does not come from a DataLoader")]


OWN_OPTIMIZER = """
import torch
from torch import nn

class Own(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, dict(lr=lr))

    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            state = self.state[p]
            for name in STATES:
                state.setdefault(name, torch.zeros_like(p)).lerp_(p.grad, 0.1)
            p.sub_(state["first"] * self.defaults["lr"])

net = nn.Sequential(*(nn.Linear(4096, 4096) for _ in range(8))).cuda()
optimizer = Own(net.parameters(), lr=1e-3)
for _ in range(99):
    optimizer.zero_grad()
    net(torch.randn(8, 4096, device="cuda")).square().mean().backward()
    optimizer.step()
"""


@pytest.mark.parametrize("states", [("first", "second", "slow"), ("first",)])
def test_an_optimizer_of_ones_own_with_heavy_states_is_offered_lighter_ones(states: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(OWN_OPTIMIZER.replace("STATES", repr(states)))
    card, source = find_cluster("t4").accelerator, source_of(str(path))
    capture, sites = source.captured(card, None)
    found = find_remedies(source, card, capture, sites, measure(capture, card), batch=8).singles
    offered = {r.changes[0].argument for r in found if r.changes[0].name == "optimizer"}
    assert offered == ({"adamw8bit", "adafactor", "momentum"} if len(states) > 1 else set())
