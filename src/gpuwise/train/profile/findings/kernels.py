"""Findings about kernels: unfused optimizers, chains of elementwise operations, slow attention."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from gpuwise.train.profile.families import ELEMENTWISE, family
from gpuwise.train.profile.finding import Evidence, Finding
from gpuwise.train.profile.findings.side_work import loop_over_parameters
from gpuwise.train.profile.operations import OP_CATEGORIES
from gpuwise.train.profile.profile_data import BUSY_ENOUGH, ProfileData
from gpuwise.train.profile.spans import inside, length, spans
from gpuwise.train.profile.split import OPTIMIZER
from gpuwise.train.profile.trace import Ints
from gpuwise.train.profile.trace_ops import op_seconds

FUSED = ("Adam", "AdamW", "SGD", "Adagrad")
"""Optimizers with a fused form, on processors too (torch/optim: _single_tensor and _fused functions, PyTorch 2.13)."""
PASSES = {"Adam": 7.0, "AdamW": 7.0, "SGD": 3.0, "Adagrad": 5.0}
"""fp32 values read and written for each parameter by the fused form: parameter, gradient and states, once each."""
SLOW_STREAM_BYTES_PER_S = 5e9
"""Default of a processor core: less than any core of the catalogue. Rule of this project."""
CALL_S = 5e-6
"""A fused call on a processor, for each tensor. Rule of this project."""
OPS_A_TENSOR = 3.0
"""More operations a tensor than the fused form's one: the single-tensor form has 4 to 12."""
AUTOGRAD = "autograd::engine::evaluate_function: "
CHAIN = 2.5
"""Elementwise operations that follow one another, on average, from which a compiler makes one."""
BACKWARD = re.compile(r"(Bmm|Baddbmm|SafeSoftmax|Softmax|NativeDropout|MaskedFill)Backward\d")
"""Autograd's names for the backward of attention by its formula."""
FLASH_SAVES = 0.5
"""Minimum share of attention's time saved: 2 to 4 times faster (Dao et al., arXiv 2205.14135, table of attention runtimes)."""
COPIES_KEPT = 2.0
"""Bytes moved by the whole fused chain, relative to the three tensors that one elementwise operation moves."""


def unfused_optimizer(data: ProfileData) -> Finding | None:
    """An optimizer that updates each tensor with several small kernels."""
    within = data.annotated("Optimizer.step#")
    if data.trace is None:
        return None
    if not len(within):
        return _foreach_optimizer(data)
    ops = data.host_ops
    steps = ops[inside(data.trace.start_s[ops], within)]
    names = [data.trace.text(r) for r in steps.tolist()]
    if any("_fused_" in n for n in names):
        return None
    foreach = sum("_foreach_" in n for n in names)
    updates = [n for n in names if family("op", n) == ELEMENTWISE]
    optimizers = [{**o, "name": o.get("name") or _kind(data)} for o in (data.facts.optimizers if data.facts is not None else ())]
    described: list[Mapping[str, Any]] = [o for o in optimizers or [{"name": _kind(data)}] if o["name"] in FUSED]
    tensors = sum(float(o.get("n_tensors") or 0) for o in described) or None
    a_step = len(updates) / data.n_steps
    if not described or foreach or a_step < OPS_A_TENSOR * (tensors or 3.0):
        return None
    spent = data.part(OPTIMIZER)
    if data.on_gpu:
        # the host's launch time, if the device waits for it
        spent = max(spent, length(within) / data.n_steps if data.split.busy_share < BUSY_ENOUGH else 0.0)
        least = spent / OPS_A_TENSOR
    else:
        moved = sum(4.0 * PASSES[o["name"]] * float(o.get("n_parameters") or 0.0) for o in described)
        least = moved / SLOW_STREAM_BYTES_PER_S + CALL_S * (tensors or 0.0)
    kind = described[0]["name"]
    evidence = Evidence(
        f"{kind}.step: {a_step:.0f} operations" + (f" for {tensors:.0f} tensors" if tensors else ""), seconds=spent
    )
    return Finding(
        "unfused optimizer",
        "The optimizer updates tensor by tensor",
        max(spent - least, 0.0),
        "medium",
        (evidence,),
        (f"torch.optim.{kind}(model.parameters(), ..., fused=True)",),
    )


def _lists(data: ProfileData) -> Ints:
    """Rows of elementwise operations on lists of tensors, other than in torch's optimizers: a library's own updates."""
    assert data.trace is not None
    rows = data.rows(OP_CATEGORIES, lambda n: n.startswith("aten::_foreach_") and family("op", n) == ELEMENTWISE)
    return rows[~inside(data.trace.start_s[rows], data.annotated("Optimizer."))]


def _foreach_optimizer(data: ProfileData) -> Finding | None:
    """An optimizer that is not torch's and passes over the list of all parameters several times, as Keras' does."""
    rows = _lists(data)
    passes = len(rows) / data.n_steps
    if passes < OPS_A_TENSOR:
        return None
    spent = data.seconds_within(data.spans_of(rows))
    return Finding(
        "unfused optimizer",
        "The optimizer passes over all parameters again and again",
        spent * max(1.0 - PASSES["Adam"] / (3.0 * passes), 0.0),
        "medium",
        (Evidence("operations on lists of tensors, in no optimizer of torch's", count=passes, seconds=spent),),
        ("torch.optim.Adam(model.parameters(), ..., fused=True)  # one pass, in a loop of your own",),
    )


def _kind(data: ProfileData) -> str:
    rows = data.rows(("user_annotation", *OP_CATEGORIES), lambda n: n.startswith("Optimizer.step#"))
    if data.trace is None or not len(rows):
        return ""
    return data.trace.text(int(rows[0])).removeprefix("Optimizer.step#").split(".")[0]


def zeroed_gradients(data: ProfileData) -> Finding | None:
    """Gradients filled with zeros and accumulated into, instead of being set to None."""
    within = data.annotated("Optimizer.zero_grad#")
    if data.trace is None or not len(within):
        return None
    ops = data.rows(OP_CATEGORIES, lambda n: n in ("aten::zero_", "aten::_foreach_zero_"))
    rows = ops[inside(data.trace.start_s[ops], within)]
    if not len(rows):
        return None
    added = data.rows(OP_CATEGORIES, lambda n: n == "torch::autograd::AccumulateGrad")
    adding = data.seconds(added) * data.factor if not data.on_gpu else 0.0
    spent = length(within) / data.n_steps * data.factor
    # accumulation adds into what is there in all but the first micro-batch
    adding /= max(data.n_backward, 1.0)
    first = int(rows[0])
    return Finding(
        "gradients zeroed",
        "Gradients are filled with zeros and added to",
        spent + adding,
        "medium",
        (
            Evidence(data.trace.text(first), data.where(float(data.trace.start_s[first])), len(rows) / data.n_steps, spent),
            *((Evidence("the backward pass adds to them", seconds=adding),) if adding else ()),
        ),
        ("optimizer.zero_grad(set_to_none=True)  # the default",),
    )


def pointwise_chains(data: ProfileData) -> Finding | None:
    """Chains of elementwise operations, each of which reads and writes memory."""
    spent = data.part(ELEMENTWISE)
    if data.trace is None or data.ops is None:
        return None
    # another finding reports what is compiled already
    if data.rows(OP_CATEGORIES, lambda n: "CompiledF" in n).size or "compiled kernels" in data.split.families:
        return None
    optimizer = data.annotated("Optimizer.")
    ops = data.ops
    # a loop over the parameters is a separate finding
    looped = {r for rows in loop_over_parameters(data).values() for r in rows if family("op", data.trace.text(r)) == ELEMENTWISE}
    looped |= set(_lists(data).tolist())
    outer = [at for at in range(len(ops.rows)) if ops.families[at] == ELEMENTWISE and _is_head(data, at)]
    starts = data.trace.start_s[ops.rows]
    looped |= _in_loop(data, ops.rows[outer], looped)
    spent -= data.seconds_within(data.spans_of(np.array(sorted(looped), np.int64)))
    outer = [at for at in outer if int(ops.rows[at]) not in looped]
    free = ~inside(starts, optimizer)
    heads = np.array([a for a in outer if free[a]], np.int64)
    seconds = op_seconds(data, data.trace, ops.rows[heads])
    lengths, within, before = list[int](), list[float](), -2
    for at, long_s in zip(heads.tolist(), seconds.tolist(), strict=True):
        if _follows(data, before, at):
            lengths[-1] += 1
            within[-1] += long_s
        else:
            lengths.append(1)
            within.append(long_s)
        before = at
    whole_s = sum(within)
    if whole_s <= 0:
        return None
    # by time: many short calls on few numbers do not matter beside one long one
    mean = sum(n * s for n, s in zip(lengths, within, strict=True)) / whole_s
    if mean < CHAIN:
        return None
    spared = sum(s * (1 - COPIES_KEPT / (3 * n)) for n, s in zip(lengths, within, strict=True) if n > 1)
    saved = max(spent, 0.0) * spared / whole_s
    longest = max(lengths)
    words = f"elementwise operations in chains of {mean:.1f} on average, {longest} at most"
    evidence = Evidence(words, count=sum(lengths) / data.n_steps, seconds=spent)
    return Finding(
        "pointwise chains",
        "Elementwise operations pass over memory one after the other",
        saved,
        "medium",
        (evidence,),
        (data.compile_mend("one kernel for each chain"),),
        note="the first steps compile for a minute or so: it pays in a run of some thousand steps",
    )


def _in_loop(data: ProfileData, rows: Ints, looped: set[int]) -> set[int]:
    """Rows between two of a loop over the parameters, without a pass of a model between these."""
    if data.trace is None or data.passes is None or not looped:
        return set()
    starts = data.trace.start_s
    turns = np.sort(starts[sorted(looped)])
    marks = starts[data.passes.roots]
    after = np.searchsorted(turns, starts[rows])
    inner = (after > 0) & (after < len(turns))
    passed = np.searchsorted(marks, turns)
    alone = passed[np.maximum(after - 1, 0)] == passed[np.minimum(after, len(turns) - 1)]
    return set(rows[inner & alone].tolist())


def _is_head(data: ProfileData, at: int) -> bool:
    """The outermost elementwise one of nested operations."""
    assert data.ops is not None
    parent = int(data.ops.parent[at])
    return parent < 0 or data.ops.families[parent] != ELEMENTWISE


def _follows(data: ProfileData, before: int, at: int) -> bool:
    """Whether there is only elementwise work, views and single numbers between the two, on the same number of elements."""
    assert data.trace is not None and data.ops is not None
    if before < 0:
        return False
    ops, end_s = data.ops, float(data.trace.end_s[data.ops.rows[before]])
    for i in range(before + 1, at):
        if ops.families[i] in (ELEMENTWISE, "other operations"):
            continue
        # inputs made for the first (dropout's random numbers) belong to it; a number is converted before a comparison
        if float(data.trace.start_s[ops.rows[i]]) >= end_s and _elements(data, int(ops.rows[i])) > 1:
            return False
    return _elements(data, int(ops.rows[before])) == _elements(data, int(ops.rows[at])) != 1


def _elements(data: ProfileData, row: int) -> int:
    """Elements of its result if its inputs are broadcast to one shape; else of the largest input."""
    assert data.trace is not None
    shapes = [s for s in data.trace.inputs(row).shapes if s]
    try:
        return math.prod(np.broadcast_shapes(*shapes))
    except ValueError:
        return max(math.prod(s) for s in shapes)


def slow_attention(data: ProfileData) -> Finding | None:
    """Attention that writes its score matrix to memory."""
    if data.trace is None or (data.on_gpu and data.capability is None):
        return None
    fallen_back = data.rows(OP_CATEGORIES, lambda n: n == "aten::_scaled_dot_product_attention_math")
    by_hand = _by_hand(data)
    if not len(fallen_back) and not len(by_hand):
        return None
    trace = data.trace
    rows, last = (fallen_back, fallen_back) if len(fallen_back) else (by_hand[:, 0], by_hand[:, 1])
    forward_s = data.seconds_within(spans(trace.start_s[rows], trace.end_s[last]))
    first = int(rows[0])
    # two products for each of the forward pass; its dropout and softmax are cheaper on the way back
    whole = min(forward_s + min(_backward_s(data), 2 * forward_s), data.part("compute"))
    name = "scaled_dot_product_attention, by its formula" if len(fallen_back) else "products around a softmax"
    return Finding(
        "attention not flash",
        "Attention writes all its scores to memory",
        whole * FLASH_SAVES,
        "low",
        (Evidence(f"{name}, with its backward pass", data.where(float(trace.start_s[first])), len(rows) / data.n_steps, whole),),
        _fused_call(data, fallen_back) if len(fallen_back) else _call(data, by_hand),
    )


def _backward_s(data: ProfileData) -> float:
    """Seconds per step of the backward of attention by its formula; infinite if the trace lacks autograd's names."""
    rows = data.rows(OP_CATEGORIES, lambda n: n.startswith(AUTOGRAD))
    if not len(rows):
        return math.inf
    spans_of = data.rows(OP_CATEGORIES, lambda n: n.startswith(AUTOGRAD) and BACKWARD.search(n))
    return data.seconds_within(data.spans_of(spans_of))


def _fused_call(data: ProfileData, fallen_back: Ints) -> tuple[str, ...]:
    """Reason why a call of the fused function does not use a fused kernel (torch/nn/functional, scaled_dot_product_attention)."""
    assert data.trace is not None
    inner = data.rows(OP_CATEGORIES, lambda n: "dropout" in n or "bernoulli" in n)
    within = spans(data.trace.start_s[fallen_back], data.trace.end_s[fallen_back])
    lines = ["# the fused kernels take no score matrix: no attn_mask that needs a gradient, heads of equal numbers"]
    if not data.on_gpu and len(inner) and bool(inside(data.trace.start_s[inner], within).any()):
        return ("scaled_dot_product_attention(q, k, v, ..., dropout_p=0.0)  # with dropout a processor has no fused kernel",)
    if data.on_gpu:
        lines.insert(0, "q, k, v = (t.to(torch.bfloat16) for t in (q, k, v))  # fp32 has no flash kernel")
    return tuple(lines)


def _call(data: ProfileData, by_hand: Ints) -> tuple[str, ...]:
    """The fused function to use instead of the formula; causal only if the mask has positions by positions, for any batch."""
    assert data.trace is not None
    trace = data.trace
    within = spans(trace.end_s[by_hand[:, 0]], trace.start_s[by_hand[:, 1]])
    rows = data.rows(OP_CATEGORIES, lambda n: n in ("aten::masked_fill", "aten::masked_fill_", "aten::add", "aten::add_"))
    rows = rows[inside(trace.start_s[rows], within)]
    masks = {trace.inputs(r).shapes[1] for r in rows.tolist() if len(trace.inputs(r).shapes) > 1 and trace.inputs(r).shapes[1]}
    square = [m for m in masks if len(m) >= 2 and m[-1] == m[-2] > 1 and all(n == 1 for n in m[:-2])]
    mask = ", is_causal=True" if square else ", attn_mask=mask" if masks else ""
    half = "  # in torch.bfloat16" if data.on_gpu else ""
    return (f"torch.nn.functional.scaled_dot_product_attention(q, k, v{mask}){half}",)


def _by_hand(data: ProfileData) -> Ints:
    """[n, 2] rows of the batched products around a softmax."""
    assert data.trace is not None
    trace = data.trace
    wanted = ("aten::bmm", "aten::softmax", "aten::_softmax", "aten::baddbmm")
    rows = data.rows(OP_CATEGORIES, lambda n: n in wanted)
    names = [trace.text(r) for r in rows.tolist()]
    plain = [(r, n) for r, n in zip(rows.tolist(), names, strict=True) if n != "aten::_softmax"]
    lines = [
        (plain[i - 1][0], plain[i + 1][0])
        for i in range(1, len(plain) - 1)
        if plain[i][1] == "aten::softmax" and "bmm" in plain[i - 1][1] and "bmm" in plain[i + 1][1]
    ]
    return np.array(lines, np.int64).reshape(-1, 2)
