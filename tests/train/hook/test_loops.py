"""Scripts of many kinds, run as they are: their steps are found and what they do is left alone."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from gpuwise.train.hook.journal import read_journal
from gpuwise.train.hook.launch import Limits, launch, take_away
from gpuwise.train.hook.settings import Profiling, Settings, Stop

PLAIN = """
import sys, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
data = TensorDataset(torch.randn(96, 8), torch.randint(0, 4, (96,)))
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
criterion = nn.CrossEntropyLoss()
for epoch in range(2):
    for x, y in DataLoader(data, 8, shuffle=True, num_workers=WORKERS):
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
print("last", loss.item())
torch.save(model.state_dict(), sys.argv[1])
sys.exit(5)
"""


def plain(workers: int = 0) -> str:
    return PLAIN.replace("WORKERS", str(workers))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_plain_loop(run, tmp_path, workers):
    outcome = run(plain(workers), str(tmp_path / "model.pt"))
    journal = outcome.journal
    assert (outcome.ended, outcome.code) == ("exit", 5)
    assert len(journal.ticks) == 24
    assert {(s.samples, s.n_backward, s.n_forward, s.n_batches) for s in journal.steps[:10]} == {(8, 1, 1, 1)}
    assert len(journal.losses) == 24
    assert journal.of("optimizer")[0]["name"] == "AdamW"
    assert [m["name"] for m in journal.of("model")] == ["Sequential"]
    assert journal.of("loader")[0]["num_workers"] == workers
    assert (tmp_path / "model.pt").exists()
    said = (tmp_path / "output").read_text()
    assert f"last {journal.losses[23]:.4f}"[:9] in said
    assert not journal.of("child"), "workers of a loader are no training processes"


ACTOR_CRITIC = """
import copy, torch
from torch import nn
actor, critic = nn.Sequential(nn.Linear(3, 8), nn.Linear(8, 2)), nn.Sequential(nn.Linear(5, 8), nn.Linear(8, 1))
actor_target, critic_target = copy.deepcopy(actor), copy.deepcopy(critic)
of_actor, of_critic = torch.optim.Adam(actor.parameters()), torch.optim.Adam(critic.parameters())
memory = torch.randn(512, 3)
for step in range(40):
    for _ in range(5):
        with torch.no_grad():
            actor(torch.randn(1, 3))  # an action
    state = memory[torch.randint(0, 512, (64,))]
    with torch.no_grad():
        target = critic_target(torch.cat([state, actor_target(state)], 1))
    loss = (critic(torch.cat([state, torch.randn(64, 2)], 1)) - target).pow(2).mean()
    of_critic.zero_grad(); loss.backward(); of_critic.step()
    if step % 2:
        loss = -critic(torch.cat([state, actor(state)], 1)).mean()
        of_actor.zero_grad(); loss.backward(); of_actor.step()
"""


def test_samples_are_those_that_are_learnt_from(run):
    """64 a critic's update, and the actor's 64 again: none for actions, targets, or a critic of the actor's own actions."""
    ticks = run(ACTOR_CRITIC).journal.ticks
    assert len(ticks) == 60
    assert ticks[59].samples - ticks[29].samples == 20 * 64 + 10 * 64


FULL_BATCH = """
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
x = torch.randn(32, 4)
for _ in range(20):
    loss = model(x).pow(2).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
"""


def test_the_same_batch_again_is_learnt_from_again(run):
    ticks = run(FULL_BATCH).journal.ticks
    assert ticks[19].samples - ticks[9].samples == 10 * 32


def test_phases_add_up_to_no_more_than_the_step(run, tmp_path):
    for step in run(plain(), str(tmp_path / "m.pt")).journal.steps:
        assert step.data_s + step.forward_s + step.backward_s + step.optimizer_s <= step.wall_s * 1.001 + 1e-6
        assert min(step.data_s, step.forward_s, step.backward_s, step.optimizer_s) > 0


def test_a_trace_holds_nothing_of_the_question_whether_it_is_enough(run, tmp_path):
    profiling = Profiling(str(tmp_path / "trace.json"), skip=6, steps=3, stacks=True, note_steps=0)
    outcome = run(plain(), str(tmp_path / "m.pt"), stop=Stop(steps=3, at_least_s=0.0), profiling=profiling)
    assert outcome.ended == "enough"
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    ours = {e["name"] for e in events if "gpuwise" in str(e.get("name")) and "script_run.py" in str(e["name"])}
    assert any("_on_tick" in name for name in ours)
    assert not any("is_enough" in name for name in ours)


def test_enough_steps_end_the_script(run, tmp_path):
    outcome = run(plain(), str(tmp_path / "m.pt"), stop=Stop(steps=6))
    assert (outcome.ended, outcome.code) == ("enough", 0)
    assert len(outcome.journal.steady) >= 6
    assert len(outcome.journal.ticks) < 24
    assert not (tmp_path / "m.pt").exists()


def test_a_trial_leaves_checkpoints_alone(run, tmp_path):
    (tmp_path / "m.pt").write_bytes(b"the person's own")
    assert run(plain(), str(tmp_path / "m.pt"), trial=str(tmp_path / "trial")).code == 5
    assert (tmp_path / "m.pt").read_bytes() == b"the person's own"
    assert (tmp_path / "trial" / "m.pt").stat().st_size > 100


AGAIN = """
Path("one").mkdir()
Path("two").mkdir()
torch.save({"at": 1}, "one/best.pt")
torch.save({"at": 2}, "two/best.pt")
assert torch.load("one/best.pt") == {"at": 1} and torch.load(f=Path("two/best.pt")) == {"at": 2}
shutil.copyfile("one/best.pt", "kept.pt")
raise SystemExit("not reached: the file is elsewhere")
"""


def test_a_trial_reads_its_own_checkpoints_and_ends_where_another_asks_for_them(run, tmp_path):
    lines = [line for line in plain().splitlines() if "sys.exit" not in line]
    beginning = ["import os, shutil", "from pathlib import Path"]
    script = "\n".join([*beginning, *lines, f"os.chdir({str(tmp_path)!r})"]) + AGAIN
    outcome = run(script, str(tmp_path / "m.pt"), trial=str(tmp_path / "trial"))
    assert (outcome.ended, outcome.code) == ("end", 0)
    assert len(outcome.journal.ticks) == 24
    assert not list((tmp_path / "one").iterdir())
    assert {p.name for p in (tmp_path / "trial").iterdir()} == {"m.pt", "best.pt", "1-best.pt"}


WRITES = """
import os, shutil, sys
from pathlib import Path
os.chdir(sys.argv[1])
Path("made/deep").mkdir(parents=True)
Path("made/deep/log").write_text("new")
Path("made/part").write_text("new")
os.replace("made/part", "moved")
Path("note").write_text("new")
os.rename("log", "log.1")
Path("log").write_text("anew")
shutil.rmtree("results")
Path("results").mkdir()
Path("results/last").write_text("anew")
with open("kept", "a") as file:
    file.write(" and more")
"""


THEIRS = {"log": "anew", "log.1": "the person's", "kept": "the person's and more", "results/last": "anew"}
ALONE = """
import sys
from pathlib import Path
from gpuwise.train.hook.child import tell_made
from gpuwise.train.hook.journal import Writer
tell_made(Writer(Path(sys.argv[2])), Path.cwd(), Path(sys.argv[2]).parent)
"""


@pytest.fixture
def person(tmp_path, monkeypatch):
    folder = tmp_path / "person"
    (folder / "results").mkdir(parents=True)
    for name in ("log", "kept", "results/last"):
        (folder / name).write_text("the person's")
    monkeypatch.chdir(folder)
    return folder


def files_below(folder):
    return {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*") if p.is_file()}


def test_what_a_trial_makes_is_taken_away_and_nothing_else(person, tmp_path):
    (tmp_path / "ours").mkdir()
    journal, since_s = tmp_path / "ours" / "journal.jsonl", time.time()
    subprocess.run([sys.executable, "-c", ALONE + WRITES, str(person), str(journal)], check=True)
    assert files_below(person) == {**THEIRS, "made/deep/log": "new", "moved": "new", "note": "new"}
    take_away(read_journal(journal), since_s)
    assert files_below(person) == THEIRS
    assert not (person / "made").exists()


@pytest.mark.slow
@pytest.mark.parametrize("tidies", [False, True])
def test_a_trial_of_a_real_loop_is_tidied(person, tmp_path, tidies):
    (tmp_path / "script.py").write_text(WRITES + plain().replace("sys.argv[1]", "'m.pt'"))
    journal = str(tmp_path / "ours" / "run" / "journal.jsonl")
    given = Settings(
        str(tmp_path / "script.py"), [str(person)], journal, trial=str(tmp_path / "ours" / "run" / "saved"), tidies=tidies
    )
    assert launch(given, tmp_path / "ours" / "run", output=tmp_path / "output").code == 5
    more = {} if tidies else {"made/deep/log": "new", "moved": "new", "note": "new"}
    assert files_below(person) == {**THEIRS, **more}


def test_the_constant_batch_keeps_the_length_of_an_epoch(run, tmp_path):
    journal = run(plain(), str(tmp_path / "m.pt"), constant_batch=True).journal
    assert len(journal.ticks) == 24


def test_watching_changes_no_number(run, tmp_path):
    watched = run(plain(), str(tmp_path / "a.pt")).journal.losses
    again = run(plain(), str(tmp_path / "b.pt")).journal.losses
    assert watched == again


@pytest.mark.thorough
def test_a_watched_script_has_the_numbers_of_a_bare_one(run, tmp_path):
    watched = run(plain(), str(tmp_path / "a.pt")).journal.losses
    bare = subprocess.run(
        [sys.executable, str(tmp_path / "script.py"), str(tmp_path / "c.pt")], capture_output=True, text=True, check=False
    )
    assert bare.returncode == 5
    assert float(bare.stdout.split()[-1]) == pytest.approx(watched[23], rel=1e-6)


ACCUMULATION = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
data = TensorDataset(torch.randn(96, 8), torch.randint(0, 4, (96,)))
model = nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), 1e-2)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
for i, (x, y) in enumerate(DataLoader(data, 4)):
    with torch.autocast("cpu", torch.float16):
        loss = nn.functional.cross_entropy(model(x).float(), y) / 4
    scaler.scale(loss).backward()
    if i % 4 == 3:
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
"""


def test_accumulation_and_a_scaler(run):
    journal = run(ACCUMULATION).journal
    assert len(journal.ticks) == 6
    assert {(s.n_backward, s.samples) for s in journal.steps} == {(4, 16)}
    assert all(0.2 < loss < 1.0 for loss in journal.losses.values()), "losses before they are scaled"


TWO = """
import torch
from torch import nn
g, d = nn.Linear(4, 8), nn.Linear(8, 1)
og, od = torch.optim.Adam(g.parameters()), torch.optim.Adam(d.parameters())
for step in range(12):
    for _ in range(2):
        od.zero_grad(); loss = d(g(torch.randn(5, 4)).detach()).mean(); loss.backward(); od.step()
    og.zero_grad(); loss = -d(g(torch.randn(5, 4))).mean(); loss.backward(); og.step()
"""


def test_two_optimizers_make_one_step(run):
    journal = run(TWO).journal
    assert len(journal.steps) == 11
    assert {(s.n_optimizer, s.n_backward) for s in journal.steps} == {(3, 3)}


def test_a_loop_without_an_optimizer_is_counted_by_its_backward_passes(run):
    journal = run("""
import torch
w = torch.zeros(3, requires_grad=True)
for _ in range(9):
    ((w - 1) ** 2).sum().backward()
    with torch.no_grad():
        w -= 0.1 * w.grad
        w.grad = None
""").journal
    assert len(journal.steps) >= 5
    assert {s.n_backward for s in journal.steps} == {1}


COMPILED = """
import sys, torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x):
        return self.b(self.a(x).relu())


model = Net()
if sys.argv[1] == "inplace":
    model.compile(backend="aot_eager")
else:
    model = torch.compile(model, backend="aot_eager")
optimizer = torch.optim.SGD(model.parameters(), 1e-2)
for _ in range(8):
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
from torch._dynamo.utils import counters
print("frames", counters["stats"]["unique_graphs"], "breaks", sum(counters["graph_break"].values()))
"""


@pytest.mark.parametrize("how", ["inplace", "wrapped"])
def test_a_compiled_model_is_one_graph_still(run, tmp_path, how):
    outcome = run(COMPILED, how)
    assert outcome.ended == "end", outcome.error
    assert "frames 1 breaks 0" in (tmp_path / "output").read_text()
    assert all(s.forward_s > 0 for s in outcome.journal.steps)


def test_a_script_that_fails_says_where(run, tmp_path):
    outcome = run("import torch\n\ndef f():\n    return 1 / 0\n\nf()\n")
    assert (outcome.ended, outcome.code) == ("error", 1)
    assert outcome.error == "ZeroDivisionError: division by zero"
    assert outcome.where is not None
    assert outcome.where.endswith("script.py:4")
    said = (tmp_path / "output").read_text()
    assert said.count("ZeroDivisionError") == 1
    assert "hook" not in said, "its traceback is its own"


def test_a_script_that_reads_its_input(run):
    outcome = run("import torch\nname = input('which? ')\n")
    assert outcome.ended == "error"
    assert outcome.journal.end["reads_input"]


def test_memory_that_is_not_there_is_a_result(run):
    outcome = run("import torch\ntorch.empty(2**60)\n")
    assert outcome.out_of_memory
    assert outcome.ended == "error"


def test_no_such_script(run, tmp_path):
    outcome = run(tmp_path / "none.py")
    assert outcome.code == 2
    assert "none.py" in str(outcome.error)


@pytest.mark.thorough
def test_limits_end_a_script(run):
    endless = "import torch, time\nwhile True:\n    time.sleep(0.05)\n"
    assert run(endless, limits=Limits(wall_s=1)).ended == "time"
    assert run(endless, limits=Limits(wall_s=600, first_step_s=0.5)).ended == "no step"
    hungry = "import torch, time\nheld = []\nwhile True:\n    held.append(bytearray(b'x' * 10**8)); time.sleep(0.01)\n"
    outcome = run(hungry, limits=Limits(wall_s=600, memory_bytes=900_000_000))
    assert outcome.ended == "memory"
    assert outcome.out_of_memory


def test_a_killed_script_keeps_its_ticks(run, tmp_path):
    endless = plain().replace("range(2)", "range(10**9)")
    seen = []

    def look(journal):
        if not seen and len(journal.ticks) > 50:  # once: word of its end may come later than the next look
            seen.append(len(journal.ticks))
            os.kill(journal.begin["pid"], signal.SIGKILL)

    from gpuwise.train.hook.launch import launch
    from gpuwise.train.hook.settings import Settings

    (tmp_path / "script.py").write_text(endless)
    outcome = launch(
        Settings(str(tmp_path / "script.py"), ["x"], str(tmp_path / "j")),
        tmp_path,
        limits=Limits(wall_s=600),
        look=look,
        look_every_s=0.2,
        output=tmp_path / "output",
        zygote=run.zygote,
    )
    assert outcome.ended == "killed"
    assert outcome.code == 128 + signal.SIGKILL
    assert len(outcome.journal.ticks) >= seen[-1] > 50


def test_training_in_processes_of_its_own_is_told(run):
    outcome = run("""
import torch, multiprocessing

def train():
    pass

if __name__ == "__main__":
    process = multiprocessing.get_context("fork").Process(target=train)
    process.start()
    process.join()
""")
    assert [c["what"] for c in outcome.journal.of("child")] == ["train"]
    assert not outcome.journal.ticks


def test_exit_functions_and_arguments_are_the_scripts_own(run, tmp_path):
    outcome = run(
        """
import atexit, sys, torch
atexit.register(lambda: print("left with", __name__, sys.argv[1:]))
raise SystemExit("a word")
""",
        "--lr",
        "3",
    )
    assert outcome.code == 1
    said = (tmp_path / "output").read_text()
    assert "a word" in said
    assert "left with __main__ ['--lr', '3']" in said


def test_runs_of_one_process_do_not_see_each_other(run):
    first = run("import torch, os\nos.environ['SEEN'] = '1'\ntorch.set_num_threads(2)\n")
    second = run("import torch, os, sys\nsys.exit(7 if 'SEEN' in os.environ else 0)\n")
    assert first.ok
    assert second.code == 0


def test_a_run_begins_without_importing_torch_again(run):
    outcome = run("import sys\nsys.exit(3 if 'torch' in sys.modules else 4)\n")
    assert outcome.code == 3


@pytest.mark.thorough
def test_a_module_runs_once_and_only_as_main(run, tmp_path, monkeypatch):
    folder = tmp_path / "package"
    folder.mkdir()
    (folder / "train.py").write_text("import sys\nwith open(sys.argv[1], 'a') as file:\n    file.write(__name__ + ' ')\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]))
    outcome = launch(
        Settings("package.train", [str(tmp_path / "said")], str(tmp_path / "journal.jsonl"), module=True),
        tmp_path,
        output=tmp_path / "output",
    )
    assert (outcome.ended, outcome.code) == ("end", 0), (tmp_path / "output").read_text()
    assert (tmp_path / "said").read_text() == "__main__ "
