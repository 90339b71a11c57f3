"""The probes print what the parser reads: on a tiny model, in a stand-in for Trainer's and verl's calls, and as pasted text."""

from __future__ import annotations

import ast
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import forensics
from forensics.cli.app import app
from forensics.probes import KNOWN, snippets

torch = pytest.importorskip("torch", reason="the probes need torch (extra: test)")

VOCABULARY, WIDTH = 37, 16


class Tiny(torch.nn.Module):  # type: ignore[misc, name-defined]
    """An embedding, a recurrent layer and a head: 20 ms a step on one core."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.body = torch.nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.lm_head = torch.nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids: Any, cut: bool = False) -> Any:
        hidden, _ = self.body(self.embed(ids))
        logits = self.lm_head(hidden)
        return logits.detach() + hidden.mean() if cut else logits


def train(
    probes: Any, steps: int = 24, cut: bool = False, rate: Callable[[int], float] | None = None, stale: float = 0.0, thaw: bool = False
) -> None:
    """A loop as in the snippet's docstring, with planted faults: `cut` the graph, another `rate`, a `stale` reference, a thawed reward model."""
    torch.manual_seed(0)
    policy, reference, reward = Tiny(), Tiny(), Tiny()
    reference.load_state_dict(policy.state_dict())
    for parameter in [*reference.parameters(), *reward.parameters()]:
        parameter.requires_grad_(thaw)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: rate(s) if rate else probes.scheduled(s, 1.0, steps))
    probes.frozen("Reward", reward)
    probes.parameters(policy)
    probes.groups(optimizer)
    for step in range(steps):
        probes.at(step)
        ids = torch.randint(0, VOCABULARY, (4, 12))
        mask = torch.ones_like(ids)
        mask[:, 10:] = 0
        probes.data(ids, mask)
        logits = policy(ids, cut)
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].reshape(-1, VOCABULARY), ids[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        probes.grad(policy)
        probes.loss(policy=loss, kl=torch.tensor(0.02 + 0.001 * step), entropy=3.0 - 0.01 * step)
        probes.preference(torch.randn(16) * 0.2 + 1.2, torch.randn(16) * 0.2 + 0.4)
        probes.kl(0.1 + 0.001 * step, 0.8)
        with torch.no_grad():
            probes.sync(reference(ids) + stale, policy(ids))
        probes.lr(optimizer, peak=1e-3, total=steps)
        optimizer.step()
        schedule.step()


def analysed(tmp_path: Path, text: str) -> dict[str, Any]:
    run = tmp_path / "run"
    run.mkdir()
    (run / "train.log").write_text(text, encoding="utf-8")
    return forensics.analyze(run).to_dict()


def steps_of(report: dict[str, Any]) -> dict[str, str]:
    return {step["id"]: step["verdict"] for step in report["checklist"]}


PROBED = {"S2", "S3", "S4", "S5", "S7", "S8", "S9", "S10"}


def test_a_sound_run_is_read_and_cleared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from forensics.probes import loop

    train(loop)
    report = analysed(tmp_path, capsys.readouterr().out)
    verdicts = steps_of(report)
    assert {step for step in PROBED if verdicts[step] == "ok"} == PROBED, verdicts
    assert report["verdict"]["layer"] in ("none", "unknown")
    assert report["environment"]["setting.trainable_parameters"] == sum(p.numel() for p in Tiny().parameters())


FAULTS: list[tuple[dict[str, Any], str, str]] = [
    ({"cut": True}, "S5", "training/"),
    ({"stale": 3.0}, "S9", "reward/policy-mismatch"),
    ({"rate": lambda step: 0.5}, "S10", "training/lr-schedule"),
    ({"thaw": True}, "S3", "model/frozen-parameters"),
]


@pytest.mark.parametrize(("fault", "step", "cause"), FAULTS, ids=[step for _, step, _ in FAULTS])
def test_a_planted_fault_shows_in_its_step(
    fault: dict[str, Any], step: str, cause: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from forensics.probes import loop

    train(loop, **fault)
    report = analysed(tmp_path, capsys.readouterr().out)
    assert steps_of(report)[step] in ("suspect", "guilty"), report["checklist"]
    found = {f"{f['layer']}/{f['cause']}" for f in report["findings"] if f["outcome"] == "found" and f["cause"]}
    assert any(name.startswith(cause) for name in found), found


def test_only_rank_zero_prints(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from forensics.probes import loop

    monkeypatch.setenv("RANK", "3")
    loop.kl(0.1, 0.2)
    assert capsys.readouterr().out == ""


def test_no_gradient_reads_zero(capsys: pytest.CaptureFixture[str]) -> None:
    from forensics.probes import loop

    loop.grad(Tiny())
    assert capsys.readouterr().out.startswith("[GRAD] LM head grad norm: 0")


def test_a_frozen_head_is_not_a_broken_graph(capsys: pytest.CaptureFixture[str]) -> None:
    from forensics.probes import loop

    model = Tiny()
    model.lm_head.weight.requires_grad_(False)
    model(torch.arange(6)[None]).square().mean().backward()
    loop.grad(model)
    assert float(capsys.readouterr().out.split(": ")[1].split(",")[0]) > 0


@pytest.mark.parametrize(("step", "expected"), [(0, 0.0), (5, 0.5), (10, 1.0), (55, 0.55), (100, 0.1), (200, 0.1)])
def test_the_schedule_is_the_guides_cosine_with_warm_up(step: int, expected: float) -> None:
    from forensics.probes.loop import scheduled

    assert scheduled(step, 1.0, 100, 10, 0.1) == pytest.approx(expected)


# ------------------------------------------------------------------------------------------------ pasted text


class Callback:
    """What transformers.TrainerCallback is to a callback: a base class without state."""


@pytest.fixture
def without_us(monkeypatch: pytest.MonkeyPatch) -> None:
    """A training environment: transformers is there, this project is not."""
    stand_in = types.ModuleType("transformers")
    stand_in.TrainerCallback = Callback  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "transformers", stand_in)
    monkeypatch.setitem(sys.modules, "forensics.probes.loop", None)


def pasted(name: str) -> types.ModuleType:
    module = types.ModuleType(f"pasted_{name}")
    exec(compile(snippets()[name].text, f"{name}.py", "exec"), module.__dict__)
    return module


@pytest.mark.usefixtures("without_us")
@pytest.mark.parametrize("name", [name for name, _, _ in KNOWN])
def test_a_snippet_stands_alone(name: str) -> None:
    text = snippets()[name].text
    assert "from forensics" not in text
    assert ast.get_docstring(ast.parse(text))
    assert pasted(name).__doc__


@pytest.mark.usefixtures("without_us")
def test_the_callback_on_a_trainers_calls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module = pasted("trl")
    model = Tiny()
    reward = Tiny().requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    args = types.SimpleNamespace(beta=0.04, lr_scheduler_type="linear", learning_rate=1e-4, get_warmup_steps=lambda total: 0)
    state = types.SimpleNamespace(global_step=0, max_steps=20)
    callback = module.ProbeCallback(reward_model=reward)
    collate = module.probed(lambda samples: {"input_ids": torch.stack(samples), "attention_mask": torch.ones(len(samples), 6)})
    callback.on_train_begin(args, state, None, model=model, optimizer=optimizer)
    for step in range(20):
        callback.on_step_begin(args, state, None)
        batch = collate([torch.arange(6)] * 4)
        model(batch["input_ids"]).square().mean().backward()
        callback.on_pre_optimizer_step(args, state, None, model=model)
        state.global_step = step + 1
        logs = {
            "loss": 0.01,
            "kl": 0.01 * step + 0.01,
            "entropy": 1.0,
            "rewards/chosen": 1.0,
            "rewards/rejected": 0.3,
            "rewards/margins": 0.7,
        }
        callback.on_log(args, state, None, logs={**logs, "learning_rate": 1e-4 * (1 - step / 20)})
    text = capsys.readouterr().out
    assert "Reward frozen params: 6 / 6" in text
    assert "Policy frozen params: 0 / 6" in text
    assert "param_group[0] {'lr': 0.0001" in text
    verdicts = steps_of(analysed(tmp_path, text))
    assert {step for step in PROBED - {"S9"} if verdicts[step] == "ok"} == PROBED - {"S9"}, verdicts


@pytest.mark.usefixtures("without_us")
def test_the_hook_on_verls_calls(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[int] = []

    class Tracking:
        def log(self, data: dict[str, float], step: int, backend: Any = None) -> None:
            logged.append(step)

    def compute_data_metrics(batch: Any, use_critic: bool = True) -> dict[str, float]:
        return {"critic/score/mean": 0.4}

    for name, content in (
        ("verl.utils.tracking", {"Tracking": Tracking}),
        ("verl.trainer.ppo.ray_trainer", {"compute_data_metrics": compute_data_metrics}),
    ):
        parts = name.split(".")
        for depth in range(1, len(parts) + 1):
            parent = ".".join(parts[:depth])
            if parent not in sys.modules:
                monkeypatch.setitem(sys.modules, parent, types.ModuleType(parent))
        for key, value in content.items():
            setattr(sys.modules[name], key, value)
    module = pasted("verl")
    module.install(peak=1e-6)
    module.install(peak=1e-6)  # a second call wraps nothing again
    trainer = sys.modules["verl.trainer.ppo.ray_trainer"]
    tensors = {"input_ids": torch.ones(4, 9, dtype=torch.long), "attention_mask": torch.ones(4, 9), "old_log_probs": torch.full((4, 5), -0.5), "ref_log_prob": torch.full((4, 5), -0.6)}  # fmt: skip
    for step in range(1, 13):
        metrics = {"actor/pg_loss": 0.1, "actor/kl_loss": 0.001 * step, "actor/entropy": 0.9, "actor/lr": 1e-6, "actor/kl_coef": 0.001}
        metrics |= trainer.compute_data_metrics(batch=types.SimpleNamespace(batch=tensors, meta_info={}), use_critic=False)  # type: ignore[attr-defined]
        Tracking().log(data=metrics, step=step)
    assert logged == list(range(1, 13))
    text = capsys.readouterr().out
    assert text.count("[DATA] Batch size: 4, Max len: 9, step: 12") == 1
    assert "probe failed" not in text
    verdicts = steps_of(analysed(tmp_path, text))
    assert {step for step in ("S2", "S4", "S8", "S9", "S10") if verdicts[step] != "no-evidence"} == {"S2", "S4", "S8", "S9", "S10"}, (
        verdicts
    )


def test_a_failing_probe_does_not_end_the_training(capsys: pytest.CaptureFixture[str]) -> None:
    from forensics.probes import verl

    assert verl._with_batch(lambda batch: 7)(None) == 7
    assert "probe failed" in capsys.readouterr().out


def test_the_self_test_makes_its_own_process_group(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from forensics.probes import allreduce

    for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    if torch.cuda.is_available():
        pytest.skip("made for the CPU back end")
    allreduce.main(sizes=(1 << 16,), rounds=1)
    out = capsys.readouterr().out
    assert "over 1 ranks" in out
    assert "all-reduce self-test passed" in out


# ------------------------------------------------------------------------------------------------ the command


def test_the_command_lists_and_prints() -> None:
    listed = CliRunner().invoke(app, ["probes"])
    assert listed.exit_code == 0
    assert all(name in listed.output for name, _, _ in KNOWN)
    printed = CliRunner().invoke(app, ["probes", "loop"])
    assert printed.output == snippets()["loop"].text
    assert CliRunner().invoke(app, ["probes", "jax"]).exit_code == 2
