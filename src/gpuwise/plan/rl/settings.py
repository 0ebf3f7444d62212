"""The step as settings of TRL and verl: what these programs' own configurations call its parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwise.facts.models.architecture import Architecture

if TYPE_CHECKING:
    from gpuwise.plan.rl.step import RlStep

TRL, VERL = "trl 1.16", "verl 0.8"
TRL_COMMANDS = {"dpo": "dpo", "grpo": "grpo", "rloo": "rloo"}
"""``trl/trainer/*_config.py``: it has no PPO."""
VERL_ESTIMATORS = {"grpo": "grpo", "rloo": "rloo", "ppo": "gae"}
"""``algorithm.adv_estimator``: it has no DPO."""


def settings_of(arch: Architecture, step: RlStep, steps: int) -> dict[str, list[str]]:
    """Options by program; a program that has no such algorithm is missing."""
    found: dict[str, list[str]] = {}
    if step.recipe.task.name in TRL_COMMANDS:
        found[TRL] = _trl(arch, step, steps)
    if step.recipe.task.name in VERL_ESTIMATORS:
        found[VERL] = _verl(arch, step, steps)
    return found


def _checkpoint(arch: Architecture) -> str:
    return next((a for a in arch.aliases if "/" in a), "MODEL")


def _trl(arch: Architecture, step: RlStep, steps: int) -> list[str]:
    s, r, g, recipe = step.training.strategy, step.recipe.rollouts, step.generation, step.recipe
    lines = [
        f"trl {TRL_COMMANDS[recipe.task.name]} --model_name_or_path {_checkpoint(arch)} --dataset_name DATA",
        f"--learning_rate {recipe.task.learning_rate:g} --max_steps {steps * recipe.updates}",
        f"--per_device_train_batch_size {s.micro_batch} --gradient_accumulation_steps {s.accumulation}",
        f"--gradient_checkpointing {s.recompute == 'full'} --bf16 {s.precision == 'bf16'}",
    ]
    if s.lora_rank:
        lines.append(f"--use_peft --lora_r {s.lora_rank} --lora_alpha {2 * s.lora_rank}" + " --load_in_4bit" * s.quantized_base)
    if g is None:
        return [*lines, f"--max_length {r.longest} --loss_type sigmoid"]
    return [
        *lines,
        f"--num_generations {r.group} --max_completion_length {r.most_tokens}",
        f"--steps_per_generation {s.accumulation * recipe.updates} --beta {0.001 if recipe.reference else 0.0:g}",
        f"--use_vllm --vllm_mode {'server' if recipe.engine_gpus else 'colocate'} --vllm_tensor_parallel_size {g.ranks}",
        f"--vllm_gpu_memory_utilization {g.share:.2f}" + " --vllm_enable_sleep_mode" * (not recipe.engine_gpus),
    ]


def _verl(arch: Architecture, step: RlStep, steps: int) -> list[str]:
    s, r, g, recipe = step.training.strategy, step.recipe.rollouts, step.generation, step.recipe
    assert g is not None
    actor, rollout = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
    most, local = s.micro_batch * r.longest, min(step.cluster.system.count, step.cluster.n_accelerators)
    lines = [
        "python3 -m verl.trainer.main_ppo"
        if not recipe.engine_gpus
        else "python3 -m verl.experimental.one_step_off_policy.main_ppo",
        f"algorithm.adv_estimator={VERL_ESTIMATORS[recipe.task.name]} algorithm.use_kl_in_reward={recipe.task.critic}",
        f"data.train_batch_size={r.prompts} data.max_prompt_length={r.prompt_tokens} data.max_response_length={r.most_tokens}",
        f"actor_rollout_ref.model.path={_checkpoint(arch)} actor_rollout_ref.model.use_remove_padding=True",
        f"actor_rollout_ref.model.enable_gradient_checkpointing={s.recompute == 'full'}",
        f"{actor}.optim.lr={recipe.task.learning_rate:g} {actor}.ppo_mini_batch_size={r.prompts // recipe.updates}",
        f"{actor}.use_dynamic_bsz=True {actor}.ppo_max_token_len_per_gpu={most}",
        f"{actor}.use_kl_loss={recipe.reference and not recipe.task.critic}",
        f"{actor}.fsdp_config.param_offload={g.offloaded}",
        f"{actor}.fsdp_config.optimizer_offload={g.offloaded or s.offload_optimizer}",
        f"{rollout}.name=vllm {rollout}.n={r.group} {rollout}.tensor_model_parallel_size={g.ranks}",
        f"{rollout}.gpu_memory_utilization={g.share:.2f} {rollout}.log_prob_max_token_len_per_gpu={most}",
        f"trainer.nnodes={step.cluster.n_systems} trainer.n_gpus_per_node={local}",
        f"trainer.total_training_steps={steps}",
    ]
    if s.lora_rank:
        lines.append(f"actor_rollout_ref.model.lora_rank={s.lora_rank} actor_rollout_ref.model.lora_alpha={2 * s.lora_rank}")
    if recipe.engine_gpus:
        gpus = min(step.cluster.system.count, recipe.engine_gpus)
        lines.append(f"rollout.nnodes={-(-recipe.engine_gpus // gpus)} rollout.n_gpus_per_node={gpus}")
    if recipe.task.critic:
        lines.append(f"critic.model.path={_checkpoint(arch)} critic.optim.lr=1e-5 critic.ppo_max_token_len_per_gpu={most}")
    return lines
