"""``gpuwise models``: the catalogue of model architectures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from gpuwise.cli.options import Length
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
        With --on: tokens of context to fit.
    ram
        With --on: the RAM of that machine: 64GB, ddr4-3200x2, or both in quotes.
    json
        One JSON document on the last line of stdout.
    """
    matches = _search(" ".join(query))
    if on is not None:
        return _on(matches, on, context, ram, shown, json=json)
    for name, value in (("--context", context), ("--ram", ram)):
        if value is not None:
            raise InputError(f"{name} is of models on a device", hint="name it: --on 4090, or --on this")
    if json:
        from gpuwise.cli.out import print_json

        print_json({"models": [_document(a) for a in matches]})
    elif len(matches) == 1:
        _show(matches[0])
    else:
        _list(matches)
    return 0


def _on(matches: list[Architecture], on: str, context: int | None, ram: str | None, shown: Shown | None, *, json: bool) -> int:
    """Which of ``matches`` run on a device."""
    from gpuwise.cli.local import local_machine
    from gpuwise.serve.local_models import models_document, models_on
    from gpuwise.serve.local_run import CONTEXT

    machine, tokens = local_machine(on, ram), context or CONTEXT
    found = models_on(matches, machine, context=tokens)
    document = models_document(found, machine, tokens, on)
    if json:
        from gpuwise.cli.out import print_json

        print_json(document)
    else:
        from gpuwise.cli.answer import show
        from gpuwise.report.answers.models import models_answer

        show(models_answer(document), shown)
    return 0 if found else 1


def _search(query: str) -> list[Architecture]:
    """The models ``query`` means: the one of that name, or all with its words. Raises UnknownNameError."""
    from gpuwise.errors import AmbiguousNameError, UnknownNameError
    from gpuwise.facts.models.catalogue import find_model
    from gpuwise.facts.models.catalogue import models as catalogue

    by_name = catalogue()
    if not query:
        return list(by_name.values())
    try:
        return [find_model(query)]
    except AmbiguousNameError as error:
        return [by_name[name] for name in error.candidates if name in by_name] or list(by_name.values())
    except UnknownNameError:
        words = query.lower().split()
        matches = [a for a in by_name.values() if words and all(w in _text(a) for w in words)]
        if not matches:
            raise
        return matches


def _text(a: Architecture) -> str:
    return f"{a.id} {a.name} {a.family} {a.kind} {'moe' if a.moe else 'dense'}".lower()


GIVES_WAY = ("kv", "heads", "hidden", "layers", "kind", "active")
"""Columns left out, in this order, until the others stand whole."""


def _list(matches: list[Architecture]) -> None:
    from gpuwise.cli.out import console, table_of
    from gpuwise.units import format_count
    from gpuwise.workload.transformer.parameters import count_parameters

    to = console()
    rows: list[dict[str, str]] = []
    for a in matches:
        count = count_parameters(a)
        cells = {
            "id": a.id,
            "parameters": format_count(count.total),
            "active": "" if count.active == count.total else format_count(count.active),
            "layers": str(a.n_layers),
            "hidden": str(a.hidden),
            "heads": str(a.heads),
            "kv": str(a.kv_heads),
            "context": f"{a.max_seq_len:,}",
            "kind": a.kind + "".join(f", {name}" for name, _, _ in _mixers(a)) + (", experts" if a.moe else ""),
        }
        rows.append(cells)
    table = table_of([*rows[0]], left=("id", "kind"), wrap=("id", "kind"), gives_way=GIVES_WAY)
    for row in rows:
        table.add_row(*row.values())
    to.print(table)
    to.print(f"{len(matches)} models", style="dim")


def _show(a: Architecture) -> None:
    """One model with its parameters by part."""
    from rich.text import Text

    from gpuwise.cli.out import console, grid, section
    from gpuwise.workload.transformer.parameters import count_parameters

    to, count = console(), count_parameters(a)
    to.print(Text.assemble((a.name, "bold"), f"  {a.kind}, id {a.id}" + (f", {a.license}" if a.license else "")))
    table = grid(2)
    for name, value in _dimensions(a):
        table.add_row(name, value)
    section(to, "Dimensions", table)
    parts = grid(2)
    parts.columns[1].justify = "right"
    for name in (
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
        "total",
    ):
        n = getattr(count, name)
        if n:
            parts.add_row(name.replace("_", " "), f"{n:,}")
    if count.active != count.total:
        parts.add_row("active per token", f"{count.active:,}")
    if a.published_parameters is not None:
        same = "the same" if a.published_parameters == count.total else f"{count.total - a.published_parameters:+,} here"
        parts.add_row("published", f"{a.published_parameters:,} ({same})")
    elif a.published_rounded is not None:
        parts.add_row("published", a.published_rounded)
    section(to, "Parameters", parts)
    notes = [n for n in (a.published_note, *a.notes) if n]
    if notes:
        section(to, "Notes", "\n".join(notes))
    if a.source:
        section(to, "Source", a.source)


def _mixers(a: Architecture) -> list[tuple[str, Any, int]]:
    """What mixes tokens beside attention: its name, its dimensions, and how many layers have it."""
    from gpuwise.facts.models.architecture import LETTERS

    names = {what.part: what.name for what in reversed(LETTERS.values()) if what.part}
    parts = [(name, field, getattr(a, field)) for field, name in names.items()]
    return [(name, part, a.layers_with_part(field)) for name, field, part in parts if hasattr(part, "shown")]


def _dimensions(a: Architecture) -> list[tuple[str, str]]:
    rows = [
        ("layers", str(a.n_layers)),
        ("hidden", f"{a.hidden:,}"),
        ("feed-forward", f"{a.ffn:,}{' gated' if a.gated_mlp else ''}, {a.activation}"),
        ("heads", f"{a.heads} query, {a.kv_heads} key-value, {a.head_dim} wide" if a.n_attention_layers else "no attention"),
        ("vocabulary", f"{a.vocab:,}"),
        ("context", f"{a.max_seq_len:,} tokens, {a.position} positions"),
    ]
    mixers = _mixers(a)
    rows += [(name, f"{part.shown} in {n} layers") for name, part, n in mixers]
    if mixers:
        rows.append(("attention", f"in {a.n_attention_layers} layers"))
    if a.moe is not None:
        m = a.moe
        shared = f", {m.n_shared} shared" if m.n_shared else ""
        rows.append(("experts", f"{m.n_experts} of width {m.expert_ffn}, {m.n_active} active{shared}"))
    if a.mla is not None:
        rows.append(("latent attention", f"query rank {a.mla.q_lora_rank}, key-value rank {a.mla.kv_lora_rank}"))
    if a.window is not None:
        rows.append(
            (
                "window",
                f"{a.window:,} tokens" + (f", one layer in {a.global_every} global" if a.global_every else ""),
            )
        )
    if a.global_attention is not None:
        g = a.global_attention
        one = ", of one projection" if g.keys_are_values else ""
        rows.append(("global layers", f"{g.heads} query, {g.kv_heads} key-value{one}, {g.head_dim} wide"))
    if a.shared_cache is not None:
        rows.append(("shared cache", f"the last {a.shared_cache.layers} layers, with {a.shared_cache.ffn:,} feed-forward"))
    if a.per_layer_embedding:
        rows.append(("per-layer input", f"{a.per_layer_embedding} wide, from a table for each layer"))
    if a.encoder is not None:
        rows.append(("encoder", f"{a.encoder.n_layers} layers of {a.encoder.hidden}"))
    return rows


def _document(a: Architecture) -> dict[str, object]:
    from dataclasses import asdict

    from gpuwise.workload.transformer.parameters import count_parameters

    count = count_parameters(a)
    return {**asdict(a), "parameters": count.total, "active_parameters": count.active}
