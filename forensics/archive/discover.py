"""Finding the runs of a tree by what lies in it.

A folder whose parts belong together (rank folders, host folders, logs beside kernel logs) is one run; one whose parts stand alone is a
folder of runs.  Parts belong together when their names only tell a rank, a host or a role, unless their content contradicts:
other job ids, other times.  An archive is looked into by the worker that unpacks it, with the same function.
"""

from __future__ import annotations

import fnmatch
import re
import tarfile
import zipfile
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice, pairwise

from forensics.archive.probe import JOB_NAME, PLAIN_SUFFIX, RUN_WORD, SUFFIX, FileProbe, is_host, only_role
from forensics.archive.trees import Branch, Leaf, LocalTree, Tree
from forensics.blocks import open_plain
from forensics.evidence import RANK_NAMES
from forensics.unpack import ARCHIVES

MAIN = frozenset({"train", "metrics", "scheduler", "nccl"})  # kinds of file that show a run by themselves
APART = 600.0  # seconds between starts that make two logs logs of different runs
TRACKERS = frozenset({"wandb", "mlruns", "tensorboard", "lightning_logs", "swanlog", "aim"})
MEMBERS = 400  # members of an archive whose names are looked at
LOG_NAME = re.compile(
    r"\.(?:log|out|err|jsonl|csv|dmesg|txt)(?:\.(?:gz|zst|xz|bz2|\d+))*$|(?:dmesg|syslog|messages|stdout|stderr|journal)[^/]*$", re.I
)
PAPER = re.compile(r"(?:^|/)(?:readme|notes?|licen[cs]e|changelog|requirements|todo|authors)[^/]*$", re.I)
SAMPLE = 12  # parts of a folder whose content is looked at


@dataclass(slots=True)
class Found:
    """One run, or one archive that may hold several.

    path: below the root, with /; of a run made of some files of a folder, the file that names it.  files: those below the root that
    make it up, with what changes when they do.  kind: `folder`, `files` or `archive`.
    """

    kind: str
    path: str
    files: list[tuple[str, str]] = field(default_factory=list)
    size: int = 0


@dataclass
class Discovery:
    """What was found, in order of path, and what was left out: (path, reason)."""

    runs: list[Found] = field(default_factory=list)
    left: list[tuple[str, str]] = field(default_factory=list)


def discover(tree: Tree, glob: str | None = None) -> Discovery:
    """The runs of a tree.  `glob`: paths below the root (files or folders, `**` crosses folders) that are runs whatever they hold.

    Raises Unusable where the root does not exist.
    """
    root = tree.scan()
    out = Discovery()
    _faults(root, out)
    if glob is not None:
        _globbed(root, re.compile(fnmatch_translate(glob)), out)
    else:
        _emit(tree, _judge(tree, root), out)
    out.runs.sort(key=lambda run: run.path)
    out.left = sorted(set(out.left))
    return out


@dataclass
class _Part:
    """A folder or a set of files seen as one thing: its runs, were it to stand alone."""

    path: str
    runs: list[Found]
    files: list[tuple[str, Leaf]]
    many: bool = False
    branch: Branch | None = None
    probes: list[FileProbe] = field(default_factory=list)


def _judge(tree: Tree, branch: Branch) -> _Part:
    parts = [part for part in (_judge(tree, inner) for inner in branch.branches) if part.files]
    direct = [leaf for leaf in branch.leaves if leaf.size > 0]
    if len(parts) + len(direct) > 1:
        for part in parts:
            # Trackers keep a folder for each start of a run: beside the run's own logs they are a part of it.
            part.many = part.many and part.path.rpartition("/")[2] not in TRACKERS
    archives = [leaf for leaf in direct if leaf.name.lower().endswith(ARCHIVES)]
    plain = [leaf for leaf in direct if leaf not in archives]
    files = [(branch.below(leaf.name), leaf) for leaf in direct] + [file for part in parts for file in part.files]
    whole = _Part(branch.path, [], files, branch=branch)
    if not files:
        return whole
    groups = _split(tree, branch, plain) if plain else []
    helpers = [leaf for leaf in archives if _is_part(_stem(leaf.name))]
    if len(groups) == 1:
        # Beside a run's own logs an archive of code is no run.
        helpers += [leaf for leaf in archives if leaf not in helpers and not _holds_logs(tree, branch.below(leaf.name))]
    holders = [leaf for leaf in archives if leaf not in helpers]
    joined = [part for part in parts if not part.many and _is_part(part.path.rpartition("/")[2], part)]
    alone = [part for part in parts if part not in joined]
    if not groups and not joined and not archives and len(alone) == 1:
        # A folder around one thing is that thing.
        return _Part(branch.path, alone[0].runs, files, alone[0].many, branch, alone[0].probes)
    if len(groups) <= 1 and not alone and not holders and (len(joined) < 2 or not _contradict(tree, joined, any(map(_shows, groups)))):
        whole.runs = [_folder(branch, files)]
        return whole
    main = [group for group in groups if _shows(group)]
    if len(main) == 1 and not holders and all(_helps(tree, part) for part in alone) and not _contradict(tree, joined, True):
        whole.runs = [_folder(branch, files)]
        return whole
    whole.many = True
    if joined and not _contradict(tree, joined, bool(main)) and (len(main) == 1 or not groups) and (len(alone) + len(holders)) == 0:
        whole.runs = [_folder(branch, files)]
        return whole
    for leaf in [*holders, *helpers]:
        whole.runs.append(Found("archive", branch.below(leaf.name), [(branch.below(leaf.name), leaf.stamp)], leaf.size))
    for part in alone:
        if part.many or not bare(tree, part.files):
            whole.runs += part.runs
    if joined and not _contradict(tree, joined, len(main) == 1) and len(main) <= 1:
        # The parts of one run beside other runs: their folder's name is the run's.
        kept = [file for part in joined for file in part.files] + [
            (probe.path, _leaf(branch, probe)) for group in groups for probe in group
        ]
        whole.runs.append(_files(branch.path or kept[0][0], kept))
    else:
        for part in joined:
            whole.runs += part.runs
        for group in groups:
            if any(probe.kind != "other" for probe in group):
                whole.runs.append(_files(_named_by(group), [(probe.path, _leaf(branch, probe)) for probe in group]))
    return whole


def _shows(group: list[FileProbe]) -> bool:
    return any(probe.kind in MAIN for probe in group)


def _leaf(branch: Branch, probe: FileProbe) -> Leaf:
    return next(leaf for leaf in branch.leaves if leaf.name == probe.name)


def _folder(branch: Branch, files: list[tuple[str, Leaf]]) -> Found:
    return Found("folder", branch.path, [(path, leaf.stamp) for path, leaf in files], sum(leaf.size for _, leaf in files))


def _files(name: str, files: list[tuple[str, Leaf]]) -> Found:
    return Found(
        "files", name, [(path, leaf.stamp) for path, leaf in sorted(files, key=lambda f: f[0])], sum(leaf.size for _, leaf in files)
    )


def _named_by(group: list[FileProbe]) -> str:
    order = {"train": 0, "scheduler": 1, "metrics": 2}
    return min(group, key=lambda probe: (order.get(probe.kind, 3), probe.path)).path


def _stem(name: str) -> str:
    lower = name.lower()
    suffix = max((s for s in ARCHIVES if lower.endswith(s)), key=len)
    return name[: -len(suffix)]


def _is_part(name: str, part: _Part | None = None) -> bool:
    """Whether a folder's (or archive's) name only tells a part of a run: a role, a rank, a host, a launcher's attempt."""
    if RUN_WORD.search(name):
        return False
    if re.search(r"attempt|restart|retry", name, re.I) or name.isdigit():
        # `attempt_3` is the launcher's only where its ranks lie in it; else it is a run of its own.
        return _is_launcher(part)
    return name in TRACKERS or only_role(name) or is_host(name)


def _is_launcher(part: _Part | None) -> bool:
    """torchrun's layout: `attempt_N/RANK/stdout.log`."""
    if part is None or part.branch is None:
        return False
    names = {leaf.name for leaf in part.branch.leaves}
    if part.branch.name.isdigit():
        return bool(names & {"stdout.log", "stderr.log", "stdout", "stderr", "error.json"})
    return bool(part.branch.branches) and all(inner.name.isdigit() for inner in part.branch.branches)


def _probes(tree: Tree, part: _Part) -> list[FileProbe]:
    """The probes of a part's first files."""
    if not part.probes:
        part.probes = [FileProbe(tree, path) for path, leaf in part.files[:SAMPLE] if not leaf.name.lower().endswith(ARCHIVES)]
    return part.probes


def _helps(tree: Tree, part: _Part) -> bool:
    """Whether a part shows no run by itself (configurations, host logs, pictures' folders)."""
    return not part.many and len(part.files) <= SAMPLE and not any(probe.kind in MAIN for probe in _probes(tree, part))


def _contradict(tree: Tree, parts: list[_Part], beside_main: bool) -> bool:
    """Whether parts that by name belong together are, by content, several runs: other job ids, or starts far apart."""
    if len(parts) < 2:
        return False
    jobs: set[str] = set()
    starts: list[float] = []
    with_job = 0
    for part in parts[:SAMPLE]:
        probes = [probe for probe in _probes(tree, part) if probe.kind in MAIN]
        found = {probe.job for probe in probes if probe.job}
        if len(found) == 1:
            jobs |= found
            with_job += 1
        times = [probe.started for probe in probes if probe.started is not None]
        if times:
            starts.append(min(times))
    if with_job >= 2:
        return len(jobs) == with_job
    starts.sort()
    # Ranks and hosts of one run start together; the clock's zone may differ between hosts by whole hours.
    far = [abs(b - a) for a, b in pairwise(starts)]
    named = any(any(pattern.search(part.path.rpartition("/")[2]) for pattern in RANK_NAMES) for part in parts)
    return not beside_main and not named and len(far) >= 1 and all(gap > 14 * 3600 for gap in far)


def _split(tree: Tree, branch: Branch, leaves: list[Leaf]) -> list[list[FileProbe]]:
    """The files directly in a folder, by the run they belong to: mostly one group."""
    probes = [FileProbe(tree, branch.below(leaf.name)) for leaf in leaves]
    owned: dict[str, list[FileProbe]] = defaultdict(list)
    shared = []
    for probe in probes:
        if probe.is_role or (not RUN_WORD.search(probe.stem) and probe.kind not in ("train", "nccl", "scheduler")):
            shared.append(probe)
        else:
            owned[_owner(probe)].append(probe)
    if len(owned) <= 1:
        return [probes]
    groups = list(owned.values())
    if not _several(groups):
        return [probes]
    rest: list[FileProbe] = []
    for probe in shared:
        # `job-12.gpu.csv` goes with `job-12.log`; what fits none stands apart from them, together.
        home = [group for key, group in owned.items() if probe.stem.startswith(key)]
        (home[0] if len(home) == 1 else rest).append(probe)
    if rest:
        groups.append(rest)
    return groups


def _owner(probe: FileProbe) -> str:
    """The name of a log without what only tells its stream."""
    match = JOB_NAME.search(probe.name)
    if match:
        return next(group for group in match.groups() if group)
    return (
        re.sub(r"(?:[-_.](?:stdout|stderr|out|err|train|log|console|rank[-_]?\d+|\d{1,3}))+$", "", SUFFIX.sub("", probe.name), flags=re.I)
        or probe.stem
    )


def _several(groups: list[list[FileProbe]]) -> bool:
    """Whether groups of logs in one folder are different runs: job ids or run names differ, or their starts lie apart."""
    jobs = [next((probe.job for probe in group if probe.job), None) for group in groups]
    known = [job for job in jobs if job]
    if len(known) >= 2:
        return len(set(known)) > 1
    if sum(any(RUN_WORD.search(probe.stem) for probe in group) for group in groups) >= 2:
        return True
    sample = groups[: 4 * SAMPLE]
    starts = sorted(time for group in sample if (time := next((p.started for p in group if p.started is not None), None)) is not None)
    if len(starts) < 2:
        return True
    return starts[-1] - starts[0] > APART


def bare(tree: Tree, files: list[tuple[str, Leaf]]) -> bool:
    """Whether files are code, settings and papers only: nothing that a run logs."""
    if any(not path.lower().endswith(PLAIN_SUFFIX) and not PAPER.search(path) for path, _ in files):
        return False
    return all(FileProbe(tree, path).kind in ("other", "environment") for path, _ in files[:SAMPLE])


def _holds_logs(tree: Tree, path: str) -> bool:
    """Whether an archive's first members look like logs by name; true where it cannot be told."""
    if not isinstance(tree, LocalTree):
        return True
    try:
        with tree.real(path).open("rb") as file:
            if file.read(2) == b"PK":
                names = zipfile.ZipFile(tree.real(path)).namelist()[:MEMBERS]
            else:
                with open_plain(tree.real(path)) as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
                    names = [member.name for member in islice(tar, MEMBERS) if member.isreg()]
    except Exception:  # damaged: its analysis says so
        return True
    return any(LOG_NAME.search(name) for name in names)


def _emit(tree: Tree, part: _Part, out: Discovery) -> None:
    out.runs = [] if not part.many and len(part.runs) == 1 and part.runs[0].kind == "folder" and bare(tree, part.files) else part.runs
    used = {path for run in out.runs for path, _ in run.files}
    out.left += [(path, "belongs to none of the runs found beside it") for path, _ in part.files if path not in used]


def _faults(branch: Branch, out: Discovery) -> None:
    out.left += branch.faults
    for inner in branch.branches:
        _faults(inner, out)


def _globbed(branch: Branch, pattern: re.Pattern[str], out: Discovery) -> None:
    for leaf in branch.leaves:
        path = branch.below(leaf.name)
        if pattern.fullmatch(path) and leaf.size:
            kind = "archive" if leaf.name.lower().endswith(ARCHIVES) else "files"
            out.runs.append(Found(kind, path, [(path, leaf.stamp)], leaf.size))
    for inner in branch.branches:
        if pattern.fullmatch(inner.path):
            files = list(inner.walk())
            if files:
                out.runs.append(_folder(inner, files))
            else:
                out.left.append((inner.path, "no file of a kind that is read"))
        else:
            _globbed(inner, pattern, out)


def fnmatch_translate(glob: str) -> str:
    """A regular expression for a path pattern: `*` and `?` stay within one name, `**/` spans any number of folders."""
    out = []
    for piece in re.split(r"(\*\*/?)", glob.strip("/")):
        if piece.startswith("**"):
            out.append("(?:[^/]+/)*" if piece.endswith("/") else ".*")
        elif piece:
            inner = re.sub(r"\(\?s:(.*)\)\\[Zz]", r"\1", fnmatch.translate(piece))
            out.append(inner.replace(".*", "[^/]*").replace("(?>[^/]*?", "(?:[^/]*?"))
    return "".join(out)


def names_of(found: Iterable[Found]) -> list[str]:
    """The paths of runs, for messages."""
    return [run.path for run in found]
