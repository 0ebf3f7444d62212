"""``gpuwise fit``: what a model does on a device: run it, adapt it, train it; what fills the memory, what makes it fit."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from gpuwise.cli.options import LEFT_OPEN, NOTHING_FIXED, LayoutOptions, Length, Training, wishes_of
from gpuwise.cli.reports import report
from gpuwise.cli.rollouts import NO_ROLLOUTS, RolloutOptions, has_phases, refuse_rollouts, rl_wishes
from gpuwise.cli.shown import options_shown, parts_shown
from gpuwise.cli.step.named import NO_PICTURES, PictureOptions, refuse_pictures
from gpuwise.cli.step.options import NO_CODE, OwnCode, is_own_code, refuse_arguments, refuse_own
from gpuwise.errors import InputError

if TYPE_CHECKING:
    from gpuwise.cli.shown import Shown
    from gpuwise.serve.local_run import LocalRun
    from gpuwise.serve.passes.kind import Model
else:
    Shown = options_shown("fit")

OWN_PARTS: dict[str, frozenset[str]] = {
    "run": frozenset({"formats", "speeds", "measured", "changes", "start"}),
    "full": frozenset({"ways", "step", "tried", "gpus"}),
}
"""Parts that the answer of one use alone has: asking for one means that use."""


def fit(
    model: Annotated[str, Parameter(metavar="MODEL")],
    *arguments: str,
    on: Annotated[str | None, Parameter(show_default="this", metavar="DEVICE")] = None,
    context: Annotated[Length | None, Parameter(show_default="8192, or the model's", metavar="TOKENS")] = None,
    weights: Annotated[str | None, Parameter(show_default="the best that fits", metavar="FORMAT")] = None,
    ram: Annotated[str | None, Parameter(metavar="MEMORY")] = None,
    training: Training = LEFT_OPEN,
    rollouts: RolloutOptions = NO_ROLLOUTS,
    fixed: LayoutOptions = NOTHING_FIXED,
    pictures: PictureOptions = NO_PICTURES,
    code: OwnCode = NO_CODE,
    shown: Shown | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """What can I do with this model on this device: run it, adapt it, train it? What makes it fit?

    Without --for: all three, briefly. With it, one in full. Run: which format of the weights fits, how fast it writes and reads,
    how long a context, what would change it, what starts it. Finetune: adapters (LoRA). Full: every weight; by default
    micro-batch 1, no sharding, no recompute, no offload. An option that only training has (--seq, --lora, --optimizer ...) means
    a training where --for is missing. Your own code (train.py, train.py:make_step) is trained: it runs unmodified, without a
    GPU, see the guide "Your own training script". Exit code 0 where it fits, 1 where it does not; without --for: where it can be
    run, and with options of a training always 0.

    Parameters
    ----------
    model
        A model by name (llama-3.1-8b), a .gguf file, a Hugging Face config.json, dimensions (layers=32,hidden=4096,...),
        or your own code: train.py (the whole script; its own arguments come after --), train.py:make_step,
        package.module:function, hf:path/to/config.json.
    arguments
        The script's own arguments, after --.
    on
        The GPUs (4090, 8xH100-SXM, 2x8xH200, dgx-a100), a processor to run it on (Ryzen 7 5700G), or this: this machine, with the
        memory that is free now.
    context
        To run: tokens of context to fit.
    weights
        To run: format of the weights: Q4_K_M, Q8_0, IQ4_XS ...
    ram
        To run: the RAM of that machine: 64GB, ddr4-3200x2 (type, MT/s, channels), or both in quotes.
    json
        One JSON document on the last line of stdout.
    """
    purpose, training = training.purpose, replace(training, purpose=None)
    given = (training, rollouts, fixed, code, pictures)
    options = given != (LEFT_OPEN, NO_ROLLOUTS, NOTHING_FIXED, NO_CODE, NO_PICTURES) or bool(arguments)
    if (drawn := _drawn(model, purpose)) is not None and not options:
        return _job(drawn, on, ram, shown, json=json)
    if not options and purpose in (None, "run") and (writer := _writes(model)) is not None:
        return _local(writer, on, purpose or _of_parts(shown), context, weights, ram, shown, json=json)
    options = options or is_own_code(model)
    use = purpose or ("own" if options else _of_parts(shown))
    if use in (None, "run"):
        refuse_own(code)
        refuse_arguments(arguments)
        if options:
            raise InputError("options of a training with --for run", hint="leave them out, or leave out --for run")
        return _local(model, on, use, context, weights, ram, shown, json=json)
    for name, value in (("--context", context), ("--weights", weights), ("--ram", ram)):
        if value is not None:
            other = {"--context": "the length of a training sequence is --seq", "--ram": "of a training it is --host-memory"}
            raise InputError(
                f"{name} is for running", hint=f"add --for run; {other.get(name, 'of a training it is --precision')}"
            )
    device = on or "this"
    if has_phases(purpose) and not is_own_code(model):
        from gpuwise.plan.rl.answer import make_rl
        from gpuwise.report.answers.rl import rl_fit_answer

        refuse_own(code)
        refuse_arguments(arguments)
        asked = rl_wishes(rollouts, replace(training, purpose=purpose), fixed)
        report(make_rl(model, device, *asked), rl_fit_answer, shown, json=json)
        return 0
    refuse_rollouts(rollouts)
    training = replace(training, purpose=None if purpose == "train" else purpose)
    if is_own_code(model):
        from gpuwise.cli.step.fit import fit_own

        return fit_own(model, device, training, fixed, code, arguments, pictures, shown=shown, json=json)
    refuse_pictures(pictures)
    refuse_own(code)
    refuse_arguments(arguments)
    from gpuwise.plan.api import make_fit
    from gpuwise.plan.document import answer_document
    from gpuwise.report.answers.training import fit_answer

    document = answer_document(make_fit(model, device, wishes_of(training, fixed)))
    report(document, fit_answer, shown, json=json)
    return 1 if purpose is not None and not document["fits"] else 0


def _of_parts(shown: Shown | None) -> str | None:
    """The use that alone has a part that is asked for."""
    asked = set(() if shown is None else parts_shown(shown) or ())
    return next((use for use, parts in OWN_PARTS.items() if asked & parts), None)


def _local(
    model: str,
    on: str | None,
    use: str | None,
    context: int | None,
    weights: str | None,
    ram: str | None,
    shown: Shown | None,
    *,
    json: bool,
) -> int:
    """``--for run``, or the three uses."""
    from gpuwise.cli.local import local_machine
    from gpuwise.facts.models.catalogue import find_model_to_run
    from gpuwise.facts.models.stored import check_agrees
    from gpuwise.serve.formats import is_stored_as

    arch = find_model_to_run(model)
    if use == "run" and arch.kind != "decoder":
        return _job(arch, on, ram, shown, json=json)
    if weights is not None and arch.stored_format is not None:
        check_agrees(arch, weights, [form for form in (arch.stored_format,) if is_stored_as(form, weights)])
    machine = local_machine(on, ram)
    document: dict[str, Any]
    if use is None:
        from gpuwise.plan.uses import uses_document
        from gpuwise.report.answers.uses import uses_answer as answer

        document = uses_document(arch, machine, context=context, weights=weights)
    else:
        from gpuwise.report.answers.running import run_answer as answer
        from gpuwise.serve.local_changes import changes
        from gpuwise.serve.local_commands import commands
        from gpuwise.serve.local_document import run_document
        from gpuwise.serve.local_run import run_locally

        run = run_locally(arch, machine, context=context, weights=weights)
        document = run_document(run, changes(run), commands(run), _measured(run))
    report(document, answer, shown, json=json)
    return 0 if document["fits"] else 1


def _drawn(model: str, purpose: str | None) -> Model | None:
    """A network that makes images or videos, or a convolutional one that is to run; None for others."""
    from gpuwise.facts.models.convnets import known_convnet
    from gpuwise.facts.models.denoisers import known_denoiser

    return (known_denoiser(model) if purpose in (None, "run") else None) or (known_convnet(model) if purpose == "run" else None)


def _writes(model: str) -> str | None:
    """The id of a vision-language model, which is run as the language model that it has; None for others."""
    from gpuwise.facts.models.trained import known_trained

    network = known_trained(model)
    return network.id if network is not None and network.kind == "vision-language" else None


def _job(model: Model, on: str | None, ram: str | None, shown: Shown | None, *, json: bool) -> int:
    """A model that does not write text, on a device."""
    from gpuwise.cli.local import local_machine
    from gpuwise.report.answers.running import run_answer
    from gpuwise.serve.passes.run import pass_run_document, run_passes

    document = pass_run_document(run_passes(model, local_machine(on, ram)))
    report(document, run_answer, shown, json=json)
    return 0 if document["fits"] else 1


def _measured(run: LocalRun) -> list[dict[str, Any]]:
    """What was measured of the model on this machine, beside its prediction."""
    if not run.machine.here:
        return []
    from gpuwise.machine.model_speeds.here import speeds_here

    return [beside.document() for beside in speeds_here(run.arch, run.machine)]
