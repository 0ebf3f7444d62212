"""Recorded requests: the four formats, and what cannot be replayed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from gpuwise.errors import FieldError, InputError
from gpuwise.serve.load.load import Load
from gpuwise.serve.load.traces import read_trace, refuse_beyond
from gpuwise.serve.load.workloads import find_workload


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_azure_s_columns_and_seven_decimals(tmp_path: Path) -> None:
    text = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
    trace = read_trace(written(tmp_path, "azure.csv", text))
    assert trace.format == "Azure"
    assert trace.requests.arrival_s.tolist() == pytest.approx([0, 4.314579], abs=1e-6)
    assert trace.requests.prompt_tokens.tolist() == [374, 396]
    assert trace.requests.output_tokens.tolist() == [44, 109]


def test_a_day_s_change_in_azure_s_times(tmp_path: Path) -> None:
    text = "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 23:59:59.5+00:00,1,1\n2024-05-11 00:00:00.5+00:00,1,1\n"
    assert read_trace(written(tmp_path, "a.csv", text)).requests.arrival_s.tolist() == [0, 1]


def test_mooncake_s_lines_share_their_blocks(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 0, "input_length": 1500, "output_length": 5, "hash_ids": [0, 1, 2]},
        {"timestamp": 3000, "input_length": 1400, "output_length": 7, "hash_ids": [0, 1, 3]},
    ]
    trace = read_trace(written(tmp_path, "m.jsonl", "\n".join(json.dumps(r) for r in rows)))
    assert trace.format == "Mooncake"
    assert trace.requests.arrival_s.tolist() == [0, 3]
    assert trace.requests.reused_tokens().tolist() == [0, 1024]


def test_plain_csv_with_hashes(tmp_path: Path) -> None:
    text = "arrival_s,input_tokens,output_tokens,hash_ids\n5,1024,3,7 8\n\n6.5,1024,4,7 9\n"
    trace = read_trace(written(tmp_path, "plain.csv", text))
    assert trace.requests.arrival_s.tolist() == [0, 1.5]
    assert trace.requests.reused_tokens().tolist() == [0, 512]


def test_turns_of_a_conversation_read_all_before_them(tmp_path: Path) -> None:
    turns = [("human", "a" * 40), ("gpt", "b" * 80), ("human", "c" * 20), ("gpt", "d" * 400)]
    talks = [{"id": "x", "conversations": [{"from": f, "value": v} for f, v in turns]}, {"conversations": []}]
    trace = read_trace(written(tmp_path, "sharegpt.json", json.dumps(talks)))
    assert not trace.timed
    assert trace.requests.prompt_tokens.tolist() == [10, 35]
    assert trace.requests.output_tokens.tolist() == [20, 100]
    assert trace.requests.reused_tokens().tolist() == [0, 10]
    assert Load(trace, 4096).at(2.0, 2).mean_rate == pytest.approx(2.0)


def test_the_busiest_minute_over_the_mean_one(tmp_path: Path) -> None:
    times = [*np.linspace(0, 59, 60), *np.linspace(60, 119, 180), *np.linspace(120, 180, 61)]
    text = "arrival_s,input_tokens,output_tokens\n" + "".join(f"{t},100,10\n" for t in times)
    trace = read_trace(written(tmp_path, "t.csv", text))
    assert trace.peak_over_mean == pytest.approx(180 / (301 / 3))
    assert Load(trace, 4096).recorded_rate_per_s == pytest.approx(300 / 180)


def test_a_long_pause_is_said_and_a_hole_refused(tmp_path: Path) -> None:
    times = [*range(200), *range(330, 530)]
    text = "arrival_s,input_tokens,output_tokens\n" + "".join(f"{t},100,10\n" for t in times)
    trace = read_trace(written(tmp_path, "t.csv", text))
    assert trace.notes == ("nothing arrives for 2.18 min before line 202, where requests are 1.33 s apart",)
    hole = "arrival_s,input_tokens,output_tokens\n0,1,1\n1,1,1\n2,1,1\n9000,1,1\n"
    with pytest.raises(FieldError, match=r"h\.csv:5: nothing arrived for 2.5 h, 100% of the trace"):
        read_trace(written(tmp_path, "h.csv", hole))


HEAD = "arrival_s,input_tokens,output_tokens\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no requests"),
        (HEAD, "no requests"),
        ("time,input_tokens,output_tokens\n1,2,3\n", "1: no column arrival_s"),
        ("arrival_s,tokens\n1,2\n", "no column input_tokens and no output_tokens"),
        (HEAD + "0,10,5\n-1,10,5\n", "3: arrives at -1 s, before the trace"),
        (HEAD + "0,10,5\n4,10,5\n3,10,5\n", "4: arrives 1 s before the line above"),
        (HEAD + "0,10,5\n,10,5\n", "3: arrival_s is empty"),
        (HEAD + "0,10,5\nnan,10,5\n", "3: arrival_s 'nan' is not a number"),
        (HEAD + "0,10,5\n1,,5\n", "3: input_tokens is empty"),
        (HEAD + "0,10,0\n", "2: output_tokens of 0 cannot be"),
        (HEAD + "0,-3,1\n", "2: input_tokens of -3 cannot be"),
        (HEAD + "0,1.5,1\n", "2: input_tokens of 1.5 cannot be"),
        (HEAD + "0,1e30,1\n", "cannot be"),
        (HEAD + "0,10\n", "2: 2 cells of 3"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,1\n", "2: TIMESTAMP 'yesterday' is not a time"),
        ('{"timestamp": 0, "input_length": 4}\n', "1: no output_length"),
        ('{"timestamp": 0, "input_len', "1: is not JSON"),
        (
            '{"timestamp":0,"input_length":4,"output_length":2,"hash_ids":[1]}\n{"timestamp":1,"input_length":4,"output_length":2}\n',
            "2: some",
        ),
        ("[]", "no answered question"),
        ('[{"turns": 3}]', "conversation 1 has no list of turns"),
        ("[1, 2", "not JSON"),
    ],
)
def test_what_cannot_be_replayed_says_where(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_trace(written(tmp_path, "t.csv", text))


def test_a_file_that_is_not_there_and_one_that_is_no_text(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        read_trace(tmp_path / "none.csv")
    (tmp_path / "b.csv").write_bytes(b"\xff\xfe\x00\x81")
    with pytest.raises(InputError, match="not UTF-8 text"):
        read_trace(tmp_path / "b.csv")
    with pytest.raises(InputError):
        read_trace(tmp_path)


def test_requests_beyond_the_context_are_refused_or_left_out(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, "t.csv", HEAD + "0,100,10\n1,9000,10\n2,200,10\n"))
    assert refuse_beyond(trace, 10_000) is trace
    with pytest.raises(
        InputError, match=r"1 of 3 requests of t\.csv are longer than the context of 4,096 tokens: the 2\. takes 9,010"
    ):
        refuse_beyond(trace, 4096)
    rest = refuse_beyond(trace, 4096, drop=True)
    assert rest.requests.arrival_s.tolist() == [0, 2]
    assert "dropped" in rest.notes[-1]
    with pytest.raises(InputError, match="all 3 requests"):
        refuse_beyond(trace, 50, drop=True)


def test_a_workload_as_a_load_stays_within_the_context() -> None:
    load = Load(find_workload("agent"), 32_768)
    assert load.recorded_rate_per_s is None
    assert not len(load.at(3.0, 500).longer_than(32_768))
    assert 0.2 < load.cut_share() < 0.7
    assert Load(find_workload("in=100,out=10"), 4096).cut_share() == 0
