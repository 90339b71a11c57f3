"""What is known: signatures and causes as data, and rules that reason over time, ranks and series."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from rules.base import Rule


@cache
def load() -> tuple[Rule, ...]:
    """Every reasoning rule of this package, ordered so that each comes after those named in its `after`."""
    found: dict[str, Rule] = {}
    for module in sorted(pkgutil.iter_modules(__path__), key=lambda info: info.name):
        if module.ispkg:
            continue
        for rule in getattr(importlib.import_module(f"{__name__}.{module.name}"), "RULES", ()):
            if rule.id in found:
                raise ValueError(f"two rules are called {rule.id}")
            found[rule.id] = rule
    ordered: dict[str, Rule] = {}

    def place(rule: Rule, path: tuple[str, ...] = ()) -> None:
        if rule.id in path:
            raise ValueError(f"rules wait for each other: {' -> '.join((*path, rule.id))}")
        for name in rule.after:
            if name in found:
                place(found[name], (*path, rule.id))
        ordered.setdefault(rule.id, rule)

    for rule in found.values():
        place(rule)
    return tuple(ordered.values())
