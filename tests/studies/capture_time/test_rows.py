"""Which networks of a timm table are captured and scored."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from studies.capture_time.rows import NETWORKS, SAMPLE, family_of_network, named_networks
from studies.capture_time.score import score

pytestmark = pytest.mark.skipif(not (find_spec("timm") and find_spec("torchvision")), reason="needs timm and torchvision")
HEADER = "gpu,precision,layout,compile,pt,cuda,mode,model,samples_per_sec,step_time_ms,batch_size,img_size,gmacs,macts,params_m\n"


def _table(folder: Path, *networks: str) -> Path:
    (folder / "models").mkdir()
    lines = [f"rtx4090,amp,nchw,eager,2.4.0,cu124,infer,{n},,20,64,224,,,\n" for n in networks]
    (folder / "models/timm.csv").write_text(HEADER + "".join(lines))
    return folder


@pytest.mark.thorough
def test_the_known_networks_come_first(tmp_path: Path) -> None:
    folder = _table(tmp_path, "tinynet_e", "resnet50", "ghostnet_100", "swin_tiny_patch4_window7_224")
    assert set(SAMPLE) < set(NETWORKS)
    assert named_networks(folder, SAMPLE, 2) == ("resnet50", "swin_tiny_patch4_window7_224")
    assert len(named_networks(folder, SAMPLE, 6)) == 4


def test_a_table_of_other_networks_gives_one_of_each_family_first(tmp_path: Path) -> None:
    folder = _table(tmp_path, "ghostnet_050", "ghostnet_100", "ghostnet_100", "tinynet_e", "no_such_network", "repvgg_a0")
    assert named_networks(folder, SAMPLE, 2) == ("ghostnet_100", "tinynet_e")
    assert named_networks(folder, SAMPLE, 9) == ("ghostnet_100", "tinynet_e", "ghostnet_050")
    assert len({family_of_network(n) for n in named_networks(folder, SAMPLE, 9)}) == 2


def test_no_table_names_none(tmp_path: Path) -> None:
    assert named_networks(tmp_path, SAMPLE, 6) == ()


def test_an_unseen_table_is_scored(tmp_path: Path) -> None:
    scores = score(_table(tmp_path, "tinynet_e.in1k"), True)
    assert scores is not None
    assert list(scores.reason) == [""]
    assert np.isfinite(scores.predicted).all() and scores.predicted[0] > 0
