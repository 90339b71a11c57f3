"""The guide's instrumentation as snippets to paste; the lines they print are those that `parsers/probes.py` reads.

Each snippet is a module of this package, so it is type-checked and tested as it stands.  Printed, a snippet stands alone: the
functions it takes from `loop` are put in front of it.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class Snippet:
    """One snippet: `text` is a whole Python file, `covers` the guide's items whose readings it gives."""

    name: str
    title: str
    covers: tuple[str, ...]
    text: str


KNOWN: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (
        "loop",
        "for a plain PyTorch loop",
        ("S2", "S3", "S4", "S5", "S7", "S8", "S9", "S10", "S11", "H2", "L1.1", "L2.1", "L3.1", "L3.2", "L3.4"),
    ),
    ("trl", "a callback for transformers.Trainer and TRL", ("S2", "S3", "S4", "S5", "S7", "S8", "S10", "H2")),
    ("verl", "a hook for verl's driver", ("S2", "S4", "S8", "S9", "S10")),
    ("allreduce", "a self-test of NCCL over all GPUs", ("S6", "L4.2", "Q9")),
)


def snippets() -> dict[str, Snippet]:
    """Every snippet by name."""
    return {name: Snippet(name, title, covers, _text(name)) for name, title, covers in KNOWN}


def _text(name: str) -> str:
    source = files("forensics.probes").joinpath(f"{name}.py").read_text("utf-8")
    marker = "from forensics.probes.loop import"
    if marker not in source:
        return source
    # The body of `loop` (without docstring and imports) takes the place of the import; its imports go to the top.
    loop = files("forensics.probes").joinpath("loop.py").read_text("utf-8")
    own = "\n".join(line for line in source.splitlines() if not line.startswith(marker))
    split = _after_imports(own)
    imports = "\n".join(sorted(set(_imports(loop)) | set(_imports(own)), key=lambda line: (line.startswith("from"), line)))
    future = "from __future__ import annotations"
    imports = "\n".join(line for line in imports.splitlines() if line != future)
    return f"{_docstring(own)}\n\n{future}\n\n{imports}\n{_after_imports(loop)}\n\n{split.strip()}\n"


def _docstring(source: str) -> str:
    node = ast.parse(source).body[0]
    return "\n".join(source.splitlines()[: node.end_lineno])


def _imports(source: str) -> list[str]:
    lines = source.splitlines()
    return [
        "\n".join(lines[node.lineno - 1 : node.end_lineno])
        for node in ast.parse(source).body
        if isinstance(node, (ast.Import, ast.ImportFrom))
    ]


def _after_imports(source: str) -> str:
    last = max(node.end_lineno or 0 for node in ast.parse(source).body if isinstance(node, (ast.Import, ast.ImportFrom)))
    return "\n".join(source.splitlines()[last:])
