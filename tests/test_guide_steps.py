"""The twelve steps and the gaps: every step says something in both languages, convicts and clears on evidence."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import polars as pl
from series_runs import run_with, samples_with

import rules
from forensics.run import FileInfo, Run
from forensics.timeline import METRICS
from parsers.base import Event
from rules import crash_window, guide_steps, loss_health, parameters, reward_health
from rules.base import Evidence, Finding

WORDS = Path(rules.__file__).parent / "words"
STEPS = tomllib.loads((WORDS / "steps.toml").read_text("utf-8"))
SERIES = tomllib.loads((WORDS / "series.toml").read_text("utf-8"))
MODULES = (
    "loss_health",
    "learning_rate",
    "reward_health",
    "policy_health",
    "speed",
    "memory_growth",
    "parameters",
    "resume",
    "crash_window",
)


def by_id(run: Run) -> dict[str, guide_steps.Step]:
    return {step.id: step for step in guide_steps.steps(run, run.findings)}


def test_empty_run_has_twelve_steps_without_evidence() -> None:
    steps = guide_steps.steps(Run("x"), [])
    assert [step.id for step in steps] == [f"S{n}" for n in range(1, 13)]
    assert {step.verdict for step in steps} == {"no-evidence"}
    assert all(STEPS[step.key]["reading"]["zh"] for step in steps)


def test_guilty_suspect_ok() -> None:
    run = run_with(loss=[2.0, 1.5, *[float("nan")] * 6], grad_norm=[1.0, 1.0, *[float("nan")] * 6], learning_rate=[1e-4] * 8)
    run.findings = [*loss_health.judge_nan(run)]
    steps = by_id(run)
    assert steps["S4"].verdict == "guilty"
    assert steps["S4"].evidence[0].line == 3
    assert steps["S10"].verdict == "ok"
    weak = Finding("x", cause="reward/reward-swing", weight=0.2, evidence=[Evidence("train.log", 1)], covers=("S7",))
    assert {s.id: s.verdict for s in guide_steps.steps(run, [weak])}["S7"] == "suspect"


def test_hardware_reading_counts_cards() -> None:
    step = by_id(samples_with([1000.0] * 5))["S1"]
    assert (step.verdict, step.facts["cards"], step.facts["used"]) == ("ok", 1, "1000")


def test_every_word_exists_in_both_languages_and_names_known_facts() -> None:
    source = "".join((Path(rules.__file__).parent / f"{name}.py").read_text("utf-8") for name in MODULES)
    used = set(re.findall(r'"(series\.[a-z0-9-]+)"', source))
    judged = {rule.id for name in MODULES for rule in __import__(f"rules.{name}", fromlist=["RULES"]).RULES}
    assert used - judged <= set(SERIES)
    for table in (STEPS, SERIES):
        for key, parts in table.items():
            for part, texts in parts.items():
                assert set(texts) == {"en", "zh"}, (key, part)
                assert sorted(re.findall(r"{(\w+)}", texts["en"])) == sorted(re.findall(r"{(\w+)}", texts["zh"])), (key, part)


def test_guide_items_of_this_part_are_covered() -> None:
    covered = {item for rule in rules.load() for item in rule.covers}
    own = [
        "L1.1",
        "L1.2",
        "L1.3",
        "L2.1",
        "L2.2",
        "L2.3",
        "L3.1",
        "L3.2",
        "L3.3",
        "L3.4",
        "L4.3",
        "L5.1",
        "L5.2",
        "L5.3",
        "S2",
        "S3",
        "S4",
        "S5",
        "S7",
        "S8",
        "S9",
        "S10",
        "S12",
    ]
    own += ["Q1", "Q2", "Q3", "Q4", "Q5", "Q6", "Q7", "Q8", "Q10", "P1", "P2", "P3", "P4", "P5", "H1", "H2"]
    assert set(own) <= covered


def test_every_rule_says_something_about_an_empty_run() -> None:
    run = Run("x")
    for name in MODULES:
        for rule in __import__(f"rules.{name}", fromlist=["RULES"]).RULES:
            for finding in rule.judge(run):
                assert finding.outcome in ("undecided", "excluded"), rule.id
                assert finding.outcome == "excluded" or finding.needs, rule.id


def test_gaps() -> None:
    run = run_with(loss=[1.0] * 30, reward=[0.1] * 30)
    run.files = {"train.log": FileInfo("train.log", 9000, lines=300, kinds=("train",))}
    run.world_size = 8
    keys = [gap.key for gap in guide_steps.gaps(run)]
    assert {"gap.kernel", "gap.gpu-samples", "gap.timestamps", "gap.ranks", "gap.nccl", "gap.metrics"} <= set(keys)
    assert all(set(STEPS[key]) == {"missing", "why_it_matters", "how_to_capture"} for key in keys)
    assert len(keys) <= 10


def test_crash_window_sudden_against_slow() -> None:
    calm = [2.0 + 0.01 * (i % 5) for i in range(40)]
    sudden = next(iter(crash_window.judge(run_with(loss=[*calm, 9.0]))))
    assert sudden.facts["kind"] == "sudden"
    assert sudden.evidence[0].line == 41
    slow = next(iter(crash_window.judge(run_with(loss=[2.0 + 0.05 * i for i in range(41)]))))
    assert slow.facts["kind"] == "no-jump"


def frozen(model: str, count: float, total: float, line: int) -> Event:
    return Event(
        "frozen_params",
        "train.log",
        line,
        f"{model} frozen params: {count} / {total}",
        fields={"model": model, "frozen": count, "total": total},
    )


def test_frozen_sets() -> None:
    run = Run("x", events=[frozen("Reward", 10, 200, 3), frozen("Actor", 0, 200, 4)])
    assert [f.rule for f in parameters.judge_frozen(run)] == ["series.frozen-reward"]
    good = Run("x", events=[frozen("Reward", 200, 200, 3), frozen("Actor", 0, 200, 4)])
    assert [f.outcome for f in parameters.judge_frozen(good)] == ["excluded"]
    shrunk = Run("x", facts=[("setting.trainable_parameters", "first.log", 9e8, 2), ("setting.trainable_parameters", "resume.log", 4e7, 8)])
    found = next(iter(parameters.judge_frozen(shrunk)))
    assert (found.cause, found.evidence[0].file) == ("model/frozen-parameters", "resume.log")


def test_batches() -> None:
    settings = {"batch_per_device": 2.0, "gradient_accumulation": 4.0, "num_generations": 7.0}
    run = Run("x", settings=settings, world_size=8)
    assert [f.rule for f in parameters.judge_batches(run)] == ["series.batch-groups"]
    run.settings = {**settings, "num_generations": 8.0, "global_batch": 64.0}
    assert [f.outcome for f in parameters.judge_batches(run)] == ["excluded"]


def test_probe_of_the_reward_model() -> None:
    rows = {"reward_chosen": [0.2] * 4, "reward_rejected": [0.9] * 4, "reward_chosen_std": [0.3] * 4, "reward_rejected_std": [0.3] * 4}
    assert next(iter(reward_health.judge_distributions(run_with(**rows)))).cause == "reward/reward-inverted"
    rows["reward_chosen"] = [1.2] * 4
    assert next(iter(reward_health.judge_distributions(run_with(**rows)))).outcome == "excluded"


def test_metrics_without_rows_are_no_trouble() -> None:
    run = Run("x", metrics=pl.DataFrame(schema=METRICS))
    assert len(guide_steps.steps(run, [])) == 12
