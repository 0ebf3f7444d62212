"""The local check: cases, the record that survives, the scores. Processes are stood in for; a real run is beside it."""

import json
from pathlib import Path

import pytest

from gpuwise.errors import DataError, InputError
from gpuwise.machine.bench.local import validation as local_validation
from gpuwise.machine.bench.local.cases import LocalCase, choose, for_cpu, local_cases
from gpuwise.machine.bench.local.validation import LocalResult, Machine, read_record, run, summarise

CARD = Machine("cuda", "NVIDIA H200", 141 << 30, "580.1", "2.13.0", (9, 0))


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Both halves answered at once; the keys measured, in order."""
    measured: list[str] = []

    def answers(cases, machine):
        for case in cases:
            yield case, {"allocated_bytes": 90, "step_time_s": 0.5}

    def in_a_process(module: str, case: LocalCase, machine: Machine) -> dict[str, object]:
        measured.append(case.key)
        return {"allocated_bytes": 100, "step_time_s": 0.4}

    monkeypatch.setattr(local_validation, "_predictions", answers)
    monkeypatch.setattr(local_validation, "_in_a_process", in_a_process)
    return measured


def test_thirty_models_in_several_settings() -> None:
    cases = local_cases()
    assert len({c.model for c in cases}) >= 30
    assert {c.precision for c in cases} == {"fp32", "tf32", "bf16", "fp16", "bf16-pure"}
    assert {e for c in cases for e in c.extras} >= {"infer", "checkpoint", "compile", "fused", "channels_last"}
    assert all(LocalCase.from_dict(json.loads(json.dumps(c.as_dict()))).key == c.key for c in cases)


def test_choose_by_word_and_refuse_the_unknown() -> None:
    assert {c.model for c in choose("resnet50, unet")} == {"resnet50", "deeplabv3_resnet50", "unet"}
    with pytest.raises(InputError, match="no local case") as refused:
        choose("resnet51")
    assert "resnet50" in (refused.value.hint or "")


def test_a_processor_gets_small_runs() -> None:
    small = for_cpu(local_cases())
    assert all(c.batch <= 2 and c.precision == "fp32" for c in small)
    assert "llama-1b" not in {c.model for c in small}
    with pytest.raises(InputError, match="too large for a CPU"):
        for_cpu(choose("llama-1b"))


def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path: Path, processes: list[str]) -> None:
    cases, record = local_cases()[:4], tmp_path / "r.jsonl"
    run(cases[:2], CARD, record)
    with record.open("a") as torn:
        torn.write('{"case": "half a li')
    assert [r.case for r in read_record(record)] == [c.key for c in cases[:2]]
    results = run(cases, CARD, record)
    assert [r.case for r in results] == [c.key for c in cases]
    assert processes == [c.key for c in cases]


def test_what_a_torn_line_left_does_not_swallow_the_next(tmp_path: Path, processes: list[str]) -> None:
    cases, record = local_cases()[:2], tmp_path / "r.jsonl"
    run(cases[:1], CARD, record)
    with record.open("a") as torn:
        torn.write('{"case": "half a li')
    run(cases, CARD, record)
    assert [r.case for r in read_record(record)] == [c.key for c in cases]


def test_a_failure_is_tried_again_but_out_of_memory_is_an_answer(tmp_path: Path, processes: list[str]) -> None:
    cases, record = local_cases()[:2], tmp_path / "r.jsonl"
    lines = [
        {"machine": {"gpu": CARD.gpu, "torch": CARD.torch}},
        {"case": cases[0].key, "predicted": {}, "measured": {"failed": "out of memory"}},
        {"case": cases[1].key, "predicted": {}, "measured": {"failed": "ended with -11"}},
    ]
    record.write_text("\n".join(json.dumps(x) for x in lines) + "\n")
    run(cases, CARD, record)
    assert processes == [cases[1].key]


def test_a_record_of_another_machine_is_refused(tmp_path: Path, processes: list[str]) -> None:
    record = tmp_path / "r.jsonl"
    run(local_cases()[:1], CARD, record)
    with pytest.raises(InputError, match="NVIDIA H200"):
        run(local_cases()[:1], Machine("cuda", "NVIDIA L4", 24 << 30, "", "2.13.0"), record)


def test_broken_record_and_bad_minutes(tmp_path: Path, processes: list[str]) -> None:
    record = tmp_path / "r.jsonl"
    record.write_text("not json\n{}\n")
    with pytest.raises(DataError, match=r"r\.jsonl:1"):
        run(local_cases()[:1], CARD, record)
    with pytest.raises(InputError, match="positive"):
        run(local_cases()[:1], CARD, tmp_path / "new.jsonl", minutes=0)


def test_minutes_stop_before_the_next_case(tmp_path: Path, processes: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(0, 10_000, 61))
    monkeypatch.setattr(local_validation.time, "monotonic", lambda: next(now))
    assert len(run(local_cases()[:5], CARD, tmp_path / "r.jsonl", minutes=3)) < 5


def test_scores() -> None:
    results = [
        LocalResult("a", {"allocated_bytes": 110.0}, {"allocated_bytes": 100}),
        LocalResult("b", {"allocated_bytes": 80.0}, {"allocated_bytes": 100}),
        LocalResult("c", {"failed": "x"}, {"allocated_bytes": 100}),
        LocalResult("d", {"allocated_bytes": 50.0}, {"failed": "out of memory"}),
    ]
    (row,) = summarise(results)
    assert (row.quantity, row.cases) == ("allocated_bytes", 2)
    assert row.mape == pytest.approx(0.15)
    assert row.bias == pytest.approx(-0.05)
