"""The proof can fail: for each lever that is called exact, a difference that is planted in the script under it is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuwise.train.hook.launch import Limits
from gpuwise.train.hook.zygote import Zygote
from gpuwise.train.levers.table import LEVERS
from gpuwise.train.tune.gate import Gate
from gpuwise.train.tune.parity import Verdict
from gpuwise.train.tune.trial import TrialJob

pytestmark = pytest.mark.thorough
SCRIPT = """
import gc, sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from gpuwise.train.levers.apply import ActiveLevers, INNER

torch.manual_seed(0)
PLANTED, DROPS = sys.argv[1], float(sys.argv[2])
on = any(set(o._levers) - set(INNER) for o in gc.get_objects() if isinstance(o, ActiveLevers))
rows = torch.randn(16, 6)
if on and PLANTED == "batches":
    rows[3] += 0.01
loader = DataLoader(TensorDataset(rows), 4, shuffle=True)
model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(DROPS), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for epoch in range(5):
    for (x,) in loader:
        optimizer.zero_grad(set_to_none=False)
        if on and PLANTED == "draws":
            torch.rand(1)
        loss = model(x).square().mean()
        (loss * (1.01 if on and PLANTED == "loss" else 1.0)).backward()
        optimizer.step()
"""
EXACT = [lever for lever in LEVERS if lever.training == "exact" and lever.name not in ("compile", "micro_batches", "threads")]
"""Of each the value that it has first; compile takes a compiler, the others have no value of their own."""
ON_LOADER = [lever.name for lever in EXACT if lever.group == "loader"]
ON_MODEL = [*(lever.name for lever in EXACT if lever.group != "loader"), "threads"]


def verdict(zygote: Zygote, folder: Path, name: str, planted: str, *, drops: float = 0.0) -> Verdict:
    (folder / "train.py").write_text(SCRIPT)
    job = TrialJob(str(folder / "train.py"), (planted, str(drops)), limits=Limits(wall_s=600))
    values = {lever.name: next(iter(lever.put_on.values), 1) for lever in LEVERS}
    return Gate(job, folder / "gate", zygote, epoch_steps=4).check({name: values[name]})


@pytest.mark.parametrize("name", ON_MODEL)
def test_another_loss_is_refused(name: str, zygote: Zygote, tmp_path: Path) -> None:
    found = verdict(zygote, tmp_path, name, "loss")
    assert not found.passed and "beyond" in found.words


@pytest.mark.parametrize("name", ON_MODEL)
def test_what_draws_other_random_numbers_is_not_called_exact(name: str, zygote: Zygote, tmp_path: Path) -> None:
    found = verdict(zygote, tmp_path, name, "draws", drops=0.5)
    assert found.changes == "order" and "other random numbers" in found.words


@pytest.mark.parametrize("name", ON_MODEL)
def test_what_draws_the_same_is_called_exact(name: str, zygote: Zygote, tmp_path: Path) -> None:
    found = verdict(zygote, tmp_path, name, "nothing")
    assert (found.passed, found.changes) == (True, "exact"), found.words


@pytest.mark.parametrize("name", ON_LOADER)
def test_other_batches_are_refused(name: str, zygote: Zygote, tmp_path: Path) -> None:
    found = verdict(zygote, tmp_path, name, "batches")
    assert not found.passed and "other values" in found.words
    assert verdict(zygote, tmp_path, name, "nothing").passed


TEXT = Path(__file__).parent / "traps.py"


def test_groups_of_like_length_are_exact_only_without_dropout(zygote: Zygote, tmp_path: Path) -> None:
    """Each group draws a dropout of its own."""
    for name, text in (("drops", TEXT.read_text()), ("keeps", TEXT.read_text().replace("nn.Dropout(0.2), ", ""))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.py").write_text(text)
        job = TrialJob(str(tmp_path / name / "train.py"), limits=Limits(wall_s=600))
        found = Gate(job, tmp_path / name / "gate", zygote, steps=4).check({"length_groups": 4})
        assert found.passed and found.changes == ("order" if name == "drops" else "exact"), found.words
