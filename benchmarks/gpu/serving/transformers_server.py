"""``transformers serve`` with continuous batching, with and without FlashAttention: torch has the kernel by another name."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

FLASH = '''"""FlashAttention-2 as torch carries it, under the name and signature that transformers imports (flash_attn 2.8)."""
import torch

flash_attn_func = flash_attn_with_kvcache = None


def flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None,
                           causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None, deterministic=False,
                           return_attn_probs=False, block_table=None):
    if REPEAT:
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    return torch.ops.aten._flash_attention_forward(
        q, k, v, cu_seqlens_q, cu_seqlens_k, int(max_seqlen_q), int(max_seqlen_k), dropout_p, causal, False,
        scale=softmax_scale, window_size_left=window_size[0], window_size_right=window_size[1])[0]
'''
PADDING = "from transformers.modeling_flash_attention_utils import _pad_input as pad_input, _unpad_input as unpad_input\n"


def save_flash(folder: Path) -> None:
    """The package ``flash_attn`` as :data:`FLASH`; key-value heads are repeated where torch's kernel wants as many as queries."""
    package, about = folder / "flash_attn", folder / "flash_attn-2.8.3.dist-info"
    package.mkdir(parents=True)
    about.mkdir()
    (package / "__init__.py").write_text(FLASH.replace("if REPEAT:", f"if {not grouped_heads()}:"))
    (package / "bert_padding.py").write_text(PADDING)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: flash-attn\nVersion: 2.8.3\n")
    (about / "top_level.txt").write_text("flash_attn\n")


def grouped_heads() -> bool:
    """Whether torch's FlashAttention takes fewer key-value heads than query heads."""
    import torch

    if not torch.cuda.is_available():
        return True
    query, key = (torch.randn(8, heads, 64, device="cuda", dtype=torch.bfloat16) for heads in (8, 2))
    ends = torch.tensor([0, 8], device="cuda", dtype=torch.int32)
    try:
        torch.ops.aten._flash_attention_forward(query, key, key, ends, ends, 8, 8, 0.0, True, False, scale=0.125)
        torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True


def start_server(folder: Path, work: Path, attention: str, tiny: bool) -> tuple[subprocess.Popen[bytes], str]:
    """``transformers serve`` of ``folder`` with continuous batching, and its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    flags = ["--cb-num-blocks", "64", "--cb-max-batch-tokens", "512"] if tiny else []
    flags = flags or ["--cb-num-blocks", "1024", "--cb-max-batch-tokens", "2048"]
    if not tiny and attention == "flash":
        flags += ["--attn-implementation", "flash_attention_2"]
    paths = [str(work / "flash")] if attention == "flash" else []
    env = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(work / "hub"),
        "PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")]),
        "PYTHONUNBUFFERED": "1",
    }
    words = ["serve", str(folder), "--continuous-batching", "--device", "cpu" if tiny else "cuda", "--port", str(port)]
    log = (work / f"{attention}.log").open("wb")
    code = "from transformers.cli.transformers import main; main()"
    command = [sys.executable, "-c", code, *words, "--host", "127.0.0.1", *flags]
    process = subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
    return process, f"http://127.0.0.1:{port}"


def await_server(process: subprocess.Popen[bytes], url: str, seconds: float = 60.0) -> None:
    """Until it answers. Raises RuntimeError when it ended or does not."""
    over = time.perf_counter() + seconds
    while time.perf_counter() < over:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with {process.returncode}")
        try:
            with urllib.request.urlopen(url + "/health", timeout=2) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise RuntimeError(f"no answer within {seconds:.0f} s")


def stop(process: subprocess.Popen[bytes]) -> None:
    """End the process group that :func:`start_server` began."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
