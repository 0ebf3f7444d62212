"""The catalogue of models: one with its dimensions, a list, and which of them run on a device."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from gpuwise.report.answers.answer import Answer, Cell, Column, Command, Figure, Notes, Number, Phrase, Row, Section, Table, span
from gpuwise.report.answers.parts import PARTS
from gpuwise.report.answers.values import At

TITLES = PARTS["models"]
GROUPS = ("whole", "part", "slow")
MANY = 20
"""Models from which a list begins with their families."""
BY_SIZE = "sorted by size (of experts the mean of all and the active), long contexts first: there are no scores of quality here"


def models_answer(document: Mapping[str, Any]) -> Answer:
    """The answer of ``models --on``."""
    d = At(document)
    rows = {name: [m for m in d["models"] if m["group"].value == name] for name in GROUPS}
    whole, part = len(rows["whole"]), len(rows["part"])
    verdict = f"{d['machine']['label'].text} runs {_models(whole)} as fast as one reads"
    verdict += f", and {part} more with a part in RAM" if part else ""
    every = [m for group in rows.values() for m in group]
    return Answer(
        "models",
        verdict if whole or part else f"{d['machine']['label'].text} runs none of them as fast as one reads",
        "yes" if whole else "maybe" if every else "no",
        (
            Number(d["context"], lambda n: f"{n:,.0f}"),
            " tokens of context; in the format of least loss that is fast enough",
        ),
        parts=[Section(name, TITLES[name], [_table(name, group)], first=name != "slow") for name, group in rows.items() if group],
        next=_next(d, every),
        assumed=[BY_SIZE, *(str(s.value) for s in d["assumed"])],
    )


def _models(n: int) -> str:
    return "no model" if not n else "one model" if n == 1 else f"{n} models"


def _table(name: str, models: Sequence[At]) -> Table:
    columns = [
        Column("model", words=True),
        Column("parameters", leaves=2),
        Column("active", leaves=1),
        Column("format", words=True),
        Column("memory"),
        *([Column("in RAM")] if name != "whole" else []),
        Column("tokens/s"),
        *([Column("longest context")] if name == "whole" else []),
    ]
    return Table(TITLES[name], columns, [_row(name, m) for m in models])


def _row(name: str, m: At) -> Row:
    rate = m["tokens_per_s"]
    return Row(
        [
            Cell(m["id"]),
            Cell(m["parameters"]),
            Cell(m["active_parameters"]),
            Cell(m["weights"]),
            Cell(m["memory_bytes"]),
            *([Cell(m["host_bytes"]) if m["host_bytes"].number else Cell("-")] if name != "whole" else []),
            Cell(rate, span(rate)),
            *([Cell(Number(m["longest_context"], lambda n: f"{n:,.0f}"))] if name == "whole" else []),
        ]
    )


def _next(d: At, models: Sequence[At]) -> Command | None:
    """The first one in full."""
    on = ["--on", shlex.quote(d["on"].text)]
    for m in models:
        return Command("The first one in full", ["gpuwise", "fit", m["id"].text, *on, "--for", "run"])
    return None


# --- the catalogue ---


def catalogue_answer(document: Mapping[str, Any]) -> Answer:
    """The answer for the models of the document."""
    found = list(At(document)["models"])
    return _one(found[0]) if len(found) == 1 else _list(found)


def _list(found: Sequence[At]) -> Answer:
    found = sorted(found, key=_by_use())
    columns = [
        Column("model", words=True),
        Column("parameters"),
        Column("active", leaves=6),
        Column("layers", leaves=4),
        Column("hidden", leaves=3),
        Column("heads", leaves=2),
        Column("kv", leaves=1),
        Column("context"),
        Column("kind", words=True, leaves=5),
    ]
    rows = [
        Row(
            [
                Cell(a["id"]),
                Cell(a["parameters"]),
                Cell("" if a["active_parameters"].value == a["parameters"].value else a["active_parameters"]),
                *(Cell(Number(a[key], "{:.0f}".format)) for key in ("n_layers", "hidden", "heads", "kv_heads")),
                Cell(_whole(a["max_seq_len"])),
                Cell(", ".join([a["kind"].text, *(m["name"].text for m in a["mixers"]), *(["experts"] if a["moe"] else [])])),
            ]
        )
        for a in found
    ]
    table = Section("list", TITLES["list"], [Table(TITLES["list"], columns, rows)], first=True)
    return Answer(
        "models",
        f"{len(found)} models, from {_smallest(found)} to {_smallest(found, -1)} parameters",
        lead="those that people mean by a short name (llama, qwen3) first",
        parts=[table, *([_families(found)] if len(found) > MANY else [])],
        next=Command("Those that run on a device", ["gpuwise", "models", "--on", "4090"]),
    )


def _by_use() -> Callable[[At], int]:
    """The place of a model among those that people mean by a short name; behind them for others."""
    from gpuwise.facts.models.catalogue import usual_models

    names = list(dict.fromkeys(usual_models()))
    places = {name: i for i, name in enumerate(names)}
    return lambda a: places.get(a["id"].text, len(names))


def _smallest(found: Sequence[At], i: int = 0) -> str:
    """The parameters of the smallest, or of the ``i``-th by size."""
    return sorted((a["parameters"] for a in found), key=lambda p: p.number)[i].text


def _families(found: Sequence[At]) -> Section:
    """Families, those of models that people run first, then those of most models."""
    by_family: dict[str, list[At]] = {}
    for a in found:
        by_family.setdefault(a["family"].text, []).append(a)
    rows: list[Row] = []
    rank = _by_use()
    for family, members in sorted(by_family.items(), key=lambda i: (min(map(rank, i[1])), -len(i[1]))):
        sizes = sorted(members, key=lambda a: a["parameters"].number)
        size: Phrase = (sizes[0]["parameters"], *((" to ", sizes[-1]["parameters"]) if len(sizes) > 1 else ()))
        rows.append(Row([Cell(family), Cell(f"{len(members)}"), Cell(size), Cell(", ".join(a["id"].text for a in members[:2]))]))
    columns = [Column("family", words=True), Column("models"), Column("parameters"), Column("like", words=True)]
    return Section("families", TITLES["families"], [Table(TITLES["families"], columns, rows)], first=True)


def _one(a: At) -> Answer:
    """One model with its parameters by part."""
    count, published = a["parameters"], a["published_parameters"]
    rows = [Row([Cell(name.replace("_", " ")), Cell(_whole(n))]) for name, n in a["parameters_by_part"].items()]
    if a["active_parameters"].value != count.value:
        rows.append(Row([Cell("active per token"), Cell(_whole(a["active_parameters"]))]))
    beside: Phrase = ""
    if published.value is not None:
        same = published.value == count.value
        beside = ", the same as published" if same else f", {int(count.number - published.number):+,} against the published count"
    elif a["published_rounded"].value is not None:
        beside = f", published as {a['published_rounded'].text}"
    notes = [n for n in (a["published_note"], *a["notes"]) if n.value]
    columns = [Column("part", words=True), Column("parameters")]
    named = ["gpuwise", "fit", a["id"].text, "--on", "4090"] if a["family"].value else []
    about = ", ".join([a["kind"].text, f"id {a['id'].text}", *([a["license"].text] if a["license"].value else [])])
    counted: Phrase = (_whole(count), " parameters", beside)
    return Answer(
        "models",
        _takes(a) or (f"{a['name'].text}: ", counted),
        "",
        (counted, f"; {about}") if a["memory"] else about,
        list(_dimensions(a)),
        [
            *([Section("memory", TITLES["memory"], [_memory(a["memory"])], first=True)] if a["memory"] else []),
            Section("parameters", TITLES["parameters"], [Table(TITLES["parameters"], columns, rows)], first=not a["memory"]),
            *([Section("notes", TITLES["notes"], [Notes(notes)])] if notes else []),
            *([Section("sources", TITLES["sources"], [Notes([f"From {a['source'].text}"])])] if a["source"].value else []),
        ],
        Command("What it needs on a GPU", named, command="fit", sets={"on": "4090"}),
    )


def _takes(a: At) -> Phrase:
    """The memory to run it, in a usual format and as it is published; nothing where no format is known."""
    rows = {r["weights"].text: r["contexts"][0] for r in a["memory"]} if a["memory"] else {}
    if not rows:
        return ""
    first, usual = next(iter(rows)), USUAL_FORMAT if USUAL_FORMAT in rows else next(iter(rows))
    whole: Phrase = (", ", rows[first]["memory_bytes"], f" in {first}") if first != usual else ""
    tokens = f"{rows[usual]['context'].number:,.0f}"
    return f"{a['name'].text} takes ", rows[usual]["memory_bytes"], f" in {usual}", whole, f", with {tokens} tokens of context"


USUAL_FORMAT = "Q4_K_M"
"""What Ollama and LM Studio fetch where none is named."""


def _memory(rows: At) -> Table:
    """What each format takes on one device, by tokens of context."""
    lengths = [f"{c['context'].number:,.0f} tokens" for c in rows[0]["contexts"]]
    columns = [Column("format", words=True), Column("weights"), *(Column(f"with {name}") for name in lengths)]
    held = [Row([Cell(r["weights"]), Cell(r["weight_bytes"]), *(Cell(c["memory_bytes"]) for c in r["contexts"])]) for r in rows]
    return Table(TITLES["memory"], columns, held)


def _whole(place: At) -> Number:
    return Number(place, "{:,.0f}".format)


def _dimensions(a: At) -> Iterator[Figure]:
    yield Figure("layers", _whole(a["n_layers"]))
    yield Figure("hidden", _whole(a["hidden"]))
    yield Figure("feed-forward", (_whole(a["ffn"]), " gated" if a["gated_mlp"].value else "", f", {a['activation'].text}"))
    heads: Phrase = (_whole(a["heads"]), " query, ", _whole(a["kv_heads"]), " key-value, ", _whole(a["head_dim"]), " wide")
    yield Figure("heads", heads if a["attention_layers"].number else "no attention")
    yield Figure("vocabulary", _whole(a["vocab"]))
    yield Figure("context", (_whole(a["max_seq_len"]), f" tokens, {a['position'].text} positions"))
    for mixer in a["mixers"]:
        yield Figure(mixer["name"].text, (mixer["size"], " in ", mixer["layers"], " layers"))
    if a["mixers"]:
        yield Figure("attention", ("in ", a["attention_layers"], " layers"))
    if moe := a["moe"]:
        shared: Phrase = (", ", moe["n_shared"], " shared") if moe["n_shared"].number else ""
        experts: Phrase = (moe["n_experts"], " of width ", _whole(moe["expert_ffn"]), ", ", moe["n_active"], " active", shared)
        yield Figure("experts", experts)
    if mla := a["mla"]:
        yield Figure("latent attention", ("query rank ", mla["q_lora_rank"], ", key-value rank ", mla["kv_lora_rank"]))
    if a["window"].value is not None:
        every: Phrase = (", one layer in ", a["global_every"], " global") if a["global_every"].value else ""
        yield Figure("window", (_whole(a["window"]), " tokens", every))
    if wide := a["global_attention"]:
        one = ", of one projection" if wide["keys_are_values"].value else ""
        sizes: Phrase = (wide["heads"], " query, ", wide["kv_heads"], " key-value", one, ", ", wide["head_dim"], " wide")
        yield Figure("global layers", sizes)
    if shared := a["shared_cache"]:
        yield Figure("shared cache", ("the last ", shared["layers"], " layers, with ", _whole(shared["ffn"]), " feed-forward"))
    if a["per_layer_embedding"].value:
        yield Figure("per-layer input", (a["per_layer_embedding"], " wide, from a table for each layer"))
    if encoder := a["encoder"]:
        yield Figure("encoder", (encoder["n_layers"], " layers of ", _whole(encoder["hidden"])))
