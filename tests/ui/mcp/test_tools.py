"""Tools for agents: every argument is an option of the command line, typed, and none names a file but a model's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpuwise.cli.app import build, every_command
from gpuwise.errors import GpuwiseError
from gpuwise.ui.mcp.tools import CODE_TOOLS, OPTIONS, TOOLS, Allowed, parts_of, tools
from gpuwise.workload.strategy import OPTIONS as STRATEGY

PLAIN = tools(Allowed())
LISTED = 45_000
"""Characters of all tools with their arguments: a model reads them before its first question, some 10,000 tokens."""


def test_every_tool_is_a_command() -> None:
    commands = {name for name, _ in every_command(build())}
    assert {*TOOLS.values(), *CODE_TOOLS.values()} <= commands


def test_the_list_of_tools_is_short_enough_to_read() -> None:
    assert sum(len(json.dumps([t.description, t.schema])) for t in PLAIN.values()) < LISTED


@pytest.mark.parametrize("name", TOOLS)
def test_schema_is_one_and_says_what_each_argument_is(name: str) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = PLAIN[name].schema
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["additionalProperties"] is False and PLAIN[name].description
    assert all(field.get("description") for field in schema["properties"].values()), name


def test_options_of_the_strategy_are_arguments_of_a_plan() -> None:
    wanted = {o.name or field for field, o in STRATEGY.items() if o.help}
    assert wanted <= PLAIN["plan"].fields.keys()


@pytest.mark.parametrize("name", TOOLS)
def test_no_argument_writes_reads_or_reaches_anything(name: str) -> None:
    assert not PLAIN[name].fields.keys() & {
        *(
            "out",
            "html",
            "svg",
            "trace",
            "snapshot",
            "timeline",
            "fix_plan",
            "dockerfile",
            "compose",
            "python",
            "data",
            "driver_file",
        ),
        *(
            "measure",
            "refresh",
            "remove",
            "import",
            "dry_run",
            "json",
            "prometheus",
            "exec",
            "record",
            "replay",
            "calibrate",
            "from",
        ),
        *("batch", "set", "input", "guess", "conf", "compile", "change", "remedies", "arguments", "script", "module"),
    } - ({"batch"} if name in ("op", "cost_run") else set())


def test_arguments_are_a_command_line() -> None:
    words = PLAIN["plan"].words({"model": "gpt2", "on": "4090", "tokens": 1_000_000_000, "qlora": True, OPTIONS: {"tp": 2}})
    assert words == ["plan", "gpt2", "--on=4090", "--tokens=1000000000", "--tp=2", "--qlora"]
    assert PLAIN["op"].words({"kind": "copy", "sizes": ["1GB"], "on": ["4090", "3090"]}) == [
        *("op", "copy", "1GB", "--on=4090", "--on=3090"),
    ]
    assert PLAIN["doctor"].words({"frameworks": False}) == ["doctor", "--no-frameworks"]


@pytest.mark.parametrize(
    ("tool", "given", "message"),
    [
        ("fit", {}, "fit needs model"),
        ("fit", {"model": "gpt2", "onn": "4090"}, "unknown argument 'onn'"),
        ("fit", {"model": "gpt2", "on": 4090}, "on: 4090 is a number"),
        ("fit", {"model": ["gpt2"]}, "model: \\['gpt2'\\] is not text"),
        ("fit", {"model": "gpt2", "lora": "yes"}, "lora: 'yes' is neither true nor false"),
        ("fit", {"model": "gpt2", "seq": True}, "seq: True is not a number or text"),
        ("fit", {"model": "gpt2", "recompute": "dance"}, "unknown recompute 'dance'"),
        ("fit", {"model": "gpt2", "on": "x" * 500}, "is empty, longer than"),
        ("fit", {"model": "--json"}, "is an option"),
        ("fit", {"model": "gpt2", OPTIONS: 3}, "options is not an object"),
        ("fit", {"model": "gpt2", OPTIONS: {"out": "x"}}, "unknown argument 'out'"),
        ("compare", {"names": "4090"}, "names: '4090' is not a list"),
        ("fit", {"model": "/etc/hosts"}, "is a file, and reading files was not allowed"),
        ("fit", {"model": "config.json"}, "is a file, and reading files was not allowed"),
        ("fit", {"model": "train.py:make_step"}, "running code was not allowed"),
        ("fit", {"model": "os:system"}, "running code was not allowed"),
        ("fit", {"model": "hf:config.json"}, "running code was not allowed"),
        ("capacity", {"model": "gpt2", "workload": "/etc/hosts"}, "names a file"),
        ("export", {"plan": "~/plan.json"}, "reading files was not allowed"),
    ],
)
def test_bad_arguments_are_refused(tool: str, given: dict[str, Any], message: str) -> None:
    with pytest.raises(GpuwiseError, match=message):
        PLAIN[tool].words(given)


def test_files_are_read_inside_the_folder_alone(tmp_path: Path) -> None:
    inside = tmp_path / "mine"
    inside.mkdir()
    (tmp_path / "secret.json").write_text("{}")
    (inside / "config.json").write_text("{}")
    (inside / "train.py").write_text("")
    (inside / "link.json").symlink_to(tmp_path / "secret.json")
    read, run = tools(Allowed(inside))["fit"], tools(Allowed(inside, code=True))
    assert read.words({"model": "config.json"})[1] == str(inside / "config.json")
    for name in ("../secret.json", "link.json", str(tmp_path / "secret.json"), "none.json"):
        with pytest.raises(GpuwiseError, match="is not a file inside"):
            read.words({"model": name})
    with pytest.raises(GpuwiseError, match="running code was not allowed"):
        read.words({"model": "train.py"})
    words = run["fit"].words({"model": "train.py:step", "on": "4090", OPTIONS: {"batch": "8"}})
    assert words == ["fit", f"{inside / 'train.py'}:step", "--on=4090", "--batch=8"]
    assert run["profile"].words({"script": "train.py", "arguments": ["--lr", 0.1]}) == [
        *("profile", str(inside / "train.py"), "--", "--lr", "0.1"),
    ]


def test_parts_are_those_of_the_answer() -> None:
    assert parts_of(PLAIN["fit"], {"show": ["memory", "step"]}) == ["memory", "step"]
    assert parts_of(PLAIN["fit"], {"show": ["all"]}) is None and parts_of(PLAIN["fit"], {}) == []
    with pytest.raises(GpuwiseError, match="unknown part 'memry'"):
        parts_of(PLAIN["fit"], {"show": ["memry"]})
