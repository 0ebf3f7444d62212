"""A question in a sentence is answered by the command for it; the commands that it names parse."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from gpuwise.cli.app import build, run
from gpuwise.cli.heard import hear
from gpuwise.cli.local import named_target
from gpuwise.cli.sentence import offers

ASKED = {
    "can I fine-tune an 8B on my 4090": "gpuwise fit llama-3.1-8b --on 4090 --for finetune",
    "what does it cost to serve 200 people": "gpuwise cost serve llama-3.1-8b --on H100-SXM --users 200",
    "why is my training slow": "gpuwise profile train.py",
    "is my machine ready": "gpuwise doctor",
    "which GPU under $1,000": "gpuwise pick llama-3.1-8b --for infer --budget 1000 --own",
    "which gpu to fine-tune qwen2.5-7b for $1.5k": "gpuwise pick qwen2.5-7b --for finetune --budget 1500 --own",
    "best gpu for running llms locally under 800": "gpuwise pick llama-3.1-8b --for infer --budget 800 --own",
    "can I run qwen3 30b a3b on a 3060": "gpuwise fit qwen3-30b-a3b --on 3060 --for run",
    "does llama 3.3 70b fit on 2x4090": "gpuwise fit llama-3.3-70b --on 2x4090 --for run",
    "how long does it take to train gpt2 on 10B tokens": "gpuwise plan gpt2 --tokens 10B",
    "rtx 4090 vs rtx 3090": "gpuwise compare rtx-4090 rtx-3090",
    "tokens per second h100 llama 3.1 70b fp8 batch 32": "gpuwise op decode llama-3.1-70b --on h100 --batch 32 --weights fp8",
    "kv cache size llama 3.1 70b 128k context": "gpuwise models llama-3.1-70b --context 128k",
    "how much vram for flux lora training": "gpuwise fit flux-dev --on 4090 --for finetune",
    "can i train yolo on a gtx 1650": "gpuwise plan yolo --on gtx-1650",
    "cost of 1M tokens with llama 3.3 70b self hosted": "gpuwise capacity llama-3.3-70b --users 100",
    "how do I make deepspeed zero3 faster": "gpuwise tune train.py",
    "train resnet-50 on imagenet with 4 a100": "gpuwise plan resnet-50 --on 4xa100 --samples 115305030",
    "is a 5090 faster than a 4090": "gpuwise compare 5090 4090",
    "strix halo vs dgx spark for gpt-oss-120b": "gpuwise compare strix-halo dgx-spark --model gpt-oss-120b --for infer",
    "best gpu for stable diffusion under 500": "gpuwise pick sdxl --for image --budget 500 --own",
    "what is MFU?": "gpuwise explain MFU",
    "how much is an h100": "gpuwise prices h100",
    "which models run on my 4060 ti": "gpuwise models --on rtx-4060-ti-8gb",
    "cuda error no kernel image is available": "gpuwise doctor",
    "how many gpus to serve mistral 7b to 50 users": "gpuwise capacity mistral-7b --users 50",
    "what can I run on a 3060 12GB?": "gpuwise models --on 3060-12gb",
    "which gpu for stable diffusion xl": "gpuwise pick sdxl --for image",
    "run flux on 4070": "gpuwise fit flux-dev --on 4070 --for run",
    "train a lora for sdxl on 3090": "gpuwise fit sdxl --on 3090 --for finetune",
    "is an H200 worth it over an H100 for serving llama 3.3 70b": "gpuwise compare h200 h100 --model llama-3.3-70b --for infer",
    "ollama is slow on my amd card": "gpuwise doctor",
    "rent or buy an h100": "gpuwise cost own --on h100",
    "how many users can a single L40S serve with llama 3.1 8b": "gpuwise capacity llama-3.1-8b --on l40s",
    "how much vram do I need for mixtral 8x7b": "gpuwise models mixtral-8x7b",
    "can I fine-tune mistral 7b with qlora on a 3090": "gpuwise fit mistral-7b --on 3090 --for finetune --qlora",
    "full fine-tuning of qwen3-4b on 4x a6000": "gpuwise fit qwen3-4b --on 4xa6000 --for train",
    "whisper large v3 on a T4": "gpuwise fit whisper-large-v3 --on t4",
    "how many h100 for 405b": "gpuwise capacity llama-3.1-405b --on h100",
    "can my dual 3090 run mixtral 8x7b q4 with 32k context": "gpuwise fit mixtral-8x7b --on 2x3090 --weights q4"
    " --context 32k --for run",
    "how many tokens per second does gpt-oss-120b get on a dgx spark": "gpuwise fit gpt-oss-120b --on dgx-spark --for run",
    "does command-r fit on a macbook m4 max with 64gb memory": "gpuwise fit command-r-35b --on macbook-m4-max-64GB --for run",
    "run foobar-9b on 4090": "gpuwise fit foobar-9b --on 4090 --for run",
    "qwen3-32b 4090": "gpuwise fit qwen3-32b --on 4090",
    "llama-3.3-70b": "gpuwise pick llama-3.3-70b --for infer",
    "4090": "gpuwise models --on 4090",
    "how many H100s do I need to serve llama 3.3 70b to 1000 users": "gpuwise capacity llama-3.3-70b --on h100 --users 1000",
    "what is the cheapest way to fine-tune mistral 7b": "gpuwise pick mistral-7b --for finetune",
    "cost of training a 7b model on 2T tokens with 512 H100": "gpuwise plan llama-3.1-8b --on 512xh100 --tokens 2T",
    "how long to generate 1000 images with flux on a 4090": "gpuwise fit flux-dev --on 4090 --for run",
    "transcribe 100 hours of audio with whisper on a 3060": "gpuwise fit whisper-large-v3 --on 3060 --for run",
    "can I run llama 3 70b on 2 used 3090s": "gpuwise fit llama-3-70b --on 2x3090 --for run",
    "is 16gb enough for gemma 3 27b": "gpuwise fit gemma-3-27b --on rtx-4060-ti-16gb --for run",
    "best model for 16 gb mac": "gpuwise models --on m4-16gb",
    "grpo with qwen3-8b on 8xh100": "gpuwise plan qwen3-8b --on 8xh100 --for grpo",
    "serve mixtral to 500 users cheaply": "gpuwise capacity mixtral-8x7b --users 500",
    "is h200 worth it over h100 for inference": "gpuwise compare h200 h100 --model llama-3.1-8b --for infer",
    "price of a b200 per hour": "gpuwise prices b200",
    "vllm or llama.cpp for 4090": "gpuwise fit llama-3.1-8b --on 4090 --for run",
    "how many GPUs to train llama 70b in 2 weeks": "gpuwise plan llama-3.1-70b --deadline 14d",
    "core i5-12400 with 32gb ram qwen3 30b": "gpuwise fit qwen3-30b-a3b --on core-i5-12400 --ram 32GB --for run",
    "can a raspberry pi run llama 3.2 1b": "gpuwise fit llama-3.2-1b --on raspberry-pi-5 --for run",
    "is my gpu working correctly": "gpuwise doctor",
    "how much power does an 8xh100 server use": "gpuwise cost own --on 8xh100 --energy",
    "cost of fine-tuning an 8B on 20M tokens": "gpuwise plan llama-3.1-8b --tokens 20M --for finetune",
    "how long to fine tune mistral 7b on a 3090": "gpuwise plan mistral-7b --on 3090 --for finetune",
    "train bert on my own data rtx 3060": "gpuwise fit bert-base --on rtx-3060 --for finetune",
    "how much vram for 4k context qwen3 14b": "gpuwise models qwen3-14b --context 4k",
    "is a 5090 faster than an a100 for stable diffusion": "gpuwise fit sdxl --on 5090",
    "how much does it cost to serve llama 70b to 200 users": "gpuwise capacity llama-3.1-70b --users 200",
    "nvidia data center gpus a100 for llama": "gpuwise fit llama-3.1-8b --on a100",
    "can a 3060 laptop train a small gpt": "gpuwise plan gpt2 --on 3060-laptop --tokens 1B",
}


@pytest.mark.parametrize("sentence", ASKED)
def test_the_first_offer_is_the_command_for_it(sentence: str) -> None:
    found = offers(sentence)
    assert found[0].line == ASKED[sentence]
    for name in hear(sentence).gpus:
        named_target(name, None)
    for offer in found:
        build().parse_args(shlex.split(offer.line)[1:], exit_on_error=False, print_error=False)


@pytest.mark.parametrize(
    "sentence", ["can I fine-tune an 8B on my 4090", "rtx 4090 vs rtx 3090", "what is MFU?", "which models run on my 4060 ti"]
)
def test_a_sentence_is_answered_as_its_command_is(sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = run(shlex.split(ASKED[sentence])[1:])
    command = capsys.readouterr().out
    for words in (sentence.split(), [sentence]):
        assert run(words) == code
        assert capsys.readouterr().out.startswith(f"{command}\nAsked:  {ASKED[sentence]}\n")


def test_a_command_that_runs_a_script_is_offered_with_the_script_of_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data.py").write_text("rows = 3\n")
    (tmp_path / "learn.py").write_text("loss.backward()\n")
    monkeypatch.chdir(tmp_path)
    assert run(["why", "is", "my", "training", "slow"]) == 0
    shown = capsys.readouterr().out
    assert "  gpuwise profile learn.py\n" in shown and "Asked:" not in shown


def test_numbers_of_a_sentence_are_what_they_count() -> None:
    heard = hear("serve an 8B to 3,000 users for $2.5k with a 3090")
    assert (heard.users, heard.budget_usd, heard.gpus, heard.model) == (3000, 2500.0, ("3090",), "llama-3.1-8b")
    assert hear("train on 4090 tokens").gpus == () or hear("train on 300B tokens").tokens == "300B"
    assert hear("a card under 1000 watts").budget_usd is None


@pytest.mark.parametrize(("sentence", "named"), [("run it on a 4090", False), ("run gpt2 on a 4090", True)])
def test_a_model_that_stands_for_one_that_is_not_named_is_said(
    sentence: str, named: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    run([sentence])
    assert ("No model is named: llama-3.1-8b stands for it" in capsys.readouterr().out) is not named


def test_a_gpu_that_stands_for_its_memory_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    run(["run gpt2 on 24gb vram"])
    assert "No GPU is named: rtx-3090 stands for one with 24 GB" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words", [["paln", "llama-3.1-8b"], ["hello", "there", "my", "friend"], ["paln", "gpt2", "--on", "4090"]]
)
def test_what_is_no_question_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words) == 2
    assert "hint:" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "says", "assumed"),
    [
        ("plan gpt2", "GPT-2", "20 for each parameter"),
        ("cost 2x4090", "Own", "of all hours"),
        ("pick --budget 400", "", "to learn"),
        ("pick --model gpt2", "", "to infer"),
    ],
)
def test_bare_commands_answer_and_name_what_they_assume(
    line: str, says: str, assumed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(line.split()) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert says in shown and assumed in shown
