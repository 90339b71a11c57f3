"""Launcher prefixes: who wrote a line, told by what the launcher put in front of it.

srun, torchrun, Open MPI, Ray, pdsh, docker and kubectl label lines in their own ways, and the labels nest in any order
(`0: [rank0]: Traceback`, `node-0: [rank3]:[E1206 ...`).  `strip` takes them off one after another.  Labels that ordinary
text could also be (`3: `, `name: `) are taken off only where `survey` saw that the file uses them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from parsers.base import lazy

MAX_TEXT = 64 << 10
MAX_LAYERS = 8


@dataclass(slots=True, frozen=True)
class Prefixed:
    """A line without its prefixes and what they told; `rank` is global (`[Rank 3]`, a rank within a group, is not read)."""

    text: str
    rank: int | None = None
    host: str | None = None
    pid: int | None = None
    actor: str | None = None


@dataclass(slots=True, frozen=True)
class Style:
    """Which ambiguous prefixes a file uses: `numbered` = srun -l's `3: `; `hosts` = the names in `name: ` (pdsh, DeepSpeed)."""

    numbered: bool = False
    hosts: frozenset[str] = frozenset()


PLAIN = Style()

_ESCAPE = lazy(
    r"\x1b(?:\[[0-?]{0,64}[ -/]{0,8}[@-~]|\][^\x07\x1b]{0,2000}(?:\x07|\x1b\\)?|[PX^_][^\x1b]{0,2000}(?:\x1b\\)?|[ -/]{0,4}[0-~]?)"
)
_CONTROL = lazy(r"[\x00-\x08\x0b-\x1f\x7f\x80-\x9f\ufeff]+")
_SUSPECT = lazy(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ufeff]")

_STEP = lazy(
    r"\[rank ?(?P<rank>[0-9]{1,6})\]:? ?"
    r"|\[(?P<role>[A-Za-z_][A-Za-z_.-]{0,30})(?P<local>[0-9]{1,4})\]:(?=[^\s:]|\s|\Z) ?"
    r"|\[[0-9]{1,6},(?P<mpi>[0-9]{1,6})\]<(?:stdout|stderr|stdin|stddiag)>: ?"
    r"|\((?P<actor>[A-Za-z_][\w.:<>\[\]-]{0,80}(?: [A-Za-z][\w-]{0,40}){0,2}) pid=(?P<pid>[0-9]{1,9})(?:, ip=(?P<ip>[0-9A-Fa-f.:]{3,45}))?\) ?"
    r"|\((?P<label>[A-Za-z_][\w.:-]{0,80}(?:, (?:rank|pid|ip|node|host|local_rank|task)=[\w.:-]{1,80}){1,5})\) ?"
    r"|\((?P<daemon>raylet|gcs_server|autoscaler)(?:, ip=(?P<rip>[0-9A-Fa-f.:]{3,45})| \+[0-9hms]+)?\) ?"
    r"|[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}(?:\.[0-9]{1,9})?(?:Z|[+-][0-9]{2}:[0-9]{2}) std(?:out|err) [FP](?: |\Z)"
    r"|[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}\.[0-9]{6,9}Z (?=\S)"
    r"|(?:[A-Z][a-z]{2} ){2} ?[0-9]{1,2} [0-9:]{8} [0-9]{4}(?=\[[0-9]{1,6},[0-9]{1,6}\]<)"
    r"|\[pod/(?P<pod>[\w.-]{1,253})(?:/[\w.-]{1,253})?\] ?"
)
# docker compose pads `service-1 | `; stern writes `pod container › `.
_SERVICE = lazy(r"(?P<name>[A-Za-z0-9][\w.-]{0,80}[-_][0-9]{1,5}) {1,40}\| ?|(?P<stern>[a-z0-9][\w.-]{0,80}) [a-z0-9][\w.-]{0,80} › ")
# `Rank 6 | text`, `rank3| text`: home-made launchers and log wrappers.
_RANKED = lazy(r"[Rr](?:ank|ANK)[ _-]?(?P<n>[0-9]{1,6}) {0,8}\| ?")
_OPENERS = frozenset("[(0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ{")
_NUMBERED = lazy(r" {0,6}(?P<n>[0-9]{1,6}): ?")
_HOST = lazy(r"(?P<host>[A-Za-z][A-Za-z0-9-]{0,62}(?:\.[A-Za-z0-9-]{1,62}){0,6}): ?")
_HOST_IP = lazy(r"(?P<host>[0-9]{1,3}(?:\.[0-9]{1,3}){3}): ")
# `2025-06-12 10:00:01 node-3: text`: a wrapper's stamp stands before the host.
_LABEL = frozenset(" 0123456789")  # what a numbered label begins with
_STAMPED = lazy(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9:]{8}(?:[.,][0-9]{1,9})?Z? (?=[A-Za-z0-9])")
_NCCL = lazy(
    r"(?P<host>[A-Za-z0-9][\w.-]{0,80}):(?P<pid>[0-9]{1,9}):[0-9]{1,9} (?:\[[0-9]{1,4}\] |[\w./-]{1,80}:[0-9]{1,6} )?(?:[\w./-]{1,80}:[0-9]{1,6} (?:\(\w{1,80}\) )?)?NCCL "
)
_DOCKER_JSON = lazy(r'\{"log":"(?P<log>(?:[^"\\]|\\.){0,60000})","stream":"std(?:out|err)"')
_SYSLOG = lazy(
    r"(?:<[0-9]{1,3}>)?(?:[^\W\d_]{3,5}\.? {1,2}[0-9]{1,2} [0-9:]{8}(?:\.[0-9]{1,6})?|[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}(?:[.,][0-9]{1,9})?(?:Z|[+-][0-9]{2}:?[0-9]{2}))"
    r" (?P<host>[A-Za-z0-9][\w.-]{0,80}) (?P<program>(?!\()[\w./()@-]{1,60})(?:\[(?P<pid>[0-9]{1,9})\])?: "
)
# Words that stand before a colon at the start of ordinary lines; none is a host.
_COMMON = """
warning error info debug note fatal critical exception traceback srun slurmstepd sbatch slurmd salloc mpirun mpiexec prterun torchrun
ray accelerate deepspeed python python3 bash sh kernel nvrm docker file epoch step loss train training eval val validation test
iteration iter rank device model config args usage hint cause reason detail details message output input total time date host node task
worker status path name type value key result results avg mean max min lr reward kl entropy grad grad_norm perplexity accuracy seed
prompt response question answer assistant user system human what where data dataset tokenizer optimizer scheduler checkpoint version
cuda nccl torch memory gpu cpu disk downloading loading saving http https ftp s3 hdfs wandb tensorboard mlflow hf huggingface valueerror
runtimeerror keyerror typeerror oserror importerror assertionerror indexerror attributeerror filenotfounderror modulenotfounderror
keyboardinterrupt userwarning futurewarning deprecationwarning main
"""
_NO_HOSTS = frozenset(_COMMON.split())


def clean(raw: bytes) -> str:
    """Bytes of one line as text: UTF-8 with replacements, no escape sequences or control characters but tab, at most 64 k characters."""
    text = raw[: MAX_TEXT * 2].decode("utf-8", "replace")
    if _SUSPECT.search(text) is not None:
        if "\x1b" in text:
            text = _ESCAPE.sub("", text)
        text = _CONTROL.sub("", text)
    return text[:MAX_TEXT]


def survey(lines: Iterable[str]) -> Style:
    """Which ambiguous prefixes a sample of cleaned lines (a few hundred) uses.

    `N: ` counts as srun's label when at least half of the lines carry one and the same label returns; `name: ` as a host
    when the same few names lead most lines, or a name that ends in digits leads several.
    """
    total = numbered = 0
    labels: Counter[str] = Counter()
    hosts: Counter[str] = Counter()
    for line in lines:
        if not line or line.isspace():
            continue
        total += 1
        if ":" not in line[:200]:  # neither label is without one
            continue
        found = _NUMBERED.match(line) if line[0] in _LABEL else None
        if found is not None and line[found.end() - 1] == " ":
            numbered += 1
            labels[found["n"]] += 1
        elif found is not None and found.end() == len(line):
            numbered += 1  # an empty line under its label
        stamp = _STAMPED.match(line) if line[:1].isdigit() else None
        at = stamp.end() if stamp else 0
        host = _HOST.match(line, at) or _HOST_IP.match(line, at)
        if host is not None and (line[host.end() - 1] == " " or host.end() == len(line)) and host["host"].lower() not in _NO_HOSTS:
            hosts[host["host"]] += 1
    is_numbered = numbered >= 3 and numbered * 2 >= total and labels.total() > len(labels)
    led = sum(count for name, count in hosts.items() if name[-1].isdigit() and count >= 3)
    names = frozenset(
        name for name, count in hosts.most_common(4096) if count >= 3 and name[-1].isdigit() and not name.isdigit() and led * 2 >= total
    )
    if not names and hosts and total >= 8:
        # Hosts without digits (`alpha: `): only where very few names lead nearly every line.
        common = [name for name, count in hosts.most_common(16) if count >= 4]
        if sum(hosts[name] for name in common) * 10 >= total * 8:
            names = frozenset(common)
    return Style(is_numbered, names)


def strip(full: str, style: Style = PLAIN) -> Prefixed:
    """Take off every launcher prefix of a cleaned line, outermost first, at most eight of them.

    `[default3]:` counts as rank 3 only when nothing else names the rank: on several nodes it is the local rank.
    NCCL's `host:pid:tid` and syslog's `host program[pid]:` stay in the text, but their host and pid are reported.
    """
    rank: int | None = None
    local: int | None = None
    task: int | None = None
    host: str | None = None
    pid: int | None = None
    actor: str | None = None
    text = full
    for _ in range(MAX_LAYERS):
        first = text[:1]
        if first == " ":
            bare = text.lstrip(" ")
            # Indentation is kept unless a label follows it.
            if not (bare[:1] in "[(" or (style.numbered and bare[:1].isdigit())):
                break
            if style.numbered and (label := _NUMBERED.match(text)) is not None:
                task = int(label["n"])
                text = text[label.end() :]
                continue
            if _STEP.match(bare) is None:
                break
            text = bare
        if text[:8] == '{"log":"':
            wrapped = _DOCKER_JSON.match(text)
            if wrapped is None:
                break
            text = _unescape(wrapped["log"])
            continue
        if style.numbered and (label := _NUMBERED.match(text)) is not None:
            task = int(label["n"])
            text = text[label.end() :]
            continue
        if style.hosts and first.isdigit() and (stamp := _STAMPED.match(text)) is not None:
            label = _HOST.match(text, stamp.end()) or _HOST_IP.match(text, stamp.end())
            if label is not None and label["host"] in style.hosts:
                host = host or label["host"]
                text = text[label.end() :]
                continue
        if style.hosts and (label := _HOST.match(text) or _HOST_IP.match(text)) is not None and label["host"] in style.hosts:
            host = host or label["host"]
            text = text[label.end() :]
            continue
        if "| " in text[:120] or "›" in text[:200]:
            ranked = _RANKED.match(text)
            if ranked is not None:
                rank = int(ranked["n"])
                text = text[ranked.end() :]
                continue
            service = _SERVICE.match(text)
            if service is not None:
                host = host or service["name"] or service["stern"]
                text = text[service.end() :]
                continue
        step = _STEP.match(text) if text[:1] in _OPENERS else None
        if step is None:
            break
        if step["rank"] is not None:
            rank = int(step["rank"])
        elif step["mpi"] is not None:
            rank = int(step["mpi"]) if rank is None else rank
        elif step["local"] is not None:
            if step["role"].lower() not in _ROLES:
                break
            local = int(step["local"])
        elif step["actor"] is not None:
            actor, pid = step["actor"], int(step["pid"])
            host = step["ip"] or host
        elif step["label"] is not None:
            told = dict(part.split("=", 1) for part in step["label"].split(", ")[1:])
            actor = step["label"].partition(",")[0]
            rank = int(told["rank"]) if told.get("rank", "").isdigit() else rank
            pid = int(told["pid"]) if told.get("pid", "").isdigit() else pid
            host = told.get("ip") or told.get("node") or told.get("host") or host
        elif step["daemon"] is not None:
            actor = step["daemon"]
            host = step["rip"] or host
        elif step["pod"] is not None:
            host = host or step["pod"]
        text = text[step.end() :]
    if ":" in text[:120]:
        if "NCCL " in text[:300]:
            nccl = _NCCL.search(text, 0, 300)
            if nccl is not None:
                host, pid = host or nccl["host"], int(nccl["pid"])
        elif pid is None or host is None:
            system = _SYSLOG.match(text)
            if system is not None:
                host = host or system["host"]
                if pid is None and system["pid"]:
                    pid = int(system["pid"])
    if rank is None:
        rank = task if task is not None else local
    return Prefixed(text, rank, host, pid, actor)


# Names that torchelastic roles carry in practice; any other `[word3]:` is text (`[step3]:`).
_ROLES = frozenset(("default", "trainer", "worker", "train", "role", "actor", "learner", "node"))
_ESCAPED = lazy(r"\\(?:u([0-9a-fA-F]{4})|(.))")
_SHORT = {"n": "\n", "t": "\t", "r": "", "b": "", "f": "", '"': '"', "\\": "\\", "/": "/"}


def _unescape(text: str) -> str:
    """A JSON string body as text, its line end dropped."""

    def plain(found: re.Match[str]) -> str:
        if found[1]:
            code = int(found[1], 16)
            return "\ufffd" if 0xD800 <= code < 0xE000 else "" if code < 32 and code != 9 else chr(code)
        return _SHORT.get(found[2], found[2])

    out = _ESCAPED.sub(plain, text).rstrip("\n").replace("\n", " ")
    return _CONTROL.sub("", _ESCAPE.sub("", out)) if "\x1b" in out else out
