"""Short runs in the true format of many frameworks, rebuilt from public reports: layer and cause of training, data, model and reward.

Files under `cases_training/`; series are made here, each from a seed, so that onset, scale and noise differ from run to run.
"""

from __future__ import annotations

import math
import random
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forensics import engine, evidence, knowledge, verdict
from forensics.analysis import reader_for

FOLDER = Path(__file__).parent / "cases_training"
CASES = sorted(path.parent for path in FOLDER.glob("*/case.toml"))
KNOWN = knowledge.load(())


def said(folder: Path) -> str:
    """`layer/cause` of the verdict on a run directory."""
    with evidence.gather(folder) as found:
        run = reader_for(()).read(found)
        result = verdict.decide(run, engine.judge(run, KNOWN), KNOWN)
    return f"{result.layer}/{result.cause}"


@pytest.mark.parametrize("folder", CASES, ids=lambda folder: folder.name)
def test_case(folder: Path) -> None:
    label = tomllib.loads((folder / "case.toml").read_text(encoding="utf-8"))
    wanted = [f"{label['layer']}/{label['cause']}", *label["also_ok"]]
    assert said(folder / "logs") in wanted


def test_there_are_cases_of_every_layer() -> None:
    layers = {tomllib.loads((folder / "case.toml").read_text(encoding="utf-8"))["layer"] for folder in CASES}
    assert {"data", "model", "training", "reward", "none"} <= layers


# ------------------------------------------------------------------------------------------------------ made series

Row = dict[str, float]
Maker = Callable[[random.Random, int], Row]


def near(dice: random.Random, value: float, share: float = 0.05) -> float:
    return value * (1 + dice.gauss(0, share))


def trainer(row: Row) -> str:
    return str({key: round(value, 6) for key, value in row.items()})


def verl(step: int, row: Row) -> str:
    return f"(TaskRunner pid=4123) step:{step} - " + " - ".join(f"{key}:{value!r}" for key, value in row.items())


def kl_explodes(dice: random.Random, i: int) -> Row:
    kl = near(dice, 0.004 if i < 30 else 0.004 * 1.18 ** (i - 30), 0.2)
    return {
        "critic/score/mean": near(dice, 0.5 if i < 45 else max(0.02, 0.5 - 0.02 * (i - 45))),
        "actor/kl_loss": kl,
        "actor/entropy": near(dice, 0.4),
    }


def entropy_dies(dice: random.Random, i: int) -> Row:
    return {
        "critic/score/mean": near(dice, 0.4),
        "actor/entropy": near(dice, 0.9 * math.exp(-max(0, i - 25) / 8) + 0.002),
        "actor/grad_norm": near(dice, 0.2),
    }


def settles(dice: random.Random, i: int) -> Row:
    return {
        "critic/score/mean": near(dice, 0.6 - 0.4 * math.exp(-i / 30)),
        "actor/kl_loss": near(dice, 0.0003 * (i + 1), 0.25),
        "actor/entropy": near(dice, 0.35 + 0.2 * (1 - math.exp(-i / 15))),
        "actor/grad_norm": near(dice, 0.25, 0.3),
    }


def preferences_turned(dice: random.Random, i: int) -> Row:
    return {
        "loss": near(dice, 0.69 + 0.004 * i, 0.03),
        "rewards/chosen": near(dice, -0.011 * i),
        "rewards/rejected": near(dice, 0.012 * i),
        "rewards/accuracies": near(dice, 0.25, 0.2),
        "rewards/margins": near(dice, -0.023 * i - 0.01),
        "learning_rate": 5e-7,
    }


def chosen_falls(dice: random.Random, i: int) -> Row:
    return {
        "loss": near(dice, 0.69 * math.exp(-i / 70), 0.06),
        "rewards/chosen": near(dice, -0.02 * i),
        "rewards/rejected": near(dice, -0.05 * i),
        "rewards/accuracies": min(1.0, near(dice, 0.6 + 0.003 * i, 0.08)),
        "rewards/margins": near(dice, 0.03 * i, 0.15),
        "learning_rate": 5e-7,
    }


def balance_lost(dice: random.Random, i: int) -> Row:
    return {
        "loss": near(dice, 4 - 0.01 * i, 0.01),
        "grad_norm": near(dice, 1),
        "aux_loss": near(dice, 0.01 if i < 40 else 0.01 + 0.0015 * (i - 40), 0.02),
    }


def noisy(dice: random.Random, i: int) -> Row:
    return {
        "loss": near(dice, 0.8 + 1.5 * math.exp(-i / 30), 0.15),
        "grad_norm": near(dice, 1.2, 0.4),
        "learning_rate": 1e-5 * min(1, i / 8),
    }


SERIES: list[tuple[str, Maker, tuple[str, ...]]] = [
    ("verl", kl_explodes, ("reward/kl-explosion", "reward/reward-collapse")),
    ("verl", entropy_dies, ("reward/entropy-collapse",)),
    ("verl", settles, ("none/healthy",)),
    ("trainer", preferences_turned, ("data/preference-inverted", "reward/reward-inverted")),
    ("trainer", chosen_falls, ("none/healthy",)),
    ("trainer", balance_lost, ("model/moe-routing-collapse",)),
    ("trainer", noisy, ("none/healthy",)),
]


@pytest.mark.parametrize("seed", [3, 17])
@pytest.mark.parametrize(("style", "maker", "wanted"), SERIES, ids=[maker.__name__ for _, maker, _ in SERIES])
def test_series(tmp_path: Path, style: str, maker: Maker, wanted: tuple[str, ...], seed: int) -> None:
    dice = random.Random(seed)
    rows = [maker(dice, i) for i in range(80)]
    lines = [verl(i + 1, row) if style == "verl" else trainer(row) for i, row in enumerate(rows)]
    (tmp_path / "train.log").write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert said(tmp_path) in wanted


@pytest.mark.parametrize("idle", [True, False])
def test_expert_loads(tmp_path: Path, idle: bool) -> None:
    dice = random.Random(5)
    lines = []
    for step in range(30):
        loads = [int(near(dice, 512, 0.2)) for _ in range(16)]
        if idle and step >= 12:
            loads = [dice.randrange(3) for _ in range(16)]
            loads[4] = 8000
        lines += [
            f"step={step} loss={near(dice, 3.0, 0.01):.4f} grad_norm={near(dice, 1.0):.3f}",
            f"layer 3 step {step} tokens_per_expert: {loads}",
        ]
    (tmp_path / "train.log").write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert said(tmp_path) == ("model/moe-routing-collapse" if idle else "none/healthy")


# ------------------------------------------------------------------------------------------------------ words of errors

ERRORS: list[tuple[str, str, tuple[str, str], str]] = [
    ("ValueError", "The dataset must have a column named 'completion'.", ("trl/data_utils.py", "prepare"), "data"),
    ("AssertionError", "micro batch size 3 must divide the mini batch size 8", ("verl/workers/actor.py", "update"), "data"),
    ("ValueError", "hidden size 1000 is not divisible by tensor parallel size 16", ("model/builder.py", "build"), "model"),
    ("RuntimeError", "expected scalar type BFloat16 but found Float", ("modeling_x.py", "forward"), "model"),
    ("RuntimeError", "gradient of parameter lm_head is None after backward", ("engine.py", "step"), "training"),
    ("ImportError", "This optimizer needs apex>=0.2, please install it", ("optim.py", "build"), "infra"),
    ("KeyError", "'chosen'", ("collator.py", "__call__"), "data"),
    ("ValueError", "reward model returned 7 scores for 8 completions", ("trainer.py", "score"), "reward"),
]


@pytest.mark.parametrize(("name", "message", "frame", "layer"), ERRORS, ids=[f"{e[0]}-{e[3]}-{n}" for n, e in enumerate(ERRORS)])
def test_words(name: str, message: str, frame: tuple[str, str], layer: str) -> None:
    from rules.error_words import cause_of

    told = cause_of(name, message, [{"file": f"/srv/{frame[0]}", "func": frame[1]}])
    assert told is not None
    assert told[0].startswith(f"{layer}/")
    assert told[1] <= 0.58


@pytest.mark.parametrize("message", ["", "boom", "step 3 went wrong", "\x00" * 5000, "(" * 2000])
def test_words_that_say_nothing(message: str) -> None:
    from rules.error_words import cause_of

    frames: list[dict[str, Any]] = [{"file": "main.py", "func": "main"}]
    assert cause_of("Exception", message, frames) is None


# ------------------------------------------------------------------------------------------------------ readers


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("trainable params: 0 || all params: 6,738,415,616 || trainable%: 0.0", 0.0),
        ("trainable params: 41,943,040 || all params: 8,072,204,288 || trainable%: 0.5196", 41943040.0),
        ("20.5 M    Trainable params", 20.5e6),
        (" Trainable params: 1,024 (4.00 KB)", 1024.0),
        ("[INFO:swift] PeftModelForCausalLM: 7635.8013M Params (20.1851M Trainable [0.2643%]), 0.0019M Buffers.", 20185100.0),
        ("0         Non-trainable params", None),
        ("Non-trainable params: 0 (0.00 B)", None),
    ],
)
def test_trainable_counts(tmp_path: Path, line: str, count: float | None) -> None:
    (tmp_path / "train.log").write_text(f"start\n{line}\nstep 1 loss 2.0\n", encoding="utf-8")
    with evidence.gather(tmp_path) as found:
        facts = [value for key, _, value, _ in reader_for(()).read(found).facts if key == "setting.trainable_parameters"]
    assert facts == ([] if count is None else [pytest.approx(count)])


def export(name: str, values: list[float]) -> str:
    """One metric as a tracker's page exports it."""
    head = f'"Step","run-7b - {name}","run-7b - {name}__MIN","run-7b - {name}__MAX"'
    return "\n".join([head, *(f'"{5 * i}","{v}","{v}","{v}"' for i, v in enumerate(values))]) + "\n"


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        ({"actor/entropy_loss": [0.4 if i < 30 else 0.4 + 0.2 * (i - 30) for i in range(60)]}, {"reward/entropy-explosion"}),
        ({"memory_allocated": [30 + 0.6 * i for i in range(60)]}, {"training/gpu-memory-leak"}),
        (
            {
                "train/completion_length": [350 * math.exp(-i / 12) + 6 for i in range(60)],
                "train/reward": [0.3 + 0.01 * i for i in range(60)],
            },
            {"reward/reward-hacking", "reward/length-collapse"},
        ),
        (
            {
                "train/reward": [0.4 + 0.01 * i for i in range(60)],
                "val/acc": [0.45 if i < 30 else 0.45 - 0.012 * (i - 30) for i in range(60)],
            },
            {"reward/reward-hacking"},
        ),
        (
            {"response_length/mean": [700 + 20 * i for i in range(60)], "critic/score/mean": [0.2 + 0.008 * i for i in range(60)]},
            {"none/healthy"},
        ),
        ({"train/grad_norm": [0.5 * (25 if i in (17, 41) else 1) for i in range(60)]}, {"none/healthy"}),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else None,
)
def test_exports(tmp_path: Path, files: dict[str, list[float]], wanted: set[str]) -> None:
    dice = random.Random(9)
    for number, (name, values) in enumerate(files.items()):
        (tmp_path / f"export_{number}.csv").write_text(export(name, [near(dice, v, 0.04) for v in values]), encoding="utf-8")
    assert said(tmp_path) in wanted
