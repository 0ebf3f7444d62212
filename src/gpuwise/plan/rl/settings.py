"""The step as settings of the programs that run it: what their own configurations call its parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from gpuwise.facts.models.architecture import Architecture
from gpuwise.serve.engines.engine import DEFAULT_ENGINE
from gpuwise.workload.stacks.stack import find_stack

if TYPE_CHECKING:
    from gpuwise.plan.rl.step import RlStep

Options = dict[str, str | int | float | bool]
Asked = tuple[Architecture, "RlStep", int]
"""Model, step and number of steps."""
WIDTH = 100
KL_WEIGHT = 0.001
"""Weight of the KL term: verl's and SkyRL's default."""


@dataclass(frozen=True, slots=True)
class Program:
    """``algorithms``: its words for tasks; a task that is missing it does not have. ``options`` are of the version named; its own
    lists of them are in tests/plan/rl_options.json."""

    version: str
    command: Callable[[RlStep], str]
    algorithms: Mapping[str, str]
    options: Callable[[Architecture, RlStep, int, str], Options]
    lines: Callable[[Options], list[str]]
    """How it reads options."""
    own_gpus: bool | None = None
    """It generates on GPUs of its own (True) or on those of the training (False); None: either."""


def settings_of(arch: Architecture, step: RlStep, steps: int) -> dict[str, list[str]]:
    """Options by program; a program that has no such algorithm is missing."""
    apart = bool(step.recipe.engine_gpus)
    found: dict[str, list[str]] = {}
    for program in PROGRAMS:
        word = program.algorithms.get(step.recipe.task.name)
        if word is not None and program.own_gpus in (None, apart):
            options = program.options(arch, step, steps, word)
            found[program.version] = [*program.command(step).splitlines(), *program.lines(options)]
    return found


def options_of(arch: Architecture, step: RlStep, steps: int) -> dict[str, Options]:
    """The same as values by option."""
    words = settings_of(arch, step, steps)
    return {p.version: p.options(arch, step, steps, p.algorithms[step.recipe.task.name]) for p in PROGRAMS if p.version in words}


def _flags(options: Options) -> list[str]:
    """``--name value``; ``--name`` alone where it is True and nothing where it is False."""
    words = [
        f"--{name}" if value is True else f"--{name} {_text(value)}" for name, value in options.items() if value is not False
    ]
    return _filled(words)


def _values(options: Options) -> list[str]:
    """``--name value``, True and False written out."""
    return _filled([f"--{name} {_text(value)}" for name, value in options.items()])


def _dotted(options: Options) -> list[str]:
    """``name=value``."""
    return _filled([f"{name}={_text(value)}" for name, value in options.items()])


def _toml(options: Options) -> list[str]:
    """Lines of a TOML file, a table where its name changes."""
    split = [name.rpartition(".") for name in options]
    values = [f'"{v}"' if isinstance(v, str) else str(v).lower() if isinstance(v, bool) else _text(v) for v in options.values()]
    lines = [f"{split[0][2]} = {values[0]}"]
    for (before, at), value in zip(pairwise(split), values[1:], strict=True):
        lines += [f"[{at[0]}]"] if at[0] != before[0] else []
        lines.append(f"{at[2]} = {value}")
    return lines


def _keywords(options: Options) -> list[str]:
    """Arguments of a Python call."""
    words = [f"{name}={value!r}," for name, value in options.items()]
    return [*(f"    {line}" for line in _filled(words)), ")"]


def _text(value: str | float) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _filled(words: list[str]) -> list[str]:
    """Words in lines of at most :data:`WIDTH` characters."""
    lines = [""]
    for word in words:
        if lines[-1] and len(lines[-1]) + len(word) >= WIDTH:
            lines.append("")
        lines[-1] += f"{' ' * bool(lines[-1])}{word}"
    return lines


def _checkpoint(arch: Architecture) -> str:
    return next((a for a in arch.aliases if "/" in a), "MODEL")


def _teacher(step: RlStep) -> str:
    return "TEACHER" if step.recipe.teacher is None else _checkpoint(step.recipe.teacher)


def _nodes(step: RlStep, gpus: int) -> tuple[int, int]:
    """Nodes and GPUs of each, of ``gpus``."""
    local = min(step.cluster.system.count, gpus)
    return -(-gpus // local), local


def _trl(arch: Architecture, step: RlStep, steps: int, word: str) -> Options:
    s, r, g, recipe = step.training.strategy, step.recipe.rollouts, step.generation, step.recipe
    made: Options = {
        "model_name_or_path": _checkpoint(arch),
        "dataset_name": "DATA",
        "learning_rate": recipe.task.learning_rate,
        "max_steps": steps * recipe.updates,
        "per_device_train_batch_size": s.micro_batch,
        "gradient_accumulation_steps": s.accumulation,
        "gradient_checkpointing": s.recompute == "full",
        "bf16": s.precision == "bf16",
    }
    if s.lora_rank:
        made |= {"use_peft": True, "lora_r": s.lora_rank, "lora_alpha": 2 * s.lora_rank}
        made |= {"load_in_4bit": True} if s.quantized_base else {}
    if word == "dpo":
        return made | {"max_length": r.longest, "loss_type": "sigmoid"}
    if recipe.task.teacher:
        made |= {"teacher_model_name_or_path": _teacher(step)}
    if g is None:
        return made
    made |= {"max_completion_length": r.most_tokens}
    if not recipe.task.teacher:
        made |= {"num_generations": r.group, "steps_per_generation": s.accumulation * recipe.updates}
        made |= {"beta": KL_WEIGHT if recipe.reference else 0.0}
    made |= {"use_vllm": True, "vllm_mode": "server" if recipe.engine_gpus else "colocate"}
    made |= {"vllm_tensor_parallel_size": g.ranks, "vllm_gpu_memory_utilization": round(g.share, 2)}
    return made | {"vllm_enable_sleep_mode": not recipe.engine_gpus}


def _gkd(arch: Architecture, step: RlStep, steps: int, word: str) -> Options:
    """What the class of its arguments has; the models are given to the trainer."""
    values = _trl(arch, step, steps, word).items()
    kept = {name: v for name, v in values if not name.startswith(("model", "dataset", "use_peft", "lora", "load_in"))}
    return {"output_dir": "out", **kept, "max_length": step.recipe.rollouts.longest, "lmbda": 0.0}


def _verl(arch: Architecture, step: RlStep, steps: int, word: str) -> Options:
    s, r, g, recipe = step.training.strategy, step.recipe.rollouts, step.generation, step.recipe
    assert g is not None
    model, actor, rollout = "actor_rollout_ref.model", "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
    most = s.micro_batch * r.longest
    n, local = _nodes(step, step.cluster.n_accelerators)
    made: Options = {
        "algorithm.adv_estimator": word,
        "algorithm.use_kl_in_reward": recipe.task.critic,
        "data.train_batch_size": r.prompts,
        "data.max_prompt_length": r.prompt_tokens,
        "data.max_response_length": r.most_tokens,
        f"{model}.path": _checkpoint(arch),
        f"{model}.use_remove_padding": True,
        f"{model}.enable_gradient_checkpointing": s.recompute == "full",
        f"{actor}.optim.lr": recipe.task.learning_rate,
        f"{actor}.ppo_mini_batch_size": r.prompts // recipe.updates,
        f"{actor}.use_dynamic_bsz": True,
        f"{actor}.ppo_max_token_len_per_gpu": most,
        f"{actor}.use_kl_loss": recipe.reference and not recipe.task.critic,
        f"{actor}.fsdp_config.param_offload": g.offloaded,
        f"{actor}.fsdp_config.optimizer_offload": g.offloaded or s.offload_optimizer,
        f"{rollout}.name": DEFAULT_ENGINE,
        f"{rollout}.n": r.group,
        f"{rollout}.tensor_model_parallel_size": g.ranks,
        f"{rollout}.gpu_memory_utilization": round(g.share, 2),
        f"{rollout}.log_prob_max_token_len_per_gpu": most,
        "trainer.nnodes": n,
        "trainer.n_gpus_per_node": local,
        "trainer.total_training_steps": steps,
    }
    if s.lora_rank:
        made |= {f"{model}.lora_rank": s.lora_rank, f"{model}.lora_alpha": 2 * s.lora_rank}
    if recipe.engine_gpus:
        n, local = _nodes(step, recipe.engine_gpus)
        made |= {"rollout.nnodes": n, "rollout.n_gpus_per_node": local}
    if recipe.task.critic:
        made |= {"critic.model.path": _checkpoint(arch), "critic.optim.lr": 1e-5, "critic.ppo_max_token_len_per_gpu": most}
    return made


def _openrlhf(arch: Architecture, step: RlStep, steps: int, word: str) -> Options:
    s, r, g, recipe = step.training.strategy, step.recipe.rollouts, step.generation, step.recipe
    name = "model" if g is None else "actor"
    made: Options = {
        f"{name}.model_name_or_path": _checkpoint(arch),
        ("adam.lr" if g is None else "actor.adam.lr"): recipe.task.learning_rate,
        f"{name}.gradient_checkpointing_enable": s.recompute == "full",
        "train.batch_size": r.sequences // recipe.updates // (1 if g else r.group),
        "train.micro_batch_size": max(s.micro_batch // (1 if g else r.group), 1),
        "data.max_len": r.longest,
        "data.max_samples": r.prompts * steps,
        "ds.zero_stage": int(s.sharding[-1]) if s.sharding.startswith("zero") else 0,
        "ds.packing_samples": True,
        "ds.param_dtype": "bf16" if s.precision == "bf16" else "fp16",
        "ds.adam_offload": s.offload_optimizer,
    }
    if s.lora_rank:
        made |= {"ds.lora.rank": s.lora_rank, "ds.lora.alpha": 2 * s.lora_rank, "ds.load_in_4bit": s.quantized_base}
    if g is None:
        return made | {"data.dataset": "DATA"}
    nodes, local = _nodes(step, step.cluster.n_accelerators - recipe.engine_gpus)
    for role in ("actor", *(("ref",) if recipe.frozen else ()), *(("critic",) if recipe.task.critic else ())):
        made |= {f"{role}.num_nodes": nodes, f"{role}.num_gpus_per_node": local}
    made |= {
        "algo.advantage.estimator": word,
        "algo.kl.init_coef": KL_WEIGHT if recipe.reference else 0.0,
        "algo.kl.use_loss": recipe.reference and not recipe.task.critic,
        "rollout.batch_size": r.prompts,
        "rollout.n_samples_per_prompt": r.group,
        "rollout.max_new_tokens": r.most_tokens,
        "vllm.num_engines": g.engines,
        "vllm.tensor_parallel_size": g.ranks,
        "vllm.gpu_memory_utilization": round(g.share, 2),
        "data.prompt_dataset": "DATA",
        "reward.remote_url": "REWARD.py",
    }
    own = bool(recipe.engine_gpus)
    return made | {
        "train.async_enable": own,
        "train.colocate_all": not own,
        "vllm.enable_sleep": not own,
        "ds.enable_sleep": not own,
    }


def _skyrl(arch: Architecture, step: RlStep, steps: int, word: str) -> Options:
    s, r, g, recipe = step.training.strategy, step.recipe.rollouts, step.generation, step.recipe
    assert g is not None
    engine, place, policy = "generator.inference_engine", "trainer.placement", "trainer.policy"
    nodes, local = _nodes(step, step.cluster.n_accelerators)
    made: Options = {
        "data.train_data": "['DATA.parquet']",
        "trainer.strategy": "megatron" if find_stack(s.stack).export.tool == "megatron" else "fsdp",
        "trainer.algorithm.advantage_estimator": word,
        "trainer.algorithm.use_kl_loss": recipe.reference and not recipe.task.critic,
        "trainer.algorithm.use_kl_in_reward": recipe.reference and recipe.task.critic,
        f"{policy}.model.path": _checkpoint(arch),
        f"{policy}.optimizer_config.lr": recipe.task.learning_rate,
        "trainer.train_batch_size": r.prompts,
        "trainer.policy_mini_batch_size": r.prompts // recipe.updates,
        "trainer.micro_train_batch_size_per_gpu": s.micro_batch,
        "trainer.gradient_checkpointing": s.recompute == "full",
        "trainer.max_prompt_length": r.prompt_tokens,
        "trainer.max_training_steps": steps,
        "generator.sampling_params.max_generate_length": r.most_tokens,
        "generator.n_samples_per_prompt": r.group,
        f"{engine}.num_engines": g.engines,
        f"{engine}.tensor_parallel_size": g.ranks,
        f"{engine}.gpu_memory_utilization": round(g.share, 2),
        f"{place}.colocate_all": True,
        f"{place}.policy_num_nodes": nodes,
        f"{place}.policy_num_gpus_per_node": local,
    }
    if recipe.frozen:
        made |= {f"{place}.ref_num_nodes": nodes, f"{place}.ref_num_gpus_per_node": local}
    if s.lora_rank:
        made |= {f"{policy}.model.lora.rank": s.lora_rank, f"{policy}.model.lora.alpha": 2 * s.lora_rank}
    if recipe.task.critic:
        made |= {"trainer.critic.model.path": _checkpoint(arch), "trainer.critic_mini_batch_size": r.prompts // recipe.updates}
        made |= {f"{place}.critic_num_nodes": nodes, f"{place}.critic_num_gpus_per_node": local}
    return (
        made | {"trainer.fully_async.enabled": True, "trainer.fully_async.max_staleness_steps": 1} if recipe.engine_gpus else made
    )


def _prime(arch: Architecture, step: RlStep, steps: int, word: str) -> Options:
    """Its batch has one update."""
    s, r, g, recipe = step.training.strategy, step.recipe.rollouts, step.generation, step.recipe
    assert g is not None
    train, local = step.cluster.n_accelerators - recipe.engine_gpus, step.cluster.system.count
    made: Options = {"max_steps": steps * recipe.updates, "seq_len": r.longest, "model.name": _checkpoint(arch)}
    if step.cluster.n_systems == 1:
        made |= {"deployment.num_train_gpus": train, "deployment.num_infer_gpus": recipe.engine_gpus}
    else:
        made |= {"deployment.type": "multi_node", "deployment.gpus_per_node": local}
        made |= {"deployment.num_train_nodes": -(-train // local), "deployment.num_infer_nodes": -(-recipe.engine_gpus // local)}
    made |= {"orchestrator.batch_size": r.sequences // recipe.updates, "orchestrator.group_size": r.group}
    made |= {"orchestrator.max_off_policy_steps": recipe.updates, "orchestrator.algo.type": word}
    made |= {"orchestrator.algo.teacher.name": _teacher(step)} if recipe.task.teacher else {}
    made |= {"orchestrator.train.sampling.max_completion_tokens": r.most_tokens}
    made |= {"trainer.optim.lr": recipe.task.learning_rate}
    made |= {"trainer.model.lora.rank": s.lora_rank, "trainer.model.lora.alpha": 2.0 * s.lora_rank} if s.lora_rank else {}
    made |= {"trainer.model.cp": s.cp} if s.cp > 1 else {}
    made |= {"inference.vllm.tensor_parallel_size": g.ranks}
    return made | {"inference.vllm.gpu_memory_utilization": round(g.share, 2)}


def _sentences(arch: Architecture, step: RlStep, steps: int, word: str) -> Options:
    """A batch is whole on each GPU for its loss, which reads it in mini-batches."""
    s, recipe = step.training.strategy, step.recipe
    return {
        "output_dir": "out",
        "per_device_train_batch_size": max(recipe.rollouts.prompts // s.dp, 1),
        "learning_rate": recipe.task.learning_rate,
        "max_steps": steps,
        "bf16": s.precision == "bf16",
        "gradient_checkpointing": s.recompute == "full",
    }


def _loss(step: RlStep) -> str:
    s = step.training.strategy
    cached = s.accumulation > 1
    size = f", mini_batch_size={s.micro_batch}" if cached else ""
    together = ", gather_across_devices=True" if s.dp > 1 else ""
    name = "CachedMultipleNegativesRankingLoss" if cached else "MultipleNegativesRankingLoss"
    return f"loss = {name}(model{size}{together})"


_TRL = {"dpo": "dpo", "grpo": "grpo", "rloo": "rloo", "opd": "distillation"}
PROGRAMS = (
    Program("trl 1.16", lambda step: f"trl {_TRL[step.recipe.task.name]}", _TRL, _trl, _values),
    Program("trl 1.16 GKD", lambda _: "args = GKDConfig(", {"distill": "gkd"}, _gkd, _keywords),
    Program(
        "verl 0.8",
        lambda step: f"python3 -m verl.{'experimental.one_step_off_policy' if step.recipe.engine_gpus else 'trainer'}.main_ppo",
        {"grpo": "grpo", "rloo": "rloo", "ppo": "gae"},
        _verl,
        _dotted,
    ),
    Program(
        "OpenRLHF 0.11",
        lambda step: f"python3 -m openrlhf.cli.train_{'dpo' if step.generation is None else 'ppo_ray'}",
        {"grpo": "group_norm", "rloo": "rloo", "ppo": "gae", "dpo": "dpo"},
        _openrlhf,
        _flags,
    ),
    Program(
        "SkyRL 0.3",
        lambda _: "python -m skyrl.train.entrypoints.main_base",
        {"grpo": "grpo", "rloo": "rloo", "ppo": "gae"},
        _skyrl,
        _dotted,
        own_gpus=False,  # one step ahead is another program's, in its examples
    ),
    Program(
        "prime-rl 0.8", lambda _: "uv run rl @ rl.toml  # rl.toml:", {"grpo": "grpo", "opd": "opd"}, _prime, _toml, own_gpus=True
    ),
    Program(
        "sentence-transformers 6.2",
        lambda step: f"{_loss(step)}\nargs = SentenceTransformerTrainingArguments(",
        {"embed": "embed"},
        _sentences,
        _keywords,
    ),
)
