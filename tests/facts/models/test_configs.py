"""Hugging Face configs: published ones against the catalogue, and anything at all against the reader."""

import contextlib
import copy
import json
import math
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuwise.errors import FieldError, InputError
from gpuwise.facts.models.architecture import Architecture
from gpuwise.facts.models.catalogue import find_model, models
from gpuwise.facts.models.checks import LIMITS, check_architecture
from gpuwise.facts.models.config_readers import READERS
from gpuwise.facts.models.configs import architecture_from_config, read_model_config
from gpuwise.workload.transformer.parameters import count_parameters

CONFIGS: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "model_configs.json").read_text())
"""The keys of published config.json files that hold dimensions, by catalogue id; from the Hugging Face page
of the model's first id, file config.json, or (models of late 2025 and 2026) as transformers 5.24 writes the same dimensions."""
CATALOGUE_ONLY = {
    "id",
    "name",
    "source",
    "family",
    "license",
    "published_parameters",
    "published_rounded",
    "published_note",
    "aliases",
    "notes",
    "extras",
    "position_rows",
}
DIMENSION_FIELDS = [f.name for f in fields(Architecture) if f.name not in CATALOGUE_ONLY]


@pytest.mark.parametrize("name", CONFIGS)
def test_published_config_is_the_catalogue_model(name: str) -> None:
    read, known = architecture_from_config(CONFIGS[name]), models()[name]
    for field in DIMENSION_FIELDS:
        assert getattr(read, field) == getattr(known, field), field
    assert count_parameters(read).total == count_parameters(known).total


def test_file_and_folder(tmp_path: Path) -> None:
    folder = tmp_path / "my-llama"
    folder.mkdir()
    file = folder / "config.json"
    file.write_text(json.dumps(CONFIGS["llama-3-8b"]))
    for text in (str(folder), str(file), f" {folder}/ "):
        arch = find_model(text)
        assert (arch.id, arch.n_layers, arch.source) == ("my-llama", 32, str(file))


def test_folder_named_like_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gpt2").mkdir()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bert-base").write_text("notes")
    assert find_model("gpt2") == models()["gpt2"]
    assert find_model("bert-base") == models()["bert-base"]
    with pytest.raises(FieldError, match=r"no config\.json"):
        find_model("./gpt2")


@pytest.mark.parametrize("text", ["./nowhere", "nowhere.json", "~/nowhere/config.json", "/nowhere"])
def test_missing_paths(text: str) -> None:
    with pytest.raises(FieldError, match="does not exist"):
        find_model(text)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "3", '"x"', "{}", '{"model_type": 3}', "[" * 100_000, "1" * 5000])
def test_broken_files(tmp_path: Path, text: str) -> None:
    file = tmp_path / "config.json"
    file.write_text(text)
    with pytest.raises(FieldError) as caught:
        read_model_config(file)
    assert caught.value.file == str(file)
    assert caught.value.hint


def test_not_text(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(b"\xff\xfe\x00{")
    with pytest.raises(FieldError, match="UTF-8"):
        read_model_config(file)
    file.write_text(" " * 5_000_000)
    with pytest.raises(FieldError, match="larger than 4 MiB"):
        read_model_config(file)


@pytest.mark.parametrize("value", [-1, 0, math.nan, math.inf, -math.inf, 1.5, True, "64", [64], {}, 10**30])
@pytest.mark.parametrize("key", ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"])
def test_refused_values(key: str, value: object) -> None:
    config = {**CONFIGS["llama-3-8b"], key: value}
    with pytest.raises(FieldError):
        architecture_from_config(config)


def test_misspelt_key_is_named() -> None:
    config = dict(CONFIGS["llama-3-8b"])
    config["hiden_size"] = config.pop("hidden_size")
    with pytest.raises(FieldError, match="hidden_size is missing") as caught:
        architecture_from_config(config, file="config.json")
    assert caught.value.field == "hidden_size" and "hiden_size" in str(caught.value.hint)


def test_unknown_type_is_read_generically_and_says_so() -> None:
    arch = architecture_from_config({**CONFIGS["llama-3-8b"], "model_type": "brandnew"})
    assert count_parameters(arch).total == models()["llama-3-8b"].published_parameters
    assert any("brandnew" in note for note in arch.notes)
    moe = architecture_from_config({**CONFIGS["deepseek-v2-lite"], "model_type": "brandnew"})
    assert count_parameters(moe).total == models()["deepseek-v2-lite"].published_parameters
    with pytest.raises(FieldError):
        architecture_from_config({"model_type": "brandnew", "hidden_size": 64})


@pytest.mark.parametrize(
    "change",
    [
        {"model_type": "lfm3", "conv_L_cache": 3},
        {"model_type": "zamba2", "mamba_d_state": 64},
        {"model_type": "minimax", "attn_type_list": [0, 1]},
        {"model_type": "brandnew", "linear_num_value_heads": 32},
        {"model_type": "albert"},
    ],
)
def test_what_is_no_transformer_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(FieldError, match=r"not a pure transformer|shares"):
        architecture_from_config({**CONFIGS["llama-3-8b"], **change})


def test_nested_language_model() -> None:
    arch = architecture_from_config({"model_type": "llava", "text_config": CONFIGS["llama-2-70b"], "vision_config": {}})
    assert arch.n_layers == 80 and "towers" in arch.notes[0]
    tied = {k: v for k, v in CONFIGS["llama-2-70b"].items() if k != "tie_word_embeddings"}
    assert architecture_from_config({"text_config": tied, "tie_word_embeddings": True}).tied_embeddings


def test_local_layers() -> None:
    base = {**CONFIGS["mistral-7b"], "sliding_window": 64, "num_hidden_layers": 12}
    local, full = ["sliding_attention"], ["full_attention"]
    for types, window, every in (
        ((local * 5 + full) * 2, 64, 6),
        (full * 12, None, None),
        (local * 12, 64, None),
        ([], 64, None),
    ):
        arch = architecture_from_config({**base, "layer_types": types})
        assert (arch.window, arch.global_every) == (window, every)


def test_every_reader_is_exercised_by_its_own_keys() -> None:
    """Any reader given nothing but a type refuses with a field, never with another error."""
    for model_type in READERS:
        if model_type in ("clip_text_model",):
            continue
        with pytest.raises(FieldError):
            architecture_from_config({"model_type": model_type})


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
ALL_KEYS = sorted({key for config in CONFIGS.values() for key in config} | {"text_config", "layer_types"})


def _assert_sound(arch: Architecture) -> None:
    """No dimension of the model or its parts is anything but a whole number in range."""
    assert check_architecture(arch) is arch
    for part in (arch, arch.moe, arch.mla, arch.encoder, arch.patches):
        for field in fields(part) if part is not None else ():
            value = getattr(part, field.name)
            if field.name in LIMITS and value is not None:
                assert type(value) is int and 0 <= value <= LIMITS[field.name]
    count = count_parameters(arch)
    assert count.total > 0 and count.active <= count.total


def _try(config: object) -> None:
    try:
        arch = architecture_from_config(config)  # type: ignore[arg-type]
    except InputError as error:
        assert isinstance(error, FieldError) and error.hint
        return
    _assert_sound(arch)


@given(st.dictionaries(st.sampled_from(ALL_KEYS), JSON_VALUES, max_size=12), st.sampled_from(sorted(READERS)))
def test_arbitrary_json(values: dict[str, Any], model_type: str) -> None:
    _try({**values, "model_type": model_type})


@settings(max_examples=12 * settings().max_examples)
@given(st.sampled_from(sorted(CONFIGS)), st.data())
def test_one_field_of_a_published_config_changed(name: str, data: st.DataObject) -> None:
    config = copy.deepcopy(CONFIGS[name])
    part = config.get("text_config", config)
    for key in data.draw(st.lists(st.sampled_from(sorted(part)), min_size=1, max_size=3)):
        part[key] = data.draw(JSON_VALUES | st.integers(-2, 300))
    _try(config)


@settings(max_examples=4 * settings().max_examples)
@given(st.sampled_from(sorted(CONFIGS)), st.sampled_from(sorted(READERS)))
def test_a_config_under_another_type(name: str, model_type: str) -> None:
    _try({**CONFIGS[name], "model_type": model_type})


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200))
def test_arbitrary_bytes(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(content)
    with contextlib.suppress(FieldError):
        _assert_sound(read_model_config(file))
