"""Every remark that a reader may make on a file has its Chinese, and the page in Chinese shows it."""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path

import pytest

from forensics import analyze
from forensics.report.notes import translate

ROOT = Path(__file__).parents[1]
MAKERS = {"note", "on_error"}
CHINESE = re.compile(r"[\u4e00-\u9fff]")


def text_of(node: ast.expr) -> str | None:
    """The text of a literal, with something in each gap; None for what is no literal."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "7" for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) and (left := text_of(node.left)):
        return left + "7"
    return None


def remarks() -> list[str]:
    """What the code gives to a `note`, puts on a list of notes or of what was skipped, or refuses with."""
    found = set()
    for path in [*(ROOT / "parsers").glob("*.py"), *(ROOT / "forensics").glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id if isinstance(node.func, ast.Name) else ""
            arguments = list(node.args)
            if name == "append" and isinstance(node.func, ast.Attribute):
                holder = node.func.value.attr if isinstance(node.func.value, ast.Attribute) else ""
                if holder == "skipped" and arguments and isinstance(arguments[0], ast.Tuple):
                    arguments = arguments[0].elts[1:]
                elif holder != "notes":
                    continue
            elif not (name in MAKERS or (name == "Refused" and path.stem == "unpack")) and not (
                name == "ValueError" and path.parent.name == "parsers"
            ):
                continue
            arguments = [part for one in arguments for part in ([one.body, one.orelse] if isinstance(one, ast.IfExp) else [one])]
            found |= {text for one in arguments if (text := text_of(one)) and " " in text and text != "7: 7"}
    return sorted(found)


def test_the_remarks_are_found() -> None:
    assert len(remarks()) > 45
    assert "not a regular file" in remarks()


@pytest.mark.parametrize("text", remarks())
def test_every_remark_has_its_chinese(text: str) -> None:
    told = translate(text, "zh")
    assert CHINESE.search(told), told
    assert told.count("7") == text.count("7")


def test_a_reason_inside_a_remark_is_translated_too() -> None:
    assert (
        translate("read as nvidia-smi CSV, but damaged: no column is known", "zh") == "按 nvidia-smi CSV 读取，但内容已损坏：没有可识别的列"
    )
    assert translate("anything else", "zh") == "anything else"
    assert translate("not a regular file", "en") == "not a regular file"


def test_the_page_in_chinese_shows_them(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("step 1 loss 2.0\n" * 9)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 2}\n{"step": 2, "lo\n')
    page = analyze(tmp_path, lang="zh").to_html()
    assert "不是普通文件" in page and "有 1 行不是完整的 JSON 对象" in page
    assert "not a regular file" not in page
