"""TensorRT-LLM. Flags are those of ``trtllm-serve`` (tensorrt_llm/commands/serve.py, docs/source/features/lora.md)."""

from __future__ import annotations

import shlex

from gpuwise.serve.engines.engine import PORT, Command, Engine, Start, drafter_path
from gpuwise.serve.engines.settings import EAGLE, EAGLE3, MTP, NGRAM

OPTIONS_FILE = "trtllm.yml"
EXPERT_KERNELS = {
    "bf16": ("moe_torch_flow_cutlass", "moe_torch_flow"),
    "fp8": ("moe_torch_flow_cutlass",),
    "fp8_block": ("moe_torch_flow_cutlass",),
    "w4a16_mxfp4": ("moe_torch_flow",),
    "w4a8_mxfp4_mxfp8": ("moe_torch_flow",),
}


class TensorRTLLM(Engine):
    """TensorRT-LLM."""

    name = "trtllm"
    title = "TensorRT-LLM"
    aliases = ("tensorrt-llm",)
    newest = "1.2.0"
    expert_kernels = EXPERT_KERNELS
    script = "TensorRT-LLM"

    def words(self, start: Start) -> list[str]:
        c, o = start.config, start.options
        words = ["trtllm-serve", start.model, "--tp_size", str(c.ranks)]
        if c.moe_ep > 1:
            words += ["--ep_size", str(c.moe_ep)]
        words += ["--max_seq_len", str(start.context)]
        words += ["--max_num_tokens", str(o.max_num_batched_tokens), "--max_batch_size", str(o.max_num_seqs)]
        words += ["--kv_cache_free_gpu_memory_fraction", f"{o.memory_share:g}", "--port", str(PORT)]
        words += ["--enable_chunked_prefill"] if o.chunked_prefill else []
        return words if self.file(start) is None else [*words, "--config", OPTIONS_FILE]

    def file(self, start: Start) -> tuple[str, str] | None:
        """Options that it reads only from a file (tensorrt_llm/llmapi/llm_args.py)."""
        c, o = start.config, start.options
        cache = ["  dtype: fp8"] if c.kv_dtype == "fp8" else []
        cache += [] if o.prefix_caching else ["  enable_block_reuse: false"]
        lines = ["enable_attention_dp: true"] if c.attention_dp > 1 else []
        lines += ["cuda_graph_config: null"] if o.eager else []
        if cache:  # the file's group replaces the flag's
            lines += ["kv_cache_config:", f"  free_gpu_memory_fraction: {o.memory_share:g}", *cache]
        if o.scheduler == "max_utilisation":
            lines += ["scheduler_config:", "  capacity_scheduler_policy: MAX_UTILIZATION"]
        if o.drafts is not None:
            kind = o.drafts.drafter_of(start.arch)
            name = {MTP: "MTP", NGRAM: "NGram", EAGLE: "Eagle", EAGLE3: "Eagle3"}.get(kind, "DraftTarget")
            lines += ["speculative_config:", f"  decoding_type: {name}", f"  max_draft_len: {o.drafts.tokens}"]
            if kind not in (MTP, NGRAM):
                lines += [f"  speculative_model: {drafter_path(kind)}"]
        if o.adapters is not None:
            a, dense = o.adapters, start.arch.moe is None
            modules = ["attn_q", "attn_k", "attn_v", "attn_dense"] + (["mlp_h_to_4h", "mlp_gate", "mlp_4h_to_h"] if dense else [])
            lines += ["lora_config:", f"  lora_target_modules: [{', '.join(modules)}]", f"  max_lora_rank: {a.rank}"]
            lines += [f"  max_loras: {a.at_once}", f"  max_cpu_loras: {a.count}"]
        return (OPTIONS_FILE, "".join(f"{line}\n" for line in lines)) if lines else None

    def on_hosts(self, start: Start, hosts: int, note: str) -> tuple[Command, ...]:
        ranks = ["mpirun", "-n", str(start.config.ranks), "--hostfile", "HOSTS", "trtllm-llmapi-launch"]
        line = shlex.join([*ranks, *self.words(start)])
        return (Command(self.name, line, "HOSTS names the hosts and their ranks", self.file(start)),)
