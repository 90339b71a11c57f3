"""What lines of several files say together: which rank is which process, host and GPU, and how far training got."""

from __future__ import annotations

import bisect
import re
from collections import Counter
from typing import Any, Literal, TypeGuard

import polars as pl

from forensics.run import RankInfo, Run
from parsers.base import Event
from rules.base import Evidence

LOCAL_FILE = re.compile(r"attempt_\d+/(\d+)/")  # torchrun's log folders are named by local rank
ADDRESS = re.compile(r"\d{1,3}(?:\.\d{1,3}){3}|[0-9a-f]{0,4}(?::[0-9a-f]{0,4}){2,7}")
NODE_FILE = re.compile(r"node|host", re.IGNORECASE)
HOST_WORD = re.compile(r"(?:node|host|worker|gpu|cn|nid|comp|server|srv|hgx|dgx|pod|rank|[a-z]{1,2}-?\d)", re.IGNORECASE)
RAY_REACH = 60  # lines of a remote traceback below the head that names its process
Fate = Literal["went-on", "restarted", "ended"]
GOES_ON = 3  # further steps that prove that training went on
# Metrics that only a training step prints; validation, memory and throughput lines also appear while training is stuck.
STEP_METRICS = frozenset(
    "loss grad_norm learning_rate policy_loss value_loss reward kl entropy reward_std kl_loss step_time loss_scale accuracy "
    "reward_chosen reward_rejected reward_margin epoch response_length".split()
)


def short(host: str) -> str:
    """A host name without its domain (addresses stay whole)."""
    return host if re.fullmatch(r"[\d.:]+", host) else host.partition(".")[0]


def hosts_and_ranks(run: Run) -> None:
    """Join ranks, processes, hosts and GPUs from whichever lines tell them."""
    named: Counter[str] = Counter()
    aliases = addresses(run)
    for event in run.events:
        if event.host:
            event.host = aliases.get(event.host) or short(event.host)
            named[event.host] += 1
    _file_hosts(run, named)
    _pods(run, named)
    _ray_tracebacks(run)
    _spawned(run)
    _global_ranks(run)
    process_rank = _process_ranks(run)
    for path, info in run.files.items():
        if info.rank is None:
            ranks = {e.rank for e in run.events if e.source == path and e.rank is not None and e.kind not in ("exit", "slurm")}
            if len(ranks) == 1 and ("attempt_" in path or len(run.files) > 2):
                info.rank = ranks.pop() if _one_rank_file(path) else None
    for event in run.events:
        info = run.files[event.source]
        if event.host is None:
            event.host = info.host
        if event.rank is None and event.pid is not None:
            event.rank = process_rank.get((event.host, event.pid), process_rank.get((None, event.pid)))
        if event.rank is None and event.kind not in ("exit", "slurm", "xid", "oom_kill"):
            event.rank = info.rank
        _note_rank(run, event)
    _name_addresses(run)
    sizes = [int(v) for v in (run.fact("world_size"), run.fact("nranks")) if _whole(v)]
    sizes += [int(e.fields["nranks"]) for e in run.kind("nccl_comm") if _whole(e.fields.get("nranks"))]
    if run.ranks:
        sizes.append(max(run.ranks) + 1)
    run.world_size = max(sizes) if sizes else None
    hosts = {r.host for r in run.ranks.values() if r.host} | {i.host for i in run.files.values() if i.host}
    run.hosts = sorted(hosts)


def addresses(run: Run) -> dict[str, str]:
    """IP address -> host name, where a line prefixed with one names the other and no line disagrees."""
    found: dict[str, set[str]] = {}
    for event in run.kind("nccl_process"):
        if event.fields.get("ip") and event.host:
            found.setdefault(event.fields["ip"], set()).add(short(event.host))
    return {address: next(iter(hosts)) for address, hosts in found.items() if len(hosts) == 1}


def _file_hosts(run: Run, named: Counter[str]) -> None:
    """Keep a host that a path names only where something supports it; take a file's own lines where they agree on one."""
    per_file: dict[str, Counter[str]] = {}
    for event in run.events:
        if event.host and event.kind not in ("slurm",):
            per_file.setdefault(event.source, Counter())[event.host] += 1
    stems = Counter((info.host or "").rstrip("0123456789") for info in run.files.values() if info.host)
    for path, info in run.files.items():
        words = re.split(r"[/.]", path)
        told = next((host for host in named if host in words or any(host == w or w.startswith(f"{host}-") for w in words)), None)
        if told:
            info.host = told
            continue
        in_folder = info.host is not None and info.host in path.split("/")[:-1]
        if info.host and not in_folder and not {"kernel", "gpu"} & set(info.kinds) and named and info.host not in named:
            info.host = None
        elif (
            info.host
            and not in_folder
            and not {"kernel", "gpu"} & set(info.kinds)
            and not named
            and not HOST_WORD.match(info.host)
            and stems[info.host.rstrip("0123456789")] < 2
        ):
            info.host = None  # `mix2.log` alone is more likely an experiment's name
        if info.host is None and per_file.get(path) and "kernel" in info.kinds:
            host, count = per_file[path].most_common(1)[0]
            if count >= 0.8 * sum(per_file[path].values()):
                info.host = host


def _pods(run: Run, named: Counter[str]) -> None:
    """Name a described pod rather than its node where the run's processes call their machines by the names of its sister pods."""
    stems = {host.rstrip("0123456789") for host in named}
    stems |= {word.rstrip("0123456789") for path in run.files for word in re.split(r"[/.]", path) if word[-1:].isdigit() and "-" in word}
    for event in run.kind("platform"):
        pod = event.fields.get("pod")
        if isinstance(pod, str) and (pod in named or (pod[-1:].isdigit() and pod.rstrip("0123456789") in stems)):
            event.host = pod


def _ray_tracebacks(run: Run) -> None:
    """An error in a driver's log below `ray::Actor.method() (pid=…, ip=…)` is that process's, the innermost of several heads."""
    heads: dict[str, list[Event]] = {}
    for event in run.kind("ray_frame"):
        heads.setdefault(event.source, []).append(event)
    for events in heads.values():
        events.sort(key=lambda e: e.line)
    lines = {source: [e.line for e in events] for source, events in heads.items()}
    for event in run.events:
        if (
            event.source not in heads
            or event.pid is not None
            or event.rank is not None
            or event.kind not in ("exception", "signature", "gpu_oom")
        ):
            continue
        at = bisect.bisect_left(lines[event.source], event.line) - 1
        if at < 0 or event.line - lines[event.source][at] > RAY_REACH:
            continue
        head = heads[event.source][at]
        event.pid, event.host = head.pid, event.host or head.host


def _spawned(run: Run) -> None:
    """What stands below `-- Process 2 terminated with the following error:` is that process's, whose number is its rank on one node."""
    heads = {(e.source, e.line): e.fields["local_rank"] for e in run.kind("exit") if e.fields.get("source") == "spawn"}
    if not heads or len({info.host for info in run.files.values() if info.host}) > 1:
        return
    for event in run.events:
        if event.rank is None and event.kind in ("traceback", "exception", "gpu_oom", "signature"):
            above = [line for source, line in heads if source == event.source and 0 < event.line - line <= RAY_REACH]
            if above:
                event.rank = int(heads[event.source, max(above)])


def _global_ranks(run: Run) -> None:
    """Turn local ranks into global ones in files of one node whose launcher or NCCL lines tell which is which.

    torchrun's `[default6]:` counts as a rank only where nothing else names one; beside `rank 14 (local_rank: 6)` it is rank 14.
    """
    _nccl_ranks(run)
    offsets: dict[str, list[int]] = {}
    sure: set[str] = set()
    for event in run.kind("exit", "nccl_comm"):
        local = event.fields.get("local_rank", event.fields.get("cudaDev"))
        rank = event.fields.get("rank", event.rank)
        comm = event.kind == "nccl_comm"
        if (comm or event.fields.get("first_observed")) and _whole(local) and _whole(rank):
            offsets.setdefault(event.source, []).append(int(rank) - int(local))
            if comm or NODE_FILE.search(event.source):
                sure.add(event.source)
    hosts: dict[str, set[str]] = {}
    for event in run.events:
        if event.host:
            hosts.setdefault(event.source, set()).add(event.host)
    node = {
        path: found[0]
        for path, found in offsets.items()
        if path in sure and found[0] > 0 and len(set(found)) == 1 and len(hosts.get(path, ())) <= 1
    }
    for event in run.events:
        offset = node.get(event.source)
        if offset and event.rank is not None and event.rank < min(offset, 16) and event.kind not in ("exit", "nccl_comm", "nccl_process"):
            event.rank += offset


def _nccl_ranks(run: Run) -> None:
    """NCCL lines name their process: of the largest communicator it says the rank, where no label goes beyond that communicator."""
    world = max((int(e.fields["nranks"]) for e in run.kind("nccl_comm") if _whole(e.fields.get("nranks"))), default=0)
    if world < 2 or max((e.rank for e in run.events if e.rank is not None), default=0) >= world:
        return
    whole: dict[tuple[str | None, int | None], int] = {
        (e.host, e.pid): int(e.fields["rank"])
        for e in run.kind("nccl_comm")
        if e.pid is not None and e.host and e.fields.get("nranks") == world and _whole(e.fields.get("rank"))
    }
    firsts: dict[str | None, set[int]] = {}
    for event in run.kind("nccl_comm"):
        if event.fields.get("nranks") == world and _whole(event.fields.get("cudaDev")) and _whole(event.fields.get("rank")):
            firsts.setdefault(event.host, set()).add(int(event.fields["rank"]) - int(event.fields["cudaDev"]))
    for event in run.events:
        if event.pid is None or event.host is None or event.kind == "exit":
            continue
        if (event.host, event.pid) in whole:
            event.rank = whole[event.host, event.pid]
        elif event.rank is not None and len(first := firsts.get(event.host, set())) == 1 and event.rank < min(16, *first, world):
            event.rank += next(iter(first))  # a local rank: the node's ranks begin higher


def _name_addresses(run: Run) -> None:
    """Give hosts known only by address the name of the machine whose kernel speaks of the same process."""
    at: dict[int, set[str]] = {}
    named: dict[int, set[str]] = {}
    for event in run.events:
        if event.pid is not None and event.host:
            book = at if ADDRESS.fullmatch(event.host) else named if "kernel" in run.files[event.source].kinds else None
            if book is not None:
                book.setdefault(event.pid, set()).add(event.host)
    found: dict[str, set[str]] = {}
    for pid in at.keys() & named.keys():
        for address in at[pid]:
            found.setdefault(address, set()).update(named[pid])
    names = {address: next(iter(hosts)) for address, hosts in found.items() if len(hosts) == 1}
    if not names:
        return
    for event in run.events:
        event.host = names.get(event.host or "", event.host)
    for info in run.ranks.values():
        info.host = names.get(info.host or "", info.host)


def _one_rank_file(path: str) -> bool:
    return bool(re.search(r"attempt_\d+/\d+/|rank|worker", path))


def _process_ranks(run: Run) -> dict[tuple[str | None, int], int]:
    """(host, pid) -> global rank; with host None where the pid is unique."""
    found: dict[tuple[str | None, int], int] = {}
    largest: dict[tuple[str | None, int], int] = {}
    for event in run.kind("nccl_comm"):
        rank, size = event.fields.get("rank", event.rank), event.fields.get("nranks")
        if event.pid is not None and _whole(rank) and _whole(size):
            key = (event.host, event.pid)
            if int(size) >= largest.get(key, 0):
                largest[key] = int(size)
                found[key] = int(rank)
    for event in run.kind("nccl_process"):
        if event.rank is not None and event.pid is not None:
            found.setdefault((event.host, event.pid), event.rank)
    for event in run.events:
        if event.kind != "nccl_comm" and event.rank is not None and event.pid is not None:
            found.setdefault((event.host, event.pid), event.rank)
    by_pid: dict[int, set[int]] = {}
    for (_, pid), rank in found.items():
        by_pid.setdefault(pid, set()).add(rank)
    found.update({(None, pid): next(iter(ranks)) for pid, ranks in by_pid.items() if len(ranks) == 1})
    return found


def _note_rank(run: Run, event: Event) -> None:
    if event.rank is None or event.rank < 0 or event.rank > 1_000_000:
        return
    info = run.ranks.get(event.rank)
    if info is None:
        info = run.ranks[event.rank] = RankInfo(event.rank)
    if event.host and info.host is None:
        info.host = event.host
    if event.pid is not None and event.kind in ("exit", "nccl_comm", "nccl_process", "process", "spawned") and len(info.pids) < 8:
        info.pids.add(event.pid)
    if event.time is not None and not event.inherited and (info.last_time is None or event.time > info.last_time):
        info.last_time = event.time
    local = event.fields.get("local_rank")
    if info.local_rank is None and _whole(local):
        info.local_rank = int(local)
    if event.kind in ("nccl_comm", "nccl_process"):
        if info.gpu is None and _whole(event.fields.get("cudaDev")):
            info.gpu = str(event.fields["cudaDev"])
        info.pci = info.pci or event.fields.get("pci")
    elif event.kind == "exit":
        info.exit = info.exit or _exit(event)
    elif event.kind in ("watchdog_timeout", "pg_status"):
        seq = event.fields.get("seq") or event.fields.get("last_completed")
        op = event.fields.get("op")
        info.last_collective = " ".join(str(part) for part in (op, seq) if part is not None) or info.last_collective
    if info.first_error is None and event.severity in ("error", "fatal") and event.kind != "exit":
        info.first_error = Evidence(event.source, event.line, event.text[:200], event.time)


def rank_of_gpu(run: Run, host: str | None, gpu: str) -> int | None:
    """The rank that ran on a GPU given by index or PCI id, where lines or samples join them; None where they do not."""
    card = gpu.lower()
    index = card if card.isdigit() else None
    bus = None if index else re.sub(r"^0+(?=[0-9a-f]{4}:)|\.[0-7]$", "", card)
    for info in run.ranks.values():
        if host and info.host and info.host != host:
            continue
        if bus and info.pci and bus in info.pci.lower():
            return info.rank
    if bus and run.samples is not None and run.samples.height:
        rows = run.samples.filter(pl.col("pci").str.starts_with(bus))
        if host:
            rows = rows.filter(pl.col("host").is_null() | (pl.col("host") == host))
        found = rows["gpu"].drop_nulls()
        index = str(found[0]) if found.len() else None
    if index is None:
        return None
    known = [
        i
        for i in run.ranks.values()
        if (i.gpu == index or (i.gpu is None and i.local_rank is not None and str(i.local_rank) == index))
        and (not host or i.host in (None, host))
    ]
    if len(known) == 1:
        return known[0].rank
    if not known and len(run.hosts) <= 1 and run.world_size is not None and int(index) < run.world_size <= 16:
        return int(index)
    return None


def date_from_exits(run: Run) -> bool:
    """Give events of a rank whose own file has no stamps the time at which its launcher saw it end; says whether any got one.

    The launcher's time is an upper bound, and late by its polling interval at most.
    """
    ends: dict[int, float] = {}
    places: dict[tuple[str | None, int], int] = {}
    for event in run.kind("exit"):
        if event.rank is None:
            continue
        local = event.fields.get("local_rank")
        if _whole(local):
            places.setdefault((event.host, int(local)), event.rank)
        if event.time is not None and not event.fields.get("by_launcher"):
            ends[event.rank] = min(event.time, ends.get(event.rank, event.time))
    dated = False
    for event in run.events:
        if event.time is not None or event.kind in ("exit", "slurm"):
            continue
        rank = event.rank
        if match := LOCAL_FILE.search(event.source):
            known = places.get((event.host, int(match[1])))
            if known is not None:
                rank = event.rank = known
                run.files[event.source].rank = known
        if rank is not None and rank in ends:
            event.time, event.inherited, dated = ends[rank], True, True
    return dated


def _exit(event: Event) -> str | None:
    signal, code = event.fields.get("signal"), event.fields.get("exitcode")
    return str(signal) if signal else f"exit {code}" if code is not None else None


def _whole(value: Any) -> TypeGuard[int | str]:
    """Whether a value is, or spells, a small natural number."""
    try:
        return value is not None and 0 <= int(value) < 10_000_000
    except (TypeError, ValueError):
        return False


def progress(run: Run) -> None:
    """First and last instants, the last step, and the last sign that training moved."""
    training = _training(run)
    progress_marks(run, training)
    best: tuple[float, int, str, int] | None = None
    frame = run.metrics
    steps: list[float] = []
    bar: float | None = None
    if frame is not None and frame.height:
        sources, lines, times, reached = training
        last = {source: (time, line) for source, line, time in zip(sources, lines, times, strict=True)}
        for source, (time, line) in last.items():
            key = (time if time is not None else float("-inf"), len(lines), source, line)
            best = max(best, key) if best else key
        steps += [float(step) for step in reached[-1:]]
    for event in run.kind("progress"):
        step = event.fields.get("step")
        key = (event.time if event.time is not None else float("-inf"), 0, event.source, event.line)
        if isinstance(step, (int, float)) and (frame is None or not frame.height or not steps or steps[-1] is bar):
            bar = float(step)
            steps = [bar]
        if best is None or (key[0] > best[0] or (key[2] == best[2] and key[3] > best[3])):
            best = key
    if best:
        run.last_progress = best[0] if best[0] != float("-inf") else None
        run.last_progress_at = Evidence(best[2], best[3], "", run.last_progress)
    run.last_step = steps[-1] if steps else None
    train = [event.time for event in run.events if event.time is not None and "train" in run.files[event.source].kinds]
    if frame is not None and frame.height:
        train += [t for t in (frame["time"].min(), frame["time"].max()) if t is not None]  # type: ignore[misc]
    firsts = [i.first_time for i in run.files.values() if "train" in i.kinds and i.first_time is not None]
    lasts = [i.last_time for i in run.files.values() if "train" in i.kinds and i.last_time is not None]
    run.started = min([*train, *firsts], default=None)
    run.ended = max([*train, *lasts], default=None)


Training = tuple[list[str], list[int], list[float | None], list[float]]


def _training(run: Run) -> Training:
    """Source, line and time of each reading that a training step prints, and the steps of those that tell theirs."""
    frame = run.metrics
    if frame is None or not frame.height:
        return [], [], [], []
    names = frame["name"]
    mask = names == ""
    for name in STEP_METRICS & run.names():
        mask |= names == name
    sources, lines, times, steps = (frame[key].filter(mask) for key in ("source", "line", "time", "step"))
    return sources.to_list(), lines.to_list(), times.to_list(), steps.drop_nulls().to_list()


def progress_marks(run: Run, training: Training) -> None:
    """Where and when training steps were printed, each step once."""
    printed: dict[str, dict[int, float | None]] = {}  # file -> line -> time
    for source, line, time in zip(*training[:3], strict=True):
        printed.setdefault(source, {}).setdefault(line, time)
    for source, by_line in printed.items():
        run.progress_lines[source] = sorted(by_line)
    # Ranks print the same step at the same time: one file speaks for the run, that with most stamped steps.
    stamped = {source: [time for time in by_line.values() if time is not None] for source, by_line in printed.items()}
    if stamped:
        run.progress_times = sorted(set(stamped[min(stamped, key=lambda source: (-len(stamped[source]), source))]))
    for event in run.kind("progress"):
        if event.source not in run.progress_lines or len(run.progress_lines[event.source]) < GOES_ON:
            run.progress_lines.setdefault(event.source, []).append(event.line)
    for event in run.kind("run_start", "restart", "resume"):
        run.restarts.setdefault(event.source, []).append(event.line)
        if event.time is not None and not event.inherited:
            run.restart_times.append(event.time)
    for starts in run.restarts.values():
        starts.sort()
    run.restart_times.sort()
    for clock in run.clocks:
        if clock.basis not in ("reference",):
            run.clock_uncertainty[clock.file] = max(run.clock_uncertainty.get(clock.file, 0.0), clock.uncertainty_s or 0.0)


def settings(run: Run) -> None:
    """Facts named `setting.*` become the run's settings, the first value of each."""
    for key, _, value, _ in run.facts:
        if key.startswith("setting."):
            run.settings.setdefault(key[8:], value)


def fate(run: Run, source: str, line: int, time: float | None) -> Fate:
    """What became of training after this place.

    `went-on`: at least GOES_ON further steps below it in the same file, or later by the clock beyond its uncertainty (one or
    two may still be printed by ranks that have not noticed, or come late from a buffered stream).  `restarted`: they belong
    to a later attempt.  `ended`: they do not come.
    """
    lines = run.progress_lines.get(source)
    if lines and len(lines) >= GOES_ON:
        at = bisect.bisect_right(lines, line)
        if len(lines) - at < GOES_ON:
            return "ended"
        starts = run.restarts.get(source, []) if at else []  # before the first step a start is the first one
        following = bisect.bisect_right(starts, line)
        return "restarted" if following < len(starts) and starts[following] <= lines[at + GOES_ON - 1] else "went-on"
    times = run.progress_times
    if time is None or len(times) < GOES_ON:
        return "ended"
    doubt = min(run.clock_uncertainty.get(source, 0.0), 600.0)
    at = bisect.bisect_right(times, time + doubt + 1.0)
    if len(times) - at < GOES_ON:
        return "ended"
    following = bisect.bisect_right(run.restart_times, time) if at else len(run.restart_times)
    return "restarted" if following < len(run.restart_times) and run.restart_times[following] <= times[at + GOES_ON - 1] else "went-on"


def went_on(run: Run, source: str, line: int, time: float | None) -> bool:
    """Whether training progressed after this place, in this attempt or a later one."""
    return fate(run, source, line, time) != "ended"
