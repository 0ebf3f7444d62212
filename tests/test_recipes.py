"""The recipes of CONTRIBUTING, followed in a copy of the package: the files that each names are enough, and the product answers.

Each recipe adds one made-up noun. One process of the copy is asked about all of them.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gpuwise

pytestmark = pytest.mark.thorough

PACKAGE = Path(gpuwise.__file__).parent
RECIPES = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text()


class Copy:
    """A copy of the package that recipes change; ``touched`` are the files that the recipe at work has changed."""

    def __init__(self, folder: Path) -> None:
        self.package = folder / "gpuwise"
        shutil.copytree(PACKAGE, self.package, ignore=shutil.ignore_patterns("__pycache__"))
        self.touched: set[str] = set()

    def new(self, name: str, text: str) -> None:
        path = self.package / name
        assert not path.exists()
        path.write_text(text)
        self.touched.add(name)

    def after(self, name: str, place: str, text: str) -> None:
        """``text`` behind the one ``place`` of a file."""
        path = self.package / name
        before = path.read_text()
        assert before.count(place) == 1, (name, place)
        path.write_text(before.replace(place, place + text))
        self.touched.add(name)


def row_like(copy: Copy, name: str, like: str, changed: dict[str, str]) -> str:
    """A line of a CSV file that is equal to the line ``like`` but for some columns."""
    lines = (copy.package / name).read_text().splitlines()
    names = lines[0].split(",")
    (line,) = [x for x in lines if x.startswith(f"{like},")]
    cells = line.split(",")
    for column, value in changed.items():
        cells[names.index(column)] = value
    return ",".join(cells)


def add_gpu(copy: Copy) -> None:
    name = "facts/data/hardware/accelerators.csv"
    line = row_like(
        copy, name, "rtx-4090", {"id": "rtx-4090-twin", "name": "RTX 4090 Twin", "memory_gb": "48", "memory_mib": "49152"}
    )
    line = re.sub(r",24085,", ",,", line)
    (end,) = [x for x in (copy.package / name).read_text().splitlines() if x.startswith("rtx-4090,")]
    copy.after(name, f"\n{end}\n", f"{line}\n")


def add_model(copy: Copy) -> None:
    sizes = "n_layers = 24, hidden = 2048, ffn = 8192, heads = 32, tied_embeddings = true"
    line = f'"llama-3.2-2b" = {{ name = "Llama 3.2 2B", {sizes} }}\n'
    found = re.search(r'"llama-3\.2-1b" = .*\n', (copy.package / "facts/data/models/models_llama.toml").read_text())
    assert found is not None
    copy.after("facts/data/models/models_llama.toml", found[0], line)


def add_stack(copy: Copy) -> None:
    text = """source = "a made-up trainer of one device"
like = "compiled"

[memory]
source = "as torch.compile"
like = "compiled"

[layout]
source = "its README: DDP"
like = "eager"
shardings = ["none"]
offload_optimizer = false

[export]
tool = "trainer"
"""
    copy.new("workload/stacks/oneshot.toml", text)


def add_engine(copy: Copy) -> None:
    text = '''"""OneShot."""

from gpuwise.serve.engines.engine import Engine, Start
from gpuwise.serve.engines.settings import EngineRules, Tier


class OneShot(Engine):
    name = "oneshot"
    title = "OneShot"
    newest = "1"
    formats = ("bf16", "int8_wo", "int4_wo")
    by_bits = {16: "bf16", 8: "int8_wo", 4: "int4_wo"}
    in_turn = 1
    streams = "single_stream"
    rules = EngineRules(
        since="0", source="its source", scheduler="slots", pool="slots", block_tokens=1, ahead=False,
        tiers=(Tier(1e9, tokens=512, sequences=1, graph_most=1, group_graph_most=1),), memory_share=1.0,
    )

    def words(self, start: Start) -> list[str]:
        return ["oneshot", start.model]
'''
    copy.new("serve/engines/oneshot.py", text)
    names = "serve/engines/__init__.py"
    copy.after(names, "from gpuwise.serve.engines.mlx import MLX\n", "from gpuwise.serve.engines.oneshot import OneShot\n")
    copy.after(names, "LlamaCpp(), MLX()", ", OneShot()")
    copy.after("cli/capacity/command.py", "vllm, sglang, trtllm,", " oneshot,")


def add_block(copy: Copy) -> None:
    """The recurrent block of Griffin (arXiv 2402.19427; transformers modeling_recurrent_gemma.py)."""
    architecture = "facts/models/architecture.py"
    copy.after(
        architecture,
        """        return f"{self.conv} tokens wide"
""",
        '''

@dataclass(frozen=True, slots=True)
class LinearRecurrence:
    """A real-gated linear recurrence (Griffin), whose gates are matrices of ``heads`` blocks."""

    inner: int
    heads: int
    conv: int = 4

    @property
    def shown(self) -> str:
        """Its dimensions for people to read."""
        return f"{self.inner} channels"
''',
    )
    copy.after(architecture, '    "short_conv": ShortConv,\n', '    "recurrence": LinearRecurrence,\n')
    copy.after(
        architecture,
        '    "C": Letter("short convolution", "short_conv"),\n',
        '    "G": Letter("linear recurrence", "recurrence"),\n',
    )
    needs = '"C in the pattern needs a short convolution, and a short convolution needs a C"),\n'
    copy.after(
        architecture,
        needs,
        '    "recurrence": ("a recurrence", "G in the pattern needs a recurrence, and a recurrence needs a G"),\n',
    )
    copy.after(architecture, "    short_conv: ShortConv | None = None\n", "    recurrence: LinearRecurrence | None = None\n")
    reader = "facts/models/config_hybrid.py"
    copy.after(reader, "Architecture, LinearAttention,", " LinearRecurrence,")
    copy.after(
        reader,
        """        tied_embeddings=c.flag("tie_word_embeddings", c.flag("tie_embedding", True)),
    )
""",
        """

def _recurrent_gemma(c: Config) -> Architecture:
    kinds, n = c.words("block_types"), c.count("num_hidden_layers")
    width, heads = c.maybe("lru_width") or c.count("hidden_size"), c.count("num_attention_heads")
    words = ["*-" if kinds[i % len(kinds)] == "attention" else "G-" for i in range(n)]
    return _architecture(
        c,
        n_layers=n,
        ffn=c.count("intermediate_size") // 2,
        recurrence=LinearRecurrence(width, heads, c.count("conv1d_width")),
        pattern=_pattern(words),
        position="rope",
        attention_out_bias=True,
        mlp_bias=True,
        tied_embeddings=True,
    )
""",
    )
    copy.after(reader, '    "lfm2_moe": _lfm2,\n', '    "recurrent_gemma": _recurrent_gemma,\n')
    copy.new(
        "workload/blocks/linear_recurrence.py",
        '''"""Griffin's recurrent block: two projections, a convolution a gated recurrence of one, product, projection."""

from gpuwise.facts.models.architecture import Architecture
from gpuwise.workload.blocks.block import Block


class Recurrence(Block):
    where = "recurrence"
    token_launches = 8
    divided_as = "mixer"

    def parameters(self, arch):
        h, r = arch.hidden, arch.recurrence
        gates = 2 * (r.inner * r.inner // r.heads + r.inner)
        return {"mixer": 2 * (h * r.inner + r.inner) + r.inner * h + h + r.inner * (r.conv + 1) + gates + r.inner}

    def products(self, arch):
        h, inner = arch.hidden, arch.recurrence.inner
        return [("linear_x", h, inner), ("linear_y", h, inner), ("linear_out", inner, h)]

    def fused_rows(self, rows, arch):
        p, r = rows.point, arch.recurrence
        width = max(1, r.inner // p.tp)
        elements = float(p.tokens * width)
        rows.enter("recurrence", arch.hidden)
        for name in ("linear_x", "linear_y"):
            rows.linear(f"recurrence.{name}", p.tokens, arch.hidden, width, bias=True, saved_tokens=p.column_tokens)
        for name in ("conv", "scan"):
            rows.memory(f"recurrence.{name}", elements, elements, saved=elements)
        rows.memory("recurrence.gates", elements, 2 * elements, saved=2 * elements)
        rows.memory("recurrence.product", 2 * elements, elements, saved=2 * elements)
        rows.linear("recurrence.linear_out", p.tokens, width, arch.hidden, bias=True)
        rows.leave("recurrence", arch.hidden)

    def state_bytes(self, arch, tp):
        r = arch.recurrence
        return r.inner / tp * (4.0 + (r.conv - 1) * 2.0)

    def trained_parts(self, arch):
        return (arch.recurrence.heads,)
''',
    )
    kinds = "workload/blocks/kinds.py"
    copy.after(
        kinds,
        "from gpuwise.workload.blocks.linear_attention import GatedDelta\n",
        "from gpuwise.workload.blocks.linear_recurrence import Recurrence\n",
    )
    copy.after(kinds, "PER_LAYER, SHORT_CONV = PerLayerInput(), ShortConvolution()\n", "RECURRENCE = Recurrence()\n")
    copy.after(kinds, "STATE_SPACE, LINEAR, PER_LAYER, SHORT_CONV", ", RECURRENCE")
    copy.after(kinds, '        "C": (SHORT_CONV,),\n', '        "G": (RECURRENCE,),\n')


def add_option(copy: Copy) -> None:
    row = '\n    host_copies: int = option(1, "Copies of what is in host memory.", unit="COPIES", usual="1")'
    copy.after("workload/strategy.py", '"""Gradient reduction and parameter gathers run behind backward and forward."""', row)
    copy.after("predict/memory/host.py", "    return total *", " c.base.host_copies *")


def patterns(heading: str) -> list[str]:
    """Files that the recipe under ``heading`` names, as patterns under the package."""
    text = RECIPES.split(f"## {heading}\n")[1].split("\n## ")[0]
    folder = re.search(r"file under `src/gpuwise/?([\w/]*)`", text)
    named = [name.removeprefix("src/gpuwise/") for name in re.findall(r"`([\w/<>*.-]+\.(?:py|toml|csv))`", text)]
    base = f"{folder[1]}/" if folder and folder[1] else ""
    return [re.sub(r"<\w+>|\\\*", r"[\\w.-]+", re.escape(base + name)) for name in named]


FOLLOWED: list[tuple[str, Callable[[Copy], None], int]] = [
    ("Add a fact", add_gpu, 1),
    ("Add a fact", add_model, 1),
    ("Add a kind of block", add_block, 4),
    ("Add a stack", add_stack, 1),
    ("Add an engine", add_engine, 4),
    ("Add an option", add_option, 6),
]
RECURRENT_GEMMA = {
    "model_type": "recurrent_gemma",
    "num_hidden_layers": 26,
    "vocab_size": 256000,
    "hidden_size": 2560,
    "intermediate_size": 15360,
    "num_attention_heads": 10,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "lru_width": 2560,
    "conv1d_width": 4,
    "max_position_embeddings": 8192,
    "block_types": ["recurrent", "recurrent", "attention"],
}
"""google/recurrentgemma-2b."""
ASKED: dict[str, list[str]] = {
    "gpu": ["fit", "llama-3.1-8b", "--on", "RTX 4090 Twin", "--qlora"],
    "model": ["op", "decode", "llama-3.2-2b", "--on", "4090"],
    "trained block": ["fit", "griffin.json", "--on", "a100-80gb", "--seq", "2048"],
    "served block": [
        "capacity",
        "griffin.json",
        "--on",
        "h100-sxm",
        "--engine",
        "vllm",
        "--quick",
        "--workload",
        "in=100,out=20",
    ],
    "stack": ["fit", "llama-3.2-1b", "--on", "a100-80gb", "--stack", "oneshot"],
    "engine": [
        "capacity",
        "llama-3.2-1b",
        "--on",
        "4090",
        "--engine",
        "oneshot",
        "--weights",
        "4",
        "--quick",
        "--workload",
        "in=100,out=20",
    ],
    "one copy": ["fit", "llama-3.2-1b", "--on", "2xh100-sxm", "--sharding", "zero3", "--offload-optimizer"],
    "two copies": [
        "fit",
        "llama-3.2-1b",
        "--on",
        "2xh100-sxm",
        "--sharding",
        "zero3",
        "--offload-optimizer",
        "--host-copies",
        "2",
    ],
}
PROGRAM = """
import contextlib, io, json, sys
from gpuwise.cli.app import run
answers = {}
for name, words in json.load(sys.stdin).items():
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run([*words, "--json"])
    text = out.getvalue().strip().splitlines()
    answers[name] = {"code": code, "error": err.getvalue(), "answer": json.loads(text[-1]) if text else None}
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[set[str]]]:
    """The copy with all that is added, and the files that each recipe touched."""
    copy = Copy(tmp_path_factory.mktemp("recipes"))
    touched: list[set[str]] = []
    for _, follow, _ in FOLLOWED:
        copy.touched = set()
        follow(copy)
        touched.append(copy.touched)
    return copy.package.parent, touched


def ask(folder: Path, program: str, questions: object) -> Any:
    environment = {"PYTHONPATH": str(folder), "PATH": "/usr/bin:/bin", "HOME": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=json.dumps(questions),
        capture_output=True,
        text=True,
        env=environment,
        cwd=folder,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def answers(followed: tuple[Path, list[set[str]]]) -> dict[str, Any]:
    (followed[0] / "griffin.json").write_text(json.dumps(RECURRENT_GEMMA))
    return ask(followed[0], PROGRAM, ASKED)


@pytest.mark.parametrize("i", range(len(FOLLOWED)), ids=[f.__name__ for _, f, _ in FOLLOWED])
def test_a_recipe_names_every_file_that_it_takes(followed: tuple[Path, list[set[str]]], i: int) -> None:
    heading, _, most = FOLLOWED[i]
    touched = followed[1][i]
    named = patterns(heading)
    other = [name for name in touched if not any(re.fullmatch(p, name) for p in named)]
    rule = "what counts its bytes or its time, in `workload/` or `predict/`"
    if heading == "Add an option" and rule in RECIPES:
        other = [name for name in other if not name.startswith(("workload/", "predict/"))]
    assert other == [] and 1 <= len(touched) <= most


@pytest.mark.parametrize("name", ASKED)
def test_the_product_answers_with_what_was_added(answers: dict[str, Any], name: str) -> None:
    assert answers[name]["code"] in (0, 1) and answers[name]["answer"], answers[name]["error"]
    text = json.dumps(answers[name]["answer"])
    assert {"gpu": "RTX 4090 Twin", "model": "llama-3.2-2b", "stack": "oneshot", "engine": "oneshot"}.get(name, "") in text


def test_an_added_block_counts_its_weights(answers: dict[str, Any]) -> None:
    """``RecurrentGemmaForCausalLM`` of transformers has as many with this configuration, tied embeddings counted once."""
    assert answers["trained block"]["answer"]["model"]["parameters"] == 2_682_862_080


def test_an_added_option_counts(answers: dict[str, Any]) -> None:
    one, two = (answers[name]["answer"]["host_bytes"] for name in ("one copy", "two copies"))
    assert one > 0 and two == pytest.approx(2 * one)
