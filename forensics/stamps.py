"""Times as logs write them: finds the stamp of a line, whatever program wrote it.

`find_stamp` is called on every line that says something, so it costs a substring test and one scan on a line without a
time.  Every wall-clock form has `HH:MM` in it; the date is then read from what stands directly left of that.  A form's id
tells clocks of one file apart: lines of one form are written by one clock.

Forms:  iso* (year first, `-zone` when the text names one), us (month/day/year), dmy, us2 and spark (two-digit year last and
first; one line cannot tell these orders, forensics.clock_dates.ordered settles them over a whole file), md
(month-day), c10 (torch C++), glog, syslog, ctime (also `dmesg -T`), dayname (`Feb 25 2025`), cjk, minute (`dmesg -H`),
epoch, mono (`[12345.678901]`), kmsg.  In bodies of kernel lines, by `find_stamps` only: audit, rtc, lustre, mce.
A trailing `~` marks a time that stands inside a sentence rather than in front of a message.
"""

from __future__ import annotations

import re
from functools import lru_cache

from parsers.base import Stamp

__all__ = ["Stamp", "find_stamp", "find_stamps", "zone_seconds"]

HEAD = 250  # characters of a line in which its own stamp is looked for
BODY = 2000  # characters in which `find_stamps` looks for further times

# First letters of month names as date(1), dmesg -T and journalctl print them (glibc locales), lower case, no dots.
_MONTHS = {
    1: "jan january januar janv janvier ene enero gen gennaio jaen jän januari янв января sty stycznia led ocak oca ιαν",
    2: "feb february februar févr fév fev février febr febrero febbraio fevereiro februari фев февр февраля lut lutego úno unor şub şubat sub φεβ",
    3: "mar march mär märz maerz mrz mars marzo março marz mrt maart марта мар mrz marca bře mart μαρ",
    4: "apr april avr avril abr abril aprile апр апреля kwi kwietnia dub nis nisan απρ",
    5: "may mai mei maj mayo mag maggio maio мая май maja kvě kve mayıs μαι μαϊ",
    6: "jun june juni juin junio giu giugno junho июн июня cze czerwca čer haz haziran ιουν",
    7: "jul july juli juil juillet julio lug luglio julho июл июля lip lipca čvc tem temmuz ιουλ",
    8: "aug august août aoû aout ago agosto augustus augusti авг августа sie sierpnia srp ağu ağustos αυγ",
    9: "sep sept september septembre septiembre set settembre setembro сен сент сентября wrz września zář zar eyl eylül σεπ",
    10: "oct october okt oktober octobre octubre ott ottobre out outubro окт октября paź października říj rij eki ekim οκτ",
    11: "nov november novembre noviembre novembro ноя нояб ноября lis listopada lis kas kasım νοε",
    12: "dec december dez dezember déc decembre décembre dic diciembre dicembre dezembro дек декабря gru grudnia pro ara aralık δεκ",
}
_MONTH = {word: number for number, words in _MONTHS.items() for word in words.split()}

# Zone abbreviations that mean one thing only in logs; CST, IST and BST do not.
_ZONES = {
    name: hours * 3600.0
    for name, hours in {
        "Z": 0, "UTC": 0, "GMT": 0, "WET": 0, "CET": 1, "WEST": 1, "CEST": 2, "EET": 2, "EEST": 3, "MSK": 3, "SGT": 8, "HKT": 8, "AWST": 8,
        "JST": 9, "KST": 9, "AEST": 10, "AEDT": 11, "NZST": 12, "NZDT": 13, "EST": -5, "EDT": -4, "CDT": -5, "MST": -7, "MDT": -6, "PST": -8,
        "PDT": -7, "AKST": -9, "AKDT": -8, "HST": -10,
    }.items()
}  # fmt: skip

_CLOCK = re.compile(r"[0-9](?=:[0-5][0-9])")
_BEFORE = frozenset("T _:-日일午전후")  # what stands between a date and its time
_TIME = re.compile(
    r"(?P<h>[0-9]{1,2}):(?P<mi>[0-9]{2})(?::(?P<s>[0-9]{2})(?P<f>[.,][0-9]{1,9})?)?(?![0-9:])"
    r"(?: ?(?P<ap>[AaPp]\.?[Mm])\b)?"
    r"(?: ?(?P<z>Z\b|[+-][0-9]{2}:?[0-9]{2}\b|[A-Z]{3,4}\b(?! ?[0-9]{5}))(?![0-9]))?"
    r"(?: (?P<y>(?:19|20)[0-9]{2})\b)?"
)
_DATE = re.compile(
    r"(?:"
    r"(?<![0-9])(?P<y>(?:19|20)[0-9]{2})(?P<sep>[-/.])(?P<mo>[0-9]{1,2})(?P=sep)(?P<d>[0-9]{1,2})(?P<t>[T _]|:| {2,3}|, )"
    r"|(?<![0-9])(?P<cy>(?:19|20)[0-9]{2})(?P<cmo>[0-9]{2})(?P<cd>[0-9]{2})[T _-]"
    r"|(?<![0-9/.-])(?P<a>[0-9]{1,2})(?P<s3>[-/.])(?P<b>[0-9]{1,2})(?P=s3)(?P<c>[0-9]{4}|[0-9]{2})(?:,? |T)"
    r"|(?P<lead>\[?)(?<![A-Za-z0-9])(?P<lv>[IWEFDC])(?P<md>[0-9]{3,4}) {1,2}"
    r"|(?<![0-9/.-])(?P<m2>[0-9]{2})[-/](?P<d2>[0-9]{2}) "
    r"|(?P<mon>[^\W\d_]{3,10}\.?|[0-9]{1,2}[月월]) {0,3}(?P<d4>[0-9]{1,2})(?:,? (?P<y4>(?:19|20)[0-9]{2}))?,? {1,2}"
    r"|(?<![0-9])(?P<d5>[0-9]{1,2})[-/. ](?P<mon5>[^\W\d_]{3,10}\.?)[-/. ](?P<y5>(?:19|20)[0-9]{2})[ :,] ?"
    r"|(?P<y6>[0-9]{4})[年년] ?(?P<mo6>[0-9]{1,2})[月월] ?(?P<d6>[0-9]{1,2})[日일],? ?(?P<ap6>上午|下午|오전|오후)? ?"
    r")\Z"
)
_MONO = re.compile(r"(?:[a-z0-9]+ *:[a-z]+ *: ?)?(?:<[0-9]{1,3}>)?\[ *(?P<mono>[0-9]{1,10}\.[0-9]{3,9})(?: <[ 0-9.]+>)?\](?=[\[ \t]|\Z)")
_MONO_LATER = re.compile(r"(?:kernel: ?|: )\[ *(?P<mono>[0-9]{1,10}\.[0-9]{6})\](?=[\[ ])")
_KMSG = re.compile(r"[0-9]{1,4},[0-9]+,(?P<us>[0-9]{1,16}),[-c](?:,caller=\w+)?;")
_EPOCH = re.compile(r"[\[(]?(?P<e>1[0-9]{9})(?:(?P<f>\.[0-9]{1,9})|(?P<ms>[0-9]{3}))?[\])]?(?=[\s:,|\]-])")
_BODY = (
    ("audit", re.compile(r"audit\((?P<e>1[0-9]{9}\.[0-9]{3}):[0-9]+\)"), 0.001),
    ("rtc", re.compile(r"setting system clock to [0-9T:\- ]{19} UTC \((?P<e>1[0-9]{9})\)"), 1.0),
    ("lustre", re.compile(r"\[sent (?P<e>1[0-9]{9})/real [0-9]{1,12}\]"), 1.0),
    ("mce", re.compile(r"PROCESSOR [0-9]:[0-9a-f]+ TIME (?P<e>1[0-9]{9})\b"), 1.0),
)
_WORDS = re.compile(r"[^\W\d_]{2,} [^\W\d_]{2,} ?|[^\W\d_]{2,} (?:AT|at|on|since|from|until) \Z")
_DAYS_1970 = 719_468


@lru_cache(maxsize=4096)
def _day(year: int, month: int, day: int) -> float | None:
    """Unix seconds of a date's midnight UTC, None for a date that does not exist or lies outside 1970-2199."""
    if not (1970 <= year < 2200 and 1 <= month <= 12 and day >= 1):
        return None
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    if day > (31, 29 if leap else 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)[month - 1]:
        return None
    # Days from the civil date, with the year made to begin in March.
    shifted = year - (month <= 2)
    era = shifted // 400
    of_era = shifted - era * 400
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return float((era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - _DAYS_1970) * 86_400)


def _month(name: str) -> int | None:
    if name[0].isascii() and name[0].isdigit():
        number = int(name[:-1])
        return number if 1 <= number <= 12 else None
    word = name.lower().rstrip(".")
    return _MONTH.get(word)


def zone_seconds(text: str) -> float | None:
    """`+0100`, `-08:00`, `Z`, `PST` as seconds east of UTC; None when the name is ambiguous or no zone."""
    if text[:1] in "+-" and len(text) >= 5:
        if not (text[1:3] + text[-2:]).isascii() or not (text[1:3] + text[-2:]).isdigit():
            return None
        hours, minutes = int(text[1:3]), int(text[-2:])
        if hours > 14 or minutes > 59:
            return None
        return (hours * 3600.0 + minutes * 60.0) * (-1 if text[0] == "-" else 1)
    return _ZONES.get(text)


def _wall(head: str, at: int) -> tuple[Stamp, int] | None:
    """The stamp whose `H:MM` begins with the hour's last digit at `at`, and where its date begins."""
    start = at - 1 if at and head[at - 1] in "0123456789" else at
    if not start or head[start - 1] not in _BEFORE:
        return None
    date = _DATE.search(head, start - 36 if start > 36 else 0, start)
    if date is None:
        return None
    time = _TIME.match(head, start)
    if time is None:
        return None
    hour, minute, second = int(time["h"]), int(time["mi"]), int(time["s"] or 0)
    half = time["ap"]
    if date["ap6"]:
        half = "am" if date["ap6"] in ("上午", "오전") else "pm"
    if half:
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + (12 if half[0] in "pP" else 0)
    if hour > 23 or minute > 59 or second > 60:
        return None
    # No date is read before a bare `H:MM` except where the format prints none: dmesg -H, AM/PM, ISO to the minute.
    year, month, day = 2000, 0, 0
    yearless = False
    if date["y"]:
        year, month, day = int(date["y"]), int(date["mo"]), int(date["d"])
        form = "iso-t" if date["t"] == "T" else "iso-elastic" if date["t"] == "_" else "iso" if date["sep"] == "-" else "iso" + date["sep"]
        if time["f"]:
            form += time["f"][0]
    elif date["cy"]:
        year, month, day, form = int(date["cy"]), int(date["cmo"]), int(date["cd"]), "compact"
    elif date["a"]:
        first, middle, last = int(date["a"]), int(date["b"]), int(date["c"])
        if len(date["c"]) == 4:
            year = last
            month, day, form = (
                (first, middle, "us") if first <= 12 and date["s3"] != "." else (middle, first, "dmy." if date["s3"] == "." else "dmy")
            )
        elif first > 12 and 1 <= middle <= 12 and 1 <= last <= 31:
            year, month, day, form = 2000 + first, middle, last, "spark"
        else:
            year, month, day, form = 2000 + last, first, middle, "us2"
    elif date["md"]:
        if time["s"] is None:
            return None
        month, day = divmod(int(date["md"]), 100)
        yearless = True
        form = "c10" if (date["lead"] and len(time["f"] or "") == 10) or len(date["md"]) == 3 else "glog"
    elif date["m2"]:
        if time["s"] is None:
            return None
        month, day, form, yearless = int(date["m2"]), int(date["d2"]), "md" + head[date.start("m2") + 2], True
    elif date["mon"]:
        number = _month(date["mon"])
        if number is None:
            return None
        month, day = number, int(date["d4"])
        if time["s"] is None:
            if not (time["ap"] or date["y4"]) and head[date.start() - 1 : date.start()] != "[":
                return None
            form = "minute"
        else:
            form = "syslog"
        if date["y4"]:
            year, form = int(date["y4"]), "dayname"
        elif time["y"]:
            year, form = int(time["y"]), "ctime"
        else:
            yearless = True
    elif date["d5"]:
        number = _month(date["mon5"])
        if number is None:
            return None
        year, month, day, form = int(date["y5"]), number, int(date["d5"]), "rfc2822"
    else:
        year, month, day, form = int(date["y6"]), int(date["mo6"]), int(date["d6"]), "cjk"
    midnight = _day(year, month, day)
    if midnight is None:
        return None
    fraction = time["f"]
    seconds = midnight + hour * 3600 + minute * 60 + second
    if time["s"] is None:
        precision = 60.0
    elif fraction:
        seconds += float("0." + fraction[1:])
        precision = 10.0 ** (1 - len(fraction))
    else:
        precision = 1.0
    zone = zone_seconds(time["z"]) if time["z"] else None
    if zone is not None:
        seconds -= zone
        form += "-zone"
    begin = date.start()
    if date["mon"]:
        begin = date.start("mon")
    return Stamp(form, seconds, zone, yearless, False, precision), begin


def _mono(head: str) -> Stamp | None:
    found = _MONO.match(head)
    if found is not None:
        text = found["mono"]
        if len(text) > 14 and text[10:11] == "." and text[0] == "1":  # an epoch in brackets
            return Stamp("epoch", float(text), 0.0, precision=10.0 ** (text.index(".") + 1 - len(text)))
        return Stamp("mono", float(text), mono=True, precision=10.0 ** (text.index(".") + 1 - len(text)))
    found = _KMSG.match(head)
    if found is not None:
        return Stamp("kmsg", int(found["us"]) / 1e6, mono=True, precision=1e-6)
    found = _EPOCH.match(head)
    if found is not None:
        fraction = found["f"]
        seconds = float(found["e"] + (fraction or ""))
        if found["ms"]:
            return Stamp("epoch", seconds + int(found["ms"]) / 1000, 0.0, precision=0.001)
        return Stamp("epoch", seconds, 0.0, precision=10.0 ** (1 - len(fraction)) if fraction else 1.0)
    return None


_STARTS = frozenset("[<(0123456789")
_FACILITIES = frozenset(("kern", "user", "daem", "mail", "auth", "sysl", "lpr ", "news", "uucp", "cron", "loca"))


def find_stamp(text: str) -> Stamp | None:
    """The time written in the first 250 characters of a cleaned line; a wall time is preferred to a monotonic one.

    Durations, progress bars (`[01:12<04:07`), versions and impossible dates are no stamps.  Never raises.
    """
    head = text if len(text) <= HEAD else text[:HEAD]
    if ":" in head:
        for tries, clock in enumerate(_CLOCK.finditer(head)):
            found = _wall(head, clock.start())
            if found is not None:
                stamp, begin = found
                if begin > 8 and head[:1] in _STARTS and (own := _mono(head)) is not None:
                    return own  # the wall time stands in the body, as in the kernel's rtc line
                if begin > 24 and _WORDS.search(head, 0, begin):
                    return Stamp(stamp.form + "~", stamp.seconds, stamp.zone, stamp.yearless, False, stamp.precision)
                return stamp
            if tries == 5:
                break
    if head[:1] in _STARTS or head[:4] in _FACILITIES:
        return _mono(head)
    return None


def find_stamps(text: str) -> list[Stamp]:
    """Every time a line tells: its own stamp(s), the kernel's own after syslog's, epochs in audit, rtc, Lustre, MCE bodies.

    Used to join clocks: two stamps on one line are one instant (within the line's own delay).  At most 12 are returned.
    """
    head = text[:BODY]
    out: list[Stamp] = []
    for clock in _CLOCK.finditer(head):
        found = _wall(head, clock.start())
        if found is not None:
            out.append(found[0])
        if len(out) >= 6:
            break
    start = _mono(head)
    if start is not None:
        out.append(start)
    else:
        later = _MONO_LATER.search(head, 0, HEAD)
        if later is not None:
            out.append(Stamp("mono", float(later["mono"]), mono=True, precision=1e-6))
    if "TIME 1" in head or "audit(" in head or "setting system clock" in head or "[sent 1" in head:
        for form, pattern, precision in _BODY:
            hit = pattern.search(head)
            if hit is not None:
                out.append(Stamp(form, float(hit["e"]), 0.0, precision=precision))
    return out[:12]
