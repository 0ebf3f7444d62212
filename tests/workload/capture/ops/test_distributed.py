"""Distributed steps in one process: shards, collectives and their bytes for DDP, FSDP2 and tensor parallelism."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("torch without distributed", allow_module_level=True)

from gpuwise.errors import InputError  # noqa: E402
from gpuwise.predict.parallel.sharding import Sharding, sharded  # noqa: E402
from gpuwise.workload.capture.api import capture  # noqa: E402
from gpuwise.workload.capture.captured import Capture, Category  # noqa: E402
from gpuwise.workload.row_codes import Kind  # noqa: E402

WIDTH, LAYERS, WORDS = 96, 3, 100
pytestmark = [
    pytest.mark.thorough,
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning"),
]


@pytest.fixture(scope="module", autouse=True)
def _sharded() -> None:
    """Read when the first test runs: two seconds of every collection otherwise."""
    pytest.importorskip("torch.distributed.fsdp")


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = torch.nn.LayerNorm(WIDTH), torch.nn.Linear(WIDTH, 200), torch.nn.Linear(200, WIDTH)

    def forward(self, x: Any) -> Any:
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


class Network(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(WORDS, WIDTH)
        self.layers = torch.nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = torch.nn.Linear(WIDTH, WORDS)

    def forward(self, x: Any) -> Any:
        x = self.words(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def training(wrap: Callable[[Any], Any]) -> Callable[[], Any]:
    def make() -> Any:
        if "RANK" in os.environ:
            torch.distributed.init_process_group("nccl")
        model = wrap(Network().cuda())
        optimizer = torch.optim.AdamW(model.parameters())
        x = torch.randint(0, WORDS, (4, 64), device="cuda")

        def step() -> None:
            loss = torch.nn.functional.cross_entropy(model(x).flatten(0, 1), x.flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    return make


def fully(model: Any, **options: Any) -> Any:
    from torch.distributed.fsdp import fully_shard

    for layer in model.layers:
        fully_shard(layer, **options)
    return fully_shard(model, **options) or model


def collectives(step: Capture) -> Counter[tuple[str, int, int]]:
    span = step.steady
    rows = (step.signatures[i] for i in step.op_signature[span.first_op : span.end_op].tolist())
    found = (dict(s.attributes) for s in rows if s.kind == Kind.COLLECTIVE)
    return Counter((a["collective"], a["payload_bytes"], a["group_size"]) for a in found if "collective" in a)


def at_peak(step: Capture) -> dict[Category, int]:
    live, span = step.live_bytes(), step.steady
    return step.bytes_by_category(span.first_event + int(live[span.first_event : span.end_event].argmax()))


@pytest.fixture(scope="module")
def plain() -> Capture:
    return capture(training(lambda m: m))


@pytest.mark.parametrize("ranks", [2, 8, 512])
def test_fsdp2_is_the_sharding_formula_and_the_transformed_capture(plain: Capture, ranks: int) -> None:
    step = capture(training(fully), world_size=ranks)
    shards = {p.name: -(-p.shape[0] // ranks) * math.prod(p.shape[1:]) for p in plain.parameters}
    end = step.bytes_by_category(step.steady.end_event - 1)
    assert end[Category.PARAMETER] == 4 * sum(shards.values())
    assert end[Category.OPTIMIZER] == pytest.approx(8 * sum(shards.values()), abs=8 * len(shards))
    block = 4 * ranks * sum(n for name, n in shards.items() if name.startswith("layers.0."))
    rest = 4 * ranks * sum(n for name, n in shards.items() if not name.startswith("layers."))
    assert collectives(step) == {
        ("all_gather", block, ranks): 2 * LAYERS,
        ("reduce_scatter", block, ranks): LAYERS,
        ("all_gather", rest, ranks): 1,
        ("reduce_scatter", rest, ranks): 1,
    }
    mine = sharded(plain, Sharding("zero3", ranks))
    assert Counter((t.op, t.payload_bytes, t.group_size) for t in mine.transfers) == collectives(step)
    assert mine.capture.peak_bytes() == pytest.approx(step.peak_bytes(), rel=0.02)
    assert mine.capture.bytes_by_category(mine.capture.steady.end_event - 1) == pytest.approx(end, rel=0.02)
    assert step.settings.world_size == ranks


def test_mixed_precision_gathers_in_half_and_reduces_in_full() -> None:
    from torch.distributed.fsdp import MixedPrecisionPolicy

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    full, half = capture(training(fully), world_size=2), capture(training(lambda m: fully(m, mp_policy=policy)), world_size=2)
    gathered = {
        name: sum(b * n for (op, b, _), n in collectives(c).items() if op == "all_gather")
        for name, c in (("full", full), ("half", half))
    }
    assert gathered["half"] * 2 == gathered["full"]
    assert at_peak(half)[Category.ACTIVATION] < at_peak(full)[Category.ACTIVATION]


def test_ddp_runs_torchs_own_reducer(plain: Capture) -> None:
    step = capture(training(lambda m: torch.nn.parallel.DistributedDataParallel(m, device_ids=[0])), world_size=8, n_steps=3)
    reduced = sum(b * n for (op, b, _), n in collectives(step).items() if op == "all_reduce")
    assert reduced == sum(4 * math.prod(p.shape) for p in plain.parameters)
    assert step.bytes_by_category(step.steady.end_event - 1)[Category.COMMUNICATION] == reduced
    assert sharded(plain, Sharding("none", 8)).capture.peak_bytes() == pytest.approx(step.peak_bytes(), rel=0.02)


def test_tensor_parallel_over_a_mesh() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    def wrap(model: Any) -> Any:
        mesh = init_device_mesh("cuda", (2, 4), mesh_dim_names=("dp", "tp"))
        for layer in model.layers:
            parallelize_module(layer, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        return fully(model, mesh=mesh["dp"])

    found = collectives(capture(training(wrap), world_size=8))
    assert found["all_reduce", 4 * 64 * WIDTH * 4, 4] == 2 * LAYERS
    assert {size for op, _, size in found if op != "all_reduce"} == {2}


def test_everything_is_put_back(plain: Capture) -> None:
    before = (torch.distributed.init_process_group, torch.Tensor._make_wrapper_subclass, dict(os.environ))
    capture(training(fully), world_size=2)
    assert not torch.distributed.is_initialized()
    assert (torch.distributed.init_process_group, torch.Tensor._make_wrapper_subclass, dict(os.environ)) == before
    with pytest.raises(InputError):
        capture(training(fully), world_size=2, rank=2)
