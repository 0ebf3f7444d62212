"""The commands called as Python functions: the same documents as ``--json``, the same refusals, a first screen when printed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import time_machine

import gpuwise
from gpuwise.cli.app import run
from gpuwise.cli.called import Asked
from gpuwise.errors import InputError, UnknownNameError

CALLS: dict[str, Callable[[], Asked]] = {
    "plan gpt2 --on 8xA100-40GB --tokens 10B": lambda: gpuwise.plan("gpt2", "8xA100-40GB", tokens="10B"),  # pyright: ignore
    "fit llama-3.1-8b --on 3060": lambda: gpuwise.fit("llama-3.1-8b", "3060"),
    "fit llama-3.1-8b --on 4090 --for train --lora --seq 2048": lambda: gpuwise.fit(
        "llama-3.1-8b", "4090", "train", lora=True, seq=2048
    ),
    "capacity llama-3.1-8b --on L40S --rate 2/s": lambda: gpuwise.capacity("llama-3.1-8b", "L40S", rate="2/s"),
    "pick --for learn --budget 400": lambda: gpuwise.pick("learn", budget=400),
    "compare 4090 3090": lambda: gpuwise.compare("4090", "3090"),
    "cost own --on 8xH100-SXM --hours 10000/month": lambda: gpuwise.cost("own", on="8xH100-SXM", hours="10000/month"),
    "op decode llama-3.1-8b --on 4090": lambda: gpuwise.ask("op", "decode", "llama-3.1-8b", on="4090"),
}


def _timeless(document: dict[str, object]) -> dict[str, object]:
    return {k: v for k, v in document.items() if k != "search"}


@pytest.mark.parametrize("line", CALLS)
def test_a_call_gives_the_document_of_the_command(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with time_machine.travel("2026-11-28 12:00:00+00:00", tick=False):
        code = run([*line.split(), "--json"])
        printed = json.loads(capsys.readouterr().out.splitlines()[-1])
        asked = CALLS[line]()
    assert capsys.readouterr().out == ""
    assert (asked.code, bool(asked)) == (code, code == 0)
    assert _timeless(json.loads(json.dumps(asked.document))) == _timeless(printed)
    screen = repr(asked)
    assert len(screen.splitlines()) <= 26 and asked.answer.verdict
    page = asked._repr_html_() or ""
    assert "<script" not in page and page.startswith('<div class="gpuwise">')


def test_answers_of_the_library_print_as_a_screen() -> None:
    plan = gpuwise.make_plan("gpt2", "8xA100-40GB", gpuwise.Wishes(tokens=1e9))
    assert len(repr(plan).splitlines()) <= 26 and "GPT-2" in repr(plan)


def test_a_list_is_a_document(capsys: pytest.CaptureFixture[str]) -> None:
    asked = gpuwise.ask("gpus", "4090")
    assert asked["accelerators"][0]["id"] == "rtx-4090"
    words = gpuwise.ask("explain")
    assert words["groups"] and len(repr(words)) < 200 and words._repr_html_() is None
    assert capsys.readouterr().out == ""


def test_words_after_dashes_are_the_script_s_alone(tmp_path: Path) -> None:
    script = tmp_path / "given.py"
    script.write_text(
        "import sys, torch\n"
        "assert sys.argv[1:] == ['5'], sys.argv\n"
        "m = torch.nn.Linear(64, 64).cuda()\n"
        "o = torch.optim.SGD(m.parameters(), 0.1)\n"
        "for _ in range(3):\n"
        "    o.zero_grad(); m(torch.ones(8, 64).cuda()).sum().backward(); o.step()\n"
    )
    assert gpuwise.ask("fit", str(script), "--", 5, on="4090")["fits"]


def test_packages_of_a_command_stay_packages() -> None:
    import gpuwise.pick.api
    import gpuwise.plan.api

    assert callable(gpuwise.plan) and callable(gpuwise.plan.api.make_plan)  # pyright: ignore


@pytest.mark.parametrize(
    ("call", "kind", "says"),
    [
        (lambda: gpuwise.plan("lama-3-8b", "4090", tokens="1B"), UnknownNameError, "lama-3-8b"),  # pyright: ignore
        (lambda: gpuwise.fit("gpt2", "4090", tokns=3), InputError, "--tokns"),
        (lambda: gpuwise.fit("gpt2", "4090", "train", seq=-4), InputError, "--seq"),
        (lambda: gpuwise.capacity("gpt2", ""), InputError, "--on"),
        (lambda: gpuwise.fit(3, "4090"), InputError, "model is 3"),  # pyright: ignore
        (lambda: gpuwise.ask("explain").answer, InputError, "document alone"),
        (lambda: gpuwise.ask("--version"), InputError, "no document"),
    ],
)
def test_what_a_command_refuses_a_call_raises(call: Callable[[], Asked], kind: type[Exception], says: str) -> None:
    with pytest.raises(kind, match=says) as caught:
        call()
    assert getattr(caught.value, "hint", None)
