"""Lines to change: the user's own line where it is known."""

from __future__ import annotations

import pytest

from gpuwise.plan.captured_snippets import snippet
from gpuwise.workload.changes import CHANGES, Change, Site, Sites

FORWARD = Site("/home/me/train.py", 31, "        loss = net(x, y)", "net")
OPTIMIZER = Site("/home/me/train.py", 12, "    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-4)  # usual")
ZERO = Site("/home/me/train.py", 40, "        opt.zero_grad(set_to_none=False)", "opt")
KNOWN = Sites([FORWARD], optimizer=OPTIMIZER, zero_grad=ZERO, blocks=("net.encoder", "net.decoder"), optimizers=("AdamW",),
              large_linear="net.head")  # fmt: skip
BLIND = Sites([])


def test_autocast_wraps_the_users_line() -> None:
    assert snippet([Change("autocast", "bf16")], KNOWN) == (
        "@ train.py:31", "- loss = net(x, y)", '+ with torch.autocast("cuda", dtype=torch.bfloat16):',
        "+     loss = net(x, y)  # and the loss",
    )  # fmt: skip
    assert any("scaler.scale(loss)" in line for line in snippet([Change("autocast", "fp16")], KNOWN))


def test_an_option_joins_the_call() -> None:
    assert snippet([Change("fused")], KNOWN) == (
        "@ train.py:12", "- optimizer = torch.optim.AdamW(net.parameters(), lr=3e-4)  # usual",
        "+ optimizer = torch.optim.AdamW(net.parameters(), lr=3e-4, fused=True)  # usual",
    )  # fmt: skip


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
    assert '+ for name in ("encoder.0", "decoder.1",):' in chosen and "+     block = net.get_submodule(name)" in chosen


ARGUMENTS = {"autocast": "bf16", "accumulate": 4, "lora": 16, "low-precision": "bf16", "chunked-loss": 8, "optimizer": "SGD"}


@pytest.mark.parametrize("kind", CHANGES)
@pytest.mark.parametrize("sites", [KNOWN, BLIND], ids=["known", "blind"])
def test_every_change_has_lines(kind: str, sites: Sites) -> None:
    lines = snippet([Change(kind, ARGUMENTS.get(kind))], sites)
    assert lines and all(line[:2] in ("+ ", "- ", "@ ") for line in lines)
    assert lines[0].startswith("@ ")


def test_allocator_settings_are_an_environment_variable() -> None:
    assert snippet([], KNOWN, "expandable_segments:True") == ("+ PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python ...",)
