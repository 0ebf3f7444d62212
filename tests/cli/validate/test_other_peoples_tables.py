"""Tables that others made: a row that cannot be read is reported, and the others are scored."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

MEASURED = "kind,engine,engine_version,model,gpu,parallel,precision,load,notes,n_gpu,tp,pp,isl,osl,concurrency,qps,output_tok_s,"
MEASURED += "ttft_ms,itl_ms,prefill_tok_s"
SINGLE = "single_stream,llama.cpp,,llama-2-7b,RTX 4090,,Q4_K_M,,,1,1,1,512,128,1,,150,,6.7,"
TABLES = {
    "ops/vtrain_allreduce.csv": (
        "gpu,n_gpus,bytes,time_us_out_of_place,time_us_in_place",
        ["A100,2,1048576,44.2,45.1", "A100,2,,53.4,51.1", "A100,,2097152,53.4,51.1", "A100,2,many,53.4,51.1"],
        3,
    ),
    "ops/vidur_network.csv": (
        "topology,collective,num_workers,devices_per_node,size,median_ms",
        ["a100_dgx,all_reduce,4,8,1048576,0.05", "a100_dgx,gossip,4,8,1048576,0.05", "a100_dgx,all_reduce,4,8,,0.05"],
        1,
    ),
    "serving/measured.csv": (MEASURED, [SINGLE, SINGLE.replace(",1,1,1,512", ",,1,1,512"), SINGLE.replace("150", "default")], 2),
}


@pytest.mark.parametrize("name", TABLES)
def test_the_rest_is_scored(gpuwise: Callable[..., Any], tmp_path: Path, name: str) -> None:
    head, rows, skipped = TABLES[name]
    file = tmp_path / name
    file.parent.mkdir()
    file.write_text("\n".join([head, *rows]) + "\n")
    ran = gpuwise("validate", "--data", str(tmp_path), "--all-check", "--json")
    assert ran.code == 0, ran.err
    document = json.loads(ran.out)
    assert len(document["skipped"]) == skipped and all(line.startswith(file.name) for line in document["skipped"])
    assert sum(r["rows"] for r in document["results"] if r["gpu"] is None) == len(rows) - skipped
    shown = gpuwise("validate", "--data", str(tmp_path), "--all-check").out
    assert f"{skipped} rows cannot be read" in " ".join(shown.split())
    why = gpuwise("validate", "--data", str(tmp_path), "--all-check", "--left-out").out
    assert document["skipped"][0][1:] in " ".join(why.split())


def test_a_table_without_its_partner_is_reported(gpuwise: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "serving").mkdir()
    peers = ",".join(
        f"pred_{p}" for p in ("blis-trained-physics", "aiconfigurator-estimate", "llmservingsim", "llm-optimizer-estimate")
    )
    head = f"experiment,model,gpu,precision,metric_ms,source,stage(-1=all),tp,max_num_batched_tokens,gpu_mem_util,actual,{peers}"
    (tmp_path / "serving" / "vllm_runs.csv").write_text(
        f"{head}\nmine,meta-llama/Llama-3.1-8B,H100,BF16,ttft_mean,me,-1,1,2048,0.9,50,,,,\n"
    )
    ran = gpuwise("validate", "--data", str(tmp_path), "--all-check", "--json")
    assert ran.code == 2 and "no row of" in ran.err and "vllm_runs.csv, row 1: cannot be used" in ran.err
