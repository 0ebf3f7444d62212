"""timm tables: reading, filling in totals, scoring."""

from pathlib import Path

import numpy as np

from gpuwise.calibrate.vision import score as timm
from gpuwise.calibrate.vision.rows import architecture_of, read_rows

HEADER = "gpu,precision,layout,compile,pt,cuda,mode,model,samples_per_sec,step_time_ms,batch_size,img_size,gmacs,macts,params_m"
ROWS = """
rtx4090,amp,nchw,eager,2.4.0,cu124,infer,resnet50.a1_in1k,4500,227,1024,224,4.11,11.11,25.56
rtx4090,amp,nhwc,eager,2.4.0,cu124,train,resnet50,800,320,256,112,,,25.56
i7_12700h,fp32,nchw,eager,2.1.0,cpu,infer,resnet50,40,25,1,224,4.11,11.11,25.56
rtx4090,fp32,nchw,eager,2.1.0,cu121,infer,resnet50,40,25,1,224,4.11,11.11,25.56
"""


def write(folder: Path) -> None:
    (folder / "models").mkdir()
    (folder / "models/timm.csv").write_text(HEADER + ROWS)


def test_rows(tmp_path: Path) -> None:
    assert read_rows(tmp_path) is None
    write(tmp_path)
    rows = read_rows(tmp_path)
    assert rows is not None
    assert [bool(r) for r in rows.reason] == [False, False, True, True]
    # a training row without totals takes them from the same network, by the image's area
    assert np.isclose(rows.networks.macs[1], 4.11e9 / 4)
    assert rows.networks.training.tolist() == [False, True, False, False]


def test_score(tmp_path: Path) -> None:
    assert timm.score(tmp_path, False) is None
    write(tmp_path)
    scores = timm.score(tmp_path, True)
    assert scores is not None
    assert set(scores.split) == {"check"}
    ok = np.array([not r for r in scores.reason])
    assert np.all(np.isfinite(scores.predicted[ok])) and np.all(np.isnan(scores.predicted[~ok]))


def test_one_name_for_one_network() -> None:
    assert architecture_of("swsl_resnext50_32x4d") == "resnext50_32x4d"
    assert architecture_of("tf_efficientnet_b1_ns") == architecture_of("efficientnet_b1") == "efficientnet_b1"
    assert architecture_of("convnext_tiny_384_in22ft1k") == "convnext_tiny"
