"""The Trainer's step on one GPU: the catalogue and a loop of few lines around the same modules hold the same memory.

The loop lets go of the model's output before the backward, as ``Trainer.compute_loss`` does, and updates with fused AdamW;
dropout is as the model's configuration has it. The steps are those measured on an H100 (``benchmarks/gpu/training_steps.py``),
cut to two layers.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.catalogue import find_model
from gpuwise.plan.step.estimates import measure
from gpuwise.predict.step.training import estimate
from gpuwise.workload.capture.api import capture
from gpuwise.workload.strategy import Strategy
from studies.networks import support as zoo_support

GPU, LAYERS, TOLERANCE, LIVE = "H100-SXM", 2, 0.05, 0.01
STEPS = Path(__file__).parents[2] / "benchmarks" / "gpu" / "training_steps.py"
HALF: dict[str, Any] = {"master_weights": False, "gradient_dtype": "bf16"}
LORA: dict[str, Any] = {**HALF, "lora_rank": 16}


def steps() -> ModuleType:
    """``training_steps.py``."""
    if importlib.util.find_spec("torchvision") is not None:
        zoo_support.torchvision()  # transformers imports it; some builds lack its binary
    spec = importlib.util.spec_from_file_location("training_steps", STEPS)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    made = module.built
    # as the Trainer does: a model made on the GPU leaves the tied head's first weight behind as a free block
    module.built = lambda make, device, dtype="float32": made(make, "cpu", dtype).to(device)
    return module


@dataclass(frozen=True, slots=True)
class Case:
    """``language``: arguments of the function of this name in ``training_steps.py``, with the name of the shape first; empty: a
    model of its own, of ``config`` and ``head``."""

    model: str
    batch: int
    seq: int
    strategy: dict[str, Any] = field(default_factory=dict[str, Any])
    shape: str = ""
    language: dict[str, Any] = field(default_factory=dict[str, Any])
    config: str = ""
    head: str = ""
    layers: str = ""


CASES = {
    "full": Case("llama-3.2-1b", 2, 2048, {}, "LLAMA_1B"),
    "half-weights": Case("llama-3.2-1b", 2, 2048, HALF, "LLAMA_1B", {"dtype": "bfloat16", "autocast": False}),
    "lora": Case("llama-3.2-1b", 2, 2048, LORA, "LLAMA_1B", {"dtype": "bfloat16", "lora": True}),
    "lora-checkpoint": Case(
        "llama-3.2-1b",
        2,
        2048,
        {**LORA, "recompute": "full"},
        "LLAMA_1B",
        {"dtype": "bfloat16", "lora": True, "checkpoint": True},
    ),
    "half-weights-checkpoint": Case(
        "qwen2.5-3b",
        2,
        2048,
        {**HALF, "recompute": "full"},
        "QWEN_3B",
        {"dtype": "bfloat16", "autocast": False, "checkpoint": True, "family": "Qwen2"},
    ),
    "gpt2-dropout": Case("gpt2", 8, 1024, config="GPT2Config", head="GPT2LMHeadModel", layers="n_layer"),
    "opt-dropout": Case("opt-125m", 8, 1024, config="OPTConfig", head="OPTForCausalLM", layers="num_hidden_layers"),
    "bert-dropout": Case("bert-base", 64, 128, config="BertConfig", head="BertModel", layers="num_hidden_layers"),
}


def loop(case: Case) -> Callable[[], Callable[[], object]]:
    """What makes the step of ``case`` on the pretended GPU."""
    written = steps()
    if case.shape:
        shape = {**getattr(written, case.shape), "num_hidden_layers": LAYERS}
        make = written.language(shape, batch=case.batch, length=case.seq, **case.language)
        return lambda: make(False, "cuda")

    def made() -> Callable[[], object]:
        import transformers

        config = getattr(transformers, case.config)(**{case.layers: LAYERS})
        config.use_cache = False
        model = written.built(lambda: getattr(transformers, case.head)(config), "cuda").train()
        ids = written.tokens(config.vocab_size, case.batch, case.seq, "cuda")

        def loss() -> Any:
            return (
                model(input_ids=ids).pooler_output.mean() if case.head == "BertModel" else model(input_ids=ids, labels=ids).loss
            )

        return written.trains(model, loss, written.adamw(model), autocast=True, device="cuda")

    return made


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")  # peft asks transformers so
@pytest.mark.parametrize("name", CASES)
def test_memory(name: str) -> None:
    case = CASES[name]
    if case.strategy.get("lora_rank"):
        pytest.importorskip("peft")
    card = find_cluster(GPU).accelerator
    own = measure(capture(loop(case), capability=(9, 0)), card)
    arch = replace(find_model(case.model), n_layers=LAYERS)
    strategy = Strategy(**{"precision": "bf16", "micro_batch": case.batch, "stack": "trainer", **case.strategy})
    named = estimate(arch, f"1x{GPU}", strategy, seq_len=case.seq)
    assert named.memory_bytes.expected == pytest.approx(own.memory_bytes.expected, rel=TOLERANCE)
    assert named.allocated_bytes.expected == pytest.approx(own.memory.allocated.expected, rel=LIVE)
