"""Results of checks as files that other programs read: JUnit, SARIF 2.1.0, a table in Markdown."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

from gpuwise.report.answers.checks import found_words, reasons
from gpuwise.report.answers.values import At
from gpuwise.text import printable
from gpuwise.version import VERSION

Document = Mapping[str, Any]
RULE = "gpuwise/limit"
SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def junit(document: Document) -> str:
    """JUnit's XML: a test case for each check; a refused question is an error, a limit that is passed over a failure."""
    checks = list(At(document)["checks"])
    wrong = sum(1 for c in checks if c["error"])
    failed = sum(1 for c in checks if not c["passed"].value) - wrong
    suite = ElementTree.Element(
        "testsuite", {"name": "gpuwise check", "tests": str(len(checks)), "failures": str(failed), "errors": str(wrong)}
    )
    for check in checks:
        case = ElementTree.SubElement(suite, "testcase", {"classname": "gpuwise.check", "name": check["name"].text})
        why = reasons(check)
        if why:
            part = ElementTree.SubElement(case, "error" if check["error"] else "failure", {"message": "; ".join(why)})
            part.text = "\n".join([*why, check["command"].text])
    root = ElementTree.Element("testsuites", {"name": "gpuwise"})
    root.append(suite)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def sarif(document: Document) -> str:
    """SARIF: a result for each check that fails, at its line of the file."""
    at = At(document)
    results = [
        {
            "ruleId": RULE,
            "level": "error",
            "message": {"text": f"{check['name'].text}: {'; '.join(why)} ({check['command'].text})"},
            "locations": [
                {
                    "physicalLocation": {
                        "artifactLocation": {"uri": str(document["file"]).replace("\\", "/")},
                        "region": {"startLine": check["line"].value},
                    }
                }
            ],
        }
        for check in at["checks"]
        if (why := reasons(check))
    ]
    rule = {"id": RULE, "shortDescription": {"text": "A figure of an answer is over its limit, or the question is refused."}}
    driver = {"name": "gpuwise", "version": VERSION, "rules": [rule]}
    made = {"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [{"tool": {"driver": driver}, "results": results}]}
    return json.dumps(made, indent=1) + "\n"


def markdown(document: Document) -> str:
    """A table for the summary of a run."""
    lines = ["| check | result | figures |", "|---|---|---|"]
    for check in At(document)["checks"]:
        figures = [f"{limit['words'].text} {found_words(limit)}" for limit in check["limits"]] or reasons(check)
        cells = (check["name"].text, "passed" if check["passed"].value else "**failed**", "<br>".join(figures))
        lines.append(f"| {' | '.join(printable(c, keep='').replace('|', '&#124;') for c in cells)} |")
    return "\n".join(lines) + "\n"


WRITERS: Sequence[tuple[str, Callable[[Document], str]]] = (("junit", junit), ("sarif", sarif), ("markdown", markdown))
"""By option."""
