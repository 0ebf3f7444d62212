"""What a person can do with a model on a machine, briefly: run it, adapt it, train it.

Each use is the answer that ``fit --for`` gives in full, without what that searches: of a training, a few strategies are
tried from the plainest to one with little memory, and the first that fits is the answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from gpuwise.errors import GpuwiseError, InputError, UnpredictableError
from gpuwise.facts.hardware.systems import Cluster
from gpuwise.facts.models.architecture import Architecture
from gpuwise.plan.document import estimate_document
from gpuwise.plan.fit import STRICTER, in_usual_batches, on_its_stack
from gpuwise.plan.goal import LORA_RANK, Goal, Wishes, make_goal
from gpuwise.plan.space.rules import check_strategy
from gpuwise.plan.space.search import estimate_all, setting_of
from gpuwise.predict.estimate import to_document
from gpuwise.predict.practice import practice_of
from gpuwise.predict.step.training import TrainingEstimate
from gpuwise.serve.local_commands import commands
from gpuwise.serve.local_document import run_document
from gpuwise.serve.local_machine import LocalMachine
from gpuwise.serve.local_run import NotLocalError, run_locally
from gpuwise.workload.strategy import Strategy
from gpuwise.workload.transformer.parameters import count_parameters

Document = dict[str, Any]
ADAPTERS = (Wishes(lora_rank=LORA_RANK), Wishes(lora_rank=LORA_RANK, quantized_base=True))
"""16-bit frozen weights, then 4-bit ones."""
LIGHTER: tuple[dict[str, Any], ...] = (
    {},
    *({"sharding": name} for name in STRICTER),
    {"recompute": "full", "fused_loss": True},
    {"sharding": "zero3", "recompute": "full", "fused_loss": True},
)
"""What is tried of each, the fastest first; sharding with several accelerators alone."""
STATES: dict[str, Any] = {"gradient_dtype": "bf16", "master_weights": False, "recompute": "full", "fused_loss": True}
LIGHTER_STATES: tuple[dict[str, Any], ...] = (
    {**STATES, "optimizer": "adamw8bit"},
    {**STATES, "optimizer": "adafactor"},
    {**STATES, "optimizer": "adafactor", "offload_optimizer": True},
)
"""Of every weight besides: optimizers with small states, 16-bit weights without fp32 copies."""


def uses_document(
    arch: Architecture, machine: LocalMachine, *, context: int | None = None, weights: str | None = None
) -> Document:
    """The uses of ``arch`` on ``machine``: ``run``, ``finetune`` and ``train``, each an answer or ``error`` and ``hint``.

    Raises InputError for a context beyond the model's, UnknownNameError for a format.
    """
    count = count_parameters(arch)
    document: Document = {
        "command": "fit",
        "for": "uses",
        "model": {"id": arch.id, "name": arch.name, "parameters": count.total, "active_parameters": count.active},
        "machine": {
            "label": machine.label,
            "gpus": 0 if machine.cluster is None else machine.n_devices,
            "here": machine.here,
            "device_bytes": machine.most_bytes,
        },
    }
    document["run"] = _run(arch, machine, context, weights)
    document["finetune"] = _trained(arch, machine.cluster, ADAPTERS)
    document["train"] = _trained(arch, machine.cluster, (Wishes(task="full"),))
    answered = [document["run"]] if "error" not in document["run"] else [document["finetune"], document["train"]]
    document["fits"] = any(part["fits"] for part in answered)
    return cast(Document, to_document(document))


def _run(arch: Architecture, machine: LocalMachine, context: int | None, weights: str | None) -> Document:
    """The use without a training."""
    if arch.kind == "decoder":
        try:
            run = run_locally(arch, machine, context=context, weights=weights)
            return run_document(run, commands=commands(run))
        except (NotLocalError, UnpredictableError) as error:
            return _refused(error)
    from gpuwise.serve.passes.run import pass_run_document, run_passes  # not before: most models write text

    try:
        return pass_run_document(run_passes(arch, machine))
    except (InputError, UnpredictableError) as error:
        return _refused(error)


def _refused(error: GpuwiseError) -> Document:
    return {"fits": False, "error": error.message, "hint": error.hint}


def _trained(arch: Architecture, cluster: Cluster | None, ways: tuple[Wishes, ...]) -> Document:
    """The first strategy of the first of ``ways`` that fits; where none does, the one of the least memory."""
    if cluster is None:
        return {"fits": False, "error": "training needs a GPU", "hint": "name one with --on"}
    if cluster.parts:
        one = cluster.parts[0].accelerator.typed
        return {"fits": False, "error": "training on unlike cards is not predicted", "hint": f"name one kind: --on {one}"}
    if arch.open_log_sigma:
        return {"fits": False, "error": "training needs the model's dimensions", "hint": "give its config.json"}
    tried: list[tuple[Goal, TrainingEstimate]] = []
    refused: GpuwiseError | None = None
    for wishes in ways:
        try:
            goal = make_goal(arch, cluster, wishes)
            for strategy in _strategies(goal):
                estimate = estimate_all(goal, [strategy])[0]
                if estimate.fits and estimate.fit_probability >= 1 - wishes.risk:
                    return _document(goal, estimate)
                tried.append((goal, estimate))
        except GpuwiseError as error:
            refused = refused or error
    if not tried:
        assert refused is not None
        return _refused(refused)
    return _document(*min(tried, key=lambda one: one[1].needed_bytes.expected))


def _strategies(goal: Goal) -> Iterator[Strategy]:
    """The plainest strategy, then lighter ones. Raises LayoutError where none is legal."""
    plain = in_usual_batches(goal)
    several = goal.cluster.n_accelerators > 1
    lighter = LIGHTER if plain.lora_rank else (*LIGHTER, *LIGHTER_STATES)
    asked = [plain.with_(**change) for change in lighter if several or "sharding" not in change]
    found = dict.fromkeys(s for s in (on_its_stack(goal, plain, strategy) for strategy in asked) if s is not None)
    if not found:
        check_strategy(setting_of(goal, plain), plain)
    yield from found


def _document(goal: Goal, estimate: TrainingEstimate) -> Document:
    level = practice_of(goal.arch, estimate.strategy, goal.cluster).of(estimate)
    return {
        **estimate_document(level),
        "seq_len": goal.seq_len,
        "device_bytes": estimate.device_bytes,
        "assumed": list(goal.assumed),
    }
