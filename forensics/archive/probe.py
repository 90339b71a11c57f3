"""What discovery asks of a file: is it a training log, a helper's log or something else; whose, and of which time.

Answers come from the first bytes of the content, and are worked out only when asked for.
"""

from __future__ import annotations

import re
from functools import cached_property

import parsers
from forensics.archive.trees import Tree
from forensics.evidence import HOST_NAME, NOT_HOST, is_text, names
from forensics.reading import kinds_of
from forensics.stamps import find_stamp
from parsers.base import Head

# Batch systems print the id of their job in these forms; Slurm names its output after it.
JOB_TEXT = re.compile(
    r"SLURM_JOB_?ID\W{1,4}(\d{3,12})|JobId=(\d{3,12})|\*\*\* (?:JOB|STEP) (\d{3,12})|Submitted batch job (\d{3,12})|srun: job (\d{3,12}) |"
    r"PBS_JOBID\W{1,4}(\d{3,12})|LSB_JOBID\W{1,4}(\d{3,12})|/job_(\d{3,12})/"
)
JOB_NAME = re.compile(r"(?:^|[-_.])(?:slurm|job|jobid|pbs|lsf)[-_.]?(\d{3,12})(?!\d)|[-_](\d{5,12})\.(?:out|err|log)\b", re.I)
SUFFIX = re.compile(r"(?:\.(?:log|txt|out|err|gz|zst|xz|bz2|jsonl|json|csv|stdout|stderr))+$", re.I)
# Words for the parts that programs of one run write under: a file or folder called so is never a run of its own.
ROLE_WORDS = """
    train trainer training actor critic reward rm ref reference rollout vllm sglang server serving worker workers driver launcher launch
    main run console stdout stderr output out err error errors log logs std eval evaluation debug info warning nccl rccl hccl kernel kern
    dmesg syslog messages journal journalctl gpu gpus smi nvidia dcgm host hosts node nodes rank ranks system sys sysinfo slurm scheduler
    sacct squeue slurmctld slurmd sbatch srun pbs k8s kube kubelet kubectl pod pods events event metrics metric tb tensorboard wandb
    mlflow runs checkpoints checkpoint ckpt ckpts env environment pip freeze config configs conf traces trace dump dumps flight recorder
    fr crash core monitor monitoring ray raylet gcs dashboard session latest attempt torchelastic elastic deepspeed accelerate state
    trainer_state history progress step steps data dataset tokenizer text txt ulimit ps top free df mem memory net network ib ibstat topo
    all test init watchdog stack stacks py spy gdb bt rocm amd npu ascend plog cann xid first second initial resume resumed restart
    restarted retry previous prev before after old new part final
"""
ROLE = frozenset(ROLE_WORDS.split())
RUN_WORD = re.compile(r"(?:^|[-_.])(?:job|run|exp|experiment|slurm|sweep|trial)[-_.]?\d+", re.I)
ROTATED = re.compile(r"\.(?:log|out|err|txt)[.-]\d{1,8}$|^(?:syslog|messages|kern\.log)[.-]\d+$", re.I)
HOST_WORD = re.compile(
    r"(?:node|host|worker|gpu|cn|nid|nod|dgx|compute|server|machine|hgx|ip|vm|trn|p[45]d?)-?\d|[a-z]{1,4}\d{1,3}[cn]\d{1,3}$", re.I
)
TRAINING = re.compile(
    r"\b(?:loss|epochs?|global_step|iteration|steps?/s|it/s|grad_norm|learning_rate|rewards?|Traceback|torchrun|torch\.|CUDA|deepspeed|accelerate|transformers|"
    r"trainer|vllm|ray::|rank ?\d|world_size|checkpoint|NCCL|tokenizer|\[rank\d+\]|\[TRAIN\]|\[DATA\]|\[MODEL\])",
    re.I,
)
PLAIN_SUFFIX = (
    ".md",
    ".rst",
    ".py",
    ".sh",
    ".yaml",
    ".yml",
    ".toml",
    ".cfg",
    ".ini",
    ".html",
    ".json",
    ".ipynb",
    ".lock",
    ".sbatch",
    ".slurm",
)


class FileProbe:
    """One file of a tree."""

    def __init__(self, tree: Tree, path: str):
        self.tree = tree
        self.path = path
        self.name = path.rpartition("/")[2]
        self.stem = ROTATED.sub("", SUFFIX.sub("", self.name))

    @cached_property
    def data(self) -> bytes:
        """The first bytes, decompressed."""
        return self.tree.head(self.path)

    @cached_property
    def text(self) -> str:
        """The same as text; empty for a binary file."""
        return self.data.decode("utf-8", "replace") if self.data and is_text(self.data) else ""

    @cached_property
    def kind(self) -> str:
        """`train`, `metrics`, `kernel`, `gpu`, `nccl`, `scheduler`, `environment` …, or `other` where nothing speaks for a log of a run."""
        if not self.data:
            return "other"
        head = Head(self.path, self.data, self.text)
        best, kind = 0.5, ""
        for parser in parsers.load()[1]:
            try:
                sure = parser.recognises(head)
            except Exception:  # odd bytes are not recognised
                continue
            if sure > best:
                best, kind = sure, parser.kind
        if kind:
            return kind
        lines = self.text.splitlines()[:300]
        kinds = kinds_of(lines)
        if kinds:
            return kinds[0]
        if self.name.lower().endswith(PLAIN_SUFFIX):
            return "other"
        return "train" if TRAINING.search(self.text) else "other"

    @cached_property
    def rank(self) -> int | None:
        """The rank that the path tells."""
        return names(self.path)[0]

    @cached_property
    def job(self) -> str | None:
        """The batch job's id, by name or by content."""
        match = JOB_NAME.search(self.name) or JOB_TEXT.search(self.text)
        return next((group for group in match.groups() if group), None) if match else None

    @cached_property
    def started(self) -> float | None:
        """The first time written near the top (Unix seconds, zone unknown)."""
        for line in self.text.splitlines()[:200]:
            stamp = find_stamp(line[:400])
            if stamp is not None and not stamp.mono and not stamp.yearless:
                return stamp.seconds
        return None

    @property
    def is_role(self) -> bool:
        """Whether the name only tells a part of a run (a role, a rank, a host), never a run."""
        if RUN_WORD.search(self.stem):
            return False
        return is_host(self.stem) or bool(ROTATED.search(SUFFIX.sub("", self.name))) or only_role(self.stem)


def only_role(name: str) -> bool:
    """Whether every word of a name is one of `ROLE`; numbers, ids and single letters count for nothing."""
    found = re.findall(
        r"[a-z]{2,}|[^\W\d_a-z]", re.sub(r"(?<![a-z0-9])(?:(?=[a-f]*\d)[0-9a-f]{6,}|[0-9a-f]{8,})(?![a-z0-9])", " ", name.lower())
    )
    return bool(found) and all(word in ROLE for word in found)


def is_host(name: str) -> bool:
    """Whether a name reads like a machine's by itself."""
    return bool(HOST_NAME.fullmatch(name) and not NOT_HOST.fullmatch(name) and HOST_WORD.match(name))
