"""Checkpoints of safetensors: bytes and models of true ones, refusals of broken ones."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuwise.errors import FileError, InputError
from gpuwise.facts.hardware.accelerators import accelerators
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.catalogue import find_model
from gpuwise.facts.models.safetensors import BITS, INDEX, read_tensors
from gpuwise.serve.formats import is_stored_as, weight_bytes, weight_bytes_read
from gpuwise.serve.local_machine import machine_of
from gpuwise.serve.local_run import TRIED, run_locally
from gpuwise.serve.streams import token_time
from gpuwise.workload.transformer.parameters import count_parameters

Rows = Mapping[str, tuple[str, tuple[int, ...]]]
SMALL: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
}


def write(path: Path, rows: Rows, *, lost: int = 0) -> Path:
    """A file as safetensors writes it, with a hole in place of the content; ``lost`` bytes are missing at its end."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (kind, shape) in rows.items():
        n = 1
        for size in shape:
            n *= size
        n_bytes = n * BITS[kind] // 8
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [at, at + n_bytes]}
        at += n_bytes
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + at - lost)
    return path


def llama(
    kind: str = "BF16", layers: int = 2, hidden: int = 64, ffn: int = 256, kv: int = 32, vocab: int = 1000
) -> dict[str, Any]:
    rows: dict[str, Any] = {"model.embed_tokens.weight": ("BF16", (vocab, hidden)), "lm_head.weight": ("BF16", (vocab, hidden))}
    for i in range(layers):
        at = f"model.layers.{i}"
        rows |= {
            f"{at}.self_attn.q_proj.weight": (kind, (hidden, hidden)),
            f"{at}.self_attn.k_proj.weight": (kind, (kv, hidden)),
            f"{at}.self_attn.v_proj.weight": (kind, (kv, hidden)),
            f"{at}.self_attn.o_proj.weight": (kind, (hidden, hidden)),
            f"{at}.mlp.gate_proj.weight": (kind, (ffn, hidden)),
            f"{at}.mlp.up_proj.weight": (kind, (ffn, hidden)),
            f"{at}.mlp.down_proj.weight": (kind, (hidden, ffn)),
            f"{at}.input_layernorm.weight": ("BF16", (hidden,)),
            f"{at}.post_attention_layernorm.weight": ("BF16", (hidden,)),
        }
    return rows | {"model.norm.weight": ("BF16", (hidden,))}


def folder(path: Path, rows: Rows, config: Mapping[str, Any] | None = SMALL) -> Path:
    path.mkdir(exist_ok=True)
    write(path / "model.safetensors", rows)
    if config is not None:
        (path / "config.json").write_text(json.dumps(config))
    return path


def test_the_header_is_that_of_the_library(tmp_path: Path) -> None:
    library = pytest.importorskip("safetensors.numpy")
    import numpy as np

    library.save_file({"a": np.zeros((3, 5), np.float16), "b": np.ones(7, np.int8)}, tmp_path / "x.safetensors")
    found = {t.name: (t.kind, t.shape, t.n_bytes) for t in read_tensors(tmp_path / "x.safetensors")}
    assert found == {"a": ("F16", (3, 5), 30), "b": ("I8", (7,), 7)}


def test_a_16_bit_folder_is_what_its_config_says(tmp_path: Path) -> None:
    arch = find_model(str(folder(tmp_path / "mine", llama())))
    assert (arch.name, arch.stored_format, arch.stored_bytes) == ("mine", None, None)
    assert count_parameters(arch).total == sum(t.elements for t in read_tensors(tmp_path / "mine" / "model.safetensors"))


def test_a_narrow_checkpoint_has_the_bytes_of_its_tensors(tmp_path: Path) -> None:
    """AWQ as transformers stores it: eight weights in each int32, scales and zeros beside them."""
    rows = {k: v for k, v in llama().items() if "proj" not in k}
    for i in range(2):
        for name, n, m in (("self_attn.q_proj", 64, 64), ("mlp.up_proj", 256, 64), ("mlp.down_proj", 64, 256)):
            at = f"model.layers.{i}.{name}"
            rows |= {f"{at}.qweight": ("I32", (m, n // 8)), f"{at}.scales": ("F16", (m // 64, n))}
    config = {**SMALL, "quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 64}}
    path = folder(tmp_path / "awq", rows, config)
    arch = find_model(str(path))
    assert arch.stored_format == "int4_wo"
    whole = sum(t.n_bytes for t in read_tensors(path / "model.safetensors"))
    assert weight_bytes(arch, "int4_wo") == whole
    assert weight_bytes_read(arch, "int4_wo") == whole - 1000 * 64 * 2  # one row of the embedding is looked up


def test_parts_with_an_index_are_one_model(tmp_path: Path) -> None:
    rows = list(llama().items())
    parts = {"model-00001-of-00002.safetensors": rows[:9], "model-00002-of-00002.safetensors": rows[9:]}
    for name, part in parts.items():
        write(tmp_path / name, dict(part))
    index = {"metadata": {}, "weight_map": {key: name for name, part in parts.items() for key, _ in part}}
    (tmp_path / INDEX).write_text(json.dumps(index))
    (tmp_path / "config.json").write_text(json.dumps({**SMALL, "model_type": "nobody_knows"}))
    whole = sum(t.n_bytes for name in parts for t in read_tensors(tmp_path / name))
    assert weight_bytes(find_model(str(tmp_path)), "bf16") == whole
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    for text in (INDEX, "has 1 of 2 parts"):
        with pytest.raises(FileError, match=r"missing|1 of 2 parts"):
            find_model(str(tmp_path))
        if text == INDEX:
            (tmp_path / INDEX).unlink()


@pytest.mark.parametrize("config", [None, {"model_type": "nobody_knows", "num_attention_heads": 4, "some": {"strange": 1}}])
def test_an_architecture_that_nobody_described_is_read_by_its_tensors(tmp_path: Path, config: dict[str, Any] | None) -> None:
    arch = find_model(str(folder(tmp_path / "strange", llama(layers=3), config)))
    assert (arch.n_layers, arch.hidden, arch.ffn, arch.vocab, arch.stored_format) == (3, 64, 256, 1000, "bf16")
    assert any("read by its tensors" in note for note in arch.notes)
    whole = sum(t.n_bytes for t in read_tensors(tmp_path / "strange" / "model.safetensors"))
    assert weight_bytes(arch, "bf16") == whole
    known = find_model("llama-3.1-8b")
    card = accelerators()["rtx-4090"]
    assert token_time(arch, card, "bf16").log_sigma > token_time(known, card, "bf16").log_sigma


def test_16_bits_of_an_unknown_model_are_narrowed_by_their_bytes(tmp_path: Path) -> None:
    arch = find_model(str(folder(tmp_path / "strange", llama(layers=3), None)))
    whole = sum(t.n_bytes for t in read_tensors(tmp_path / "strange" / "model.safetensors"))
    assert weight_bytes(arch, "Q8_0") == pytest.approx(whole * 8.5 / 16)
    run = run_locally(arch, machine_of(find_cluster("4090")))
    assert [f.weights for f in run.formats] == list(TRIED)
    assert is_stored_as("bf16", "Q4_K_M") and not is_stored_as("int4_wo", "Q8_0") and is_stored_as("int4_wo", "4bit")


def test_experts_and_towers_are_told_by_their_names(tmp_path: Path) -> None:
    rows = llama()
    for i in range(2):
        rows |= {f"model.layers.{i}.mlp.experts.{e}.down_proj.weight": ("BF16", (64, 32)) for e in range(8)}
    rows |= {"model.visual.blocks.0.attn.weight": ("BF16", (512, 512)), "model.mtp.fc.weight": ("BF16", (64, 64))}
    config = {"model_type": "nobody_knows", "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    arch = find_model(str(folder(tmp_path / "moe", rows, config)))
    assert arch.moe is not None and (arch.moe.n_experts, arch.moe.n_active) == (8, 2)
    stored = arch.stored_bytes
    assert stored is not None
    assert (stored.experts, stored.prediction) == (2 * 8 * 64 * 32 * 2, 64 * 64 * 2)
    assert "its towers for images or sound are left out" in arch.notes
    del config["num_experts_per_tok"]
    with pytest.raises(FileError, match="8 experts, and no config"):
        find_model(str(folder(tmp_path / "moe", rows, config)))


@pytest.mark.parametrize(
    ("rows", "config", "says"),
    [
        (llama(layers=1), SMALL, "says 2 layers, and the tensors are of 1"),
        (llama(hidden=32), SMALL, "width of 64, and the embedding has 32"),
        ({"one.weight": ("BF16", (4, 4))}, SMALL, "no token embedding"),
        (llama(kind="I32"), None, "no quantization_config"),
    ],
)
def test_tensors_and_config_that_contradict_each_other_are_refused(tmp_path: Path, rows: Rows, config: Any, says: str) -> None:
    with pytest.raises(FileError, match=says) as error:
        find_model(str(folder(tmp_path / "x", rows, config)))
    assert error.value.hint


def test_lying_headers_are_refused(tmp_path: Path) -> None:
    good = write(tmp_path / "good.safetensors", llama()).read_bytes()
    (n,) = struct.unpack("<Q", good[:8])
    header = json.loads(good[8 : 8 + n])
    name = "model.norm.weight"

    def changed(**fields: Any) -> bytes:
        text = json.dumps({**header, name: {**header[name], **fields}}).encode()
        return struct.pack("<Q", len(text)) + text + good[8 + n :]

    begin, end = header[name]["data_offsets"]
    broken = {
        "was not downloaded whole": good[:-5],
        "behind its last tensor": good + b"more",
        "ends within its header": good[: n // 2],
        "is no safetensors file": b"PK\3\4" + good,
        "which is BF16 of 65": changed(shape=[65]),
        "overlap at": changed(data_offsets=[begin - 128, end - 128]),
        "leave a gap at": changed(data_offsets=[begin + 2, end + 2]),
        "has no dtype, shape": changed(shape=["many"]),
        "is not JSON": struct.pack("<Q", 4) + b"{{{{" + good[8 + n :],
        "has no tensors": struct.pack("<Q", 2) + b"{}",
    }
    for says, content in broken.items():
        path = tmp_path / "broken.safetensors"
        path.write_bytes(content)
        with pytest.raises(FileError, match=says) as error:
            read_tensors(path)
        assert error.value.hint


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 400), st.integers(0, 255))
def test_no_changed_byte_of_a_header_breaks_the_reader(tmp_path: Path, at: int, byte: int) -> None:
    content = bytearray(write(tmp_path / "x.safetensors", llama(layers=1)).read_bytes())
    content[at] = byte
    (tmp_path / "y.safetensors").write_bytes(bytes(content))
    try:
        find_model(str(tmp_path / "y.safetensors"))
    except InputError as error:
        assert error.message
