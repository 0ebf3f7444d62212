"""Files that a script writes while it is captured are not there afterwards, and its own while it runs."""

from __future__ import annotations

import os
import runpy
import shutil
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

import pytest

from gpuwise.workload.capture.target import find_target
from gpuwise.workload.capture.written import written_aside

SCRIPT = """
import io, os, pickle, sys
from pathlib import Path
import numpy as np
import torch
from torch import nn

device = sys.argv[1]
root = Path("processed")
if not root.exists():
    print("makes the cache")
    root.mkdir()
    data = torch.randn(4096, 64)
    torch.save(data, root / "data.pt")
    with open(root / "data.pkl", "wb") as file:
        pickle.dump(data.numpy(), file)
    np.save(root / "data.npy", data.numpy())
    memory = io.BytesIO()
    torch.save(data.to(device), memory)
    (root / "device.pt").write_bytes(memory.getvalue())
assert sorted(os.listdir(root)) == ["data.npy", "data.pkl", "data.pt", "device.pt"] and len(list(root.glob("*.pt"))) == 2
data = torch.load(root / "data.pt")
assert torch.equal(data, torch.from_numpy(np.load(root / "data.npy")))
assert torch.equal(data, torch.from_numpy(pickle.loads((root / "data.pkl").read_bytes())))
with open("log.txt", "a") as log:
    print("a line", file=log)
assert Path("log.txt").read_text().startswith("of a real run")
model = nn.Linear(64, 1).to(device)
optimizer = torch.optim.Adam(model.parameters())
for i in range(4):
    loss = model(data[:32].to(device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    torch.save(model.state_dict(), "new.pt")
    os.replace("new.pt", "model.pt")
"""


def tree(folder: Path) -> dict[str, bytes | None]:
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in folder.rglob("*")}


def test_a_cache_is_not_there_after_a_capture_and_a_run_makes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "log.txt").write_text("of a real run\n")
    (tmp_path / "model.pt").write_bytes(b"of a real run")
    before = tree(tmp_path)
    for _ in range(2):
        capture = find_target("train.py", whole=True, arguments=("cuda",)).capture()
        assert len(capture.steps) == 2 and tree(tmp_path) == before
        assert "makes the cache" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["train.py", "cpu"])
    runpy.run_path("train.py", run_name="__main__")
    assert "makes the cache" in capsys.readouterr().out and (tmp_path / "log.txt").read_text() == "of a real run\na line\n"
    made = tree(tmp_path)
    assert len(find_target("train.py", whole=True, arguments=("cuda",)).capture().steps) == 2
    assert "makes the cache" not in capsys.readouterr().err and tree(tmp_path) == made


def test_what_a_program_does_with_files_it_finds_and_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old").mkdir()
    for name in ("a.txt", "old/b.txt", "old/c.txt"):
        (tmp_path / name).write_text(name)
    before = tree(tmp_path)
    times = (tmp_path / "a.txt").stat().st_mtime_ns
    with written_aside():
        Path("a.txt").touch()
        Path("a.txt").chmod(0o600)
        os.truncate("a.txt", 1)
        assert Path("a.txt").read_text() == "a"
        with Path("a.txt").open("r+") as file:
            file.write("xyz")
        Path("a.txt").rename("d.txt")
        assert not Path("a.txt").exists() and not os.access("a.txt", os.R_OK) and Path("d.txt").read_text() == "xyz"
        with pytest.raises(FileNotFoundError, match=r"a\.txt"):
            os.truncate("a.txt", 0)
        with pytest.raises(FileNotFoundError, match="nowhere"):
            Path("nowhere/file").write_text("")
        with pytest.raises(FileExistsError):
            Path("old/b.txt").touch(exist_ok=False)
        shutil.move("old/b.txt", "b.txt")
        assert sorted(e.name for e in os.scandir(".")) == ["b.txt", "d.txt", "old"] and [
            p.name for p in Path("old").iterdir()
        ] == ["c.txt"]
        shutil.rmtree("old")
        assert not Path("old").exists()
        Path("old").mkdir()
        assert not [*Path("old").iterdir()]
        Path("old/c.txt").write_text("new")
        Path("latest").symlink_to("old/c.txt")
        assert Path("latest").read_text() == "new" and [f for _, _, files in os.walk("old") for f in files] == ["c.txt"]
        Path("run/1").mkdir(parents=True)
        Path("run/1/log").write_text("1")
        Path("run").rename("done")
        assert Path("done/1/log").read_text() == "1" and not Path("run").exists()
        with zipfile.ZipFile("all.zip", "w") as archive:
            archive.write("d.txt")
        with tarfile.open("all.tar", "w") as archive:
            archive.add("d.txt")
        with tarfile.open("all.tar") as archive:
            archive.extractall("done", filter="data")
        assert Path("done/d.txt").read_text() == zipfile.ZipFile("all.zip").read("d.txt").decode() == "xyz"
        with tempfile.NamedTemporaryFile("w", dir=".", delete=False) as file:
            file.write("whole")
        Path(file.name).replace("whole.txt")
        assert Path("whole.txt").read_text() == "whole"
        os.close(os.open("flags", os.O_WRONLY | os.O_CREAT | os.O_EXCL))
        Path("flags").unlink()
        assert not Path("flags").exists()
    assert tree(tmp_path) == before and (tmp_path / "a.txt").stat().st_mtime_ns == times


def test_temporary_files_are_where_they_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program may read them, and so may a library in C."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with written_aside() as aside:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "file").write_text("")
            assert aside.original["listdir"](folder) == ["file"]
        with tempfile.NamedTemporaryFile() as file:
            Path(file.name).write_text("again")
            assert aside.original["stat"](file.name).st_size == 5
        assert not Path(file.name).exists() and not Path(folder).exists()
    assert not [*tmp_path.iterdir()]


def test_the_first_file_of_a_process_is_written_where_no_temporary_folder_is_known_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    with written_aside():
        assert tempfile.tempdir is not None  # to look for it in here waits without end
        (tmp_path / "first").write_text("aside", "utf-8")
        assert (tmp_path / "first").read_text("utf-8") == "aside"
    assert not list(tmp_path.iterdir())
