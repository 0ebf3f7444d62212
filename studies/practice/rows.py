"""Published runs beside what ``gpuwise plan --json`` answers to their commands.

Table ``practice/published_runs.csv``: a run's figure and the command that asks the same question. An answer gives the tuned
level, the goodput and the headline; a whole run's hours hold its stops, a rate does not.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from gpuwise.errors import DataError, InputError
from gpuwise.facts.hardware.accelerators import accelerators
from gpuwise.files import csv_rows, read_text
from gpuwise.predict.practice import RULE_MFU, is_sharded, rate_of, scale_of
from gpuwise.units import DAY_S, GIB, HOUR_S, TERA
from gpuwise.workload.stacks.stack import FUSED_SINCE, HIDDEN_EXPERTS_SINCE, find_stack

TABLE = Path("practice") / "published_runs.csv"
WHOLE = {"gpu_hours": HOUR_S, "hours": HOUR_S, "days": DAY_S}
"""Metrics of whole runs: seconds of one unit."""
RATES = {
    "tgs": "tokens_per_s_per_gpu",
    "tgs_total": "tokens_per_s",
    "mfu": "mfu",
    "tflops": "hfu",
    "tflops_model": "mfu",
}
"""Metrics of rates and the key of an answer that has them."""
MEMORY_UNITS = {"GB": 1e9, "GiB": GIB}
RECIPE = "torchtune"
"""How sources begin whose figures are torchtune's own."""
ALLOCATED = (
    RECIPE,
    "github.com/Lightning-AI/litgpt",
    "github.com/hpcaitech/ColossalAI",
    "github.com/NVIDIA-NeMo/Megatron-Bridge skills",
    "gist.github.com/chenyaofo",
)
"""Sources whose peak is torch's ``max_memory_allocated`` (torchtune ``log_memory_stats``, litgpt ``finetune/lora.py``,
Colossal-AI ``performance_evaluator.py``, Megatron-LM ``report_memory``); others say what the GPU needs."""
ARXIV = re.compile(r"arXiv (\d\d)\d\d\.\d{4,5}")
"""A paper's number, which begins with its year."""
STACK = re.compile(r" --stack \S+")
UNFUSED = "before FlashAttention"
"""What the source of a run says whose attention was not fused."""
EARLIER = {
    "nanogpt-bench-compile": 2022,
    "flagperf-llama2-7b-lora": 2023,
    "flagperf-mem-llama2-7b-lora": 2023,
    "vertex-mem": 2023,
}
"""Years of the software, by how names begin, where the source has no number or the family is newer: nanoGPT's README has 135 ms
since 30 December 2022, its model.py scaled_dot_product_attention since 30 January 2023; FlagPerf's requirements.txt has
transformers 4.31, OpenLLaMA's report is of 2023."""
OWN_ATTENTION = ("longlora",)
"""Families that patched a fused attention into the Transformers of their year."""
SCRIPTS = "flagperf-mem-llama2-7b-ds"
"""How runs begin that turn DeepSpeed's linear off (FlagPerf's run_pretraining.py: ``mem_efficient_linear=False``)."""
EXPERTS = {
    "arctic": 2024,
    "grin-moe": 2024,
    "deepseek-v2": HIDDEN_EXPERTS_SINCE,
    "deepseek-v3": HIDDEN_EXPERTS_SINCE,
    "deepseek-v3-bf16": HIDDEN_EXPERTS_SINCE,
    "llama3-e8t2": HIDDEN_EXPERTS_SINCE,
}
"""Years of the software of models with experts whose source has no arXiv number or another year: DeepSeek's exchange was hidden
before others' (arXiv 2405.04434 section 3.1.3, 2412.19437 section 3.2), Megatron-Core of 2412.09952 is that of its next year."""
OTHER_WORK = {
    "llama3.2-1b": "pruned from Llama 3.1 8B and distilled from 8B and 70B: the hours are of all stages (llama3_2/MODEL_CARD.md)",
    "llama3.2-3b": "pruned from Llama 3.1 8B and distilled from 8B and 70B: the hours are of all stages (llama3_2/MODEL_CARD.md)",
    "dbrx": "the three months hold post-training, evaluation and red-teaming (databricks.com/blog, introducing DBRX)",
    "deepseek-v3-bf16": "the run computed in fp8 (arXiv 2412.19437, section 3.3)",
}
"""Runs whose published figure is of other work than the command asks for. They are judged, and not fitted."""
AUTHORS = re.compile(
    "Megatron-MoE-ModelZoo|NVIDIA|docs.nvidia.com|AutoModel|arXiv (2504.14960|2412.09952|2505.11432)|InternLM/xtuner"
    "|AMD-AGI/Primus|pytorch.org/blog|pytorch/torchtitan|KempnerForge"
)
"""Sources that are tables of speed by the authors of a stack: measured over some steps, tuned, and of no run. The papers are
Megatron-Core's folding and upcycling, and MegaScale-MoE."""
ANOTHER_STACK = "megascale-moe-megatron"
"""A row of such a table that is of another's stack."""
FAMILY = re.compile(r"^(llama|phi|deepseek|nemotron|falcon|internlm|mtnlg|megascale|nanogpt|llmc|bloom|tt|lf)")
"""A family is its name's first word; these have sizes or versions in it."""
Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class PublishedRun:
    """A line of the table."""

    id: str
    kind: str
    metric: str
    value: float
    command: str
    unit: str = ""
    source: str = ""

    @property
    def how(self) -> str:
        """``best`` (its own layout), ``layout`` (the published one), or another question."""
        return self.id.rsplit("/", 1)[-1]

    @property
    def family(self) -> str:
        """The runs that are left out together."""
        name = self.id.split("/")[0]
        if name.startswith("llama"):
            return re.split(r"[.-]", name)[0]
        match = FAMILY.match(name)
        return match.group(1) if match else name.split("-")[0]

    def dated(self, runs: Sequence[PublishedRun]) -> str:
        """The command with the software that the run had: the year of the oldest paper on its family among ``runs`` where that
        is older than fused attention (of models with experts: than an exchange that is hidden; of fine-tuning: than that of
        Transformers), and torchtune or a script around DeepSpeed where the figure is theirs, in place of the stack that stands
        for it."""
        years = [2000 + int(found[1]) for r in runs if r.family == self.family and (found := ARXIV.search(r.source))]
        years += [FUSED_SINCE - 1] * (UNFUSED in self.source)
        years += [year for name, year in EARLIER.items() if self.id.startswith(name)]
        if self.source.startswith(RECIPE):
            return f"{STACK.sub('', self.command)} --stack torchtune"
        if self.id.startswith(SCRIPTS):
            return f"{STACK.sub('', self.command)} --stack deepspeed-script"
        since = FUSED_SINCE
        if self.kind.startswith("finetune") and self.family not in OWN_ATTENTION:
            since = find_stack("trainer").fused_since
        if self.kind == "moe":
            since, name = HIDDEN_EXPERTS_SINCE, self.id.split("/")[0]
            years = [EXPERTS[name]] if name in EXPERTS else years
        old = years and min(years) < since and "--year" not in self.command
        return f"{self.command} --year {min(years)}" if old else self.command

    @property
    def other_work(self) -> str:
        """Of what else the published figure is; empty where it is what the command asks for."""
        return OTHER_WORK.get(self.id.split("/")[0], "")

    @property
    def of_authors(self) -> bool:
        """Whether the figure is of a model with experts and from a table of a stack's own authors: what a plan calls tuned."""
        return self.kind == "moe" and not self.id.startswith(ANOTHER_STACK) and AUTHORS.search(self.source) is not None

    @property
    def scored(self) -> str:
        """The class it is scored in: kind, memory apart."""
        return self.kind + ("-memory" if self.metric == "mem" and not self.kind.endswith("memory") else "")


@dataclass(frozen=True, slots=True)
class PracticeRow:
    """One run against its answer; logarithms."""

    run: PublishedRun
    level: str
    """Kind of :func:`gpuwise.predict.practice.kind_of`."""
    slower: float
    """Published seconds of training over the tuned ones."""
    size: float
    sparsity: float
    """Both of :func:`gpuwise.predict.practice.scale_of`."""
    rate: float
    """Of :func:`gpuwise.predict.practice.rate_of`."""
    total: float
    """Headline over published seconds (of bytes: memory)."""
    inside: bool
    """Whether the published figure lies in the headline's 80 % interval."""
    rule: float
    """Seconds by "40 % MFU" over the published ones."""
    alone: bool = False
    """On one GPU, which has no level but the tuned one."""
    sharded: bool = False
    """Of :func:`gpuwise.predict.practice.is_sharded`."""


def published_runs(folder: Path) -> list[PublishedRun]:
    """The runs that ask ``gpuwise plan``. Raises InputError when the table is not there."""
    path = folder / TABLE
    if not path.is_file():
        raise InputError(f"{TABLE} is not in {folder}", hint="name the folder of measurements")
    return read_runs(path)


def read_runs(path: Path) -> list[PublishedRun]:
    """The runs of a table of these columns that ask ``gpuwise plan``."""
    rows = csv_rows(read_text(path), str(path), strict=False)
    header = next(rows, None)
    names = [] if header is None else header[1]
    try:
        runs = [_run(dict(zip(names, cells, strict=False))) for _, cells in rows if cells]
    except (KeyError, ValueError) as error:
        raise DataError(f"{path}: {error}", hint="is it laid out like the published measurement tables?") from None
    return [r for r in runs if r.command.startswith("gpuwise plan ")]


def _run(line: Mapping[str, str]) -> PublishedRun:
    value = float(line["published_value"])
    return PublishedRun(line["id"], line["kind"], line["published_metric"], value, line["command"], line["unit"], line["source"])


def practice_rows(runs: list[PublishedRun], answers: Mapping[str, Document]) -> Iterator[PracticeRow]:
    """Rows of the runs that were answered and whose metric the answer has."""
    for run in runs:
        answer = answers.get(run.id) or {}
        if answer.get("best") and run.how in ("best", "layout"):
            yield _row(run, answer)


def _row(run: PublishedRun, answer: Document) -> PracticeRow:
    best, cluster = cast(Document, answer["best"]), cast(Document, answer["cluster"])
    tuned, strategy = best["tuned"], best["strategy"]
    model, accelerator = answer["model"], accelerators()[cluster["accelerator"]]
    n = float(cluster["accelerators"])
    head = [_figure(run, best, key, n, accelerator.peak(strategy["precision"])) for key in ("low", "expected", "high")]
    inside = min(head) <= run.value <= max(head)
    of_time = run.metric in WHOLE or run.metric in ("step", "mem")
    total = math.log(head[1] / run.value) * (1 if of_time else -1)
    # the headline of a whole run holds what is lost on the way, as the published figure does; a rate does not
    slowdown = math.log(best["step_time_s"]["expected"] / tuned["step_time_s"]["expected"])
    lost = math.log(best["goodput"]["share"]) if run.metric in WHOLE and best["goodput"] else 0.0
    recipe = strategy["lora_rank"] or find_stack(strategy["stack"]).recipes
    level = "adapters" if recipe else "dense" if model["parameters"] == model["active_parameters"] else "experts"
    return PracticeRow(
        run,
        level,
        slowdown - total,
        *scale_of(model["parameters"], model["active_parameters"]),
        rate_of(accelerator),
        total,
        inside,
        total + math.log(best["mfu"]["expected"] / RULE_MFU) + lost,
        n == 1.0,
        is_sharded(level, strategy["stack"]),
    )


def _figure(run: PublishedRun, best: Document, end: str, n: float, peak: float) -> float:
    """The answer's figure in the unit of the published one."""
    if run.metric in WHOLE:
        scale = n if run.metric == "gpu_hours" else 1.0
        return float(best["time_s"][end]) * scale / WHOLE[run.metric]
    if run.metric == "step":
        return float(best["step_time_s"][end])
    if run.metric == "mem":
        counted = "allocated_bytes" if run.source.startswith(ALLOCATED) else "memory_bytes"
        return float(best[counted][end]) / MEMORY_UNITS[run.unit]
    value = float(best[RATES[run.metric]][end])
    return value * peak / TERA if run.metric.startswith("tflops") else value
