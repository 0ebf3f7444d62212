"""Recomputing left out or added, and batches in parts: the same numbers, other memory."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils import checkpoint as torch_checkpoint
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from gpuwise.train.hook.watch import Watch
from gpuwise.train.levers.apply import OBSERVE, apply_levers

CALL = nn.Module.__call__


@pytest.fixture
def pull() -> Iterator[Callable[..., list[dict[str, Any]]]]:
    """``pull(lever=value)`` puts levers on until the test ends, and then nothing of them is left."""
    applied: list[Any] = []

    def pulling(**levers: object) -> list[dict[str, Any]]:
        told: list[dict[str, Any]] = []
        one = apply_levers(levers, tell=lambda kind, /, **values: told.append({"event": kind, **values}))
        watch = Watch(before_optimizer=one.before_optimizer, on_tick=one.on_tick)
        watch.open()
        applied.append((one, watch))
        return told

    yield pulling
    for one, watch in reversed(applied):
        watch.close()
        one.close()
    assert torch_checkpoint.checkpoint is globals()["checkpoint"] is CHECKPOINT
    assert nn.Module.__call__ is CALL


CHECKPOINT = checkpoint


class Block(nn.Module):
    def __init__(self, norm: bool = False, drop: float = 0.0) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32) if norm else nn.Identity(), nn.GELU(), nn.Linear(32, 8))
        self.drop = nn.Dropout(drop)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x + self.drop(self.inner(x))


class Net(nn.Module):
    def __init__(self, *, own: bool = False, norm: bool = False, drop: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.own, self.blocks = own, nn.ModuleList(Block(norm, drop) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.own else block(x)
        return x


def gradients(model: nn.Module, steps: int = 1) -> dict[str, torch.Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for k in range(steps):
        optimizer.zero_grad()
        torch.manual_seed(k + 1)
        model(torch.randn(12, 8)).square().mean().backward()
        optimizer.step()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(b[name], a[name], rtol=1e-5, atol=1e-7)


def test_the_scripts_own_recomputing_is_left_out(pull: Callable[..., Any]) -> None:
    model = Net(own=True, drop=0.3)
    expected = gradients(copy.deepcopy(model))
    told = pull(checkpointing="off")
    found = gradients(model)
    same(expected, found)
    assert [b.calls for b in model.blocks] == [1, 1, 1]
    assert {"event": "lever", "name": "checkpointing", "applied": True} in told


def test_a_sequence_and_its_options(pull: Callable[..., Any]) -> None:
    pull(checkpointing="off")
    blocks = [Block(), Block(), Block(), Block()]
    x = torch.randn(4, 8, requires_grad=True)
    checkpoint_sequential(blocks, 2, x, use_reentrant=False).sum().backward()
    # names that modules took before are replaced too
    checkpoint(blocks[0], x, use_reentrant=True, preserve_rng_state=False).sum().backward()
    assert [b.calls for b in blocks] == [2, 1, 1, 1]


def test_calls_are_counted(pull: Callable[..., Any]) -> None:
    told = pull(**{OBSERVE: True})
    gradients(Net(own=True), steps=3)
    counts = [e for e in told if e["event"] == "checkpoints"]
    assert [(e["calls"], e["ticks"]) for e in counts] == [(3, 1), (9, 3)]


@pytest.mark.parametrize("norm", [False, True], ids=["plain", "batch normalisation"])
def test_blocks_recompute_with_the_same_random_numbers(pull: Callable[..., Any], norm: bool) -> None:
    model = Net(norm=norm, drop=0.3)
    twin = copy.deepcopy(model)
    expected = gradients(twin, steps=2)
    told = pull(checkpointing="blocks")
    found = gradients(model, steps=2)
    same(expected, found)
    assert [b.calls for b in model.blocks] == [4, 4, 4] and [b.calls for b in twin.blocks] == [2, 2, 2]
    assert told[0]["applied"] and told[0]["n_blocks"] == 3
    for (name, a), (_, b) in zip(twin.named_buffers(), model.named_buffers(), strict=True):
        # running statistics saw each batch once
        torch.testing.assert_close(b, a, msg=name)


def test_blocks_hold_less(pull: Callable[..., Any]) -> None:
    def held(model: nn.Module) -> int:
        sizes: dict[int, int] = {}

        def pack(t: torch.Tensor) -> torch.Tensor:
            sizes[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
            return t

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            out = model(torch.randn(512, 8))
        del out
        return sum(sizes.values())

    model = Net()
    before = held(copy.deepcopy(model))
    pull(checkpointing="blocks")
    # a checkpoint's own hooks take what is saved in it, and keep none of it
    assert held(model) < before / 4


def test_a_model_without_repeated_blocks(pull: Callable[..., Any]) -> None:
    told = pull(checkpointing="blocks")
    nn.Sequential(nn.Linear(2, 2))(torch.ones(1, 2))
    assert told == [{"event": "lever", "name": "checkpointing", "applied": False, "why": "the model has no repeated blocks"}]


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["gpt2", "t5"])
def test_what_is_kept_for_the_next_token_is_left_out(kind: str, pull: Callable[..., Any]) -> None:
    """Transformers keeps keys and values in training too: a layer that runs again would find those of its first run before its
    own, which a mask of the padding does not fit."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    if kind == "gpt2":
        model = transformers.GPT2LMHeadModel(
            transformers.GPT2Config(
                vocab_size=16, n_embd=8, n_layer=2, n_head=2, n_positions=8, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0
            )
        )
    else:
        model = transformers.T5ForConditionalGeneration(
            transformers.T5Config(
                vocab_size=16, d_model=8, d_kv=4, d_ff=16, num_layers=2, num_heads=2, dropout_rate=0.0, decoder_start_token_id=0
            )
        )
    model.train()
    ids = torch.randint(1, 16, (2, 6))
    mask = torch.tensor([[1] * 6, [1] * 4 + [0] * 2])

    def gradients_of(one: nn.Module) -> dict[str, torch.Tensor]:
        one(input_ids=ids, attention_mask=mask, labels=ids).loss.backward()
        return {name: p.grad for name, p in one.named_parameters() if p.grad is not None}

    expected = gradients_of(copy.deepcopy(model))
    told = pull(checkpointing="blocks")
    same(expected, gradients_of(model))
    assert told[0]["n_blocks"] == {"gpt2": 2, "t5": 4}[kind]


# -- batches in parts


class Output(NamedTuple):
    loss: torch.Tensor | None
    logits: torch.Tensor


class Language(nn.Module):
    """Gives logits, or its own loss: a mean over labels that are not -100."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 11))
        self.most_rows = 0

    def forward(self, ids: torch.Tensor, labels: torch.Tensor | None = None) -> Output:
        self.most_rows = max(self.most_rows, len(ids))
        logits = self.net(ids)
        loss = None if labels is None else F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
        return Output(loss, logits)


def uneven() -> tuple[torch.Tensor, torch.Tensor]:
    """Rows with 1 to 40 labels each."""
    draw = torch.Generator().manual_seed(3)
    ids = torch.randint(0, 11, (10, 40), generator=draw)
    labels = torch.randint(0, 11, (10, 40), generator=draw)
    for row, n in enumerate((1, 2, 1, 40, 33, 2, 40, 1, 3, 7)):
        labels[row, n:] = -100
    return ids, labels


def loss_of(model: nn.Module, own: bool) -> torch.Tensor:
    ids, labels = uneven()
    if own:
        return model(ids, labels=labels).loss
    return F.cross_entropy(model(ids).logits.flatten(0, 1), labels.flatten(), ignore_index=-100)


@pytest.mark.parametrize("own", [False, True], ids=["the loop's loss", "the model's loss"])
@pytest.mark.parametrize("parts", [2, 3, 64])
def test_trap_6_parts_with_unequal_labels_have_the_whole_batchs_gradient(pull: Callable[..., Any], own: bool, parts: int) -> None:
    model = Language()
    whole = copy.deepcopy(model)
    expected = loss_of(whole, own)
    expected.backward()
    averaged = copy.deepcopy(model)
    averaged.zero_grad()
    ids, labels = uneven()
    chunk = -(-10 // min(parts, 10))
    pieces = list(zip(ids.split(chunk), labels.split(chunk), strict=True))
    torch.stack([averaged(i, labels=t).loss for i, t in pieces]).mean().backward()
    told = pull(micro_batches=parts)
    loss = loss_of(model, own)
    loss.backward()
    torch.testing.assert_close(loss, expected)
    for part, full, mean in zip(model.parameters(), whole.parameters(), averaged.parameters(), strict=True):
        assert mean.grad is not None and full.grad is not None
        torch.testing.assert_close(part.grad, full.grad, rtol=1e-4, atol=1e-7)
        assert float((mean.grad - full.grad).norm() / full.grad.norm()) > 0.05  # what a mean of means would be
    assert model.most_rows == chunk < whole.most_rows == 10
    assert told[0]["applied"] is True


def test_evaluation_is_not_split(pull: Callable[..., Any]) -> None:
    pull(micro_batches=5)
    model = Language()
    with torch.no_grad():
        model(uneven()[0])
    assert model.most_rows == 10


def test_a_loss_that_is_a_sum_over_the_whole_batch(pull: Callable[..., Any]) -> None:
    """transformers' trainer tells its models how many labels the batch has."""

    class Summed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = Language().net

        def forward(self, ids: torch.Tensor, labels: torch.Tensor, num_items_in_batch: int) -> torch.Tensor:
            logits = self.net(ids)
            return (
                F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum") / num_items_in_batch
            )

    ids, labels = uneven()
    n, model = int((labels != -100).sum()), Summed()
    expected = copy.deepcopy(model)(ids, labels=labels, num_items_in_batch=n)
    pull(micro_batches=4)
    torch.testing.assert_close(model(ids, labels=labels, num_items_in_batch=n), expected)


def test_models_whose_rows_depend_on_each_other_are_refused(pull: Callable[..., Any]) -> None:
    told = pull(micro_batches=2)
    Net(norm=True)(torch.randn(4, 8))
    assert told[0]["applied"] is False
    assert told[0]["why"] == "BatchNorm1d makes a row's result depend on the other rows of the batch"


def test_a_loss_without_labels_cannot_be_weighted(pull: Callable[..., Any]) -> None:
    class Own(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x).square().mean()

    pull(micro_batches=2)
    model = Own()
    with pytest.raises(ValueError, match="no labels to weight its parts by"):
        model(torch.randn(4, 8))


def test_parts_hold_one_parts_activations(pull: Callable[..., Any]) -> None:
    """Between forward and backward nothing inside is held; in the backward pass one part is."""
    model = Language()
    held: list[int] = []
    most: list[int] = []

    def pack(t: torch.Tensor) -> torch.Tensor:
        held.append(t.numel() if t.is_floating_point() else 0)
        return t

    pull(micro_batches=5)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        out = model(uneven()[0]).logits
    assert sum(held) == 0
    hook = model.net[1].register_forward_hook(lambda m, i, o: most.append(len(o)))
    out.sum().backward()
    hook.remove()
    assert most == [2] * 5
