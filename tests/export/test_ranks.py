"""Our own ranks from a plan: read back by the ranks' own reader, started by torchrun, and the same training as the Trainer's."""

from __future__ import annotations

import ast
import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpuwise.export.job import Job
from gpuwise.export.ranks import shard_group
from gpuwise.export.targets import TOOLS, gaps_of, write
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.catalogue import find_model
from gpuwise.workload.strategy import Strategy

Jobs = Callable[..., Iterator[Job]]
STACKS = ("eager", "hf-fsdp", "compiled-fsdp", "eager-fsdp")
N = 200
"""Jobs drawn."""
TORCHRUN = TOOLS["torchrun"]


def _plain(job: Job, i: int) -> Job:
    """Without what is drawn more often than these ranks have it."""
    s = replace(job.strategy, precision=("bf16", "fp32", "tf32")[i % 3], recompute=("none", "full")[i % 2], master_weights=True)
    s = replace(s, optimizer=("adamw", "sgd", "momentum")[i % 3], gradient_dtype="fp32", offload_optimizer=False, lora_rank=0)
    s = replace(s, fused_loss=False, step_in_backward=False)
    return replace(job, strategy=replace(s, offload_activations=False))


def test_the_ranks_read_their_settings_back(jobs: Jobs, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from torch.distributed.run import get_args_parser

    from gpuwise.train.ranks.layout import layout_of
    from gpuwise.train.ranks.settings import read_settings

    found: list[Job] = []
    for stack in STACKS:
        drawn = (_plain(job, i) for i, job in enumerate(jobs(stack, 600)))
        found += itertools.islice((job for job in drawn if not gaps_of(job, TORCHRUN)), N // len(STACKS))
    assert len(found) == N
    for job in found:
        made = write(job, TORCHRUN)
        (tmp_path / "settings.json").write_text(made.files["settings.json"])
        read, s = read_settings(tmp_path / "settings.json"), job.strategy
        assert read.layout == layout_of(s, shard_group(job))
        assert read.layout.n_ranks == job.cluster.n_accelerators and read.layout.global_batch == s.global_batch
        assert s.sharding != "hybrid" or s.dp % read.layout.shard_group == 0
        assert (read.steps, read.save_every) == (job.n_steps, job.save_every)
        words = get_args_parser().parse_args(list(made.command[1:]))
        assert int(words.nproc_per_node) * int(words.nnodes.split(":")[0]) == read.layout.n_ranks
        assert (words.module, words.training_script) == (True, "gpuwise.train.ranks.child")
        ast.parse(made.files["train.py"])


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"pp": 2, "dp": 4, "schedule": "1f1b", "virtual_stages": 2}, "2 stages on a rank"),
        ({"pp": 2, "dp": 2, "cp": 2}, "context parallel 2 with pipeline stages"),
        ({"cp": 2, "dp": 4, "fused_attention": False}, "rows shared without fused attention"),
        ({"ep": 2}, "expert parallel 2"),
        ({"sharding": "zero1"}, "zero1"),
        ({"precision": "fp8"}, "fp8"),
        ({"lora_rank": 8, "quantized_base": True, "tp": 2, "dp": 4, "sharding": "zero3"}, "4-bit weights that are sharded or"),
        ({"lora_rank": 8, "quantized_base": True, "sharding": "zero3"}, "4-bit weights that are sharded"),
    ],
)
def test_what_ranks_have_not_is_named(changes: dict[str, object], word: str) -> None:
    strategy = replace(Strategy(dp=8), **changes)  # type: ignore[arg-type]
    job = Job(find_model("llama-3.1-8b"), find_cluster("8xH100-SXM"), strategy, 4096)
    assert any(word in gap for gap in gaps_of(job, TORCHRUN))


# --- the same plan, trained by each tool ---

ROWS, SEQ, STEPS = 4, 24, 4
PRINTED = 6e-4
"""Losses are printed with four digits."""
WORDS = [f"w{i}" for i in range(40)]


@pytest.fixture
def tiny(tmp_path: Path, transformers_loads: None) -> Path:
    """A Llama of two layers with a tokenizer of 40 words, and four rows of text, all of which are in every step."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({w: i for i, w in enumerate(["<eos>", *WORDS])}, unk_token="<eos>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<eos>").save_pretrained(tmp_path / "model")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=41, num_hidden_layers=2, max_position_embeddings=64, **sizes))
    model.save_pretrained(tmp_path / "model")
    (tmp_path / "data").mkdir()
    lines = [" ".join(WORDS[(r * 7 + i * (r + 1)) % 40] for i in range(SEQ - 1)) for r in range(ROWS)]
    (tmp_path / "data" / "train.txt").write_text("\n".join(lines) + "\n")
    return tmp_path


def _build_shared_memory() -> None:
    """DeepSpeed's exchange of one machine's processes, into PyTorch's folder of extensions, where it stays: a minute of a core or
    two, once. A training that is stopped in it leaves nothing and starts it anew."""
    builder = "from deepspeed.ops.op_builder.cpu.comm import ShareMemCommBuilder as B; B().load()"
    place = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # of ninja
    subprocess.run(
        [sys.executable, "-c", builder], env={**os.environ, "PATH": place, "DS_ACCELERATOR": "cpu"}, check=True, timeout=1800
    )


def _trained(tool: str, tiny: Path, sharding: str, more: tuple[str, ...] = ()) -> list[float]:
    """Losses of the steps of the exported files, run by their launcher on two processes without a GPU."""
    stack = "deepspeed" if tool == "deepspeed" else "eager-fsdp"
    strategy = Strategy(dp=2, micro_batch=1, accumulation=2, precision="fp32", sharding=sharding, recompute="none", stack=stack)
    tokens = float(STEPS * ROWS * SEQ)
    job = Job(
        find_model("llama-3.1-8b"),
        find_cluster("2xH100-SXM"),
        strategy,
        SEQ,
        tokens=tokens,
        data=str(tiny / "data"),
        learning_rate=0.02,
    )
    made = write(job, TOOLS[tool])
    folder = tiny / tool
    folder.mkdir()
    for name, text in made.files.items():
        (folder / name).write_text(text.replace('MODEL = "meta-llama/Llama-3.1-8B"', f'MODEL = "{tiny / "model"}"'))
    offline = {
        "HF_DATASETS_OFFLINE": "1",
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_CACHE": str(tiny / "cache"),
        "CUDA_VISIBLE_DEVICES": "",
    }
    accelerate = made.command[0] == "accelerate"
    launcher = ["accelerate.commands.launch", *made.command[2:]] if accelerate else ["torch.distributed.run", *made.command[1:]]
    done = subprocess.run(
        [sys.executable, "-m", *launcher, *more],
        cwd=folder,
        env={**os.environ, **made.environment, **offline, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    if tool == "torchrun":
        steps = [json.loads(line) for line in (folder / "out" / "rank-0.jsonl").read_text().splitlines()]
        return [s["loss"] for s in steps if s["event"] == "step"]
    return [float(x) for x in re.findall(r"'loss': '?([0-9.]+)", done.stdout)]


@pytest.mark.slow
@pytest.mark.parametrize("sharding", ["none", "zero2"])
def test_every_tool_trains_the_plan_to_the_same_losses(sharding: str, tiny: Path) -> None:
    pytest.importorskip("datasets")
    pytest.importorskip("accelerate")
    ours = _trained("torchrun", tiny, sharding)
    assert len(ours) == STEPS and ours[-1] < ours[0] - 0.3
    cpu = ("--use_cpu", "--logging_steps", "1", "--report_to", "none", "--save_strategy", "no")
    for tool in ("trainer", "accelerate") if sharding == "none" else ():
        assert _trained(tool, tiny, sharding, cpu) == pytest.approx(ours, abs=PRINTED), tool
    if sharding == "zero2":
        pytest.importorskip("deepspeed")
        _build_shared_memory()
        assert _trained("deepspeed", tiny, sharding, cpu) == pytest.approx(ours, abs=PRINTED)
