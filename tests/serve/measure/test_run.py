"""A load against a server with planted latencies, and against every way a server goes wrong."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from gpuwise.errors import InputError
from gpuwise.serve.load.requests import NO_PARENT, ClosedLoop, Requests, Texts
from gpuwise.serve.measure.http import parse_address
from gpuwise.serve.measure.measured import LoadResult
from gpuwise.serve.measure.prompts import Prompts
from gpuwise.serve.measure.run import CONNECTION, CUT, NOT_SENT, REFUSED, SERVER_ERROR, STALLED, Bounds, ServerError, measure
from studies.mock_server import Answering, MockServer

PROBES = 2
"""Completions asked for before the load."""
CLOCK_S = 1e-3
"""What a sleep may end early, and two clocks differ."""


def load(n: int, *, every_s: float = 0.01, prompt: int = 40, output: int = 6) -> Requests:
    return Requests(
        np.arange(n, dtype=np.float64) * np.float64(every_s), np.full(n, prompt, np.int64), np.full(n, output, np.int64)
    )


def measured(answering: Answering, requests: Requests, **more: object) -> LoadResult:
    with MockServer(answering) as server:
        return LoadResult(measure(parse_address(server.url), requests, **more))  # type: ignore[arg-type]


def after_probes(fault: str, *rows: int) -> Callable[[int], str]:
    """``fault`` for the requests ``rows`` of the load, whole answers for the others."""
    return lambda n: fault if n - PROBES in rows else ""


def test_planted_latencies_are_measured() -> None:
    """By the server's own clock, for on a busy machine neither it nor the client is on time. No token is read before it is
    written; that they agree within a fifth is seen in one of five runs: what is measured wrong agrees in none."""
    requests, agrees = load(12, output=11), False
    for _ in range(5):
        with MockServer(Answering(first_s=0.10, token_s=0.02)) as server:
            found = LoadResult(measure(parse_address(server.url), requests))
            asked, written = np.array(server.asked_s[PROBES:]), np.array(server.written_s[PROBES:])
        assert found.failures == {}
        assert len(found.whole) == 12
        own_tpot, own_e2e = (written[:, -1] - written[:, 0]) / 10, written[:, -1] - asked
        assert found.value("ttft", 0) >= 0.10 - CLOCK_S
        assert (np.sort(found.ttft_s) >= np.sort(written[:, 0] - asked) - CLOCK_S).all()
        assert (np.sort(found.e2e_s) >= np.sort(own_e2e) - CLOCK_S).all()
        low, high = found.interval("ttft", 50) or (0, 0)
        assert low <= (found.value("ttft", 50) or 0) <= high
        assert found.measurement.model == "mock"
        assert found.measurement.stopped == ""
        agrees = (
            found.value("tpot", 50) == pytest.approx(np.median(own_tpot), rel=0.2)
            and found.value("itl", None) == pytest.approx(own_tpot.mean(), rel=0.2)
            and found.value("e2e", None) == pytest.approx(own_e2e.mean(), rel=0.2)
        )
        if agrees:
            break
    assert agrees


def test_a_queue_on_the_server_is_part_of_the_first_token() -> None:
    """All are due at once: the k-th answer begins when k times its seconds have passed, however late the client reads."""
    found = measured(Answering(first_s=0.05, token_s=0.001, slots=1), load(6, every_s=0.0, output=2))
    assert found.failures == {} and len(found.ttft_s) == 6
    assert (np.sort(found.ttft_s) >= 0.05 * np.arange(1, 7) - CLOCK_S).all()


def test_prompts_have_the_tokens_the_server_counts() -> None:
    found = measured(Answering(tokens_per_word=1.5), load(3, prompt=300, output=1))
    assert found.measurement.tokens_per_word == pytest.approx(1.5)
    assert [a.prompt_tokens for a in found.whole] == pytest.approx([300] * 3, abs=2)


def test_a_server_that_only_chats_is_measured_too() -> None:
    assert len(measured(Answering(chat_only=True), load(3)).whole) == 3


def test_answers_that_end_early_are_told_from_whole_ones() -> None:
    assert measured(Answering(), load(3, output=6)).written_share == 1.0
    assert measured(Answering(most_tokens=3), load(3, output=6)).written_share == 0.5


@pytest.mark.parametrize("chat_only", [False, True])
def test_transformers_serve_is_measured_by_the_name_of_its_model(chat_only: bool) -> None:
    """It lists no model, refuses ignore_eos, and ends without [DONE]; cut off before its last event an answer is not whole."""
    answering = Answering(transformers=True, chat_only=chat_only)
    with MockServer(answering, model="/models/tiny") as server:
        found = LoadResult(measure(parse_address(server.url), load(4), model="/models/tiny"))
        assert found.failures == {} and len(found.whole) == 4
        assert [a.output_tokens for a in found.whole] == [6] * 4
        assert found.measurement.tokens_per_word == pytest.approx(1.0)
        with pytest.raises(ServerError, match="pinned to '/models/tiny'"):
            measure(parse_address(server.url), load(1), model="other")
        with pytest.raises(ServerError, match="500") as refused:
            measure(parse_address(server.url), load(1))
        assert refused.value.hint == "name the model with --served-model"
    cut = replace(answering, fault=lambda n: "cut" if n == PROBES else "")
    with MockServer(cut, model="tiny") as server:
        found = LoadResult(measure(parse_address(server.url), load(2), model="tiny"))
    assert found.failures == {CUT: 1} and len(found.whole) == 1


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("refuse", REFUSED),
        ("error", SERVER_ERROR),
        ("error event", SERVER_ERROR),
        ("stall", STALLED),
        ("stall inside", STALLED),
        ("half event", CUT),
        ("cut", CUT),
        ("no end", CUT),
        ("drop", CUT),
        ("garbage", CUT),
    ],
)
def test_what_was_measured_is_kept_beside_what_failed(fault: str, kind: str) -> None:
    answering = Answering(first_s=0.01, fault=after_probes(fault, 1, 4))
    found = measured(answering, load(6), bounds=Bounds(seconds=60, stall_s=2))
    assert found.failures == {kind: 2}
    assert len(found.whole) == 4
    assert found.value("ttft", 95) is not None
    failed = [a for a in found.measurement.answers if a.failure]
    begun = fault in ("stall inside", "half event", "cut", "error event", "no end")
    assert all(bool(a.token_s) == begun for a in failed)
    assert len(found.ttft_s) == (6 if begun else 4)


def test_a_refused_request_is_sent_again_and_waits_since_it_was_due() -> None:
    """One user: the second request is asked for when the first has its answer."""
    busy = lambda n: "refuse" if n in (PROBES + 1, PROBES + 2) else ""  # noqa: E731 - the second request, and its next try
    alone = ClosedLoop(1, 0.0)
    once = measured(Answering(fault=busy), load(2), closed=alone, bounds=Bounds(retries=0))
    assert once.failures == {REFUSED: 1} and once.retries == 0
    found = measured(Answering(fault=busy), load(2), closed=alone, bounds=Bounds(retries=3))
    assert found.failures == {} and found.retries == 2
    assert found.ttft_s[1] > 1.5  # half a second, then one
    given_up = measured(Answering(fault=lambda n: "refuse" if n >= PROBES else ""), load(1), bounds=Bounds(retries=1))
    assert given_up.failures == {REFUSED: 1} and given_up.retries == 1


def test_a_server_that_dies_ends_the_run_with_what_was_measured() -> None:
    answering = Answering(first_s=0.01, fault=lambda n: "die" if n - PROBES == 10 else "")
    found = measured(answering, load(400), closed=ClosedLoop(1, 0.0), bounds=Bounds(seconds=300, stall_s=2))
    assert found.measurement.stopped == "the server has stopped"
    assert len(found.whole) == 10
    assert found.failures[CONNECTION] >= 5
    assert found.failures[NOT_SENT] > 300


def test_time_and_requests_in_flight_are_bounded() -> None:
    """Forty are due within the time, the others never; of eight at once two are in flight: each pair waits for those before."""
    due = np.concatenate([np.arange(40) * 0.01, np.full(460, 1e6)])
    late = Requests(due, np.full(500, 40, np.int64), np.full(500, 6, np.int64))
    found = measured(Answering(first_s=0.01), late, bounds=Bounds(seconds=2, stall_s=2))
    assert found.measurement.stopped == "the time was over"
    assert 20 < found.sent <= 40
    held = measured(Answering(first_s=0.2, token_s=0.0), load(8, every_s=0.0), bounds=Bounds(seconds=60, in_flight=2))
    assert held.late_share >= 6 / 8
    assert (np.sort(held.ttft_s) >= 0.2 * np.repeat([1, 2, 3, 4], 2) - CLOCK_S).all()


def test_users_send_when_they_have_their_answer() -> None:
    requests = load(9, every_s=0.0, output=1)
    found = measured(Answering(first_s=0.3), requests, closed=ClosedLoop(3, 0.1))
    assert len(found.whole) == 9
    sent = sorted(a.sent_s or 0.0 for a in found.measurement.answers)
    ended = sorted(a.finish_s or 0.0 for a in found.measurement.answers)
    assert sent[2] < ended[0]
    assert all(later >= first + 0.1 - CLOCK_S for first, later in zip(ended, sent[3:], strict=False))


def test_nobody_there() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    with pytest.raises(ServerError, match="nothing answers"):
        measure(parse_address(f"http://127.0.0.1:{port}"), load(1))


def test_a_server_of_another_kind_and_a_model_it_lacks() -> None:
    with MockServer() as server:
        with pytest.raises(ServerError, match="404"):
            measure(parse_address(server.url + "/v7"), load(1))
        with pytest.raises(InputError, match="no model 'other'"):
            measure(parse_address(server.url), load(1), model="other")
    with MockServer(Answering(fault=lambda n: "garbage")) as server, pytest.raises(ServerError, match="OpenAI"):
        measure(parse_address(server.url), load(1))


@pytest.mark.parametrize(
    ("url", "base", "port", "tls"),
    [
        ("http://127.0.0.1:8000", "/v1", 8000, False),
        ("localhost:8000/v1/", "/v1", 8000, False),
        ("https://host/api/v1/chat/completions", "/api/v1", 443, True),
        ("http://[::1]:9", "/v1", 9, False),
    ],
)
def test_addresses_as_people_write_them(url: str, base: str, port: int, tls: bool) -> None:
    address = parse_address(url)
    assert (address.base, address.port, address.tls) == (base, port, tls)


@pytest.mark.parametrize(
    "url", ["", "ftp://host", "http://", "http://a:99999", "http://a b", "http://user:pw@host", "http://h/?a=b"]
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(InputError, match=r"address|has more"):
        parse_address(url)


def test_prompts_share_what_the_load_shares() -> None:
    texts = Texts(np.array([NO_PARENT, 0, 0]), np.array([0, 30, 20]))
    three = Requests(np.zeros(3), np.full(3, 50, np.int64), np.ones(3, np.int64), np.arange(3), texts)
    a, b, c = (Prompts(three, 1.0, seed=1).prompt(i).split() for i in range(3))
    assert a[:30] == b[:30]
    assert a[30:34] != b[30:34]
    assert a[:20] == c[:20]
    assert a[20:24] != c[20:24]
    assert Prompts(three, 1.0, seed=2).prompt(0).split() != a
    assert len(Prompts(three, 2.0, seed=1).prompt(0).split()) == 25
