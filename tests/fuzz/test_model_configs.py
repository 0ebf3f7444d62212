"""Hugging Face configs and dimensions given by hand: any JSON, any text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwise.errors import GpuwiseError
from gpuwise.facts.models.config_hybrid import HYBRID_READERS
from gpuwise.facts.models.config_readers import READERS
from gpuwise.facts.models.configs import architecture_from_config, read_model_config
from gpuwise.facts.models.dimensions import parse_dimensions
from gpuwise.workload.transformer.parameters import count_parameters

PLAUSIBLE = {
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 100,
    "max_position_embeddings": 128,
}


class _Asked(Mapping[str, object]):
    """A config that answers 4 to everything and remembers what was asked for."""

    def __init__(self, given: dict[str, object]) -> None:
        self.given, self.asked = given, set[str]()

    def get(self, key: str, default: object = None) -> object:
        self.asked.add(key)
        return self.given.get(key, default)

    def __getitem__(self, key: str) -> object:
        self.asked.add(key)
        return self.given[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.given)

    def __len__(self) -> int:
        return len(self.given)


@cache
def keys_of(model_type: str) -> tuple[tuple[str, ...], dict[str, object]]:
    """The config keys a reader looks at, and a config it takes: found by answering until it stops asking."""
    given: dict[str, object] = {"model_type": model_type, **PLAUSIBLE}
    if model_type == "nemotron_h":
        given["hybrid_override_pattern"] = "M*"
    asked: set[str] = set()
    for _ in range(40):
        config = _Asked(given)
        try:
            architecture_from_config(config)
        except GpuwiseError as error:
            field = getattr(error, "field", None)
            asked |= config.asked
            if field is None or field in given:
                break
            given[field] = 4
        else:
            asked |= config.asked
            break
    if model_type in HYBRID_READERS:
        return tuple(sorted(asked - {"model_type"})), given
    foreign = {key for key in asked if re.search(r"ssm|mamba|rglru|lru|wkv|linear_|hybrid|conv_L|block|attn_layer", key)}
    return tuple(sorted(asked - foreign - {"model_type"})), given  # foreign: refused at once


SIZES = st.sampled_from((1, 2, 4, 8, 16, 64, 128, 4096, 64.0))
NUMBERS = st.integers(-2, 300) | st.sampled_from((0, 1, 64, 2**31, 2**63, 10**30, True, 2.5))
VALUES = st.recursive(
    NUMBERS
    | st.none()
    | st.text(max_size=6)
    | st.floats()
    | st.sampled_from(("gelu", "silu", "sliding_attention", "full_attention")),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(("model_type", *PLAUSIBLE)), inner, max_size=4),
    max_leaves=6,
)


@settings(max_examples=8 * settings().max_examples)
@given(st.data())
def test_configs_of_every_type(lawful, data: st.DataObject) -> None:
    model_type = data.draw(st.sampled_from(sorted(READERS)))
    keys, taken = keys_of(model_type)
    config = dict(taken)
    for key in data.draw(st.lists(st.sampled_from(keys), max_size=3, unique=True)):
        config[key] = data.draw(SIZES | SIZES | SIZES | NUMBERS | VALUES)
    arch = lawful(lambda: architecture_from_config(config), hint=True)
    if arch is not None:
        assert count_parameters(arch).total > 0


def test_every_reader_asks_for_its_layers() -> None:
    assert all(len(keys_of(t)[0]) >= 4 for t in READERS)


def test_most_readers_take_their_own_answers() -> None:
    taken = 0
    for model_type in READERS:
        try:
            taken += count_parameters(architecture_from_config(keys_of(model_type)[1])).total > 0
        except GpuwiseError:
            continue
    assert taken >= 0.8 * len(READERS)


@given(VALUES)
def test_any_json_document(lawful, tmp_path_factory: pytest.TempPathFactory, document: object) -> None:
    path = tmp_path_factory.mktemp("model") / "config.json"
    path.write_text(json.dumps(document))
    lawful(lambda: read_model_config(path), hint=True)


@given(st.binary(max_size=60) | st.sampled_from((b"[" * 100_000, b"9" * 5000, b"{}", b"", b"\xff\xfe{")))
def test_any_bytes(lawful, tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
    path = tmp_path_factory.mktemp("model") / "config.json"
    path.write_bytes(raw)
    lawful(lambda: read_model_config(path), hint=True)


KEYS = (
    "layers",
    "hidden",
    "heads",
    "kv_heads",
    "ffn",
    "vocab",
    "seq",
    "window",
    "global_every",
    "head_dim",
    "experts",
    "active_experts",
    "expert_ffn",
    "shared_ffn",
    "first_dense",
    "norm",
    "position",
    "tied",
    "gated",
    "name",
    "layer",
)
TYPED = (
    st.sampled_from(("1", "2", "4", "8", "16", "64", "256"))
    | st.integers(-1, 512).map(str)
    | st.sampled_from(("4k", "128k", "true", "rms", "rope", "nan", "1e3", "", "9" * 60, "½"))
)


@settings(max_examples=3 * settings().max_examples)
@given(st.lists(st.tuples(st.sampled_from(KEYS), TYPED), max_size=3), st.booleans())
def test_dimensions(lawful, extra: list[tuple[str, str]], complete: bool) -> None:
    pairs = dict([("layers", "2"), ("hidden", "64"), ("heads", "4"), ("vocab", "100")] if complete else [])
    pairs |= dict(extra)
    arch = lawful(lambda: parse_dimensions(",".join(f"{k}={v}" for k, v in pairs.items())), hint=True)
    if arch is not None:
        assert count_parameters(arch).total > 0


@given(st.text(alphabet="layershidn=,0123456789 -.\x00", max_size=60))
def test_dimensions_of_any_text(lawful, text: str) -> None:
    lawful(lambda: parse_dimensions(text), hint=True)
