"""Every edit that ``tune`` prints runs as Python where its place is."""

from __future__ import annotations

import ast
import shlex
from typing import Any

import pytest

from gpuwise.train.levers.table import LEVERS
from gpuwise.workload.changes.diff import by_hand

torch = pytest.importorskip("torch")
VALUES = {"micro_batches": (2,), "batch": (4,), "threads": (1,), "pruning": (0.5,)}
CASES = [(lever.name, value) for lever in LEVERS for value in (lever.put_on.values or VALUES[lever.name])]


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize(("name", "value"), CASES, ids=[f"{n}={v}" for n, v in CASES])
def test_what_is_printed_runs(name: str, value: object) -> None:
    lines = by_hand(name, value, device="cpu", optimizers=("SGD",))
    assert lines and not any("{" in line for line in lines if name != "fp8")
    if name == "allocator":
        assert shlex.split(lines[-1])[1:] == ["python", "..."]
        return
    if name == "length_groups":
        # more than lines: a sentence
        assert lines[0].startswith("sort the rows")
        return
    ast.parse("\n".join(lines))
    threads, benchmark, precision = (
        torch.get_num_threads(),
        torch.backends.cudnn.benchmark,
        torch.get_float32_matmul_precision(),
    )
    try:
        exec("\n".join(lines).replace("loss = ...", "loss = loss_of(images)"), _script(lines))
    finally:
        torch.set_num_threads(threads)
        torch.backends.cudnn.benchmark = benchmark
        torch.set_float32_matmul_precision(precision)


def _script(lines: tuple[str, ...]) -> dict[str, Any]:
    """Names of a script around the place, an image classifier on a processor."""

    class Call:
        """Takes any argument but those that its class does not have."""

        def __init__(self, made: Any, *first: Any) -> None:
            self.made, self.first = made, first

        def __call__(self, dots: Any, **arguments: Any) -> Any:
            assert dots is ...
            return self.made(*self.first, **arguments)

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = torch.nn.ModuleList([torch.nn.Conv2d(1, 4, 3)])
            self.head = torch.nn.Linear(144, 10)

        def forward(self, images: Any) -> Any:
            return self.head(self.blocks[0](images).flatten(1))

    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = model(torch.ones(2, 1, 8, 8)).sum()
    names: dict[str, Any] = {
        "torch": torch,
        "model": model,
        "optimizer": optimizer,
        "loss": loss,
        "images": torch.ones(2, 1, 8, 8),
        "batch": torch.ones(4, 1, 8, 8),
        "loss_of": lambda rows: model(rows).sum(),
        "function": lambda rows: rows,
        "inputs": (1,),
        "dataset": [1, 2],
        "paths": [],
        "ids": torch.ones(2, 9),
        "lengths": torch.tensor([3, 5]),
        "layer": torch.nn.Linear(4, 4),
        "prune": pytest.importorskip("torch.nn.utils.prune"),
    }
    if any("DataLoader(" in line for line in lines):
        is_prefetch = any("prefetch_factor" in line for line in lines)
        made = torch.utils.data.DataLoader
        names["DataLoader"] = Call(lambda data, **a: made(data, **({"num_workers": 1} if is_prefetch else {}), **a), [1, 2])
    if any("torch.optim.SGD(..." in line for line in lines):

        class Torch:
            class optim:
                SGD = Call(torch.optim.SGD, model.parameters())

        names["torch"] = Torch
    if any("Float8LinearConfig" in line for line in lines):
        names |= vars(pytest.importorskip("torchao.float8"))
    return names
