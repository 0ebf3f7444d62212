"""Draws the diagrams of the lessons: shapes and words by hand, numbers from the catalogue and from the tool's own answers.

python -m tools.docs.diagrams docs/learn/pictures

Each follows light and dark; what moves stands still, complete, for readers who asked for less motion.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from gpuwise.facts.hardware.cpus import find_cpu
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.catalogue import find_model
from gpuwise.facts.words import at_path
from gpuwise.report.answers.drawings import style
from gpuwise.text import escape
from gpuwise.units import GIB, GIGA
from gpuwise.workload.transformer.parameters import count_parameters
from tools.docs.claims import run_command

WIDTH = 520
"""Of every drawing; its text of 14 is 9 pixels high on a telephone."""
STILL = "@media (prefers-reduced-motion:reduce){*{animation:none!important}}"


def text(x: float, y: float, words: str, kind: str = "ink", anchor: str = "start") -> str:
    """Words at a point; ``kind`` are classes: a colour, ``s`` small, ``b`` bold, ``on`` white on a colour."""
    return f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{anchor}">{escape(words)}</text>'


def box(x: float, y: float, wide: float, high: float, kind: str, more: str = "") -> str:
    return f'<rect x="{x:g}" y="{y:g}" width="{wide:g}" height="{high:g}" rx="2" class="{kind}"{more}/>'


def line(x1: float, y1: float, x2: float, y2: float, kind: str = "l-muted line") -> str:
    return f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" class="{kind}"/>'


def arrow(x1: float, y1: float, x2: float, y2: float) -> str:
    """A line with a head, level or upright."""
    dx, dy = (x2 > x1) - (x2 < x1), (y2 > y1) - (y2 < y1)
    head = f"M{x2:g} {y2:g}l{-6 * dx - 4 * dy:g} {-6 * dy - 4 * dx:g}l{8 * dy:g} {8 * dx:g}z"
    return line(x1, y1, x2 - 5 * dx, y2 - 5 * dy) + f'<path d="{head}" class="muted"/>'


def framed(high: float, says: str, body: str, css: str = "") -> str:
    """The whole file; ``says`` is what a screen reader reads."""
    fonts = "svg text{font-size:14px}svg .s{font-size:12px}svg .b{font-weight:700}svg .on{fill:#fff}"
    fonts += "@media (prefers-color-scheme:dark){svg .on{fill:#15181e}}"
    size = f'viewBox="0 0 {WIDTH} {high:g}" width="{WIDTH * 1.25:g}" height="{high * 1.25:g}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} '
        f'role="img" aria-label="{escape(says)}"><style>{style()}{fonts}{css}{STILL}</style>{body}</svg>\n'
    )


def when(name: str, seconds: float, loop_s: float, before: str, after: str) -> str:
    """Keyframes: ``before`` until ``seconds`` of a loop, then ``after``."""
    at = 100 * seconds / loop_s
    return f"@keyframes {name}{{0%,{at:.2f}%{{{before}}}{at + 0.3:.2f}%,97%{{{after}}}100%{{{before}}}}}"


# --- the lessons ---


def cores() -> str:
    """64 tasks on 4 fast cores and on 64 slow ones."""
    loop, fast, slow, pale = 12.0, 0.6, 2.4, "opacity:.15"
    css = [when(f"c{turn}", (turn + 1) * fast, loop, pale, "opacity:1") for turn in range(16)]
    css.append(
        f"@keyframes g{{0%{{transform:scaleY(0)}}{100 * slow / loop:.1f}%,97%{{transform:scaleY(1)}}100%{{transform:scaleY(0)}}}}"
    )
    css += [f".c{turn}{{animation:c{turn} {loop}s infinite}}" for turn in range(16)]
    css.append(f".g{{animation:g {loop}s linear infinite;transform-box:fill-box;transform-origin:bottom}}")
    body = [text(0, 16, "CPU: 4 fast cores", "ink b"), text(270, 16, "GPU: 64 slow cores", "ink b")]
    body += [box(58 * k, 28, 50, 50, "f1") + text(58 * k + 25, 58, "core", "on s", "middle") for k in range(4)]
    body += [box(270 + 15 * (k % 16), 28 + 13 * (k // 16), 13, 11, "f0") for k in range(64)]
    body += [text(0, 104, "64 tasks, four at a time:", "muted s"), text(270, 104, "64 tasks, all at once:", "muted s")]
    for k in range(64):
        x, y = 28 * (k % 8), 114 + 22 * (k // 8)
        body += [box(x, y, 24, 18, "track"), box(x, y, 24, 18, f"f1 c{k // 4}")]
        body += [box(270 + x, y, 24, 18, "track"), box(270 + x, y, 24, 18, "f0 g")]
    body += [text(0, 310, f"a task takes 1, all take {64 // 4}", "ink"), text(270, 310, "a task takes 4, all take 4", "ink")]
    return framed(
        320,
        "Four fast cores do 64 tasks in 16 turns; 64 cores of a quarter of the speed do them in 4.",
        "".join(body),
        "".join(css),
    )


def layers() -> str:
    """What must agree for a program to run on a GPU, and who installs it."""
    rows = (
        ("your script", "you", "f2"),
        ("PyTorch, JAX or TensorFlow", "pip", "f2"),
        ("cuBLAS, cuDNN, NCCL: libraries of CUDA", "pip brings them along", "f2"),
        ("driver, with libcuda", "Ubuntu, or Windows itself", "f1"),
        ("GPU", "the slot", "f0"),
    )
    body = [text(0, 14, "layer", "muted s"), text(330, 14, "comes from", "muted s")]
    for k, (name, source, kind) in enumerate(rows):
        y = 24 + 44 * k
        body += [box(0, y, 310, 36, kind), text(12, y + 23, name, "on"), text(330, y + 23, source, "ink s")]
    body.append('<rect x="-3" y="20" width="520" height="130" rx="6" class="l-ink" stroke-dasharray="5 4"/>')
    body += [text(0, 262, "dashed: what a container holds. The driver stays outside, on the host.", "muted s")]
    body += [text(0, 280, "CUDA toolkit (nvcc): not in the list. Only code that you compile needs it.", "muted s")]
    return framed(
        288,
        "Layers from your script over PyTorch, CUDA libraries and the driver to the GPU.",
        f'<g transform="translate(3 0)">{"".join(body)}</g>',
    )


def loop() -> str:
    """The four parts of a training step, again and again, and the loss that falls."""
    names = ("batch", "forward", "loss", "backward", "update")
    css = ["@keyframes on{0%,19%{opacity:1}21%,100%{opacity:.45}}"]
    css += [f".p{k}{{animation:on 5s infinite {k - 5}s}}" for k in range(5)]
    css.append(
        "@keyframes fall{0%{stroke-dashoffset:1}90%,100%{stroke-dashoffset:0}}"
        ".fall{stroke-dasharray:1;animation:fall 15s linear infinite}"
    )
    body: list[str] = []
    for k, name in enumerate(names):
        x = 104 * k
        body += [f'<g class="p{k}">', box(x, 10, 86, 40, f"f{k}"), text(x + 43, 35, name, "on", "middle"), "</g>"]
        if k:
            body.append(arrow(x - 16, 30, x - 2, 30))
    body += [
        line(459, 52, 459, 72),
        line(459, 72, 43, 72),
        arrow(43, 72, 43, 52),
        text(250, 66, "next step", "muted s", "middle"),
    ]
    points = [(60 + 4.4 * k, 100 + 80 * (1 - 1 / (1 + k / 14)) + (3 if k % 3 == 1 else -2 if k % 3 else 0)) for k in range(101)]
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    body += [
        text(0, 104, "loss"),
        line(56, 94, 56, 196, "grid"),
        line(56, 196, 500, 196, "grid"),
        text(500, 212, "steps", "muted s", "end"),
    ]
    body.append(f'<path d="{path}" pathLength="1" class="l-f2 line fall"/>')
    return framed(
        218, "A step: batch, forward, loss, backward, update; the loss falls from step to step.", "".join(body), "".join(css)
    )


def vram() -> str:
    """Two memories and the thin pipe between them."""
    card, cpu = find_cluster("4090").accelerator, find_cpu("i5-12400")
    assert card.pcie_bytes_per_s is not None
    rates = (cpu.memory_bandwidth_bytes_per_s, card.pcie_bytes_per_s, card.memory_bandwidth_bytes_per_s)
    css, body = list[str](), list[str]()
    places = (
        (0, "RAM", "of the PC", "f1"),
        (140, "CPU", cpu.name, "f7"),
        (280, "GPU", card.name, "f7"),
        (420, "VRAM", f"{card.memory_bytes / GIB:.0f} GB", "f0"),
    )
    for x, name, what, kind in places:
        body += [box(x, 30, 100, 100, kind), text(x + 50, 76, name, "on b", "middle"), text(x + 50, 96, what, "on s", "middle")]
    for k, rate in enumerate(rates):
        x, high = 100 + 140 * k, max(90 * rate / rates[2], 2.0)
        body += [
            box(x, 80 - high / 2, 40, high, "f2"),
            text(x + 20, 150, f"{rate / GIGA:,.0f}", "ink b", "middle"),
            text(x + 20, 166, "GB/s", "ink s", "middle"),
        ]
        body.append(f'<rect x="{x}" y="{80 - high / 2:g}" width="6" height="{high:g}" class="on m{k}"/>')
        css.append(
            f"@keyframes m{k}{{to{{transform:translateX(34px)}}}}"
            f".m{k}{{opacity:.8;animation:m{k} {0.4 * rates[2] / rate:.2f}s linear infinite}}"
        )
    body += [
        text(0, 20, "large, far away", "muted s"),
        text(WIDTH, 20, "on the card", "muted s", "end"),
        text(260, 20, "PCIe", "muted s", "middle"),
    ]
    says = f"RAM reads {rates[0] / GIGA:.0f} GB/s, PCIe carries {rates[1] / GIGA:.0f}, VRAM {rates[2] / GIGA:.0f}."
    return framed(176, says, "".join(body), "".join(css))


def bytes_a_parameter() -> str:
    """18 bytes a parameter, times eight billion, beside a card."""
    model, card = find_model("llama-3.1-8b"), find_cluster("4090").accelerator
    parameters = count_parameters(model).total
    parts = (("weights", 2), ("gradients", 4), ("fp32 weights", 4), ("first moment", 4), ("second moment", 4))
    whole = sum(n for _, n in parts) * parameters
    body, x, scale = [text(0, 16, f"{model.name}, to train every weight with AdamW:", "ink b")], 0.0, WIDTH / whole
    for k, (name, n) in enumerate(parts):
        wide = n * parameters * scale
        body += [
            box(x, 28, wide - 2, 46, f"f{k}"),
            text(x + 6, 48, f"{n} B", "on b"),
            text(x + 6, 66, name if n > 2 else "w.", "on s"),
        ]
        x += wide
    at = card.memory_bytes * scale
    body += [box(0, 92, at, 22, "good"), text(at + 8, 108, f"{card.name}: {card.memory_bytes / GIB:.0f} GiB", "ink")]
    body += [
        text(
            0,
            136,
            f"{whole / GIB:.0f} GiB before the first activation; bf16 weights alone (w.) are {2 * parameters / GIB:.1f} GiB",
            "muted s",
        )
    ]
    return framed(144, "Bytes a parameter in training, beside the memory of a card.", "".join(body))


def formats() -> str:
    """The bits of the number formats."""
    rows = (("fp32", 8, 23), ("TF32", 8, 10), ("bf16", 8, 7), ("fp16", 5, 10), ("fp8 E4M3", 4, 3), ("fp4 E2M1", 2, 1))
    body = [
        box(80, 2, 12, 12, "f7"),
        text(98, 13, "sign", "ink s"),
        box(150, 2, 12, 12, "f1"),
        text(168, 13, "exponent: range", "ink s"),
    ]
    body += [box(290, 2, 12, 12, "f0"), text(308, 13, "mantissa: precision", "ink s")]
    for k, (name, exponent, mantissa) in enumerate(rows):
        y, kinds = 28 + 30 * k, ["f7"] + ["f1"] * exponent + ["f0"] * mantissa
        body.append(text(0, y + 16, name, "ink"))
        body += [box(80 + 13.6 * i, y, 12, 20, kind) for i, kind in enumerate(kinds)]
    return framed(204, "Sign, exponent and mantissa bits of fp32, TF32, bf16, fp16, fp8 and fp4.", "".join(body))


def loader() -> str:
    """A GPU that waits for one worker, and one that four workers feed."""
    css = "@keyframes head{from{transform:translateX(0)}to{transform:translateX(416px)}}.head{animation:head 9s linear infinite}"
    body = list[str]()
    for top, title, workers in ((0, "1 worker: the GPU waits", 1), (112, "4 workers, ahead of time: it does not", 4)):
        body.append(text(0, top + 14, title, "ink b"))
        for w in range(workers):
            y = top + 24 + 10 * w
            body += [box(100 + 26 * w + 104 * k, y, 100, 8, "f1") for k in range(4) if 26 * w + 104 * k <= 316]
        y = top + 28 + 10 * workers
        body += [text(0, top + 32, "workers", "ink s"), text(0, y + 15, "GPU", "ink s")]
        starts = [204 + 104 // workers * k for k in range(3 * workers)]
        body += [box(100, y, 416, 20, "track"), *(box(x, y, 24, 20, "f0") for x in starts)]
    body.append(f'<g class="head">{line(100, 20, 100, 202, "l-ink line")}</g>')
    return framed(206, "One worker feeds a GPU a quarter of the time; four keep it at work.", "".join(body), css)


def step() -> str:
    """One step of training as a timeline, before and after its waits are gone."""
    before = (
        ("data", 60, "f1"),
        ("forward", 90, "f0"),
        (".item()", 50, "f4"),
        ("backward", 150, "f0"),
        ("gaps", 60, "f3"),
        ("update", 60, "f2"),
    )
    after = tuple(p for p in before if p[0] not in ("data", ".item()", "gaps"))
    body = list[str]()
    for top, title, parts in ((0, "one step: a third of it is waiting", before), (92, "the same work without the waits", after)):
        body.append(text(0, top + 14, title, "ink b"))
        x = 0.0
        for name, wide, kind in parts:
            body += [box(x, top + 24, wide - 2, 32, kind), text(x + wide / 2, top + 45, name, "on s", "middle")]
            x += wide
        body.append(text(x, top + 74, f"{x / 470:.2f} of the time", "muted s", "end"))
    waits = sum(w for n, w, _ in before if n in ("data", ".item()", "gaps")) / sum(w for _, w, _ in before)
    body.append(
        text(
            0,
            190,
            f"share of waiting s = {100 * waits:.0f} %: 1 / (1 - s) = {1 / (1 - waits):.2f} times as fast, and never more",
            "muted s",
        )
    )
    return framed(198, "A step with waits for data, synchronisation and launches, and without.", "".join(body))


def divided() -> str:
    """What each kind of parallelism divides."""
    css = "@keyframes send{0%,40%{opacity:.1}60%,90%{opacity:1}100%{opacity:.1}}.send{animation:send 3s infinite}"
    panels = (
        ("data parallel", "each: all weights, other samples"),
        ("sharded (FSDP)", "each: a quarter of all weights"),
        ("tensor parallel", "each: a slice of every layer"),
        ("pipeline", "each: some of the layers"),
    )
    body = list[str]()
    for p, (title, what) in enumerate(panels):
        left, top = 268 * (p % 2), 138 * (p // 2)
        body += [text(left, top + 14, title, "ink b"), text(left, top + 30, what, "muted s")]
        for gpu in range(4):
            x = left + 62 * gpu
            body.append(f'<rect x="{x}" y="{top + 38}" width="54" height="70" rx="3" class="l-muted"/>')
            for layer in range(4):
                y = top + 42 + 16 * layer
                if p == 0:
                    body.append(box(x + 4, y, 46, 13, f"f{layer}"))
                elif p == 1:
                    body.append(box(x + 4, y, 46, 13, "track") + box(x + 4 + 11.5 * gpu, y, 11.5, 13, f"f{layer}"))
                elif p == 2:
                    body.append(box(x + 4 + 11.5 * gpu, y, 11.5, 13, f"f{layer}"))
                elif layer == gpu:
                    body.append(box(x + 4, y, 46, 13, f"f{layer}"))
            if gpu < 3:
                body.append(f'<g class="send">{line(x + 55, top + 73, x + 61, top + 73, "l-bad line")}</g>')
        sent = (
            "gradients, once a step",
            "weights, as each layer comes",
            "activations, in every layer",
            "activations, at the cuts",
        )[p]
        body.append(text(left, top + 124, f"travels: {sent}", "bad s"))
    return framed(
        268, "What data, sharded, tensor and pipeline parallelism divide over four GPUs, and what travels.", "".join(body), css
    )


def links() -> str:
    """How fast GPUs talk, one direction."""
    node, card = find_cluster("8xh100-sxm"), find_cluster("4090")
    assert node.accelerator.link_bytes_per_s is not None and card.accelerator.pcie_bytes_per_s is not None
    rows = (
        ("VRAM of an H100", node.accelerator.memory_bandwidth_bytes_per_s, "f7"),
        ("NVLink 4, in a node", node.accelerator.link_bytes_per_s, "f0"),
        ("InfiniBand NDR, between nodes", node.system.network_bytes_per_s, "f2"),
        ("PCIe 4.0 x16", card.accelerator.pcie_bytes_per_s, "f1"),
        ("10 Gigabit Ethernet", 1.25e9, "f3"),
    )
    body = list[str]()
    for k, (name, rate, kind) in enumerate(rows):
        y = 30 * k
        body += [text(0, y + 18, name, "ink s"), box(220, y + 4, max(215 * rate / rows[0][1], 1.0), 20, kind)]
        body.append(text(226 + 215 * rate / rows[0][1], y + 19, f"{rate / GIGA:,.{0 if rate > 1e11 else 1}f} GB/s", "ink s"))
    return framed(154, "Bandwidth of memory, NVLink, InfiniBand, PCIe and Ethernet.", "".join(body))


def chips() -> str:
    """From the chip that runs anything to the chip that runs one thing."""
    rows = (
        ("CPU", "any program", "f7"),
        ("GPU", "parallel work", "f0"),
        ("TPU, NPU", "networks only", "f2"),
        ("FPGA", "loaded circuit", "f4"),
        ("ASIC", "fixed circuit", "f1"),
    )
    body = [
        text(0, 14, "runs anything", "muted s"),
        text(WIDTH, 14, "does one thing, for the fewest joules", "muted s", "end"),
        arrow(90, 10, 290, 10),
    ]
    for k, (name, what, kind) in enumerate(rows):
        x = 105 * k
        body += [box(x, 28, 97, 54, kind), text(x + 48, 52, name, "on b", "middle"), text(x + 48, 70, what, "on s", "middle")]
    change = ("compile", "compile", "compile", "new circuit", "new chip")
    body += [text(105 * k + 48, 102, word, "muted s", "middle") for k, word in enumerate(change)]
    body.append(text(0, 122, "below each: what changed code needs before it runs there", "muted s"))
    return framed(130, "CPU, GPU, TPU and NPU, FPGA, ASIC: from flexible to efficient.", "".join(body))


def owning() -> str:
    """What owning and renting one card cost over three years: median and central 80 %."""
    found = run_command("gpuwise cost own --on 4090 --hours 500/month --scenarios 2k")
    ways = {o["name"]: o["cumulative_usd"] for o in found["options"]}
    own, rent = ways["own"], ways["on-demand"]
    months, most = len(own[1]) - 1, max(max(own[2]), max(rent[2]))
    left, bottom, wide, high = 56.0, 190.0, 440.0, 170.0

    def place(month: int, usd: float) -> str:
        return f"{left + wide * month / months:.1f} {bottom - high * usd / most:.1f}"

    body = [text(0, 14, "dollars spent", "muted s"), line(left, bottom, left + wide, bottom, "grid")]
    for usd in range(0, int(most) + 1, 2500):
        y = bottom - high * usd / most
        body += [line(left, y, left + wide, y, "grid"), text(left - 6, y + 4, f"${usd:,}", "muted s", "end")]
    for year in range(1, months // 12 + 1):
        body.append(text(left + wide * 12 * year / months, bottom + 16, f"year {year}", "muted s", "end"))
    for kind, (low, middle, top) in (("f0", own), ("f1", rent)):
        band = "L".join([place(m, v) for m, v in enumerate(low)] + [place(m, top[m]) for m in range(months, -1, -1)])
        body.append(f'<path d="M{band}z" class="{kind}" fill-opacity=".18"/>')
        curve = "L".join(place(m, v) for m, v in enumerate(middle))
        body.append(f'<path d="M{curve}" pathLength="1" class="l-{kind} line grow"/>')
    meet = next(m for m in range(months + 1) if rent[1][m] >= own[1][m])
    x = left + wide * meet / months
    body += [line(x, 24, x, bottom, "l-muted"), text(x - 6, 36, f"pays back after {meet} months", "ink s", "end")]
    body += [box(left, 214, 12, 12, "f0"), text(left + 18, 224, "own one RTX 4090", "ink s")]
    body += [box(left + 150, 214, 12, 12, "f1"), text(left + 168, 224, "rent it, 500 hours a month; bands: 80 %", "ink s")]
    css = "@keyframes grow{0%{stroke-dashoffset:1}70%,100%{stroke-dashoffset:0}}"
    css += ".grow{stroke-dasharray:1;animation:grow 8s linear infinite}"
    return framed(232, "Money spent by owning a card and by renting it, over three years.", "".join(body), css)


def batching() -> str:
    """Requests one batch at a time, and with a place given to the next at once."""
    css = "@keyframes head{from{transform:translateX(0)}to{transform:translateX(430px)}}.head{animation:head 8s linear infinite}"
    lengths, later = (4, 9, 3, 6), (5, 4, 6, 4)
    body = list[str]()
    for top, title, joined in ((0, "one batch, then the next", False), (132, "continuous batching", True)):
        body.append(text(0, top + 14, title, "ink b"))
        for row in range(4):
            y, first = top + 24 + 22 * row, lengths[row]
            begin = first if joined else max(lengths)
            body.append(box(80, y, 430, 18, "track"))
            for start, length, kind in ((0, first, "f0"), (begin, later[row], "f2")):
                body += [
                    box(80 + 26 * start, y, 26, 18, "f1"),
                    *(box(80 + 26 * (start + t), y, 24, 18, kind) for t in range(1, length)),
                ]
        body.append(text(0, top + 60, "places", "muted s"))
        end = max((n if joined else max(lengths)) + m for n, m in zip(lengths, later, strict=True))
        body.append(text(80 + 26 * end, top + 126, f"all done after {end} steps", "ink s", "end"))
    body.append(f'<g class="head">{line(80, 22, 80, 244, "l-ink line")}</g>')
    body += [
        box(300, 4, 12, 12, "f1"),
        text(316, 14, "prefill: reads", "ink s"),
        box(410, 4, 12, 12, "f0"),
        text(426, 14, "decode: writes", "ink s"),
    ]
    return framed(
        264,
        "Static batches leave places empty until the longest answer ends; continuous batching fills them at once.",
        "".join(body),
        css,
    )


def power() -> str:
    """Where the watts of eight H100 go, and what a socket gives."""
    found = run_command("gpuwise cost run llama-3.1-8b --on 8xh100-sxm --tokens 15B --country DE")
    parts = [
        (n, at_path(found, f"power.{k}_w.expected"), c)
        for n, k, c in (("GPUs", "accelerators", "f0"), ("host", "host", "f2"), ("cooling", "cooling", "f1"))
    ]
    whole = sum(w for _, w, _ in parts)
    body, x = [text(0, 14, f"8 H100 in training: {whole / 1e3:.1f} kW from the wall", "ink b")], 0.0
    for name, watts, kind in parts:
        wide = WIDTH * watts / whole
        body += [box(x, 24, wide - 2, 40, kind), text(x + wide / 2, 49, f"{name} {watts / 1e3:.1f}", "on s", "middle")]
        x += wide
    body.append(text(0, 92, "What one circuit may carry for hours, and who needs it", "ink b"))
    h100 = find_cluster("8xh100-sxm").accelerator.tdp_w or 0.0
    card = find_cluster("4090").accelerator.tdp_w or 0.0
    circuits = (("120 V, 15 A, at 80 %", 120 * 15 * 0.8, "f7"), ("230 V, 16 A", 230 * 16.0, "f7"))
    needs = (("PC with one RTX 4090", card + 130, "f0"), ("one H100, alone", h100, "f0"), ("eight H100, alone", 8 * h100, "f0"))
    for k, (name, watts, kind) in enumerate((*circuits, *needs)):
        y = 102 + 26 * k
        body += [text(0, y + 15, name, "ink s"), box(150, y, 290 * watts / (8 * h100), 20, kind)]
        body.append(text(156 + 290 * watts / (8 * h100), y + 15, f"{watts:,.0f} W", "ink s"))
    return framed(236, "Power of GPUs, host and cooling; what circuits carry beside what machines draw.", "".join(body))


def reading() -> str:
    """Each token reads all weights: fewer bytes, more tokens."""
    found = run_command('gpuwise fit llama-3.1-8b --on "RTX 3060" --for run')
    rows = [r for r in found["formats"] if r.get("tokens_per_s")][:5]
    most = max(r["memory_bytes"] for r in rows)
    fastest = max(at_path(r, "tokens_per_s.expected") for r in rows)
    css, body = (
        list[str](),
        [text(70, 14, "memory, read for every token", "muted s"), text(330, 14, "tokens a second", "muted s")],
    )
    for k, r in enumerate(rows):
        y, wide, rate = 24 + 30 * k, 240 * r["memory_bytes"] / most, at_path(r, "tokens_per_s.expected")
        css.append(
            f"@keyframes r{k}{{to{{transform:translateX({wide - 4:.0f}px)}}}}"
            f".r{k}{{animation:r{k} {40 / rate:.2f}s linear infinite}}"
        )
        body += [
            text(0, y + 15, r["weights"], "ink s"),
            box(70, y, wide, 20, "f0"),
            f'<rect x="70" y="{y}" width="4" height="20" class="on r{k}"/>',
        ]
        body += [
            text(76, y + 15, f"{r['memory_bytes'] / GIB:.1f} GiB", "on s"),
            box(330, y, 130 * rate / fastest, 20, "f2"),
            text(336 + 130 * rate / fastest, y + 15, f"{rate:.0f}", "ink s"),
        ]
    return framed(
        28 + 30 * len(rows), "Fewer bits: less memory to read for each token, more tokens a second.", "".join(body), "".join(css)
    )


def smaller() -> str:
    """Three ways to a smaller network."""
    body = list[str]()
    for k, (title, what) in enumerate(
        (("quantisation", "fewer bits a weight"), ("pruning", "fewer weights"), ("distillation", "a small model learns"))
    ):
        x = 180 * k
        body += [text(x, 14, title, "ink b"), text(x, 32, what, "muted s")]
        if k < 2:
            for i in range(36):
                gone = k == 1 and (i * 7) % 12 in (1, 3, 4, 6, 9, 11)
                body.append(
                    box(x + 20 * (i % 6), 44 + 20 * (i // 6), 17, 17 if k else 6, "track" if gone else "f1" if k else "f0")
                )
        else:
            body += [box(x, 44, 70, 116, "f0"), text(x + 35, 106, "teacher", "on s", "middle"), arrow(x + 74, 102, x + 100, 102)]
            body += [box(x + 104, 82, 56, 40, "f2"), text(x + 132, 106, "student", "on s", "middle")]
    return framed(
        170, "Quantisation keeps fewer bits, pruning fewer weights, distillation teaches a smaller model.", "".join(body)
    )


def wants() -> str:
    """How much each kind of work asks of memory, bandwidth, arithmetic and links."""
    heads = ("memory", "bandwidth", "arithmetic", "links")
    rows = (
        ("LLM, to chat", 3, 3, 1, 0),
        ("LLM, to fine-tune", 3, 2, 3, 1),
        ("LLM, to train", 3, 2, 3, 3),
        ("agents: many long prompts", 3, 3, 3, 1),
        ("detector, tracker", 1, 1, 2, 0),
        ("pictures, video", 2, 2, 3, 0),
        ("trees, regression", 0, 1, 0, 0),
    )
    body = [text(250 + 75 * k, 14, h, "muted s", "middle") for k, h in enumerate(heads)]
    for k, (name, *sizes) in enumerate(rows):
        y = 38 + 28 * k
        body.append(text(0, y + 5, name, "ink"))
        for i, size in enumerate(sizes):
            body.append(f'<circle cx="{250 + 75 * i}" cy="{y}" r="{2 + 3 * size}" class="{f"f{i}" if size else "track"}"/>')
    return framed(
        40 + 28 * len(rows) - 12,
        "What language models, detectors, image models and trees ask of memory, bandwidth, arithmetic and links.",
        "".join(body),
    )


DRAWINGS: Mapping[str, Callable[[], str]] = {
    "cores": cores,
    "layers": layers,
    "loop": loop,
    "vram": vram,
    "bytes": bytes_a_parameter,
    "formats": formats,
    "loader": loader,
    "step": step,
    "divided": divided,
    "links": links,
    "chips": chips,
    "owning": owning,
    "batching": batching,
    "power": power,
    "reading": reading,
    "smaller": smaller,
    "wants": wants,
}
"""Each by its file's name."""


def main(arguments: Sequence[str]) -> int:
    """Write all into a folder."""
    if len(arguments) != 1:
        sys.stderr.write("error: name the folder\nhint: python -m tools.docs.diagrams docs/learn/pictures\n")
        return 2
    for name, draw in DRAWINGS.items():
        (Path(arguments[0]) / f"{name}.svg").write_text(draw(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
