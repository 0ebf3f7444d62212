"""A layout asked at once: what a field cannot hold is refused with a hint, as by the command."""

import datetime
import json

import pytest

from gpuwise.ui.moment import replies

LAYOUT = {"model": "llama-3.1-8b", "on": "8xh100", "tokens": "1B", "tp": "1", "pp": "1", "dp": "8", "micro_batch": "1"}


@pytest.mark.parametrize("name", ["model", "on", "provider"])
@pytest.mark.parametrize("value", ["yes", "no", "no-such-name", "1e400"])
def test_a_name_that_nobody_has_is_refused_with_a_hint(name: str, value: str) -> None:
    (body,) = replies([LAYOUT | {name: value}], datetime.date(2026, 11, 28))
    said = json.loads(body)
    assert said["error"] and said["hint"]
