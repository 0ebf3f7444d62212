"""A load against a real server: llama.cpp's, with a tiny random model made here. Skipped where there is no ``llama-server``."""

from __future__ import annotations

import os
import shutil
import socket
import struct
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from gpuwise.serve.load.requests import Requests
from gpuwise.serve.measure.http import parse_address
from gpuwise.serve.measure.measured import Measured
from gpuwise.serve.measure.prompts import WORDS
from gpuwise.serve.measure.run import Bounds, measure

SERVER = os.environ.get("GPUWISE_LLAMA_SERVER") or shutil.which("llama-server")
HIDDEN, FFN, HEADS, LAYERS = 64, 128, 4, 2
UINT32, INT32, FLOAT32, STRING, ARRAY = 4, 5, 6, 8, 9
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6

pytestmark = pytest.mark.skipif(SERVER is None, reason="no llama-server on PATH")


def string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def entry(key: str, kind: int, value: object) -> bytes:
    packed = string(str(value)) if kind == STRING else struct.pack({UINT32: "<I", FLOAT32: "<f"}[kind], value)
    return string(key) + struct.pack("<I", kind) + packed


def listing(key: str, kind: int, values: list[object]) -> bytes:
    codes = {FLOAT32: "<f", INT32: "<i"}
    packed = b"".join(string(str(v)) if kind == STRING else struct.pack(codes[kind], v) for v in values)
    return string(key) + struct.pack("<IIQ", ARRAY, kind, len(values)) + packed


def tiny_model(path: Path) -> None:
    """A llama of two layers with random weights, in GGUF version 3 (ggml-org/ggml docs/gguf.md)."""
    words = ["\u2581" + w for w in sorted(set(WORDS))]
    tokens: list[object] = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), "\u2581", *words]
    kinds: list[object] = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * (1 + len(words))]
    scores: list[object] = [*[0.0] * 259, *(-float(i) for i in range(1 + len(words)))]
    fields = [
        entry("general.architecture", STRING, "llama"),
        entry("general.name", STRING, "tiny"),
        entry("llama.context_length", UINT32, 4096),
        entry("llama.embedding_length", UINT32, HIDDEN),
        entry("llama.block_count", UINT32, LAYERS),
        entry("llama.feed_forward_length", UINT32, FFN),
        entry("llama.attention.head_count", UINT32, HEADS),
        entry("llama.attention.head_count_kv", UINT32, HEADS),
        entry("llama.rope.dimension_count", UINT32, HIDDEN // HEADS),
        entry("llama.attention.layer_norm_rms_epsilon", FLOAT32, 1e-5),
        entry("llama.vocab_size", UINT32, len(tokens)),
        entry("tokenizer.ggml.model", STRING, "llama"),
        listing("tokenizer.ggml.tokens", STRING, tokens),
        listing("tokenizer.ggml.scores", FLOAT32, scores),
        listing("tokenizer.ggml.token_type", INT32, kinds),
        entry("tokenizer.ggml.bos_token_id", UINT32, 1),
        entry("tokenizer.ggml.eos_token_id", UINT32, 2),
        entry("tokenizer.ggml.unknown_token_id", UINT32, 0),
    ]
    rng = np.random.default_rng(0)
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (HIDDEN, len(tokens)), "output_norm.weight": (HIDDEN,)}
    shapes["output.weight"] = (HIDDEN, len(tokens))
    for i in range(LAYERS):
        shapes |= {f"blk.{i}.{n}.weight": (HIDDEN, HIDDEN) for n in ("attn_q", "attn_k", "attn_v", "attn_output")}
        shapes |= {f"blk.{i}.{n}.weight": (HIDDEN,) for n in ("attn_norm", "ffn_norm")}
        shapes |= {f"blk.{i}.{n}.weight": (HIDDEN, FFN) for n in ("ffn_gate", "ffn_up")}
        shapes[f"blk.{i}.ffn_down.weight"] = (FFN, HIDDEN)
    infos, data = list[bytes](), bytearray()
    for name, shape in shapes.items():
        infos.append(string(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape) + struct.pack("<IQ", 0, len(data)))
        data += (rng.standard_normal(int(np.prod(shape))) * 0.05).astype("<f4").tobytes()
        data += b"\0" * (-len(data) % 32)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(shapes), len(fields)) + b"".join(fields) + b"".join(infos)
    path.write_bytes(head + b"\0" * (-len(head) % 32) + bytes(data))


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with two slots, ready to answer."""
    folder = tmp_path_factory.mktemp("llama")
    tiny_model(folder / "tiny.gguf")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert SERVER is not None
    words = [SERVER, "-m", str(folder / "tiny.gguf"), "--port", str(port), "-np", "2", "-c", "4096", "-t", "1", "--no-warmup"]
    with (folder / "log").open("wb") as log, subprocess.Popen(words, stdout=log, stderr=log) as process:
        address = f"http://127.0.0.1:{port}"
        try:
            _wait(address, process, folder / "log")
            yield address
        finally:
            process.kill()


def _wait(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(600):
        assert process.poll() is None, log.read_text(errors="replace")[-2000:]
        try:
            with urllib.request.urlopen(address + "/health", timeout=1):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise AssertionError(log.read_text(errors="replace")[-2000:])


def test_a_real_server_is_measured(url: str) -> None:
    n = 12
    requests = Requests(np.arange(n, dtype=np.float64) * np.float64(0.05), np.full(n, 100, np.int64), np.full(n, 16, np.int64))
    found = Measured(measure(parse_address(url), requests, bounds=Bounds(seconds=60, stall_s=30)))
    assert found.failures == {}
    assert [a.output_tokens for a in found.whole] == [16] * n
    assert np.mean([a.prompt_tokens or 0 for a in found.whole]) == pytest.approx(100, rel=0.1)  # its few words cut others up
    ttft, e2e = found.value("ttft", 50), found.value("e2e", 50)
    assert ttft is not None
    assert e2e is not None
    assert 0 < ttft < e2e
    assert found.value("tpot", 50) is not None


def test_a_prompt_beyond_its_context_is_its_error_and_the_others_are_kept(url: str) -> None:
    prompts = np.array([50, 5000, 50], np.int64)
    requests = Requests(np.array([0.0, 0.05, 0.1]), prompts, np.full(3, 4, np.int64))
    found = Measured(measure(parse_address(url), requests, bounds=Bounds(seconds=60, stall_s=30)))
    assert found.failures == {"bad request": 1}
    assert len(found.whole) == 2
