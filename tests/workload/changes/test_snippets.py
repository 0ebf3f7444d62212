"""Lines to change: the user's own line where it is known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpuwise.workload.changes.change import Change, Site, Sites
from gpuwise.workload.changes.diff import diff_of, snippet
from gpuwise.workload.changes.writers import WRITERS

FORWARD = Site("/home/me/train.py", 31, "        loss = net(x, y)", "net")
OPTIMIZER = Site("/home/me/train.py", 12, "    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-4)  # usual")
ZERO = Site("/home/me/train.py", 40, "        opt.zero_grad(set_to_none=False)", "opt")
KNOWN = Sites(
    [FORWARD],
    optimizer=OPTIMIZER,
    zero_grad=ZERO,
    blocks=("net.encoder", "net.decoder"),
    optimizers=("AdamW",),
    large_linear="net.head",
)
BLIND = Sites([])


def test_autocast_wraps_the_users_line() -> None:
    assert snippet([Change("autocast", "bf16")], KNOWN) == (
        "@ train.py:31",
        "- loss = net(x, y)",
        '+ with torch.autocast("cuda", dtype=torch.bfloat16):',
        "+     loss = net(x, y)  # and the loss",
    )
    assert any("scaler.scale(loss)" in line for line in snippet([Change("autocast", "fp16")], KNOWN))


def test_an_option_joins_the_call() -> None:
    assert snippet([Change("fused_optimizer")], KNOWN) == (
        "@ train.py:12",
        "- optimizer = torch.optim.AdamW(net.parameters(), lr=3e-4)  # usual",
        "+ optimizer = torch.optim.AdamW(net.parameters(), lr=3e-4, fused=True)  # usual",
    )


def test_a_call_over_several_lines_is_not_torn() -> None:
    open_call = Sites([], optimizer=Site("train.py", 3, "    optimizer = AdamW(", "optimizer"), optimizers=("AdamW",))
    assert snippet([Change("fused_optimizer")], open_call) == ("@ train.py:3", "+ fused=True")


def test_another_optimizer_keeps_its_arguments() -> None:
    lines = snippet([Change("optimizer", "adamw8bit")], KNOWN)
    assert "+ optimizer = bitsandbytes.optim.AdamW8bit(net.parameters(), lr=3e-4)  # usual" in lines


@pytest.mark.parametrize(("name", "called"), [("AdamW", "torch.optim.AdamW([p]"), ("Own", " Own([p]")])
def test_an_optimizer_of_ones_own_is_not_called_torchs(name: str, called: str) -> None:
    assert any(called in line for line in snippet([Change("step_in_backward")], replace(KNOWN, optimizers=(name,))))


def test_gradients_set_to_none() -> None:
    assert snippet([Change("set_to_none")], KNOWN)[-1] == "+ opt.zero_grad(set_to_none=True)"


def test_checkpoints_name_the_users_blocks() -> None:
    assert "+ for block in [*net.encoder, *net.decoder]:" in snippet([Change("checkpointing")], KNOWN)
    chosen = snippet([Change("checkpointing", ("encoder.0", "decoder.1"))], KNOWN)
    assert '+ for name in ["encoder.0", "decoder.1"]:' in chosen and "+     block = net.get_submodule(name)" in chosen


def test_many_checkpoints_are_written_in_full_and_short() -> None:
    names = ("embed", *(f"decoder.{i}" for i in range(2, 9)), "encoder.1.mlp", "encoder.3.mlp", "encoder.9.mlp", "0", "1", "2")
    line = next(x for x in snippet([Change("checkpointing", names)], KNOWN) if "for name in" in x)
    made = eval(line.removeprefix("+ for name in ").removesuffix(":"))
    assert sorted(made) == sorted(names) and len(line) < 140


def test_gradients_go_after_the_step_that_used_them() -> None:
    sites = Sites(
        [], zero_grad=Site("t.py", 9, "        opt.zero_grad()", "opt"), step=Site("t.py", 12, "        opt.step()", "opt")
    )
    assert snippet([Change("zero_after_step")], sites) == ("@ t.py:9", "- opt.zero_grad()", "@ t.py:12", "+ opt.zero_grad()")


def test_outputs_are_named_as_the_user_named_them() -> None:
    sites = Sites([Site("t.py", 4, "    logits = net(x)", "net")])
    assert snippet([Change("free_outputs")], sites)[1].startswith("+ del logits")
    assert snippet([Change("free_outputs")], Sites([]))[1].startswith("+ del output")


ARGUMENTS = {
    "autocast": "bf16",
    "micro_batches": 4,
    "lora": 16,
    "low_precision": "bf16",
    "chunked_loss": 8,
    "optimizer": "momentum",
    "allocator": "expandable_segments:True",
    "workers": 4,
    "prefetch": 4,
    "pin_memory": True,
    "threads": 2,
    "batch": 8,
}


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("sites", [KNOWN, BLIND], ids=["known", "blind"])
def test_every_change_has_lines(kind: str, sites: Sites) -> None:
    lines = snippet([Change(kind, ARGUMENTS.get(kind))], sites)
    assert lines and all(line[:2] in ("+ ", "- ", "@ ") for line in lines)
    assert lines[0].startswith("@ ")


def test_adapters_name_the_modules_they_are_put_on() -> None:
    every, named, attention = (
        snippet([Change("lora", argument)], KNOWN)[1] for argument in (16, (8, ("q_proj", "v_proj")), (8, ("attention",)))
    )
    assert every.endswith('LoraConfig(r=16, target_modules="all-linear")')
    assert named.endswith('LoraConfig(r=8, target_modules=["q_proj", "v_proj"])')
    assert attention.endswith('target_modules=["q_proj", "k_proj", "v_proj", "o_proj"])')


def test_allocator_settings_are_an_environment_variable() -> None:
    lines = snippet([Change("allocator", "expandable_segments:True")], KNOWN)
    assert lines == ("@ where it is started", "+ PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python ...")


SCRIPT = """\
import torch
from data import batches

def main():
    net = Net().cuda()
    opt = torch.optim.AdamW(
        net.parameters(),
        lr=3e-4,
    )
    for x, y in batches():
        out = net(x)
        loss = torch.nn.functional.cross_entropy(out, y)
        loss.backward()
        opt.step()
        opt.zero_grad(set_to_none=False)
"""


@pytest.fixture
def seen(tmp_path: Path) -> Sites:
    """The sites of a script that can be read, as a capture of it would note them."""
    file = tmp_path / "loop.py"
    file.write_text(SCRIPT)
    rows = SCRIPT.splitlines()

    def at(line: int, name: str = "") -> Site:
        return Site(str(file), line, rows[line - 1], name)

    return Sites(
        [at(11, "net")],
        backward=at(13),
        optimizer=at(6, "opt"),
        zero_grad=at(15, "opt"),
        step=at(14, "opt"),
        loss=at(12),
        blocks=("net.layers",),
        optimizers=("AdamW",),
    )


def test_a_readable_script_is_changed_in_its_own_lines(seen: Sites) -> None:
    assert snippet([Change("autocast", "bf16")], seen) == (
        "@ loop.py:11",
        "- out = net(x)",
        "- loss = torch.nn.functional.cross_entropy(out, y)",
        '+ with torch.autocast("cuda", dtype=torch.bfloat16):',
        "+     out = net(x)",
        "+     loss = torch.nn.functional.cross_entropy(out, y)",
    )
    assert snippet([Change("checkpointing")], seen) == (
        "@ loop.py:2",
        "+ import functools",
        "+ from torch.utils.checkpoint import checkpoint",
        "@ loop.py:9",
        "+ for block in net.layers:",
        "+     block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)",
    )
    assert snippet([Change("zero_after_step")], seen)[-2:] == (
        "- opt.zero_grad(set_to_none=False)",
        "+ opt.zero_grad()",
    )


def test_a_line_that_changed_since_is_left_alone(seen: Sites) -> None:
    stale = replace(seen, optimizer=Site(seen.files[0], 6, "    opt = torch.optim.SGD(net.parameters(), lr=1.0)", "opt"))
    assert snippet([Change("fused_optimizer")], stale)[1].startswith("- opt = torch.optim.SGD")


@pytest.mark.parametrize(
    ("name", "argument"),
    [("fused_optimizer", True), ("set_to_none", True), ("tf32", True), ("compile", "whole"), ("compile", "reduce-overhead")],
)
def test_what_is_shown_is_the_diff_that_tune_writes(seen: Sites, name: str, argument: object) -> None:
    patch = diff_of(Path(seen.files[0]), {name: argument})
    assert patch.covers == (name,)
    written = [line[0] + line[1:].strip() for line in patch.text.splitlines()[2:] if line[0] in "+-"]
    shown = [line[0] + line[2:].strip() for line in snippet([Change(name, argument)], seen) if line[0] in "+-"]
    assert shown == written


def test_changes_of_one_call_are_made_together(tmp_path: Path) -> None:
    file = tmp_path / "load.py"
    file.write_text("import torch\nloader = DataLoader(\n    data,\n    shuffle=True,\n)\n")
    patch = diff_of(file, {"workers": 2, "prefetch": 4, "pin_memory": True})
    assert set(patch.covers) == {"workers", "prefetch", "pin_memory"}
    assert "+    shuffle=True, num_workers=2, persistent_workers=True, prefetch_factor=4, pin_memory=True" in patch.text
