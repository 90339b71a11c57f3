"""H3: which exception came first over all ranks, in whose code, and what its text and frames say (H3, P5, Q5, Q8).

Signatures name the cause of known texts.  Here: the order over ranks, the user's frame, causes told by the frames
(reward function, data loader, checkpoint, backward pass, compiler, import), the shapes of a failed product, and the
general code exception when nothing says more.  Tracebacks that training survived are reported as such.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import regex

from parsers.base import lazy_regex
from rules import error_words
from rules.base import Evidence, Finding, Rule
from rules.process_view import VICTIMS, at_error, ended_badly, finding, frame_text, is_launcher, order, roles, short_type, went_on

if TYPE_CHECKING:
    from forensics.run import Run
    from parsers.base import Event

MATMUL = lazy_regex(r"mat1 and mat2 shapes cannot be multiplied \((\d{1,9})x(\d{1,9}) and (\d{1,9})x(\d{1,9})\)")
# Errors of plain Python in the code itself: an author's mistake rather than a circumstance.
MISTAKES = frozenset(
    [
        "ZeroDivisionError",
        "NameError",
        "UnboundLocalError",
        "AttributeError",
        "TypeError",
        "IndexError",
        "KeyError",
        "AssertionError",
        "NotImplementedError",
        "RecursionError",
        "SyntaxError",
        "IndentationError",
        "StopIteration",
    ]
)
IMPORTS = frozenset(("ImportError", "ModuleNotFoundError"))
REWARD = lazy_regex(
    r"(?:^|_)(?:compute_|calculate_|get_|batch_)?(?:reward|rewards|score|scores|verifier|verify|grade|grader|judge)(?:_|$)|reward|_verif|grader"
)
REWARD_CALLERS = lazy_regex(
    r"^(?:_?calculate_rewards|_compute_rewards?|compute_reward(?:_async)?|compute_score|default_compute_score|reward_fn|run_reward_scoring|compute_rewards?_batch|_?score_completions|_?compute_rewards_per_func|get_rewards?)$"
)
REWARD_CALL = lazy_regex(r"\breward_(?:func|fn|function|model|manager)\w{0,20}\(|\bcompute_score\(")
UNREACHABLE = lazy_regex(
    r"Connection(?: ?Error| refused| reset| error)|Max retries|timed? ?out|Timeout|50[0234] (?:Server|Bad|Service|Gateway)|Service Unavailable|check the API server|"
    r"APIConnection|RemoteDisconnected|ServerDisconnected|Name or service not known"
)
REWARD_FILES = lazy_regex(
    r"math_verify|latex2sympy|remote_rm|sandbox_fusion|/reward[\w-]*(?:/|\.py)|_reward\w*\.py|/(?:\w+_)?(?:verifier|grader|reward_score|rewards?)\w*(?:/|\.py)"
)
TRACKERS = lazy_regex(r"/(?:wandb|mlflow|swanlab|comet_ml|clearml|neptune|aim|trackio)/|api\.wandb\.ai|comet\.com|swanlab\.cn|clear\.ml")
# Where a process waits for the others: an error raised there says that somebody else did not come.
WAITING = frozenset(
    [
        "barrier",
        "all_reduce",
        "all_gather",
        "all_gather_object",
        "all_gather_into_tensor",
        "broadcast",
        "broadcast_object_list",
        "reduce_scatter",
        "gather",
        "scatter",
        "monitored_barrier",
        "wait_for_everyone",
        "reduce_scatter_tensor",
    ]
)
WAIT_CALL = lazy_regex(r"\b(?:" + "|".join(sorted(WAITING)) + r")\(")
WAIT_TEXT = lazy_regex(
    r"[Tt]imed? ?out|timeout|closed by peer|reset by peer|stream sync|Synchronize|remote|NCCL error|HCCL|Broken pipe|connection|unhandled|aborted"
)
WORKER = lazy_regex(
    r"Caught (?P<type>[\w.]{1,100}) in (?P<where>DataLoader worker process \d+|pin memory thread|replica \d+ on device \d+)"
)
OUTRANKS = 0.86  # where an error happened says more than its words: above the weight of the signatures that know the words
ARCHIVE = lazy_regex(
    r"(?:UnpicklingError|BadZipFile|SafetensorError|EOFError|BadGzipFile)\b|zip archive|central directory|invalid load key|pickle data was truncated|deserializing header|"
    r"[Rr]an out of input|unexpected end|not a (?:zip|gzip)"
)
LOADER = lazy_regex(r"torch/utils/data/|\b__getitem__\b|\bcollate\w*|/webdataset/|/datasets/arrow_dataset")
ENCODING = frozenset(
    [
        "JSONDecodeError",
        "UnicodeDecodeError",
        "UnidentifiedImageError",
        "ArrowInvalid",
        "ParserError",
        "BadZipFile",
        "LibsndfileError",
        "DecodeError",
        "CastError",
        "DatasetGenerationError",
        "DatasetGenerationCastError",
    ]
)


def _files(event: Event) -> str:
    return " ".join(str(f["file"]) for f in event.fields.get("frames") or [])


def _tracker(event: Event) -> bool:
    return TRACKERS.search(_files(event)) is not None or TRACKERS.search(str(event.fields.get("message", ""))) is not None


def _functions(event: Event) -> list[str]:
    return [str(f["func"]) for f in event.fields.get("frames") or []]


def by_frames(event: Event) -> tuple[str, str, float] | None:
    """(rule id, cause, weight) where the frames say what kind of work failed; None where they do not."""
    name = short_type(str(event.fields.get("type", "")))
    files, functions = _files(event), _functions(event)
    inner = event.fields.get("innermost") or {}
    user = event.fields.get("user_frame") or {}
    inner_file = str(inner.get("file", ""))
    message = str(event.fields.get("message", ""))
    waiting = (any(f in WAITING for f in functions[-6:]) or WAIT_CALL.search(str(inner.get("code", "")))) and WAIT_TEXT.search(
        message
    ) is not None
    if waiting:
        if "main_process_first" in functions or "local_main_process_first" in functions:
            return "stack-trace.waiting-first", "data/preprocessing-timeout", 0.62
        return "stack-trace.waiting", "comms/collective-timeout", 0.3
    if (
        any(REWARD_CALLERS.match(f) for f in functions)
        or REWARD_CALL.search(str(inner.get("code", "")))
        or REWARD_FILES.search(files)
        or (
            user.get("user")
            and REWARD.search(str(user.get("func", "")).lower())
            and not regex.search(r"loss|model|forward", str(user.get("func", "")).lower())
        )
    ):
        # A scorer that only gives up after a time is slow; one that asks another process for scores may find nobody there.
        if UNREACHABLE.search(f"{name}: {message[:400]}") and not regex.search(r"math_verify|latex2sympy", files):
            return "stack-trace.reward-service", "reward/reward-service-down", 0.7
        return "stack-trace.reward", "reward/reward-function-exception", 0.72
    if _tracker(event) and regex.search(r"[Cc]onnect|Timeout|SSL|Comm|Network|HTTP", name + " " + message[:200]):
        return "stack-trace.tracker", "infra/hub-unreachable", 0.55
    if name in IMPORTS:
        return "stack-trace.import", "infra/library-incompatibility", 0.6
    if "_dynamo/" in files or "_inductor/" in files or "torchinductor" in files:
        return "stack-trace.compile", "training/compile-failure", 0.6
    if "flash_attn" in inner_file or "xformers/ops" in inner_file:
        return "stack-trace.attention", "model/attention-kernel", 0.5
    in_loader = "torch/utils/data/" in files or WORKER.search(message) is not None
    if name in ENCODING or (
        in_loader and name in ("ValueError", "KeyError", "TypeError", "IndexError", "OSError", "SyntaxError", "RuntimeError", "EOFError")
    ):
        return "stack-trace.data", "data/corrupt-sample", 0.6 if name in ENCODING else 0.5
    if name == "KeyError" and regex.search(
        r"datasets/|collat|preprocess|tokenize|encode|__getitem__|map_fn|format", files + " " + " ".join(functions)
    ):
        return "stack-trace.data", "data/dataset-format", 0.5
    if "datasets/" in inner_file or "datasets/arrow_dataset.py" in files:
        return "stack-trace.data", "data/dataset-format", 0.45
    if "autograd" in inner_file and ("backward" in functions or "_engine_run_backward" in functions) and name == "RuntimeError":
        return "stack-trace.backward", "training/autograd-error", 0.4
    if any(
        regex.match(r"_?save(?:_model|_checkpoint|_pretrained|_state)?$|save_checkpoint|_save_optimizer", f) for f in functions
    ) and name in ("RuntimeError", "OSError", "FileNotFoundError", "SafetensorError", "PicklingError", "TypeError", "ValueError"):
        return "stack-trace.save", "training/checkpoint-save", 0.5
    if any(
        regex.match(r"load_state_dict|load_checkpoint|_load_from_checkpoint|_load_optimizer_and_scheduler|resume", f) for f in functions
    ):
        return "stack-trace.load", "model/checkpoint-mismatch", 0.45
    if name in ("TypeError", "AttributeError") and "site-packages" in inner_file and user.get("user") is not True:
        return "stack-trace.library", "infra/library-incompatibility", 0.5
    return None


def matmul(message: str) -> tuple[str, dict[str, int]] | None:
    """What the shapes of a failed product AxB . CxD suggest, and the four numbers."""
    found = MATMUL.search(message)
    if not found:
        return None
    a, b, c, d = (int(x) for x in found.groups())
    facts = {"a": a, "b": b, "c": c, "d": d, "factor": max(b, c) // max(1, min(b, c))}
    if (c == 1 and d > 4096) or (d == 1 and c > 4096):
        return "packed", facts
    if b == d and b != c:
        return "transposed", facts
    if a == c:
        return "transposed-input", facts
    if min(b, c) > 0 and max(b, c) % min(b, c) == 0 and facts["factor"] > 1:
        return ("merged" if b > c else "split"), facts
    return "width", facts


def _judge(run: Run) -> Iterator[Finding]:
    everything = sorted(run.kind("traceback"), key=order)
    open_ones: list[Event] = []
    for event in everything:
        name = short_type(str(event.fields.get("type", "")))
        if is_launcher(event) or name in VICTIMS or not name or event.fields.get("group"):
            continue
        if _tracker(event) and not (event.fields.get("user_frame") or {}).get("user"):
            continue  # the experiment tracker's own thread: training does not need it
        if event.fields.get("ignored") and not REWARD_FILES.search(_files(event)):
            continue
        if went_on(run, event) and not ended_badly(run, event):
            yield finding(
                "stack-trace.survived",
                [event],
                [at_error(event)],
                outcome="excluded",
                cause="training/code-exception",
                role="recovery",
                weight=0.0,
                severity="info",
                facts={"type": name},
            )
            continue
        open_ones.append(event)
    originals = [e for e in open_ones if not e.fields.get("copy")] or open_ones
    if not originals:
        yield from _bare(run, run.kind("exception"))
        return
    # The log may begin inside the traceback of the rank that failed first: its last line still says of what.
    told = {e.rank for e in everything}
    yield from _bare(
        run, [e for e in run.kind("exception") if e.rank not in told and e.source == originals[0].source and e.line < originals[0].line]
    )
    first = originals[0]
    same = [
        e
        for e in originals
        if e.fields.get("type") == first.fields.get("type") and e.fields.get("user_frame") == first.fields.get("user_frame")
    ]
    yield _context(first, same)
    for event in _distinct(originals)[:12]:
        group = [e for e in originals if _same(e, event)]
        yield from _classify(run, event, group)


def _bare(run: Run, events: list[Event]) -> Iterator[Finding]:
    """The first exception line without a traceback of its own (excerpts, cut files): weaker, and only if nothing else reads it."""
    for event in sorted(events, key=order):
        name = short_type(str(event.fields.get("type", "")))
        if name in VICTIMS or "Warning" in name or went_on(run, event) or _tracker(event):
            continue
        if not roles(run, event) and not MATMUL.search(event.text):
            for finding_ in _classify(run, event, [event]):
                finding_.weight = min(finding_.weight, 0.38)
                yield finding_
            return
        if MATMUL.search(event.text):
            yield from _classify(run, event, [event])
            return


def _one_of_many(run: Run, group: list[Event]) -> bool:
    return run.world_size is not None and run.world_size > 1 and len({e.rank for e in group}) == 1 and group[0].rank is not None


def _same(a: Event, b: Event) -> bool:
    return a.fields.get("type") == b.fields.get("type") and a.fields.get("innermost") == b.fields.get("innermost")


def _distinct(events: list[Event]) -> list[Event]:
    out: list[Event] = []
    for event in events:
        if not any(_same(event, other) for other in out):
            out.append(event)
    return out


def _context(event: Event, same: list[Event]) -> Finding:
    user, inner = event.fields.get("user_frame"), event.fields.get("innermost")
    facts = {
        "type": short_type(str(event.fields.get("type"))),
        "message": str(event.fields.get("message", ""))[:300],
        "frame": frame_text(user),
        "inner": frame_text(inner),
        "code": (user or {}).get("code", ""),
    }
    rule = "stack-trace.user-frame" if user and user.get("user") else "stack-trace.library-frame"
    evidence = [at_error(event), Evidence(event.source, event.line, frame_text(user or inner), event.time)]
    return finding(rule, same, evidence, cause=None, role="context", weight=0.3, severity="info", facts=facts, covers=("H3",))


def _classify(run: Run, event: Event, group: list[Event]) -> Iterator[Finding]:
    message = str(event.fields.get("message", ""))
    name = short_type(str(event.fields.get("type", "")))
    user = event.fields.get("user_frame") or {}
    inner = event.fields.get("innermost") or {}
    facts = {"type": name, "message": message[:300], "frame": frame_text(user), "inner": frame_text(inner), "code": user.get("code", "")}
    evidence = [at_error(event)] + ([Evidence(event.source, event.line, frame_text(user), event.time)] if user else [])
    known = roles(run, event)
    shapes = matmul(message)
    if shapes is not None:
        yield finding(
            f"matmul-shapes.{shapes[0]}",
            group,
            evidence,
            cause="model/shape-mismatch",
            weight=0.72,
            facts={**facts, **shapes[1]},
            covers=("H3",),
        )
        return
    told = by_frames(event)
    reward = told is not None and told[1].startswith("reward/")
    kernel = told is not None and told[0] == "stack-trace.attention" and "root" not in known
    # A broken archive met by the data loader is a sample, whatever its words say of checkpoints.
    sample = (
        ARCHIVE.search(f"{name}: {message[:300]}") is not None
        and LOADER.search(_files(event) + " " + " ".join(_functions(event))) is not None
    )
    if known & {"root", "consequence", "symptom"} and not reward and not kernel and not sample:
        return  # a signature says it better
    if any(e.source == event.source and event.line <= e.line <= (event.end_line or event.line) for e in run.kind("gpu_oom")):
        return
    if sample:
        told = ("stack-trace.data", "data/corrupt-sample", 0.6)
    if told is not None:
        if reward and known & {"symptom"}:
            return
        rule, cause, weight = told
        if "root" in known and (reward or sample):
            weight = max(weight, OUTRANKS)
        if cause == "data/dataset-format" and name == "KeyError" and _one_of_many(run, group):
            # A column that is missing everywhere stops every rank; one rank alone met a bad record.
            rule, cause = "stack-trace.record", "data/corrupt-sample"
        more: dict[str, Any] = {"role": "consequence"} if cause.startswith("comms/") else {}
        if rule == "stack-trace.waiting-first":
            more.update(rank=0, ranks=[0])  # the others wait for the main process
        yield finding(
            rule,
            group,
            evidence,
            cause=cause,
            weight=weight - 0.15 * bool(event.fields.get("ignored")),
            facts=facts,
            covers=("H3",),
            **more,
        )
        return
    words = error_words.cause_of(name, message, event.fields.get("frames") or [])
    if words is not None and words[0] != "training/code-exception":
        yield finding(
            "stack-trace.words",
            group,
            evidence,
            cause=words[0],
            weight=words[1],
            facts={**facts, "layer": words[0].partition("/")[0]},
            covers=("H3",),
        )
        return
    own = bool(inner.get("user")) and name in MISTAKES
    # One rank alone failing in its own code is a stronger sign than the same line on every rank at the end.
    weight = 0.58 if own else 0.45
    yield finding("stack-trace.code", group, evidence, cause="training/code-exception", weight=weight, facts=facts, covers=("H3",))


RULES = (Rule("stack-trace", _judge, covers=("H3",)),)
