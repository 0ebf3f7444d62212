"""The server that a capacity chose, as a script; its options read by the engines' own parsers."""

from __future__ import annotations

import itertools
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpuwise.cli.app import run
from gpuwise.errors import InputError
from gpuwise.export.serving import served

ENGINES = ("vllm", "sglang")
ASKED = ("--on", "8xH100-SXM", "--workload", "chat", "--slo", "ttft_p95=2s", "--json")


def _document(name: str = "vllm", line: str = "vllm serve a/b --max-num-seqs 8", copies: int = 2) -> dict[str, Any]:
    start = {"for": name, "command": line, "note": "give a checkpoint", "file": None}
    return {"model": "b", "on": "2x H100", "served": {"start": start, "copies": copies}}


def test_the_command_of_the_answer_is_the_script() -> None:
    name, written = served(_document(), None)
    assert name == "vllm" and written.command == ("vllm", "serve", "a/b", "--max-num-seqs", "8")
    assert "exec vllm serve a/b --max-num-seqs 8\n" in written.files["serve.sh"]
    assert written.notes[0] == "give a checkpoint" and written.notes[1].startswith("2 copies")
    subprocess.run(["bash", "-n"], input=written.files["serve.sh"], text=True, check=True)


def test_another_engine_and_no_answer_are_refused() -> None:
    for document, wanted, said in (
        (_document(), "sglang", "for vllm, not for sglang"),
        ({"model": "b", "on": "L4", "served": None}, None, "meets the targets"),
        ({"served": _document()["served"]}, None, "object missing required field model"),
        ({**_document(), "served": {"start": {}}}, None, "served.start: object missing required field for"),
        (_document("llama.cpp"), None, "no server 'llama.cpp'"),
        (_document(line="vllm 'serve"), None, "served.start.command: no closing quotation"),
        (_document(line="vllm serve '$(touch x)'"), None, "more than a variable"),
        ({**_document(), "model": "x\ntouch y"}, None, "model: has a character that is not allowed there"),
    ):
        with pytest.raises(InputError, match=said) as error:
            served(document, wanted)
        assert error.value.hint


def test_a_saved_answer_is_told_from_a_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "capacity.json").write_text(json.dumps(_document()))
    path = str(tmp_path / "capacity.json")
    assert run(["export", path, "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["target"] == "vllm"
    assert run(["export", path, "--data", "x"]) == 2
    assert "for training" in capsys.readouterr().err
    assert run(["export", path, "--out", str(tmp_path / "x")]) == 0 and (tmp_path / "x" / "serve.sh").stat().st_mode & 0o100


def _commands(engine: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> list[tuple[list[str], dict[str, Any]]]:
    """What is written for models, weights and caches, with the configuration that each stands for."""
    found: list[tuple[list[str], dict[str, Any]]] = []
    for model, kv in itertools.product(("llama-3.1-8b", "qwen3-30b-a3b"), ("bf16", "fp8")):
        assert run(["capacity", model, "--engine", engine, "--kv-cache", kv, *ASKED]) == 0
        (tmp_path / "a.json").write_text(capsys.readouterr().out)
        document = json.loads((tmp_path / "a.json").read_text().splitlines()[-1])
        found.append((list(served(document, engine)[1].command), document["served"]["configuration"]))
    return found


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_vllm_reads_its_command(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, transformers_loads: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Needs the wheel of vLLM and what its parser imports; the options are those of every platform."""
    monkeypatch.setenv("VLLM_TARGET_DEVICE", "cpu")
    arguments: Any = pytest.importorskip("vllm.entrypoints.common.cli_args")
    parsing: Any = pytest.importorskip("vllm.utils.argparse_utils")
    parser = arguments.make_arg_parser(parsing.FlexibleArgumentParser())
    for words, configuration in _commands("vllm", capsys, tmp_path):
        read = parser.parse_args(words[2:])
        assert read.model_tag == words[2] and read.tensor_parallel_size == configuration["tensor_parallel"]
        assert read.kv_cache_dtype == ("auto" if configuration["kv_dtype"] == "bf16" else configuration["kv_dtype"])
        assert read.max_num_seqs and read.max_num_batched_tokens and read.gpu_memory_utilization < 1


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_sglang_reads_its_command(capsys: pytest.CaptureFixture[str], tmp_path: Path, transformers_loads: None) -> None:
    import argparse

    arguments: Any = pytest.importorskip("sglang.srt.server_args")
    parser = argparse.ArgumentParser()
    arguments.ServerArgs.add_cli_args(parser)
    for words, configuration in _commands("sglang", capsys, tmp_path):
        read = parser.parse_args(words[3:])
        assert read.tp_size == configuration["tensor_parallel"] and read.model_path == words[4]
        assert read.chunked_prefill_size and read.max_running_requests and read.mem_fraction_static < 1
