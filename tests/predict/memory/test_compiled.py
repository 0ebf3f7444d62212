"""What torch.compile leaves of a step's memory."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from gpuwise.facts.hardware.naming import find_accelerator  # noqa: E402
from gpuwise.predict.memory.capture import captured_memory  # noqa: E402
from gpuwise.predict.memory.compiled import compiled_capture  # noqa: E402
from gpuwise.units import MIB  # noqa: E402
from gpuwise.workload.capture.captured import Capture, Category  # noqa: E402

CARD = find_accelerator("A100-SXM-80GB")
ROWS, WIDTH, CLASSES = 4096, 1024, 16384


class Chain(torch.nn.Module):
    """A product, a chain of pointwise operations, a product."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = (torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))

    def forward(self, x: Any) -> Any:
        h = self.up(x)
        return self.down(torch.tanh(h) * torch.sigmoid(h) + torch.cos(h))


class Classifier(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = torch.nn.Linear(WIDTH, CLASSES, bias=False)

    def forward(self, x: Any) -> Any:
        return torch.nn.functional.cross_entropy(self.head(x).float(), torch.zeros(ROWS, dtype=torch.long, device=x.device))


def step_of(network: type[Any]) -> Capture:
    import gpuwise

    def build() -> Any:
        module = network().to("cuda", torch.bfloat16)
        return module, {"x": torch.randn(ROWS, WIDTH, device="cuda", dtype=torch.bfloat16)}, "sgd", lambda y: y.float().mean()

    return gpuwise.capture(build)


def kept_bytes(capture: Capture) -> int:
    """Saved activations at the peak of the steady step."""
    return max(
        capture.bytes_by_category(event).get(Category.ACTIVATION, 0)
        for event in range(capture.steady.first_event, capture.steady.end_event)
    )


def test_of_a_chain_only_what_products_read_is_kept() -> None:
    eager = step_of(Chain)
    compiled = compiled_capture(eager, everything=True)
    one = 2 * ROWS * WIDTH
    # tanh, sigmoid, the product's factors and the second product's input; then the first product's result and that input
    assert kept_bytes(eager) >= 4 * one
    assert kept_bytes(compiled) == 2 * one


def test_a_loss_over_many_classes_holds_the_logits_and_their_gradient() -> None:
    eager, compiled = (captured_memory(step_of(Classifier), CARD, compiled=c) for c in (False, True))
    logits = 2 * ROWS * CLASSES
    fixed = 2 * 2 * WIDTH * CLASSES + 2 * ROWS * WIDTH  # weight, its gradient, the input
    assert eager.allocated.expected > 3 * 2 * logits
    assert 2 * logits < compiled.allocated.expected < 2 * logits + fixed + 40 * MIB
    assert compiled.reserved.expected < eager.reserved.expected


def test_every_storage_is_still_made_before_it_is_freed() -> None:
    for network in (Chain, Classifier):
        compiled = compiled_capture(step_of(network), everything=True)
        assert (compiled.live_bytes() >= 0).all()
        for span in compiled.steps:
            assert span.first_event <= span.end_event <= len(compiled.event_op)
        assert (compiled.event_op[1:] >= compiled.event_op[:-1]).all()


def test_parameters_gradients_and_states_stay() -> None:
    eager = step_of(Chain)
    compiled = compiled_capture(eager, everything=True)
    last = [c.bytes_by_category(len(c.event_op) - 1) for c in (eager, compiled)]
    assert last[0] == last[1]
    assert captured_memory(eager, CARD, compiled=False).capture is eager


def test_a_step_that_compiles_nothing_is_replayed_as_it_is() -> None:
    eager = step_of(Chain)
    assert captured_memory(eager, CARD).capture is eager
