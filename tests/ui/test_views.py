"""What a page shows is the document: each number with its place, each name as text, each export the same."""

from __future__ import annotations

import csv
import datetime
import html
import html.parser
import io
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from tests.ui.documents import ASKED, document

from gpuwise.errors import GpuwiseError, InputError
from gpuwise.report.answers.drawings import WIDTH
from gpuwise.report.answers.values import At, words
from gpuwise.ui.moment import moments
from gpuwise.ui.questions import QUESTIONS, words_of
from gpuwise.ui.views import export, shown, view

HOSTILE = '"><img src=x onerror=alert(1)><script>alert(2)</script>'
VOID = {"input", "br", "img", "meta", "link"}


class Reader(html.parser.HTMLParser):
    """Checks that tags close, and collects the data elements and everything active."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.numbers: dict[str, str] = {}
        self.active: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "data":
            self.numbers[given["data-path"] or ""] = given["value"] or ""
        if tag in ("script", "img", "iframe", "object", "style") or any(k.startswith("on") or k == "style" for k in given):
            self.active.append(tag)
        if given.get("id"):
            self.ids.append(str(given["id"]))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def read(markup: str) -> Reader:
    reader = Reader()
    reader.feed(markup)
    assert not reader.open
    return reader


def at(made: Any, pointer: str) -> Any:
    place = made
    for name in pointer.split("/")[1:]:
        name = name.replace("~1", "/").replace("~0", "~")
        place = place[int(name)] if isinstance(place, list) else place[name]
    return place


@pytest.mark.parametrize("name", ASKED)
def test_every_number_shown_is_the_documents(name: str) -> None:
    made = document(name)
    reader = read(view(name, made))
    assert len(reader.numbers) >= 5 and not reader.active
    assert len(reader.ids) == len(set(reader.ids))
    for pointer, value in reader.numbers.items():
        assert float(value) == at(made, pointer), pointer


def hostile(value: Any) -> Any:
    """The document with every text that is no key replaced."""
    if isinstance(value, dict):
        return {
            k: v if k in ("strategy", "accelerator", "verdict", "objective", "target") else hostile(v) for k, v in value.items()
        }
    if isinstance(value, list):
        return [hostile(v) for v in value]
    return HOSTILE if isinstance(value, str) and not re.fullmatch(r"\d{4}-\d{2}", value) else value


@pytest.mark.parametrize("name", ASKED)
def test_names_are_shown_as_text(name: str) -> None:
    made = hostile(document(name))
    body = view(name, made)
    assert "<script" not in body and "<img" not in body and not read(body).active
    page = export(name, "html", made, HOSTILE)
    assert "<script" not in page and "<img" not in page


@pytest.mark.parametrize("name", ASKED)
def test_exports_stand_alone(name: str) -> None:
    made = document(name)
    assert json.loads(export(name, "json", made, "")) == made
    rows = list(csv.reader(io.StringIO(export(name, "csv", made, ""))))
    assert rows[0] == ["path", "value"] and len(rows) > 10
    page = export(name, "html", made, "gpuwise x")
    assert 'data-set="' not in page and "<button" not in page and "src=" not in page
    import xml.etree.ElementTree as tree

    tree.fromstring(export(name, "svg", made, ""))


def moment(query: dict[str, str]) -> dict[str, Any]:
    (said,) = moments([query], datetime.date.today())
    if isinstance(said, GpuwiseError):
        raise said
    return said


def test_a_layout_at_once_is_what_the_search_says_of_it() -> None:
    found = document("plan")
    query = {"model": "gpt2", "on": "4xA100-80GB", "tokens": "1B", **shown("plan", found)["held"]}
    assert moment(query)["best"] == found["best"]


@pytest.mark.parametrize("changes", [{"micro_batch": "4"}, {"recompute": "full"}, {"precision": "fp16"}, {"tp": "2", "dp": "2"}])
def test_a_slider_says_what_the_command_line_beside_it_prints(changes: dict[str, str], gpuwise: Any) -> None:
    query = {"model": "gpt2", "on": "4xA100-80GB", "tokens": "1B", **shown("plan", document("plan"))["held"], **changes}
    del query["accumulation"]
    said = moment(query)
    printed = json.loads(gpuwise(*words_of("plan", query), "--json").out.splitlines()[-1])
    assert printed["search"]["strategies"] == 1
    assert said["best"] == printed["best"]


def test_experts_over_tensor_ranks_are_asked_for_and_held(gpuwise: Any) -> None:
    query = {"model": "olmoe-1b-7b", "on": "8xH200", "tokens": "1B", "dp": "4", "tp": "2", "ep": "1", "pp": "1", "etp": "2"}
    query |= {"micro_batch": "1", "stack": "megatron-core", "recompute": "none", "sharding": "zero1"}
    said = moment(query)
    assert said["best"]["strategy"]["etp"] == 2
    assert shown("plan", said)["held"]["etp"] == "2"
    printed = json.loads(gpuwise(*words_of("plan", query | shown("plan", said)["held"]), "--json").out.splitlines()[-1])
    assert printed["best"] == said["best"]


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"micro_batch": "3", "global_batch": "512"}, "whole number"),
        ({"dp": "2"}, "accelerators"),
        ({"tp": "3", "dp": "1"}, "accelerators"),
        ({"model": ""}, "model"),
    ],
)
def test_a_layout_that_cannot_be_is_refused(changes: dict[str, str], error: str) -> None:
    from gpuwise.errors import InputError

    query = {"model": "gpt2", "on": "4xA100-80GB", "dp": "4", **changes}
    with pytest.raises(InputError, match=error):
        moment(query)


@pytest.mark.parametrize("name", ["plan", "fit"])
def test_what_stands_beside_the_next_answer_is_of_this_one(name: str) -> None:
    made = shown(name, document(name))
    brief = made["brief"].replace('id="last-', 'id="')
    assert brief.count('class="tiles"') == brief.count('class="layout"') == 1
    # a step of what does not fit has no time
    drawn = [f'<figure id="{name}">' for name in ("memory", "step") if f'<figure id="{name}">' in made["html"]]
    assert len(drawn) == (2 if 'class="yes"' in brief else 1)
    assert brief.count("<figure id=") == len(drawn) == made["brief"].count(' id="last-') == made["brief"].count(" id=")
    for part in ('<dl class="tiles">', '<p class="layout">', *drawn):
        whole = made["html"][made["html"].index(part) :]
        assert brief[brief.index(part) :].split("</", 1)[0] == whole.split("</", 1)[0]
    assert {**read(brief).numbers, **read(made["html"]).numbers} == read(made["html"]).numbers


def test_a_fit_shows_the_answer_of_its_use(gpuwise: Callable[..., Any]) -> None:
    asked = words_of("fit", {"model": "gpt2", "on": "3060"})
    assert asked == ["fit", "gpt2", "--on", "3060"]
    uses = shown("fit", json.loads(gpuwise(*asked, "--json").out.splitlines()[-1]), asked)["html"]
    assert all(f'data-set="for={use}"' in uses for use in ("run", "finetune", "train"))
    assert words_of("fit", {"model": "llama3.1:8b", "on": "3060"})[1] == "llama3.1:8b"
    asked = words_of("fit", {"model": "gpt2", "on": "3060", "for": "run", "context": "512", "weights": "Q8_0"})
    run = shown("fit", json.loads(gpuwise(*asked, "--json").out.splitlines()[-1]), asked)["html"]
    assert "Formats of weights, and what each costs" in run and "llama-server --model gpt2-Q8_0.gguf" in run
    with pytest.raises(InputError):
        words_of("fit", {"model": "gpt2", "on": "3060", "for": "sell"})


def test_layouts_asked_together_are_each_what_it_is_alone() -> None:
    asked = [
        {"model": model, "on": on, "dp": "4", "global_batch": "512", "micro_batch": size, "recompute": recompute, "price": price}
        for model, on, price in (("gpt2", "4xA100-80GB", ""), ("gpt2", "4xA100-80GB", "2"), ("llama-3.1-8b", "4xL40S", ""))
        for size in ("1", "3", "4")
        for recompute in ("none", "full")
    ]
    asked.append({**asked[0], "precision": "fp8"})  # an A100 has none
    together = moments(asked, datetime.date.today())
    refused = [i for i, said in enumerate(together) if isinstance(said, GpuwiseError)]
    assert len(refused) == 7 and len({json.dumps(said) for said in together if isinstance(said, dict)}) == 12
    for query, said in zip(asked, together, strict=True):
        (alone,) = moments([query], datetime.date.today())
        assert (str(said), type(said)) == (str(alone), type(alone))


def test_pointers_are_those_of_rfc_6901() -> None:
    place = At({"a/b": {"~": [1, {"expected": 2.0}]}})["a/b"]["~"]
    assert place[1].expected.pointer == "/a~1b/~0/1/expected" and place[1].number == 2.0
    assert not place[7] and place[7].text == "-"


def test_every_option_of_a_page_is_the_commands() -> None:
    from gpuwise.cli.app import build

    app = build()
    for question in QUESTIONS.values():
        command = app[question.command]
        if question.always and not question.always[0].startswith("-"):
            command = command[question.always[0]]
        known = {
            n
            for a in command.assemble_argument_collection(default_parameter=app.default_parameter, parse_docstring=True)
            for n in a.names
        }
        for field in question.fields:
            assert field.kind == "words" or f"--{field.name.replace('_', '-')}" in known, (question.command, field.name)


def test_an_exercise_shows_no_more_than_was_asked_for(gpuwise: Any) -> None:
    def page(*query: str) -> str:
        asked = dict(q.split("=") for q in query)
        made = json.loads(gpuwise(*words_of("exercise", asked), "--json").out.splitlines()[-1])
        return view("exercise", made)

    assert "Power and cooling" in page() and "131,072" not in page("number=11")
    assert "Hint 2" in page("number=11", "hint=2") and "Hint 3" not in page("number=11", "hint=2")
    assert 'data-set="hint=3"' in page("number=11", "hint=2") and 'data-set="hint=1"' in page("number=11")
    assert "data-set" not in page("number=2", "hint=2")  # the last
    wrong = page("number=11", "answer=128")
    assert '<p class="no">Too high, by a factor of 4: ' in wrong and "131,072" not in wrong
    assert '<p class="yes">Right: 32 GiB</p>' in page("number=11", "answer=32")
    assert "131,072 bytes" in page("number=11", "solution=yes") and not read(page("number=11", "solution=yes")).active


def test_a_timeline_has_a_box_for_each_instruction_of_its_warps() -> None:
    made = document("simulate")
    made["stalls"] = [{"reason": "memory latency", "share": 0.25}]
    body = view("simulate", made)
    bar = body.partition('<figure id="stalls">')[2].partition("</figure>")[0]
    assert f'width="{0.25 * WIDTH - 1:.2f}"' in bar and "issuing, or at its end" in bar  # a quarter is drawn as one
    drawn = body.partition('<figure id="timeline"')[2].partition("</figure>")[0]
    warps = {e["warp"] for e in made["timeline"]}
    assert len(warps) <= 16 and drawn.count("<title>warp ") == len(made["timeline"])
    assert 'data-play="' in drawn and 'class="veil" visibility="hidden"' in drawn
    end = max(e["cycle"] for e in made["timeline"])
    assert f'data-end="{end + 1:g}"' in drawn  # the last box is at the end of what is played
    assert "Choose a task" in view("simulate", {"tasks": [{"task": "x", "text": "y", "size": 4}]})


def test_a_race_has_the_times_and_the_work_of_both_sides() -> None:
    made = document("simulate")
    beside, drawn = made["beside"], view("simulate", made).partition('<figure id="race"')[2].partition("</figure>")[0]
    data = json.loads(html.unescape(re.findall(r'data-race="([^"]*)"', drawn)[0]))
    cpu, gpu = data["sides"]
    ends = [sum(seconds for _, seconds in side["phases"]) for side in (cpu, gpu)]
    copied = beside["copy_s"]
    assert ends[0] == pytest.approx(beside["cpu"]["time_s"])
    assert ends[1] == pytest.approx(made["time_s"] + beside["launch_s"] + copied)
    assert data["end"] == max(ends) and data["items"] == beside["items"] == 64 * 64
    assert sum(seconds for name, seconds in gpu["phases"] if name == data["copied"]) == pytest.approx(copied)
    assert sum(count * parts for count, parts in gpu["cells"]) == made["blocks"]
    assert sum(count for count, _ in gpu["cells"]) == made["multiprocessors"]
    assert gpu["phases"][gpu["work"]] == ["kernel", made["time_s"]]
    assert gpu["ends"] == sorted(gpu["ends"]) and gpu["ends"][-1] == [made["time_s"], made["blocks_of_one"]]
    assert drawn.count('class="f1 done"') == made["multiprocessors"] and drawn.count('class="f0 done"') == beside["cpu"]["cores"]
    assert drawn.count('data-show="items">4,096<') == 2  # the picture of an exported page is the end


def test_the_lab_draws_roofs_a_crossover_and_a_chart_to_choose_from() -> None:
    made = document("simulate")
    roof = made["beside"]["roofline"]
    assert [d["device"] for d in roof["devices"]] == [made["device"], made["beside"]["cpu"]["device"]]
    for d in roof["devices"]:
        assert d["roof_flop_per_s"] == min(d["peak_flop_per_s"], d["memory_bytes_per_s"] * roof["flop_per_byte"])
        assert 0 < d["flop_per_s"] <= d["roof_flop_per_s"]
    made["beside"]["crossover"] = {
        "sizes": [{"size": n, "cpu_s": n * 1e-9, "kernel_s": 1e-6, "launch_s": 5e-6, "copy_s": 1e-6} for n in (1000, 10_000)],
        "crossover": 6000.0,
        "crossover_with_copies": None,
    }
    body = view("simulate", made)
    assert body.count("<circle") == 2 and "the GPU wins" in body and not read(body).active
    made["beside"] = None
    made["findings"] = [{"kind": "race", "line": 7, "text": "two threads"}]
    assert "race, line 7: two threads" in view("simulate", made)  # one's own kernel stands beside no CPU
    chart = view("occupancy", document("occupancy"))
    assert chart.count('data-set="regs=') == 144 and 'data-set="regs=40&amp;block=320"' in chart


def test_a_bar_of_a_tornado_is_from_its_low_to_its_high_end() -> None:
    made = document("cost")
    drawn = view("cost", made).partition('<figure id="drivers"')[2].partition("</figure>")[0]
    boxes = re.findall(r'<rect class="f(\d)" x="([\d.]+)" y="[\d.]+" width="([\d.]+)" height="12"', drawn)
    bars = [(float(x), float(w)) for _, x, w in boxes]
    rows = sorted((abs(r["usd_at_high"] - r["usd_at_low"]) for r in made["drivers"]), reverse=True)[:10]
    assert len(bars) == 2 * len(rows) and [c for c, _, _ in boxes] == ["0", "1"] * len(rows)
    wide = [a[1] + b[1] for a, b in zip(bars[::2], bars[1::2], strict=True)]
    assert all(abs(w / wide[0] - r / rows[0]) < 0.01 for w, r in zip(wide, rows, strict=True))
    for (x, w), (other, more) in zip(bars[::2], bars[1::2], strict=True):
        assert abs(x + w - other) < 0.2 or abs(other + more - x) < 0.2  # the halves meet


def test_a_picture_kept_names_its_colours() -> None:
    made = document("fit")
    picture = export("fit", "svg", made, "")
    assert ">gradients " in picture and ">optimizer " in picture and picture.count('width="9"') >= 8


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("slower", -0.142, "17 % faster"),
        ("slower", 0.2, "20 % slower"),
        ("slower", 0.001, "same"),
        ("fit_probability", 0.9999, ">99 %"),
        ("fit_probability", 0.001, "<1 %"),
        ("headroom_bytes", -(2.0**31), "2 GiB too much"),
        ("headroom_bytes", 2.0**31, "2 GiB free"),
    ],
)
def test_a_page_says_a_change_as_the_terminal_does(name: str, value: float, text: str) -> None:
    assert words(name, value) == text


def test_every_remedy_of_a_fit_that_an_option_gives_has_a_tickbox() -> None:
    from gpuwise.plan.api import make_fit
    from gpuwise.plan.document import answer_document
    from gpuwise.report.answers.strategy import At, differences
    from gpuwise.ui.questions import QUESTIONS

    document = At(answer_document(make_fit("llama-3.1-8b", "4090")))
    changes = {r["name"].text: differences(document["strategy"], r["strategy"]) for r in document["remedies"]}
    assert changes["bf16 weights without fp32 copies"] == {"half_weights": "yes"}
    assert changes["bf16 gradients"] == {"gradient_dtype": "bf16"}
    asked = {field.name for field in QUESTIONS["fit"].fields}
    assert all(change and set(change) <= asked for change in changes.values())


def test_parts_of_a_sum_have_the_unit_of_the_sum() -> None:
    memory = At({"peak_bytes_by_category": {"input": 1 << 20}, "largest": [{"bytes": 1 << 24}]})
    assert memory["peak_bytes_by_category"]["input"].text == "1 MiB"
    assert next(iter(memory["largest"]))["bytes"].text == "16.0 MiB"


def test_layers_stand_on_each_other_from_moment_to_moment() -> None:
    from gpuwise.report.answers.drawings import Axis, Layer, layers

    x, y = Axis("event", 0.0, 4.0, "{:g}".format), Axis("", 0.0, 8.0, "{:g}".format)
    drawn = layers("t", "T", x, y, [0, 1, 3], [Layer("a", [1, 2, 1]), Layer("b", [3, 0, 5])], Layer("held", [6, 6, 7]))
    corners = [
        [tuple(map(float, p.split(","))) for p in points.split(" ")]
        for points in re.findall(r'<poly(?:gon|line)[^>]*points="([^"]*)"', drawn)
    ]
    low, high, held = corners
    assert len(low) == len(high) == 12 and len(held) == 6
    assert high[6:] == low[:6][::-1]  # the second stands on the first
    unit = (low[11][1] - high[0][1]) / 4  # 1 + 3 above nothing
    assert [round((low[11][1] - y) / unit) for _, y in high[:6:2]] == [4, 2, 6]
    assert [round((low[11][1] - y) / unit) for _, y in held[::2]] == [6, 6, 7]
    assert "held up to 7" in drawn and "b up to 5" in drawn


@pytest.mark.parametrize(
    ("name", "given", "field"),
    [
        ("plan", {}, "Model"),
        ("plan", {"on": "4090"}, "Model"),
        ("fit", {"model": "gpt2"}, "GPUs"),
        ("pick", {"model": "gpt2"}, "For"),
        ("compare", {"names": "  "}, "GPUs"),
        ("cost", {"on": "4090"}, "GPU-hours"),
        ("capacity", {"users": "10"}, "Model"),
        ("occupancy", {"regs": "32"}, "GPU"),
        ("simulate", {"size": "64"}, "Task"),
        ("exercise", {"answer": "5"}, "Exercise"),
        ("exercise", {"hint": "1"}, "Exercise"),
        ("ranks", {}, "Run in this folder"),
    ],
)
def test_a_field_that_is_left_out_is_named_as_the_page_names_it(name: str, given: dict[str, str], field: str) -> None:
    with pytest.raises(InputError) as refused:
        words_of(name, given)
    assert refused.value.message == f"{field}: nothing is given" or refused.value.message.startswith(field)
    assert refused.value.hint


def test_what_opens_with_nothing_filled_in_is_asked_so() -> None:
    for name, question in QUESTIONS.items():
        if question.opens or not question.fields:
            assert words_of(name, {})
