"""What a rule is, what it may look at, and what it says.

A rule ends in one of three ways: `found`, `excluded` (with the evidence that excludes it) or `undecided` (with what would be
needed).  Rules state facts; the words are in `rules/words/*.toml` under the finding's `rule` id, in English and Chinese, as
templates over `facts`.  A module of this package that defines `RULES` is found by `rules.load()`; nothing else is edited.

Roles, from the point of view of the verdict:
  root         a cause that can stand alone
  consequence  follows from something else when there is something else; names a cause only if nothing upstream exists
  symptom      never a cause: teardown, victims' complaints, guesses inside error texts
  precursor    supports a root that is near in time or place; accuses nobody alone
  context      a circumstance (setting, version, warning) that raises or lowers other findings
  recovery     what came before was survived
  stop         the user or a policy ended the run;  done: the run reached its end
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from forensics.run import Run

Role = Literal["root", "consequence", "symptom", "precursor", "context", "recovery", "stop", "done"]
Outcome = Literal["found", "excluded", "undecided"]


@dataclass(slots=True)
class Evidence:
    """A place in the evidence: path relative to the run, 1-based line, the line's text, its time (Unix seconds) if known."""

    file: str
    line: int
    text: str = ""
    time: float | None = None


@dataclass(slots=True)
class Finding:
    """What one rule says about one cause.

    cause: `layer/cause-id` or None.  weight: 0..1, how surely this finding, if nothing upstream explains it, names the cause
    (1 = the line cannot mean anything else).  time: Unix seconds of the first evidence.  `ranks` holds every rank at fault.
    """

    rule: str
    outcome: Outcome = "found"
    cause: str | None = None
    role: Role = "root"
    weight: float = 0.5
    severity: Literal["info", "warning", "error", "fatal"] = "error"
    time: float | None = None
    evidence: list[Evidence] = field(default_factory=list)
    rank: int | None = None
    host: str | None = None
    gpu: str | None = None
    pid: int | None = None
    ranks: list[int] = field(default_factory=list)
    covers: tuple[str, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)
    needs: str = ""
    count: int = 1
    title: dict[str, str] | None = None  # only where the words come with the data (signatures); else rules/words


@dataclass(slots=True)
class Rule:
    """A reasoning rule.  `covers` names the GUIDE items (L0.6, S12, Q4, P5, H1) it judges."""

    id: str
    judge: Callable[[Run], Iterable[Finding]]
    covers: tuple[str, ...] = ()
    after: tuple[str, ...] = ()  # ids of rules whose findings this one reads from run.findings


@dataclass(slots=True)
class Signature:
    """One declarative signature (see docs/writing-rules.md).  `literals`: at least one stands in every match."""

    id: str
    cause: str | None
    role: Role
    weight: float
    literals: tuple[str, ...]
    pattern: str
    sources: tuple[str, ...]
    title: dict[str, str]
    why: dict[str, str]
    fix: dict[str, str]
    verify: str
    source: str
    basis: str
    covers: tuple[str, ...]
    hits: tuple[str, ...]
    near_misses: tuple[str, ...]
    pack: str = ""
    own: bool = False  # of the project's own packs, whose patterns are linted in CI
