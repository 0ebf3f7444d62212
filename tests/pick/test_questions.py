"""Questions whose answers experts have published: how many of ours they would nod at. Sixty that picks were mended on; ten,
then twenty written blind on 26 November, of which five and eleven agreed before causes were mended; ten more written after
that, of which nine did; thirty of 27 November, also blind: sixteen of the 25 that could be asked, three of five jobs learnt
then; twenty more of that day, of which nine agreed as asked; twenty of which twelve did; twenty of which ten did; twenty of
which sixteen did."""

from __future__ import annotations

import pytest
from tests.pick.judge import answer, judged, questions

from gpuwise.facts.hardware.accelerators import accelerators

ASKED, LEAST_AGREED = 235, 163


def test_every_question_has_a_source_a_reason_and_names_of_the_catalogue() -> None:
    asked = questions()
    assert len(asked) == ASKED and len({q["id"] for q in asked}) == ASKED
    known = accelerators()
    for q in asked:
        assert q["source"].startswith("https://") and q["why"] and q["ask"] and q["expert"]
        names = {name.split("x ", 1)[-1] for name in (*q["expert"], *q["also"], *q["never"])}
        assert names <= set(known), names - set(known)
        assert not set(q["expert"]) & set(q["never"])


@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.thorough), 26])
def test_experts_agree_with_most_picks(every: int) -> None:
    """By default with most of five of them; all take 30 s."""
    asked = questions()[::every]
    refused = {q["id"]: result for q in asked if (result := judged(q)).objection}
    said = "\n".join(f"{name}: {', '.join(r.first)}: {r.objection}" for name, r in refused.items())
    assert len(asked) - len(refused) >= LEAST_AGREED / every, said


def test_the_judge_can_disagree() -> None:
    question = next(q for q in questions() if q["id"] == "home-70b-2000")
    assert not judged(question).objection
    assert judged({**question, "never": answer(question["command"])[:1]}).objection
    assert judged({**question, "expert": ["l4"], "also": []}).objection
