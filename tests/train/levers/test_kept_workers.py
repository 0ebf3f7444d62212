"""Workers that stay from epoch to epoch, which the script's own do not: the same rows and the same random stream all the same."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch.utils.data import DataLoader, Dataset

from gpuwise.train.levers.loaders import change_arguments
from gpuwise.workload.capture.device.patching import Patches


class Epochs(Dataset[Any]):
    """Rows that follow ``epoch``."""

    epoch = 0

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> tuple[int, int]:
        return index, self.epoch


def three_epochs(*, workers: int, own_epoch: bool, generator: bool) -> list[Any]:
    """Rows of three shuffled epochs, with the state of torch's generator after each."""
    torch.manual_seed(0)
    data, found = Epochs(), []
    seeded = torch.Generator().manual_seed(1) if generator else None
    loader = DataLoader(data, batch_size=4, shuffle=True, num_workers=workers, generator=seeded)
    for epoch in range(3):
        if own_epoch:
            data.epoch = epoch
        rows = [[t.tolist() for t in batch] for batch in loader]
        found.append((rows, torch.get_rng_state().tolist(), None if seeded is None else seeded.get_state().tolist()))
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("own", [0, 2])
@pytest.mark.parametrize("generator", [False, True])
@pytest.mark.parametrize("own_epoch", [False, True])
def test_three_epochs_are_those_of_the_script(own: int, own_epoch: bool, generator: bool) -> None:
    plain = three_epochs(workers=own, own_epoch=own_epoch, generator=generator)
    patches = Patches()
    change_arguments(patches, {"workers": 2} if own == 0 else {}, lambda *_, **__: None, keep_workers=True)
    try:
        assert three_epochs(workers=own, own_epoch=own_epoch, generator=generator) == plain
    finally:
        patches.undo()
