"""Checkpoints of Lightning and ``save_pretrained`` of transformers under levers: as the plain script's."""

from __future__ import annotations

import json
import struct
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")

from gpuwise.train.hook.launch import Outcome

HERE = Path(__file__).parent
LEVERS = {"autocast": "bf16", "fused_optimizer": True, "checkpointing": "blocks", "channels_last": True}


def saved(run: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch, by: str, folder: Path, levers: dict[str, object]) -> Path:
    monkeypatch.setattr(sys, "path", [str(HERE), *sys.path])
    outcome = run(HERE / "saving_libraries.py", by, str(folder), levers=levers, live=True)
    assert outcome.ok, outcome.error
    return folder


def test_a_checkpoint_of_lightning(run: Callable[..., Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("lightning")
    plain, changed = (saved(run, monkeypatch, "lightning", tmp_path / n, lv) for n, lv in (("plain", {}), ("changed", LEVERS)))
    pickles = []
    for folder in (plain, changed):
        with zipfile.ZipFile(folder / "all.ckpt") as archive:
            pickles.append(archive.read(next(n for n in archive.namelist() if n.endswith("/data.pkl"))))
    assert pickles[0] == pickles[1]


def test_a_model_of_transformers(run: Callable[..., Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers.models.bert.modeling_bert")
    plain, changed = (saved(run, monkeypatch, "bert", tmp_path / n, lv) for n, lv in (("plain", {}), ("changed", LEVERS)))
    assert sorted(p.name for p in plain.iterdir()) == sorted(p.name for p in changed.iterdir())
    assert (plain / "config.json").read_text() == (changed / "config.json").read_text()
    headers = []
    for folder in (plain, changed):
        data = (folder / "model.safetensors").read_bytes()
        headers.append(json.loads(data[8 : 8 + struct.unpack("<Q", data[:8])[0]]))
    assert headers[0] == headers[1]
