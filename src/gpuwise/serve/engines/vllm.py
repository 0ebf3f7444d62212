"""vLLM. Flags are those of ``vllm serve`` (vllm 0.33.0 engine/arg_utils.py); prompts read apart:
docs/features/nixl_connector_usage.md."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence

from gpuwise.facts.models.architecture import Architecture
from gpuwise.facts.models.catalogue import find_model
from gpuwise.serve.engines.engine import DRAFT, HEAD, PORT, Command, Engine, Start, Unpacked, model_name
from gpuwise.serve.engines.settings import DRAFTERS, MTP, NGRAM, NGRAM_MOST, Drafts
from gpuwise.serve.formats import BNB, LLAMA_CPP_FORMATS, TILED, WIDENED

NIXL_PORT = 5600
"""First side channel between replicas that read and that write."""

QUANTIZATION = {"fp8": "fp8", "int8_wo": "int8_per_channel_weight_only", BNB: "bitsandbytes"}
"""vllm 0.33.0 model_executor/layers/quantization/__init__.py."""
EXPERT_KERNELS = {
    "bf16": (
        "vllm_unquantizedfusedmoe_triton_tritonexperts",
        "vllm_unquantizedfusedmoe_flashinfer_trtllm_trtllmbf16experts",
    ),
    "fp8": (
        "vllm_modeloptfp8moe_flashinfer_trtllm_trtllmfp8expertsmonolithic",
        "vllm_modeloptfp8moe_flashinfer_cutlass_flashinferexperts",
    ),
    "fp8_block": (
        "vllm_fp8moe_flashinfer_trtllm_trtllmfp8expertsmonolithic",
        "vllm_fp8moe_triton_tritonexperts",
    ),
    "nvfp4": ("vllm_compressedtensorsw4a4nvfp4moe_flashinfer_trtllm_trtllmnvfp4expertsmonolithic",),
    "int4_wo": ("vllm_compressedtensorswna16marlinmoe_marlin_marlinexperts",),
    "w4a16_mxfp4": (
        "vllm_gptossmxfp4moe_triton_oaitritonmxfp4expertsmonolithic",
        "vllm_gptossmxfp4moe_marlin_marlinexperts",
    ),
    "w4a8_mxfp4_mxfp8": ("vllm_mxfp4moe_flashinfer_trtllm_mxfp4_mxfp8_trtllmmxfp4expertsmodular",),
}
FLASHINFER_EXPERTS = {"fp8": "0.15", "fp8_block": "0.15", "bf16": "0.18"}
"""vllm pull requests 32414, 36286."""
PADDED_EXPERTS = {"fp8_block": ("0.11", "0.15")}
"""DeepGEMM by default (vllm-project/recipes 120: "enabled by default"; vllm pull requests 24462, 39331: each expert's rows are
padded to 128, and Hopper prefers Triton again); with eight tensor ranks not since 0.12 (vllm pull request 29346)."""

_GGUF = Unpacked("0.5.5", "0.24", "vllm-gguf-plugin")
"""vllm pull requests 5191, 39612."""
_BNB = Unpacked("0.5.0", "0.28", "vllm-bnb-plugin")
"""vllm pull requests 4776, 43529."""
UNPACKED = {BNB: _BNB} | {name: _GGUF for name in LLAMA_CPP_FORMATS if TILED.fullmatch(name) or WIDENED.fullmatch(name)}
"""What vLLM reads in kernels of their own (:mod:`gpuwise.serve.unpacked`)."""


class VLLM(Engine):
    """The default engine.

    8-bit experts run on Hopper in Triton and DeepGEMM; those with one scale per tensor take the same times. The one measured
    alternative, FlashInfer's CUTLASS for ModelOpt checkpoints, must be enabled (layers/fused_moe/oracle/fp8.py,
    VLLM_USE_FLASHINFER_MOE_FP8) and is slower than 16 bits. MXFP4 is multiplied in 8 bits on Blackwell's data-centre parts;
    what is neither these nor Hopper runs Marlin (layers/quantization/mxfp4.py, get_mxfp4_backend).
    """

    name = "vllm"
    title = "vLLM"
    newest = "0.33.0"
    unpacked = UNPACKED
    quantization = QUANTIZATION
    within_cache = True  # v1/core/kv_cache_utils.py, check_enough_kv_cache_memory
    stages = True
    vocabulary_step = 64  # layers/vocab_parallel_embedding.py, DEFAULT_VOCAB_PADDING_SIZE
    refused_in_fp16 = ("gemma-2", "gemma-3")  # config/model.py, _FLOAT16_NOT_SUPPORTED_MODELS
    fp8_cache_since = (8, 9)  # Triton converts to fp8 from there on (issue 26431, pull request 49077)
    encoder_graphs_since = "0.13"  # vllm-project/vllm pull request 30072
    expert_kernels = EXPERT_KERNELS
    flashinfer_experts = FLASHINFER_EXPERTS
    padded_experts = PADDED_EXPERTS
    fp8_experts_in_blocks = ("Hopper",)
    mxfp8_experts = ("Blackwell",)
    marlin_experts = True
    spread_words = ("--all2all-backend", "deepep_low_latency", "--enable-eplb", "--enable-dbo")
    script = "vllm 0.33"

    def words(self, start: Start) -> list[str]:
        c, o = start.config, start.options
        words = ["vllm", "serve", start.model, "--tensor-parallel-size", str(c.tp)]
        if c.pp > 1:
            words += ["--pipeline-parallel-size", str(c.pp)]
        if c.attention_dp > 1:
            words += ["--data-parallel-size", str(c.attention_dp)]
        if c.moe_ep > 1:
            words += ["--enable-expert-parallel"]
        if c.weights in self.quantization:
            words += ["--quantization", self.quantization[c.weights]]
        words += ["--dtype", "half"] if start.half else []
        if c.kv_dtype != "bf16":
            words += ["--kv-cache-dtype", c.kv_dtype]
        words += ["--max-model-len", str(start.context)]
        words += ["--max-num-batched-tokens", str(o.max_num_batched_tokens), "--max-num-seqs", str(o.max_num_seqs)]
        words += ["--gpu-memory-utilization", f"{o.memory_share:g}"]
        words += ["--enforce-eager"] if o.eager else []
        words += [] if o.chunked_prefill else ["--no-enable-chunked-prefill"]
        words += [] if o.prefix_caching else ["--no-enable-prefix-caching"]
        if o.drafts is not None:
            words += ["--speculative-config", json.dumps(_guesses(o.drafts, start.arch))]
        if o.adapters is not None:
            a = o.adapters
            words += ["--enable-lora", "--max-loras", str(a.at_once), "--max-cpu-loras", str(a.count)]
            words += ["--max-lora-rank", str(a.rank)]
        return words

    def host_words(self, host: int) -> list[str]:
        return ["--master-addr", HEAD] + (["--headless"] if host else [])

    def part(self, start: Start, role: str, number: int, port: int, host: str) -> tuple[str, list[str]]:
        transfer = {"kv_connector": "NixlConnector", "kv_role": "kv_both"}
        words = [*self.words(start), "--port", str(port), "--kv-transfer-config", json.dumps(transfer)]
        variables = f"VLLM_NIXL_SIDE_CHANNEL_PORT={NIXL_PORT + number}"
        return variables + (f" VLLM_NIXL_SIDE_CHANNEL_HOST={host}" if host else ""), words

    def router(self, parts: Mapping[str, Sequence[tuple[str, int]]]) -> Command:
        words = ["python", "tests/v1/kv_connector/nixl_integration/toy_proxy_server.py", "--port", str(PORT)]
        for role, name in (("prefill", "prefiller"), ("decode", "decoder")):
            words += [f"--{name}-hosts", *(h for h, _ in parts[role]), f"--{name}-ports", *(str(p) for _, p in parts[role])]
        return Command("proxy", shlex.join(words), "of vLLM's repository; its replicas need pip install nixl")


def _guesses(drafts: Drafts, arch: Architecture) -> dict[str, str | int]:
    """The value of ``--speculative-config`` (vllm 0.33.0 config/speculative.py)."""
    kind = drafts.drafter_of(arch)
    if kind not in DRAFTERS:
        return {"method": "draft_model", "model": model_name(find_model(kind)), "num_speculative_tokens": drafts.tokens}
    own: Mapping[str, str | int] = {} if kind == MTP else {"prompt_lookup_max": NGRAM_MOST} if kind == NGRAM else {"model": DRAFT}
    return {"method": kind, **own, "num_speculative_tokens": drafts.tokens}
