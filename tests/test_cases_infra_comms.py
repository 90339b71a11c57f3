"""Short runs of our own, one per way in which an infrastructure or communication fault shows itself: layer, cause, culprit."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from forensics.analysis import analyze

CASES = Path(__file__).parent / "cases_infra_comms"
NAMES = sorted(path.name for path in CASES.iterdir() if path.is_dir())


@pytest.mark.parametrize("name", NAMES)
def test_case(name: str) -> None:
    label = tomllib.loads((CASES / name / "case.toml").read_text(encoding="utf-8"))
    verdict = analyze(CASES / name / "logs").verdict
    if label["layer"] == "none":
        assert verdict.layer == "none"
        return
    assert f"{verdict.layer}/{verdict.cause}" in {f"{label['layer']}/{label['cause']}", *label["also_ok"]}
    for key in ("rank", "host", "gpu"):
        if f"culprit_{key}" in label:
            assert str(getattr(verdict, key)) == str(label[f"culprit_{key}"])


@pytest.mark.parametrize("name", NAMES)
def test_first_failure(name: str) -> None:
    label = tomllib.loads((CASES / name / "case.toml").read_text(encoding="utf-8"))
    if "first_failure_line" not in label:
        pytest.skip("the case names no line")
    first = analyze(CASES / name / "logs").verdict.first
    assert first is not None
    assert Path(first.file).name == Path(label["first_failure_file"]).name
    assert abs(first.line - label["first_failure_line"]) <= 3


def test_cases_are_short() -> None:
    assert len(NAMES) >= 25
    for path in CASES.rglob("logs/**/*"):
        if path.is_file():
            assert path.read_bytes().count(b"\n") < 60
