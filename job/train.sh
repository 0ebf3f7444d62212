#!/usr/bin/env bash
# torchtitan 0.3.0: Llama 3.1 8B on 16x H100 SXM5 80GB (2 systems of 8). Run on every node.
set -euo pipefail
: "${HEAD_NODE:?name or address of the first node}"
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=240
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
exec torchrun --nproc-per-node 8 --nnodes 2 --rdzv-backend c10d --rdzv-id llama-3-1-8b \
  --rdzv-endpoint "$HEAD_NODE:29500" --max-restarts 3 -m torchtitan.train --module llama3 \
  --config llama3_8b --hf_assets_path ./assets/hf/Llama-3.1-8B --training.local_batch_size 1 \
  --training.global_batch_size 512 --training.seq_len 8192 --training.steps 3577 \
  --parallelism.data_parallel_shard_degree 8 --parallelism.data_parallel_replicate_degree 2 \
  --parallelism.tensor_parallel_degree 1 --parallelism.pipeline_parallel_degree 1 \
  --parallelism.context_parallel_degree 1 --parallelism.expert_parallel_degree 1 \
  --parallelism.fsdp_reshard_after_forward always --compile.enable --checkpoint.enable \
  --checkpoint.folder out --checkpoint.interval 1087 activation-checkpoint:none
