"""Options of one's own code: what is told apart, and what is refused before torch is imported."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuwise.cli.step.options import OwnCode, batch_of, is_own_code, subject_of
from gpuwise.errors import InputError


@pytest.mark.parametrize(
    ("text", "own"),
    [
        ("train.py:make_step", True),
        ("src/train.py", True),
        ("package.module:make_step", True),
        ("hf:dir/config.json", True),
        ("llama-3.1-8b", False),
        ("config.json", False),
        ("layers=32,hidden=4096", False),
        ("gpt2", False),
    ],
)
def test_code_is_told_from_models(text: str, own: bool) -> None:
    assert is_own_code(text) is own


def test_batches() -> None:
    assert batch_of(None) is None and batch_of("auto") == "auto" and batch_of("32") == 32
    for bad in ("0", "-1", "many", "1.5", ""):
        with pytest.raises(InputError) as caught:
            batch_of(bad)
        assert caught.value.hint


REFUSED = [
    (["fit", "train.py:make_step", "--on", "4090"], "there is no file train.py"),
    (["fit", "examples/train_gpt.py:make_step", "--on", "no-such-card"], "unknown accelerator"),
    (["fit", "examples/train_gpt.py:make_step", "--on", "4090", "--batch", "0"], "--batch"),
    (["fit", "examples/train_gpt.py:make_step", "--on", "4090", "--tp", "2"], "--tp is for models of the catalogue"),
    (["fit", "examples/train_gpt.py:make_step", "--on", "4090", "--timeline", "a.png"], "must end with .svg or .html"),
    (["fit", "examples/train_gpt.py:make_step", "--on", "4090", "--snapshot", "/no/such/dir/a.pickle"], "does not exist"),
    (["fit", "examples/train_gpt.py:make_step", "--on", "4090", "--set", "width"], "is not key=value"),
    (["fit", "examples/train_gpt.py:make_step", "--on", "4090", "--input", "3xx4"], "is not a shape"),
    (["fit", "examples/train_gpt.py", "--on", "4090", "--change", "nonsense"], "unknown change"),
    (["fit", "examples/train_gpt.py", "--on", "4090", "--change", "lora=x"], "not a whole number"),
    (["fit", "examples/train_gpt.py", "--on", "4090", "--change", "low_precision"], "not a valid value"),
    (["fit", "examples/train_gpt.py", "--on", "4090", "--change", "offload_optimizer=parameters"], "only the optimizer"),
    (["plan", "examples/train_gpt.py", "--on", "4090", "--change", "lora=16"], "--change is for fit"),
    (["fit", "hf:no/such/config.json", "--on", "4090"], "No such file"),
    (["fit", "gpt2", "--on", "4090", "--batch", "8"], "--batch is for your own code"),
    (["fit", "gpt2", "--on", "4090", "--set", "a=1"], "--set is for your own code"),
    (["plan", "gpt2", "--on", "4090", "--samples", "1M"], "--samples counts images"),
    (["plan", "examples/train_gpt.py:make_step", "--on", "4090", "--tokens", "1B"], "--tokens"),
]


@pytest.mark.parametrize(("arguments", "said"), REFUSED, ids=[" ".join(a[1:]) for a, _ in REFUSED])
def test_refusals(gpuwise: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str) -> None:
    monkeypatch.chdir(Path(__file__).parents[3])
    if arguments[1].startswith("hf:"):
        pytest.importorskip("transformers")
    ran = gpuwise(*arguments)
    assert ran.code == 2 and ran.out == ""
    assert said in ran.err and ran.err.startswith("error: ") and "\nhint: " in ran.err and "Traceback" not in ran.err


def test_shapes() -> None:
    root = Path(__file__).parents[3]
    pytest.importorskip("torch")
    _, options = subject_of(f"{root}/examples/train_gpt.py:GPT", OwnCode(input=("8x128:int64", "32x3x224x224")))
    assert options["inputs"] == (((8, 128), "int64"), ((32, 3, 224, 224), "fp32"))
    with pytest.raises(InputError, match="int3"):
        subject_of(f"{root}/examples/train_gpt.py:GPT", OwnCode(input=("8x128:int3",)))


@pytest.mark.parametrize("command", ["fit", "plan"])
def test_without_torch_there_is_a_hint(command: str) -> None:
    """As where torch is not installed: no module of that name, and no package either."""
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from importlib import metadata\n"
        "real = metadata.version\n"
        "def version(name):\n"
        "    if name == 'torch': raise metadata.PackageNotFoundError(name)\n"
        "    return real(name)\n"
        "metadata.version = version\n"
        "from gpuwise.cli.app import run\n"
        f"sys.exit(run([{command!r}, 'examples/train_gpt.py:make_step', '--on', '4090', '--batch', '8']))\n"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root, timeout=300, check=False)
    assert done.returncode in (1, 2) and done.stdout == ""
    assert "needs torch" in done.stderr and "hint: pip install 'gpuwise[torch]'" in done.stderr
