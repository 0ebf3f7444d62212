"""MLX LM on Apple's chips (mlx-lm 0.32.0). Flags are those of ``mlx_lm.server`` (mlx_lm/server.py)."""

from __future__ import annotations

from types import MappingProxyType

from gpuwise.predict.memory.kv_cache import CacheLayout
from gpuwise.serve.engines.engine import PORT, Engine, Start
from gpuwise.serve.engines.settings import EngineRules, Tier
from gpuwise.serve.formats import MLX_FORMATS

STEP = 2048
"""Tokens of a prompt at once (``--prefill-step-size``)."""
PROMPTS = 8
"""Read at once (``--prompt-concurrency``)."""
LAYOUT = CacheLayout("fp16", page_tokens=256, chunk_tokens=STEP, spare_pages=0, grouped=False, window_everywhere=False)
"""mlx_lm/models/cache.py: KVCache and RotatingKVCache grow by 256; a window keeps what a step computes at once besides."""
RULES = EngineRules(
    since="0.29",
    source="mlx-lm 0.32.0 mlx_lm/generate.py BatchGenerator, mlx_lm/server.py main, _generate; batches since 0.29.0 (6b429014)",
    scheduler="batches",
    pool="slots",
    block_tokens=1,
    ahead=False,
    tiers=(Tier(1e9, tokens=STEP, sequences=32, graph_most=1, group_graph_most=1),),  # --decode-concurrency
    memory_share=1.0,
    prompts=PROMPTS,
)


class MLX(Engine):
    """MLX LM: one process on the GPU of one machine. Its memory limit is Metal's recommended working set
    (mlx_lm/generate.py ``wired_limit``), which :data:`gpuwise.serve.memory.UNIFIED_SHARE` is."""

    name = "mlx-lm"
    title = "MLX LM"
    aliases = ("mlx",)
    newest = "0.32.0"
    formats = ("bf16", *MLX_FORMATS)
    by_bits = MappingProxyType({16: "bf16", 8: "mlx_8bit", 4: "mlx_4bit"})
    checkpoint = "a folder with {model} in {weights}: mlx_lm.convert --hf-path {model} makes it, with -q --q-bits for fewer bits"
    served_as = "default_model"
    cache = LAYOUT
    rules = RULES
    in_turn = 1
    place = "sequence"
    streams = "mlx_stream"
    prompt_batch = STEP
    buffer_bytes = 2.0
    listed_only = True

    def words(self, start: Start) -> list[str]:
        """The model's folder is named by its format; the server has no limit of a request's length."""
        c, o = start.config, start.options
        sequences = o.max_num_seqs or 1
        words = ["mlx_lm.server", "--model", f"{start.arch.id}-{c.weights.removeprefix('mlx_')}", "--port", str(PORT)]
        words += ["--decode-concurrency", str(sequences), "--prompt-concurrency", str(min(PROMPTS, sequences))]
        words += ["--prefill-step-size", str(o.max_num_batched_tokens)]
        return words + ([] if o.prefix_caching else ["--prompt-cache-bytes", "0"])
