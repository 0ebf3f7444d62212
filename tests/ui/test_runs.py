# pyright: reportMissingImports=false
"""A run on ranks by its journals: on the command line, on the page Runs, and only those that are listed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.ui.journals import write_run
from tests.ui.serving import Running, start, stop
from tests.ui.test_views import HOSTILE, at, read

from gpuwise.errors import DataError, InputError
from gpuwise.train.ranks.report import LONG, ranks_document
from gpuwise.ui.own_files import own_runs
from gpuwise.ui.questions import words_of
from gpuwise.ui.views import export, view


def test_each_ranks_time_and_who_is_waited_for(tmp_path: Path) -> None:
    made = ranks_document(write_run(tmp_path / "a"), time.time())
    assert made["state"] == "done" and made["steps"] == 9 and made["samples_per_s"] == pytest.approx(16.0)
    assert made["straggler"]["rank"] == 1 and made["straggler"]["lost_s"] == pytest.approx(0.2)
    assert "loader" in made["straggler"]["cause"]
    for rank in made["ranks"]:
        assert sum(rank[n] for n in ("compute_s", "data_s", "wait_s", "queue_s")) == pytest.approx(rank["step_s"])
    assert made["model"] == {"parameters": 22_688, "trained": 2_048, "zeros": 0, "weight_bytes": 90_752}
    (counts,) = made["collectives"]
    assert counts["predicted_bytes"] == counts["measured_bytes"] == 795_172 and counts["measured_count"] == 2
    assert [p["step"] for p in made["curve"]] == list(range(1, 10))


def test_a_run_under_way_a_silent_one_and_one_that_failed(tmp_path: Path) -> None:
    now = time.time()
    going = write_run(tmp_path / "a", ended=None)
    assert ranks_document(going, now)["state"] == "running"
    assert ranks_document(going, now + 2 * LONG)["state"] == "silent"
    assert ranks_document(write_run(tmp_path / "b", ended="error"), now)["state"] == "failed"
    begun = write_run(tmp_path / "c", steps=0, ended=None)
    made = ranks_document(begun, now)
    assert made["step_s"] is None and made["samples_per_s"] is None and made["curve"] == [] and made["straggler"] is None
    assert not read(view("ranks", made)).active


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no journals"):
        ranks_document(tmp_path, 0.0)
    out = write_run(tmp_path / "a")
    (out / "rank-1.jsonl").write_text('{"event": "step"}\nnot json\n')
    with pytest.raises(DataError, match="not the journal"):
        ranks_document(out, 0.0)
    (out / "settings.json").write_text("{}")
    with pytest.raises(InputError, match="settings"):
        ranks_document(out, 0.0)


def test_the_command_shows_it_and_ends_by_how_the_run_ended(tmp_path: Path, gpuwise: Callable[..., Any]) -> None:
    ran = gpuwise("validate", "--ranks", str(write_run(tmp_path / "a")))
    assert ran.code == 0 and "rank 1 is waited for 200 ms" in " ".join(ran.out.split()) and "all-reduce" in ran.out
    assert "22,688" in ran.out and "2,048" in ran.out and "88.6 KiB" in ran.out
    assert gpuwise("validate", "--ranks", str(write_run(tmp_path / "b", ended="error"))).code == 1
    refused = gpuwise("validate", "--ranks", str(tmp_path))
    assert refused.code == 2 and "hint:" in refused.err


def test_every_number_of_the_page_is_the_documents_and_names_are_text(tmp_path: Path) -> None:
    made = json.loads(json.dumps(ranks_document(write_run(tmp_path / "a", target=HOSTILE), time.time())))
    body = view("ranks", made)
    reader = read(body)
    assert not reader.active and "<img" not in body and len(reader.ids) == len(set(reader.ids))
    assert len(reader.numbers) > 20 and all(float(v) == at(made, p) for p, v in reader.numbers.items())
    assert "Zeros that stay" in body and {22_688.0, 2_048.0} <= {float(v) for v in reader.numbers.values()}
    assert "rank <data" in body and "its loader gives batches late" in body
    import xml.etree.ElementTree as tree

    tree.fromstring(export("ranks", "svg", made, ""))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("trainings")
    write_run(made / "first")
    write_run(made / "inner" / "deep")
    (made / "link").symlink_to(write_run(tmp_path_factory.mktemp("elsewhere") / "out"))
    return made


@pytest.fixture(scope="module")
def runs(place: Path) -> Iterator[Running]:
    pytest.importorskip("starlette")
    running = start("--folder", str(place))
    yield running
    assert stop(running) == 0


def test_only_runs_of_the_folder_are_listed_and_read(runs: Running, place: Path) -> None:
    (question,) = (q for q in runs.get("/api/pages").json["questions"] if q["name"] == "ranks")
    assert question["fields"][0]["choices"] == ["first"] == [*own_runs(place)]
    reply = runs.get("/api/ask/ranks", ranks="first").json
    assert reply["command"] == f"gpuwise validate --ranks {place / 'first'}"
    assert reply["document"]["straggler"]["rank"] == 1 and "is waited for" in reply["html"]
    for other in ("link", "inner/deep", "../first", str(place / "first"), "/etc"):
        refused = runs.get("/api/ask/ranks", ranks=other)
        assert refused.status == 422 and "not one of those listed" in refused.json["error"]
    assert "all-reduce" in runs.get("/export/ranks.csv", ranks="first").text
    with pytest.raises(InputError):
        words_of("ranks", {"ranks": "first"})
