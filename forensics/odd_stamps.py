"""Dates in forms that forensics.stamps does not know, such as `Donnerstag, 12. Juni 2025 09:30:12`.

dateparser understands them but costs milliseconds a line, so it is asked once per file: `infer` has it read a few lines of a
sample, finds out which number or word of the text is which part of the date, and gives an `OddForm` that reads all further
lines with one regular expression.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from forensics.stamps import find_stamp
from parsers.base import Stamp

LANGUAGES = ["en", "zh", "fr", "de", "es", "pt", "it", "ru", "ja", "ko", "pl", "nl", "tr", "sv", "cs", "uk"]
REACH = 90  # characters from the line's start in which the date must end
ASKED = 8  # lines of a sample that dateparser is shown
NEEDED = 2  # of them that must agree on one form

_TIME = re.compile(r"(?<![\d:])\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d{1,6})?)?(?![\d:])(?: ?[AaPp]\.?[Mm]\b\.?)?")
_YEAR = re.compile(r"(?<!\d)(?:19|20)\d{2}(?!\d)")
_PIECE = re.compile(r"\d+|[^\W\d_]+")
_OPENING = "[(<{ "


@dataclass
class OddForm:
    """How one file writes its dates: `pattern` with a group per number or word, `roles` what each is (Y m d H M S f mon half, "" nothing)."""

    pattern: re.Pattern[str]
    roles: tuple[str, ...]
    months: dict[str, int] = field(default_factory=dict)

    def find(self, text: str) -> Stamp | None:
        """The stamp of a line of this form, form id `odd`; None for another line or an impossible date."""
        found = self.pattern.match(text[:200])
        if found is None:
            return None
        values: dict[str, int] = {"H": 0, "M": 0, "S": 0}
        fraction = 0.0
        half = ""
        for role, value in zip(self.roles, found.groups(), strict=True):
            if role == "mon":
                month = self._month(value)
                if month is None:
                    return None
                values["m"] = month
            elif role == "half":
                half = value.lower()
            elif role == "f":
                fraction = float("0." + value)
            elif role:
                values[role] = int(value)
        if half:
            values["H"] = values["H"] % 12 + (12 if half.startswith("p") else 0)
        try:
            moment = datetime(values["Y"], values["m"], values["d"], values["H"], values["M"], values["S"], tzinfo=UTC)
        except (ValueError, KeyError):
            return None
        return Stamp("odd", moment.timestamp() + fraction, precision=1.0 if "S" in self.roles else 60.0)

    def _month(self, word: str) -> int | None:
        key = word.lower()
        if key not in self.months and len(self.months) < 64:
            moment = _parse(f"12 {word} 2024")
            self.months[key] = moment.month if moment is not None and moment.day == 12 else 0
        return self.months.get(key) or None


def infer(lines: Sequence[str]) -> OddForm | None:
    """The form of the dates at the start of a sample of cleaned lines whose stamps `find_stamp` cannot read; None without one.

    A form counts when dateparser reads at least two of the first eight such lines to dates that one pattern explains.
    """
    asked = 0
    votes: dict[tuple[str, tuple[str, ...]], int] = {}
    forms: dict[tuple[str, tuple[str, ...]], OddForm] = {}
    for line in lines:
        candidate = _candidate(line)
        if candidate is None or find_stamp(line) is not None:
            continue
        asked += 1
        if asked > ASKED:
            break
        moment = _parse(candidate.strip(_OPENING))
        form = _explain(candidate, moment) if moment is not None else None
        if form is None:
            continue
        key = (form.pattern.pattern, form.roles)
        votes[key] = votes.get(key, 0) + 1
        forms.setdefault(key, form).months.update(form.months)
    if not votes:
        return None
    best = max(votes, key=lambda key: votes[key])
    return forms[best] if votes[best] >= NEEDED else None


def finder(lines: Sequence[str]) -> Callable[[str], Stamp | None]:
    """What reads the stamps of a file of which `lines` is a sample: `find_stamp`, with the file's own odd form where it has one."""
    if any(find_stamp(line) is not None for line in lines):
        return find_stamp
    form = infer(lines)
    if form is None:
        return find_stamp
    return lambda text: find_stamp(text) or form.find(text)


def _candidate(line: str) -> str | None:
    """The line's beginning up to the end of its date and time; None where there is no year and no time of day."""
    head = line[:REACH]
    time, year = _TIME.search(head), _YEAR.search(head)
    if time is None or year is None:
        return None
    text = head[: max(time.end(), year.end())]
    # Prose is no date: at most weekday, day, month, a few small words, and nothing but usual marks between.
    return text if len(_PIECE.findall(text)) <= 12 and not re.search(r"[=|{}\"'%]", text) else None


def _parse(text: str) -> datetime | None:
    import dateparser  # type: ignore[import-untyped,unused-ignore]  # takes a quarter of a second to import, and few runs need it

    settings: Any = {"STRICT_PARSING": True, "RETURN_AS_TIMEZONE_AWARE": False}
    try:
        moment: datetime | None = dateparser.parse(text, languages=LANGUAGES, settings=settings)
        return moment
    except Exception:  # it raises many kinds on odd text; an odd text has no date
        return None


def _explain(text: str, moment: datetime) -> OddForm | None:
    """A pattern for texts of this shape, with what each piece of it means; None when the pieces do not give the date."""
    time = _TIME.search(text)
    if time is None:
        return None
    pattern, roles, at = "", [], 0
    missing = {"Y", "m", "d"}
    months: dict[str, int] = {}
    clock = iter(("H", "M", "S", "f"))
    for piece in _PIECE.finditer(text):
        pattern += _between(text[at : piece.start()])
        at = piece.end()
        word = piece[0]
        role = ""
        inside = time.start() <= piece.start() < time.end()
        if word.isdigit():
            if inside:
                role = next(clock, "")
            elif len(word) == 4 and int(word) == moment.year and "Y" in missing:
                role = "Y"
            elif "d" in missing and int(word) == moment.day:
                role = "d"
            elif "m" in missing and int(word) == moment.month:
                role = "m"
            elif len(word) > 2:
                return None
            pattern += r"(\d{4})" if role == "Y" else r"(\d{1,9})"
        else:
            if inside or re.fullmatch(r"[AaPp][Mm]", word):
                role = "half"
            elif "m" in missing and len(word) > 1 and _names_month(word, moment.month):
                role = "mon"
                months[word.lower()] = moment.month
            pattern += r"([^\W\d_]{1,20})"
        missing.discard("m" if role == "mon" else role)
        roles.append(role)
    if missing or roles.count("H") != 1:
        return None
    return OddForm(re.compile(r"\s{0,20}" + pattern.lstrip()), tuple(roles), months)


def _between(text: str) -> str:
    return "".join(r"\s{1,4}" if part.isspace() else re.escape(part) for part in re.findall(r"\s+|\S+", text))


def _names_month(word: str, month: int) -> bool:
    moment = _parse(f"12 {word} 2024")
    return moment is not None and (moment.month, moment.day) == (month, 12)
