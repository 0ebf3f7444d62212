from __future__ import annotations

from pathlib import Path

import pytest

from gpuwise.workload.changes.diff import diff_of

SCRIPT = '''\
"""Héllo."""
import torch
from torch.utils.data import DataLoader

loader = DataLoader(data, batch_size=4, num_workers=0)  # données
other = DataLoader(
    data,
    shuffle=True,
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
'''


def test_arguments_are_replaced_and_added(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT, encoding="utf-8")
    patch = diff_of(script, {"workers": 4, "fused_optimizer": True, "tf32": True, "length_groups": 4})
    assert set(patch.covers) == {"workers", "fused_optimizer", "tf32"}
    added = [line[1:] for line in patch.text.splitlines() if line.startswith("+") and not line.startswith("+++")]
    assert added == [
        'torch.set_float32_matmul_precision("high")',
        "loader = DataLoader(data, batch_size=4, num_workers=4, persistent_workers=True)  # données",
        "    shuffle=True, num_workers=4, persistent_workers=True",
        "optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)",
    ]


def test_calls_that_cannot_be_seen_through_are_left_alone(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch\nloader = DataLoader(data, **options)\nopt = torch.optim.Adam(*given)\n")
    patch = diff_of(script, {"workers": 4, "fused_optimizer": True})
    assert (patch.text, patch.covers) == ("", ())


def test_nothing_to_change(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("x = 1\n")
    assert diff_of(script, {"compile": "regional", "threads": 2}).text == ""


LOOP = """\
import torch


def main() -> None:
    model = Net()
    optimizer = torch.optim.SGD(
        model.parameters(), lr=0.1
    )
    for x in data:
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
"""


def test_the_model_is_changed_behind_the_optimizer_that_takes_it(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(LOOP)
    patch = diff_of(script, {"compile": "whole", "channels_last": True, "set_to_none": True, "compile_other": "x"})
    assert set(patch.covers) == {"compile", "channels_last", "set_to_none"}
    changes = [line for line in patch.text.splitlines() if line[0] in "+-" and line[:3] not in ("+++", "---")]
    assert changes == [
        "+    model.compile()",
        "+    model.to(memory_format=torch.channels_last)",
        "-        optimizer.zero_grad(set_to_none=False)",
        "+        optimizer.zero_grad(set_to_none=True)",
    ]


@pytest.mark.parametrize(
    "loop",
    [
        LOOP.replace("model.parameters(), lr=0.1", "[*model.parameters()], lr=0.1"),
        LOOP.replace("model.parameters()", "self.model.parameters()"),
        LOOP.replace("    for x", "    second = torch.optim.SGD(other.parameters(), lr=0.1)\n    for x"),
        LOOP.replace("lr=0.1\n    )", "lr=0.1\n    ); rest = 2"),
        LOOP.replace("optimizer = torch", "a = 1; optimizer = torch"),
    ],
)
def test_a_model_that_is_not_named_by_one_line_is_left_alone(tmp_path: Path, loop: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(loop)
    assert diff_of(script, {"compile": "whole"}).text == ""
