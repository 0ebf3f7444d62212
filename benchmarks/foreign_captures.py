"""Memory of scripts that nobody here wrote: what ``capture`` predicts of the whole script, and what it takes on this processor.

    PYTHON benchmarks/foreign_captures.py CHECKOUTS [--only NAME ...] [--scratch FOLDER] [--record FILE]
    PYTHON benchmarks/foreign_captures.py --table FILE

``benchmarks/foreign_captures.toml`` lists the scripts in the format of ``tests/foreign/scripts.toml``, and none of those.
PYTHON has gpuwise, torch and the libraries; CHECKOUTS holds ``OWNER/NAME`` of every repository. For each script, in a copy of its
folder and in processes of their own:

- *fit*: the script captured on the pretended GPU, as ``gpuwise fit SCRIPT`` does;
- *predicted*: the peak of ``capture(device="cpu")`` of the same script (of the GPU's, where that fails);
- *measured*, after both: the peak of the profiler's memory events of a real run, to ``UPDATES`` updates of every optimizer or
  ``LIMIT_S``. What a convolution of oneDNN takes and frees inside its call (tensors in another order) is not in it.

Right is within 10 % of what was measured, or within 0.5 MiB. ``trained`` names files that a capture has left behind.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import shutil
import signal
import sys
import threading
import time
import tomllib
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
LIST = HERE / "foreign_captures.toml"
LIMIT_S, UPDATES, END_S = 15.0, 8, 60.0
CONVOLUTIONS = ("aten::mkldnn_convolution", "aten::convolution_backward")
RIGHT, SMALL_BYTES = 0.10, 2**19


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", type=Path, nargs="?")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--parts", nargs="*", default=list(PARTS))
    parser.add_argument("--scratch", type=Path, default=Path("/tmp/gpuwise-captures"))
    parser.add_argument("--record", type=Path)
    parser.add_argument("--table", type=Path)
    options = parser.parse_args(arguments)
    if options.table is not None:
        print(table([json.loads(line) for line in options.table.read_text("utf-8").splitlines()]))
        return 0
    for script in tomllib.loads(LIST.read_text("utf-8"))["script"]:
        if not options.only or script["name"] in options.only:
            row = json.dumps(judged(script, options))
            print(row, flush=True)
            if options.record is not None:
                with options.record.open("a", encoding="utf-8") as file:
                    file.write(row + "\n")
    return 0


def judged(script: Mapping[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """One script: predicted first, then measured."""
    prepare = runpy.run_path(str(HERE / "foreign_scripts.py"), run_name="prepare")["prepare"]
    source = (options.checkouts / script["repository"] / script["folder"]).resolve()
    root = (options.scratch / script["name"]).resolve()
    folder, environment = prepare(root, script, source, sys.executable)
    row: dict[str, Any] = {"name": script["name"]}
    before = _files(root)
    for name in options.parts:
        answer, began = root / f"{name}.json", time.monotonic()
        answer.unlink(missing_ok=True)
        part = partial(PARTS[name], answer, script["path"], script["arguments"])
        code = _in_child(part, root, folder, environment)
        row[f"{name}_s"] = round(time.monotonic() - began, 1)
        errors = (root / "errors").read_text("utf-8", "replace")
        row |= json.loads(answer.read_text("utf-8")) if answer.exists() else {f"{name}_failed": f"{code}: {errors[-1200:]}"}
        answer.unlink(missing_ok=True)
        if name != "measure":
            row["trained"] = sorted(_files(root) - before)
    shutil.rmtree(root)
    return row


def _in_child(part: Callable[[], None], root: Path, folder: Path, environment: Mapping[str, str]) -> int:
    """Runs it in a fork of this process, which has imported torch. Returns its exit code, 124 where it was stopped."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        os.setsid()
        code = 1
        try:
            for stream, name in ((0, os.devnull), (1, str(root / "output")), (2, str(root / "errors"))):
                os.dup2(os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC), stream)
            os.chdir(folder)
            os.environ.clear()
            os.environ.update(environment)
            sys.path[:0] = [str(folder / p) for p in environment.get("PYTHONPATH", "").split(os.pathsep) if p]
            part()
            code = 0
        except BaseException as error:  # noqa: BLE001
            traceback.print_exc()
            print("hint:", getattr(error, "hint", None), file=sys.stderr)
        finally:
            os._exit(code)
    began = time.monotonic()
    while time.monotonic() - began < END_S:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.2)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return 124


def _files(root: Path) -> set[str]:
    return {str(p.relative_to(root)) for p in root.rglob("*") if p.is_file() and "__pycache__" not in p.parts} - {
        "output",
        "errors",
    }


def fit(answer: Path, path: str, arguments: Sequence[str]) -> None:
    """Writes the peak of the script captured on the pretended GPU in bytes, without workspaces of libraries."""
    from gpuwise.workload.capture.captured import Category

    capture = _captured(path, arguments, "cuda")
    peak = capture.live_bytes().argmax()
    workspace = capture.bytes_by_category(int(peak)).get(Category.WORKSPACE, 0)
    answer.write_text(json.dumps({"fit": int(capture.live_bytes()[peak]) - workspace}), "utf-8")


def predict(answer: Path, path: str, arguments: Sequence[str]) -> None:
    """Writes the peak of the captured script in bytes."""
    capture = _captured(path, arguments, "cpu")
    answer.write_text(json.dumps({"predicted": int(capture.live_bytes().max())}), "utf-8")


def _captured(path: str, arguments: Sequence[str], device: str) -> Any:
    from gpuwise.workload.capture.target import find_target

    return find_target(path, whole=True, arguments=tuple(arguments)).capture(device=device)


def measure(answer: Path, path: str, arguments: Sequence[str]) -> None:
    """Runs the script under the profiler, writes the peak of its memory events in bytes and ends the process."""
    import torch
    from torch.optim import optimizer as hooks  # pyright: ignore[reportAttributeAccessIssue]

    profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True)
    began, updates = time.monotonic(), Counter[int]()

    def end() -> None:
        profiler.stop()
        results: Any = profiler.profiler
        peak = peak_bytes(results.kineto_results.events())
        answer.write_text(json.dumps({"measured": peak, "updates": max(updates.values(), default=0)}), "utf-8")
        os._exit(0)

    def after(optimizer: Any, *_: Any) -> None:
        updates[id(optimizer)] += 1
        late = time.monotonic() - began > LIMIT_S or min(updates.values()) >= UPDATES
        if late and threading.current_thread() is threading.main_thread():
            end()

    hooks.register_optimizer_step_post_hook(after)
    sys.argv = [path, *arguments]
    sys.path.insert(0, str(Path(path).resolve().parent))
    profiler.start()
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as stop:
        if stop.code:
            raise
    end()


def peak_bytes(events: Sequence[Any]) -> int:
    """Most bytes that were live, between the calls of oneDNN's convolutions."""
    calls = sorted((e.start_ns(), e.end_ns()) for e in events if e.name() in CONVOLUTIONS)
    live = peak = i = 0
    for at, size in sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]"):
        live += size
        while i < len(calls) and calls[i][1] < at:
            i += 1
        if i == len(calls) or at < calls[i][0]:
            peak = max(peak, live)
    return peak


PARTS = {"fit": fit, "predict": predict, "measure": measure}


def prediction(row: Mapping[str, Any]) -> int | None:
    """Bytes, of the capture of the processor's kernels where there is one."""
    return row.get("predicted", row.get("fit"))


def is_right(row: Mapping[str, Any]) -> bool:
    """Whether the prediction is near what was measured."""
    predicted = prediction(row)
    return predicted is not None and abs(predicted - row["measured"]) <= max(RIGHT * row["measured"], SMALL_BYTES)


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Counts, and a line for each script that could be measured; of several rows of a script the last."""
    ran = [r for r in {r["name"]: r for r in rows}.values() if "measured" in r]
    lines = [
        f"{len(ran)} measured; {sum(prediction(r) is not None for r in ran)} captured; {sum(map(is_right, ran))} right; "
        f"{sum(bool(r.get('trained')) for r in ran)} left files behind",
        "",
        "| script | on a GPU MiB | predicted MiB | measured MiB | updates | right |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for r in ran:
        cells = [f"{r[key] / 2**20:.1f}" if key in r else "no" for key in ("fit", "predicted", "measured")]
        lines.append(f"| {r['name']} | {' | '.join(cells)} | {r['updates']} | {'yes' if is_right(r) else 'no'} |")
    return "\n".join(lines)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if "--table" not in sys.argv:
        import torch
        import torchvision  # type: ignore[import-untyped]  # noqa: F401

        torch.set_num_threads(1)
    sys.exit(main(sys.argv[1:]))
