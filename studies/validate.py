"""``gpuwise validate`` with the families that only a checkout can score: ``python -m studies.validate --data DIR``.

Their networks are captured, or their tables are published figures that do not ship.
"""

from __future__ import annotations

import sys

from gpuwise.calibrate.validation import FAMILIES
from gpuwise.cli.app import run

STUDIES = {
    "attention": "studies.attention.score",
    "neusight": "studies.neusight.score",
    "captured_time": "studies.capture_time.score",
    "lambda": "studies.published.lambda_training",
    "mlperf": "studies.published.mlperf",
    "captured_memory": "studies.memory.capture_score",
}
"""Family to the module whose ``score`` scores it, in place of the package's where it has one."""


if __name__ == "__main__":
    FAMILIES.update(STUDIES)
    sys.exit(run(["validate", *sys.argv[1:]]))
