"""Lines to change: the user's own line where it is known."""

from __future__ import annotations

import pytest

from gpuwise.plan.changes.snippets import snippet
from gpuwise.workload.changes.registry import CHANGES, Change, Site, Sites

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
    assert snippet([Change("fused")], KNOWN) == (
        "@ train.py:12",
        "- optimizer = torch.optim.AdamW(net.parameters(), lr=3e-4)  # usual",
        "+ optimizer = torch.optim.AdamW(net.parameters(), lr=3e-4, fused=True)  # usual",
    )


def test_a_call_over_several_lines_is_not_torn() -> None:
    open_call = Sites([], optimizer=Site("train.py", 3, "    optimizer = AdamW(", "optimizer"), optimizers=("AdamW",))
    assert snippet([Change("fused")], open_call) == ("@ train.py:3", "+ fused=True")


def test_another_optimizer_keeps_its_arguments() -> None:
    lines = snippet([Change("adam8bit")], KNOWN)
    assert "+ optimizer = bitsandbytes.optim.AdamW8bit(net.parameters(), lr=3e-4)  # usual" in lines


def test_gradients_set_to_none() -> None:
    assert snippet([Change("set-to-none")], KNOWN)[-1] == "+ opt.zero_grad()"


def test_checkpoints_name_the_users_blocks() -> None:
    assert "+ for block in [*net.encoder, *net.decoder]:" in snippet([Change("checkpoint")], KNOWN)
    chosen = snippet([Change("checkpoint", ("encoder.0", "decoder.1"))], KNOWN)
    assert '+ for name in ["encoder.0", "decoder.1"]:' in chosen and "+     block = net.get_submodule(name)" in chosen


def test_many_checkpoints_are_written_in_full_and_short() -> None:
    names = ("embed", *(f"decoder.{i}" for i in range(2, 9)), "encoder.1.mlp", "encoder.3.mlp", "encoder.9.mlp", "0", "1", "2")
    line = next(x for x in snippet([Change("checkpoint", names)], KNOWN) if "for name in" in x)
    made = eval(line.removeprefix("+ for name in ").removesuffix(":"))
    assert sorted(made) == sorted(names) and len(line) < 140


def test_gradients_go_after_the_step_that_used_them() -> None:
    sites = Sites(
        [], zero_grad=Site("t.py", 9, "        opt.zero_grad()", "opt"), step=Site("t.py", 12, "        opt.step()", "opt")
    )
    assert snippet([Change("zero-after-step")], sites) == (
        "@ t.py:9",
        "- opt.zero_grad()",
        "@ t.py:12",
        "- opt.step()",
        "+ opt.step()",
        "+ opt.zero_grad()",
    )


def test_outputs_are_named_as_the_user_named_them() -> None:
    sites = Sites([Site("t.py", 4, "    logits = net(x)", "net")])
    assert snippet([Change("free-outputs")], sites)[1].startswith("+ del logits")
    assert snippet([Change("free-outputs")], Sites([]))[1].startswith("+ del output")


ARGUMENTS = {"autocast": "bf16", "accumulate": 4, "lora": 16, "low-precision": "bf16", "chunked-loss": 8, "optimizer": "SGD"}


@pytest.mark.parametrize("kind", CHANGES)
@pytest.mark.parametrize("sites", [KNOWN, BLIND], ids=["known", "blind"])
def test_every_change_has_lines(kind: str, sites: Sites) -> None:
    lines = snippet([Change(kind, ARGUMENTS.get(kind))], sites)
    assert lines and all(line[:2] in ("+ ", "- ", "@ ") for line in lines)
    assert lines[0].startswith("@ ")


def test_allocator_settings_are_an_environment_variable() -> None:
    assert snippet([], KNOWN, "expandable_segments:True") == ("+ PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python ...",)
