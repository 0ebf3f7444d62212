"""``gpuwise run`` on ranks as a person types it, under torchrun."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpuwise.cli.app import run
from gpuwise.export.torchrun import SAVE_S
from gpuwise.files import alone_in
from gpuwise.train.ranks.launch import divides_itself

pytest.importorskip("torch")
WHOLE = str(Path(__file__).with_name("scripts") / "classify.py")
TASK = f"{Path(__file__).with_name('tasks.py')}:tokens"


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    from gpuwise.plan.api import make_plan
    from gpuwise.plan.document import answer_document
    from gpuwise.plan.goal import Wishes

    fixed = {"dp": 2, "sharding": "zero3", "micro_batch": 2, "accumulation": 2}
    wishes = Wishes(stack="eager-fsdp", seq_len=128, global_batch=8, precision=("bf16",), fixed=fixed)
    answer = make_plan("gpt2", "2xA100-80GB", wishes)
    (tmp_path / "plan.json").write_text(json.dumps(answer_document(answer)))
    return tmp_path / "plan.json"


def test_a_plan_for_another_machine_is_refused(
    plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["run", str(plan), TASK]) == 2
    refused = capfd.readouterr().err
    assert "the plan is for 2x A100" in refused and "--rehearse" in refused.split("hint:")[1]


@pytest.mark.thorough
def test_a_plan_is_rehearsed(
    plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["run", TASK, "--plan", str(plan), "--rehearse", "--total-steps", "2", "--out", "out", "--json"]) == 0
    told = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert told["ended"] == "done" and told["steps"] == 2 and told["restarts"] == 0
    assert {told["layout"][n] for n in ("ranks", "micro_batch")} == {2} and told["layout"]["global_batch"] == 8
    assert told["layout"]["sharding"] == "zero3" and told["layout"]["precision"] == "bf16"
    steps = [json.loads(line) for line in (tmp_path / "out" / "rank-1.jsonl").read_text().splitlines()]
    assert [s["step"] for s in steps if s["event"] == "step"] == [1, 2]


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        ([TASK, "--ranks", "4", "--tp", "3"], "--tp 3 x --pp 1 do not divide 4 ranks", "--ranks 3"),
        ([TASK, "--ranks", "2", "--sharding", "zero1"], "there is no zero1 on ranks", "zero3"),
        ([TASK, "--ranks", "2", "--precision", "fp16"], "fp16 scales its loss", "bf16"),
        ([TASK, "--ranks", "4", "--global-batch", "2"], "do not reach 4 ranks", "--global-batch"),
        ([TASK, "--ranks", "4", "--sharding", "hybrid", "--shard-group", "3"], "groups of 3 do not divide 4", "--shard-group"),
        ([TASK, "--ranks", "2", "--price", "2"], "--price is for a tuned script", "leave it out"),
        ([TASK, "--ranks", "4", "--pp", "2", "--cp", "2"], "rows are not divided together with pipeline stages", "--sharding"),
        ([TASK, "--ranks", "2", "--offload", "optimizer"], "put on the host by FSDP2", "--sharding zero3"),
        ([TASK, "--ranks", "2", "--offload", "weights"], "--offload weights", "activations"),
        (
            [TASK, "--ranks", "2", "--offload", "activations", "--recompute", "full"],
            "recomputed activations are not stored",
            "--recompute",
        ),
        ([TASK, "--ranks", "2", "--compress", "fp16", "--sharding", "zero3"], "only DDP's gradients", "--sharding"),
        ([TASK, "--ranks", "2", "--compress", "zip"], "there is no zip", "powersgd"),
        ([TASK, "--ranks", "2", "--recompute", "selective"], "an engine's own", "names of modules"),
        ([TASK, "more", "--ranks", "2"], "'more' is not used", "--set"),
        (["train.py", "--ranks", "2"], "train.py: this script does not exist", "as python would get it"),
        ([WHOLE, "--ranks", "2", "--epochs", "2"], "--epochs is for a function", "-- --epochs .."),
        ([WHOLE, "--ranks", "2", "--tp", "2"], "rows (--cp) for a model that a function returns", "make_step"),
        (["nothing.py:make_step", "--ranks", "2"], "there is no file nothing.py", "looked in"),
        (["plan.json", TASK], "plan.json: cannot be read", "gpuwise plan MODEL"),
        ([TASK, "--ranks", "2", "--workers", "-1"], "--workers -1", "--workers 4"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    words: list[str], message: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["run", *words]) == 2
    told = capsys.readouterr()
    assert told.out == "" and message in told.err and hint in told.err.split("hint:")[1]
    assert not (tmp_path / "gpuwise-run").exists()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the kernel tells of a parent's death")
def test_ranks_save_and_end_where_the_command_is_killed(tmp_path: Path) -> None:
    words = [TASK, "--ranks", "2", "--global-batch", "8", "--epochs", "400", "--out", str(tmp_path / "out"), "--no-record"]
    command = subprocess.Popen([sys.executable, "-m", "gpuwise", "run", *words], stderr=subprocess.DEVNULL)
    journals = [tmp_path / "out" / f"rank-{r}.jsonl" for r in (0, 1)]

    def events(kind: str) -> list[dict[str, object]]:
        lines = [line for p in journals if p.exists() for line in p.read_text().splitlines()]
        return [e for e in map(json.loads, lines) if e["event"] == kind]

    until = time.monotonic() + 600
    while not events("step") and time.monotonic() < until:
        time.sleep(0.1)
    # as its launcher, which gives it so long for its last save
    inherited = Path(f"/proc/{events('begin')[0]['pid']}/environ").read_bytes().split(b"\0")
    assert f"TORCH_ELASTIC_SHUTDOWN_TIMEOUT={SAVE_S}".encode() in inherited
    command.kill()
    command.wait()
    while len(events("end")) < 2 and time.monotonic() < until:
        time.sleep(0.1)
    assert {e["reason"] for e in events("end")} == {"asked"} and events("saved")
    pids = [int(str(e["pid"])) for e in events("begin")]
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < until:
        time.sleep(0.1)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_ranks_that_died_are_named(tmp_path: Path) -> None:
    from gpuwise.train.ranks.launch import RankJournal, RanksResult

    steps = [{"event": "step", "step": n, "loss": 1.0} for n in (1, 2)]
    ends = ([{"event": "end", "reason": "error", "code": 1}], [])
    journals: list[RankJournal] = []
    for rank, last in enumerate(ends):
        path = tmp_path / f"rank-{rank}.jsonl"
        path.write_text("".join(json.dumps(e) + "\n" for e in [{"event": "begin", "pid": 1, "attempt": 0}, *steps, *last]))
        journals.append(RankJournal(path))
        journals[-1].read()
    assert RanksResult("failed", 1, tuple(journals), 1.0).died == "rank 1 after step 2"
    assert RanksResult("done", 0, tuple(journals), 1.0).died is None


def test_a_reason_that_a_full_disk_did_not_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from gpuwise.errors import GpuwiseError
    from gpuwise.train.ranks import child, launch

    def full(*_: object, **__: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setenv(launch.WATCHED, "1")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        child.refuse(tmp_path, GpuwiseError("too large", hint="smaller"))
    assert capsys.readouterr().err == "gpuwise: too large\nhint: smaller\n"
    with pytest.raises(GpuwiseError, match="could not write why") as error:
        launch._raise_refused(tmp_path)
    assert "free space" in str(error.value.hint)
    (tmp_path / launch.REFUSED).unlink()
    for said in ("first", "second"):
        child.refuse(tmp_path, GpuwiseError(said))
    with pytest.raises(GpuwiseError, match="first"):
        launch._raise_refused(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == [launch.REFUSED]


def test_a_plan_that_ranks_cannot_do_says_which_part() -> None:
    from gpuwise.errors import LayoutError
    from gpuwise.train.ranks.layout import layout_of
    from gpuwise.workload.strategy import Strategy

    words = "expert parallel 2 of 1 ranks with an offload; fp8; an optimizer on the host without FSDP2"
    with pytest.raises(LayoutError, match=words) as refused:
        layout_of(Strategy(ep=2, precision="fp8", offload_optimizer=True))
    assert "gpuwise export" in str(refused.value)


@pytest.mark.thorough
def test_a_script_with_its_own_group_is_started_as_torchrun_does_and_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """It was refused. A run before in the folder has no part in the steps of this one, and one beside it is refused."""
    monkeypatch.chdir(tmp_path)
    script = str(Path(__file__).with_name("scripts") / "own_group.py")
    for _ in range(2):
        assert run(["run", script, "--ranks", "2", "--no-record", "--json", "--out", "out"]) == 0
        told = json.loads(capfd.readouterr().out.splitlines()[-1])
        assert told["ended"] == "done" and told["steps"] == 24 and told["restarts"] == 0
    with alone_in(tmp_path / "out", "training"):
        assert run(["run", script, "--ranks", "2", "--no-record", "--out", "out"]) == 2
    refused = capfd.readouterr().err
    assert "another training is running in out" in refused.replace(str(tmp_path) + "/", "") and "--out" in refused


@pytest.mark.parametrize(
    ("text", "who"),
    [
        ("import torch.distributed as dist\ndist.init_process_group('nccl')\n", "the script (init_process_group)"),
        ("from accelerate import Accelerator\na = Accelerator()\n", "Accelerate"),
        ("import lightning as L\nL.Trainer().fit(model)\n", "Lightning"),
        ("from accelerate.utils import set_seed\nset_seed(1)\n", None),
        ("import torch\n", None),
        ("def (", None),
    ],
)
def test_what_divides_itself_is_seen_in_the_text(text: str, who: str | None, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(text)
    assert divides_itself(tmp_path / "train.py") == who
