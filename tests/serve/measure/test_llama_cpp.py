"""A load against a real server: llama.cpp's own, with a tiny random model made here.

The server is ``llama-server`` on the path (or ``GPUWISE_LLAMA_SERVER``), else that of the wheel xllamacpp, llama.cpp's own
under Python. Skipped only where there is neither.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from gpuwise.serve.load.requests import Requests
from gpuwise.serve.measure.http import parse_address
from gpuwise.serve.measure.measured import LoadResult
from gpuwise.serve.measure.prompts import WORDS
from gpuwise.serve.measure.run import Bounds, measure

SERVER = os.environ.get("GPUWISE_LLAMA_SERVER") or shutil.which("llama-server")
WHEEL = importlib.util.find_spec("xllamacpp") is not None
SLOTS, CONTEXT = 2, 4096
IN_PYTHON = """
import sys, threading, xllamacpp
p = xllamacpp.CommonParams()
p.model.path, p.port, p.n_parallel, p.n_ctx = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
p.cpuparams.n_threads, p.cpuparams_batch.n_threads, p.warmup = 1, 1, False
server = xllamacpp.Server(p)
threading.Event().wait()
"""
HIDDEN, FFN, HEADS, LAYERS = 64, 128, 4, 2
UINT32, INT32, FLOAT32, STRING, ARRAY = 4, 5, 6, 8, 9
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(SERVER is None and not WHEEL, reason="neither llama-server nor the wheel xllamacpp is installed"),
]


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


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Address and process of a server with two slots, ready to answer."""
    model, log = tmp_path / "tiny.gguf", tmp_path / "log"
    tiny_model(model)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    asked = ["-m", str(model), "--port", str(port), "-np", str(SLOTS), "-c", str(CONTEXT), "-t", "1", "--no-warmup"]
    words = [SERVER, *asked] if SERVER else [sys.executable, "-c", IN_PYTHON, str(model), str(port), str(SLOTS), str(CONTEXT)]
    with log.open("wb") as out, subprocess.Popen(words, stdout=out, stderr=out) as process:
        address = f"http://127.0.0.1:{port}"
        try:
            _wait(address, process, log)
            yield address, process
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


def test_a_real_server_is_measured(server: tuple[str, subprocess.Popen[bytes]]) -> None:
    n = 12
    requests = Requests(np.arange(n, dtype=np.float64) * np.float64(0.05), np.full(n, 100, np.int64), np.full(n, 16, np.int64))
    found = LoadResult(measure(parse_address(server[0]), requests, bounds=Bounds(seconds=60, stall_s=30)))
    assert found.failures == {}
    assert [a.output_tokens for a in found.whole] == [16] * n
    assert np.mean([a.prompt_tokens or 0 for a in found.whole]) == pytest.approx(100, rel=0.1)  # its few words cut others up
    ttft, e2e = found.value("ttft", 50), found.value("e2e", 50)
    assert ttft is not None
    assert e2e is not None
    assert 0 < ttft < e2e
    assert found.value("tpot", 50) is not None


def test_a_prompt_beyond_its_context_is_its_error_and_the_others_are_kept(server: tuple[str, subprocess.Popen[bytes]]) -> None:
    prompts = np.array([50, 5000, 50], np.int64)
    requests = Requests(np.array([0.0, 0.05, 0.1]), prompts, np.full(3, 4, np.int64))
    found = LoadResult(measure(parse_address(server[0]), requests, bounds=Bounds(seconds=60, stall_s=30)))
    assert found.failures == {"bad request": 1}
    assert len(found.whole) == 2


def test_a_server_that_is_stopped_stalls_and_one_that_is_killed_is_gone(server: tuple[str, subprocess.Popen[bytes]]) -> None:
    address, process = server
    n = 400
    requests = Requests(np.arange(n, dtype=np.float64) * np.float64(0.05), np.full(n, 60, np.int64), np.full(n, 8, np.int64))
    stopped = threading.Event()

    def at_work(words: str) -> None:
        done = int(words.split()[0])
        if done == 5 and not stopped.is_set():
            stopped.set()
            process.send_signal(signal.SIGSTOP)
            threading.Timer(4.0, process.kill).start()

    found = LoadResult(measure(parse_address(address), requests, bounds=Bounds(seconds=60, stall_s=1.5), progress=at_work))
    assert found.failures.get("stalled", 0) >= 1
    assert found.failures.get("connection", 0) >= 5
    assert found.measurement.stopped == "the server has stopped"
    assert len(found.whole) >= 5
    assert found.value("ttft", 50) is not None


def test_the_command_measures_it(server: tuple[str, subprocess.Popen[bytes]], tmp_path: Path) -> None:
    """``gpuwise capacity --measure``: the prediction is of another machine; what is measured stands beside it."""
    words = ["capacity", "llama-3.2-1b", "--on", "1x4090", "--workload", "in=60,out=12", "--rate", "4/s", "--quick"]
    sent = ["--measure", server[0], "--seconds", "5s", "--requests", "16", "--stall", "60s", "--json"]
    ran = subprocess.run(
        [sys.executable, "-m", "gpuwise", *words, *sent],
        env={**os.environ, "GPUWISE_RECORDS": str(tmp_path / "records.db")},
        capture_output=True,
        text=True,
        check=False,
    )
    document = json.loads(ran.stdout.splitlines()[-1])
    assert document["answered"] == document["requests"] == 16, ran.stderr
    assert document["failures"] == {}
    rows = {row["latency"]: row for row in document["latency"]}
    assert rows["ttft_p50"]["measured_s"] > 0
    assert rows["ttft_p50"]["predicted_s"] > 0
