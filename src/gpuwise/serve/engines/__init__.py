"""Serving engines: a file each (releases in a TOML file beside it where they differ), behind one class (:mod:`.engine`).

No other room asks for an engine by its name: what differs between engines is a field or a method here.
"""

from gpuwise.serve.engines.engine import ENGINES
from gpuwise.serve.engines.llama_cpp import LlamaCpp
from gpuwise.serve.engines.mlx import MLX
from gpuwise.serve.engines.sglang import SGLang
from gpuwise.serve.engines.trtllm import TensorRTLLM
from gpuwise.serve.engines.vllm import VLLM

ENGINES.update({engine.name: engine for engine in (VLLM(), SGLang(), TensorRTLLM(), LlamaCpp(), MLX())})
