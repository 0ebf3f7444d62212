"""How each change is written into a person's code: edits of the script, or a sketch of what to write where."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from gpuwise.workload.adapters import DEFAULT_TARGETS, module_names
from gpuwise.workload.changes.change import Site
from gpuwise.workload.changes.script import EVERY_OPTIMIZER, FUSED_OPTIMIZERS, Arguments, Code, Edit, Script, is_unclear
from gpuwise.workload.changes.strategy import rank_and_targets

TORCH_FORMAT = {"bf16": "torch.bfloat16", "fp16": "torch.float16"}
BACKEND = {"cudnn": "CUDNN_ATTENTION", "flash": "FLASH_ATTENTION", "efficient": "EFFICIENT_ATTENTION"}
"""Kernels of scaled dot-product attention by torch's names."""
STEP = "    "
"""Indentation of a line inside a block."""


@dataclass(frozen=True, slots=True)
class Written:
    """``edits`` of the script, and a ``sketch`` of what they leave to the person; neither where nothing can be written."""

    edits: tuple[Edit | Arguments, ...] = ()
    sketch: tuple[str, ...] = ()
    is_complete: bool = True
    """Whether the edits alone make the change."""


Writer = Callable[[Code, Any], Written]


def _sketch(site: Site | None, place: str, *lines: str) -> Written:
    """Lines under the site, or under words for where they go."""
    return Written(sketch=(f"@ {site.where if site is not None else place}", *lines))


# --- arguments of calls ---


def _with_arguments(
    code: Code, site: Site | None, names: Sequence[str], place: str, arguments: dict[str, object], called: str
) -> Written:
    """Into every call of ``names``; ``called`` stands for a call that cannot be seen."""
    script, calls = code.calls(site, names)
    if script is None or not calls or any(is_unclear(call) for call in calls):
        text = ", ".join(f"{k}={v!r}" for k, v in arguments.items())
        return _sketch(site, place, f"+ {text}" if site is not None else f"+ {called}(..., {text})")
    return Written(tuple(Arguments(script, call, arguments) for call in calls))


def _loader(**argument_kinds: str) -> Writer:
    """``wanted``: argument names; the value is the change's own or True."""

    def write(code: Code, value: Any) -> Written:
        arguments: dict[str, object] = {
            name: value if what == "value" else True for name, what in argument_kinds.items() if value or what == "value"
        }
        return _with_arguments(code, None, ("DataLoader",), "where the loader is made", arguments, "DataLoader")

    return write


MAKER = "where the optimizer is made"


def _fused_optimizer(code: Code, fused: Any) -> Written:
    site = code.sites.optimizer
    arguments: dict[str, object] = {"foreach": False} if fused is False else {"fused": True}
    called = _optimizer_class(code)
    return _with_arguments(code, site, (*FUSED_OPTIMIZERS, *code.sites.optimizers), MAKER, arguments, called)


def _set_to_none(code: Code, _: Any) -> Written:
    site = code.sites.zero_grad
    script, calls = code.calls(site, ("zero_grad",))
    if script is None or not calls or any(call.args or is_unclear(call) for call in calls):
        return _sketch(site, "where gradients are zeroed", "+ optimizer.zero_grad(set_to_none=True)")
    return Written(tuple(Arguments(script, call, {"set_to_none": True}) for call in calls))


# --- settings of one line ---


def _setting(line: str) -> Writer:
    def write(code: Code, value: Any) -> Written:
        text = line.format(value=value)
        script = code.near(code.sites.optimizer or (code.sites.forward[0] if code.sites.forward else None))
        at = script.after_imports() if script is not None and script.is_whole and script.imports_torch else None
        if script is None or at is None:
            return _sketch(None, "before training", f"+ {text}")
        return Written((Edit(script, script.row(at), script.row(at), text + "\n"),))

    return write


def _cudnn_benchmark(code: Code, on: Any) -> Written:
    line = "torch.backends.cudnn.benchmark = True"
    if on is not False:
        return _setting(line)(code, on)
    script = code.near(code.sites.forward[0] if code.sites.forward else None)
    for body in script.bodies() if script is not None and script.is_whole else ():
        for node in body:
            if script is not None and isinstance(node, ast.Assign) and ast.unparse(node) == line:
                return Written((Edit(script, script.start_of(node.value), script.end_of(node.value), "False"),))
    return _sketch(None, "where it is set", f"- {line}")


def _allocator(code: Code, conf: Any) -> Written:
    return _sketch(None, "where it is started", f"+ PYTORCH_CUDA_ALLOC_CONF={conf} python ...")


# --- lines on the model ---


def _imports(script: Script, *lines: str) -> tuple[list[Edit], tuple[str, ...]]:
    """Edits that put import lines after the others, or a sketch of them where the file's head is not seen."""
    at = script.after_imports() if script.is_whole else None
    if at is None:
        return [], ("@ with the imports", *(f"+ {line}" for line in lines))
    missing = [line + "\n" for line in lines if line not in script.source]
    return [Edit(script, script.row(at), script.row(at), "".join(missing))] if missing else [], ()


def _model_lines(code: Code, lines: Sequence[str], place: str, imports: Sequence[str] = (), extra: Sequence[str] = ()) -> Written:
    """``lines`` (``{model}`` is its name) behind the optimizer that takes the model's parameters; ``extra`` is for the
    person in any case."""
    learner = code.learner()
    if learner is None or not learner[0].imports_torch:
        code_lines = [line.format(model=code.sites.model) for line in lines]
        return Written(sketch=(f"@ {place}", *(f"+ {line}" for line in (*imports, *code_lines)), *extra))
    script, node, model = learner
    last = node.end_lineno or node.lineno
    indent = script.indent(node.lineno)
    text = "".join(f"{indent}{line.format(model=model)}\n" for line in lines)
    edits, sketch = _imports(script, *imports) if imports else ([], ())
    return Written((*edits, Edit(script, script.row(last + 1), script.row(last + 1), text)), (*sketch, *extra))


def _compile(code: Code, how: Any) -> Written:
    place = "after the model is built"
    if how == "regional":
        if not code.sites.has_blocks:
            return _sketch(None, place, "+ for block in model.blocks:  # its repeated blocks", f"+ {STEP}block.compile()")
        return _model_lines(code, (f"for block in {_blocks(code)}:", f"{STEP}block.compile()"), place)
    mode = f'mode="{how}"' if how == "reduce-overhead" else ""
    return _model_lines(code, (f"{{model}}.compile({mode})",), place)


def _channels_last(code: Code, _: Any) -> Written:
    images = () if code.script is not None else ("@ and the images: images.to(memory_format=torch.channels_last)",)
    return _model_lines(code, ("{model}.to(memory_format=torch.channels_last)",), "after the model is built", extra=images)


def _blocks(code: Code) -> str:
    """The repeated blocks as Python, ``{model}`` in place of the model's variable."""
    prefix = code.sites.model + "."
    if types := code.sites.block_types:
        same = f"== {types[0]!r}" if len(types) == 1 else f"in {types!r}"
        every = f"m for m in {{model}}.modules() if type(m).__name__ {same}".replace("'", '"')
        lists = [f"{{model}}.{b.removeprefix(prefix)}" for b in code.sites.blocks]
        return f"[{', '.join([*(f'*{x}' for x in lists), f'*({every})'])}]" if lists else f"[{every}]"
    lists = [f"{{model}}.{b.removeprefix(prefix)}" for b in code.sites.blocks] or ["{model}.blocks"]
    return lists[0] if len(lists) == 1 else f"[*{', *'.join(lists)}]"


def _checkpointing(code: Code, which: Any) -> Written:
    if which == "off":
        return _sketch(
            None, "where the step recomputes", "- torch.utils.checkpoint.checkpoint(function, *inputs)", "+ function(*inputs)"
        )
    if isinstance(which, tuple):
        parts = _compressed(cast("tuple[str, ...]", which))
        selection = parts[0] if len(parts) == 1 else f"[{', '.join(f'*{p}' if p.startswith('[') else p for p in parts)}]"
        selection = f"[{selection}]" if not selection.startswith("[") else selection
        loop = [f"for name in {_escaped(selection)}:", f"{STEP}block = {{model}}.get_submodule(name)"]
    else:
        every = f"[::{which}]" if isinstance(which, int) and not isinstance(which, bool) else ""
        loop = [f"for block in {_blocks(code)}{every}:"]
    call = f"{STEP}block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)"
    imports = ("import functools", "from torch.utils.checkpoint import checkpoint")
    return _model_lines(code, (*loop, call), "after the model is built", imports)


def _escaped(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


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


def _low_precision(code: Code, form: Any) -> Written:
    dtype, model = TORCH_FORMAT[str(form)], code.sites.model
    return _sketch(
        None,
        "before the optimizer is made; no autocast around the forward pass",
        f"+ {model} = {model}.to({dtype})",
        f"+ inputs of float type too: x.to({dtype})",
    )


def _lora(code: Code, argument: Any) -> Written:
    model, (rank, targets) = code.sites.model, rank_and_targets(argument)
    modules = repr(targets[0]) if targets == DEFAULT_TARGETS else repr(list(module_names(targets)))
    return _sketch(
        None,
        "before the optimizer is made (pip install peft)",
        f"+ config = peft.LoraConfig(r={rank}, target_modules={modules})".replace("'", '"'),
        f"+ {model} = peft.get_peft_model({model}, config)",
    )


# --- the forward pass ---


def _autocast(code: Code, form: Any) -> Written:
    dtype = TORCH_FORMAT.get(str(form))
    if dtype is None:
        return _sketch(None, "where autocast is entered", "+ with torch.autocast(..., enabled=False):")
    scaler = (
        f'+ scaler = torch.amp.GradScaler("{code.device}")  # once, and in place of backward and step:',
        "+ scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update()",
    )
    scaler = scaler if form == "fp16" else ()
    header = f'with torch.autocast("{code.device}", dtype={dtype}):'
    site = code.sites.forward[0] if code.sites.forward else None
    script = code.near(site) if site is not None else None
    part = _forward_part(script, code) if script is not None else None
    if script is None or part is None:
        body = site.source.strip() if site is not None else ""
        removed_lines = (f"- {body}",) if body else ()
        place = "around the forward and the loss"
        return _sketch(site, place, *removed_lines, f"+ {header}", f"+ {STEP}{body or 'loss = ...'}  # and the loss", *scaler)
    first, end, has_loss = part
    indent = script.indent(first)
    rows = [row.rstrip("\n") for row in script.rows[first - 1 : end - 1]]
    note = "" if has_loss else "  # and the loss"
    text = f"{indent}{header}\n" + "".join(f"{STEP if row.strip() else ''}{row}{note}\n" for row in rows)
    return Written((Edit(script, script.row(first), script.row(end), text),), scaler, is_complete=not scaler)


def _forward_part(script: Script, code: Code) -> tuple[int, int, bool] | None:
    """Lines from the forward pass to before the backward pass, and whether the backward pass is in the same block; None if
    they cannot be indented as they are."""
    line = code.sites.forward[0].line - script.first_line + 1
    back = code.sites.backward
    for body in script.bodies():
        at = next((i for i, n in enumerate(body) if n.lineno <= line <= (n.end_lineno or n.lineno)), None)
        if at is None or any(hasattr(body[at], field) for field in ("body", "orelse")):
            continue
        last, has_loss = at, False
        if back is not None and script.is_whole and back.file == script.file:
            ends = [i for i, n in enumerate(body) if n.lineno <= back.line <= (n.end_lineno or n.lineno)]
            if ends and ends[0] > at and not hasattr(body[ends[0]], "body"):
                last, has_loss = ends[0] - 1, True
        part = body[at : last + 1]
        texts = (n for s in part for n in ast.walk(s) if isinstance(n, (ast.Constant, ast.JoinedStr)))
        if any((n.end_lineno or 0) > n.lineno for n in texts) or not all(script.is_alone(s) for s in part):
            return None
        return part[0].lineno, (part[-1].end_lineno or part[-1].lineno) + 1, has_loss
    return None


def _free_outputs(code: Code, _: Any) -> Written:
    site = code.sites.forward[0] if code.sites.forward else None
    match = re.match(r"\s*([\w.]+)\s*=[^=]", site.source) if site is not None else None
    variable = match[1] if match is not None else "output"
    return _sketch(
        None,
        f"at the end of the step; {site.where if site is not None else 'the forward'} makes it",
        f"+ del {variable}  # and in lists keep loss.item() or {variable}.detach().cpu()",
    )


def _attention(code: Code, kernel: Any) -> Written:
    if kernel is not None:
        first = BACKEND[str(kernel)]
        others = (b for b in (*BACKEND.values(), "MATH") if b != first)
        kernels = ", ".join(f"SDPBackend.{b}" for b in (first, *others))
        lines = ("from torch.nn.attention import SDPBackend, sdpa_kernel", f"with sdpa_kernel([{kernels}], set_priority=True):")
        return _sketch(None, "around the training", *(f"+ {line}" for line in lines), f"+ {STEP}...")
    return _sketch(
        None, "where the model is built", '+ attn_implementation="sdpa"  # transformers; timm: timm.layers.set_fused_attn(True)'
    )


def _chunked_loss(code: Code, _: Any) -> Written:
    head = code.sites.large_linear or "model.lm_head"
    return _sketch(
        None,
        "in place of the head and its cross entropy (pip install liger-kernel)",
        "+ from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss",
        f"+ loss = LigerFusedLinearCrossEntropyLoss()({head}.weight, hidden.flatten(0, -2), labels.flatten())",
    )


# --- the optimizer and the step ---

OPTIMIZER_CLASS = {
    "adamw8bit": "bitsandbytes.optim.AdamW8bit",
    "momentum": "torch.optim.SGD",
    "sgd": "torch.optim.SGD",
    "adamw": "torch.optim.AdamW",
    "adam": "torch.optim.Adam",
    "adafactor": "torch.optim.Adafactor",
    "rmsprop": "torch.optim.RMSprop",
    "adagrad": "torch.optim.Adagrad",
}
SHARED_ARGUMENTS = frozenset({"params", "lr", "weight_decay"})
"""Arguments that mean the same to every optimizer."""
ADAM_ARGUMENTS = SHARED_ARGUMENTS | {"betas", "eps", "amsgrad"}


def _optimizer(code: Code, name: Any) -> Written:
    """The optimizer's class on its own line replaced, keeping the arguments that the new class accepts."""
    class_path = OPTIMIZER_CLASS.get(str(name), f"torch.optim.{name}")
    more: dict[str, object] = {"momentum": 0.9} if name == "momentum" else {}
    imports = ("import bitsandbytes",) if name == "adamw8bit" else ()
    site = code.sites.optimizer
    script, calls = code.calls(site, (*EVERY_OPTIMIZER, *code.sites.optimizers)) if site is not None else (None, [])
    argument_names = ADAM_ARGUMENTS if name == "adamw8bit" else SHARED_ARGUMENTS
    plain = len(calls) == 1 and not is_unclear(calls[0]) and {k.arg for k in calls[0].keywords} <= argument_names
    if script is None or not plain:
        options = "".join(f", {k}={v}" for k, v in more.items())
        lines = (*imports, f"{class_path}({code.sites.model}.parameters(), lr=...{options})")
        return _sketch(None, MAKER, *(f"+ {line}" for line in lines))
    call = calls[0]
    edits: list[Edit | Arguments] = [Edit(script, script.start_of(call.func), script.end_of(call.func), class_path)]
    edits += [Arguments(script, call, more)] if more else []
    first, sketch = _imports(script, *imports) if imports else ([], ())
    return Written((*first, *edits), sketch)


def _micro_batches(code: Code, n: Any) -> Written:
    sites = code.sites
    where = sites.step or sites.optimizer
    name = (sites.zero_grad and sites.zero_grad.name) or (where and where.name) or "optimizer"
    return _sketch(
        None,
        f"the step, with a batch of 1/{n}",
        f"+ for micro_batch in batch.chunk({n}):",
        f"+ {STEP}(loss_of(micro_batch) / {n}).backward()",
        f"+ {name}.step(); {name}.zero_grad()",
    )


def _batch(code: Code, size: Any) -> Written:
    return _sketch(None, "where the batch is chosen", f"+ batch = {size}")


def _zero_after_step(code: Code, _: Any) -> Written:
    zero, step = code.sites.zero_grad, code.sites.step
    name = (step and step.name) or (zero and zero.name) or "optimizer"
    edits: list[Edit] = []
    for site in (zero, step):
        script = code.near(site) if site is not None else None
        node = _statement(script, site) if script is not None and site is not None else None
        if script is None or node is None:
            break
        after = script.row((node.end_lineno or node.lineno) + 1)
        if site is zero:
            edits.append(Edit(script, script.row(node.lineno), after, ""))
        else:
            edits.append(Edit(script, after, after, f"{script.indent(node.lineno)}{name}.zero_grad()\n"))
    else:
        return Written(tuple(edits))
    removed_lines = (f"@ {zero.where}", f"- {zero.source.strip()}") if zero is not None and zero.source.strip() else ()
    return Written(sketch=(*removed_lines, f"@ {step.where if step is not None else 'after the step'}", f"+ {name}.zero_grad()"))


def _statement(script: Script, site: Site) -> ast.stmt | None:
    """The simple statement on the line of ``site``, if it is alone there."""
    line = site.line - script.first_line + 1
    for body in script.bodies():
        for node in body:
            inside = node.lineno <= line <= (node.end_lineno or node.lineno)
            if inside and not hasattr(node, "body") and script.is_alone(node):
                # a block must not be left empty
                return node if len(body) > 1 or not script.is_whole else None
    return None


def _optimizer_class(code: Code) -> str:
    """The class of the step's optimizer, as a script names it that imports torch."""
    name = next(iter(code.sites.optimizers), "AdamW")
    return f"torch.optim.{name}" if name in EVERY_OPTIMIZER else name


def _step_in_backward(code: Code, _: Any) -> Written:
    return _sketch(
        None,
        "in place of the optimizer; no gradient clipping, no GradScaler",
        f"+ parts = {{p: {_optimizer_class(code)}([p], lr=lr) for p in {code.sites.model}.parameters()}}",
        "+ def update(p):",
        "+     parts[p].step(); parts[p].zero_grad()",
        "+ for p in parts:",
        "+     p.register_post_accumulate_grad_hook(update)",
        "- optimizer.step(); optimizer.zero_grad()",
    )


def _offload_optimizer(code: Code, _: Any) -> Written:
    site = code.sites.optimizer
    line = "from torchao.optim import CPUOffloadOptimizer"
    script, calls = code.calls(site, (*EVERY_OPTIMIZER, *code.sites.optimizers)) if site is not None else (None, [])
    if script is None or len(calls) != 1 or is_unclear(calls[0]) or len(calls[0].args) != 1:
        kind = code.sites.optimizers[0] if code.sites.optimizers else "AdamW"
        constructor = f"CPUOffloadOptimizer({code.sites.model}.parameters(), torch.optim.{kind}, lr=...)"
        return _sketch(None, "where the optimizer is made (pip install torchao)", f"+ {line}", f"+ {constructor}")
    call = calls[0]
    constructor, end = ast.unparse(call.func), script.end_of(call.args[0])
    edits = (
        Edit(script, script.start_of(call.func), script.end_of(call.func), "CPUOffloadOptimizer"),
        Edit(script, end, end, f", {constructor}"),
    )
    first, sketch = _imports(script, line)
    return Written((*first, *edits), sketch)


WRITERS: dict[str, Writer] = {
    "workers": _loader(num_workers="value", persistent_workers="true"), "prefetch": _loader(prefetch_factor="value"),
    "pin_memory": _loader(pin_memory="value"), "batch": _batch, "fused_optimizer": _fused_optimizer,
    "set_to_none": _set_to_none, "tf32": _setting('torch.set_float32_matmul_precision("high")'),
    "threads": _setting("torch.set_num_threads({value})"), "cudnn_benchmark": _cudnn_benchmark, "allocator": _allocator,
    "compile": _compile, "channels_last": _channels_last, "checkpointing": _checkpointing, "low_precision": _low_precision,
    "lora": _lora, "autocast": _autocast, "free_outputs": _free_outputs, "attention": _attention,
    "chunked_loss": _chunked_loss, "optimizer": _optimizer, "micro_batches": _micro_batches,
    "zero_after_step": _zero_after_step, "step_in_backward": _step_in_backward, "offload_optimizer": _offload_optimizer,
}  # fmt: skip
"""Writers by the change's name."""
