from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.nn import functional as F

from gpuwise.train.levers.groups import LengthGroups, joined, split_rows
from gpuwise.train.levers.padding import row_lengths, trimmed
from gpuwise.train.levers.real_columns import COUNTED, NO_WORD, RealColumns
from gpuwise.train.levers.trim import Trim
from gpuwise.workload.capture.device.patching import Patches

IGNORED = -100


@pytest.fixture
def known() -> Iterator[RealColumns]:
    """What is known of padding, after a first batch has gone whole."""
    patches = Patches()
    columns = RealColumns(patches)
    columns.is_tried = True
    yield columns
    patches.undo()


def rows(*lengths: int, columns: int = 32, padding: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    ids, labels = torch.full((len(lengths), columns), padding), torch.full((len(lengths), columns), IGNORED)
    for at, n in enumerate(lengths):
        ids[at, :n] = torch.randint(1, 20, (n,))
        labels[at, :n] = torch.randint(1, 20, (n,))
    return ids, labels


def test_lengths_are_the_longest_that_any_tensor_tells() -> None:
    ids, labels = rows(3, 10, 7)
    assert row_lengths((ids, labels)).tolist() == [3, 10, 7]  # type: ignore[union-attr]
    labels[0, 5] = 4
    assert row_lengths({"ids": ids, "labels": labels}).tolist() == [6, 10, 7]  # type: ignore[union-attr]


def test_positions_say_nothing_of_lengths_and_full_rows_stay_full() -> None:
    ids, labels = rows(3, 10, 32)
    places = torch.arange(32).expand(3, 32)
    assert row_lengths((ids, places, labels)).tolist() == [3, 10, 32]  # type: ignore[union-attr]


def test_images_have_no_lengths() -> None:
    assert row_lengths((torch.rand(4, 3, 8, 8), torch.arange(4))) is None


def test_trimming_cuts_every_tensor_of_the_shape_and_keeps_types() -> None:
    pair = namedtuple("pair", "ids mask")
    ids, _ = rows(3, 10, 7)
    cut = trimmed(pair(ids, torch.ones(3, 1, 32, 32)), torch.tensor([3, 10, 7]))
    assert type(cut) is pair and cut.ids.shape == (3, 16) and cut.mask.shape == (3, 1, 16, 16)
    assert cut.ids.is_contiguous() and torch.equal(cut.ids, ids[:, :16])


def test_a_batch_that_is_full_is_the_same_object(known: RealColumns) -> None:
    told: list[Any] = []
    trim = Trim(known, lambda *a, **k: told.append(k))
    batch = rows(32, 3)
    assert trim(batch) is batch and told == []
    assert trim(rows(9, 3))[0].shape == (2, 16)
    assert told == [{"name": "trim_padding", "applied": True, "why": None}]


def test_nothing_is_cut_that_nothing_calls_padding(known: RealColumns) -> None:
    told: list[Any] = []
    trim = Trim(known, lambda *a, **k: told.append(k))
    ids, _ = rows(9, 3)
    assert trim(ids) is ids
    assert told == [{"name": "trim_padding", "applied": False, "why": NO_WORD}]
    known.learn(nn.Embedding(20, 4, padding_idx=0))
    assert trim(ids).shape == (2, 16)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        # a mask says it alone, whatever the ids are behind it
        (lambda ids, labels: {"input_ids": torch.ones_like(ids), "attention_mask": ids != 0}, [3, 10]),
        # padding on the left: the last columns are real
        (lambda ids, labels: {"input_ids": ids.flip(1), "attention_mask": (ids != 0).flip(1).long()}, [32, 32]),
        # a label behind the end of a row counts
        (lambda ids, labels: {"ids": ids, "mask": ids != 0, "labels": labels.index_fill(1, torch.tensor([19]), 7)}, [20, 20]),
        # every label counts: nothing is padding
        (lambda ids, labels: {"ids": ids, "labels": torch.ones_like(ids)}, [32, 32]),
        (lambda ids, labels: {"ids": ids, "token_type_ids": torch.zeros_like(ids)}, None),
    ],
)
def test_what_says_that_columns_are_padding(known: RealColumns, fields: Any, expected: Any) -> None:
    lengths = known.of_batch(fields(*rows(3, 10)))
    assert (lengths if lengths is None else lengths.tolist()) == expected


def test_the_label_left_out_is_the_losses_own(known: RealColumns) -> None:
    ids, _ = rows(3, 10)
    labels = torch.where(ids == 0, 5, ids)
    assert known.of_rows([("ids", ids), ("labels", labels)], ids).tolist() == [32, 32]  # type: ignore[union-attr]
    known.expect(torch.tensor([3, 10]), 32)
    F.cross_entropy(torch.randn(64, 20), labels.flatten(), ignore_index=5)
    assert known.ignored == 5 and not known.counts_cut
    assert known.of_rows([("ids", ids), ("labels", labels)], ids).tolist() == [3, 10]  # type: ignore[union-attr]
    F.cross_entropy(torch.randn(64, 20), labels.flatten())
    assert known.counts_cut, "this loss counts every label"


@pytest.mark.parametrize("most", [1, 2, 4])
def test_groups_hold_every_row_once_and_no_more_columns_than_one_group(most: int) -> None:
    rng = np.random.default_rng(0)
    for n in (1, 2, 5, 33):
        lengths = rng.integers(1, 513, n)
        groups = split_rows(lengths, most, 512)
        assert sorted(np.concatenate(groups).tolist()) == list(range(n))
        assert len(groups) <= most
        assert sum(len(g) * lengths[g].max() for g in groups) <= n * lengths.max()


def test_the_split_is_the_best_there_is() -> None:
    """Against all ways to cut the sorted rows in two."""
    lengths = np.array([8, 16, 16, 24, 200, 208, 504])
    groups = split_rows(lengths, 2, 512)
    best = min(k * lengths[k - 1] + (7 - k) * 504 for k in range(1, 7))
    assert sum(len(g) * int(lengths[g].max()) for g in groups) == best


class Tiny(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.mix, self.head = nn.Embedding(20, 8), nn.GRU(8, 8, batch_first=True), nn.Linear(8, 20)

    def forward(self, ids: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        logits = self.head(self.mix(self.embedding(ids))[0])
        if labels is None:
            return logits
        return {"loss": F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED), "logits": logits}


def gradients(model: nn.Module, loss: torch.Tensor) -> list[torch.Tensor]:
    return [g.clone() for g in torch.autograd.grad(loss, list(model.parameters()))]


def grouped(known: RealColumns, model: nn.Module, *batches: Any) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = []
    for batch in batches:
        known.see(batch)
    LengthGroups(4, known, lambda kind, **values: told.append(values))(model)
    return told


def test_the_gradient_is_that_of_the_whole_batch(known: RealColumns) -> None:
    torch.manual_seed(0)
    model, (ids, labels) = Tiny(), rows(3, 300, 31, 120, 4, 9, columns=320)
    whole = F.cross_entropy(model(ids).flatten(0, 1), labels.flatten(), ignore_index=IGNORED)
    expected = gradients(model, whole)
    # the loader is two batches ahead
    told = grouped(known, model, (ids, labels), rows(2, 3, 4, 2, 3, 4, columns=320), rows(9, 9, columns=40))
    logits = model(ids)
    assert logits.shape == (6, 320, 20) and not logits[0, 100].any()
    loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)
    assert told[0]["applied"] is True
    torch.testing.assert_close(loss, whole)
    for got, wanted in zip(gradients(model, loss), expected, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-6)


def test_a_loss_inside_the_model_is_weighted_by_its_labels_not_averaged(known: RealColumns) -> None:
    """Groups with unequal numbers of labels: the mean of their means is another gradient (cosine 0.5 where it was reported)."""
    torch.manual_seed(0)
    model, (ids, labels) = Tiny(), rows(3, 300, 31, 120, 4, 9, columns=320)
    whole = model(ids, labels=labels)["loss"]
    expected = gradients(model, whole)
    grouped(known, model, rows(2, 3, 4, 2, 3, 4, columns=320))
    loss = model(ids, labels=labels)["loss"]
    torch.testing.assert_close(loss, whole)
    for got, wanted in zip(gradients(model, loss), expected, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-6)
    # what it would be otherwise
    parts = [model.forward(ids[k : k + 1], labels[k : k + 1])["loss"] for k in range(6)]
    assert abs(torch.stack(parts).mean() - whole) > 1e-3


def test_rows_that_depend_on_each_other_are_left_together(known: RealColumns) -> None:
    model = nn.Sequential(nn.Embedding(20, 8), nn.BatchNorm1d(32))
    assert "BatchNorm1d" in grouped(known, model, rows(3, 9))[0]["why"]


def test_evaluation_is_left_alone(known: RealColumns) -> None:
    model, (ids, labels) = Tiny().eval(), rows(3, 300, columns=320)
    assert grouped(known, model, (ids, labels)) == []
    model(ids)


def test_a_single_number_without_labels_cannot_be_put_together() -> None:
    with pytest.raises(ValueError, match="no labels"):
        joined([torch.tensor(1.0), torch.tensor(2.0)], [(1, 8), (1, 16)], None, torch.tensor([0, 1]), 16)


def test_a_loss_that_counts_padding_keeps_the_batch_whole() -> None:
    patches, told = Patches(), list[Any]()
    known = RealColumns(patches)
    model, (ids, _) = Tiny(), rows(3, 300, columns=320)
    known.learn(nn.Embedding(20, 4, padding_idx=0))
    LengthGroups(4, known, lambda kind, **values: told.append(values))(model)
    try:
        for _ in range(2):
            logits = model(ids)
            assert logits[0, 100].any(), "whole"
            F.cross_entropy(logits.flatten(0, 1), ids.flatten())
    finally:
        patches.undo()
    assert told == [{"name": "length_groups", "applied": False, "why": COUNTED}]
