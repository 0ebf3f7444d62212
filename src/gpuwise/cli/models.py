"""``gpuwise models``: the catalogue of model architectures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from gpuwise.cli.options import Length
from gpuwise.cli.reports import report
from gpuwise.cli.shown import options_shown
from gpuwise.errors import InputError

if TYPE_CHECKING:
    from gpuwise.cli.shown import Shown
    from gpuwise.facts.models.architecture import Architecture
else:
    Shown = options_shown("models")


def models(
    *query: str,
    on: Annotated[str | None, Parameter(metavar="DEVICE")] = None,
    context: Annotated[Length | None, Parameter(show_default="8192", metavar="TOKENS")] = None,
    ram: Annotated[str | None, Parameter(metavar="MEMORY")] = None,
    shown: Shown | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """List the known models; with a name: its dimensions, parameters and sources; with --on: which ones run on a device.

    On a device: each published model that writes text, in the format of least loss that writes as fast as one reads; the largest
    first: the catalogue has no scores of quality.

    Parameters
    ----------
    query
        A name (llama-3.1-8b), a config.json, dimensions, or words to search for (qwen moe).
    on
        The GPUs (RTX 3060, 2x3090), a processor (Ryzen 7 5700G), or this: this machine, with the memory that is free now.
    context
        Tokens of context to fit: of a model that is named, or with --on.
    ram
        With --on: the RAM of that machine: 64GB, ddr4-3200x2, or both in quotes.
    json
        One JSON document on the last line of stdout.
    """
    matches = _search(" ".join(query))
    if on is not None:
        return _on(matches, on, context, ram, shown, json=json)
    if ram is not None:
        raise InputError("--ram is of models on a device", hint="name it: --on 4090, or --on this")
    if context is not None and len(matches) != 1:
        raise InputError(f"--context is of one model or of a device, not of {len(matches)} models", hint="name one, or --on 4090")
    from gpuwise.report.answers.models import catalogue_answer

    found = [_document(a) for a in matches]
    if len(matches) == 1:
        from gpuwise.serve.local_document import memory_document

        found[0]["memory"] = memory_document(matches[0], context)
    report({"models": found}, catalogue_answer, shown, json=json)
    return 0


def _on(matches: list[Architecture], on: str, context: int | None, ram: str | None, shown: Shown | None, *, json: bool) -> int:
    """Which of ``matches`` run on a device."""
    from gpuwise.cli.local import local_machine
    from gpuwise.serve.local_models import models_document, models_on
    from gpuwise.serve.local_run import CONTEXT

    machine, tokens = local_machine(on, ram), context or CONTEXT
    found = models_on(matches, machine, context=tokens)
    from gpuwise.report.answers.models import models_answer

    report(models_document(found, machine, tokens, on), models_answer, shown, json=json)
    return 0 if found else 1


def _search(query: str) -> list[Architecture]:
    """The models ``query`` means: the one of that name, or all with its words. Raises UnknownNameError."""
    from gpuwise.errors import UnknownNameError
    from gpuwise.facts.models.catalogue import find_models
    from gpuwise.facts.models.catalogue import models as catalogue

    by_name = catalogue()
    if not query:
        return list(by_name.values())
    try:
        return find_models(query)
    except UnknownNameError:
        words = query.lower().split()
        matches = [a for a in by_name.values() if words and all(w in _text(a) for w in words)]
        if not matches:
            raise
        return matches


def _text(a: Architecture) -> str:
    return f"{a.id} {a.name} {a.family} {a.kind} {'moe' if a.moe else 'dense'}".lower()


PARTS = (
    "embedding",
    "stem",
    "attention",
    "mixer",
    "mlp",
    "experts",
    "shared_experts",
    "router",
    "norm",
    "encoder",
    "head",
    "extra",
)
"""Of a model's parameters, which they sum to."""


def _document(a: Architecture) -> dict[str, object]:
    from dataclasses import asdict

    from gpuwise.facts.models.architecture import LETTERS
    from gpuwise.workload.transformer.parameters import count_parameters

    count = count_parameters(a)
    names = {what.part: what.name for what in reversed(LETTERS.values()) if what.part}
    mixers = [(name, getattr(a, field), a.layers_with_part(field)) for field, name in names.items()]
    return {
        **asdict(a),
        "parameters": count.total,
        "active_parameters": count.active,
        "parameters_by_part": {name: n for name in PARTS if (n := getattr(count, name))},
        "attention_layers": a.n_attention_layers,
        "mixers": [{"name": name, "size": m.shown, "layers": n} for name, m, n in mixers if hasattr(m, "shown")],
    }
