"""``fit`` without ``--for``: run it, adapt it, train it, on one screen, and which options mean one of them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.machine.devices.trees import write
from tests.ui.test_views import at

from gpuwise.cli.answer import LINES, text
from gpuwise.cli.asked import asking
from gpuwise.machine.devices.find import DeviceSearch
from gpuwise.report.answers.answer import shows
from gpuwise.report.answers.uses import uses_answer
from gpuwise.units import GIB

pytest_plugins = ["gpuwise.testing.fake_nvml.fixture"]

ASKED = (
    "llama-3.1-8b --on 4090",
    "gpt2 --on 3060",
    "llama-3.3-70b --on 4090 --context 16k",
    "llama-3.1-8b --on 8xH100-SXM",
    "llama-3.1-8b --on 'Ryzen 7 5700G 32GB'",
    "bert-base --on 4090",
    "qwen3-8b --on 'M3 Max 64GB'",
    "kimi-k2 --on 3060",
)


@pytest.mark.parametrize("question", ASKED)
def test_three_uses_on_one_screen(question: str, gpuwise: Callable[..., Any]) -> None:
    words = ["fit", *shlex.split(question)]
    ran = gpuwise(*words, "--json")
    document = json.loads(ran.out.splitlines()[-1])
    assert ran.code == (0 if document["fits"] else 1) and {"run", "finetune", "train"} <= document.keys()
    answer = uses_answer(document)
    with asking(words):
        screen = text(answer)
    lines = screen.splitlines()
    assert len(lines) <= LINES and max(map(len, lines)) <= 80
    assert all(name in screen for name in ("run it", "adapt it", "train it"))
    assert "--for " in lines[-1] + lines[-2]
    for place in shows(answer):
        assert place.value is None or place.value == at(document, place.pointer), place.pointer


def test_each_use_is_the_answer_that_for_gives(gpuwise: Callable[..., Any]) -> None:
    three = gpuwise("fit", "gpt2", "--on", "3060", "--json").document
    run = gpuwise("fit", "gpt2", "--on", "3060", "--for", "run", "--json").document
    assert {k: v for k, v in run.items() if three["run"][k] != v}.keys() == {"changes"}
    for use in ("finetune", "train"):
        alone = gpuwise("fit", "gpt2", "--on", "3060", "--for", use, "--json").document
        for field in ("strategy", "memory_bytes", "tokens_per_s", "fit_probability", "seq_len", "device_bytes"):
            assert three[use][field] == alone[field], (use, field)


def test_what_trains_only_with_less_memory_is_said_with_how(gpuwise: Callable[..., Any]) -> None:
    document = gpuwise("fit", "llama-3.1-8b", "--on", "4090", "--json").document
    assert document["finetune"]["fits"] and document["finetune"]["strategy"]["recompute"] == "full"
    assert document["train"]["fits"] and document["train"]["strategy"]["optimizer"] == "adafactor"
    none = gpuwise("fit", "llama-3.3-70b", "--on", "3060", "--json").document
    assert not none["train"]["fits"] and none["train"]["tokens_per_s"] is None
    assert none["train"]["needed_bytes"]["expected"] > none["train"]["device_bytes"]


@pytest.mark.parametrize(
    ("words", "start"),
    [
        (("--seq", "1024"), "GPT-2 124M fits on 1x RTX 4090 to train every weight"),
        (("--lora",), "GPT-2 124M fits on 1x RTX 4090 to train adapters (LoRA)"),
        (("--tried",), "GPT-2 124M fits on 1x RTX 4090 to train every weight"),
        (("--formats",), "GPT-2 124M on 1x RTX 4090: runs in Q8_0"),
        (("--for", "finetune"), "GPT-2 124M fits on 1x RTX 4090 to train adapters (LoRA)"),
        ((), "GPT-2 124M on 1x RTX 4090: runs in Q8_0, "),
    ],
)
def test_an_option_of_one_use_means_it(words: tuple[str, ...], start: str, gpuwise: Callable[..., Any]) -> None:
    assert gpuwise("fit", "gpt2", "--on", "4090", *words).out.startswith(start)


def test_the_exit_code_says_whether_it_fits(gpuwise: Callable[..., Any]) -> None:
    asked = ("fit", "llama-3.1-8b", "--on", "3060", "--json")
    assert gpuwise(*asked).code == 0
    assert gpuwise(*asked, "--for", "train").code == 1
    assert gpuwise(*asked, "--for", "finetune", "--qlora", "--seq", "512").code == 0
    assert gpuwise(*asked, "--seq", "512").code == 0, "as before there was --for"
    assert gpuwise("fit", "kimi-k2", "--on", "3060").code == 1


@pytest.fixture
def pc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    """A PC with a Ryzen 7 5700G and 20 GiB of free RAM."""
    cpu = "processor\t: 0\nmodel name\t: AMD Ryzen 7 5700G with Radeon Graphics\n\n"
    memory = f"MemTotal: {32 * 2**20} kB\nMemAvailable: {20 * 2**20} kB\n"
    write(tmp_path, {"proc/cpuinfo": cpu, "proc/meminfo": memory})
    monkeypatch.setenv("GPUWISE_ROOT", str(tmp_path))


def test_without_on_it_is_this_machine_with_its_free_memory(
    gpuwise: Callable[..., Any], pc: None, fake_nvml: Callable[..., Any]
) -> None:
    machine = fake_nvml(["rtx-3060"])
    with machine.in_process():
        idle = gpuwise("fit", "llama-3.1-8b", "--json").document
        assert idle["machine"]["label"] == "1x RTX 3060 12GB" and idle["machine"]["here"]
        machine.gpu(0).set(memory_used_bytes=6 * GIB)
        ran = gpuwise("fit", "llama-3.1-8b")
        busy = gpuwise("fit", "llama-3.1-8b", "--on", "this", "--json").document
        assert " now\n" in ran.out
    assert idle["run"]["weights"] == "Q8_0"
    assert busy["run"]["device_bytes"] < 6 * GIB and busy["run"]["weights"] not in (None, "Q8_0", "Q6_K")
    assert idle["run"]["machine"]["ram_bytes"] == 20 * GIB


def test_a_machine_without_a_gpu_runs_it_on_its_processor(
    gpuwise: Callable[..., Any], pc: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuwise.machine.devices.cpu.affinity_cores", lambda: 16)
    monkeypatch.setattr("gpuwise.machine.devices.find.find_devices", lambda: DeviceSearch((), {}))
    document = gpuwise("fit", "llama-3.1-8b", "--json").document
    assert document["machine"]["label"] == "Ryzen 7 5700G" and document["machine"]["device_bytes"] == 20 * GIB
    assert document["fits"] and not document["train"]["fits"]
    words = gpuwise("fit", "llama-3.1-8b", "--for", "run", "--json").document["commands"][0]["words"]
    assert words[words.index("--n-gpu-layers") + 1] == "0"
    assert gpuwise("fit", "llama-3.1-8b", "--for", "train").code == 2
    assert gpuwise("fit", "llama-3.3-70b", "--for", "run").code == 1
