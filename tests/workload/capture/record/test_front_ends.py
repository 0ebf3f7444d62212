"""The captured front end against the analytic one on the same transformers: FLOP equal, bytes by category."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from gpuwise.facts.models.configs import architecture_from_config  # noqa: E402
from gpuwise.predict.memory.timeline import memory_timeline  # noqa: E402
from gpuwise.workload.blocks.point import Point  # noqa: E402
from gpuwise.workload.capture.captured import Capture  # noqa: E402
from gpuwise.workload.row_codes import Phase  # noqa: E402
from gpuwise.workload.stacks.stack import find_stack  # noqa: E402
from gpuwise.workload.transformer.parameters import count_parameters  # noqa: E402
from gpuwise.workload.transformer.tables import transformer_tables  # noqa: E402

TINY = {
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1024,
    "max_position_embeddings": 512,
    "use_cache": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GPT2 = {
    "n_embd": 256,
    "n_layer": 3,
    "n_head": 4,
    "vocab_size": 1024,
    "n_positions": 512,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
    "use_cache": False,
    "activation_function": "gelu",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
BATCH, SEQ = 4, 512


def _config(kind: str, dtype: Any, **changes: Any) -> Any:
    """A transformers configuration; torchvision, which some builds lack a binary for, is not needed for these."""
    from studies.networks import support as zoo_support

    if importlib.util.find_spec("torchvision") is not None:
        zoo_support.torchvision()  # transformers imports it
    transformers = zoo_support.transformers()
    base = GPT2 if kind == "GPT2Config" else TINY
    return getattr(transformers, kind)(**{**base, **changes}, dtype=dtype)


def _analytic(config: Any, precision: str, batch: int, seq: int) -> tuple[Any, Any]:
    values = {k: v for k, v in config.to_dict().items() if k != "dtype"}
    arch = architecture_from_config(values)
    # transformers hands grouped keys to SDPA as they are when there is no mask; nothing is cast under no autocast
    stack = replace(find_stack("eager-fsdp"), native_gqa=True)
    point = Point(
        micro_batch=batch,
        seq_len=seq,
        precision=precision,
        stack=stack,
    )
    return arch, transformer_tables(arch, point)


def _capture(config: Any, batch: int = BATCH, seq: int = SEQ) -> Capture:
    import gpuwise

    return gpuwise.capture(config, batch=batch, seq=seq)


def _flop(tables: Any, phase: Phase) -> float:
    whole = sum(t.total_flop(phase) * tables.layer_counts[k] for k, t in tables.layers.items())
    return float(whole + tables.embedding.total_flop(phase) + tables.head.total_flop(phase))


CASES = [
    ("LlamaConfig", "bf16", {}),
    ("Qwen2Config", "bf16", {}),
    ("MistralConfig", "bf16", {"sliding_window": None}),
    ("GPT2Config", "bf16", {}),
    ("LlamaConfig", "fp32", {"num_key_value_heads": 4}),
]


@pytest.mark.parametrize(("kind", "precision", "changes"), CASES)
def test_flop_are_equal_and_bytes_agree(kind: str, precision: str, changes: dict[str, Any]) -> None:
    config = _config(kind, torch.bfloat16 if precision == "bf16" else torch.float32, **changes)
    captured = _capture(config)
    arch, tables = _analytic(config, precision, BATCH, SEQ)
    span = captured.steady
    steady = slice(span.first_op, span.end_op)
    flop = np.array([s.flop for s in captured.signatures])[captured.op_signature[steady]]
    mine = {phase: float(flop[captured.op_phase[steady] == phase].sum()) for phase in Phase}
    for phase in (Phase.FORWARD, Phase.BACKWARD):
        assert mine[phase] == _flop(tables, phase)
    assert captured.flop() == sum(mine.values())
    width = 2 if precision == "bf16" else 4
    parameters = count_parameters(arch).total
    timeline = memory_timeline(captured)
    most = dict(zip(timeline.categories, timeline.bytes_by_category.max(axis=1).tolist(), strict=True))
    assert captured.parameter_count == parameters
    assert most["parameters"] == most["gradients"] == width * parameters
    assert most["optimizer states"] == 2 * width * parameters
    kept = sum(float((t.saved_bytes * t.count).sum()) * tables.layer_counts[k] for k, t in tables.layers.items())
    kept += sum(float((t.saved_bytes * t.count).sum()) for t in (tables.embedding, tables.head))
    backward = next(phase for phase in timeline.phases if phase.name == "backward")
    activations = timeline.bytes_by_category[timeline.categories.index("activations")]
    assert activations[backward.first - 1] == pytest.approx(kept, rel=0.01)


@pytest.mark.parametrize(
    ("kind", "changes", "batch", "seq"),
    [
        ("GPT2Config", {"n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257, "n_positions": 1024}, 8, 1024),
        (
            "LlamaConfig",
            {
                "hidden_size": 4096,
                "intermediate_size": 14336,
                "num_hidden_layers": 32,
                "num_attention_heads": 32,
                "num_key_value_heads": 8,
                "vocab_size": 128256,
                "max_position_embeddings": 8192,
            },
            1,
            2048,
        ),
    ],
)
def test_full_size_models_have_the_flop_of_the_analytic_front_end(
    kind: str, changes: dict[str, Any], batch: int, seq: int
) -> None:
    config = _config(kind, torch.bfloat16, **changes)
    captured = _capture(config, batch, seq)
    arch, tables = _analytic(config, "bf16", batch, seq)
    assert captured.flop() == _flop(tables, Phase.FORWARD) + _flop(tables, Phase.BACKWARD)
    assert captured.parameter_count == count_parameters(arch).total
    assert captured.peak_bytes(0) <= captured.peak_bytes(1)
