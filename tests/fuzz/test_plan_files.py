"""Plan files, traces and settings with anything wrong in them: read, with finite numbers, or refused with a hint."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwise.cli.app import run
from gpuwise.export.targets import TOOLS, gaps_of, write
from gpuwise.files import parse_json
from gpuwise.plan.api import make_plan
from gpuwise.plan.document import answer_document
from gpuwise.plan.goal import Wishes
from gpuwise.plan.plan_file import job_of_document
from gpuwise.serve.load.traces import read_trace
from gpuwise.train import config

WRONG: tuple[Any, ...] = (
    *(None, True, False, "", "x", "1", "-", -1, 0, 1, 2, 3, 7, 1.5, -0.5, 1e-300, 1e300, 2**31, 2**53 + 1, 2**63, 2**64 - 1),
    *([], [[]], {}, {"a": 1}, [1, 2], "\0", "é" * 3000, float("inf"), float("nan"), "all-linear", "../../etc/passwd"),
)
MANY = settings(max_examples=2 * settings().max_examples)


@cache
def plans() -> tuple[dict[str, Any], ...]:
    """What is read of plans: of one GPU, several with experts in stages, and a model that is in no catalogue."""
    fixed = {"micro_batch": 1, "recompute": "full"}
    own = "layers=2,hidden=64,heads=4,vocab=100"
    found: list[dict[str, Any]] = []
    for model, on, more in (("gpt2", "4090", {}), ("qwen3-30b-a3b", "16xh100-sxm", {"pp": 2}), (own, "2xt4", {})):
        whole = cast("dict[str, Any]", answer_document(make_plan(model, on, Wishes(tokens=1e9, fixed={**fixed, **more}))))
        best = {name: whole["best"][name] for name in ("strategy", "goodput", "step_time_s")}
        found.append({**{name: whole[name] for name in ("plan_version", "model", "cluster", "goal")}, "best": best})
    return tuple(found)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a document."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return (
        [path, *(p for key, inner in items for p in places(inner, (*path, key)))]
        if path
        else [p for key, inner in items for p in places(inner, (key,))]
    )


def mutated(seed: int) -> dict[str, Any]:
    """One of the plans with one to three places changed or taken out."""
    chosen = random.Random(seed)
    changed = copy.deepcopy(chosen.choice(plans()))
    for _ in range(chosen.randint(1, 3)):
        *parents, last = chosen.choice(places(changed) or [("best",)])
        inner: Any = changed
        for key in parents:
            inner = inner[key]
        if isinstance(inner, dict) and last in inner and chosen.random() < 0.2:
            del inner[last]
        else:
            inner[last] = copy.deepcopy(chosen.choice(WRONG))
    return changed


SEEDS = st.integers(0, 2**40)


@MANY
@given(seed=SEEDS)
def test_a_mutated_plan_is_a_job_or_is_refused(seed: int, lawful: Callable[..., Any]) -> None:
    text = json.dumps(mutated(seed))
    job = lawful(lambda: job_of_document(parse_json(text, "plan.json"), "plan.json"), hint=True)
    if job is None:
        return
    for tool in TOOLS.values():
        if not gaps_of(job, tool):
            written = lawful(lambda tool=tool: write(job, tool), hint=True)
            assert written is None or not any(w in " ".join(written.files.values()).split() for w in ("nan", "inf"))


TEXTS = st.sampled_from(
    (
        lambda text, n: text[: n % len(text)],
        lambda text, n: "\ufeff" + text,
        lambda text, n: text[: n % len(text)] + "\0" + text[n % len(text) :],
        lambda text, n: text.replace(":", ": [" * 5000, 1),
        lambda text, n: text.replace("{", '{"best": 1, ', 1),
        lambda text, n: text.replace("1", "9" * 400),
        lambda text, n: text.replace("1", "1e400", 1),
        lambda text, n: text + text,
        lambda text, n: "".join(random.Random(n).sample(text, len(text))),
        lambda text, n: "",
        lambda text, n: f"[{text}]",
        lambda text, n: text.encode().decode("latin-1"),
    )
)


def said_of(words: list[str]) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(words)
    return code, out.getvalue(), err.getvalue()


def assert_answered(code: int, out: str, err: str) -> None:
    assert "Traceback" not in out + err
    if code == 0:
        assert not {"nan", "inf"} & set(out.lower().split())
    else:
        assert code == 2 and err.startswith("error: ") and "\nhint: " in err, err


@given(seed=SEEDS, change=TEXTS, n=st.integers(0, 10**6))
def test_commands_answer_or_refuse_any_text_as_a_plan(
    seed: int, change: Callable[[str, int], str], n: int, tmp_path_factory: Any
) -> None:
    folder: Path = tmp_path_factory.mktemp("plans")
    file = folder / "plan.json"
    file.write_text(change(json.dumps(mutated(seed)), n), "utf-8")
    for words in (["export", str(file)], ["run", str(file), "none.py:step"], ["run", "none.py:step", "--plan", str(file)]):
        assert_answered(*said_of(words))
    for words in (["fit", str(file), "--on", "4090"], ["models", str(file)], ["profile", "--trace", str(file)]):
        assert_answered(*said_of(words))


@given(content=st.binary(max_size=300))
def test_commands_refuse_any_bytes(content: bytes, tmp_path_factory: Any) -> None:
    folder: Path = tmp_path_factory.mktemp("bytes")
    for suffix, words in (
        (".json", ["export"]),
        (".json", ["profile", "--trace"]),
        (".pickle", ["memory"]),
        (".csv", ["prices", "--dry-run", "--import"]),
        (".log", ["lab", "occupancy", "--on", "4090", "--ptxas-log"]),
    ):
        file = folder / f"named{suffix}"
        file.write_bytes(content)
        assert_answered(*said_of([*words, str(file)]))


SERVED = {
    "model": "llama-3.1-8b",
    "on": "1x H100",
    "served": {"copies": 2, "start": {"for": "vllm", "command": "vllm serve meta-llama/Llama-3.1-8B --port 8000", "note": None}},
}


@given(data=st.data())
def test_a_mutated_answer_of_capacity_is_a_server_or_is_refused(data: st.DataObject, tmp_path_factory: Any) -> None:
    document = copy.deepcopy(SERVED)
    path = data.draw(st.sampled_from([p for p in places(document) if p[0] != "served" or len(p) > 0]))
    inner: Any = document
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = data.draw(st.sampled_from(WRONG))
    file = tmp_path_factory.mktemp("served") / "served.json"
    file.write_text(json.dumps(document), "utf-8")
    assert_answered(*said_of(["export", str(file)]))


ROWS = (
    "arrival_s,input_tokens,output_tokens\n0.0,100,20\n1.5,200,30\n3.0,50,10\n",
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,10,20\n2023-11-16 18:15:50.98,30,40\n",
    '{"timestamp": 0, "input_length": 10, "output_length": 5, "hash_ids": [1]}\n'
    '{"timestamp": 9, "input_length": 10, "output_length": 5, "hash_ids": [1]}\n',
    '[{"conversations": [{"from": "human", "value": "one"}, {"from": "gpt", "value": "two"}]}]',
)


@MANY
@given(data=st.data())
def test_a_mutated_trace_is_read_or_refused(data: st.DataObject, tmp_path_factory: Any, lawful: Callable[..., Any]) -> None:
    text = torn(data.draw(st.sampled_from(ROWS)), data.draw)
    file = tmp_path_factory.mktemp("trace") / "trace.csv"
    file.write_text(text, "utf-8")
    lawful(lambda: read_trace(file).requests.arrival_s.tolist())


PIECES = ("", ",", "\n", "nan", "inf", "-1", "1e400", '"', "[", "{}", "null", "true", "=", "[[1]]", "Z", "+01:00", "\0", "9" * 30)


def torn(text: str, draw: Callable[..., Any]) -> str:
    """``text`` with one to three pieces put in, in place of some letters."""
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(text)))
        text = text[:at] + draw(st.sampled_from(PIECES)) + text[at + draw(st.integers(0, 4)) :]
    return text


TOML = 'version = 1\nscript = "t.py"\n[levers]\nworkers = 2\n[expected]\nrate = 1.0\n[run]\ntotal_steps = 10\n'


@given(data=st.data())
def test_mutated_levers_are_read_or_refused(data: st.DataObject, tmp_path_factory: Any, lawful: Callable[..., Any]) -> None:
    file = tmp_path_factory.mktemp("levers") / "gpuwise.toml"
    file.write_text(torn(TOML, data.draw), "utf-8")
    lawful(lambda: config.read(file))
