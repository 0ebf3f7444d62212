import datetime
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwise.errors import FieldError
from gpuwise.facts.hardware.accelerators import accelerators
from gpuwise.facts.hardware.boards import BOARD_SCHEMA, OBTAINABLE, board_of, boards, parse_boards
from gpuwise.facts.loading import shipped_text
from gpuwise.facts.sources import sources

HEADER = ",".join(BOARD_SCHEMA) + "\n"
ROW = "l4,card,1,169,69,none,,passive,1,server airflow,retail,2026-01-31,nvidia-l4-datasheet,nvidia-l4-datasheet,,\n"
CATEGORY_OF_FORM = {
    "PCIe": {"card", "cloud"},
    "SXM": {"module"},
    "OAM": {"module", "cloud"},
    "Superchip": {"superchip"},
    "Laptop": {"laptop"},
    "Cloud": {"cloud"},
    "APU": {"soc"},
    "SoC": {"soc", "phone"},
}
WATTS_OF_PLUG = {"none": 0, "6-pin": 75, "8-pin": 150, "EPS 8-pin": 300, "12-pin": 600, "16-pin": 600}
"""What a plug may carry (PCI Express CEM 5.0; EPS12V)."""


def test_every_accelerator_has_a_board_of_its_form():
    assert set(boards()) == set(accelerators())
    for name, device in accelerators().items():
        board = board_of(name)
        assert board is not None and board.category in CATEGORY_OF_FORM[device.form], name
        assert board.obtainable in OBTAINABLE
        assert board.source_key in sources() and board.obtainable_source_key in sources()
        assert board.obtainable_as_of <= datetime.date(2026, 11, 21)
    assert board_of("no such device") is None


def test_only_cards_have_slots_and_all_of_them():
    for board in boards().values():
        assert (board.slots is not None) == board.installable, board.accelerator_id
        if board.slots is not None:
            assert board.slots_taken == math.ceil(board.slots)
        else:
            assert board.slots_taken is None


def test_plugs_carry_what_a_card_draws():
    for board in boards().values():
        tdp_w = accelerators()[board.accelerator_id].tdp_w
        if not board.installable or not board.power_connectors or tdp_w is None:
            continue
        plugs_w = 0.0
        for plug in board.power_connectors:
            count, _, kind = plug.partition("x ") if plug != "none" else ("1", "", "none")
            assert kind in WATTS_OF_PLUG, (board.accelerator_id, plug)
            plugs_w += int(count) * WATTS_OF_PLUG[kind]
        assert tdp_w * board.devices <= (75 + plugs_w) * 1.03, board.accelerator_id


def test_power_supplies_leave_room_for_the_rest_of_the_pc():
    for board in boards().values():
        tdp_w = accelerators()[board.accelerator_id].tdp_w
        if board.recommended_psu_w is not None and tdp_w is not None:
            assert board.category == "card" and tdp_w + 100 <= board.recommended_psu_w <= 5 * tdp_w + 150, board.accelerator_id


def test_passive_cards_ask_for_a_servers_airflow():
    for board in boards().values():
        if board.installable:
            assert (board.cooling == "passive") == ("server airflow" in board.needs), board.accelerator_id


def test_well_known_boards():
    card = board_of("rtx-4090")
    assert card is not None
    assert (card.slots, card.length_mm, card.power_connectors, card.recommended_psu_w) == (3, 304, ("1x 16-pin",), 850)
    p40 = board_of("p40")
    assert p40 is not None and p40.obtainable == "used-only" and p40.power_connectors == ("1x EPS 8-pin",)
    xtx = board_of("rx-7900-xtx")
    assert xtx is not None and (xtx.slots, xtx.slots_taken) == (2.5, 3)
    devices = {name: board.devices for name, board in boards().items() if board.devices > 1}
    assert devices == {"k80": 2, "m60": 2, "a16": 4, "mi250": 2, "mi250x": 2, "data-center-gpu-flex-140": 2}
    for name, how in (
        ("tpu-v5e", "cloud-only"),
        ("h100-sxm-80gb", "system-only"),
        ("rtx-5090", "retail"),
        ("mi455x", "announced"),
    ):
        board = board_of(name)
        assert board is not None and board.obtainable == how and not (how != "retail" and board.installable)


def test_an_estimate_is_called_weak():
    for board in boards().values():
        doubtful = sources()[board.obtainable_source_key].kind in ("third-party", "estimate")
        assert doubtful == ("obtainable" in board.weak), board.accelerator_id
        if sources()[board.source_key].kind == "third-party" and board.length_mm is not None:
            assert "length_mm" in board.weak


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("l4,card,1,", "l5,card,1,", "not in accelerators.csv"),
        ("l4,card,1,", "l4,cards,1,", "category"),
        ("l4,card,1,", "l4,module,1,", "only a card"),
        ("l4,card,1,", "l4,card,0,", "slots"),
        ("l4,card,1,", "l4,card,nan,", "slots"),
        (",169,", ",16.9,", "length_mm"),
        (",169,", ",-169,", "length_mm"),
        (",passive,", ",fanless,", "cooling"),
        (",retail,", ",maybe,", "obtainable"),
        ("2026-01-31", "2026-02-31", "obtainable_as_of"),
        ("nvidia-l4-datasheet,,", "hearsay,,", "not in sources.csv"),
        ("nvidia-l4-datasheet,,\n", "nvidia-l4-datasheet,width,\n", "not a column"),
    ],
)
def test_bad_rows_are_refused(old, new, says):
    assert old in ROW
    with pytest.raises(FieldError, match=says) as caught:
        parse_boards(HEADER + ROW.replace(old, new), "mine.csv")
    assert "mine.csv:2" in str(caught.value)


def test_a_board_twice_is_refused():
    with pytest.raises(FieldError, match="twice"):
        parse_boards(HEADER + ROW + ROW, "mine.csv")


@given(st.floats(1, 5).map(lambda x: round(x, 2)))
def test_slots_taken_are_whole_and_cover_the_board(slots):
    (board,) = parse_boards(HEADER + ROW.replace("card,1,", f"card,{slots},"), "mine.csv").values()
    assert board.slots_taken is not None
    assert slots <= board.slots_taken < slots + 1


def test_the_shipped_file_is_read_whole():
    lines = [line for line in shipped_text("boards.csv").splitlines() if line and not line.startswith("#")]
    assert len(boards()) == len(lines) - 1
