"""``gpuwise fit``: will it fit, what fills the memory, what makes it fit."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from gpuwise.cli.options import LEFT_OPEN, NOTHING_FIXED, LayoutOptions, Length, Training, wishes_of
from gpuwise.cli.shown import options_shown
from gpuwise.cli.step.options import NO_CODE, OwnCode, is_own_code, refuse_arguments, refuse_own
from gpuwise.errors import InputError

if TYPE_CHECKING:
    from gpuwise.cli.shown import Shown
else:
    Shown = options_shown("fit")


def fit(
    model: Annotated[str, Parameter(metavar="MODEL")],
    *arguments: str,
    on: Annotated[str, Parameter(metavar="GPUS")],
    purpose: Annotated[Literal["train", "finetune", "run"], Parameter(name="--for", metavar="train|finetune|run")] = "train",
    context: Annotated[Length | None, Parameter(show_default="8192, or the model's", metavar="TOKENS")] = None,
    weights: Annotated[str | None, Parameter(show_default="the best that fits", metavar="FORMAT")] = None,
    training: Training = LEFT_OPEN,
    fixed: LayoutOptions = NOTHING_FIXED,
    code: OwnCode = NO_CODE,
    shown: Shown | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Will it fit, to run it or to train it? What fills the memory? What makes it fit?

    To run: which format of the weights fits, how fast it writes and reads, how long a context, what starts it. To train, by
    default: micro-batch 1, no sharding, no recompute, no offload. Your own code (train.py, train.py:make_step)
    runs unmodified, without a GPU: see the guide "Your own training script".

    Parameters
    ----------
    model
        A model by name (llama-3.1-8b), a .gguf file, a Hugging Face config.json, dimensions (layers=32,hidden=4096,...),
        or your own code: train.py (the whole script; its own arguments come after --), train.py:make_step,
        package.module:function, hf:path/to/config.json.
    arguments
        The script's own arguments, after --.
    on
        The GPUs: 4090, 8xH100-SXM, 2x8xH200, dgx-a100, or this (the GPUs of this machine, as measured here).
    purpose
        What for: train every weight, finetune (adapters: LoRA), or run it on your own device (llama.cpp).
    context
        To run: tokens of context to fit.
    weights
        To run: format of the weights: Q4_K_M, Q8_0, IQ4_XS ...
    json
        One JSON document on the last line of stdout.
    """
    if purpose == "run":
        refuse_own(code)
        refuse_arguments(arguments)
        return _run(model, on, training, fixed, context, weights, shown, json=json)
    if context is not None or weights is not None:
        raise InputError(
            "--context and --weights are for running", hint="add --for run; the length of a training sequence is --seq"
        )
    if purpose == "finetune" and not (training.lora or fixed.qlora):
        training = replace(training, lora=True)
    if is_own_code(model):
        from gpuwise.cli.step.fit import fit_own

        return fit_own(model, on, training, fixed, code, arguments, shown=shown, json=json)
    refuse_own(code)
    refuse_arguments(arguments)
    from gpuwise.plan.api import fit as check
    from gpuwise.plan.document import answer_document

    document = answer_document(check(model, on, wishes_of(training, fixed)))
    if json:
        from gpuwise.cli.out import print_json

        print_json(document)
    else:
        from gpuwise.cli.answer import show
        from gpuwise.report.answers.training import fit_answer

        show(fit_answer(document), shown)
    return 0


def _run(
    model: str,
    on: str,
    training: Training,
    fixed: LayoutOptions,
    context: int | None,
    weights: str | None,
    shown: Shown | None,
    *,
    json: bool,
) -> int:
    """``--for run``. Raises InputError for options of a training."""
    from gpuwise.facts.hardware.naming import find_cluster
    from gpuwise.facts.models.catalogue import find_model_to_run
    from gpuwise.facts.models.stored import check_agrees
    from gpuwise.serve.formats import is_stored_as
    from gpuwise.serve.local_run import run_document, run_locally

    if training != LEFT_OPEN or fixed != NOTHING_FIXED:
        raise InputError("options of a training with --for run", hint="leave them out, or leave out --for run")
    arch = find_model_to_run(model)
    if weights is not None and arch.stored_format is not None:
        check_agrees(arch, weights, [form for form in (arch.stored_format,) if is_stored_as(form, weights)])
    run = run_locally(arch, find_cluster(on), context=context, weights=weights)
    document = run_document(run)
    if json:
        from gpuwise.cli.out import print_json

        print_json(document)
    else:
        from gpuwise.cli.answer import show
        from gpuwise.report.answers.running import run_answer

        show(run_answer(document), shown)
    return 0 if run.chosen is not None else 1
