"""Headers of GGUF files: bytes and models of true ones, refusals of broken ones."""

from __future__ import annotations

import contextlib
import random
import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.facts.models.gguf_files import gguf, llama_8b, write_gguf

from gpuwise.errors import FileError, InputError
from gpuwise.facts.models.catalogue import find_model
from gpuwise.facts.models.gguf import BLOCKS, read_header
from gpuwise.predict.memory.kv_cache import kv_cache_bytes
from gpuwise.serve.formats import weight_bytes, weight_bytes_read
from gpuwise.workload.transformer.parameters import count_parameters

GIB = 2**30


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return llama_8b(tmp_path_factory.mktemp("gguf") / "my-fine-tune-Q4_K_M.gguf")


def test_types_have_the_sizes_of_the_gguf_package() -> None:
    for code, (name, numbers, size) in BLOCKS.items():
        assert gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(code)] == (numbers, size), name


def test_a_fine_tune_is_its_base_with_the_bytes_of_its_file(llama: Path) -> None:
    arch = find_model(str(llama))
    base = find_model("llama-3.1-8b")
    assert (arch.name, arch.stored_format, arch.notes) == (llama.stem, "Q4_K_M", ("its tensors are those of Llama 3.1 8B",))
    assert count_parameters(arch).total == count_parameters(base).total == 8_030_261_248
    # llama.cpp tools/quantize/README.md: 4.58 GiB, 4.89 bits a weight
    assert weight_bytes(arch, "Q4_K_M") / GIB == pytest.approx(4.58, abs=0.005)
    assert weight_bytes(arch, "Q4_K_M") == pytest.approx(llama.stat().st_size, rel=1e-3)
    embedding = 128_256 * 4096 // 256 * 144
    assert weight_bytes(arch, "Q4_K_M") - weight_bytes_read(arch, "Q4_K_M") == embedding
    assert kv_cache_bytes(arch, 8192) == kv_cache_bytes(base, 8192)


def test_parts_of_a_split_file_are_one_model(tmp_path: Path, llama: Path) -> None:
    header = read_header(llama)
    rows = [(t.name, t.shape, t.kind) for t in header.tensors]
    values = {k.removeprefix("llama."): v for k, v in header.metadata.items() if not k.startswith(("general.arch", "GGUF"))}
    write_gguf(tmp_path / "m-00001-of-00002.gguf", "llama", values, rows[:100])
    write_gguf(tmp_path / "m-00002-of-00002.gguf", "llama", {}, rows[100:])
    for text in (str(tmp_path), str(tmp_path / "m-00002-of-00002.gguf")):
        assert find_model(text).stored_bytes == find_model(str(llama)).stored_bytes
    (tmp_path / "m-00002-of-00002.gguf").unlink()
    with pytest.raises(FileError, match=r"m-00002-of-00002\.gguf is missing"):
        find_model(str(tmp_path / "m-00001-of-00002.gguf"))


def test_an_unknown_architecture_is_read_by_its_tensors(tmp_path: Path) -> None:
    h, layers, experts = 512, 6, 8
    rows: list[tuple[str, tuple[int, ...], str]] = [("token_embd.weight", (h, 1024), "Q8_0")]
    for i in range(layers):
        rows += [
            (f"blk.{i}.attn_q.weight", (h, 1024), "Q4_K"),
            (f"blk.{i}.attn_k.weight", (h, 256), "Q4_K"),
            (f"blk.{i}.attn_v.weight", (h, 256), "Q4_K"),
            (f"blk.{i}.attn_output.weight", (1024, h), "Q4_K"),
        ]
        if i:
            rows += [(f"blk.{i}.ffn_{n}_exps.weight", (h, 256, experts), "Q4_K") for n in ("gate", "up", "down")]
        else:
            rows += [(f"blk.0.ffn_{n}.weight", (h, 2048), "Q4_K") for n in ("gate", "up", "down")]
    values = {
        "block_count": layers,
        "context_length": 4096,
        "embedding_length": h,
        "feed_forward_length": 2048,
        "attention.head_count": 8,
        "attention.head_count_kv": 2,
        "attention.key_length": 128,
        "expert_count": experts,
        "expert_used_count": 2,
        "expert_feed_forward_length": 256,
    }
    arch = find_model(str(write_gguf(tmp_path / "new.gguf", "brandnew", values, rows)))
    assert (arch.n_layers, arch.n_moe_layers, arch.heads, arch.kv_heads, arch.head_dim) == (6, 5, 8, 2, 128)
    assert arch.tied_embeddings and arch.notes[0].startswith("read by its tensors: brandnew")
    assert arch.stored_format == "Q4_K_M" and arch.stored_bytes is not None
    assert float(kv_cache_bytes(arch, 256)) == 6 * 2 * 2 * 128 * 2 * 256
    one_expert = 5 * 3 * h * 256 // 256 * 144
    assert arch.stored_bytes.experts == experts * one_expert
    assert weight_bytes_read(arch, "Q4_K_M") == arch.stored_bytes.layers + arch.stored_bytes.embedding + 2 * one_expert


def test_layers_without_attention_have_a_state_and_no_cache(tmp_path: Path) -> None:
    h = 512
    rows: list[tuple[str, tuple[int, ...], str]] = [("token_embd.weight", (h, 1024), "F16"), ("output.weight", (h, 1024), "F16")]
    for i in range(4):
        mixer = ("attn_q", "attn_k", "attn_v") if i == 3 else ("attn_qkv", "attn_gate", "ssm_beta", "ssm_alpha", "ssm_out")
        rows += [(f"blk.{i}.{n}.weight", (h, h), "F16") for n in (*mixer, "ffn_gate", "ffn_up", "ffn_down")]
    values = {
        "block_count": 4,
        "context_length": 4096,
        "embedding_length": h,
        "feed_forward_length": h,
        "attention.head_count": 4,
        "attention.head_count_kv": 4,
        "ssm.time_step_rank": 8,
        "ssm.group_count": 4,
        "ssm.state_size": 64,
        "ssm.inner_size": 512,
        "ssm.conv_kernel": 4,
    }
    arch = find_model(str(write_gguf(tmp_path / "delta.gguf", "brandnew", values, rows)))
    assert arch.layer_blocks == ("L-", "L-", "L-", "*-") and arch.linear_attention is not None
    assert float(kv_cache_bytes(arch, 2048)) - float(kv_cache_bytes(arch, 1024)) == 2 * 4 * 128 * 2 * 1024


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "goes on beyond the file"),
        (b"GGML" + bytes(100), "is not a GGUF file"),
        (b"GGUF" + struct.pack("<IQQ", 1, 1, 1), "version 1"),
        (b"GGUF" + struct.pack(">IQQ", 3, 1, 1), "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 1), "tensors"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + struct.pack("<Q", 2**40), "bytes in a text"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + struct.pack("<Q", 3) + b"abc" + struct.pack("<I", 99), "unknown type 99"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 0), "has no tensors"),
    ],
)
def test_what_is_no_header_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "broken.gguf"
    file.write_bytes(content)
    with pytest.raises(FileError, match=message) as caught:
        find_model(str(file))
    assert caught.value.file == str(file) and caught.value.hint


def test_a_file_that_was_not_downloaded_whole_is_refused(tmp_path: Path, llama: Path) -> None:
    cut = tmp_path / "cut.gguf"
    with llama.open("rb") as whole:
        cut.write_bytes(whole.read(8 << 20))
    with pytest.raises(FileError, match="not downloaded whole"):
        find_model(str(cut))


def test_a_folder_with_several_models_asks_for_one(tmp_path: Path, llama: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).symlink_to(llama)
    with pytest.raises(InputError, match="holds 2 models"):
        find_model(str(tmp_path))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    rows = [
        ("token_embd.weight", (64, 32), "F16"),
        *((f"blk.0.{n}.weight", (64, 64), "F16") for n in ("attn_q", "attn_k", "ffn_up")),
    ]
    values = {
        "block_count": 1,
        "embedding_length": 64,
        "attention.head_count": 4,
        "context_length": 64,
        "feed_forward_length": 64,
    }
    return write_gguf(tmp_path_factory.mktemp("gguf") / "s.gguf", "llama", values, rows, vocab=32).read_bytes()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(seed=st.integers(0, 2**32), n=st.integers(1, 6))
def test_any_damage_is_an_answer_or_a_refusal(tmp_path: Path, small: bytes, seed: int, n: int) -> None:
    draw = random.Random(seed)
    damaged = bytearray(small[: draw.choice([len(small), draw.randrange(len(small))])])
    for _ in range(n):
        if damaged:
            damaged[draw.randrange(min(len(damaged), 1200))] = draw.randrange(256)
    file = tmp_path / "damaged.gguf"
    file.write_bytes(damaged)
    with contextlib.suppress(InputError):
        arch = find_model(str(file))
        assert weight_bytes(arch, arch.stored_format or "F16") > 0
