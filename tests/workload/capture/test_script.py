"""Whole scripts, unmodified: cut at the updates, ended after the second, and the same step as a function that builds it."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest

from gpuwise.errors import InputError

pytest.importorskip("torch")

import gpuwise
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.plan.own.fit import fit_step
from gpuwise.workload.capture.captured import Capture
from gpuwise.workload.capture.errors import UserCodeError
from gpuwise.workload.capture.target import find_target

HEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

def network():
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))

data = TensorDataset(torch.randn(400, 64), torch.randint(0, 10, (400,)))
"""
LOOP = """
def main(batch, epochs=3):
    loader = DataLoader(data, batch_size=batch, shuffle=True, num_workers=2, pin_memory=True)
    model = network().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for epoch in range(epochs):
        for x, y in loader:
            x, y = x.cuda(non_blocking=True), y.cuda(non_blocking=True)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            print("update")
        torch.save(model.state_dict(), "model.pt")
"""
ENTRY = """
if __name__ == "__main__":
    import argparse
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=16)
    main(parser.parse_args().batch)
"""
FUNCTION = """
def make_step(batch=16):
    model = network().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    def step():
        x, y = torch.randn(batch, 64).cuda(), torch.randint(0, 10, (batch,)).cuda()
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    return step
"""


def write(folder: Path, *parts: str) -> Path:
    """A file of these parts."""
    path = folder / "train.py"
    path.write_text("".join(parts))
    return path


def captured(folder: Path, *parts: str, arguments: tuple[str, ...] = ()) -> Capture:
    """The capture of a script of these parts."""
    return find_target(str(write(folder, *parts)), whole=True, arguments=arguments).capture()


def test_a_script_is_the_step_that_a_function_builds(tmp_path: Path) -> None:
    script = write(tmp_path, HEAD, LOOP, ENTRY)
    function = tmp_path / "built.py"
    function.write_text(HEAD + FUNCTION)
    whole, built = gpuwise.fit_step(str(script), "RTX 3060"), gpuwise.fit_step(f"{function}:make_step", "RTX 3060")
    assert whole.step.batch == 16 and built.parameters == whole.parameters == 64 * 256 + 256 + 256 * 10 + 10
    for a, b in ((whole, built),):
        first, second = a.step.capture, b.step.capture
        spans = [slice(c.steady.first_op, c.steady.end_op) for c in (first, second)]
        ops = [[c.signatures[i].op for i in c.op_signature[s]] for c, s in zip((first, second), spans, strict=True)]
        assert ops[0] == ops[1]
        # a loop still holds the batch before while it makes the next
        held = a.estimate.memory.allocated.expected - b.estimate.memory.allocated.expected
        assert 0 <= held <= 16 * 64 * 4 + 2 * 512
        assert a.estimate.step_time_s is not None and b.estimate.step_time_s is not None
        assert a.estimate.step_time_s.expected == pytest.approx(b.estimate.step_time_s.expected, rel=1e-9)


def test_it_ends_after_the_second_update_and_leaves_no_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.pt").write_bytes(b"yesterday's")
    try_finally = LOOP.replace("    for epoch", "    try:\n     for epoch").replace(
        '        torch.save(model.state_dict(), "model.pt")', '    finally:\n        torch.save(model.state_dict(), "model.pt")'
    )
    capture = captured(tmp_path, HEAD, try_finally, ENTRY)
    assert capsys.readouterr().err.count("update") == 1  # the second is the end
    assert len(capture.steps) == 2 and (tmp_path / "model.pt").read_bytes() == b"yesterday's"


def test_a_loader_is_left_as_it_was() -> None:
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    loader = DataLoader(TensorDataset(torch.randn(32, 4)), 8, num_workers=2, timeout=300, persistent_workers=True)

    def make_step() -> object:
        model = torch.nn.Linear(4, 4).cuda()
        return lambda: [model(x.cuda()) for (x,) in loader]

    capture = gpuwise.capture(make_step)
    assert len(capture.steps) == 2
    assert (loader.num_workers, loader.timeout, loader._iterator) == (2, 300, None)


def test_its_own_arguments(tmp_path: Path) -> None:
    assert captured(tmp_path, HEAD, LOOP, ENTRY, arguments=("--batch", "48")).batch == 48
    with pytest.raises(InputError, match="exit code 2") as error:
        captured(tmp_path, HEAD, LOOP, ENTRY, arguments=("--bach", "48"))
    assert "after --" in str(error.value.hint)


def test_a_function_that_trains_is_cut_as_well(tmp_path: Path) -> None:
    path = write(tmp_path, HEAD, LOOP)
    capture = find_target(f"{path}:main").capture(batch=16)
    assert len(capture.steps) == 2 and capture.batch == 16 and capture.parameter_count > 0


def test_a_file_with_make_step_is_not_run_whole(tmp_path: Path) -> None:
    target = find_target(str(write(tmp_path, HEAD, FUNCTION, "raise_if_main = __name__\n")), whole=True)
    assert not target.is_script and target.attribute == "make_step"


def test_micro_batches_add_up(tmp_path: Path) -> None:
    body = """
model = network().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for i, (x, y) in enumerate(DataLoader(data, batch_size=8)):
    with torch.autocast("cuda", torch.float16):
        loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda()) / 4
    scaler.scale(loss).backward()
    if i % 4 == 3:
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
"""
    capture = captured(tmp_path, HEAD, body)
    assert capture.batch == 32 and len(capture.steps) == 2 and capture.settings.grad_scaler


def test_two_optimizers_are_one_step(tmp_path: Path) -> None:
    body = """
d, g = nn.Linear(64, 1).cuda(), nn.Linear(8, 64).cuda()
od, og = torch.optim.Adam(d.parameters()), torch.optim.Adam(g.parameters())
for x, _ in DataLoader(data, batch_size=20):
    fake = g(torch.randn(20, 8, device="cuda"))
    od.zero_grad()
    d(x.cuda()).mean().backward()
    d(fake.detach()).mean().backward()
    od.step()
    og.zero_grad()
    d(fake).mean().backward()
    og.step()
"""
    capture = captured(tmp_path, HEAD, body)
    assert capture.batch == 20
    span = capture.steady
    updates = [
        capture.signatures[i].op
        for i in capture.op_signature[span.first_op : span.end_op]
        if "_foreach_addcdiv" in capture.signatures[i].op
    ]
    assert len(updates) == 2


def test_updates_by_hand_are_updates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body = """
model = network().cuda()
for x, y in DataLoader(data, batch_size=25):
    print("batch")
    model.zero_grad()
    nn.functional.cross_entropy(model(x.cuda()), y.cuda()).backward()
    for p in model.parameters():
        p.data.add_(p.grad, alpha=-0.1)
"""
    capture = captured(tmp_path, HEAD, body)
    assert capture.batch == 25 and len(capture.steps) == 2 and capsys.readouterr().err.count("batch") == 3


def test_evaluation_before_training_is_no_step(tmp_path: Path) -> None:
    evaluate = """
model = network().cuda()
with torch.no_grad():
    for x, y in DataLoader(data, batch_size=400):
        model(x.cuda())
"""
    train = (
        LOOP.partition("def main")[0]
        + """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in DataLoader(data, batch_size=10):
    nn.functional.cross_entropy(model(x.cuda()), y.cuda()).backward()
    optimizer.step()
"""
    )
    assert captured(tmp_path, HEAD, evaluate, train).batch == 10
    alone = captured(tmp_path, HEAD, evaluate)
    assert alone.batch == 400 and len(alone.steps) == 1


def test_a_script_that_fails_says_so_as_python_does(tmp_path: Path) -> None:
    with pytest.raises(UserCodeError, match="no such thing") as error:
        captured(tmp_path, "raise ValueError('no such thing')\n")
    assert "train.py" in error.value.trace and "runpy" not in error.value.trace
    with pytest.raises(InputError, match="nothing ran on cuda"):
        captured(tmp_path, HEAD, "network()(torch.randn(2, 64))\n")


def test_a_loop_on_the_host_is_ended_and_not_waited_for(tmp_path: Path) -> None:
    """As Gymnasium's A2C, whose thousand updates on the processor take an hour."""
    train = """
import sys
model = network()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(1000):
    model(torch.randn(2, 64)).sum().backward()
    try:
        optimizer.step()
    except Exception:
        pass
    assert number < 100
"""
    with pytest.raises(InputError, match="nothing ran on cuda"):
        captured(tmp_path, HEAD, train)


def test_a_sparse_tensor_is_not_called_the_scripts_fault() -> None:
    """As powerful-gnns, which pools the nodes of a graph by one."""
    for raised in (
        NotImplementedError("Cannot access storage of SparseTensorImpl"),
        RuntimeError("PyTorch is not linked with support for cuda devices"),
    ):
        hint = str(UserCodeError("train.py", raised).hint)
        assert "sparse tensors have no stand-in" in hint and "fix it" not in hint


def test_an_assertion_about_values_is_not_called_the_scripts_fault() -> None:
    """As torchdiffeq's solvers, whose step depends on the error that they estimate."""
    assert "depends on values" in str(UserCodeError("train.py", AssertionError("underflow in dt 0.0")).hint)


def test_a_module_that_is_pickled_has_no_values_to_read(tmp_path: Path) -> None:
    """As Lightning pickles the hyperparameters of a module, large ones among them."""
    text = (
        "import io, pickle\nnet = nn.Linear(784, 640)\nassert pickle.dumps(net)\n"
        "torch.save(net.state_dict(), io.BytesIO(), _use_new_zipfile_serialization=False)\n"
        "net = net.cuda()\nassert pickle.dumps(net)\nadam = torch.optim.Adam(net.parameters())\n"
        "for _ in range(3):\n    net(torch.ones(4, 784).cuda()).sum().backward()\n    adam.step()\n"
    )
    assert captured(tmp_path, HEAD, text).parameters


def test_a_size_that_depends_on_values_is_captured_at_its_bound(tmp_path: Path) -> None:
    """As poutyne's accuracy picks the labels that count: the script is run again, with its own sizes."""
    text = (
        "net = network().cuda()\nadam = torch.optim.Adam(net.parameters())\n"
        "for x, y in DataLoader(data, batch_size=16):\n    x, y = x.cuda(), y.cuda()\n    out = net(x)\n"
        "    counted = y != 3\n    nn.functional.cross_entropy(out[counted], y[counted]).backward()\n    adam.step()\n"
    )
    target = find_target(str(write(tmp_path, HEAD, text)), whole=True)
    fitted = fit_step(target, find_cluster("H100-SXM"))
    assert fitted.at_bound is not None


def test_what_a_script_cannot_take(tmp_path: Path) -> None:
    path = write(tmp_path, HEAD, LOOP, ENTRY)
    with pytest.raises(InputError, match="whole script") as error:
        find_target(str(path), whole=True).capture(batch=4)
    assert "train.py -- --batch-size" in str(error.value.hint)
    with pytest.raises(InputError, match="--set is for functions"):
        find_target(str(path), ["width=3"], whole=True)
    with pytest.raises(InputError, match="has no command line"):
        find_target(f"{path}:main", whole=True, arguments=("--lr",))


@pytest.mark.slow
def test_the_trainer_of_hugging_face(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    monkeypatch.chdir(tmp_path)
    body = """
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, i):
        ids = torch.randint(0, 1000, (128,))
        return {"input_ids": ids, "labels": ids}

sizes = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, vocab_size=1000)
arguments = TrainingArguments("out", per_device_train_batch_size=8, gradient_accumulation_steps=2, bf16=True, report_to=[],
                              max_steps=10, dataloader_num_workers=2)
trainer = Trainer(LlamaForCausalLM(LlamaConfig(**sizes)), arguments, train_dataset=Tokens())
trainer.train()
trainer.save_model("out")
"""
    capture = captured(tmp_path, HEAD, body)
    assert capture.batch == 16 and len(capture.steps) == 2
    products = {s.inputs[0].dtype for s in capture.signatures if s.op == "aten.mm.default"}
    assert products == {"bf16"}


TRAINS = """
import math, torch
torch.set_default_tensor_type("torch.cuda.FloatTensor")
net = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(4):
    loss = net(torch.randn(4, 8)).square().mean()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("    if loss.item() < 5:\n        raise ValueError('wrong')", r"values are read back before that \(train.py:10\)"),
        ("    {}[0]", "as it would on a GPU"),
        ("    input()", "standard input"),
        ("    raise RuntimeError('Found no NVIDIA driver on your system')", "not pretended"),
        ("    raise OSError('CUDA_HOME environment variable is not set')", "CUDA toolkit"),
    ],
)
def test_a_hint_says_what_is_true_of_the_error(line: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    path = tmp_path / "train.py"
    path.write_text(TRAINS + line)
    with pytest.raises(UserCodeError) as error:
        find_target(str(path), whole=True).capture()
    assert re.search(hint, str(error.value.hint))


def test_a_default_type_of_cuda_makes_tensors_there_and_is_put_back(tmp_path: Path) -> None:
    import torch

    path = tmp_path / "train.py"
    path.write_text(TRAINS)
    assert find_target(str(path), whole=True).capture().parameter_count == 72
    assert torch.get_default_device().type == "cpu" and torch.zeros(1).device.type == "cpu"


HOST_DATA = """
rows = torch.arange(20_000)
edges = torch.stack([rows, rows.flip(0) * (rows % 2)])
kept = edges[:, edges[0] != edges[1]]
assert kept.shape[1] == int((edges[0] != edges[1]).sum()) and int(kept.max()) == 19_999
chosen = torch.zeros(20_000, dtype=torch.bool)
chosen[kept[0, :50]] = True
model = nn.Linear(64, 4).cuda()
optimizer = torch.optim.SGD(model.parameters())
for _ in range(9):
    x = torch.randn(20_000, 64).cuda()[chosen.cuda()]
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
"""


def test_data_prepared_on_the_host_has_its_values(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("import torch\nfrom torch import nn\n" + HOST_DATA)
    assert len(find_target(str(path), whole=True).capture().steps) == 2


ON_THE_HOST = """
import numpy as np
net, rnn = nn.Linear(100, 10), nn.RNN(10, 10)
optimizer = torch.optim.Adam([*net.parameters(), *rnn.parameters()])
for _ in range(9):
    noise = torch.FloatTensor(np.random.normal(0, 1, (64, 100)))
    y = net(net.weight.mean() * noise)
    steps = torch.from_numpy(y.detach().numpy())
    out, _ = rnn(torch.zeros(5, 1, 10), torch.zeros(1, 1, 10))
    optimizer.zero_grad()
    (y.mean() + out.mean() + steps.mean()).backward()
    optimizer.step()
"""


def test_a_script_of_the_host_mixes_tensors_of_arrays_with_its_own(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("import torch\nfrom torch import nn\n" + ON_THE_HOST)
    assert len(find_target(str(path), whole=True).capture(device="cpu").steps) == 2


LOOP_OF = """
for i in range(9):
    {line}
    loss = model({given}).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
HEAD_OF = """
import io
import torch
from torch import nn

class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 1)
        self.register_buffer("data", torch.randn(20, 8))

    def forward(self, x=None):
        return self.layer(self.data if x is None else x)

model = Own().cuda()
optimizer = torch.optim.Adam(model.parameters())
loss = torch.zeros((), device="cuda")
"""


def of_loop(folder: Path, line: str, given: str = "") -> Capture:
    path = folder / "train.py"
    path.write_text(HEAD_OF + LOOP_OF.format(line=line, given=given))
    return find_target(str(path), whole=True).capture()


def test_a_module_without_inputs_trains_too(tmp_path: Path) -> None:
    assert len(of_loop(tmp_path, "pass").steps) == 2


def test_a_list_of_tensors_of_the_device_becomes_a_tensor(tmp_path: Path) -> None:
    line = "target = torch.tensor([[loss.detach(), 2.0], [0.5, 0.9 * loss.detach()]]); assert target.shape == (2, 2)"
    assert len(of_loop(tmp_path, line, 'torch.randn(20, 8, device="cuda")').steps) == 2


def test_a_picture_is_not_written_over(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    kept = tmp_path / "sample.png"
    kept.write_bytes(b"of a real run")
    line = f"from PIL import Image; Image.new('L', (8, 8)).save({str(kept)!r}); Image.new('L', (8, 8)).save(io.BytesIO(), 'png')"
    assert len(of_loop(tmp_path, line).steps) == 2 and kept.read_bytes() == b"of a real run"


def test_samples_of_a_loader_on_the_host_are_shuffled(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    line = "assert sorted(torch.randperm(20).tolist()) == list(range(20))"
    path.write_text((HEAD_OF + LOOP_OF.format(line=line, given="")).replace(".cuda()", "").replace('"cuda"', '"cpu"'))
    assert len(find_target(str(path), whole=True).capture(device="cpu").steps) == 2


CHECKPOINTS = """
import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)).to(device)
optimizer = torch.optim.AdamW(model.parameters())
for i in range(4):
    loss = model(torch.randn(32, 64, device=device)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with open("state.pt", "wb") as file:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": i}, file)
    for where in (None, "cpu", device):
        state = torch.load("state.pt", map_location=where)
        assert state["step"] == i and state["model"]["0.weight"].shape == (256, 64)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    torch.save(model, "whole.pt")
    again = torch.load("whole.pt", weights_only=False)
    assert again(torch.randn(1, 64, device=device)).shape == (1, 64)
"""


@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.filterwarnings("error")
def test_a_checkpoint_in_an_open_file_is_written_and_read(device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of the captured device have no values: their shapes are written, and read as new tensors there."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(CHECKPOINTS)
    found = find_target("train.py", whole=True, arguments=()).capture(device=device)
    assert found.parameter_count == 2 * (2 * 64 * 256 + 256 + 64)  # with the model that was read
    assert sorted(p.name for p in tmp_path.iterdir()) == ["train.py"]


def test_what_a_real_file_holds_is_read_on_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.chdir(tmp_path)
    torch.save({"x": torch.arange(6.0).reshape(2, 3)}, "data.pt")
    (tmp_path / "train.py").write_text(
        "import torch\n"
        "x = torch.load('data.pt')['x']\n"
        "assert x.sum().item() == 15.0\n"
        "model = torch.nn.Linear(3, 1).cuda()\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for _ in range(3):\n"
        "    optimizer.zero_grad(); model(torch.load('data.pt', map_location='cuda')['x']).sum().backward(); optimizer.step()\n"
    )
    assert find_target("train.py", whole=True, arguments=()).capture(device="cuda").parameter_count == 4
