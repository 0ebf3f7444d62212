"""One answer to which modules of a network are its repeated blocks: levers, ranks, the changes of a capture, the prediction of a
sharded step and the lines shown to a person name the same ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from gpuwise.predict.parallel.sharding_parts import units_of  # noqa: E402
from gpuwise.train.levers.checkpointing import recompute_blocks  # noqa: E402
from gpuwise.workload.capture.api import capture  # noqa: E402
from gpuwise.workload.capture.changes.watch import watched  # noqa: E402
from gpuwise.workload.capture.record.blocks import blocks, units  # noqa: E402
from gpuwise.workload.capture.repeats import blocks_by_path, largest_kind, repeated_blocks, unshared_blocks  # noqa: E402
from gpuwise.workload.changes.change import Change  # noqa: E402
from gpuwise.workload.changes.diff import snippet  # noqa: E402

WIDTH = 8


class Block(nn.Module):
    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Any) -> Any:
        return x + self.down(torch.relu(self.up(x)))


class Mixer(Block):
    """Another class of layer, as hybrid networks have beside attention."""


class Stack(nn.Module):
    """A stem, ``layers`` in a list, and a head."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.stem, self.layers, self.head = nn.Linear(WIDTH, WIDTH), nn.ModuleList(layers), nn.Linear(WIDTH, 3)

    def forward(self, x: Any) -> Any:
        x = self.stem(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Attributes(nn.Module):
    """Two blocks that no list holds."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = Block(), Block(), nn.Linear(WIDTH, 3)

    def forward(self, x: Any) -> Any:
        return self.head(self.second(self.first(x)))


class Half(nn.Module):
    """An encoder or a decoder, with the embedding of both."""

    def __init__(self, embedding: nn.Linear, *layers: nn.Module) -> None:
        super().__init__()
        self.embedding, self.layers = embedding, nn.ModuleList(layers)

    def forward(self, x: Any) -> Any:
        x = self.embedding(x)
        for layer in self.layers:
            x = layer(x)
        return x


class Halves(nn.Module):
    def __init__(self, *classes: Callable[[], nn.Module]) -> None:
        super().__init__()
        shared = nn.Linear(WIDTH, WIDTH)
        self.encoder, self.decoder = (Half(shared, make(), make()) for make in classes)

    def forward(self, x: Any) -> Any:
        return self.decoder(self.encoder(x))


class Tied(nn.Module):
    """Two blocks with the weights of one linear layer, beside two without."""

    def __init__(self, alone: bool) -> None:
        super().__init__()
        self.tied = nn.ModuleList([Mixer(), Mixer()])
        self.tied[1].up = self.tied[0].up
        self.free = nn.ModuleList([Block(), Block()] if not alone else [])

    def forward(self, x: Any) -> Any:
        for layer in (*self.tied, *self.free):
            x = layer(x)
        return x


def stages() -> nn.Module:
    """Stages of blocks in sequences; the last has one only."""
    return nn.Sequential(
        nn.Linear(WIDTH, WIDTH), nn.Sequential(Block(), Block()), nn.Sequential(Block(), nn.ReLU()), nn.Linear(WIDTH, 3)
    )


NETWORKS: dict[str, tuple[Callable[[], nn.Module], list[str]]] = {
    "a list": (lambda: Stack(*(Block() for _ in range(3))), ["layers.0", "layers.1", "layers.2"]),
    "two classes": (lambda: Stack(Block(), Mixer(), Block(), Mixer()), [f"layers.{i}" for i in range(4)]),
    "attributes": (Attributes, ["first", "second"]),
    "an encoder and a decoder of one class": (
        lambda: Halves(Block, Block),
        [f"{half}.layers.{i}" for half in ("encoder", "decoder") for i in range(2)],
    ),
    "an encoder and a decoder of two": (
        lambda: Halves(Block, Mixer),
        [f"{half}.layers.{i}" for half in ("encoder", "decoder") for i in range(2)],
    ),
    "stages": (stages, ["1.0", "1.1", "2.0"]),
    "lists in a list": (lambda: Stack(*(Stack2() for _ in range(2))), ["layers.0", "layers.1"]),
    "layers without modules": (lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3)), []),
    "one block": (lambda: Stack(Block()), []),
}


class Stack2(nn.Module):
    """A block of blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.ModuleList([Block(), Block()])

    def forward(self, x: Any) -> Any:
        return self.inner[1](self.inner[0](x))


@pytest.fixture(params=NETWORKS)
def network(request: pytest.FixtureRequest) -> tuple[Callable[[], nn.Module], list[str]]:
    return NETWORKS[request.param]


def test_modules_and_capture_have_the_same_blocks(network: tuple[Callable[[], nn.Module], list[str]]) -> None:
    make, paths = network
    assert list(blocks_by_path(make())) == paths
    seen = capture(make(), torch.randn(2, WIDTH), optimizer="sgd", loss=torch.sum)
    assert list(blocks(seen)) == paths
    assert [u.path for u in units_of(seen, None)] == [*paths, *([""] if paths != [n for n, _ in make().named_children()] else [])]
    assert set(paths) <= set(units(seen))


def test_levers_act_on_them(network: tuple[Callable[[], nn.Module], list[str]]) -> None:
    make, paths = network
    model, told = make(), []
    before = {n: m.forward for n, m in model.named_modules()}
    undo = recompute_blocks(model, lambda *_, **more: told.append(more))
    assert [n for n, m in model.named_modules() if m.forward != before[n]] == paths
    assert told[0]["applied"] is bool(paths) and told[0].get("n_blocks", 0) == len(paths)
    undo()
    assert [n for n, m in model.named_modules() if m.forward != before[n]] == []


def test_lines_shown_to_a_person_name_them(network: tuple[Callable[[], nn.Module], list[str]]) -> None:
    make, paths = network
    with watched() as watch:
        model = make()
        model(torch.randn(2, WIDTH))
    assert watch.sites.has_blocks is bool(paths)
    loop = [line[2:] for line in snippet([Change("checkpointing")], watch.sites) if line.startswith("+ for block in ")]
    if paths:
        found: list[nn.Module] = eval(loop[0].removeprefix("for block in ").removesuffix(":"), {"model": model})
        names = {id(m): n for n, m in model.named_modules()}
        assert [names[id(m)] for m in found] == paths


def test_a_block_with_weights_from_elsewhere_is_one_only_where_there_is_no_other() -> None:
    assert list(blocks_by_path(Tied(alone=False))) == ["free.0", "free.1"]
    alone = Tied(alone=True)
    assert list(blocks_by_path(alone)) == ["tied.0", "tied.1"]
    assert unshared_blocks(alone, repeated_blocks(alone)) == []


def test_a_chain_is_of_the_class_with_most_parameters() -> None:
    model = Halves(lambda: Block(2 * WIDTH), Mixer)
    assert {type(b) for b in repeated_blocks(model)} == {Block, Mixer}
    assert {type(b) for b in largest_kind(repeated_blocks(model))} == {Block}
    assert largest_kind([]) == []
