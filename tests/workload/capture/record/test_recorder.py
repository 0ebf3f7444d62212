"""What a capture records: operations with their module, line and phase, storages with their use, steps."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import gpuwise  # noqa: E402
from gpuwise.errors import InputError, UnknownNameError  # noqa: E402
from gpuwise.workload.capture.captured import Capture, Category, OpFlag  # noqa: E402
from gpuwise.workload.capture.record import graph  # noqa: E402
from gpuwise.workload.capture.record.rows import rows_of  # noqa: E402
from gpuwise.workload.row_codes import Kind, Phase  # noqa: E402
from gpuwise.workload.step import OpTable  # noqa: E402

BATCH, WIDTH, HIDDEN = 32, 24, 40


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)
        self.register_buffer("scale", torch.ones(WIDTH))

    def forward(self, x: Any) -> Any:
        return x + self.down(F.gelu(self.up(x))) * self.scale


class Net(nn.Module):
    def __init__(self, depth: int = 2) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(depth))
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def ops(captured: Capture, name: str, step: int = -1) -> list[int]:
    """Positions of the operations called ``name`` (``mm``) in a step."""
    span = captured.steps[step]
    return [
        i for i in range(span.first_op, span.end_op) if captured.signatures[captured.op_signature[i]].op.split(".")[1] == name
    ]


def steady(captured: Capture, phase: Phase) -> list[int]:
    """Positions of the operations of ``phase`` in the steady step."""
    return [i for i in range(captured.steady.first_op, captured.steady.end_op) if captured.op_phase[i] == phase]


def saved_bytes(captured: Capture) -> int:
    """Activations alive before the first backward operation of the steady step."""
    before = np.flatnonzero(captured.event_op[: captured.steady.end_event] < steady(captured, Phase.BACKWARD)[0])
    return captured.bytes_by_category(int(before[-1]))[Category.ACTIVATION]


def rows(captured: Capture, phase: Phase, kind: Kind) -> OpTable:
    """Distinct operations of a kind in a phase of the steady step, as rows of the step table."""
    distinct = dict.fromkeys(int(captured.op_signature[i]) for i in steady(captured, phase))
    signatures = [captured.signatures[k] for k in distinct]
    return rows_of([s for s in signatures if s.kind is kind], captured.settings)


@pytest.fixture(scope="module")
def plain() -> Capture:
    return gpuwise.capture(Net(), torch.randn(BATCH, WIDTH))


def test_a_bare_module_is_trained_and_left_alone() -> None:
    net = Net()
    before = {n: (p, p.detach().clone()) for n, p in net.named_parameters()}
    captured = gpuwise.capture(net, (BATCH, WIDTH))
    assert all(net.get_parameter(n) is p and torch.equal(p, old) and p.grad is None for n, (p, old) in before.items())
    assert net.blocks[0].scale.device.type == "cpu"
    assert captured.name == "Net" and captured.batch == BATCH and len(captured.steps) == 2
    assert captured.settings.optimizers == ("AdamW/foreach",)
    assert torch.randn(2).device.type == "cpu" and nn.Module.__call__(nn.Identity(), 1) == 1


def test_flop_are_those_of_the_products(plain: Capture) -> None:
    """Forward: each linear 2 B K N; backward: twice that, less the input gradient of the first linear."""
    forward = 2.0 * BATCH * (2 * 2 * WIDTH * HIDDEN + 3 * WIDTH)
    assert plain.flop() == 3 * forward - 2.0 * BATCH * WIDTH * HIDDEN
    assert sum(plain.signatures[plain.op_signature[i]].flop for i in steady(plain, Phase.FORWARD)) == forward


def test_operations_of_both_directions_belong_to_the_module_of_the_forward(plain: Capture) -> None:
    where = [(plain.modules[plain.op_module[i]], Phase(plain.op_phase[i])) for i in ops(plain, "mm")]
    assert all(phase is Phase.BACKWARD for _, phase in where)
    assert [m for m, _ in where] == [
        "head",
        "head",
        "blocks.1.down",
        "blocks.1.down",
        "blocks.1.up",
        "blocks.1.up",
        "blocks.0.down",
        "blocks.0.down",
        "blocks.0.up",
    ]
    assert [plain.modules[plain.op_module[i]] for i in ops(plain, "gelu_backward")] == ["blocks.1", "blocks.0"]


def test_lines_are_the_persons_own(plain: Capture) -> None:
    line = {plain.lines[plain.op_line[i]] for name in ("gelu", "gelu_backward") for i in ops(plain, name)}
    (where,) = line
    assert where.startswith("test_recorder.py:") and where.endswith("in Block.forward")


def test_storages_are_told_apart(plain: Capture) -> None:
    parameters = 4 * sum(math.prod(p.shape) for p in plain.parameters)
    live = plain.bytes_by_category(plain.steady.end_event - 1)
    assert live == {
        Category.PARAMETER: parameters,
        Category.OPTIMIZER: 2 * parameters,
        Category.BUFFER: 2 * 4 * WIDTH,
        Category.INPUT: 4 * BATCH * WIDTH,
    }
    gradients = plain.storage_bytes[plain.storage_category == Category.GRADIENT]
    assert gradients.sum() == 2 * parameters  # of two steps
    # a block keeps: up's output and gelu's (4 B H each), down's output for the product with scale, and x for up
    kept = 4 * BATCH * (2 * (2 * HIDDEN + WIDTH) + WIDTH) + 4 * BATCH * WIDTH * 1
    assert 4 * BATCH * 2 * 2 * HIDDEN <= saved_bytes(plain) <= kept


def test_a_storage_is_born_once_and_freed_at_most_once(plain: Capture) -> None:
    for sign, most in ((1, 1), (-1, 1)):
        counts = np.bincount(plain.event_storage[plain.event_sign == sign], minlength=len(plain.storage_bytes))
        assert counts.max() <= most
    assert plain.live_bytes().min() >= 0
    assert (np.diff(plain.event_op) >= 0).all()


def test_the_second_step_repeats_the_first_but_for_the_state(plain: Capture) -> None:
    assert plain.peak_bytes(0) < plain.peak_bytes(1)
    third = gpuwise.capture(Net(), torch.randn(BATCH, WIDTH), n_steps=3)
    two, three = (
        [s.op for s in map(third.signatures.__getitem__, third.op_signature[x.first_op : x.end_op])] for x in third.steps[1:]
    )
    assert two == three and third.peak_bytes(1) == third.peak_bytes(2)


def test_calls_name_what_modules_take_and_return(plain: Capture) -> None:
    called = [plain.modules[c.module] for c in plain.calls]
    assert called == ["", "blocks.0", "blocks.0.up", "blocks.0.down", "blocks.1", "blocks.1.up", "blocks.1.down", "head"]
    outer = plain.calls[0]
    assert all(outer.first_op <= c.first_op and c.end_op <= outer.end_op for c in plain.calls)
    assert plain.calls[1].outputs == plain.calls[4].inputs


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_is_recomputation(reentrant: bool) -> None:
    from torch.utils.checkpoint import checkpoint

    def make() -> Any:
        net = Net(3).cuda()
        x = torch.randn(BATCH, WIDTH, device="cuda", requires_grad=True)

        def step() -> None:
            y = x
            for block in net.blocks:
                y = checkpoint(block, y, use_reentrant=reentrant)
            net.head(y).sum().backward()
            net.zero_grad()

        return step

    captured = gpuwise.capture(make)
    again = [
        f"{captured.modules[captured.op_module[i]]}.{captured.signatures[captured.op_signature[i]].op.split('.')[1]}"
        for i in steady(captured, Phase.RECOMPUTE)
        if captured.signatures[captured.op_signature[i]].kind is Kind.MATMUL
    ]
    # the last product of a block is not needed again where torch stops early
    assert [n for n in again if n.endswith("up.addmm")] == [f"blocks.{i}.up.addmm" for i in (2, 1, 0)]
    block = captured.modules.index("blocks.1.up")
    mine = (captured.op_module == block) & (captured.op_phase == Phase.BACKWARD)
    assert mine[captured.steady.first_op :].any()


def test_phases_of_clipping_scaling_and_scheduling() -> None:
    def make() -> Any:
        net = Net().cuda()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        scaler = torch.amp.GradScaler("cuda")
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)

        def step() -> None:
            x = torch.randn(BATCH, WIDTH).to("cuda")
            with torch.autocast("cuda", dtype=torch.float16):
                loss = net(x).square().mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
            optimizer.zero_grad()

        return step

    captured = gpuwise.capture(make)
    span = captured.steady
    assert captured.settings.optimizers == ("SGD/foreach",)
    for name in ("_amp_foreach_non_finite_check_and_unscale_", "_foreach_norm", "_amp_update_scale_"):
        assert [Phase(captured.op_phase[i]) for i in ops(captured, name)] == [Phase.OPTIMIZER], name
    assert rows(captured, Phase.FORWARD, Kind.COPY).shape[:, 0].tolist() == [4 * BATCH * WIDTH]
    products = [*rows(captured, Phase.FORWARD, Kind.MATMUL).dtype, *rows(captured, Phase.BACKWARD, Kind.MATMUL).dtype]
    assert products and set(products) == {"fp16"}
    assert (np.diff(captured.op_phase[span.first_op : span.end_op]) >= -3).all()


def test_a_sync_is_flagged_and_found() -> None:
    def make() -> Any:
        net = Net().cuda()

        def step() -> None:
            loss = net(torch.randn(BATCH, WIDTH, device="cuda")).sum()
            loss.backward()
            float(loss.item())
            net.zero_grad()

        return step

    captured = gpuwise.capture(make)
    span = captured.steady
    assert sum(bool(flags & OpFlag.SYNC) for flags in captured.op_flags[span.first_op : span.end_op]) == 1
    found = [f for f in captured.findings if f.kind == "sync"]
    assert len(found) == 1 and found[0].where.startswith("test_recorder.py:") and found[0].count == 1
    assert all(captured.op_flags[i] & OpFlag.MICRO for i in ops(captured, "t"))


def test_two_optimizers_and_two_networks_are_kept_apart() -> None:
    class Other(Net):
        pass

    def make() -> Any:
        first, second = Net().cuda(), Other().cuda()
        optimizers = [torch.optim.Adam(first.parameters()), torch.optim.SGD(second.parameters(), lr=0.1)]

        def step() -> None:
            x = torch.randn(BATCH, WIDTH, device="cuda")
            (first(x).sum() + second(x).mean()).backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()

        return step

    captured = gpuwise.capture(make)
    assert {"Net.head", "Other.head"} <= set(captured.modules)
    assert captured.settings.optimizers == ("Adam/foreach", "SGD/foreach")
    live = captured.bytes_by_category(captured.steady.end_event - 1)
    assert live[Category.OPTIMIZER] == live[Category.PARAMETER]  # two states for one of the two networks


def test_inference_keeps_nothing() -> None:
    captured = gpuwise.capture(Net(), (BATCH, WIDTH), train=False)
    assert set(captured.op_phase[captured.steady.first_op :].tolist()) == {int(Phase.FORWARD)}
    assert Category.ACTIVATION not in captured.storage_category and Category.GRADIENT not in captured.storage_category


@pytest.mark.parametrize(
    ("made", "optimizer"),
    [
        (lambda: Net(), "sgd"),
        (lambda: (Net(), (BATCH, WIDTH)), "adamw"),
        (lambda: (Net(), {"x": torch.randn(BATCH, WIDTH)}, torch.optim.SGD, lambda out: out.square().sum()), None),
        (Net, torch.optim.Adam),
        ((Net(), [torch.randn(BATCH, WIDTH)], "momentum"), None),
    ],
)
def test_what_can_be_captured(made: Any, optimizer: Any) -> None:
    captured = gpuwise.capture(made, (BATCH, WIDTH), optimizer=optimizer)
    assert captured.parameter_count == sum(p.numel() for p in Net().parameters())
    assert captured.flop() > 0 and captured.batch == BATCH


def test_memory_of_what_repeats_is_not_computed_twice_and_gives_the_same() -> None:
    fast, slow = (gpuwise.capture(Net(4), (BATCH, WIDTH), memo=memo) for memo in (True, False))
    for name in ("op_signature", "op_phase", "op_module", "event_storage", "event_sign", "event_op", "storage_bytes"):
        assert np.array_equal(getattr(fast, name), getattr(slow, name)), name
    assert fast.signatures == slow.signatures


# --- what is refused ---


def test_refusals_say_what_to_do() -> None:
    cases: list[tuple[Any, dict[str, Any], str]] = [
        (Net(), {"n_steps": 0}, "n_steps"),
        (Net(), {"batch": 0}, "batch"),
        (Net(), {"device": "tpu"}, "tpu"),
        (Net(), {"rank": 2}, "rank"),
        (3, {}, "int"),
        (lambda: None, {}, "returned nothing"),
        (lambda: 7, {}, "returned an int"),
        (lambda: lambda: None, {}, "nothing ran on cuda"),
        ((Net(),) * 5, {}, "tuple of 5"),
    ]
    for subject, options, words in cases:
        with pytest.raises(InputError, match=words) as caught:
            gpuwise.capture(subject, (BATCH, WIDTH), **options)
        assert caught.value.hint
    with pytest.raises(UnknownNameError, match="adamx"):
        gpuwise.capture(Net(), (BATCH, WIDTH), optimizer="adamx")


def test_an_error_in_the_step_is_the_persons_own_and_leaves_torch_as_it_was() -> None:
    def make() -> Any:
        net = Net().cuda()
        return lambda: net(torch.randn(2, WIDTH + 1, device="cuda"))

    call = nn.Module.__call__
    with pytest.raises(RuntimeError) as caught:
        gpuwise.capture(make)
    files = [f.path.name for f in caught.traceback]
    assert "dispatch.py" not in files and "modules.py" not in files and "recorder.py" not in files
    assert nn.Module.__call__ is call and not torch.cuda.is_available()
    with pytest.raises((AssertionError, RuntimeError)):
        torch.zeros(2, device="cuda")


def test_averages_kept_beside_the_model_are_buffers_and_not_its_parameters() -> None:
    def make() -> Any:
        model = nn.Linear(8, 8).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        average = torch.optim.swa_utils.AveragedModel(model)

        def step() -> None:
            model(torch.randn(4, 8, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            average.update_parameters(model)

        return step

    captured = gpuwise.capture(make)
    assert captured.parameter_count == captured.trainable_count == 72
    held = captured.bytes_by_category(len(captured.event_sign) - 1)
    assert held[Category.PARAMETER] == 72 * 4
    assert held[Category.BUFFER] >= 72 * 4


@pytest.mark.parametrize("graphed", [False, True])
def test_a_replayed_graph_is_its_operations_again_and_one_call_of_the_host(graphed: bool) -> None:
    """PyTorch's recipe for a whole step in a CUDA graph (torch.cuda.CUDAGraph)."""

    def make() -> Any:
        model = Net().cuda()
        optimizer = torch.optim.AdamW(model.parameters(), capturable=True)
        x = torch.randn(BATCH, WIDTH, device="cuda")

        def whole() -> None:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

        if not graphed:
            return whole
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            whole()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            whole()

        def step() -> Any:
            graph.replay()
            return model

        return step

    captured = gpuwise.capture(make)
    assert bool((captured.op_flags[captured.steady.first_op :] & OpFlag.REPLAYED).any()) is graphed
    assert captured.flop() == 6 * BATCH * (4 * WIDTH * HIDDEN + 3 * WIDTH) - 2 * BATCH * WIDTH * HIDDEN
    phases = {Phase(int(p)) for p in captured.op_phase[captured.steady.first_op : captured.steady.end_op]}
    assert phases == {Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER}
    time = gpuwise.fit_step(captured, "H100-SXM").estimate.time
    assert time is not None
    if graphed:
        assert time.host_total_s < 4e-4 and captured.parameter_count == sum(p.numel() for p in Net().parameters())
    else:
        assert time.host_total_s > 5e-4


def test_each_compiled_region_is_entered_once_in_forward_and_backward() -> None:
    def step(layers: bool) -> Any:
        with torch.device("cuda"):
            net, x = Net(3), torch.randn(BATCH, WIDTH)
        call = net
        if layers:
            for block in net.blocks:
                block.compile()
        else:
            call = torch.compile(net)
        return lambda: call(x).sum().backward()

    for layers, regions in ((True, 3), (False, 1)):
        captured = gpuwise.capture(lambda layers=layers: step(layers))
        entered = [i for p in (Phase.FORWARD, Phase.BACKWARD) for i in steady(captured, p) if captured.op_flags[i] & OpFlag.ENTRY]
        assert [int(captured.op_phase[i]) for i in entered] == [int(Phase.FORWARD)] * regions + [int(Phase.BACKWARD)] * regions


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_wrapper_that_is_gone_contains_nothing(wrapped: bool) -> None:
    """As PEFT's adapters are put in: a module that holds the model for a moment."""

    class Wrapper(nn.Module):
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.model = model

    def make() -> Any:
        model = Net().cuda()
        if wrapped:
            Wrapper(model)
        model.blocks[0].requires_grad_(False)
        optimizer = torch.optim.AdamW(p for p in model.parameters() if p.requires_grad)

        def step() -> None:
            model(torch.randn(BATCH, WIDTH, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    capture = gpuwise.capture(make)
    assert capture.parameter_count == sum(p.numel() for p in Net().parameters()) > capture.trainable_count > 0
    assert "blocks.1.up" in capture.modules


def test_saved_tensor_hooks_are_noted_where_torch_cannot_report_them() -> None:
    """Without that, reading what the graph has saved would run every checkpoint again (torch before 2.10)."""
    enter = torch.autograd.graph.saved_tensors_hooks.__enter__
    end = graph.watch_hooks()
    try:
        assert not graph.hooks_seen[0]
        with torch.autograd.graph.save_on_cpu():
            assert graph.hooks_seen[0]
    finally:
        end()
    assert torch.autograd.graph.saved_tensors_hooks.__enter__ is enter


def test_the_default_device_is_forgotten_where_it_was_never_set() -> None:
    gpuwise.capture(Net(), torch.randn(BATCH, WIDTH), device="cpu")
    assert torch.get_default_device().type == "cpu"
    assert getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None) is None
