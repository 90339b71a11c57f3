"""Flight-recorder dumps of torch.distributed (NCCL and Gloo, torch 2.4 on): the last collectives of one rank.

A dump is a pickle (or JSON) of plain dicts, lists, strings and numbers.  It is untrusted: the unpickler admits plain data only
(no globals at all), and a walk over the opcodes before it bounds size, nesting of memory and count of operations.

One event `fr_dump` per file, with compact state (at most MAX_ENTRIES unfinished or last collectives per group):
  fields = {"rank", "version", "world", "entries", "groups": {group: {"desc", "ranks", "enqueued", "started", "completed",
            "p2p": bool, "ops": [[seq, p2p_seq, op, in_sizes, out_sizes, in_dtypes, state, created_ns, timeout_ms, peer]]}}, "frames"}
`group` is the process group's name, the same on all ranks; sequence numbers count within the group.
"""

from __future__ import annotations

import contextlib
import io
import json
import pickle
import pickletools
import re
import reprlib
from typing import Any

from parsers.base import FileParser, Head, Line, Rows, Source, lazy

MAX_BYTES = 96 << 20
MAX_OPCODES = 12_000_000
MAX_ENTRIES = 48  # kept per group and rank: the unfinished ones and the last finished
MAX_GROUPS = 2048
MAX_MEMBERS = 65_536

_NAME = lazy(
    r"(?:rank[_\-.]?|_dump_|nccl_trace_rank_|fr_trace_?|trace[_\-.]?|dump[_\-.]?|[_\-.])(?P<rank>\d{1,6})(?:\.(?:pkl|pickle|json|bin|dump|fr))?$"
)
_P2P = lazy(r"(?P<way>send|recv)\w* (?P<a>\d{1,6})(?:->|<-)(?P<b>\d{1,6})")
_KEYS = ("pg_config", "pg_status", "entries")
#: opcodes that build anything other than plain data
_FORBIDDEN = frozenset(
    {"GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "EXT1", "EXT2", "EXT4", "PERSID", "BINPERSID"}
)


class _Plain(pickle.Unpickler):
    """Refuses every global and persistent object."""

    def find_class(self, module: str, name: str) -> Any:
        raise ValueError(f"the dump refers to {module}.{name}; only plain data is read")

    def persistent_load(self, pid: Any) -> Any:
        raise ValueError("the dump refers to a persistent object; only plain data is read")


def read_plain(data: bytes) -> Any:
    """Unpickle plain data (dict, list, tuple, str, bytes, numbers, bool, None).

    Raises ValueError for anything else, for damaged data and for data past the bounds.  Nothing in it is executed.
    """
    if len(data) > MAX_BYTES:
        raise ValueError("the dump is larger than is read")
    count = 0
    last = ""
    try:
        for opcode, argument, _ in pickletools.genops(data):
            count += 1
            last = opcode.name
            if last in _FORBIDDEN:
                raise ValueError(f"the dump holds the pickle operation {last}; only plain data is read")
            if count > MAX_OPCODES:
                raise ValueError("the dump has more operations than are read")
            # a huge memo index makes the C unpickler allocate a table of that size
            if last in ("LONG_BINPUT", "PUT") and isinstance(argument, int) and argument > count:
                raise ValueError("the dump's memo index is out of proportion")
    except ValueError:
        raise
    except Exception as error:  # damaged streams raise many kinds
        raise ValueError(f"damaged pickle: {error}") from None
    if last != "STOP":
        raise ValueError("the pickle is cut short")
    try:
        return _Plain(io.BytesIO(data)).load()
    except Exception as error:
        raise ValueError(f"damaged pickle: {error}") from None


def _load(data: bytes) -> dict[str, Any]:
    start = data[:64].lstrip()
    if start.startswith((b"{", b"[")):
        try:
            content = json.loads(data.decode("utf-8", "replace"))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"damaged JSON: {error}") from None
    else:
        content = read_plain(data)
    if not isinstance(content, dict) or "entries" not in content:
        raise ValueError("no flight-recorder dump: it has no entries")
    return content


def rank_of(path: str, content: dict[str, Any]) -> int | None:
    """The global rank: from the content where it says so, else from the number at the end of the file's name."""
    rank = content.get("rank")
    if isinstance(rank, int) and not isinstance(rank, bool) and rank >= 0:
        return rank
    name = path.rsplit("/", 1)[-1]
    found = _NAME.search(name) or re.search(r"(\d{1,6})(?=\D*$)", name)
    return int(found["rank"] if "rank" in found.re.groupindex else found[1]) if found else None


def _ranks(value: Any) -> list[int]:
    if isinstance(value, str):
        return [int(x) for x in re.findall(r"\d{1,7}", value[: MAX_MEMBERS * 8])[:MAX_MEMBERS]]
    if isinstance(value, (list, tuple)):
        return [int(x) for x in value[:MAX_MEMBERS] if isinstance(x, int)]
    return []


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _operation(entry: dict[str, Any], members: list[int]) -> list[Any]:
    name = str(entry.get("profiling_name") or "")[:80]
    peer: int | None = None
    if found := _P2P.search(name):
        # ranks inside the group, `send me->peer` and `recv me<-peer`
        other = int(found["b"])
        peer = members[other] if other < len(members) else other
        op = found["way"]
    else:
        op = name.split(":", 1)[-1]
    sizes = [_clip(entry.get(key)) for key in ("input_sizes", "output_sizes", "input_dtypes")]
    state = str(entry.get("state") or "")[:20]
    seq = _number(entry.get("collective_seq_id", entry.get("seq_id")))
    return [
        seq,
        _number(entry.get("p2p_seq_id")),
        op,
        *sizes,
        state,
        _number(entry.get("time_created_ns")),
        _number(entry.get("timeout_ms")),
        peer,
    ]


_REPR = reprlib.Repr()
_REPR.maxlevel, _REPR.maxlist, _REPR.maxtuple, _REPR.maxdict, _REPR.maxstring, _REPR.maxother = 3, 24, 24, 4, 60, 60


def _clip(value: Any) -> str:
    """A short text of a nested list; bounded however deep or shared the value is."""
    return "" if value is None else _REPR.repr(value).replace("'", "")[:200]


def _group_names(content: dict[str, Any], entries: list[dict[str, Any]]) -> dict[str, str]:
    """Map each key of `pg_status` (this rank's own numbering) to the group's name.

    Entries tell it directly.  Groups without entries are matched by order: both numberings follow the order of creation, which
    is used only if it agrees with all that the entries tell.
    """
    status, config = content.get("pg_status"), content.get("pg_config")
    known: dict[str, str] = {}
    for entry in entries:
        group = entry.get("process_group")
        if isinstance(group, (list, tuple)) and group and "pg_id" in entry:
            known[str(entry["pg_id"])] = str(group[0])
    if isinstance(status, dict) and isinstance(config, dict):
        numbers = [str(k) for k in status]
        names = [str(k) for k in config]
        if len(numbers) == len(names) and all(x.isdigit() for x in numbers + names):
            by_order = dict(zip(sorted(numbers, key=int), sorted(names, key=int), strict=True))
            if all(by_order.get(key, name) == name for key, name in known.items()):
                return {**by_order, **known}
        if not known and set(numbers) <= set(names):
            return {k: k for k in numbers}
    return known


def compact(content: dict[str, Any]) -> dict[str, Any]:
    """The state per process group of one dump (see the module's docstring)."""
    raw = content.get("entries")
    entries = [e for e in raw if isinstance(e, dict)] if isinstance(raw, list) else []
    names = _group_names(content, entries)
    groups: dict[str, dict[str, Any]] = {}
    config = content.get("pg_config")
    if isinstance(config, dict):
        for name, item in list(config.items())[:MAX_GROUPS]:
            if isinstance(item, dict):
                groups[str(name)] = {"desc": str(item.get("desc") or "")[:80], "ranks": _ranks(item.get("ranks"))}
    status = content.get("pg_status")
    if isinstance(status, dict):
        for key, item in list(status.items())[:MAX_GROUPS]:
            name = names.get(str(key))
            if name is None or not isinstance(item, dict):
                continue
            group = groups.setdefault(name, {"desc": "", "ranks": []})
            for short, long in (
                ("enqueued", "last_enqueued_collective"),
                ("started", "last_started_collective"),
                ("completed", "last_completed_collective"),
            ):
                if (value := _number(item.get(long))) is not None:
                    group[short] = value
    by_group: dict[str, list[dict[str, Any]]] = {}
    for entry in entries:
        pair = entry.get("process_group")
        name = str(pair[0]) if isinstance(pair, (list, tuple)) and pair else names.get(str(entry.get("pg_id")), str(entry.get("pg_id")))
        if name not in groups and len(groups) < MAX_GROUPS:
            groups[name] = {"desc": str(pair[1])[:80] if isinstance(pair, (list, tuple)) and len(pair) > 1 else "", "ranks": []}
        if name in groups:
            by_group.setdefault(name, []).append(entry)
    for name, list_ in by_group.items():
        group = groups[name]
        operations = [_operation(entry, group["ranks"]) for entry in list_]
        if any(entry.get("is_p2p") for entry in list_):
            group["p2p"] = True
        open_ = [o for o in operations if o[6] != "completed"][:MAX_ENTRIES]
        closed = [o for o in operations if o[6] == "completed"]
        group["ops"] = closed[-(MAX_ENTRIES - len(open_)) :] + open_ if len(open_) < MAX_ENTRIES else open_
        collective = [o for o in operations if o[0] is not None and o[9] is None]
        if "enqueued" not in group and collective:  # torch 2.4 has no pg_status
            group["enqueued"] = max(o[0] for o in collective)
            done = [o[0] for o in collective if o[6] == "completed"]
            group["completed"] = max(done) if done else min(o[0] for o in collective) - 1
    return {"version": str(content.get("version") or "")[:20], "entries": len(entries), "groups": groups, "frames": _frames(entries)}


def _frames(entries: list[dict[str, Any]]) -> list[list[Any]]:
    """The stack of the oldest unfinished collective, innermost first."""
    for entry in entries:
        frames = entry.get("frames")
        if str(entry.get("state")) != "completed" and isinstance(frames, list):
            return [[str(f.get("name"))[:120], str(f.get("filename"))[:200], f.get("line")] for f in frames[:24] if isinstance(f, dict)]
    return []


def _recognises(head: Head) -> float:
    data = head.data
    if data[:1] == b"\x80" or data.lstrip()[:1] == b"{":
        hits = sum(key.encode() in data for key in _KEYS)
        if hits >= 2 or (hits == 1 and (b"profiling_name" in data or b"nccl_version" in data or b"comm_lib_version" in data)):
            return 0.95
    return 0.0


def _parse(source: Source, rows: Rows) -> None:
    content = _load(source.read())
    rank = rank_of(source.path, content)
    state = compact(content)
    host = content.get("host_name", content.get("hostname"))
    for key in ("nccl_version", "comm_lib_version"):
        if isinstance(content.get(key), str):
            rows.fact(1, "version.nccl", content[key][:40])
            break
    state["rank"] = rank
    pending = sum(1 for group in state["groups"].values() for op in group.get("ops", ()) if op[6] != "completed")
    line = Line(source.path, 1, f"flight recorder of rank {rank}: {state['entries']} entries, {pending} unfinished", "")
    with contextlib.suppress(AttributeError):
        line.host = host[:80] if isinstance(host, str) else None
    rows.event(line, "fr_dump", "info", rank=rank, fields=state)


PARSER = FileParser("flight_recorder", "flight-recorder", _recognises, _parse)
