"""No answer about memory before every optimizer that was built has updated: its states are missing until then."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuwise.errors import InputError

pytest.importorskip("torch")

from gpuwise.workload.capture.captured import Capture, Category
from gpuwise.workload.capture.target import find_target

BUILT = """
import sys
import torch
from torch import nn

N, STEPS = int(sys.argv[1]), int(sys.argv[2])
small, large = nn.Linear(64, 64).cuda(), nn.Linear(64, 2048).cuda()
first, second = torch.optim.Adam(small.parameters()), torch.optim.AdamW(large.parameters())

def update(model, optimizer):
    x = torch.randn(32, 64, device="cuda")
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
"""
LOOPS = {
    "every nth": "for i in range(STEPS):\n    update(small, first)\n    if (i + 1) % N == 0:\n        update(large, second)\n",
    "before the first": "for i in range(STEPS):\n    if i % N == 0:\n        update(large, second)\n    update(small, first)\n",
    "in turns": "for i in range(STEPS):\n    update(*((small, first) if i % N else (large, second)))\n",
    "after a warm-up": "for i in range(STEPS):\n    update(*((small, first) if i < N else (large, second)))\n",
    "each epoch": "for e in range(99):\n    for i in range(N):\n        update(small, first)\n    update(large, second)\n",
}
STATES = 2 * 4 * (64 * 64 + 64 + 64 * 2048 + 2048)
"""Bytes of Adam's two moments of both models, without the step counters."""


def captured(folder: Path, loop: str, n: int, steps: int = 4000) -> Capture:
    path = folder / "train.py"
    path.write_text(BUILT + loop)
    return find_target(str(path), whole=True, arguments=(str(n), str(steps))).capture()


def states(capture: Capture) -> int:
    """Bytes of optimizer states at the end."""
    return capture.bytes_by_category(len(capture.event_sign) - 1).get(Category.OPTIMIZER, 0)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("n", [2, 7])
def test_the_states_of_all_optimizers_are_in_the_memory(loop: str, n: int, tmp_path: Path) -> None:
    capture = captured(tmp_path, LOOPS[loop], n)
    assert STATES <= states(capture) <= STATES + 4096
    # all that is kept, and the gradients of the larger model, once its states are there
    assert capture.live_bytes().max() >= STATES * 3 // 2 + 4 * 64 * 2048
    assert len(capture.steps) >= 2 and capture.steady.end_op - capture.steady.first_op < 300


def test_the_fullest_step_counts_and_not_the_last(tmp_path: Path) -> None:
    """An update in 5 makes the peak, whatever step the capture ends with."""
    rare, often = (captured(tmp_path, LOOPS["every nth"], n).live_bytes().max() for n in (5, 1))
    assert abs(rare - often) <= 4 * 32 * 2048


@pytest.mark.thorough
@pytest.mark.parametrize("loop", ["every nth", "after a warm-up"])
def test_no_answer_where_one_never_updates(loop: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"AdamW \(133,120 parameters, built at train.py:8\) has not updated") as error:
        captured(tmp_path, LOOPS[loop], 10**6, 10**6)
    assert "make_step" in str(error.value.hint)


def test_a_script_that_ends_without_it_has_no_answer_either(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"AdamW .* has not updated"):
        captured(tmp_path, LOOPS["every nth"], 10, 4)


def test_optimizers_that_are_gone_are_not_waited_for(tmp_path: Path) -> None:
    """Built anew, with the old one in a cycle with its scheduler, and never used."""
    gone = "scheduler = torch.optim.lr_scheduler.StepLR(second, 1)\nsecond = scheduler = None\n"
    capture = captured(tmp_path, gone + "for i in range(STEPS):\n    update(small, first)\n", 1)
    assert len(capture.steps) >= 2 and states(capture) < STATES // 8


def test_a_wrapper_and_what_it_wraps_are_one(tmp_path: Path) -> None:
    """As Accelerate, Lightning and Lookahead wrap: with the base's constructor or without, and one of both is called."""
    wrapped = """
class Wrapper(torch.optim.Optimizer):
    def __init__(self, inner, made):
        self.inner = inner
        super().__init__(inner.param_groups, {}) if made else None
    def step(self, closure=None):
        return self.inner.step(closure)
    def zero_grad(self, set_to_none=True):
        self.inner.zero_grad()
one, two = Wrapper(first, N == 1), Wrapper(second, N == 1)
for i in range(STEPS):
    update(small, first)
    if i % 2:
        update(large, two if N < 3 else second)
"""
    for n in (1, 2, 3):
        assert STATES <= states(captured(tmp_path, wrapped, n)) <= STATES + 4096


def test_a_function_is_called_until_all_have_updated(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    step = "def make_step():\n    n = [0]\n    def step():\n        n[0] += 1\n        update(small, first)\n"
    step += "        if n[0] % 4 == 0:\n            update(large, second)\n    return step\n"
    path.write_text(BUILT.replace("int(sys.argv[1]), int(sys.argv[2])", "1, 1") + step)
    capture = find_target(f"{path}:make_step").capture()
    assert states(capture) >= STATES and len(capture.steps) == 8


def test_one_optimizer_is_captured_as_before(tmp_path: Path) -> None:
    loop = "del second, large\nfor i in range(STEPS):\n    update(small, first)\n    print(i)\n"
    assert len(captured(tmp_path, loop, 1).steps) == 2


CLOSURES = """
import sys
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 1)).cuda()
optimizer = torch.optim.LBFGS(net.parameters(), max_iter=4, history_size=int(sys.argv[1]), line_search_fn=sys.argv[2] or None)
x, y = torch.randn(128, 64, device="cuda"), torch.randn(128, 1, device="cuda")

def closure():
    optimizer.zero_grad()
    loss = (net(x) - y).square().mean()
    loss.backward()
    return loss

for _ in range(200):
    optimizer.step(closure)
"""


@pytest.mark.parametrize(("history", "search"), [(3, ""), (12, ""), (12, "strong_wolfe")])
def test_a_history_of_gradients_is_full(history: int, search: str, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(CLOSURES)
    capture = find_target(str(path), whole=True, arguments=(str(history), search)).capture()
    vector = 4 * (64 * 256 + 256 + 256 + 1)
    assert 2 * history * vector <= states(capture) <= (2 * history + 3) * vector
    assert capture.batch == 128  # that the closure is called again is no further sample


READ = """
import math
import torch
from torch import nn

net = nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
scaler = torch.amp.GradScaler("cuda")
best = float("inf")
for i in range(9):
    loss = net(torch.randn(4, 8, device="cuda")).square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    now = loss.item()
    assert 0 < now < best and math.isfinite(math.log(now)), "the loss does not improve"
    assert scaler.get_scale() == 65536
    best = now
residual = 1.0
while residual > 1e-6:
    residual = net(torch.randn(4, 8, device="cuda")).norm().item()
"""


def test_numbers_read_back_are_those_of_a_healthy_run(tmp_path: Path) -> None:
    """Positive, falling, and small in the end; no gradient is infinite."""
    path = tmp_path / "train.py"
    path.write_text(READ)
    assert len(find_target(str(path), whole=True).capture(n_steps=20).steps) == 9
