"""Steps of the zoo as benchmark scripts run them: fp32 copies of fp16 weights, experts that all tokens share."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

from gpuwise.workload.capture.api import capture
from gpuwise.workload.capture.captured import OpFlag
from gpuwise.workload.row_codes import Phase
from studies.networks import support as zoo_support


def _network() -> zoo_support.Network:
    with torch.device("cuda"):
        module = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.BatchNorm1d(64))
    return zoo_support.Network(
        module, lambda batch: (torch.randn(batch, 64, device="cuda"),), lambda out, batch: out.float().mean()
    )


def test_masters_are_updated_in_fp32_and_weights_stay_half() -> None:
    how = zoo_support.Conditions(training=True, precision="fp16_master", optimizer="adam", fused=True)
    made = capture(lambda: zoo_support.step_of(_network(), 8, how), n_steps=2, batch=8)
    span = made.steady
    ops = range(span.first_op, span.end_op)
    used = [(made.signatures[int(made.op_signature[i])], int(made.op_phase[i])) for i in ops]
    products = [s for s, _ in used if s.flop > 0]
    assert products and all(t.dtype == "fp16" for s in products for t in s.inputs)
    updates = [s for s, phase in used if "_fused_adam" in s.op]
    assert updates and all(t.dtype == "fp32" for s in updates for t in s.inputs if t.shape == (64, 64))
    copies = [s for s, phase in used if "_foreach_copy" in s.op and phase != Phase.BACKWARD]
    assert {t.dtype for s in copies for t in s.inputs} == {"fp16", "fp32"}
    assert any("batch_norm" in s.op and s.inputs[1].dtype == "fp32" for s, _ in used)


def test_the_loop_of_berts_optimizer_waits_once_and_launches_for_every_parameter() -> None:
    how = zoo_support.Conditions(training=True, optimizer="bert-adam")
    made = capture(lambda: zoo_support.step_of(_network(), 8, how), n_steps=2, batch=8)
    span = made.steady
    ops = [i for i in range(span.first_op, span.end_op) if made.op_phase[i] == Phase.OPTIMIZER]
    names = [made.signatures[int(made.op_signature[i])].op for i in ops]
    parameters = 4  # weight and bias of the linear layer and of the norm
    assert sum("addcmul_" in name for name in names) == parameters
    assert sum(bool(made.op_flags[i] & OpFlag.SYNC) for i in ops) == 1
    assert sum(made.signatures[int(made.op_signature[i])].n_kernels for i in ops) >= 14 * parameters


def test_one_expert_takes_its_capacity_and_the_others_nothing() -> None:
    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.experts = torch.nn.ModuleList(torch.nn.Linear(8, 8, bias=False) for _ in range(4))

        def router(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
            return torch.zeros(*hidden.shape[:2], 4), torch.full((*hidden.shape[:2], 1), 2.0), None

    layer = Layer()
    hidden = torch.randn(2, 6, 8)
    with torch.no_grad():
        out = zoo_support._OneExpert(layer, 3)(hidden)
        served = layer.experts[0](hidden[:, :3])
    torch.testing.assert_close(out[:, :3], 2.0 * served)
    torch.testing.assert_close(out[:, 3:], 2.0 * hidden[:, 3:])
