"""Small models run for real on the CPU, every storage recorded; a capture of the same step has the same ones."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import gpuwise  # noqa: E402

Event = tuple[int, int]


class RealStorages(TorchDispatchMode):
    """Births and deaths of real storages: (sign, bytes), in order."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Event] = []
        self.alive: dict[int, Any] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (list, tuple)) else (out,):
            if isinstance(tensor, torch.Tensor):
                self._see(tensor.untyped_storage())
        return out

    def _see(self, storage: Any) -> None:
        key, nbytes = storage._cdata, storage.nbytes()
        if key in self.alive or not nbytes:  # until torch 2.9 a checkpoint makes an empty tensor
            return

        def dead(_: Any) -> None:
            del self.alive[key]
            self.events.append((-1, nbytes))

        self.alive[key] = weakref.ref(storage, dead)
        self.events.append((1, nbytes))


def _mlp(device: str) -> Callable[[], None]:
    model = nn.Sequential(nn.Linear(40, 300), nn.GELU(), nn.LayerNorm(300), nn.Linear(300, 7)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)

    def step() -> None:
        x = torch.randn(64, 40, device=device)
        y = torch.zeros(64, dtype=torch.long, device=device)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


class Residual(nn.Module):
    """Two branches of one input, an in-place activation, a view that is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.out = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(3, 8, 1), nn.Linear(8, 5)

    def forward(self, x: Any) -> Any:
        y = F.relu(self.left(x) + self.right(x), inplace=True)
        z = y.mean((2, 3)).view(-1, 2, 4)[:, ::1]
        return self.out(z.reshape(-1, 8)) * y.amax()


def _adamw(device: str) -> Callable[[], None]:
    """Its count of steps is on the host where its parameters are."""
    model = nn.Sequential(nn.Linear(40, 30), nn.GELU(), nn.Linear(30, 7)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)

    def step() -> None:
        model(torch.randn(64, 40, device=device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _convolutions(device: str) -> Callable[[], None]:
    model = Residual().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)

    def step() -> None:
        for _ in range(2):  # gradients accumulate
            x = torch.randn(8, 3, 33, 31, device=device)
            model(x).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    return step


def _checkpointed(device: str) -> Callable[[], None]:
    from torch.utils.checkpoint import checkpoint

    blocks = nn.ModuleList(nn.Sequential(nn.Linear(64, 256), nn.SiLU(), nn.Linear(256, 64)) for _ in range(3)).to(device)

    def step() -> None:
        x = torch.randn(128, 64, device=device)
        for block in blocks:
            x = x + checkpoint(block, x, use_reentrant=False)
        x.mean().backward()
        for parameter in blocks.parameters():
            parameter.grad = None

    return step


def _embedding_and_attention(device: str) -> Callable[[], None]:
    """Attention written out, as matmuls."""
    torch.manual_seed(0)
    table, q, k, v = nn.Embedding(100, 32).to(device), *(nn.Linear(32, 32, bias=False).to(device) for _ in range(3))

    def step() -> None:
        x = table(torch.zeros(4, 50, dtype=torch.long, device=device))
        scores = q(x) @ k(x).transpose(1, 2) / 32**0.5
        out = scores.softmax(-1) @ v(x)
        out.pow(2).mean().backward()
        for module in (table, q, k, v):
            module.zero_grad()

    return step


def _real(make: Callable[[str], Callable[[], None]]) -> list[Event]:
    recorder = RealStorages()
    with recorder:
        step = make("cpu")
        step()
        recorder.events.clear()
        step()
        return list(recorder.events)


@pytest.mark.parametrize("make", [_mlp, _convolutions, _checkpointed, _embedding_and_attention])
@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_every_storage_of_the_steady_step_is_born_and_freed_as_in_a_real_run(make: Any, device: str) -> None:
    captured = gpuwise.capture(lambda: make(device), device=device)
    span = captured.steady
    events = slice(span.first_event, span.end_event)
    mine = list(
        zip(
            captured.event_sign[events].tolist(),
            captured.storage_bytes[captured.event_storage[events]].tolist(),
            strict=True,
        )
    )
    assert [event for event in mine if event[1]] == _real(make)


def test_adamw_on_the_host_holds_what_it_holds_in_a_real_run() -> None:
    captured = gpuwise.capture(lambda: _adamw("cpu"), device="cpu")
    assert captured.settings.optimizers == ("AdamW/for-loop",)
    span = captured.steady
    events = slice(span.first_event, span.end_event)
    sizes = captured.storage_bytes[captured.event_storage[events]].tolist()
    mine = list(zip(captured.event_sign[events].tolist(), sizes, strict=True))
    assert mine == _real(_adamw)


def _old_constructors() -> Any:
    """A table made by numpy's values, a bias whose storage C++ makes, and a number of groups that values decide."""
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 8)
    model.bias = torch.nn.Parameter(torch.Tensor(8))
    torch.nn.init.zeros_(model.bias)
    table = torch.empty(4, 8)
    table[:, :4] = torch.FloatTensor(np.sin(np.arange(16.0).reshape(4, 4)))
    table[:, 4:] = torch.from_numpy(np.cos(np.arange(16.0).reshape(4, 4))).float()
    groups = len(torch.unique(torch.round(torch.arange(6.0) / 2)))
    assert groups == 3
    slopes = torch.Tensor([0.5, 0.25, 0.125, 0.0625])
    x = torch.randn(4, 8)

    def step() -> None:
        model.zero_grad()
        (model(x + table) * slopes[:, None]).sum().backward()

    return step


def test_tensors_of_old_constructors_are_captured_on_the_host() -> None:
    captured = gpuwise.capture(_old_constructors, device="cpu")
    span = captured.steady
    events = slice(span.first_event, span.end_event)
    sizes = captured.storage_bytes[captured.event_storage[events]].tolist()
    mine = list(zip(captured.event_sign[events].tolist(), sizes, strict=True))
    assert mine == _real(lambda _: _old_constructors())
