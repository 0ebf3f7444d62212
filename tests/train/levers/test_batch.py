"""The batch of a loader changed, and its longest samples first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, SequentialSampler, TensorDataset

from gpuwise.train.levers.apply import LONGEST, apply_levers
from gpuwise.train.levers.batch import item_length

INIT, SAMPLER = DataLoader.__init__, vars(DataLoader)["_index_sampler"]


@pytest.fixture
def pull() -> Iterator[Callable[..., list[dict[str, Any]]]]:
    """``pull(lever=value)`` puts levers on until the test ends, and then nothing of them is left."""
    applied: list[Any] = []

    def pulling(**levers: object) -> list[dict[str, Any]]:
        told: list[dict[str, Any]] = []
        applied.append(apply_levers(levers, tell=lambda kind, /, **values: told.append({"event": kind, **values})))
        return told

    yield pulling
    for one in reversed(applied):
        one.close()
    assert DataLoader.__init__ is INIT and vars(DataLoader)["_index_sampler"] is SAMPLER


class Rows(Dataset):
    """Row k has LENGTHS[k] ids; making one draws a random number."""

    LENGTHS = (3, 9, 1, 7, 9, 2, 4, 8, 5, 6)

    def __len__(self) -> int:
        return len(self.LENGTHS)

    def __getitem__(self, index: int) -> dict[str, object]:
        torch.rand(1)
        return {"ids": [index] * self.LENGTHS[index], "label": 1}


def firsts(loader: Any) -> list[list[int]]:
    return [[row["ids"][0] for row in batch] for batch in loader]


def rows_loader(**more: Any) -> Any:
    return DataLoader(Rows(), collate_fn=lambda rows: rows, **more)


def test_the_first_loader_and_others_over_its_dataset(pull: Callable[..., Any]) -> None:
    told = pull(batch=4)
    data, other = TensorDataset(torch.arange(10.0)), TensorDataset(torch.arange(9.0))
    assert [len(b[0]) for b in DataLoader(data, 2)] == [4, 4, 2]
    assert DataLoader(data, batch_size=3, shuffle=True).batch_size == 4
    assert DataLoader(other, batch_size=2).batch_size == 2
    # made anew, as in every epoch
    assert DataLoader(TensorDataset(torch.arange(10.0)), batch_size=3).batch_size == 4
    assert [e["applied"] for e in told] == [True, True, True]


def test_with_other_arguments_and_a_sampler_of_batches(pull: Callable[..., Any]) -> None:
    pull(batch=4, workers=1)
    data = TensorDataset(torch.arange(10.0))
    loader = DataLoader(data, batch_sampler=BatchSampler(SequentialSampler(data), 2, drop_last=True))
    assert loader.num_workers == 1 and [len(b[0]) for b in loader] == [4, 4]


def test_batches_that_are_not_the_loaders(pull: Callable[..., Any]) -> None:
    told = pull(batch=4)
    data = TensorDataset(torch.arange(8.0).reshape(4, 2))
    assert [b[0].shape[0] for b in DataLoader(data, batch_size=None)] == [2, 2, 2, 2]

    class Buckets(BatchSampler):
        pass

    assert len(next(iter(DataLoader(data, batch_sampler=Buckets(SequentialSampler(data), 2, False))))[0]) == 2
    assert [e["why"] for e in told] == ["the dataset makes its own batches", "Buckets makes its own batches"]


def test_the_longest_come_first_and_only_once(pull: Callable[..., Any]) -> None:
    plain = firsts(rows_loader(batch_size=3))
    told = pull(batch=3, **{LONGEST: 2})
    loader = rows_loader(batch_size=5)
    torch.manual_seed(3)
    first = firsts(loader)
    # 1 and 4 have 9 ids, 7 has 8
    assert first[:2] == [[1, 4, 7], [1, 4, 7]] and first[2:] == plain
    assert len(loader) == len(plain) and firsts(loader) == plain
    found = next(e for e in told if e["event"] == "longest")
    assert (found["n_items"], found["looked_at"], found["varies"], found["length"]) == (10, 10, True, 10)


def test_random_numbers_are_not_moved_by_looking(pull: Callable[..., Any]) -> None:
    def drawn() -> float:
        torch.manual_seed(3)
        next(iter(rows_loader(batch_size=1)))
        return float(torch.rand(1))

    plain = drawn()
    pull(**{LONGEST: 1})
    assert drawn() == plain


def test_more_than_the_data_has_and_data_that_cannot_be_looked_at(pull: Callable[..., Any]) -> None:
    class Stream(IterableDataset):
        def __iter__(self) -> Iterator[int]:
            yield from range(4)

    class Keyed(Dataset):
        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: Any) -> int:
            return {"a": 1, "b": 2}[index]

    told = pull(**{LONGEST: 1})
    keyed = DataLoader(Keyed(), batch_sampler=[["a", "b"]])
    assert [b.tolist() for b in keyed] == [[1, 2]]
    assert [b.tolist() for b in DataLoader(Stream(), batch_size=4)] == [[0, 1, 2, 3]]
    assert not any(e.get("looked_at") for e in told)


@pytest.mark.parametrize(
    ("item", "length"),
    [
        (torch.zeros(3, 4), 12),
        ((torch.zeros(5), 3), 6),
        ({"ids": [1, 2, 3], "mask": [1, 1, 1]}, 6),
        ("four", 4),
        ([], 0),
        (7, 1),
    ],
)
def test_how_long_an_item_is(item: object, length: int) -> None:
    assert item_length(item) == length
