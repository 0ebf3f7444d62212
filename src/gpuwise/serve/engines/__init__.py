"""Serving engines: one file each (with a TOML file for releases that differ), behind one class (:mod:`.engine`).

No other package compares an engine's name: differences between engines are fields or methods here.
"""

from gpuwise.facts.plugins import plugin_attributes
from gpuwise.serve.engines.engine import ENGINES
from gpuwise.serve.engines.llama_cpp import LlamaCpp
from gpuwise.serve.engines.mlx import MLX
from gpuwise.serve.engines.sglang import SGLang
from gpuwise.serve.engines.trtllm import TensorRTLLM
from gpuwise.serve.engines.vllm import VLLM

_SHIPPED = (VLLM(), SGLang(), TensorRTLLM(), LlamaCpp(), MLX())
ENGINES.update({engine.name: engine for engine in (*_SHIPPED, *plugin_attributes("engines"))})
