"""Every view of `gpuwise ui` in Chromium, narrow and wide, light and dark: what it shows, beside what the command line prints.

    python benchmarks/ui/pages.py --pictures FOLDER

Of each view: whether something is wider than the screen, what axe-core finds, how many numbers it shows and how many of them
differ from the ``--json`` of the command line that it shows, whether its link restores it, and whether the numbers of its exports
(HTML, SVG, JSON, CSV) are those. ``--pictures`` keeps what was looked at.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

WIDTHS, SCHEMES = (1280, 375), ("light", "dark")
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
WAIT_MS = 300_000
PLAN = {"model": "gpt2", "on": "4xA100-80GB", "tokens": "1B"}
VIEWS = {
    "plan": ("/plan?" + urlencode(PLAN), "#front"),
    "plan-layout": ("/plan?" + urlencode({**PLAN, "recompute": "full", "micro_batch": "8"}), ".answer .tiles"),
    "fit": ("/fit?model=llama-3.1-8b&on=4090", "#memory"),
    "own": ("/fit?ask=own&file=step.py&on=4090&function=make_step&batch=16", ".answer .tiles"),
    "pick": ("/choose?for=infer&model=llama-3.1-8b", ".verdict"),
    "compare": ("/choose?ask=compare&names=H100-SXM,4090,L40S&model=llama-3.1-8b", ".verdict"),
    "cost": ("/choose?ask=cost&on=8xH100-SXM&hours=5000/month", "#drivers"),
    "serve": ("/serve?model=llama-3.1-8b&on=H100-SXM&users=50&quick=yes", "#latency"),
    "machine": ("/machine?demo=1", ".live canvas"),
    "history": ("/machine?ask=history", ".answer, [role=alert]"),
    "runs": ("/runs", ".answer, [role=alert]"),
    "ranks": ("/runs?ask=ranks&ranks=run", ".answer, [role=alert]"),
    "occupancy": ("/lab?ask=occupancy&on=V100&regs=37&block=320", "#chart"),
    "simulate": ("/lab?ask=simulate&task=matmul-tiled&size=64&on=v100", "#roofline"),
    "learn": ("/learn?number=4&hint=1", ".answer .notes"),
}
"""Name to the link and what stands there once it is answered."""
OWN = """import torch
def make_step(batch):
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    def step():
        loss = model(torch.randn(batch, 64, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss
    return step
"""
DATA = "all => all.map(d => [d.dataset.path, d.value])"
NUMBER = re.compile(r'<data value="([^"]*)" data-path="([^"]*)">')


@dataclass
class Found:
    """Of one view."""

    numbers: int = 0
    differ: list[str] = field(default_factory=list[str])
    wide: list[str] = field(default_factory=list[str])
    axe: list[str] = field(default_factory=list[str])
    said: list[str] = field(default_factory=list[str])
    restored: bool = False
    exports: dict[str, str] = field(default_factory=dict[str, str])


def at(made: Any, pointer: str) -> Any:
    for name in pointer.split("/")[1:]:
        name = name.replace("~1", "/").replace("~0", "~")
        made = made[int(name)] if isinstance(made, list) else made[name]
    return made


def settle(page: Any, shown: str) -> None:
    """Wait until the answer stands there and nothing is asked any more."""
    page.locator(shown).first.wait_for(timeout=WAIT_MS)
    while page.locator(".status .spin").count():
        page.locator(".status .spin").first.wait_for(state="detached", timeout=WAIT_MS)


def numbers(page: Any) -> dict[str, str]:
    return dict(page.eval_on_selector_all("section[aria-label=Answer] data", DATA))


def printed(line: str, folder: Path) -> Any:
    """The document of a command line of the page."""
    import shlex

    words = shlex.split(line)[1:]
    cut = words.index("--") if "--" in words else len(words)
    call = [sys.executable, "-m", "gpuwise", *words[:cut], "--json", *words[cut:]]
    out = subprocess.run(call, capture_output=True, text=True, cwd=folder, check=False)
    return json.loads(out.stdout.strip().splitlines()[-1])


def look_at(browser: Any, base: str, name: str, folder: Path, pictures: Path | None, axe: str) -> Found:
    path, shown = VIEWS[name]
    found = Found()
    context = browser.new_context(viewport={"width": WIDTHS[0], "height": 900}, storage_state=base_state(base))
    page = context.new_page()
    page.set_default_timeout(WAIT_MS)
    page.on("console", lambda m: found.said.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda e: found.said.append(str(e)))
    page.goto(base.partition("/?")[0] + path)
    if name == "own":
        page.locator("button.go").click()
    settle(page, shown)
    for scheme in SCHEMES:
        for width in WIDTHS:
            page.emulate_media(color_scheme=scheme)
            page.set_viewport_size({"width": width, "height": 900})
            page.wait_for_timeout(150)
            if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
                found.wide.append(f"{width} {scheme}")
            page.evaluate(axe)
            broken = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
            found.axe += [f"{width} {scheme} {v['id']}: {v['nodes'][0]['html'][:120]}" for v in broken]
            if pictures is not None:
                page.screenshot(path=pictures / f"{name}-{width}-{scheme}.png", full_page=True)
    page.set_viewport_size({"width": WIDTHS[0], "height": 900})
    values = numbers(page)
    found.numbers = len(values)
    line = page.locator(".command code").first.inner_text()
    document = printed(line, folder)
    for pointer, value in values.items():
        try:
            same = float(value) == float(at(document, pointer))
        except (KeyError, IndexError, TypeError, ValueError):
            same = False
        if not same:
            found.differ.append(pointer)
    for kind, link in page.eval_on_selector_all(".files a", "all => all.map(a => [a.textContent.trim().toLowerCase(), a.href])"):
        reply = context.request.get(link, timeout=WAIT_MS)
        found.exports[kind] = judged(kind, reply.text(), values) if reply.ok else f"status {reply.status}"
    if name != "machine":
        again = context.new_page()
        again.set_default_timeout(WAIT_MS)
        again.goto(page.url)
        settle(again, shown)
        found.restored = numbers(again).keys() == values.keys() and len(changed(numbers(again), values)) == len(
            [p for p in found.differ if p in changed(numbers(again), values)]
        )
    context.close()
    return found


def changed(one: dict[str, str], other: dict[str, str]) -> list[str]:
    return [p for p in one if one[p] != other.get(p)]


def judged(kind: str, text: str, values: dict[str, str]) -> str:
    """How many of the page's numbers an export says too."""
    if kind == "svg":
        from xml.etree import ElementTree

        return f"{len(list(ElementTree.fromstring(text).iter()))} elements"
    if kind == "json":
        document = json.loads(text)
        same = [p for p, v in values.items() if has(document, p, v)]
    elif kind == "csv":
        rows = dict(row for row in csv.reader(io.StringIO(text)) if len(row) == 2)
        same = [p for p, v in values.items() if rows.get(p) not in (None, "") and number(rows[p]) == float(v)]
    else:
        assert not re.search(r'(?:src|href)="(?:https?:)?//', text), "asks another machine"
        there = {unescape(pointer): value for value, pointer in NUMBER.findall(text)}
        same = [p for p, v in values.items() if there.get(p) == v]
    return f"{len(same)} of {len(values)}"


def number(text: str) -> float | None:
    try:
        return float({"True": "1", "False": "0"}.get(text, text))
    except ValueError:
        return None


def has(document: Any, pointer: str, value: str) -> bool:
    try:
        return float(at(document, pointer)) == float(value)
    except (KeyError, IndexError, TypeError, ValueError):
        return False


def base_state(address: str) -> Any:
    """The cookie that the first page sets."""
    parts = urlsplit(address)
    token = dict(parse_qsl(parts.query))["token"]
    cookie = {"name": f"gpuwise-{parts.port}", "value": token, "domain": parts.hostname, "path": "/", "expires": -1}
    return {"cookies": [cookie | {"httpOnly": True, "secure": False, "sameSite": "Strict"}], "origins": []}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=Path)
    parser.add_argument("--only", nargs="*", default=list(VIEWS))
    given = parser.parse_args()
    import axe_playwright_python
    from playwright.sync_api import sync_playwright

    axe = (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text()
    if given.pictures:
        given.pictures.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "step.py").write_text(OWN)
        sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "ui"))
        from journals import write_run  # type: ignore[import-not-found]

        write_run(folder / "run")
        command = [sys.executable, "-m", "gpuwise", "ui", "--port", "0", "--no-browser", "--json"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=folder)
        assert server.stdout is not None
        try:
            base = json.loads(server.stdout.readline())["address"]
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
                print(
                    "| view | numbers | differ | wider | axe | console | link restores | exports |\n|---|---|"
                    "---|---|---|---|---|---|"
                )
                for name in given.only:
                    began = time.monotonic()
                    f = look_at(browser, base, name, folder, given.pictures, axe)
                    exports = ", ".join(f"{k} {v}" for k, v in f.exports.items())
                    print(
                        f"| {name} | {f.numbers} | {f.differ[:6] or 0} | {f.wide or 0} | {f.axe or 0} | {f.said or 0} "
                        f"| {'yes' if f.restored else 'no'} | {exports} |",
                        flush=True,
                    )
                    print(f"  {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(timeout=30)


if __name__ == "__main__":
    main()
