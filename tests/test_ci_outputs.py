"""SARIF and JUnit: what CI systems read, for a named failure, a healthy run, an undecided one and hostile evidence."""

from __future__ import annotations

import json
from typing import Any
from xml.etree import ElementTree as XML

import pytest
from support_report import healthy, hostile, lost_gpu

from forensics.report.ci import render_junit, render_sarif
from forensics.report.model import Page, PostMortem


def undecided() -> PostMortem:
    facts: dict[str, Any] = {
        "run": {"name": "odd"},
        "verdict": {"layer": "unknown", "cause": None, "title": "not decided", "confidence": 0.3},
    }
    return PostMortem(facts, Page())


def only_run(text: str) -> dict[str, Any]:
    document = json.loads(text)
    assert document["version"] == "2.1.0"
    assert document["$schema"].endswith("sarif-2.1.0.json")
    assert len(document["runs"]) == 1
    run = document["runs"][0]
    assert run["tool"]["driver"]["name"]
    for result in run["results"]:
        # What the standard asks of a result (SARIF 2.1.0, 3.27): a message, and rule references that agree.
        assert result["message"]["text"]
        assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in ("none", "note", "warning", "error")
        for place in [*result.get("locations", []), *result.get("relatedLocations", [])]:
            physical = place["physicalLocation"]
            assert not physical["artifactLocation"]["uri"].startswith("/")
            assert physical["artifactLocation"]["uriBaseId"] in run["originalUriBaseIds"]
            assert physical.get("region", {"startLine": 1})["startLine"] >= 1
    return run


def test_sarif_points_at_the_first_failing_line() -> None:
    run = only_run(render_sarif(lost_gpu()))
    (result,) = run["results"]
    assert result["ruleId"] == "infra/gpu-fell-off-bus"
    assert result["level"] == "error"
    (place,) = result["locations"]
    assert place["physicalLocation"]["artifactLocation"]["uri"] == "hosts/node001/dmesg.log"
    assert place["physicalLocation"]["region"]["startLine"] == 2214
    assert "79" in place["physicalLocation"]["region"]["snippet"]["text"]
    assert result["properties"]["culprit"]["rank"] == 5
    assert result["properties"]["confidence"] == pytest.approx(0.93)
    related = [item["message"]["text"] for item in result["relatedLocations"]]
    assert related[0].startswith("root: ")
    assert any(text.startswith("consequence: Collective timed out") for text in related)
    assert run["tool"]["driver"]["rules"][0]["help"]["text"].startswith("Drain node001")


def test_sarif_speaks_chinese() -> None:
    (result,) = only_run(render_sarif(lost_gpu(), "zh"))["results"]
    assert "掉线" in result["message"]["text"]


def test_a_healthy_run_raises_no_alert() -> None:
    assert only_run(render_sarif(healthy()))["results"] == []
    suite = XML.fromstring(render_junit(healthy())).find("testsuite")
    assert suite is not None
    assert (suite.get("failures"), suite.get("errors")) == ("0", "0")


def test_an_undecided_run_is_a_warning_and_an_error() -> None:
    (result,) = only_run(render_sarif(undecided()))["results"]
    assert result["level"] == "warning"
    assert "locations" not in result
    suite = XML.fromstring(render_junit(undecided())).find("testsuite")
    assert suite is not None
    assert (suite.get("failures"), suite.get("errors")) == ("0", "1")


def test_junit_fails_the_verdict_and_the_guilty_steps() -> None:
    root = XML.fromstring(render_junit(lost_gpu()))
    suite = root.find("testsuite")
    assert suite is not None
    cases = suite.findall("testcase")
    assert len(cases) == 13 == int(suite.get("tests", ""))
    failed = {case.get("name", "").split()[0]: case.find("failure") for case in cases if case.find("failure") is not None}
    assert set(failed) == {"verdict", "S1", "S12"}
    assert int(suite.get("failures", "")) == 3
    verdict = failed["verdict"]
    assert verdict is not None
    assert verdict.get("type") == "infra/gpu-fell-off-bus"
    assert "hosts/node001/dmesg.log:2214" in (verdict.text or "")
    assert int(suite.get("skipped", "")) == sum(case.find("skipped") is not None for case in cases) == 7
    assert float(suite.get("time", "")) > 0
    assert root.get("failures") == suite.get("failures")


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_hostile_evidence_stays_text(lang: str) -> None:
    run = only_run(render_sarif(hostile(), lang))
    assert "\x1b" not in json.dumps(run)
    assert "<" not in run["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    text = render_junit(hostile(), lang)
    assert "<script>" not in text
    root = XML.fromstring(text)
    assert root.find(".//script") is None
    assert root.find("testsuite/testcase/failure") is not None
