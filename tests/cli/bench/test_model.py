"""``gpuwise bench FILE.gguf`` with a program that prints what llama-bench prints, on machines that the driver's library plays."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.facts.models.gguf_files import llama_8b
from tests.machine.devices.trees import write
from tests.machine.model_speeds import outputs
from tests.machine.model_speeds.outputs import (
    MARKDOWN,
    MLX_GENERATE,
    OLLAMA,
    ROWS,
    VLLM_SERVE,
    VLLM_THROUGHPUT,
    bench_row,
)

from gpuwise.machine.devices.find import DeviceSearch

pytest_plugins = ["gpuwise.testing.fake_nvml.fixture"]

FAKE = """#!{python}
import json, os, sys, time
sys.path.insert(0, {root!r})
from outputs import bench_row
words = sys.argv[1:]
asked = dict(zip(words[::2], words[1::2]))
open(os.environ["FAKE_LOG"], "a").write(json.dumps(words) + "\\n")
if os.environ.get("FAKE_FAILS"):
    sys.exit("error: failed to load model " + asked["-m"])
own = {{"model_filename": asked["-m"], "n_gpu_layers": int(asked["-ngl"])}}
for depth in map(int, asked["-d"].split(",")):
    rate = float(os.environ["FAKE_RATE"]) / (1 + depth / 50000)
    for test in ({{"prompt": int(asked["-p"]), "rate": 30 * rate}}, {{"written": int(asked["-n"]), "rate": rate}}):
        print(json.dumps(bench_row(depth=depth, **test, **own)), flush=True)
    if os.environ.get("FAKE_HANGS"):
        time.sleep(600)
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return llama_8b(tmp_path_factory.mktemp("gguf") / "my-fine-tune-Q4_K_M.gguf")


@pytest.fixture
def pc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: Path) -> Path:
    """A PC with a Ryzen 7 5700G, and the folder with its llama-bench on PATH; it writes 50 tokens a second."""
    cpu = "processor\t: 0\nmodel name\t: AMD Ryzen 7 5700G with Radeon Graphics\n\n"
    memory = f"MemTotal: {32 * 2**20} kB\nMemAvailable: {20 * 2**20} kB\n"
    write(tmp_path, {"proc/cpuinfo": cpu, "proc/meminfo": memory})
    program = tmp_path / "bin" / "llama-bench"
    program.parent.mkdir()
    program.write_text(FAKE.format(python=sys.executable, root=str(Path(outputs.__file__).parent)))
    program.chmod(0o755)
    monkeypatch.setenv("GPUWISE_ROOT", str(tmp_path))
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_LOG", str(tmp_path / "log"))
    monkeypatch.setenv("FAKE_RATE", "50")
    return program


def writes(document: dict[str, Any], context: int = 8192) -> float:
    return next(s["tokens_per_s"]["expected"] for s in document["speeds"] if s["context"] == context)


def test_what_is_measured_is_shown_beside_the_prediction_and_corrects_it(
    gpuwise: Callable[..., Any], pc: Path, model: Path, fake_nvml: Callable[..., Any]
) -> None:
    with fake_nvml(["rtx-3060"]).in_process():
        before = gpuwise("fit", str(model), "--for", "run", "--json").document
        assert "measured" not in before
        ran = gpuwise("bench", str(model), "--json")
        assert ran.code == 0, ran.err
        done = ran.document
        words = json.loads((pc.parent.parent / "log").read_text())
        asked = dict(zip(words[::2], words[1::2], strict=True))
        depths = [s["context"] for s in before["speeds"]]
        depths[-1] -= 512  # the last test ends where the longest context does
        assert asked["-m"] == str(model) and asked["-d"] == ",".join(map(str, depths))
        assert (asked["-ngl"], asked["-fa"], asked["-p"], asked["-n"]) == ("999", "1", "512", "128")
        kinds = [(m["kind"], m["before"]) for m in done["measurements"]]
        assert kinds == [(kind, d) for d in depths for kind in ("prompt", "decode")]
        for m in done["measurements"]:
            assert m["difference"] == pytest.approx(m["measured_tokens_per_s"] / m["predicted_tokens_per_s"]["expected"] - 1)
        after = gpuwise("fit", str(model), "--for", "run", "--json").document
        assert [m["before"] for m in after["measured"] if m["kind"] == "decode"] == depths
        factor = done["calibration"]["decode/llama.cpp"]["factor"]
        ratios = [1 + m["difference"] for m in done["measurements"] if m["kind"] == "decode"]
        # one model proves little of others: between what was measured and what is predicted
        assert min(*ratios, 1) < factor < max(*ratios, 1) and after["factor"] == pytest.approx(factor)
        assert writes(after) == pytest.approx(writes(before) * factor, rel=1e-9)
        assert "measured  " in gpuwise("fit", "llama-3.1-8b", "--for", "run").out
        named = gpuwise("fit", "llama-3.1-8b", "--for", "run", "--measured").out
        assert "Measured on this machine" in named and "Speeds below are corrected" in named
        elsewhere = gpuwise("fit", "llama-3.1-8b", "--on", "3060", "--for", "run", "--json").document
        assert "measured" not in elsewhere
        assert "measured" not in gpuwise("fit", "qwen3-8b", "--for", "run", "--json").document
        text = gpuwise("bench", str(model), "--quick").out
    assert "predicted" in text and "are corrected by" in text


def test_a_processor_is_measured_and_corrected(
    gpuwise: Callable[..., Any], pc: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuwise.machine.devices.find.find_devices", lambda: DeviceSearch((), {}))
    monkeypatch.setenv("FAKE_RATE", "20")
    before = writes(gpuwise("fit", str(model), "--for", "run", "--json").document)
    done = gpuwise("bench", str(model), "--quick", "--json").document
    assert [m["before"] for m in done["measurements"]] == [1024, 1024]
    assert done["devices"] == ["AMD Ryzen 7 5700G with Radeon Graphics"]
    assert done["measurements"][0]["predicted_tokens_per_s"] is None, "prompts on a processor are not predicted"
    factor = done["calibration"]["decode/llama.cpp"]["factor"]
    assert factor > 1
    assert writes(gpuwise("fit", str(model), "--for", "run", "--json").document) == pytest.approx(before * factor)
    again = gpuwise("bench", str(model), "--quick", "--json").document["calibration"]["decode/llama.cpp"]["factor"]
    assert again == pytest.approx(factor), "a prediction that is corrected is not corrected again"
    without = gpuwise("bench", str(model), "--quick", "--no-save", "--json").document
    assert without["records"] is None and without["calibration"] == {}


def test_measuring_the_machine_keeps_what_models_taught(
    gpuwise: Callable[..., Any], pc: Path, model: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuwise.machine.devices.find.find_devices", lambda: DeviceSearch((), {}))
    assert gpuwise("bench", str(model), "--quick").code == 0
    assert gpuwise("bench", "--calibrate", "--device", "cpu", "--each", "1ms").code == 0
    (kept,) = json.loads((home / "coefficients.json").read_text())["devices"]
    assert "decode/llama.cpp" in kept["families"] and "fp32" in kept["rates"]


def test_the_history_and_a_copy_have_it(
    gpuwise: Callable[..., Any], pc: Path, model: Path, fake_nvml: Callable[..., Any], tmp_path: Path
) -> None:
    with fake_nvml(["rtx-3060"]).in_process():
        assert gpuwise("bench", str(model), "--quick").code == 0
        assert "decode-llama.cpp-llama-3.1-8b-Q4_K_M-128-d1024" in gpuwise("bench", "--history", "--json").out
        assert gpuwise("bench", "--history").code == 0
        lines = tmp_path / "lines.jsonl"
        assert gpuwise("bench", "--export", str(lines)).code == 0
        assert gpuwise("bench", "--import", str(lines), "--json").document["new"] == 0


def test_a_part_in_ram_is_measured_with_the_layers_that_fit(
    gpuwise: Callable[..., Any], pc: Path, model: Path, fake_nvml: Callable[..., Any]
) -> None:
    machine = fake_nvml(["rtx-3060"])
    with machine.in_process():
        machine.gpu(0).set(memory_used_bytes=8 * 2**30)
        done = gpuwise("bench", str(model), "--json").document
        layers = int(json.loads((pc.parent.parent / "log").read_text())[7 + 2])
        assert 0 < layers < 32
        assert all(not m["whole"] and m["predicted_tokens_per_s"] is None for m in done["measurements"])
        assert done["calibration"] == {}
        assert "writes, offloaded" in gpuwise("fit", str(model), "--for", "run", "--measured").out


@pytest.mark.parametrize(
    ("text", "named", "kinds"),
    [
        (json.dumps(ROWS), "llama-3.1-8b-Q4_K_M", ["prompt", "decode", "decode"]),
        (json.dumps(ROWS), None, ["prompt", "decode", "decode"]),
        (MARKDOWN, "llama-3.1-8b-Q4_K_M", ["prompt", "decode", "decode"]),
        (OLLAMA, "llama-3.1-8b-Q4_K_M", ["prompt", "decode"]),
        (json.dumps(VLLM_SERVE), None, ["prompt", "decode"]),
        (json.dumps(VLLM_THROUGHPUT), "qwen3-8b-awq", ["total"]),
    ],
)
def test_output_of_programs_is_imported_once(
    text: str,
    named: str | None,
    kinds: list[str],
    gpuwise: Callable[..., Any],
    pc: Path,
    fake_nvml: Callable[..., Any],
    tmp_path: Path,
) -> None:
    file = tmp_path / "out"
    file.write_text(text)
    words = ("bench", *([named] if named else []), "--import", str(file), "--json")
    with fake_nvml(["rtx-3060"]).in_process():
        first = gpuwise(*words)
        assert first.code == 0, first.err
        assert [m["kind"] for m in first.document["measurements"]] == kinds
        n = len(gpuwise("bench", "--export", "-").out.splitlines())
        assert n == len(kinds)
        assert gpuwise(*words).document["calibration"] == first.document["calibration"]
        assert len(gpuwise("bench", "--export", "-").out.splitlines()) == n
        model = named or {"vllm": "qwen3-8b"}.get(first.document["measurements"][0]["engine"], "llama-3.1-8b")
        assert len(gpuwise("fit", model, "--for", "run", "--json").document["measured"]) == n


@pytest.mark.parametrize(
    ("text", "words", "message"),
    [
        (OLLAMA, (), "ollama does not print which model it ran"),
        (OLLAMA, ("llama-3.1-8b",), "ollama does not print the format of the weights"),
        (MLX_GENERATE, ("no-such-model",), "unknown model"),
        (MARKDOWN, (), "llama-bench does not print which model it ran"),
        (json.dumps([bench_row(written=128, model_filename="x/foo.gguf")]), (), "the model 'foo' of llama-bench is not known"),
        (
            json.dumps([bench_row(written=128, gpu_info="NVIDIA GeForce RTX 4080")]),
            (),
            "are of NVIDIA GeForce RTX 4080, and this",
        ),
        (json.dumps([bench_row(written=128, n_gpu_layers=0, cpu_info="Intel Core i9")]), (), "are of Intel Core i9, and this"),
        ("hello", (), "has no speed that gpuwise reads"),
        ("hello", ("llama-3.1-8b",), "has no speed that gpuwise reads"),
    ],
)
def test_what_cannot_be_imported_is_refused_whole(
    text: str,
    words: tuple[str, ...],
    message: str,
    gpuwise: Callable[..., Any],
    pc: Path,
    fake_nvml: Callable[..., Any],
    home: Path,
    tmp_path: Path,
) -> None:
    file = tmp_path / "out"
    file.write_text(text)
    with fake_nvml(["rtx-3060"]).in_process():
        ran = gpuwise("bench", *words, "--import", str(file))
    assert ran.code == 2 and message in ran.err and "hint: " in ran.err and len(ran.err.strip().splitlines()) == 2
    assert not (home / "coefficients.json").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("llama-3.1-8b",), "llama-bench runs a GGUF file, and 'llama-3.1-8b' is a name"),
        (("{model}", "--only", "disk"), "--only is not for a model"),
        (("{model}", "--history"), "a model is measured, or its measurements imported"),
        (("{model}", "--llama-bench", "/nowhere"), "/nowhere cannot be run"),
        (("{model}", "--device", "gpu9"), "there is no GPU 9 here"),
        (("{model}", "--device", "tpu"), "there is no device 'tpu'"),
        (("--llama-bench", "/nowhere"), "--llama-bench measures a model"),
    ],
)
def test_bad_questions(
    words: tuple[str, ...], message: str, gpuwise: Callable[..., Any], pc: Path, model: Path, fake_nvml: Callable[..., Any]
) -> None:
    with fake_nvml(["rtx-3060"]).in_process():
        ran = gpuwise("bench", *(w.format(model=model) for w in words))
    assert ran.code == 2 and message in ran.err and "hint: " in ran.err


def test_without_the_program_the_hint_says_how_to_get_it(
    gpuwise: Callable[..., Any], pc: Path, model: Path, fake_nvml: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    program = pc.rename(pc.with_name("another-name"))
    with fake_nvml(["rtx-3060"]).in_process():
        ran = gpuwise("bench", str(model))
        assert ran.code == 2 and "llama-bench is not installed" in ran.err and "brew install llama.cpp" in ran.err
        assert gpuwise("bench", str(model), "--quick", "--llama-bench", str(program)).code == 0
        monkeypatch.setenv("FAKE_FAILS", "1")
        ran = gpuwise("bench", str(model), "--llama-bench", str(program))
    assert ran.code == 2 and "ended with code 1: error: failed to load model" in ran.err


@pytest.mark.skipif(os.name == "nt", reason="no SIGINT to one process")
def test_ctrl_c_ends_the_program_and_keeps_what_was_measured(pc: Path, model: Path, home: Path) -> None:
    environment = {**os.environ, "FAKE_HANGS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    words = [sys.executable, "-m", "gpuwise", "bench", str(model), "--device", "cpu", "--json"]
    ran = subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background processes ignore it
    )
    assert ran.stderr is not None
    for line in ran.stderr:
        if "writes" in line:
            break
    (child,) = Path(f"/proc/{ran.pid}/task/{ran.pid}/children").read_text().split()
    ran.send_signal(signal.SIGINT)
    out, _ = ran.communicate(timeout=30)
    document = json.loads(out.splitlines()[-1])
    assert ran.returncode == 130 and document["interrupted"] and [m["before"] for m in document["measurements"]] == [1024, 1024]
    for _ in range(50):
        if not Path(f"/proc/{child}").exists():
            break
        time.sleep(0.1)
    assert not Path(f"/proc/{child}").exists()
    assert (home / "records.db").exists()
