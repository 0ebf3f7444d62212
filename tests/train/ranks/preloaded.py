"""Imported once for all ranks of these tests: models of Transformers take seconds to import. The process that ranks are forked
from finds this file by ``PYTHONPATH``, which none of them is to have."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

sys.path.remove(str(Path(__file__).parent))
del os.environ["PYTHONPATH"]
if importlib.util.find_spec("transformers") is not None:
    from gpuwise.workload.capture.packages import transformers

    for name in ("LlamaForCausalLM", "MixtralForCausalLM", "Qwen3MoeForCausalLM", "GPT2LMHeadModel"):
        getattr(transformers(), name)
