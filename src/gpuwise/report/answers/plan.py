"""A plan and a fit: the answer, the layout, what fills the memory and the step, what else there is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from gpuwise.report.answers.drawings import Dot, Part, around, bar, points
from gpuwise.report.answers.values import At, button, cell, sentences, shown, spread
from gpuwise.report.page import TableRow, heading, notes, table, text
from gpuwise.text import escape
from gpuwise.units import format_bytes, format_duration
from gpuwise.workload.optimizer import offloaded_states
from gpuwise.workload.strategy import COLUMNS, NEUTRAL, OPTIONS

ASKED = {field: o.name or field for field, o in OPTIONS.items() if o.label}
"""Fields of a strategy that pages ask for, with the option that gives them."""
ALWAYS = {*COLUMNS, "precision", "optimizer", "stack"} - {"shard_group"}
"""Those that are given at their neutral value too: a plan would choose another."""
TILES = (
    ("time_s", "Time"),
    ("cost_usd", "Cost"),
    ("step_time_s", "A step"),
    ("tokens_per_s", "Tokens a second"),
    ("mfu", "MFU"),
    ("memory_bytes", "Memory"),
    ("fit_probability", "Chance to fit"),
)


def option_query(strategy: At) -> dict[str, str]:
    """The options that ask for exactly this strategy."""
    given = {f: v for f in ASKED if (v := strategy[f].value) is not None and (f in ALWAYS or v != getattr(NEUTRAL, f))}
    if given.get("tp", 1) == 1:
        given.pop("sequence_parallel", None)
    adapters = bool(strategy["lora_rank"].value)
    half = "gradient_dtype" in given and strategy["master_weights"].value is False and not adapters
    query = {ASKED[f]: v for f, v in given.items() if not (half and f == "gradient_dtype")}
    if half:
        query["half_weights"] = True
    if adapters and not strategy["quantized_base"].value:
        query["lora"] = True
    return {k: ("yes" if v else "no") if isinstance(v, bool) else str(v) for k, v in query.items()}


def differences(strategy: At, other: At) -> dict[str, str] | None:
    """The options that lead from one strategy to the other; None where something differs that no option gives."""
    before: dict[str, Any] = strategy.value or {}
    after: dict[str, Any] = other.value or {}
    handled = {*ASKED, "lora_rank", "global_batch", "master_weights"}
    if any(before.get(k) != after.get(k) for k in {*before, *after} - handled):
        return None
    was, now = option_query(strategy), option_query(other)
    return {k: v for k, v in now.items() if was.get(k) != v} if set(was) <= set(now) else None


def tiles(place: At, names: tuple[tuple[str, str], ...] = TILES) -> str:
    """The main figures, each with its interval."""
    filled = [(title, place[name]) for name, title in names if place[name]]
    items = "".join(
        f"<div><dt>{escape(title)}</dt><dd>{shown(p).html}<small>{text(spread(p))}</small></dd></div>" for title, p in filled
    )
    return f'<dl class="tiles">{items}</dl>\n'


def layout_words(s: At) -> str:
    """A strategy in a line."""
    degrees = [f"{n} {s[n].value}" for n in ("dp", "tp", "pp", "cp", "ep") if (s[n].value or 1) > 1]
    parts = [
        *(degrees or ["one GPU"]),
        f"micro-batch {s['micro_batch'].value} x {s['accumulation'].value}",
        f"{s['sharding'].value} sharding" if s["sharding"].value != "none" else "no sharding",
        f"{s['recompute'].value} recompute" if s["recompute"].value != "none" else "no recompute",
        str(s["precision"].value),
        str(s["optimizer"].value),
    ]
    parts += [f"LoRA rank {s['lora_rank'].value}"] if s["lora_rank"].value else []
    states = offloaded_states(
        str(s["stack"].value), s["dp"].value * s["cp"].value, parameters=bool(s["offload_parameters"].value)
    )
    held = ((states, "offload_optimizer"), ("activations", "offload_activations"))
    parts += [f"{words} in host memory" for words, name in held if s[name].value]
    return ", ".join(parts) + f"; {s['stack'].value}"


def bars(place: At, device: At) -> str:
    """What fills the memory, against the device's, and where a step's time goes."""
    memory = [Part(n, p) for n, p in place["memory_parts_bytes"].items()]
    step = [Part(n, p) for n, p in place["breakdown_s"].items()]
    return bar("memory", "Memory of the fullest GPU", memory, place["memory_bytes"], device) + bar(
        "step", "A step", step, place["step_time_s"]
    )


def plan(document: Mapping[str, Any]) -> list[str]:
    """A plan as the body of a page."""
    d = At(document)
    best = d["best"]
    head = f"{d['model']['name'].text} on {d['cluster']['label'].text}"
    if not best:
        smallest = d["smallest"]
        body = [f'<h2>{escape(head)}</h2><p class="no">Nothing fits.</p>']
        if smallest:
            body += [tiles(smallest), f"<p>{escape(layout_words(smallest['strategy']))}, the least that is needed</p>"]
            body.append(f'<div class="figures">{bars(smallest, d["cluster"]["usable_bytes"])}</div>')
        return [*body, notes(sentences(d["warnings"]))]
    fits = "" if best["fits"].value else '<p class="no">It does not fit.</p>'
    body = [
        f"<h2>{escape(head)}</h2>{fits}",
        tiles(best),
        f'<p class="layout">{escape(layout_words(best["strategy"]))}</p>',
        f'<div class="figures">{bars(best, d["cluster"]["usable_bytes"])}{_front(d)}</div>\n',
    ]
    body += [heading("Where"), _hardware(d["hardware"])] if d["hardware"] else []
    body += [heading("Other layouts"), _options(d["alternatives"])] if d["alternatives"] else []
    body += [heading("One change"), _changes(d["neighbours"])] if d["neighbours"] else []
    for title, place in (
        ("Why", d["reasons"]),
        ("Warnings", d["warnings"]),
        ("Others", d["published"]),
        ("Assumed", d["goal"]["assumed"]),
    ):
        body += [heading(title), notes(sentences(place))] if place else []
    words = " ".join(str(f.value) for f in best["flags"])
    run = f"<pre>{escape(words)}</pre>\n" if words else "<p>gpuwise has no files for this stack or device.</p>\n"
    return [*body, heading("Run it"), run]


def estimate(document: Mapping[str, Any]) -> list[str]:
    """One layout as a body: what a step takes and what fills the memory."""
    d = At(document)
    fits = "" if d["fits"].value else '<p class="no">It does not fit.</p>'
    words = f'<p class="layout">{escape(layout_words(d["strategy"]))}</p>'
    return [f"<h2>{d['head'].text}</h2>{fits}", tiles(d), words, f'<div class="figures">{bars(d, d["device_bytes"])}</div>\n']


def _front(d: At) -> str:
    """Time against memory, to choose from."""
    front = list(d["pareto"])
    if len(front) < 2:
        return ""
    strategy = d["best"]["strategy"].value
    x = around("memory of the fullest GPU", [p["memory_bytes"].number for p in front], format_bytes)
    y = around("a step", [p["step_time_s"].number for p in front], format_duration)
    dots = [
        Dot(
            p["memory_bytes"].number,
            p["step_time_s"].number,
            f"{p['step_time_s'].text} with {p['memory_bytes'].text}: {layout_words(p['strategy'])}",
            urlencode(option_query(p["strategy"])),
            p["strategy"].value == strategy,
        )
        for p in front
    ]
    return points("front", "Time against memory", x, y, dots)


def _options(place: At) -> str:
    rows = [
        TableRow(
            button(layout_words(o["strategy"]), option_query(o["strategy"])),
            [cell(o[n]) for n in ("step_time_s", "mfu", "memory_bytes", "cost_usd")],
        )
        for o in place
    ]
    return table("Other layouts", ["layout", "a step", "MFU", "memory", "cost"], rows)


def _hardware(place: At) -> str:
    rows = [TableRow(o["cluster"].text, [cell(o[n]) for n in ("time_s", "cost_usd", "mfu", "memory_bytes")]) for o in place]
    return table("Where", ["GPUs", "time", "cost", "MFU", "memory"], rows)


def _changes(place: At) -> str:
    rows = [
        TableRow(n["change"].text, [cell(n[k]) for k in ("slower", "step_time_s", "memory_bytes", "fit_probability")])
        for n in place
    ]
    return table("One change", ["change", "speed", "a step", "memory", "chance to fit"], rows)
