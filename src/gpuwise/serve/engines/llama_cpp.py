"""llama.cpp. Flags are those of ``llama-server`` (llama.cpp tools/server/README.md)."""

from __future__ import annotations

from gpuwise.predict.memory.kv_cache import CacheLayout
from gpuwise.serve.engines.engine import PORT, Engine, Start
from gpuwise.serve.engines.settings import EngineRules, Tier
from gpuwise.serve.formats import FORMAT_OF_BITS, FORMATS, LLAMA_CPP_FORMATS

LAYOUT = CacheLayout("fp16", page_tokens=256, chunk_tokens=512, spare_pages=0, grouped=False, window_everywhere=False)
BY_BITS = {bits: FORMATS[name].llama_cpp for bits, name in FORMAT_OF_BITS.items()}
RULES = EngineRules(
    since="0",
    source="llama.cpp build 6918 tools/server/server.cpp update_slots, get_available_slot; common/common.h common_params",
    scheduler="slots",
    pool="slots",
    block_tokens=1,
    ahead=False,
    tiers=(Tier(1e9, tokens=2048, sequences=4, graph_most=1, group_graph_most=1),),  # n_batch, n_parallel
    memory_share=1.0,
)


class LlamaCpp(Engine):
    """llama.cpp."""

    name = title = "llama.cpp"
    aliases = ("llama-cpp", "llamacpp")
    newest = "6918"
    formats = LLAMA_CPP_FORMATS
    by_bits = BY_BITS
    checkpoint = "a GGUF file of {model} in {weights}"
    cache = LAYOUT
    rules = RULES
    in_turn = 8
    """As many as a measured run spread its layers over."""
    streams = "single_stream"

    def words(self, start: Start) -> list[str]:
        """All slots share ``--ctx-size``."""
        c, o = start.config, start.options
        slots = o.max_num_seqs or 1
        stored = start.arch.source if start.arch.stored_bytes is not None else f"{start.arch.id}-{c.weights}.gguf"
        words = ["llama-server", "--model", stored, "--n-gpu-layers", "999"]
        words += ["--parallel", str(slots), "--ctx-size", str(slots * start.context)]
        words += ["--batch-size", str(o.max_num_batched_tokens)]
        words += ["--port", str(PORT)] + ([] if o.prefix_caching else ["--no-cache-prompt"])
        return words + (["--split-mode", "layer"] if c.pp > 1 else [])
