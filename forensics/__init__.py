"""Reads what a training run left behind and says which layer is responsible, with the evidence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
# gc.set_threshold of our own processes.  What is loaded at the start stays: to look through it for garbage after every 700 objects
# was a tenth of a small run's time.
CALM = (10_000, 20, 20)
__all__ = [
    "Comparison",
    "PackError",
    "Report",
    "Timeline",
    "Unusable",
    "Verdict",
    "__version__",
    "analyze",
    "analyze_many",
    "compare",
    "load_rules",
]

if TYPE_CHECKING:
    from forensics.analysis import Report, analyze
    from forensics.archive.many import analyze_many
    from forensics.comparison import Comparison, compare
    from forensics.evidence import Unusable
    from forensics.knowledge import PackError, load_rules
    from forensics.timeline import Timeline
    from forensics.verdict import Verdict

# Imported when first asked for: `forensics --version` must not load a dataframe engine.
_HOMES = {
    "analyze": "analysis",
    "analyze_many": "archive.many",
    "Report": "analysis",
    "Unusable": "evidence",
    "PackError": "knowledge",
    "compare": "comparison",
    "Comparison": "comparison",
    "Timeline": "timeline",
    "Verdict": "verdict",
    "load_rules": "knowledge",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(f"forensics.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'forensics' has no attribute {name!r}")
