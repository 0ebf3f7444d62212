"""Scripts that give nothing to profile get a clear word; what a script does is left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuwise.train.hook.zygote import Zygote
from gpuwise.train.profile.session import Request, ScriptError, Session, profile_script

LOOP = """
import sys, torch
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range({steps}):
    model(torch.randn(16, 64)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
{end}
"""


def _run(text: str, zygote: Zygote, folder: Path, **more: object) -> Session:
    (folder / "train.py").write_text(text)
    request = Request(str(folder / "train.py"), steps=6, **more)  # type: ignore[arg-type]
    return profile_script(request, folder, zygote=zygote, output=folder / "output")


@pytest.mark.parametrize(
    ("text", "said", "hint", "code"),
    [
        ("import torch\nprint('hello')\n", "without a single training step", "inference", 1),
        ("raise ValueError('no such dataset')\n", "train.py:1: ValueError: no such dataset", "fix it", 1),
        ("import torch\nname = input('which model? ')\n", "reads standard input", "after --", 1),
        (LOOP.format(steps=1, end=""), "after its first step", "10 steps", 1),
        ("import sys\nsys.exit(7)\n", "before its second step", "its own words", 7),
        (
            "import multiprocessing\ndef worker():\n    pass\n"
            "p = multiprocessing.get_context('fork').Process(target=worker)\np.start()\np.join()\n",
            "processes that it starts itself \\(worker\\)",
            "gpuwise.profile",
            1,
        ),
        ("def broken(:\n", "not Python", "python would", 2),
    ],
)
def test_what_cannot_be_profiled_says_why(text: str, said: str, hint: str, code: int, zygote: Zygote, tmp_path: Path) -> None:
    with pytest.raises(ScriptError, match=said) as caught:
        _run(text, zygote, tmp_path)
    assert hint in (caught.value.hint or "")
    assert caught.value.code == code


def test_a_short_script_is_profiled_without_a_trace(zygote: Zygote, tmp_path: Path) -> None:
    session = _run(LOOP.format(steps=5, end="sys.exit(3)"), zygote, tmp_path)
    assert (session.code, session.trace) == (3, None)
    assert any("no trace" in note for note in session.profile.notes)
    assert sum(session.profile.split.parts.values()) == pytest.approx(session.profile.split.wall_s)


def test_the_whole_script_runs_where_asked(zygote: Zygote, tmp_path: Path) -> None:
    session = _run(LOOP.format(steps=60, end="print('the end', step)\nsys.exit(4)"), zygote, tmp_path, whole=True)
    assert (session.code, session.outcome.ended) == (4, "exit")
    assert "the end 59" in (tmp_path / "output").read_text()
    assert session.profile.data.trace is not None


def test_a_crash_after_enough_was_seen_still_tells(zygote: Zygote, tmp_path: Path) -> None:
    session = _run(LOOP.format(steps=40, end="raise RuntimeError('late')"), zygote, tmp_path, whole=True)
    assert session.code == 1
    assert any("late" in note for note in session.profile.notes)
    assert session.profile.split.wall_s > 0
