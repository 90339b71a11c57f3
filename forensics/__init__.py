"""Reads what a training run left behind and says which layer is responsible, with the evidence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Comparison", "PackError", "Report", "Unusable", "__version__", "analyze", "compare"]

if TYPE_CHECKING:
    from forensics.analysis import Report, analyze
    from forensics.comparison import Comparison, compare
    from forensics.evidence import Unusable
    from forensics.knowledge import PackError

# Imported when first asked for: `forensics --version` must not load a dataframe engine.
_HOMES = {
    "analyze": "analysis",
    "Report": "analysis",
    "Unusable": "evidence",
    "PackError": "knowledge",
    "compare": "comparison",
    "Comparison": "comparison",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(f"forensics.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'forensics' has no attribute {name!r}")
