"""Messages of torch.distributed: the NCCL/HCCL watchdog, Gloo, the store and rendezvous (torch 1.13 to 2.13).

`[rank3]:` in front is the global rank (torch 2.2 on); `[Rank 3]` and the rank inside `[PG ...]` count within that process
group.  Older versions print only the latter, and then it is taken as the global rank with `rank_from = "group"`.
A message is often printed three times (watchdog, `terminated with exception`, `what():`); one event is kept.

Events and their fields:
  watchdog_timeout    seq, op, numel_in, numel_out, shape, timeout_ms, ran_ms, pg, pg_name, group_rank
  pg_status           work (failing sequence number or None), last_enqueued, last_completed, pg, pg_name, group_rank
  dump_signal         origin ("local" or the rank that told it), last_enqueued, last_completed, pg …
  heartbeat           queued (works in flight), stuck_s
  watchdog_exception  inner, class
  nccl_error          code, inner (NCCL's last error), class
  gloo_timeout        ms, direction;  gloo_closed  peer;  gloo_error  inner
  store_timeout       joined, expected, seconds, key;  store_wait  joined, expected, waiting (rank)
  unique_id           waiting, owner: the group rank that never published NCCL's unique id
  connect_timeout     target, seconds;  rendezvous_timeout;  eaddrinuse  port
  barrier_missing     missing (ranks), ms
  collective_mismatch a, b: {rank, seq, op, shape, dtype}
  desync              missing / stuck (ranks), seq
  collective_stack    frames: [[function, file, line]]
  hccl_wait           remote (rank or None), code
"""

from __future__ import annotations

import re
from typing import Any

from parsers.base import Context, Line, LineParser, Rows, lazy
from parsers.nccl import PEER, classify

LIMIT = 6000
MAX_RANKS = 4096

_RANK_PREFIX = lazy(r"\[rank(\d{1,6})\]:")
_C10_RANK = lazy(r"\[rank(\d{1,6})\]:\[[IWEF][ \d]")
_GROUP = lazy(
    r"\[(?:PG ID (?P<id>\d{1,6}) PG GUID (?P<guid>[^\s()\]]{1,60})(?: ?\((?P<desc>[^)\]]{0,80})\))?|"
    r"PG (?P<old>[^\s()\]]{1,60})(?: ?\((?P<olddesc>[^)\]]{0,80})\))?) Rank (?P<rank>\d{1,6})\]"
)
_OLD_RANK = lazy(r"\[Rank (?P<rank>\d{1,6})\]")
_TIMEOUT = lazy(
    r"Watchdog caught collective operation timeout: Work(?P<backend>NCCL|HCCL|XCCL|MCCL|CNCL)\((?P<inside>[^)]{0,400}(?:\(ms\)[^)]{0,60})?)\)"
    r" ran for (?P<ran>\d{1,12}) milliseconds"
)
_ITEM = lazy(r"(?P<key>SeqNum|OpType|NumelIn|NumelOut|Timeout\(ms\))=(?P<value>[^\s,)\]]{1,40})|TensorShape=(?P<shape>\[[^\]]{0,120}\])")
_STATUS = lazy(
    r"(?:(?:detected by watchdog|[Tt]imeout) at (?:\w+ )?work(?: sequence id)?: (?P<work>-?\d{1,18})[,.]?.{0,40}?)?"
    r"[Ll]ast enqueued (?:\w+ )?work: (?P<enqueued>-?\d{1,18}), last completed (?:\w+ )?work: (?P<completed>-?\d{1,18})"
)
_DUMP = lazy(r"Received a dump signal due to a? ?(?P<why>[\w ]{0,40}?) from (?:this )?(?P<who>local rank|\s?rank (?P<rank>\d{1,6}))")
_HEARTBEAT = lazy(
    r"Heartbeat monitor timed out!.{0,200}?workMetaList_\.size\(\)=(?P<queued>\d{1,9})|watchdog got stuck for (?P<stuck>\d{1,9}) seconds"
)
_WATCHDOG_END = lazy(r"watchdog thread terminated with exception: (?P<inner>.{1,800})")
_ERROR = lazy(r"(?:NCCL|RCCL) error in: (?P<where>[^,]{1,200}), (?P<what>[^,(]{1,80})")
_GLOO_TIMEOUT = lazy(r"Timed out waiting (?P<ms>\d{1,12})ms for (?P<way>send|recv) operation")
_GLOO_CLOSED = lazy(r"Connection (?:closed|reset) by peer ?(?:\[(?P<ip>[\w.:]{1,60})\]:(?P<port>\d{1,5}))?")
_GLOO_OTHER = lazy(
    r"(?:gloo::EnforceNotMet|enforce fail at .{0,120}gloo|Gloo connectFullMesh failed|Application timeout caused pair closure).{0,300}"
)
_CLIENTS = lazy(r"Timed out after (?P<s>\d{1,9}) seconds waiting for clients\. (?P<joined>\d{1,6})/(?P<expected>\d{1,6}) clients joined")
_STORE_BARRIER = lazy(
    r"(?P<kind>Timed out|Waiting).{0,60}?store based barrier.{0,60}? rank: ?(?P<rank>\d{1,6}), (?:for )?key: (?P<key>\S{1,80}) "
    r"\(world_size=(?P<expected>\d{1,6}), (?:worker_count|num_workers_joined)=(?P<joined>\d{1,6}), timeout=(?P<timeout>[\w:. ,=()]{1,60})"
)
_STORE_WAIT = lazy(r"wait timeout after (?P<ms>\d{1,12}) ?ms, keys: (?P<key>\S{1,200})")
_UNIQUE_ID = lazy(
    r"\[(?P<waiting>\d{1,6})\](?:/\[?\d+\]?)? is setting up (?:NCCL|HCCL) communicator and retrieving (?:nccl|Hccl|HCCL)\w*Id from \[(?P<owner>\d{1,6})\]"
)
_CLIENT_SOCKET = lazy(
    r"client socket has (?:timed out after (?P<s>\d{1,9})(?:s|ms| seconds)?|failed to connect).{0,80}?(?:connect to|network address of) "
    r"[\[(]?(?P<host>[\w.\-:]{1,120}?)[\])]?[,:] ?(?P<port>\d{1,5})"
)
_PORT = lazy(r"(?:port: |:)(?P<port>\d{2,5})\b")
_MONITORED = lazy(r"Ranks? (?P<ranks>\d{1,6}(?:, ?\d{1,6}){0,2000}) failed to pass monitoredBarrier in (?P<ms>\d{1,12}) ?ms")
_FINGER = lazy(
    r"Rank (?P<rank>\d{1,6}) is running (?:collective: )?(?:CollectiveFingerPrint\((?P<inside>[^()]{0,600})|inconsistent collective: (?P<loose>[^()]{0,600}))"
)
_FINGER_ITEM = lazy(
    r"SequenceNumber=(?P<seq>\d{1,18})|OpType=(?P<op>[A-Z_]{2,40})|TensorShape=(?P<shape>\[[^\]]{0,200}\])|TensorDtypes=(?P<dtype>\w{1,40})"
)
_DESYNC = lazy(
    r"\[(?P<ranks>\d{1,6}(?:, ?\d{1,6}){0,2000})\] (?:finished collective #\d{1,18}, but didn't join collective #(?P<missing>\d{1,18})|"
    r"(?P<none>haven't joined any collective|didn't join any collective)|joined but didn't finish collective #(?P<stuck>\d{1,18}))"
)
_FRAME = lazy(r"^\s*#(?P<n>\d{1,3}) (?P<fn>.{1,120}?) from (?P<file>[^\s:]{1,300}):(?P<line>\d{1,7})")
_REMOTE = lazy(r"(?:remote rank ?\[?(?P<remote>\d{1,6}|unknown)\]?|remote[_ ]?rank[: =]+\[?(?P<other>\d{1,6}))")
_HCCL_CODE = lazy(r"\b(?P<code>E[IJ]\d{4})\b")


def _ranks(text: str) -> list[int]:
    return [int(x) for x in re.findall(r"\d+", text)[:MAX_RANKS]]


class _Where:
    """Rank and group of one line."""

    __slots__ = ("fields", "group_rank", "pg", "pg_name", "rank")

    def __init__(self, line: Line, text: str) -> None:
        self.rank = line.rank
        # a launcher may put its own `[rankN]:` (a local rank) in front: c10's stands nearest to its bracket
        found = _C10_RANK.search(line.full[:600])
        if found is None and self.rank is None:
            found = _RANK_PREFIX.search(line.full[:400])
        if found:
            self.rank = int(found[1])
        self.pg: str | None = None
        self.pg_name: str | None = None
        self.group_rank: int | None = None
        self.fields: dict[str, Any] = {}
        head = text[:600]
        if found := _GROUP.search(head):
            self.pg = found["guid"] or found["old"]
            self.pg_name = found["desc"] or found["olddesc"] or None
            self.group_rank = int(found["rank"])
        elif found := _OLD_RANK.search(head):
            self.group_rank = int(found["rank"])
        if self.rank is None and self.group_rank is not None and self.pg in (None, "0", "default_pg"):
            self.rank = self.group_rank
            self.fields["rank_from"] = "group"
        for name in ("pg", "pg_name", "group_rank"):
            if (value := getattr(self, name)) is not None:
                self.fields[name] = value


def _classify_inner(inner: str) -> str:
    """What ended a watchdog: timeout, ecc, illegal-access, assert, oom, launch, cuda, or NCCL's own class."""
    low = inner.lower()
    for name, words in (
        ("timeout", ("collective operation timeout", "timed out")),
        ("ecc", ("uncorrectable ecc", "ecc error", "uncorrectable nvlink")),
        ("illegal-access", ("illegal memory access", "misaligned address", "illegal instruction", "invalid program counter")),
        ("assert", ("device-side assert",)),
        ("oom", ("out of memory",)),
        ("lost", ("gpu is lost", "device unavailable", "fallen off", "unknown error", "system not yet initialized", "hardware error")),
        ("launch", ("unspecified launch failure", "launch timed out", "launch failure")),
        ("remote", ("remote process exited", "ncclremoteerror", "network error", "remote error")),
        ("aborted", ("communicator was aborted", "aborted")),
        ("cuda", ("cuda error", "hip error", "cuda driver error")),
    ):
        if any(word in low for word in words):
            return name
    return classify(inner)


def _once(context: Context, *key: Any) -> bool:
    """True the first time a key is seen in this file; the memory is bounded."""
    seen: set[Any] = context.state.setdefault("seen", set())
    if key in seen or len(seen) > 50_000:
        return False
    seen.add(key)
    return True


def _timeout(line: Line, text: str, rows: Rows, context: Context, where: _Where) -> bool:
    found = _TIMEOUT.search(text)
    if found is None:
        return False
    fields: dict[str, Any] = {"backend": found["backend"], "ran_ms": int(found["ran"]), **where.fields}
    names = {"SeqNum": "seq", "OpType": "op", "NumelIn": "numel_in", "NumelOut": "numel_out", "Timeout(ms)": "timeout_ms"}
    for item in _ITEM.finditer(found["inside"] + ")"):
        if item["shape"]:
            fields["shape"] = item["shape"]
        elif item["value"].lstrip("-").isdigit():
            fields[names[item["key"]]] = int(item["value"])
        elif item["key"] == "OpType":
            fields["op"] = item["value"]
    repeat = "terminated with exception" in text or "what():" in text
    rank = where.rank
    if repeat and not where.fields.get("pg") and rank is None:
        fields["repeat"] = True
    # the same message comes again inside `terminated with exception` and `what()`, with another value of "ran for"
    if not _once(
        context, "timeout", rank, where.group_rank, fields.get("seq"), fields.get("op"), fields.get("numel_in"), fields.get("shape")
    ):
        return True
    if repeat:
        fields["pg_unsure"] = True  # the group printed there is that of the watchdog, not of the collective
        fields.pop("pg", None)
        fields.pop("pg_name", None)
    rows.event(line, "watchdog_timeout", "error", rank=rank, fields=fields)
    return True


def _status(line: Line, text: str, rows: Rows, context: Context, where: _Where) -> None:
    found = _STATUS.search(text)
    if found is None:
        return
    fields: dict[str, Any] = {"last_enqueued": int(found["enqueued"]), "last_completed": int(found["completed"]), **where.fields}
    if dump := _DUMP.search(text):
        fields["origin"] = int(dump["rank"]) if dump["rank"] else "local"
        if _once(context, "dump", where.rank, where.pg):
            rows.event(line, "dump_signal", "warning", rank=where.rank, fields=fields)
        return
    fields["work"] = int(found["work"]) if found["work"] is not None else None
    if _once(context, "status", where.rank, where.pg, fields["last_enqueued"], fields["last_completed"]):
        rows.event(line, "pg_status", "error", rank=where.rank, fields=fields)


def _error(line: Line, text: str, rows: Rows, context: Context, where: _Where) -> None:
    """`NCCL error in: …` with the two or three lines below it that hold NCCL's own last message."""
    found = _ERROR.search(text)
    if found is None:
        return
    code, inner, wanted = found["what"].strip(), "", False
    for below in context.following(8):
        body = below.text.strip()
        if wanted and body:
            inner = body
            break
        if body.startswith("ncclSystemError") or (body.startswith("nccl") and "Error:" in body[:40]):
            code = body.split(":", 1)[0]
        if body.startswith("Last error:"):
            wanted = True
            rest = body[len("Last error:") :].strip()
            if rest:
                inner = rest
                break
    fields = {"code": code, "inner": inner[:600], "class": _classify_inner(inner) if inner else "", **where.fields}
    if peer := PEER.search(inner):
        fields["peer"] = peer["peer"]
    if _once(context, "nccl_error", where.rank, code, inner[:80]):
        rows.event(line, "nccl_error", "error", rank=where.rank, fields=fields)


def _mismatch(line: Line, text: str, rows: Rows, context: Context, where: _Where) -> None:
    sides: list[dict[str, Any]] = []
    for found in _FINGER.finditer(text):
        side: dict[str, Any] = {"rank": int(found["rank"])}
        for item in _FINGER_ITEM.finditer(found["inside"] or found["loose"] or ""):
            for name in ("seq", "op", "shape", "dtype"):
                if item[name]:
                    side[name] = int(item[name]) if name == "seq" else item[name]
        sides.append(side)
    fields: dict[str, Any] = dict(where.fields)
    if sides:
        fields["a"] = sides[0]
    if len(sides) > 1:
        fields["b"] = sides[1]
    rank = where.rank if where.rank is not None else (sides[0]["rank"] if sides else None)
    if _once(context, "mismatch", rank, str(fields)[:200]):
        rows.event(line, "collective_mismatch", "error", rank=rank, fields=fields)


def _stack(line: Line, rows: Rows, context: Context, where: _Where) -> None:
    frames: list[list[Any]] = []
    end = line.number
    for below in context.following(60):
        found = _FRAME.match(_RANK_PREFIX.sub("", below.text).strip())
        if found is None:
            if frames or below.number > line.number + 4:
                break
            continue
        frames.append([found["fn"], found["file"], int(found["line"])])
        end = below.number
    if frames and _once(context, "stack", where.rank, str(frames[0])):
        rows.event(line, "collective_stack", "info", rank=where.rank, fields={"frames": frames[:40], **where.fields}, end_line=end)


def _store(line: Line, text: str, rows: Rows, context: Context, where: _Where) -> None:
    fields: dict[str, Any]
    if found := _CLIENTS.search(text):
        fields = {"joined": int(found["joined"]), "expected": int(found["expected"]), "seconds": int(found["s"])}
        if _once(context, "store", where.rank, *fields.values()):
            rows.event(line, "store_timeout", "error", rank=where.rank, fields=fields)
    elif found := _STORE_BARRIER.search(text):
        fields = {"joined": int(found["joined"]), "expected": int(found["expected"]), "key": found["key"], "waiting": int(found["rank"])}
        timed = found["kind"] == "Timed out"
        if _once(context, "barrier", timed, fields["waiting"], fields["joined"], fields["key"]):
            rows.event(
                line, "store_timeout" if timed else "store_wait", "error" if timed else "warning", rank=fields["waiting"], fields=fields
            )
    elif (found := _STORE_WAIT.search(text)) and _once(context, "wait", where.rank, found["key"]):
        rows.event(line, "store_timeout", "error", rank=where.rank, fields={"key": found["key"], "seconds": int(found["ms"]) / 1000})
    if found := _UNIQUE_ID.search(text):
        waiting, owner = int(found["waiting"]), int(found["owner"])
        if _once(context, "unique", waiting, owner):
            rank = where.rank if where.rank is not None else waiting
            rows.event(line, "unique_id", "error", rank=rank, fields={"waiting": waiting, "owner": owner})
    if found := _CLIENT_SOCKET.search(text):
        fields = {"target": f"{found['host']}:{found['port']}"}
        if found["s"]:
            fields["seconds"] = int(found["s"])
        if _once(context, "connect", where.rank, fields["target"]):
            rows.event(line, "connect_timeout", "error", rank=where.rank, fields=fields)
    if "RendezvousTimeoutError" in text and "raise Rend" not in text and _once(context, "rendezvous", where.rank):
        rows.event(line, "rendezvous_timeout", "error", rank=where.rank)
    if ("EADDRINUSE" in text or "ddress already in use" in text) and _once(context, "port", where.rank, text[:80]):
        port = _PORT.search(text[text.find("ocket") if "ocket" in text else 0 :])
        rows.event(line, "eaddrinuse", "error", rank=where.rank, fields={"port": int(port["port"])} if port else {})


def _gloo(line: Line, text: str, rows: Rows, context: Context, where: _Where) -> None:
    if found := _GLOO_TIMEOUT.search(text):
        if _once(context, "gloo", where.rank, line.number if where.rank is None else found["ms"]):
            rows.event(line, "gloo_timeout", "error", rank=where.rank, fields={"ms": int(found["ms"]), "direction": found["way"]})
    elif ("gloo" in text or "pair.cc" in text) and (found := _GLOO_CLOSED.search(text)):
        if _once(context, "closed", where.rank, found["port"]):
            fields = {"peer": f"{found['ip']}:{found['port']}"} if found["port"] else {}
            rows.event(line, "gloo_closed", "error", rank=where.rank, fields=fields)
    elif (found := _GLOO_OTHER.search(text)) and _once(context, "gloo_error", where.rank, found[0][:60]):
        rows.event(line, "gloo_error", "error", rank=where.rank, fields={"inner": found[0][:300]})


def _parse(line: Line, rows: Rows, context: Context) -> None:
    text = line.text[:LIMIT]
    where = _Where(line, text)
    timed = "operation timeout" in text and _timeout(line, text, rows, context, where)
    if "ast enqueued" in text:
        _status(line, text, rows, context, where)
    if (found := _HEARTBEAT.search(text)) and _once(context, "heartbeat", where.rank, where.pg, found["queued"], found["stuck"]):
        fields = dict(where.fields)
        if found["queued"]:
            fields["queued"] = int(found["queued"])
        if found["stuck"]:
            fields["stuck_s"] = int(found["stuck"])
        rows.event(line, "heartbeat", "error", rank=where.rank, fields=fields)
    if not timed and (found := _WATCHDOG_END.search(text)):
        inner = found["inner"].strip()
        if _once(context, "end", where.rank, inner[:60]):
            rows.event(
                line,
                "watchdog_exception",
                "error",
                rank=where.rank,
                fields={"inner": inner[:600], "class": _classify_inner(inner), **where.fields},
            )
    if " error in: " in text:
        _error(line, text, rows, context, where)
    if "mismatch between collectives" in text:
        _mismatch(line, text, rows, context, where)
    if "Stack trace of the" in text and "not found" not in text:
        _stack(line, rows, context, where)
    if (found := _MONITORED.search(text)) and _once(context, "monitored", found["ranks"]):
        rows.event(line, "barrier_missing", "error", rank=where.rank, fields={"missing": _ranks(found["ranks"]), "ms": int(found["ms"])})
    if "collective" in text and (found := _DESYNC.search(text)):
        ranks = _ranks(found["ranks"])
        kind = "stuck" if found["stuck"] else "missing"
        if _once(context, "desync", kind, tuple(ranks)):
            seq = found["stuck"] or found["missing"]
            rows.event(line, "desync", "error", rank=where.rank, fields={kind: ranks, "seq": int(seq) if seq else None})
    _store(line, text, rows, context, where)
    _gloo(line, text, rows, context, where)
    if "remote rank" in text and ("otify" in text or "HCCL" in text or "hccl" in text or "EI00" in text):
        remote, code = _REMOTE.search(text), _HCCL_CODE.search(text)
        value = (remote["remote"] or remote["other"]) if remote else None
        if _once(context, "hccl", where.rank, value):
            fields = {"remote": int(value) if value and value.isdigit() else None, "code": code["code"] if code else None}
            rows.event(line, "hccl_wait", "error", rank=where.rank, fields=fields)


PARSER = LineParser(
    "process_group",
    triggers=(
        "collective operation timeout",
        "ast enqueued ",
        "Heartbeat monitor timed out",
        "watchdog got stuck",
        "watchdog thread terminated",
        "NCCL error in: ",
        "RCCL error in: ",
        "mismatch between collectives",
        "Stack trace of the failed collective",
        "monitoredBarrier",
        "join collective #",
        "join any collective",
        "joined any collective",
        "finish collective #",
        "waiting for clients. ",
        "store based barrier",
        "wait timeout after ",
        " communicator and retrieving ",
        "client socket has ",
        "RendezvousTimeoutError",
        "EADDRINUSE",
        "ddress already in use",
        "for recv operation",
        "for send operation",
        "Connection closed by peer",
        "Connection reset by peer",
        "connectFullMesh failed",
        "gloo::EnforceNotMet",
        "Application timeout caused pair closure",
        "remote rank",
    ),
    parse=_parse,
    kind="train",
)
