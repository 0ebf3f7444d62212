"""The lines of a user's own code that make a change: a small diff where the line is known, else what to write where."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import cast

from gpuwise.workload.changes.registry import Change, Site, Sites

TORCH_FORMAT = {"bf16": "torch.bfloat16", "fp16": "torch.float16"}


def snippet(changes: Sequence[Change], sites: Sites, conf: str | None = None) -> tuple[str, ...]:
    """Lines for all of ``changes``; those of a diff begin with ``- `` or ``+ ``, a place with ``@ ``."""
    lines: list[str] = []
    for change in changes:
        lines += _WRITERS[change.kind](change, sites)
    if conf:
        lines.append(f"+ PYTORCH_CUDA_ALLOC_CONF={conf} python ...")
    return tuple(lines)


def _indent(source: str) -> str:
    return source[: len(source) - len(source.lstrip())]


def _diff(site: Site | None, old: str | None, new: Sequence[str], fallback: str) -> list[str]:
    """``old`` (the site's own line) replaced by ``new``; without a site only ``new``, under ``fallback``."""
    if site is None or not site.source.strip():
        return [f"@ {fallback}", *(f"+ {line}" for line in new)]
    margin = _indent(site.source)
    cut = [line.removeprefix(margin) for line in new]
    gone = [] if old is None else [f"- {old.removeprefix(margin)}"]
    return [f"@ {site.where}", *gone, *(f"+ {line}" for line in cut)]


def _forward(sites: Sites) -> Site | None:
    return sites.forward[0] if sites.forward else None


def _model(sites: Sites) -> str:
    site = _forward(sites)
    return site.name if site is not None and site.name else "model"


def _autocast(change: Change, sites: Sites) -> list[str]:
    site, form = _forward(sites), TORCH_FORMAT.get(str(change.argument))
    if form is None:
        return ["@ where autocast is entered", "+ with torch.autocast(..., enabled=False):"]
    source = site.source if site is not None else ""
    margin = _indent(source)
    body = source.strip() or "loss = ..."
    new = [f'{margin}with torch.autocast("cuda", dtype={form}):', f"{margin}    {body}  # and the loss"]
    lines = _diff(site, source or None, new, "around the forward and the loss")
    if change.argument == "fp16":
        lines += ["+ scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update()"]
    return lines


def _tf32(change: Change, sites: Sites) -> list[str]:
    return ["@ before training", '+ torch.set_float32_matmul_precision("high")']


def _accumulate(change: Change, sites: Sites) -> list[str]:
    n = change.argument
    where = sites.step or sites.optimizer
    name = (sites.zero_grad and sites.zero_grad.name) or (where and where.name) or "optimizer"
    return [
        f"@ the step, with a batch of 1/{n}",
        f"+ for micro_batch in batch.chunk({n}):",
        f"+     (loss_of(micro_batch) / {n}).backward()",
        f"+ {name}.step(); {name}.zero_grad()",
    ]


def _checkpoint(change: Change, sites: Sites) -> list[str]:
    names = cast("tuple[str, ...] | None", change.argument)
    if names:
        parts = _compressed(names)
        chosen = parts[0] if len(parts) == 1 else f"[{', '.join(f'*{p}' if p.startswith('[') else p for p in parts)}]"
        chosen = f"[{chosen}]" if not chosen.startswith("[") else chosen
        loop = [f"for name in {chosen}:", f"    block = {_model(sites)}.get_submodule(name)"]
    else:
        lists = sites.blocks or (f"{_model(sites)}.blocks",)
        loop = [f"for block in {lists[0]}:" if len(lists) == 1 else f"for block in [*{', *'.join(lists)}]:"]
    call = "functools.partial(checkpoint, block.forward, use_reentrant=False)"
    return [
        "@ after the model is built",
        "+ import functools",
        "+ from torch.utils.checkpoint import checkpoint",
        *(f"+ {line}" for line in loop),
        f"+     block.forward = {call}",
    ]


def _compressed(names: Sequence[str]) -> list[str]:
    """Python for module paths: ``"head"``, and ``[f"blocks.{i}.mlp" for i in range(3, 7)]`` for those that differ in one
    number that rises by one."""
    groups: dict[tuple[str, str], list[int]] = {}
    order: list[tuple[str, str] | str] = []
    for name in names:
        match = re.fullmatch(r"(.*?)(?<![^.])(\d+)((?:\..*)?)", name)
        if match is None:
            order.append(name)
            continue
        key = (match[1], match[3])
        if key not in groups:
            order.append(key)
        groups.setdefault(key, []).append(int(match[2]))
    made: list[str] = []
    for entry in order:
        if isinstance(entry, str):
            made.append(f'"{entry}"')
            continue
        numbers, (before, after) = sorted(groups[entry]), entry
        run = list(range(numbers[0], numbers[-1] + 1))
        if len(numbers) < 3:
            made += [f'"{before}{i}{after}"' for i in numbers]
        else:
            first = f"{run[0]}, " if run[0] else ""
            over = f"range({first}{run[-1] + 1})" if numbers == run else str(tuple(numbers))
            made.append(f'[f"{before}{{i}}{after}" for i in {over}]')
    return made


def _with_option(site: Site | None, option: str, fallback: str) -> list[str]:
    """``option`` added to the call on the site's line, where that is one whole call."""
    source = site.source if site is not None else ""
    match = re.fullmatch(r"(\s*.*\w\(.*?)(,?\s*)\)(\s*(#.*)?)", source)
    if match is None or source.count("(") != source.count(")"):
        return [f"@ {site.where if site is not None else fallback}", f"+ {option}"]
    inside = "" if match[1].endswith("(") else ", "
    return _diff(site, source, [f"{match[1]}{inside}{option}){match[3]}"], fallback)


def _fused(change: Change, sites: Sites) -> list[str]:
    return _with_option(sites.optimizer, "fused=True", "where the optimizer is made")


def _for_loop(change: Change, sites: Sites) -> list[str]:
    return _with_option(sites.optimizer, "foreach=False", "where the optimizer is made")


def _renamed(sites: Sites, name: str, extra: str = "") -> list[str]:
    """The optimizer's class on its own line replaced by ``name``."""
    site = sites.optimizer
    kinds = "|".join(re.escape(k) for k in dict.fromkeys(sites.optimizers))
    source = site.source if site is not None else ""
    swapped, n = re.subn(rf"[\w.]*\b(?:{kinds})(?=\()", name, source, count=1) if kinds else (source, 0)
    if not n:
        return ["@ where the optimizer is made", f"+ {name}({_model(sites)}.parameters(), lr=...{extra})"]
    if extra and swapped.rstrip().endswith(")"):
        swapped = swapped.rstrip()[:-1] + extra + ")"
    return _diff(site, source, [swapped], "where the optimizer is made")


def _adam8bit(change: Change, sites: Sites) -> list[str]:
    return ["@ pip install bitsandbytes", "+ import bitsandbytes", *_renamed(sites, "bitsandbytes.optim.AdamW8bit")]


def _sgd(change: Change, sites: Sites) -> list[str]:
    return _renamed(sites, "torch.optim.SGD", ", momentum=0.9")


def _named(change: Change, sites: Sites) -> list[str]:
    return _renamed(sites, f"torch.optim.{change.argument}")


def _set_to_none(change: Change, sites: Sites) -> list[str]:
    site = sites.zero_grad
    source = site.source if site is not None else ""
    return _diff(
        site,
        source or None,
        [re.sub(r"zero_grad\(.*?\)", "zero_grad()", source) or "optimizer.zero_grad()"],
        "where gradients are zeroed",
    )


def _zero_after_step(change: Change, sites: Sites) -> list[str]:
    zero, step = sites.zero_grad, sites.step
    name = (step and step.name) or (zero and zero.name) or "optimizer"
    source = step.source if step is not None else ""
    margin = _indent(source)
    lines = _diff(zero, zero.source, [], "where gradients are zeroed") if zero is not None and zero.source.strip() else []
    after = [*([source] if source else []), f"{margin}{name}.zero_grad()"]
    return [*lines, *_diff(step, source or None, after, "after the step")]


def _free_outputs(change: Change, sites: Sites) -> list[str]:
    site = _forward(sites)
    match = re.match(r"\s*([\w.]+)\s*=[^=]", site.source) if site is not None else None
    held = match[1] if match is not None else "output"
    return [
        f"@ at the end of the step; {site.where if site is not None else 'the forward'} makes it",
        f"+ del {held}  # and in lists keep loss.item() or {held}.detach().cpu()",
    ]


def _channels_last(change: Change, sites: Sites) -> list[str]:
    name = _model(sites)
    return [
        "@ after the model is built",
        f"+ {name} = {name}.to(memory_format=torch.channels_last)",
        "+ images = images.to(memory_format=torch.channels_last)",
    ]


def _step_in_backward(change: Change, sites: Sites) -> list[str]:
    kind = sites.optimizers[0] if sites.optimizers else "AdamW"
    return [
        "@ in place of the optimizer; no gradient clipping, no GradScaler",
        f"+ parts = {{p: torch.optim.{kind}([p], lr=lr) for p in {_model(sites)}.parameters()}}",
        "+ def update(p):",
        "+     parts[p].step(); parts[p].zero_grad()",
        "+ for p in parts:",
        "+     p.register_post_accumulate_grad_hook(update)",
        "- optimizer.step(); optimizer.zero_grad()",
    ]


def _offload_states(change: Change, sites: Sites) -> list[str]:
    return [
        "@ after the optimizer is made",
        "+ def move(optimizer, device):",
        "+     for p, state in optimizer.state.items():",
        "+         for name, value in state.items():",
        "+             if torch.is_tensor(value) and value.dim():",
        "+                 state[name] = value.to(device)",
        '+ optimizer.register_step_pre_hook(lambda o, a, k: move(o, "cuda"))',
        '+ optimizer.register_step_post_hook(lambda o, a, k: move(o, "cpu"))',
    ]


def _lora(change: Change, sites: Sites) -> list[str]:
    return [
        "@ before the optimizer is made (pip install peft)",
        f'+ config = peft.LoraConfig(r={change.argument}, target_modules="all-linear")',
        f"+ {_model(sites)} = peft.get_peft_model({_model(sites)}, config)",
    ]


def _low_precision(change: Change, sites: Sites) -> list[str]:
    name = _model(sites)
    form = TORCH_FORMAT[str(change.argument)]
    return ["@ before the optimizer is made", f"+ {name} = {name}.to({form})", f"+ inputs of float type too: x.to({form})"]


def _sdpa(change: Change, sites: Sites) -> list[str]:
    return ["@ where the model is built", '+ attn_implementation="sdpa"  # transformers; timm: timm.layers.set_fused_attn(True)']


def _chunked_loss(change: Change, sites: Sites) -> list[str]:
    head = sites.large_linear or "model.lm_head"
    return [
        "@ in place of the head and its cross entropy (pip install liger-kernel)",
        "+ from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss",
        f"+ loss = LigerFusedLinearCrossEntropyLoss()({head}.weight, hidden.flatten(0, -2), labels.flatten())",
    ]


def _no_benchmark(change: Change, sites: Sites) -> list[str]:
    return ["@ where it is set", "- torch.backends.cudnn.benchmark = True"]


_WRITERS: dict[str, Callable[[Change, Sites], list[str]]] = {
    "autocast": _autocast,
    "tf32": _tf32,
    "accumulate": _accumulate,
    "checkpoint": _checkpoint,
    "fused": _fused,
    "for-loop": _for_loop,
    "adam8bit": _adam8bit,
    "sgd": _sgd,
    "set-to-none": _set_to_none,
    "optimizer": _named,
    "channels-last": _channels_last,
    "step-in-backward": _step_in_backward,
    "offload-states": _offload_states,
    "lora": _lora,
    "low-precision": _low_precision,
    "sdpa": _sdpa,
    "chunked-loss": _chunked_loss,
    "no-benchmark": _no_benchmark,
    "zero-after-step": _zero_after_step,
    "free-outputs": _free_outputs,
}
