"""The reference pages of file formats (from the schemas that loaders check) and of the catalogues."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from gpuwise.facts.hardware import systems as systems_room
from gpuwise.facts.hardware.accelerators import ACCELERATOR_SCHEMA, ARCHITECTURE_SCHEMA, accelerators
from gpuwise.facts.hardware.cpus import CPU_SCHEMA
from gpuwise.facts.loading import DATA, Field
from gpuwise.facts.models.architecture import Architecture, Encoder, Mla, Moe, Patches
from gpuwise.facts.models.catalogue import CATALOGUE_FILES, models
from gpuwise.facts.models.checks import LIMITS
from gpuwise.facts.offers.offer import OFFER_SCHEMA, offers
from gpuwise.facts.sources import SOURCE_SCHEMA, sources
from gpuwise.units import GIB, TERA, format_count
from tools.docs.reference_plan import plan_format
from tools.docs.reference_prices import price_formats
from tools.docs.reference_python import cell, field_meanings
from tools.docs.reference_run import run_formats
from tools.docs.reference_support import support_formats

_KINDS = {
    "text": "text",
    "number": "number",
    "integer": "whole number",
    "date": "date",
    "flag": "true or false",
    "names": "names",
    "numbers": "table of numbers",
}


def formats_page() -> str:
    """Every file a person may write or extend."""
    from tools.docs.reference import STAMP

    lines = [STAMP, "", "# File formats", ""]
    lines += [
        "All fact files are in the folders of `src/gpuwise/facts/data`. They are read strictly: an unknown, missing or "
        "repeated field, an empty required cell, NaN, infinity, a negative number, or a value of the wrong "
        "type is an error that names file, line and field. A number must be above zero unless a range says "
        "otherwise. In CSV, a list of names is written `a;b` and a line that starts with `#` is a comment.",
        "",
    ]
    lines += _readme_words()
    for title, text, schema in (*_formats(), *price_formats(), *run_formats(), *support_formats()):
        lines += [f"## {title}", "", text, "", *_schema(schema), ""]
    lines += [*_models(), *_stacks(), *_coefficients(), *plan_format()]
    return "\n".join(lines).rstrip() + "\n"


def _formats() -> Iterable[tuple[str, str, Mapping[str, Field]]]:
    yield (
        "accelerators.csv",
        "One line is one device as the software sees it. Rates are dense; links one direction.",
        ACCELERATOR_SCHEMA,
    )
    yield (
        "architectures.toml",
        "One table is what one compute unit does per clock; its name is `sm_80` or a family.",
        ARCHITECTURE_SCHEMA,
    )
    yield (
        "cpus.csv",
        "One line is one processor (one socket). Clocks and operations per clock are of one core; `efficiency_*` of "
        "the small cores of a hybrid part; `matrix_dtypes` run on a matrix unit.",
        CPU_SCHEMA,
    )
    yield "sources.csv", "One line is one source; other files cite its key.", SOURCE_SCHEMA
    yield (
        "systems.toml",
        "One table is accelerators in one host with their links; its name is the id.",
        systems_room._SYSTEM_SCHEMA,
    )
    yield (
        "networks.toml",
        "One table is a generation of a scale-out network, one direction.",
        systems_room._NETWORK_SCHEMA,
    )
    yield (
        "links.toml",
        "One table is a generation of links between devices, one direction.",
        systems_room._LINK_SCHEMA,
    )
    yield (
        "offers.csv",
        "One line is one price on one day: US dollars per hour and accelerator, without storage, egress and "
        "tax. A file of your own has the same columns. The shipped file ends with a checksum: run `python -m "
        "gpuwise.facts.offers.seal` after a change.",
        OFFER_SCHEMA,
    )


def _schema(schema: Mapping[str, Field]) -> list[str]:
    lines = ["| field | value | required | allowed |", "|---|---|---|---|"]
    for name, field in schema.items():
        low = "" if field.minimum is None else f"from {field.minimum:g}"
        high = "" if field.maximum is None else f"to {field.maximum:g}"
        allowed = ", ".join(f"`{c}`" for c in field.choices) or " ".join(filter(None, (low, high)))
        lines.append(f"| `{name}` | {_KINDS[field.kind]} | {'yes' if field.required else ''} | {allowed} |")
    return lines


def _readme_words() -> list[str]:
    """What the note beside the fact files says of single columns."""
    text = (DATA / "README.md").read_text(encoding="utf-8")
    part = text.partition("## Columns of accelerators.csv that need a word")[2].partition("\n## ")[0]
    return ["## Columns that need a word", "", *part.strip().split("\n"), ""] if part.strip() else []


def _models() -> list[str]:
    lines = [
        "## models_*.toml",
        "",
        f"{', '.join(f'`{name}`' for name in CATALOGUE_FILES)}. One table is a family: what its models "
        'share. Under its `[family.models]` one line is one model: `"id" = { ... }`. `kv_heads` defaults to '
        "`heads`, `head_dim` to `hidden / heads`, `kind` to `decoder`. `hf` lists Hugging Face ids, which "
        "become aliases; `source` defaults to the first one's page. `extra` lists `{ what, parameters }` "
        "that no field expresses.",
        "",
    ]
    for cls, key in (
        (Architecture, ""),
        (Moe, "moe"),
        (Mla, "mla"),
        (Encoder, "encoder"),
        (Patches, "patches"),
    ):
        lines += [f"### {key or 'A model'}", "", "| field | type | largest | |", "|---|---|---|---|"]
        for f, meaning in field_meanings(cls):
            if not key and f.name in ("id", "family", "extras", "extra_parameters"):
                continue
            largest = f"{LIMITS[f.name]:,}" if f.name in LIMITS else ""
            lines.append(f"| `{f.name}` | `{str(f.type).replace('|', chr(92) + '|')}` | {largest} | {meaning} |")
        lines.append("")
    return [
        *lines,
        "## usual.toml",
        "",
        "What most people mean by a name that several models have: listed first where such a name is refused.",
        "",
        "| column | |",
        "|---|---|",
        "| `model` | Id of the model. |",
        "| `from` | `ollama`: what `ollama run` fetches by that name; `family`: one of several generations; `language`: the "
        "language model of a vision model. |",
        "",
        "## words.toml",
        "",
        "The words of `gpuwise explain` and of the [glossary](../learn/glossary.md), a `[[term]]` each.",
        "",
        "| column | |",
        "|---|---|",
        "| `name` | The word; several with commas, an abbreviation in parentheses. |",
        "| `aliases` | Other spellings that find it. |",
        "| `group` | Its subject. |",
        "| `says` | What it means; a figure stands where its name is in braces. |",
        "| `figures` | Numbers: the `command` that gives one and its `path` in the JSON document; `show`, `unit` and `scale` "
        "format it. |",
        "| `see` | Where to read on, from the page of the glossary. |",
        "",
    ]


def _stacks() -> list[str]:
    from gpuwise.predict.stack_costs import StackCosts
    from gpuwise.workload.stacks.layout import LayoutRules
    from gpuwise.workload.stacks.memory import MemoryRules
    from gpuwise.workload.stacks.stack import Exported, Instead, Release, Stack
    from gpuwise.workload.strategy import STACKS

    lines = ["## Stacks", ""]
    lines += [
        "A stack is one file of `workload/stacks`: facts about its kernels at the top, then the sections `[memory]`, `[layout]`, "
        "`[instead]` and `[export]`. `like`, at the top and in a section, names the stack whose facts stand where none are "
        "written. They are the facts of today; each `[[release]]` has what it changed. "
        "`predict/coefficients/step/stacks.json` says what launches, gaps and overlaps cost, which is fitted.",
        "",
        f"Stacks: {', '.join(f'`{name}`' for name in STACKS)}.",
        "",
    ]
    sections = {"memory": MemoryRules, "layout": LayoutRules, "instead": Instead, "export": Exported}
    parts = [
        ("A stack", Stack),
        *((f"[{name}]", cls) for name, cls in sections.items()),
        ("[[release]]", Release),
        ("stacks.json", StackCosts),
    ]
    for title, cls in parts:
        lines += [f"### {title}", "", "| field | type | |", "|---|---|---|"]
        lines += [
            f"| `{f.name}` | `{str(f.type).replace('|', chr(92) + '|')}` | {meaning} |"
            for f, meaning in field_meanings(cls)
            if f.name not in sections
        ]
        lines.append("")
    return lines


def _coefficients() -> list[str]:
    from gpuwise.predict import coefficients

    names = sorted(coefficients._manifest())
    return [
        "## Coefficients",
        "",
        "`predict/coefficients/<subject>/<family>.json` holds the numbers of a family and `provenance`: sources, rows, "
        "date and split; tables of the fit's errors are in `benchmarks/records/validate`. Arrays are in `<family>.npz` "
        "(no pickles). `MANIFEST.json` "
        "holds the SHA-256 of each file: a file that does not match gives no number, it raises `DataError`. "
        "`studies.coefficient_files.write` writes all three.",
        "",
        f"Files: {', '.join(f'`{name}`' for name in names)}.",
        "",
    ]


def catalogues_page() -> str:
    """How many of everything, and which."""
    from tools.docs.reference import STAMP

    kinds = Counter(s.kind for s in sources().values())
    dates = sorted(o.as_of for o in offers())
    counts = [
        (
            "accelerators",
            len(accelerators()),
            ", ".join(f"{v} {n}" for v, n in Counter(a.vendor for a in accelerators().values()).most_common()),
        ),
        ("systems", len(systems_room.systems()), ""),
        ("networks", len(systems_room.networks()), ""),
        ("links", len(systems_room.link_generations()), ""),
        (
            "offers",
            len(offers()),
            f"{len({o.provider for o in offers()})} providers, {dates[0]} to {dates[-1]}",
        ),
        ("models", len(models()), f"{len({m.family for m in models().values()})} families"),
        ("sources", len(sources()), ", ".join(f"{n} {k}" for k, n in kinds.most_common())),
    ]
    lines = [STAMP, "", "# Catalogues", "", "| what | how many | |", "|---|---|---|"]
    lines += [f"| {what} | {n} | {more} |" for what, n, more in counts]
    lines += ["", "`gpuwise gpus NAME` and `gpuwise models NAME` print one entry with its sources.", ""]
    return "\n".join([*lines, *_accelerator_rows(), *_system_rows(), *_model_rows()]).rstrip() + "\n"


def _accelerator_rows() -> list[str]:
    def rate(value: float | None) -> str:
        return "" if value is None else f"{value / TERA:.4g}"

    lines = ["## Accelerators", "", "Dense TFLOP/s (TOP/s for int8) with FP32 accumulation.", ""]
    lines += [
        "| id | name | family | year | GiB | TB/s | fp32 | bf16 | fp8 | int8 | W |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for a in accelerators().values():
        rates = " | ".join(rate(a.peak_flop_per_s.get(d)) for d in ("fp32", "bf16", "fp8", "int8"))
        watts = "" if a.tdp_w is None else f"{a.tdp_w:g}"
        lines.append(
            f"| `{a.id}` | {cell(a.name)} | {a.family} | {a.year} | {a.memory_bytes / GIB:.4g} | "
            f"{rate(a.memory_bandwidth_bytes_per_s)} | {rates} | {watts} |"
        )
    return [*lines, ""]


def _system_rows() -> list[str]:
    lines = ["## Systems", "", "With the device each is usually sold with.", ""]
    lines += ["| id | name | accelerators | inside | network |", "|---|---|---|---|---|"]
    for s in systems_room.systems().values():
        lines.append(
            f"| `{s.id}` | {cell(s.name)} | {s.count} x {cell(s.accelerator.name)} | {s.topology}, "
            f"{s.link_kind} | {s.network_kind} |"
        )
    return [*lines, ""]


def _model_rows() -> list[str]:
    from gpuwise.workload.transformer.parameters import count_parameters

    lines = [
        "## Models",
        "",
        "| id | name | kind | layers | hidden | context | parameters |",
        "|---|---|---|---|---|---|---|",
    ]
    for m in models().values():
        total = format_count(count_parameters(m).total)
        lines.append(
            f"| `{m.id}` | {cell(m.name)} | {m.kind}{', experts' if m.moe else ''} | {m.n_layers} | "
            f"{m.hidden} | {m.max_seq_len:,} | {total} |"
        )
    return [*lines, ""]
