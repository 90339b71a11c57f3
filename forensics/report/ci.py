"""The verdict for CI systems: SARIF 2.1.0 (code scanning) and JUnit XML (test reports).

SARIF: one result at the first failing line, the chain behind it as related locations.  JUnit: one test case for the verdict,
which fails when a failure is named, and one for each of the twelve steps.  A healthy or user-stopped run gives no SARIF result
and no failed case; an undecided one gives a SARIF warning and a JUnit error.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree as XML

import forensics
from forensics.report import text as t
from forensics.report.model import PostMortem
from forensics.report.view import LAYERS, STEPS, Quote, View

SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
HOME = "https://github.com/train-forensics/train-forensics"
RELATED = 20
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render_sarif(model: PostMortem, lang: str = "en") -> str:
    """The verdict as a SARIF 2.1.0 log, one line feed at its end.  Paths are relative to the run (`uriBaseId` RUN)."""
    v = View(model, lang)
    named = v.layer in LAYERS
    results: list[dict[str, Any]] = []
    rules: list[dict[str, Any]] = []
    if v.layer != "none":
        cause = _cause(v)
        rules.append(_rule(v, cause))
        results.append(_result(v, cause, named))
    run: dict[str, Any] = {
        "tool": {
            "driver": {
                "name": "train-forensics",
                "version": str(v.facts.get("version") or forensics.__version__),
                "informationUri": HOME,
                "rules": rules,
            }
        },
        "originalUriBaseIds": {"RUN": {"description": {"text": f"the directory of the run {v.name}"}}},
        "invocations": [{"executionSuccessful": True}],
        "results": results,
        "columnKind": "unicodeCodePoints",
        "automationDetails": {"id": f"train-forensics/{v.name or 'run'}"},
    }
    if rules and rules[0]["id"].count("/"):
        run["properties"] = {"layer": v.layer, "restart": v.restart}
    document = {"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}
    return json.dumps(document, ensure_ascii=False, indent=1, allow_nan=False).encode("utf-8", "replace").decode("utf-8") + "\n"


def _cause(v: View) -> str:
    cause = t.visible(str(v.verdict.get("cause") or ""), 120)
    return cause if "/" in cause else f"{v.layer}/{cause}" if cause else v.layer


def _rule(v: View, cause: str) -> dict[str, Any]:
    rule: dict[str, Any] = {"id": cause, "shortDescription": {"text": v.title}}
    remedies = [t.visible(str(item.get("do") or ""), 400) for item in v.facts.get("remedies") or []]
    remedies = [text for text in remedies if text]
    if remedies:
        rule["help"] = {"text": "\n".join(remedies), "markdown": "\n".join(f"- {_plain_markdown(text)}" for text in remedies)}
    return rule


def _plain_markdown(text: str) -> str:
    from forensics.report.markdown import escape

    return escape(text)


def _result(v: View, cause: str, named: bool) -> dict[str, Any]:
    message = v.sentence if not v.summary or v.summary == v.title else f"{v.sentence} {v.summary}"
    result: dict[str, Any] = {
        "ruleId": cause,
        "ruleIndex": 0,
        "level": "error" if named else "warning",
        "message": {"text": message},
        "properties": _known({"confidence": v.confidence, "culprit": _finite(v.culprit), "time": v.first.get("time")}),
    }
    first = v.quote(v.first)
    if first:
        result["locations"] = [_location(first)]
        result["partialFingerprints"] = {"verdict/v1": f"{cause}:{first.file}:{first.line}"}
    related = []
    for number, item in enumerate((v.verdict.get("chain") or [])[:RELATED], 1):
        place = v.quote(item)
        if place:
            says = t.visible(str(item.get("title") or item.get("cause") or ""), 200)
            related.append({"id": number, **_location(place), "message": {"text": f"{item.get('role') or ''}: {says}".strip(": ")}})
    if related:
        result["relatedLocations"] = related
    return result


def _location(place: Quote) -> dict[str, Any]:
    physical: dict[str, Any] = {"artifactLocation": {"uri": quote(place.file.encode("utf-8", "replace"), safe="/!"), "uriBaseId": "RUN"}}
    if place.line > 0:
        physical["region"] = {"startLine": place.line, **({"snippet": {"text": place.text}} if place.text else {})}
    return {"physicalLocation": physical}


def _known(items: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in items.items() if value not in (None, "", [], {})}


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return t.visible(value, 200) if isinstance(value, str) else value


def render_junit(model: PostMortem, lang: str = "en") -> str:
    """The verdict and the twelve steps as a JUnit XML document."""
    v = View(model, lang)
    named = v.layer in LAYERS
    cases: list[XML.Element] = [_verdict_case(v, named)]
    steps = {str(step.get("id")): step for step in v.steps()}
    cases += [_step_case(v, name, steps.get(name, {}), named) for name in STEPS]
    counts = {kind: sum(case.find(kind) is not None for case in cases) for kind in ("failure", "error", "skipped")}
    attributes = {
        "name": _xml(f"train-forensics {v.name}".strip()),
        "tests": str(len(cases)),
        "failures": str(counts["failure"]),
        "errors": str(counts["error"]),
        "skipped": str(counts["skipped"]),
        "time": _seconds(v.run.get("duration_s")),
    }
    when = t.moment(v.run.get("ended") or v.run.get("started"))
    stamped = {"timestamp": when.strftime("%Y-%m-%dT%H:%M:%S")} if when else {}
    root = XML.Element("testsuites", {key: attributes[key] for key in ("name", "tests", "failures", "errors", "time")})
    suite = XML.SubElement(root, "testsuite", {**attributes, **stamped})
    suite.extend(cases)
    XML.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + XML.tostring(root, encoding="unicode") + "\n"


def _verdict_case(v: View, named: bool) -> XML.Element:
    case = XML.Element("testcase", {"classname": "forensics.verdict", "name": "verdict", "time": _seconds(v.run.get("duration_s"))})
    cause = _xml(_cause(v))
    if v.layer == "none":
        XML.SubElement(case, "system-out").text = _xml(v.sentence)
        return case
    lines = [v.sentence] + ([v.summary] if v.summary and v.summary != v.title else [])
    lines.append(f"{v.confidence_words} ({v.percent}). {v.restart_words}")
    for place in v.strongest():
        lines += ["", place.place, f"    {place.text.strip()}"]
    remedies = [t.visible(str(item.get("do") or ""), 400) for item in (v.facts.get("remedies") or [])[:4]]
    lines += ["", *(f"- {text}" for text in remedies if text)]
    element = XML.SubElement(case, "failure" if named else "error", {"type": cause, "message": _xml(v.sentence)})
    element.text = _xml("\n".join(lines).strip())
    return case


def _step_case(v: View, name: str, step: dict[str, Any], named: bool) -> XML.Element:
    title = t.visible(str(step.get("title") or ""), 120)
    case = XML.Element("testcase", {"classname": "forensics.steps", "name": _xml(f"{name} {title}".strip()), "time": "0"})
    verdict = str(step.get("verdict") or "no-evidence")
    reading = t.visible(str(step.get("reading") or ""), 600)
    if verdict == "no-evidence":
        XML.SubElement(case, "skipped", {"message": _xml(reading or v.words("steps.no-evidence"))})
    elif verdict == "guilty" and named:
        XML.SubElement(case, "failure", {"type": "step", "message": _xml(reading or v.words("steps.guilty"))})
    else:
        XML.SubElement(case, "system-out").text = _xml(f"{v.words('steps.' + verdict)}: {reading}".strip(": "))
    return case


def _seconds(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, int | float) and math.isfinite(value) and value >= 0 else "0"


def _xml(text: str) -> str:
    """`text` without the characters that XML 1.0 does not allow."""
    return _NOT_XML.sub("\ufffd", text)
