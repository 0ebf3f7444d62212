# pyright: reportMissingImports=false
"""A person's own code is run by a click, from one folder; figures of the GPUs come as a stream."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote

import psutil
import pytest
from tests.ui.serving import Running, ended, start, stop
from tests.ui.test_server import until

ASKED = {"file": "step.py", "function": "make_step", "on": "4090"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("own")
    (made / "step.py").write_text("raise SystemExit('this ran')\n")
    (made / "notes.txt").write_text("")
    (made / "inner").mkdir()
    (made / "inner" / "deep.py").write_text("")
    (made / "<img src=x onerror=alert(1)>.py").write_text("")
    (made / "out.py").symlink_to("/etc/hostname")
    return made


@pytest.fixture(scope="module")
def own(folder: Path) -> Iterator[Running]:
    pytest.importorskip("starlette")
    running = start("--folder", str(folder))
    yield running
    assert stop(running) == 0


def test_only_the_python_files_of_the_folder_are_listed(own: Running) -> None:
    assert own.get("/api/files").json["files"] == ["<img src=x onerror=alert(1)>.py", "step.py"]


@pytest.mark.parametrize(
    "changes",
    [
        {"file": "../step.py"},
        {"file": "/etc/passwd"},
        {"file": "inner/deep.py"},
        {"file": "out.py"},
        {"file": "notes.txt"},
        {"file": ["step.py"]},
        {"change": "a\nb"},
        {"arguments": "'open"},
        {"arguments": "a\x00b"},
        {"batch": "--html=x.html" * 20},
        {"function": "a; b"},
        {"function": "x:y"},
        {"on": "--html=x.html"},
        {"on": ""},
        {"more": "x"},
    ],
)
def test_nothing_else_is_run(own: Running, changes: dict[str, object]) -> None:
    reply = own.post("/api/capture", {**ASKED, **changes})
    assert reply.status == 422 and reply.json["hint"]


def test_no_link_runs_code(own: Running) -> None:
    assert own.get("/api/capture", file="step.py", function="make_step", on="4090").status in (404, 405)
    assert own.post("/api/capture", ASKED, Origin="http://evil.example").status == 403
    assert own.request("POST", "/api/capture", {"Origin": f"http://{own.host}"}, b"{}", cookie=False).status == 401


def test_a_file_is_run_by_a_click_and_its_end_is_said(own: Running) -> None:
    pytest.importorskip("torch")
    reply = own.post("/api/capture", ASKED)
    assert reply.status == 422
    assert own.get("/api/ask/fit", model="gpt2", on="4090").json["code"] == 0


def test_a_whole_script_runs_in_its_folder_with_its_arguments(own: Running, folder: Path) -> None:
    pytest.importorskip("torch")
    (folder / "width.txt").write_text("64")
    (folder / "script.py").write_text(
        "import sys\nimport torch\nfrom helper import lr\nwidth = int(open('width.txt').read())\n"
        "model = torch.nn.Linear(width, int(sys.argv[1])).cuda()\noptimizer = torch.optim.SGD(model.parameters(), lr=lr)\n"
        "for _ in range(3):\n    model(torch.ones(8, width).cuda()).sum().backward()\n    optimizer.step()\n"
        "    optimizer.zero_grad()\n"
    )
    (folder / "helper.py").write_text("lr = 0.1\n")
    asked = {"file": "script.py", "on": "4090", "arguments": "32"}
    body = own.post("/api/capture", asked).json
    assert body["document"]["parameters"] == 64 * 32 + 32 and body["command"].endswith("--on 4090 -- 32")
    (folder / "width.txt").write_text("128")
    assert own.post("/api/capture", asked).json["document"]["parameters"] == 128 * 32 + 32
    refused = own.post("/api/capture", {**asked, "arguments": ""})
    assert refused.status == 422 and "IndexError" in refused.json["document"]["error"]


def test_a_remedy_is_ticked_and_its_answer_is_that_of_the_command(own: Running, folder: Path) -> None:
    pytest.importorskip("torch")
    (folder / "blocks.py").write_text(
        "import torch\n\n\ndef make_step(batch=4096):\n"
        "    model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.GELU(), "
        "torch.nn.Linear(2048, 512)) for _ in range(4))).cuda()\n    optimizer = torch.optim.AdamW(model.parameters())\n"
        "    x = torch.ones(batch, 512).cuda()\n\n    def step():\n        model(x).sum().backward()\n        optimizer.step()\n"
        "        optimizer.zero_grad()\n\n    return step\n"
    )
    asked = {"file": "blocks.py", "function": "make_step", "on": "GTX 1650", "remedies": "yes"}
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(own.post, "/api/capture", asked)
        told: set[str] = set()
        while not running.done():  # which capture runs is said meanwhile
            told.add(own.get("/api/own", **asked).json.get("told", ""))
        first = running.result().json
    assert any(words.startswith("capturing: ") for words in told)
    ticks = {name: unquote(text) for text, name in re.findall(r'data-tick="change=([^"]*)"> ([^<]*)<', first["html"])}
    assert "8-bit AdamW" in ticks
    ticked = own.post("/api/capture", {**asked, "change": ticks["8-bit AdamW"]}).json
    remedy = next(r for r in first["document"]["remedies"] if r["name"] == "8-bit AdamW")
    assert ticked["document"]["memory"]["process_bytes"] == remedy["process_bytes"]
    assert "--change=optimizer=adamw8bit" in ticked["command"] and 'class="tiles"' in ticked["brief"]
    assert own.get("/api/own", **{**asked, "change": ticks["8-bit AdamW"]}).json["document"] == ticked["document"]


def test_what_was_run_can_be_kept_and_an_address_runs_nothing(own: Running, folder: Path) -> None:
    pytest.importorskip("torch")
    (folder / "fits.py").write_text(
        "import torch\n\n\ndef make_step():\n    model = torch.nn.Linear(8, 8).cuda()\n    x = torch.ones(2, 8).cuda()\n"
        "    return lambda: model(x).sum().backward()\n"
    )
    asked = {"file": "fits.py", "function": "make_step", "on": "4090"}
    before = own.get("/export/own.json", **asked)
    assert before.status == 422 and "has not run" in before.json["error"]
    assert own.get("/api/own", **asked).json == {"run": False}
    document = own.post("/api/capture", asked).json["document"]
    again = own.get("/api/own", **asked).json
    assert again["document"] == document and "fits.py:make_step" in again["command"]
    assert own.get("/api/own", **{**asked, "file": "../fits.py"}).status == 422
    assert own.get("/export/own.json", **asked).json == document
    assert "<svg" in own.get("/export/own.svg", **asked).text and "fits.py" in own.get("/export/own.html", **asked).text
    assert own.get("/export/own.json", **{**asked, "file": "../fits.py"}).status == 422


def test_figures_of_the_gpus_come_as_a_stream_that_ends_with_its_listener(own: Running) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", own.port, timeout=300)
    connection.request("GET", "/api/live?demo=1", headers={"Host": own.host, "Cookie": own.cookie})
    reply = connection.getresponse()
    assert reply.getheader("content-type", "").startswith("text/event-stream")
    assert reply.readline() == b"event: message\n"
    said = json.loads(reply.readline().removeprefix(b"data: "))
    assert len(said["names"]) == len(said["values"]) == 8 and "no real GPU" in said["text"]
    tops: list[psutil.Process] = []
    for child in psutil.Process(own.process.pid).children():
        with suppress(psutil.NoSuchProcess):  # one that ran a file above ends by itself
            tops += [child] * ("top" in child.cmdline())
    assert len(tops) == 1
    reply.close()
    connection.close()
    until(lambda: ended(tops[0]))


def test_a_folder_that_is_not_there_is_said(gpuwise: object) -> None:
    pytest.importorskip("starlette")
    ran = gpuwise("ui", "--folder", "no/such")  # type: ignore[operator]
    assert ran.code == 2 and "not a folder" in ran.err
