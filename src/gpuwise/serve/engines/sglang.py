"""SGLang. Flags are those of ``sglang.launch_server`` (sglang 0.5.23 srt/arg_groups/fields); prompts read apart:
docs/advanced_features/pd_disaggregation.md."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.serve.engines.engine import HEAD, PORT, Command, Engine, Start, drafter_path, version_number
from gpuwise.serve.engines.settings import DRAFTERS, MTP, NGRAM
from gpuwise.units import MIB

BOOTSTRAP_PORT = 8998
"""First side channel between replicas that read and that write."""
ATTENTION_GROUPS_SINCE = "0.5.23"
"""Release since which data-parallel attention has a separate flag (server_args.py)."""
QUANTIZATION = {"fp8": "fp8"}
"""sglang 0.5.23 srt/arg_groups/choices.py."""
EXPERT_KERNELS = {
    "bf16": ("sglang_flashinfer_trtllm_moe", "sglang_fused_moe_triton"),
    "fp8_block": ("sglang_flashinfer_trtllm_moe", "sglang_fused_moe_triton"),
    "nvfp4": ("sglang_flashinfer_trtllm_moe",),
    "w4a16_mxfp4": ("vllm_gptossmxfp4moe_triton_oaitritonmxfp4expertsmonolithic",),
}
"""gpt-oss' experts on Hopper are multiplied in OpenAI's triton_kernels as in vLLM (srt/server_args.py, moe_runner_backend
"triton_kernel" for GptOssForCausalLM)."""
FLASHINFER_EXPERTS = {"bf16": "0.5.8"}
"""Pull requests 11816 and 13489 of late 2025 do so for narrow formats alone."""


class SGLang(Engine):
    """SGLang."""

    name = "sglang"
    title = "SGLang"
    newest = "0.5.23"
    quantization = QUANTIZATION
    vocabulary_step = 64  # layers/vocab_parallel_embedding.py, DEFAULT_VOCAB_PADDING_SIZE
    expert_kernels = EXPERT_KERNELS
    flashinfer_experts = FLASHINFER_EXPERTS
    sorts_expert_rows = True  # layers/moe/ep_moe
    spread_words = ("--moe-a2a-backend", "deepep", "--enable-eplb", "--enable-two-batch-overlap")
    script = "sglang 0.5.23"

    def static_share(self, accelerator: Accelerator, tokens: int, graph_most: int, tp: int) -> float:
        """Memory left beside 0.5 GiB, 1.5 MiB per token of a step, an eighth of a GiB per rank and 2 MiB per sequence of the
        largest graph, at least 10 GiB on devices above 60 (arg_groups/memory_hook.py)."""
        memory = accelerator.memory_bytes / MIB
        reserve = 512.0 + 1.5 * max(tokens, 2048) + 128.0 * tp + 2.0 * graph_most
        if memory > 60 * 1024:
            reserve = max(reserve, 10 * 1024.0)
        return round((memory - reserve) / memory, 3)

    def words(self, start: Start) -> list[str]:
        """The tensor group holds the groups that attend apart."""
        c, o = start.config, start.options
        words = ["python", "-m", "sglang.launch_server", "--model-path", start.model, "--tp-size", str(c.ranks)]
        if c.attention_dp > 1:
            old = version_number(c.version or self.newest) < version_number(ATTENTION_GROUPS_SINCE)
            groups = str(c.attention_dp)
            words += ["--dp-size", groups, "--enable-dp-attention"] if old else ["--attn-dp-size", groups]
        if c.moe_ep > 1:
            words += ["--ep-size", str(c.moe_ep)]
        if c.weights in self.quantization:
            words += ["--quantization", self.quantization[c.weights]]
        words += ["--dtype", "half"] if start.half else []
        if c.kv_dtype != "bf16":
            words += ["--kv-cache-dtype", "fp8_e5m2" if c.kv_dtype == "fp8" else c.kv_dtype]
        words += ["--context-length", str(start.context)]
        assert o.max_num_batched_tokens is not None
        words += ["--chunked-prefill-size", str(o.max_num_batched_tokens * c.attention_dp if o.chunked_prefill else -1)]
        words += ["--max-running-requests", str(o.max_num_seqs), "--mem-fraction-static", f"{o.memory_share:g}"]
        words += ["--port", str(PORT)]
        words += ["--disable-cuda-graph"] if o.eager else []
        words += [] if o.prefix_caching else ["--disable-radix-cache"]
        if o.drafts is not None:
            k, kind = o.drafts.tokens, o.drafts.drafter_of(start.arch)
            words += ["--speculative-algorithm", {MTP: "NEXTN"}.get(kind, kind.upper()) if kind in DRAFTERS else "STANDALONE"]
            if kind not in (MTP, NGRAM):
                words += ["--speculative-draft-model-path", drafter_path(kind)]
            if kind != NGRAM:
                words += ["--speculative-num-steps", str(k), "--speculative-eagle-topk", "1"]
            words += ["--speculative-num-draft-tokens", str(k + 1)]
        if o.adapters is not None:
            a = o.adapters
            words += ["--enable-lora", "--lora-target-modules", "all", "--max-lora-rank", str(a.rank)]
            words += ["--max-loras-per-batch", str(a.at_once), "--max-loaded-loras", str(a.count)]
        return words

    def host_words(self, host: int) -> list[str]:
        return ["--dist-init-addr", f"{HEAD}:20000"]

    def part(self, start: Start, role: str, number: int, port: int, host: str) -> tuple[str, list[str]]:
        words = self.words(start)
        words[words.index("--port") + 1] = str(port)
        words += ["--disaggregation-mode", role, "--disaggregation-transfer-backend", "nixl"]
        words += ["--disaggregation-bootstrap-port", str(BOOTSTRAP_PORT + number)] if role == "prefill" else []
        return "", words

    def router(self, parts: Mapping[str, Sequence[tuple[str, int]]]) -> Command:
        words = ["python", "-m", "sglang_router.launch_router", "--pd-disaggregation"]
        for i, (host, port) in enumerate(parts["prefill"]):
            words += ["--prefill", f"http://{host}:{port}", str(BOOTSTRAP_PORT + i)]
        for host, port in parts["decode"]:
            words += ["--decode", f"http://{host}:{port}"]
        words += ["--host", "0.0.0.0", "--port", str(PORT)]
        return Command("router", shlex.join(words), "pip install sglang-router")
