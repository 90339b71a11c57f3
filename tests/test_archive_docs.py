"""docs/archive.md tells the truth: its queries run, its tables name every column."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import archive_maker as maker
import pytest

from forensics.archive.bulk import LOST, bulk
from forensics.archive.tables import FINDINGS, RUNS

TEXT = (Path(__file__).resolve().parent.parent / "docs" / "archive.md").read_text("utf-8")
TYPES = {"timestamp": "timestamp[ms, tz=UTC]", "list of string": "list<element: string>", "list of int32": "list<element: int32>"}


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("docs")
    maker.make(root / "runs", 14, 1_500)
    bulk([root / "runs"], root / "out")
    return root / "out"


def section(title: str) -> list[tuple[str, str]]:
    body = TEXT.split(f"## `{title}`")[1].split("\n## ")[0]
    return re.findall(r"^\| `(\w+)` \| ([\w ]+) \|", body, re.M)


@pytest.mark.parametrize(("title", "schema"), [("runs.parquet", RUNS), ("findings.parquet", FINDINGS)])
def test_every_column_is_documented(title: str, schema: Any) -> None:
    told = section(title)
    assert [name for name, _ in told] == schema.names
    for name, kind in told:
        stands = str(schema.field(name).type).replace("list<item:", "list<element:")
        assert stands == TYPES.get(kind, kind), name


def test_every_kind_of_line_is_documented() -> None:
    kinds = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|.*\| (?:0|1|130 or 1) \|$", TEXT, re.M))))
    assert kinds == LOST | {"partly", "left"}


def test_the_sql_runs_and_answers(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    duckdb = pytest.importorskip("duckdb")
    monkeypatch.chdir(out)
    queries = [query for block in re.findall(r"```sql\n(.*?)```", TEXT, re.S) for query in re.split(r";\n", block) if query.strip()]
    assert len(queries) >= 5
    for query in queries:
        assert duckdb.sql(query).fetchall(), query


def test_the_polars_lines_run_and_answer(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(out)
    block = next(block for block in re.findall(r"```python\n(.*?)```", TEXT, re.S) if "read_parquet" in block)
    names: dict[str, Any] = {}
    for line in block.strip().splitlines():
        if line.startswith(("import", "runs =")):
            exec(line, names)
        elif line:
            assert eval(line, names).height > 0, line
