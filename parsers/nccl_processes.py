"""Which process is which rank: NCCL's INFO lines name host, process, CUDA device and, in rings and trees, the rank.

`host:pid:tid [dev] NCCL INFO Channel 00/0 : 26[2] -> 27[3] via P2P/CUMEM` (2.10 to 2.30), `Trees [0] 27/-1/-1->26->25`.
One `nccl_process` event per process and per thing learnt; behind a Ray prefix the line also joins an address to a host name.
"""

from __future__ import annotations

from parsers.base import Context, Line, LineParser, Rows, lazy

_HEAD = lazy(r"(?P<host>[A-Za-z0-9][\w.-]{0,80}):(?P<pid>\d{1,9}):\d{1,9} \[(?P<dev>\d{1,3})\] NCCL INFO ")
_CHANNEL = lazy(r"Channel \d+(?:/\d+)? ?: (?P<a>\d{1,6})\[(?P<x>[0-9a-f]{1,12})\](?: \[\d+\])? -> (?P<b>\d{1,6})\[(?P<y>[0-9a-f]{1,12})\]")
_TREES = lazy(r"Trees \[0\] [-\d/]+->(?P<rank>\d{1,6})->")
_IP = lazy(r"\d{1,3}(?:\.\d{1,3}){3}")
MAX_PROCESSES = 20_000


def _parse(line: Line, rows: Rows, context: Context) -> None:
    head = _HEAD.search(line.text[:300])
    if head is None:
        return
    seen: dict[tuple[str, str], bool] = context.state.setdefault("seen", {})
    key = (head["host"], head["pid"])
    if seen.get(key) or len(seen) > MAX_PROCESSES:
        return
    rank = None
    if match := _TREES.search(line.text):
        rank = int(match["rank"])
    elif (match := _CHANNEL.search(line.text)) and match["x"] != match["y"]:
        # The line is the sender's or the receiver's: its device tells which, where devices are printed as numbers.
        if match["x"] == head["dev"]:
            rank = int(match["a"])
        elif match["y"] == head["dev"]:
            rank = int(match["b"])
    if key in seen and rank is None:
        return
    seen[key] = rank is not None
    prefix = _IP.search(line.full[: line.full.find(head["host"] + ":")]) if line.host and _IP.fullmatch(line.host) else None
    fields = {"cudaDev": int(head["dev"]), "ip": prefix[0] if prefix else line.host if line.host and _IP.fullmatch(line.host) else None}
    rows.event(
        line,
        "nccl_process",
        "debug",
        text="",
        host=head["host"],
        pid=int(head["pid"]),
        rank=rank if rank is not None else line.rank,
        fields=fields,
    )


PARSER = LineParser("nccl-processes", ("NCCL INFO Channel ", "NCCL INFO Trees ", "NCCL INFO Connected all"), _parse, kind="nccl")
