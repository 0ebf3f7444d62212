"""Imported once for all ranks of these tests: models of Transformers take seconds to import."""

from __future__ import annotations

import importlib.util

if importlib.util.find_spec("transformers") is not None:
    from gpuwise.workload.capture.packages import transformers

    for name in ("LlamaForCausalLM", "MixtralForCausalLM", "Qwen3MoeForCausalLM", "GPT2LMHeadModel"):
        getattr(transformers(), name)
