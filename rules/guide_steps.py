"""The twelve steps of the guide over one run: verdict, reading and evidence of each; and what was not recorded.

Words are in `rules/words/steps.toml`: a step's reading under the key `step.<id>.<reading>`, a gap's under `gap.<what>`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from rules.base import Evidence, Finding
from rules.series_view import PREFERENCE_NAMES, rl, series, short, where
from rules.statistics import finite, median, tail_level

if TYPE_CHECKING:
    from forensics.run import Run, Series

StepVerdict = Literal["ok", "suspect", "guilty", "no-evidence"]
STEPS = ("S1", "S2", "S3", "S4", "S5", "S6", "S7", "S8", "S9", "S10", "S11", "S12")
GUILTY = 0.4  # least weight of a finding that convicts
SHOWN = 3
FULL = 0.98  # share of the card's memory that is worth showing; a caching allocator lives there, so it accuses nobody
OOM_KILLS = ("oom_kill", "oom_killer", "kernel_oom", "oom_kill_process", "memory_monitor_kill")
GPU_OOMS = ("gpu_oom",)
# Causes that a step looks for, whichever rule or signature found them.
LOOKS_FOR: dict[str, tuple[str, ...]] = {
    "S1": ("infra/gpu-", "infra/host-oom", "infra/cgroup-oom", "infra/host-memory", "infra/pcie", "infra/device-held", "infra/fabric"),
    "S2": ("data/",),
    "S3": ("model/frozen-parameters",),
    "S4": ("training/loss-", "reward/kl-", "reward/value-loss", "reward/entropy-"),
    "S5": ("training/gradient-", "training/autograd-error"),
    "S6": ("comms/", "infra/nic-failure", "infra/gpu-nvlink-error", "infra/pcie-acs-p2p"),
    "S7": ("reward/reward-", "reward/margin-collapse", "reward/zero-advantage", "data/preference-inverted"),
    "S8": ("reward/kl-",),
    "S9": ("reward/policy-mismatch", "model/wrong-reference-model"),
    "S10": ("training/lr-schedule",),
    "S11": ("training/gpu-oom", "training/gpu-memory-leak", "infra/gpu-memory-held-by-other"),
    "S12": (),
}


@dataclass(slots=True)
class Step:
    """One step: `key` and `facts` give the reading its words; `findings` are the ids of the rules behind the verdict."""

    id: str
    verdict: StepVerdict
    key: str
    facts: dict[str, Any] = field(default_factory=dict)
    evidence: list[Evidence] = field(default_factory=list)
    findings: tuple[str, ...] = ()


@dataclass(slots=True)
class Gap:
    """Something that was not recorded: words under `key` (missing, why_it_matters, how_to_capture)."""

    key: str
    facts: dict[str, Any] = field(default_factory=dict)


def steps(run: Run, findings: Sequence[Finding]) -> list[Step]:
    """All twelve steps in the guide's order."""
    return [_step(run, findings, name) for name in STEPS]


def _about(findings: Iterable[Finding], name: str) -> list[Finding]:
    looked_for = LOOKS_FOR[name]
    return [f for f in findings if name in f.covers or (looked_for and (f.cause or "").startswith(looked_for) and f.outcome == "found")]


def _step(run: Run, findings: Sequence[Finding], name: str) -> Step:
    about = _about(findings, name)
    bad = sorted(
        (f for f in about if f.outcome == "found" and f.cause and f.role in ("root", "consequence", "precursor")), key=lambda f: -f.weight
    )
    odd = [
        f
        for f in about
        if f.outcome == "found"
        and f not in bad
        and f.severity in ("warning", "error", "fatal")
        and f.role not in ("recovery", "stop", "done")
    ]
    read = READINGS[name](run)
    if bad:
        lead = bad[0]
        verdict: StepVerdict = "guilty" if lead.weight >= GUILTY and lead.role == "root" else "suspect"
        place = lead.evidence[0] if lead.evidence else None
        facts = {
            "cause": lead.cause,
            "text": place.text[:160] if place else "",
            "where": f"{place.file}:{place.line}" if place else "",
            "others": len(bad) - 1,
        }
        return Step(name, verdict, "step.found", facts, lead.evidence[:SHOWN], tuple(f.rule for f in bad[:6]))
    if odd:
        place = odd[0].evidence[0] if odd[0].evidence else None
        facts = {"rule": odd[0].rule, "text": place.text[:160] if place else "", "where": f"{place.file}:{place.line}" if place else ""}
        return Step(name, "suspect", "step.odd", facts, odd[0].evidence[:SHOWN], tuple(f.rule for f in odd[:6]))
    if read is not None:
        key, facts, evidence = read
        return Step(name, "ok", key, facts, evidence[:SHOWN], tuple(f.rule for f in about if f.outcome == "excluded")[:6])
    cleared = [f for f in about if f.outcome == "excluded" and f.evidence]
    if cleared:
        return Step(
            name, "ok", f"step.{name}.clear", dict(cleared[0].facts), cleared[0].evidence[:SHOWN], tuple(f.rule for f in cleared[:6])
        )
    return Step(name, "no-evidence", f"step.{name}.missing", {}, [])


Reading = tuple[str, dict[str, Any], list[Evidence]]


def _last(line: Series) -> list[Evidence]:
    return [where(line, len(line) - 1)] if len(line) else []


def _hardware(run: Run) -> Reading | None:
    import polars as pl

    if run.samples is None or not run.samples.height:
        kernel = [f for f in run.files.values() if "kernel" in f.kinds and f.used]
        if not kernel:
            return None
        return "step.S1.kernel", {"files": len(kernel), "kills": len(run.kind(*OOM_KILLS))}, []
    frame = run.samples
    row = frame.row(frame.height - 1, named=True)
    used, total, heat = frame["memory_used"].max(), frame["memory_total"].max(), frame["temperature"].max()
    facts = {
        "cards": frame.select("host", pl.coalesce("gpu", "pci")).unique().height,  # a table and a query of one card may name it differently
        "used": "?" if not isinstance(used, (int, float)) else f"{used:g}",
        "total": "?" if not isinstance(total, (int, float)) else f"{total:g}",
        "heat": "?" if not isinstance(heat, (int, float)) else f"{heat:g}",
        "kills": len(run.kind(*OOM_KILLS)),
    }
    return "step.S1.ok", facts, [Evidence(row["source"], row["line"], "", row["time"])]


def _data(run: Run) -> Reading | None:
    longest, response = series(run, "batch_max_length"), series(run, "response_length")
    line = longest if len(longest) else response
    if not len(line):
        return None
    clean = finite(line.value)
    if not clean:
        return None
    return (
        "step.S2.ok",
        {"metric": line.name, "low": short(min(clean)), "high": short(max(clean)), "middle": short(median(clean))},
        _last(line),
    )


def _frozen(run: Run) -> Reading | None:
    events = run.kind("frozen_params")
    if events:
        parts = ", ".join(f"{e.fields.get('model', '?')} {e.fields.get('frozen', 0):g}/{e.fields.get('total', 0):g}" for e in events[:6])
        return "step.S3.ok", {"models": parts}, [run.evidence(e) for e in events[:SHOWN]]
    for name, source, value, line in run.facts:
        if name.removeprefix("setting.") == "trainable_parameters":
            shown = f"{value:,.0f}" if isinstance(value, (int, float)) else str(value)
            return "step.S3.count", {"count": shown}, [Evidence(source, line, f"trainable parameters = {value}")]
    return None


def _losses(run: Run) -> Reading | None:
    parts = {name: line for name in ("loss", "policy_loss", "value_loss", "kl", "kl_loss", "entropy") if len(line := series(run, name))}
    if not parts:
        return None
    text = ", ".join(f"{name} {short(tail_level(line.value))}" for name, line in parts.items())
    return "step.S4.ok", {"parts": text}, [place for line in list(parts.values())[:SHOWN] for place in _last(line)]


def _gradient(run: Run) -> Reading | None:
    line = series(run, "head_grad_norm", "grad_norm")
    clean = finite(line.value)
    if not clean:
        return None
    weak = sum(v < 0.1 for v in clean) / len(clean)
    return "step.S5.ok", {"metric": line.name, "middle": short(median(clean)), "high": short(max(clean)), "low": f"{weak:.0%}"}, _last(line)


def _comms(run: Run) -> Reading | None:
    files = [f for f in run.files.values() if "nccl" in f.kinds and f.used]
    warnings = [
        e
        for e in run.events
        if e.severity in ("warning", "error", "fatal") and ("NCCL" in e.text or e.kind.startswith(("nccl", "watchdog")))
    ]
    if not files and not warnings:
        return None
    return "step.S6.ok", {"files": len(files), "warnings": len(warnings)}, [run.evidence(e) for e in warnings[:SHOWN]]


def _rewards(run: Run) -> Reading | None:
    margin = series(run, "reward_margin")
    if len(margin):
        chosen, rejected = series(run, "reward_chosen"), series(run, "reward_rejected")
        facts = {"margin": short(tail_level(margin.value)), "chosen": "?", "rejected": "?"}
        if len(chosen) and len(rejected):
            facts.update(chosen=short(tail_level(chosen.value)), rejected=short(tail_level(rejected.value)))
        return "step.S7.pairs", facts, _last(margin)
    reward = series(run, "reward")
    if not len(reward):
        return None
    spread = series(run, "reward_std")
    first = finite(reward.value)[:3]
    facts = {
        "start": short(median(first)) if first else "?",
        "end": short(tail_level(reward.value)),
        "std": short(tail_level(spread.value)) if len(spread) else "?",
    }
    return "step.S7.ok", facts, _last(reward)


def _penalty(run: Run) -> Reading | None:
    beta, kl = series(run, "kl_coef"), series(run, "kl", "kl_loss")
    if not len(beta) and not len(kl):
        return None
    facts = {"beta": short(tail_level(beta.value)) if len(beta) else "?", "kl": short(tail_level(kl.value)) if len(kl) else "?"}
    return "step.S8.ok", facts, _last(beta if len(beta) else kl)


def _reference(run: Run) -> Reading | None:
    reference, actor = series(run, "ref_logits_mean"), series(run, "actor_logits_mean")
    if len(reference) and len(actor):
        return "step.S9.ok", {"gap": short(abs(reference.value[-1] - actor.value[-1]))}, _last(reference)
    for name in ("logprob_diff", "prob_diff", "rollout_kl", "rollout_importance_ratio"):
        line = series(run, name)
        if len(line):
            return "step.S9.rollout", {"metric": name, "level": short(tail_level(line.value))}, _last(line)
    return None


def _rate(run: Run) -> Reading | None:
    lr, expected = series(run, "learning_rate"), series(run, "learning_rate_expected")
    clean = finite(lr.value)
    if not clean:
        return None
    facts = {"first": short(clean[0]), "top": short(max(clean)), "last": short(clean[-1]), "diff": "?"}
    if len(expected):
        worst = max(
            (abs(a - b) for a, b in zip(lr.value, expected.value, strict=False) if math.isfinite(a) and math.isfinite(b)), default=0.0
        )
        facts["diff"] = short(worst)
    return "step.S10.ok", facts, _last(lr)


def _fragmentation(run: Run) -> Reading | None:
    tables = run.kind("memory_summary", *GPU_OOMS)
    if tables:
        return "step.S11.tables", {"count": len(tables)}, [run.evidence(e) for e in tables[:SHOWN]]
    for name in ("memory_allocated", "memory_reserved", "memory_allocated_peak", "memory_reserved_peak"):
        line = series(run, name)
        if len(line):
            return "step.S11.ok", {"metric": name, "last": short(tail_level(line.value))}, _last(line)
    return None


def _correlation(run: Run) -> Reading | None:
    """S12: what happened in the last seconds before the first error after the last progress, by time."""
    from rules.crash_window import crash_event

    crash = crash_event(run)
    if crash is None:
        if run.last_progress_at is None:
            return None
        return "step.S12.quiet", {"step": "?" if run.last_step is None else f"{run.last_step:g}"}, [run.last_progress_at]
    if crash.time is None:
        return "step.S12.order", {"text": crash.text[:160]}, [run.evidence(crash)]
    near = [e for e in run.events if e.time is not None and 0 <= crash.time - e.time <= 30 and e.severity in ("error", "fatal")]
    kinds = {e.kind for e in near} | {crash.kind}
    key = "killer" if kinds & set(OOM_KILLS) else "memory" if kinds & set(GPU_OOMS) or _full(run, crash.time) else "exception"
    return (
        f"step.S12.{key}",
        {"text": crash.text[:160], "near": len(near)},
        [run.evidence(crash), *[run.evidence(e) for e in near[:2] if e is not crash]],
    )


def _full(run: Run, moment: float) -> bool:
    """A card's memory jumped to its limit in the seconds before `moment`."""
    if run.samples is None or not run.samples.height:
        return False
    import polars as pl

    near = run.samples.filter(pl.col("time").is_between(moment - 10, moment + 1) & pl.col("memory_total").is_not_null())
    shares = near.select((pl.col("memory_used") / pl.col("memory_total")).alias("share"))["share"].drop_nulls().to_list()
    return len(shares) >= 2 and max(shares) >= FULL and min(shares) < 0.9


READINGS: dict[str, Callable[[Run], Reading | None]] = {
    "S1": _hardware,
    "S2": _data,
    "S3": _frozen,
    "S4": _losses,
    "S5": _gradient,
    "S6": _comms,
    "S7": _rewards,
    "S8": _penalty,
    "S9": _reference,
    "S10": _rate,
    "S11": _fragmentation,
    "S12": _correlation,
}


def gaps(run: Run) -> list[Gap]:
    """What was not recorded and would have helped, most useful first (at most ten)."""
    kinds = {kind for info in run.files.values() if info.used for kind in info.kinds}
    out: list[Gap] = []
    if "kernel" not in kinds:
        out.append(Gap("gap.kernel"))
    if run.samples is None or not run.samples.height:
        out.append(Gap("gap.gpu-samples"))
    if run.last_progress_at is None and not run.names():
        out.append(Gap("gap.train-log"))
    train = [info for info in run.files.values() if "train" in info.kinds and info.used and info.lines >= 20]
    bare = [info for info in train if info.stamped == 0]
    if bare:
        out.append(Gap("gap.timestamps", {"file": bare[0].path, "count": len(bare)}))
    world = run.world_size or 0
    if world > 1 and len(run.ranks) < world:
        out.append(Gap("gap.ranks", {"seen": len(run.ranks), "world": world}))
    if world > 1 and "nccl" not in kinds:
        out.append(Gap("gap.nccl"))
    if "scheduler" not in kinds and not run.kind("exit"):
        out.append(Gap("gap.exit"))
    out += _metric_gaps(run)
    if not any(key.startswith("version.") for key, _, _, _ in run.facts):
        out.append(Gap("gap.environment"))
    if not run.settings:
        out.append(Gap("gap.settings"))
    return out[:10]


def _metric_gaps(run: Run) -> list[Gap]:
    names = run.names()
    if not names:
        return []
    wanted = ["grad_norm"]
    if rl(run):
        wanted += ["reward_std", "kl", "entropy", "response_length"]
        if not any(name.startswith("val_score/") for name in names):
            wanted.append("val_score")
    elif names & PREFERENCE_NAMES:
        wanted += ["reward_margin", "reward_accuracy"]
    missing = [
        name
        for name in wanted
        if name not in names and not (name == "val_score" and any(n.startswith(("val_score/", "eval_")) for n in names))
    ]
    return [Gap("gap.metrics", {"names": ", ".join(missing)})] if missing else []
