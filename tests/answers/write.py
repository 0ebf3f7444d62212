"""Write all answers as documents, to compare two versions; or keep them as the table.

python tests/answers/write.py FOLDER [WORDS]   one file a question (those with WORDS in it): then diff -r two folders
python tests/answers/write.py --keep [WORDS]   answers become the kept ones: the commit says which, and why
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from pathlib import Path

import time_machine
from asked import CALLS, DAY, KEPT, QUESTIONS, arithmetic, ask, digests
from avx512 import without_avx512


def main() -> None:
    target, words = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ""
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    kept = {q: kept[q] for q in ["made with", *QUESTIONS, *CALLS] if q in kept}
    with tempfile.TemporaryDirectory() as home, time_machine.travel(DAY, tick=False):
        os.environ["GPUWISE_HOME"] = home
        for question in [*QUESTIONS, *CALLS]:
            if words not in question:
                continue
            with tempfile.TemporaryDirectory() as folder:
                code, document = ask(question, Path(folder))
            if target == "--keep":
                kept[question] = digests(code, document)
            else:
                name = re.sub(r"[^A-Za-z0-9.]+", "_", question)[:150]
                Path(target).mkdir(parents=True, exist_ok=True)
                (Path(target) / f"{name}.json").write_text(
                    json.dumps({"code": code, "answer": document}, indent=1, sort_keys=True)
                )
    if target == "--keep":
        if kept.setdefault("made with", arithmetic()) != arithmetic() and words:
            raise SystemExit(f"the others are made with {kept['made with']}; keep all of them, or none")
        kept["made with"] = arithmetic()
        KEPT.write_text(
            "{\n" + ",\n".join(f"{json.dumps(q)}: {json.dumps(kept[q])}" for q in ["made with", *QUESTIONS, *CALLS]) + "\n}\n"
        )


if __name__ == "__main__":
    if chosen := without_avx512():  # NumPy is imported already: start again
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **chosen})
    main()
