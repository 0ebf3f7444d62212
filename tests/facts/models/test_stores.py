"""Models that other programs keep on this machine, found by their names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.facts.models.gguf_files import llama_8b
from tests.facts.models.test_configs import CONFIGS

from gpuwise.errors import InputError, UnknownNameError
from gpuwise.facts.models.catalogue import find_model


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home with nothing in it."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "OLLAMA_MODELS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    yield tmp_path


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return llama_8b(tmp_path_factory.mktemp("gguf") / "weights.gguf")


def cached(root: Path, name: str, config: str, commit: str = "0123abc") -> Path:
    folder = root / f"models--{name.replace('/', '--')}"
    (folder / "snapshots" / commit).mkdir(parents=True)
    (folder / "snapshots" / commit / "config.json").write_text(json.dumps(CONFIGS[config]))
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(commit)
    return folder


@pytest.mark.parametrize("variable", ["", "HF_HUB_CACHE", "HF_HOME"])
def test_the_cache_of_hugging_face(variable: str, machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = machine / ".cache" / "huggingface" / "hub"
    if variable:
        monkeypatch.setenv(variable, str(machine / "elsewhere"))
        root = machine / "elsewhere" / ("hub" if variable == "HF_HOME" else "")
    folder = cached(root, "me/my-model", "llama-3-8b")
    for text in ("me/my-model", str(folder)):
        arch = find_model(text)
        assert (arch.name, arch.n_layers, arch.vocab) == ("me/my-model", 32, 128_256)
    with pytest.raises(UnknownNameError):
        find_model("me/another-thing")


def test_the_snapshot_that_main_names_wins(machine: Path) -> None:
    folder = cached(machine / ".cache" / "huggingface" / "hub", "me/it", "llama-3-8b")
    (folder / "snapshots" / "fff0000").mkdir()
    assert find_model("me/it").n_layers == 32
    (folder / "refs" / "main").write_text("../../etc")
    (folder / "snapshots" / "fff0000" / "config.json").write_text(json.dumps(CONFIGS["llama-7b"]))
    assert find_model("me/it").vocab in (32_000, 128_256)


def ollama(root: Path, weights: Path, name: str, tag: str) -> None:
    digest = "sha256:" + "ab" * 32
    manifest = root / "manifests" / "registry.ollama.ai" / "library" / name / tag
    manifest.parent.mkdir(parents=True)
    layers = [
        {"mediaType": "application/vnd.ollama.image.license", "digest": "sha256:00", "size": 1},
        {"mediaType": "application/vnd.ollama.image.model", "digest": digest, "size": weights.stat().st_size},
    ]
    manifest.write_text(json.dumps({"schemaVersion": 2, "layers": layers}))
    (root / "blobs").mkdir()
    (root / "blobs" / digest.replace(":", "-")).symlink_to(weights)


def test_ollama_by_the_name_that_it_was_pulled_under(machine: Path, weights: Path) -> None:
    assert find_model("llama3.1:8b").stored_bytes is None, "without the store it is the catalogue's"
    ollama(machine / ".ollama" / "models", weights, "llama3.1", "8b")
    arch = find_model("llama3.1:8b")
    assert arch.name == "llama3.1:8b" and arch.id == "llama-3.1-8b" and arch.stored_format == "Q4_K_M"
    assert arch.stored_bytes is not None and arch.stored_bytes.total == find_model(str(weights)).stored_bytes.total  # type: ignore[union-attr]
    next((machine / ".ollama" / "models" / "blobs").iterdir()).unlink()
    with pytest.raises(InputError, match="without its weights") as caught:
        find_model("llama3.1:8b")
    assert caught.value.hint == "ollama pull llama3.1:8b"


def test_lm_studio_by_the_name_of_the_repository(machine: Path, weights: Path) -> None:
    folder = machine / ".lmstudio" / "models" / "someone" / "Fine-Tune-GGUF"
    folder.mkdir(parents=True)
    (folder / "fine-tune-Q4_K_M.gguf").symlink_to(weights)
    assert find_model("someone/Fine-Tune-GGUF").stored_format == "Q4_K_M"


@pytest.mark.parametrize("name", ["../../etc/passwd", "a/../b", "x:../../y", "org/" + "n" * 500, "a/b:c/d"])
def test_names_reach_nothing_outside_the_stores(name: str, machine: Path) -> None:
    (machine / ".ollama" / "models").mkdir(parents=True)
    with pytest.raises(InputError):
        find_model(name)
