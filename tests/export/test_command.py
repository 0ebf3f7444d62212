"""``gpuwise export`` as a person calls it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from gpuwise.cli.app import run


def _document(capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    return json.loads(capsys.readouterr().out.strip().splitlines()[-1])


def test_a_saved_plan_and_its_model_give_the_same_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "llama-3.1-8b", "--on", "8xH100-SXM", "--tokens", "15B", "--json"]) == 0
    (tmp_path / "plan.json").write_text(capsys.readouterr().out)
    assert run(["export", str(tmp_path / "plan.json"), "--json"]) == 0
    saved = _document(capsys)
    assert run(["export", "llama-3.1-8b", "--on", "8xH100-SXM", "--tokens", "15B", "--json"]) == 0
    assert saved == _document(capsys)
    assert saved["target"] == "megatron"


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4},
        {"model_type": "gpt2", "n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 128},
    ],
)
def test_a_saved_plan_of_a_file_is_of_its_model(
    config: dict[str, object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its name is nobody's, or that of another model in the catalogue."""
    (tmp_path / "config.json").write_text(json.dumps({**config, "vocab_size": 256, "max_position_embeddings": 128}))
    assert run(["plan", str(tmp_path / "config.json"), "--on", "2xH100-SXM", "--stack", "megatron-core", "--json"]) == 0
    (tmp_path / "plan.json").write_text(capsys.readouterr().out)
    assert run(["export", str(tmp_path / "plan.json"), "--to", "megatron", "--json"]) == 0
    saved = _document(capsys)
    assert run(["export", str(tmp_path / "config.json"), "--on", "2xH100-SXM", "--to", "megatron", "--json"]) == 0
    assert saved == _document(capsys)


@pytest.mark.parametrize(
    "tool", ["torchtitan", "accelerate", "deepspeed", "llama-factory", "slurm:lightning", "torchrun", "trl", "nemo"]
)
def test_a_model_is_planned_for_the_tool_that_is_named(tool: str, capsys: pytest.CaptureFixture[str]) -> None:
    """That of the usual stack has tensor parallel ranks, which most of these have not."""
    assert run(["export", "qwen3-14b", "--on", "8xH100-SXM", "--to", tool, "--json"]) == 0
    written = _document(capsys)
    assert written["target"] == tool and "pip install" in " ".join(written["notes"])  # type: ignore[arg-type]


@pytest.mark.parametrize("tool", ["trl", "unsloth", "torchtune"])
def test_adapters_are_planned_for_the_tool_that_is_named(tool: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["export", "llama-3.1-8b", "--on", "4090", "--for", "qlora", "--seq", "2048", "--to", tool, "--json"]) == 0
    written = _document(capsys)
    assert written["target"] == tool and not any("stack" in note for note in written["notes"])  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("words", "left"),
    [
        (["llama-3.1-8b", "--on", "8xH100-SXM", "--to", "torchrun", "--lora", "--tp", "4"], "replicated by DDP"),
        (["llama-3.1-8b", "--on", "8xH100-SXM", "--to", "deepspeed", "--lora"], "without sharding"),
        (["mixtral-8x7b", "--on", "4x8xH100-SXM", "--to", "torchtitan"], "expert parallelism"),
    ],
)
def test_a_model_is_planned_without_what_the_tool_cannot_say(
    words: list[str], left: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["export", *words, "--json"]) == 0
    written = _document(capsys)
    assert any(left in note for note in written["notes"]) and written["files"]  # type: ignore[attr-defined]


def test_adapters_on_weights_in_four_bits_are_the_ranks_own_too(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["export", "mistral-nemo-12b", "--on", "1xRTX-4090", "--qlora", "--seq", "2048", "--to", "torchrun", "--json"]
    assert run(words) == 0
    layout = json.loads(_document(capsys)["files"]["settings.json"])["layout"]  # type: ignore[index]
    assert layout["quantized_base"] and layout["lora_rank"] and layout["sharding"] == "none"


def test_files_are_written_and_their_script_is_a_shell_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "export",
        "llama-3.1-8b",
        "--on",
        "4xA100-80GB",
        "--stack",
        "hf-fsdp",
        "--recompute",
        "full",
        "--to",
        "accelerate",
        "--out",
        str(tmp_path / "x"),
    ]
    assert run([*words, "--data", "my/data"]) == 0
    shown = capsys.readouterr().out
    pasted = " ".join(shown.replace("\\\n", " ").split())
    assert "train.sh" in shown and f"cd {tmp_path / 'x'} && accelerate launch --config_file accelerate.yaml train.py" in pasted
    subprocess.run(["bash", "-n", tmp_path / "x" / "train.sh"], check=True)
    assert 'DATA = "my/data"' in (tmp_path / "x" / "train.py").read_text()
    assert run(words) == 2 and "already exists" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["export", "llama-3.1-8b"], "needs GPUs"),
        (["export", "llama-3.1-8b", "--on", "8xH100-SXM", "--to", "torchtitan", "--precision", "fp8"], "no setting for"),
        (["export", "llama-3.1-8b", "--on", "8xH100-SXM", "--to", "megatorn"], "megatron"),
        (["export", "missing.json"], "cannot be read"),
        (["export", "llama-3.1-8b", "--on", "8xH100-SXM", "--data", "a\nb"], "cannot be written"),
        (["export", "llama-3.1-8b", "--on", "8xH100-SXM", "--stack", "nanotron"], "name a tool"),
    ],
)
def test_what_cannot_be_written_is_refused(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words) == 2
    captured = capsys.readouterr()
    assert said in captured.err and "hint:" in captured.err and not captured.out


def test_another_document_is_not_a_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("[]", "{}", "nothing", '{"best": 1, "cluster": {}}'):
        (tmp_path / "plan.json").write_text(text)
        assert run(["export", str(tmp_path / "plan.json")]) == 2
        assert "plan" in capsys.readouterr().err


@pytest.mark.parametrize("on", ["m4-max-40c", "trainium2", "8xgaudi3"])
def test_nothing_is_written_for_what_its_launcher_does_not_start(on: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "gpt2", "--on", on, "--tokens", "1B", "--run"]) == 0
    shown = capsys.readouterr().out
    assert "gpuwise has no files for" in shown.lower() and "torchrun" not in shown
    assert run(["plan", "gpt2", "--on", on, "--tokens", "1B", "--json"]) == 0
    assert _document(capsys)["best"]["flags"] == []  # type: ignore[index]
    assert run(["export", "gpt2", "--on", on]) == 2
    assert "no tool that files are written for starts on" in capsys.readouterr().err


def test_maxtext_is_for_tpus_alone(capsys: pytest.CaptureFixture[str]) -> None:
    on = ["export", "llama-3.1-8b", "--tokens", "1B", "--on"]
    assert run([*on, "8xtpu-v5p", "--json"]) == 0
    written = _document(capsys)
    assert written["target"] == "maxtext" and written["command"][-1] == "maxtext.yml"  # type: ignore[index]
    for words, said in (
        (["8xtpu-v5p", "--to", "megatron"], "does not start on TPU v5p"),
        (["8xH100-SXM", "--to", "maxtext"], "does not start on H100"),
        (["8xtpu-v5p", "--to", "slurm"], "a start of maxtext"),
    ):
        assert run([*on, *words]) == 2
        err = capsys.readouterr().err
        assert said in err and "hint:" in err


def test_a_gpu_of_intel_is_started(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "gpt2", "--on", "arc-b580", "--tokens", "1B", "--run"]) == 0
    assert "torchrun" in capsys.readouterr().out


def test_an_unknown_target_names_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["export", "gpt2", "--on", "4090", "--to", "xyzzy"]) == 2
    assert "hint: it is one of megatron, " in capsys.readouterr().err
