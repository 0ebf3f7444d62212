"""Loops whose optimizer calls a closure, or that have an optimizer and update their parameters by themselves."""

import pytest

CLOSURE = """
import torch
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 8))
optimizer = torch.optim.{optimizer}
inputs, labels = torch.randn(256, 512), torch.randint(0, 8, (256,))
calls = 0
def closure():
    global calls
    calls += 1
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(inputs), labels)
    loss.backward()
    return loss
for step in range(8):
    last = optimizer.step({given})
print("calls", calls, closure.__name__)
"""


@pytest.mark.parametrize(
    ("optimizer", "given", "passes"),
    [
        ("SGD(model.parameters(), 0.1)", "closure", 1),
        ("SGD(model.parameters(), 0.1)", "closure=closure", 1),
        ("LBFGS(model.parameters(), max_iter=4)", "closure", 4),
    ],
)
def test_what_a_closure_computes_is_not_the_optimizers(run, tmp_path, optimizer, given, passes):
    journal = run(CLOSURE.format(optimizer=optimizer, given=given)).journal
    step = sorted(journal.steps, key=lambda s: s.wall_s)[len(journal.steps) // 2]
    assert len(journal.ticks) == 8
    assert step.n_backward >= passes and step.n_forward == step.n_backward
    assert step.forward_s + step.backward_s + step.optimizer_s <= 1.001 * step.wall_s + 1e-6
    # the quickest of each: a busy machine delays any of them
    own_s, passes_s = min(s.optimizer_s for s in journal.steps), min(s.forward_s + s.backward_s for s in journal.steps)
    assert own_s < passes_s * (1.0 if passes > 1 else 0.5)
    assert (tmp_path / "output").read_text() == f"calls {journal.ticks[-1].n_backward} closure\n"


UNUSED = """
import torch
from torch import nn
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(400):
    model.zero_grad()
    model(torch.randn(4, 8)).sum().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.01 * parameter.grad
"""


def test_an_optimizer_that_never_steps_hides_no_steps(run):
    journal = run(UNUSED).journal
    assert len(journal.steps) > 100
    assert {s.n_backward for s in journal.steps} == {1}
