"""Networks of images, video, sound and language with images, trained by name: without torch."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from gpuwise.cli.called import ask
from gpuwise.errors import GpuwiseError, InputError

QUESTIONS = (
    "plan sdxl --for lora --on 3090",
    "plan sd-1.5 --for full --on 3090",
    "plan sd-3.5-large --for lora --on A100-80GB",
    "plan flux --for lora --on A100-80GB",
    "plan wan-2.1-1.3b --for lora --on 4090 --resolution 480 --frames 17",
    "plan dinov2-l --on A100-80GB --batch 32",
    "plan dinov3-b --on 4090",
    "plan clip-vit-b-32 --on 4090",
    "plan yolov8m --on 3090",
    "plan detr --on 3090",
    "plan wav2vec2 --on 3090 --seconds 10",
    "plan llava --on A100-80GB --for lora",
    "plan qwen2.5-vl-7b --on A100-80GB --for lora --seq 2048",
    "plan paligemma --on A100-80GB --for full",
    "cost run sdxl --on 3090 --samples 2000",
    "fit sdxl --on 3090 --for lora",
)


def answered(question: str) -> dict[str, Any]:
    document: dict[str, Any] = ask(*question.split()).document
    return document


@pytest.mark.parametrize("question", QUESTIONS)
def test_each_is_answered_without_torch(question: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torch", "diffusers", "transformers"):
        monkeypatch.setitem(sys.modules, name, None)
    assert answered(question)


def test_a_plan_has_time_cost_and_memory() -> None:
    d = answered("plan sdxl --for lora --on 3090 --samples 1000")
    assert d["fits"] and 0.2 < d["step_time_s"]["expected"] < 1.0
    assert d["run_time_s"]["expected"] == pytest.approx(1000 * d["step_time_s"]["expected"])
    assert d["cost_usd"] and 10e9 < d["memory"]["process_bytes"]["expected"] < 24e9


def test_what_does_not_fit_has_a_way_that_works_when_pasted() -> None:
    d = answered("fit flux --on 4090 --for lora")
    assert not d["fits"] and any(r["name"].startswith("QLoRA") and r["fits"] for r in d["remedies"])
    assert answered("fit flux --on 4090 --for lora --change qlora=16")["fits"]


def test_blocks_are_recomputed_only_where_it_is_needed() -> None:
    small, large = (answered(f"fit sdxl --on {gpu} --for lora") for gpu in ("A100-80GB", "3060"))
    assert not any("checkpointing" in note for note in small["assumed"])
    assert any("checkpointing" in note for note in large["assumed"])


def test_what_does_not_fit_one_gpu_is_split_over_several() -> None:
    d = answered("plan llava --on 8xA100-80GB --for full --batch 4")
    assert d["fits"] and any("FSDP" in note for note in d["assumed"])


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ("plan sdxl --for lora --on 3090 --resolution 1000", "--resolution 1024"),
        ("plan sdxl --for lora --on 3090 --resolution 8192", "from 256 to 2,048 pixels"),
        ("plan sdxl --for lora --on 3090 --frames 8", "it has no frames"),
        ("plan wan --for lora --on H100 --frames 30", "--frames 29"),
        ("plan wan --for lora --on H100 --no-cached", "latents of videos"),
        ("plan llava --on A100 --resolution 224", "--seq 1024"),
        ("plan wav2vec2 --on A100 --seq 100", "--seconds"),
        ("plan detr --on A100 --for lora", "--for full"),
        ("plan sdxl --on A100 --for grpo", "--for lora"),
        ("plan sdxl --on A100 --tp 2", "leave it out"),
        ("plan sdxl --on A100 --stack kohja", "kohya, diffusers"),
        ("plan sdxl --on A100 --optimizer muon", "adamw8bit"),
        ("plan sdxl --on A100 --for lora --precision fp32", "bf16 or fp16"),
        ("plan sdxl --on A100 --for lora --compile", "leave --compile out"),
        ("plan dinov2 --on A100 --half-weights", "leave it out"),
        ("plan llama-3.1-8b --on A100 --resolution 512", "leave it out"),
        ("plan llava-next --on A100", "llava-1.5-7b"),
        ("plan yolov9x --on A100", "yolov8n"),
    ],
)
def test_bad_input_is_one_error_with_a_hint(question: str, words: str) -> None:
    with pytest.raises(GpuwiseError) as caught:
        answered(question)
    assert words in f"{caught.value} {getattr(caught.value, 'hint', '')}"


def test_a_network_that_makes_images_is_still_run_by_default() -> None:
    assert "steps" in str(answered("fit sdxl --on 3090")) or answered("fit sdxl --on 3090")["fits"]
    with pytest.raises(InputError):
        answered("fit sdxl --on 3090 --for run --lora")


@pytest.mark.parametrize(
    ("question", "said"),
    [
        ("fit sdxl --on 4090 --for grpo", "--for grpo with Stable Diffusion XL"),
        ("plan sdxl --on 4090 --for grpo", "--for grpo with Stable Diffusion XL"),
        ("pick sdxl --for lora --tokens 1M", "--tokens"),
    ],
)
def test_what_a_network_cannot_be_trained_for_is_refused(question: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as error:
        answered(question)
    assert error.value.hint


@pytest.mark.thorough
def test_pick_ranks_the_gpus_that_train_a_network() -> None:
    d = answered("pick yolo11n --for full --budget 40 --images 1M")
    assert {o["way"] for o in d["ranked"]} >= {"rent", "notebook"} and d["ranked"][0]["outlay_usd"] <= 40
    light = answered("pick flux-dev --for finetune --own --budget 1500")["ranked"][0]
    assert light["changes"] == ["4-bit weights"] and light["fit_probability"] >= 0.9
    assert answered("pick flux-dev --for lora --own --budget 1500")["ranked"] == []


def test_a_function_has_the_batch_that_it_takes_by_itself() -> None:
    """Samples are counted in steps of it: nobody has to give what is known."""
    pytest.importorskip("torch")
    made = answered("plan resnet-50 --on 4090 --samples 64k")
    assert made["batch"] == 64
    assert made["run_time_s"]["expected"] == pytest.approx(1000 * made["step_time_s"]["expected"])
