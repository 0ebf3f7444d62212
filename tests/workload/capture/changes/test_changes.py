"""Changes made from outside do what the user's own line would: checked on real tensors, where results can be compared."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from gpuwise.errors import InputError  # noqa: E402
from gpuwise.workload.capture.changes.contexts import applied  # noqa: E402
from gpuwise.workload.changes.change import Change, Sites  # noqa: E402

VOCABULARY, WIDTH = 8192, 16


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)

    def forward(self, x: Any) -> Any:
        return x + self.down(torch.relu(self.up(x)))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Any) -> Any:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def run(*changes: Change, make: Callable[[Any], Any] = torch.optim.AdamW, n: int = 3) -> tuple[list[float], Model, Any, Sites]:
    """Losses of ``n`` steps, the model, its optimizer, and what was noticed."""
    with applied(changes) as sites:
        torch.manual_seed(0)
        model = Model()
        optimizer = make(model.parameters())
        losses = []
        for _ in range(n):
            tokens = torch.randint(VOCABULARY, (2, 9))
            optimizer.zero_grad()
            logits = model(tokens)
            loss = nn.functional.cross_entropy(logits[:, :-1].reshape(-1, VOCABULARY).float(), tokens[:, 1:].reshape(-1))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses, model, optimizer, sites


@lru_cache(maxsize=1)
def plain() -> tuple[list[float], Model, Any, Sites]:
    """The same steps without a change."""
    return run()


@pytest.mark.parametrize(
    "change",
    [
        Change("checkpointing"),
        Change("checkpointing", ("blocks.1",)),
        Change("chunked_loss", 4),
        Change("fused_optimizer"),
        Change("fused_optimizer", False),
        Change("step_in_backward"),
        Change("set_to_none"),
        Change("zero_after_step"),
        Change("free_outputs"),
    ],
    ids=lambda c: f"{c.name}-{c.argument}",
)
def test_the_same_training_gives_the_same_losses_and_weights(change: Change) -> None:
    losses, model, *_ = run(change)
    assert losses == pytest.approx(plain()[0], rel=1e-5)
    for mine, theirs in zip(model.parameters(), plain()[1].parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_torch_is_as_before_afterwards() -> None:
    before = (
        nn.Module.__init__,
        torch.optim.Optimizer.__init__,
        torch.optim.Optimizer.zero_grad,
        torch.autograd.backward,
        torch.backends.cuda.matmul.allow_tf32,
        torch.backends.cudnn.benchmark,
    )
    run(Change("tf32"), Change("cudnn_benchmark", False), Change("set_to_none"), Change("autocast", "fp32"))
    with pytest.raises(ZeroDivisionError), applied([Change("tf32"), Change("micro_batches", 2)]):
        raise ZeroDivisionError
    after = (
        nn.Module.__init__,
        torch.optim.Optimizer.__init__,
        torch.optim.Optimizer.zero_grad,
        torch.autograd.backward,
        torch.backends.cuda.matmul.allow_tf32,
        torch.backends.cudnn.benchmark,
    )
    assert before == after
    assert not nn.modules.module._global_forward_pre_hooks and not nn.modules.module._global_forward_hooks


def test_a_checkpointed_block_keeps_only_its_input() -> None:
    def kept(*changes: Change) -> int:
        saved: list[Any] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
            run(*changes, n=1)
        return len(saved)

    # of each block the inputs of both linear layers and the relu's are kept, without checkpoints
    assert kept() - kept(Change("checkpointing")) >= 3 * 2


def test_chunks_never_hold_all_logits() -> None:
    largest = 0

    class Largest(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor) and out.shape[-1:] == (VOCABULARY,) and out.shape[0] != WIDTH and out.dim() > 1:
                largest = max(largest, out.numel() // VOCABULARY)
            return out

    def rows(*changes: Change) -> int:
        nonlocal largest
        largest = 0
        with Largest():
            run(*changes, n=1)
        return largest

    # but for the head's weight on its side, [16, 8192], only logits are as wide as the vocabulary
    assert rows() == 18 and rows(Change("chunked_loss", 4)) == 4


def test_logits_that_are_looked_at_are_computed() -> None:
    with applied([Change("chunked_loss", 2)]):
        model = Model()
        logits = model(torch.zeros(2, 3, dtype=torch.int64))
        assert logits.shape == (2, 3, VOCABULARY) and logits.argmax(-1).shape == (2, 3)
        (logits.softmax(-1).sum() + (logits * 2).mean()).backward()
    assert model.head.weight.grad is not None


def test_adapters_alone_are_trained() -> None:
    losses, model, optimizer, sites = run(Change("lora", 4))
    trained = {n for n, p in model.named_parameters() if p.requires_grad}
    assert trained == {n for n, _ in model.named_parameters() if "adapter" in n} and len(trained) == 14
    assert sites.touched == 7
    assert sum(p.numel() for g in optimizer.param_groups for p in g["params"]) == sum(
        p.numel() for n, p in model.named_parameters() if n in trained
    )
    assert losses[0] == pytest.approx(plain()[0][0], rel=1e-6)  # the second factor starts at zero


def test_adapters_are_put_on_the_modules_named() -> None:
    _, model, _, sites = run(Change("lora", (4, ("head",))))
    assert {n for n, p in model.named_parameters() if p.requires_grad} == {"head.adapter_down", "head.adapter_up"}
    assert sites.touched == 1
    with pytest.raises(InputError, match="no linear layer is called q_proj"):
        run(Change("lora", (4, ("q_proj",))))


def test_states_in_eight_bits() -> None:
    _, model, optimizer, _ = run(Change("optimizer", "adamw8bit"))
    held = sum(v.numel() * v.element_size() for s in optimizer.state.values() for v in s.values())
    numbers = sum(p.numel() for p in model.parameters())
    assert 2.0 * numbers <= held < 2.3 * numbers
    momentum = run(Change("optimizer", "momentum"))[2]
    assert type(momentum) is torch.optim.SGD
    assert all(list(s) == ["momentum_buffer"] for s in momentum.state.values())


def test_a_gradient_lives_no_longer_than_its_step() -> None:
    _, model, _, sites = run(Change("step_in_backward"))
    assert all(p.grad is None for p in model.parameters()) and sites.touched == len(list(model.parameters()))


def test_accumulation_keeps_gradients() -> None:
    model = run(Change("micro_batches", 2), n=1)[1]
    grads = [p.grad for p in model.parameters()]
    again = run(Change("micro_batches", 2), n=2)[1]
    assert all(g is not None for g in grads)
    assert float(next(again.head.parameters()).grad.abs().sum()) > float(grads[-1].abs().sum())


def test_weights_in_sixteen_bits() -> None:
    _, model, optimizer, _ = run(Change("low_precision", "bf16"))
    assert all(p.dtype == torch.bfloat16 for p in model.parameters())
    assert all(s["exp_avg"].dtype == torch.bfloat16 for s in optimizer.state.values())


def test_where_things_are_done() -> None:
    sites = plain()[3]
    assert sites.optimizer is not None and "make(model.parameters())" in sites.optimizer.source
    assert sites.forward[0].name == "model" and sites.forward[0].where.startswith("test_changes.py:")
    assert sites.backward is not None and "backward" in sites.backward.source
    assert sites.blocks == ("model.blocks",) and sites.large_linear == "model.head"
    assert (sites.n_linear, sites.n_conv, sites.optimizers) == (7, 0, ("AdamW",))


def test_outputs_kept_by_a_list_are_emptied_when_the_next_step_begins() -> None:
    kept: list[Any] = []
    with applied([Change("free_outputs")]) as sites:
        model = Model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            for _ in range(2):  # two micro-batches: the first one's output is not yet of the last step
                kept.append(model(torch.randint(VOCABULARY, (2, 9))))
                kept[-1].mean().backward()
            assert kept[-2].numel() == kept[-1].numel() == 2 * 9 * VOCABULARY
            optimizer.step()
    assert [t.numel() for t in kept[:4]] == [0] * 4 and sites.touched == 4


def test_gradients_are_gone_after_the_step_and_where_it_is_called_is_known() -> None:
    with applied([Change("zero_after_step")]) as sites:
        model = Model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.randint(VOCABULARY, (2, 9))).mean().backward()
        optimizer.step()
        assert all(p.grad is None for p in model.parameters())
    assert sites.step is not None and sites.step.source.strip() == "optimizer.step()" and sites.step.name == "optimizer"
