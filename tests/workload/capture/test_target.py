"""``train.py:make_step``: found, loaded, called with what it declares; what fails is told as the person's own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import gpuwise
from gpuwise.cli.step.options import is_target
from gpuwise.errors import InputError, NoFakeRuleError, UnknownNameError
from gpuwise.workload.capture.errors import UserCodeError
from gpuwise.workload.capture.target import find_target
from gpuwise.workload.row_codes import Kind

SCRIPT = """
import sys
import torch
from torch import nn
import helper_of_train

print("a person's print")
assert torch.cuda.is_available()

class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layer = nn.Linear(width, width)
    def forward(self, x):
        if x.shape[0] == 13:
            raise ValueError("thirteen is unlucky")
        return self.layer(x)

def make_step(batch_size=4, seq_len=3, device="cpu", width=helper_of_train.WIDTH):
    net = Net(width).to(device)
    optimizer = torch.optim.AdamW(net.parameters())
    def step():
        x = torch.randn(batch_size, seq_len, width, device=device)
        net(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return step

net = None

def step():
    global net
    net = net or Net(8).cuda()
    net(torch.randn(2, 8, device="cuda")).sum().backward()

def needs(path, batch):
    return lambda: None

def nothing():
    pass

def forgets():
    Net(8).cuda()

def leaves():
    sys.exit(3)

@torch.library.custom_op("gpuwise_test::mystery", mutates_args=())
def mystery(x: torch.Tensor) -> torch.Tensor:
    return x.clone()

def custom():
    x = torch.ones(3, device="cuda")
    return lambda: mystery(x)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    (tmp_path / "helper_of_train.py").write_text("WIDTH = 16\n")
    return path


def test_a_target_is_loaded_and_given_what_it_declares(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = find_target(str(script), ["width=24"])
    before = set(sys.modules), list(sys.path), list(sys.argv)
    captured = target.capture(batch=5, seq=7)
    assert captured.name == "train.py:make_step" and captured.batch == 5
    shapes = [s.inputs for s in captured.signatures if s.kind is Kind.MATMUL and s.op.startswith("aten.addmm")]
    assert [t.shape for t in shapes[0]] == [(24,), (35, 24), (24, 24)]
    assert "train.py:24 in step" in captured.lines
    out = capsys.readouterr()
    assert "a person's print" in out.err and out.out == ""
    assert "helper_of_train" not in sys.modules and (sys.path, sys.argv) == before[1:]
    helper = script.parent / "helper_of_train.py"
    helper.write_text("WIDTH = 32\n")
    # byte code goes by size and whole seconds
    os.utime(helper, (helper.stat().st_atime, helper.stat().st_mtime + 2))
    wider = find_target(str(script)).capture()
    assert wider.parameter_count == 32 * 32 + 32


def test_modules_of_this_program_stay_where_the_folder_is_its_checkout(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dropped, they would be imported again, beside the copy whose objects are in use."""
    script.with_name("train_in_checkout.py").write_text(f"import gpuwise.facts.words\n{SCRIPT}")
    monkeypatch.syspath_prepend(script.parent)
    monkeypatch.chdir(Path(gpuwise.__file__).parents[1])
    monkeypatch.delitem(sys.modules, "gpuwise.facts.words", raising=False)
    find_target("train_in_checkout:make_step").capture()
    assert "gpuwise.facts.words" in sys.modules


def test_a_step_itself_can_be_named(script: Path) -> None:
    captured = find_target(f"{script}:step").capture()
    assert len(captured.steps) == 2 and captured.steady.first_op > 0 and captured.parameter_count == 72


@pytest.mark.parametrize(
    ("attribute", "options", "error", "words"),
    [
        ("mak_step", {}, UnknownNameError, "did you mean 'make_step'"),
        ("needs", {"batch": 2}, InputError, "needs path\nhint: --set path="),
        ("needs", {}, InputError, "--batch 8"),
        ("nothing", {}, InputError, "returned nothing"),
        ("nothing", {"batch": 4}, InputError, "takes no batch"),
        ("forgets", {}, InputError, "builds a model, but does not run it"),
        ("Net", {"batch": 4}, InputError, "needs width"),
        ("leaves", {}, InputError, "exit code 3"),
        ("net", {}, InputError, "is None"),
        ("make_step", {"batch": 0}, InputError, "batch is 0"),
        ("make_step", {"batch": -3}, InputError, "batch is -3"),
        ("make_step", {"batch": 13}, UserCodeError, "thirteen is unlucky"),
        ("custom", {}, NoFakeRuleError, "gpuwise_test::mystery"),
    ],
)
def test_what_fails_is_said_once_with_a_hint(script: Path, attribute: str, options: Any, error: Any, words: str) -> None:
    with pytest.raises(error) as caught:
        find_target(f"{script}:{attribute}").capture(**options)
    assert words in str(caught.value) and caught.value.hint
    assert "gpuwise/workload" not in str(caught.value)
    if error is UserCodeError:
        assert 'train.py", line 16, in forward' in caught.value.trace
    if error is NoFakeRuleError:
        assert "train.py:54 in <lambda>" in str(caught.value)


def test_a_script_that_does_not_import_shows_its_own_trace(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("import torch\nimport no_such_package_anywhere\n")
    with pytest.raises(UserCodeError) as caught:
        find_target(f"{path}:make_step").capture()
    assert 'broken.py", line 2' in caught.value.trace and "importlib" not in caught.value.trace
    path.write_text("def make_step(:\n")
    with pytest.raises(UserCodeError, match="SyntaxError"):
        find_target(f"{path}:make_step").capture()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nowhere.py:make_step", "no file"),
        ("train.py:make-step", "names no function"),
        (":x", "names no function"),
        ("a b:c", "neither"),
    ],
)
def test_texts_that_name_nothing(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        find_target(text)
    assert caught.value.hint
    with pytest.raises(InputError, match="key=value"):
        find_target("gpuwise.errors:x", ["width"])


def test_places_that_are_no_python_file(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("def make_step(): ...")
    for name, words in (("", "is a folder"), ("train.txt", "is no Python file"), ("train.py", "there is no file")):
        assert is_target(f"{tmp_path / name}:make_step")
        with pytest.raises(InputError, match=words) as caught:
            find_target(f"{tmp_path / name}:make_step")
        assert caught.value.hint


def test_a_module_takes_its_batch_from_its_inputs(tmp_path: Path) -> None:
    from gpuwise.workload.capture.rerun import captured_with

    path = tmp_path / "net.py"
    path.write_text("from torch import nn\nclass Net(nn.Linear):\n    def __init__(self):\n        super().__init__(8, 4)\n")
    target = find_target(f"{path}:Net")
    with pytest.raises(InputError, match="takes input, and their shapes are unknown"):
        target.capture()
    captured, _ = captured_with(target, batch=6, inputs=(((2, 8), "fp32"),))
    assert captured.batch == 6 and captured.parameter_count == 36


def test_an_unknown_argument_is_told_what_there_is(script: Path) -> None:
    with pytest.raises(UnknownNameError, match="it takes batch_size, seq_len, device, width"):
        find_target(str(script), ["colour=3"]).capture()


def test_a_module_that_is_not_there() -> None:
    with pytest.raises(InputError, match="no module"):
        find_target("no_such_package_anywhere.train:make_step").capture()


def test_settings_are_values() -> None:
    target = find_target("a.b:c", ["n=3", "rate=1e-3", "flag=true", "word=hello", "sizes=(1, 2)"])
    assert target.settings == {"n": 3, "rate": 1e-3, "flag": True, "word": "hello", "sizes": (1, 2)}


def test_words_that_are_targets() -> None:
    assert all(map(is_target, ["train.py", "train.py:f", "package.module:make_step", "/a/b.py:C.d"]))
    assert not any(map(is_target, ["someone/model-GGUF:Q4_K_M", "qwen3:q4_K_M", "org/model:UD-IQ2_XXS", "org/model:bf16"]))
    assert not any(map(is_target, ["llama-3.1-8b", "gpt2", "meta-llama/Llama-3", "8xH100-SXM"]))
    names = ["library/llama3.1:8b", "user/model:tag", "mistral:latest", "gemma3n:e4b", "llama3:8b-instruct-q4_0", "mixtral:8x7b"]
    assert not any(map(is_target, [*names, "hf.co/bartowski/X-GGUF:Q4_K_M", "ollama.com/library/qwen3:8b"]))
    assert all(map(is_target, ["./folder/train:main", "~/train:main", "pkg:step"]))


def test_only_the_libraries_that_run_are_imported_and_they_see_torch_as_it_is(tmp_path: Path) -> None:
    packages = tmp_path / "site-packages"
    packages.mkdir()
    (packages / "quiet_library.py").write_text("import torch\nSEEN = torch.cuda.is_available(), torch.ones(2).device.type\n")
    (packages / "loud_library.py").write_text("raise RuntimeError('imported')\n")
    (tmp_path / "train.py").write_text(
        "def make_step():\n"
        "    import torch, quiet_library\n"
        "    model = torch.nn.Linear(4, 4, device='cuda')\n"
        "    assert quiet_library.SEEN == (False, 'cpu'), quiet_library.SEEN\n"
        "    return lambda: model(torch.ones(2, 4, device='cuda')).sum().backward()\n"
        "def other():\n"
        "    import loud_library\n"
    )
    program = (
        "from gpuwise.workload.capture.target import find_target\n"
        f"print(find_target({str(tmp_path / 'train.py')!r}).capture().parameter_count)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(packages), os.environ.get("PYTHONPATH")]))}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=300)
    assert done.stdout.split() == ["20"], done.stderr


@pytest.mark.thorough
def test_a_small_step_needs_neither_torchs_compiler_nor_a_computer_algebra_system(tmp_path: Path) -> None:
    import subprocess
    import sys

    program = (
        "import sys, torch, gpuwise\n"
        "def make():\n"
        "    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.LayerNorm(8)).cuda()\n"
        "    optimizer = torch.optim.AdamW(model.parameters())\n"
        "    def step():\n"
        "        model(torch.randn(4, 8, device='cuda')).sum().backward()\n"
        "        optimizer.step()\n"
        "    return step\n"
        "gpuwise.capture(make)\n"
        "print([n for n in ('torch._dynamo.config', 'sympy') if n in sys.modules])\n"
    )
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=True)
    assert out.stdout.strip() == "[]"


@pytest.mark.slow
def test_the_compiler_is_whole_for_who_imports_a_part_of_it_after_a_capture() -> None:
    import subprocess
    import sys

    program = (
        "import torch\n"
        "from gpuwise.workload.capture.api import capture\n"
        "def step():\n"
        "    module = torch.nn.Linear(8, 8).cuda()\n"
        "    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)\n"
        "    def run():\n"
        "        module(torch.ones(4, 8, device='cuda')).sum().backward()\n"
        "        optimizer.step()\n"
        "    return run\n"
        "capture(step)\n"
        "import torch._dynamo.utils\n"
        "print(callable(torch._dynamo.disable), torch.compiler.disable(len)([1]))\n"
    )
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=True)
    assert out.stdout.split() == ["True", "1"]
