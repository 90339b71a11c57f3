"""Metric files and trackers' own formats, made here byte by byte."""

from __future__ import annotations

import json
import math
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support_lines import facts, head, named, parse_file, series

from parsers import config_files, jsonl_metrics, trackers, wire
from parsers.base import FileParser

FILES: dict[str, FileParser] = {
    p.name: p for p in (*jsonl_metrics.PARSER, *trackers.PARSER, *config_files.PARSER) if isinstance(p, FileParser)
}


def chosen(path: str, data: bytes) -> str | None:
    """The name of the parser that would get the file."""
    scores = sorted(((p.recognises(head(path, data)), name) for name, p in FILES.items()), reverse=True)
    return scores[0][1] if scores[0][0] > 0.5 else None


def field(number: int, value: bytes | int | str | float) -> bytes:
    """One protobuf field."""
    if isinstance(value, str):
        value = value.encode()
    if isinstance(value, float):
        return varint(number << 3 | 1) + struct.pack("<d", value)
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def varint(value: int) -> bytes:
    out = bytearray()
    while True:
        out.append(value & 0x7F | (0x80 if value > 0x7F else 0))
        value >>= 7
        if not value:
            return bytes(out)


def tf_record(data: bytes) -> bytes:
    return struct.pack("<QI", len(data), 0) + data + struct.pack("<I", 0)


def level_log(records: list[bytes], start: bytes) -> bytes:
    """Records in blocks of 32 768 bytes, split where they do not fit."""
    out = bytearray(start)
    for record in records:
        first = True
        while True:
            left = 32768 - len(out) % 32768
            if left < 7:
                out += bytes(left)
                continue
            piece, record = record[: left - 7], record[left - 7 :]
            kind = (1 if not record else 2) if first else (4 if not record else 3)
            out += struct.pack("<IHB", 0, len(piece), kind) + piece
            first = False
            if not record:
                break
    return bytes(out)


# ---------------------------------------------------------------------------------------------- trainer_state.json


STATE = """{
  "best_metric": null,
  "global_step": 20,
  "is_world_process_zero": true,
  "log_history": [
    {
      "epoch": 0.125,
      "grad_norm": NaN,
      "loss": 4.833536148071289,
      "step": 10
    },
    {
      "epoch": 0.25,
      "eval_loss": 4.1,
      "step": 20
    }
  ],
  "max_steps": 100,
  "num_train_epochs": 2,
  "train_batch_size": 4
}
"""


def test_trainer_state_with_bare_nan():
    assert chosen("checkpoint-20/trainer_state.json", STATE.encode()) == "trainer-state"
    rows = parse_file(FILES["trainer-state"], "checkpoint-20/trainer_state.json", STATE.encode())
    assert series(rows, "loss") == [(10, 4.833536148071289)]
    assert series(rows, "eval_loss") == [(20, 4.1)]
    assert math.isnan(named(rows, "grad_norm")[0].value)
    assert named(rows, "loss")[0].line == 7
    assert facts(rows, "setting.total_steps") == [100]
    assert [e.fields["step"] for e in rows.events if e.kind == "checkpoint_saved"] == [20]


def test_trainer_state_cut_off_and_on_one_line():
    cut = parse_file(FILES["trainer-state"], "trainer_state.json", STATE[:260].encode())
    assert series(cut, "loss") == [(10, 4.833536148071289)]
    assert cut.notes
    whole = parse_file(FILES["trainer-state"], "trainer_state.json", json.dumps(json.loads(STATE)).encode())
    assert series(whole, "loss") == [(10, 4.833536148071289)]


# ---------------------------------------------------------------------------------------------- JSON lines, CSV


def test_llama_factory_trainer_log():
    data = b'{"current_steps": 10, "total_steps": 300, "loss": 3.08, "lr": 0.0001, "epoch": 0.1, "percentage": 3.33, "elapsed_time": "0:01:03", "throughput": 5123.42}\n{"current_steps": 20, "total_st'
    assert chosen("trainer_log.jsonl", data) == "metrics-jsonl"
    rows = parse_file(FILES["metrics-jsonl"], "trainer_log.jsonl", data)
    assert series(rows, "loss") == [(10, 3.08)]
    assert facts(rows, "framework") == ["llama-factory"]
    assert rows.notes


def test_ms_swift_logging_and_times():
    data = b'{"loss": 0.0012, "reward": 1.3, "global_step/max_steps": "7/500", "percentage": "1.4%"}\n'
    assert series(parse_file(FILES["metrics-jsonl"], "logging.jsonl", data), "reward") == [(7, 1.3)]
    timed = b'{"_step": 3, "_timestamp": 1767323045.5, "train/loss": 2.5}\n{"step": 4, "timestamp": "2026-01-02T03:04:05+00:00", "loss": "nan"}\n'
    rows = parse_file(FILES["metrics-jsonl"], "m.jsonl", timed)
    assert [m.stamp.seconds for m in rows.metrics if m.stamp] == [1767323045.5, 1767323045.0]
    assert math.isnan(named(rows, "loss")[1].value)


def test_data_sets_are_no_metrics():
    data = b'{"prompt": "What is 2+2?", "response": "4", "reward": 1.0}\n' * 5
    assert chosen("samples.jsonl", data) is None
    assert chosen("chat.jsonl", b'{"messages": [{"role": "user", "content": "hi"}]}\n' * 3) is None


def test_lightning_csv_with_empty_cells():
    data = b"epoch,lr-AdamW,step,train_loss,val_loss\n0,0.001,49,3.167264,\n0,,399,,1.2011\n"
    assert chosen("metrics.csv", data) == "metrics-csv"
    rows = parse_file(FILES["metrics-csv"], "metrics.csv", data)
    assert series(rows, "loss") == [(49, 3.167264)]
    assert series(rows, "eval_loss") == [(399, 1.2011)]
    assert named(rows, "eval_loss")[0].line == 3


def test_wandb_export_csv():
    data = b'"Step","run-7 - train/loss","run-7 - train/loss__MIN","run-7 - train/loss__MAX"\n"1","2.5","2.5","2.5"\n"2","nan","",""\n'
    assert chosen("export.csv", data) == "metrics-csv"
    rows = parse_file(FILES["metrics-csv"], "export.csv", data)
    assert [m.step for m in named(rows, "loss")] == [1, 2]


def test_gpu_csv_is_not_ours():
    data = b"timestamp, index, memory.used [MiB], utilization.gpu [%]\n2026/01/02 03:04:05.000, 0, 100 MiB, 5 %\n"
    assert chosen("gpu.csv", data) is None


# ---------------------------------------------------------------------------------------------- trackers


def scalar(tag: str, value: float) -> bytes:
    return field(1, field(1, tag) + varint(2 << 3 | 5) + struct.pack("<f", value))


def test_tensorboard_events():
    tensor = field(1, field(1, "train/reward") + field(8, field(1, 1) + field(4, struct.pack("<f", 0.5))))
    data = b"".join(
        tf_record(event)
        for event in (
            field(1, 1767323045.0) + field(3, "brain.Event:2"),
            field(1, 1767323046.0) + field(2, 10) + field(5, scalar("train/loss", 2.5)),
            field(1, 1767323047.0) + field(2, 20) + field(5, tensor),
        )
    )
    assert chosen("runs/events.out.tfevents.1767323045.host.1.0", data) == "tensorboard"
    rows = parse_file(FILES["tensorboard"], "events", data + b"torn")
    assert series(rows, "loss") == [(10, 2.5)]
    assert series(rows, "reward") == [(20, 0.5)]
    assert [m.stamp.seconds for m in rows.metrics if m.stamp] == [1767323046.0, 1767323047.0]


def item(key: str, value: object) -> bytes:
    return field(1, key) + field(16, json.dumps(value))


def test_wandb_transaction_log():
    history = [
        field(
            2,
            b"".join(
                field(1, item(k, v)) for k, v in (("train/loss", 2.0 + n), ("train/global_step", n), ("_timestamp", 1767323045.0 + n))
            ),
        )
        for n in range(3)
    ]
    big = field(2, field(1, item("note", "x" * 70_000)) + field(1, item("reward", 0.25)) + field(1, item("_step", 7)))
    stats = field(7, field(2, field(1, 1767323050)) + field(3, item("gpu.0.temp", 61)))
    run = field(
        17, field(1, "abc") + field(13, "node-3") + field(4, field(1, item("learning_rate", 1e-6)) + field(1, item("num_generations", 8)))
    )
    data = level_log([run, *history, big, stats, field(18, field(1, 1))], b":W&B\xe1\xbe\x00")
    assert chosen("run-abc.wandb", data) == "wandb"
    rows = parse_file(FILES["wandb"], "run-abc.wandb", data)
    assert series(rows, "loss") == [(0, 2.0), (1, 3.0), (2, 4.0)]
    assert series(rows, "reward") == [(7, 0.25)]
    assert series(rows, "system/gpu.0.temp") == [(None, 61)]
    assert facts(rows, "setting.learning_rate") == [1e-6]
    assert facts(rows, "host") == ["node-3"]
    assert facts(rows, "tracker.wandb_finished") == [True]
    assert [e.fields["exit_code"] for e in rows.events if e.kind == "tracker_exit"] == [1]
    killed = parse_file(FILES["wandb"], "run-abc.wandb", level_log([run, *history], b":W&B\xe1\xbe\x00"))
    assert facts(killed, "tracker.wandb_finished") == [False]


def test_wandb_side_files():
    summary = b'{"_step": 90, "_timestamp": 1767323045.0, "train/loss": 0.5, "_wandb": {"runtime": 3}}'
    assert chosen("files/wandb-summary.json", summary) == "wandb-summary"
    assert series(parse_file(FILES["wandb-summary"], "files/wandb-summary.json", summary), "loss") == [(90, 0.5)]
    metadata = b'{"host": "node-3", "gpu": "NVIDIA H100", "gpu_count": 8, "python": "3.11.9", "args": ["--learning_rate", "1e-6", "--num_generations=8"]}'
    rows = parse_file(FILES["wandb-metadata"], "files/wandb-metadata.json", metadata)
    assert facts(rows, "gpu.count") == [8]
    assert facts(rows, "setting.num_generations") == [8]


def test_mlflow_metric_file():
    data = b"1767323045000 2.5 10\n1767323046000 nan 20\n"
    assert chosen("mlruns/0/abc/metrics/train/loss", data) == "mlflow"
    rows = parse_file(FILES["mlflow"], "mlruns/0/abc/metrics/train/loss", data)
    assert [m.step for m in named(rows, "loss")] == [10, 20]
    assert named(rows, "loss")[0].stamp.seconds == 1767323045.0


# ---------------------------------------------------------------------------------------------- configuration files


def test_wandb_config_yaml():
    data = b"wandb_version: 1\nlearning_rate:\n  desc: null\n  value: 1.0e-06\nbeta:\n  desc: null\n  value: 0.04\nmodel:\n  value:\n    vocab_size: 151936\n"
    assert chosen("wandb/run-1/files/config.yaml", data) == "yaml-config"
    rows = parse_file(FILES["yaml-config"], "config.yaml", data)
    assert facts(rows, "setting.learning_rate") == [1e-6]
    assert facts(rows, "setting.beta") == [0.04]


def test_deepspeed_json():
    data = b'{\n  "train_micro_batch_size_per_gpu": 4,\n  "gradient_accumulation_steps": 8,\n  "gradient_clipping": 1.0,\n  "zero_optimization": {"stage": 3},\n  "train_batch_size": 256\n}\n'
    assert chosen("ds_config.json", data) == "json-config"
    rows = parse_file(FILES["json-config"], "ds_config.json", data)
    assert facts(rows, "setting.batch_per_device") == [4]
    assert facts(rows, "setting.max_grad_norm") == [1.0]
    assert facts(rows, "setting.zero_stage") == [3]
    assert next(line for name, _, line in rows.facts if name == "setting.global_batch") == 6


def test_a_model_configuration_is_no_run_configuration():
    assert chosen("config.json", b'{"architectures": ["X"], "hidden_size": 4096, "num_attention_heads": 32}') is None


# ---------------------------------------------------------------------------------------------- hostile input


@pytest.mark.parametrize("name", sorted(FILES))
@given(data=st.binary(max_size=400))
@settings(max_examples=25, deadline=None)
def test_any_bytes_are_survived(name: str, data: bytes):
    parser = FILES[name]
    for lead in (b"", b":W&B\xe1\xbe\x00", b'{"log_history": [\n{\n"loss": 1,\n', b"step,loss\n", b'{"loss": 1}\n'):
        assert 0.0 <= parser.recognises(head("metrics/x.yaml", lead + data)) <= 1.0
        try:
            parse_file(parser, "metrics/x", lead + data)
        except ValueError:
            continue


def test_deep_nesting_and_huge_numbers():
    deep = b"[" * 100_000
    for name in ("wandb-summary", "json-config", "trainer-state", "metrics-jsonl"):
        try:
            parse_file(FILES[name], "x.json", b'{"loss": ' + deep)
        except ValueError:
            continue
    rows = parse_file(FILES["metrics-jsonl"], "x.jsonl", b'{"loss": 1' + b"0" * 400 + b'}\n{"loss": 1e999}\n')
    assert all(isinstance(m.value, float) for m in rows.metrics)


@given(st.binary(max_size=200))
def test_wire_readers_end(data: bytes):
    list(wire.fields(data))
    list(wire.tf_records(data))
    list(wire.level_records(data, 0))


@pytest.mark.parametrize("name", ["metrics-jsonl", "metrics-csv"])
def test_a_long_file_is_thinned_but_for_its_end_and_its_nans(monkeypatch, name):
    monkeypatch.setattr(jsonl_metrics, "LARGE", 1000)
    monkeypatch.setattr(jsonl_metrics, "LAST", 50)
    count, bad = 10_000, 7_777
    if name == "metrics-jsonl":
        lines = [json.dumps({"step": n, "loss": math.nan if n == bad else n / 2, "grad_norm": 1.0}) for n in range(1, count + 1)]
    else:
        lines = [f"{n},{'nan' if n == bad else n / 2},1.0" for n in range(2, count + 1)]
        lines.insert(0, "step,loss,grad_norm")
    rows = parse_file(FILES[name], "metrics.x", "\n".join(lines).encode())
    kept = [m for m in rows.metrics if m.name == "loss"]
    at = [m.line for m in kept]
    assert at == sorted(set(at)) and len(at) < 1200
    assert all(m.step == m.line and (m.value == m.line / 2 or m.line == bad) for m in kept)
    assert set(range(count - 49, count + 1)) <= set(at) and bad in at
    gaps = [b - a for a, b in zip([0, *at], at, strict=False)]
    assert max(gaps) <= 64  # evenly, to the beginning
    assert any("of its records was kept" in note for note in rows.notes)


def test_a_jsonl_line_without_an_end_costs_that_line_only():
    data = b'{"step": 1, "loss": 2.5}\n{"a": "' + b"x" * (3 << 20) + b'"}\n{"step": 3, "loss": 1.5}\n'
    rows = parse_file(FILES["metrics-jsonl"], "metrics.jsonl", data)
    assert [(m.line, m.value) for m in rows.metrics if m.name == "loss"] == [(1, 2.5), (3, 1.5)]
    assert any("1 lines are not whole" in note for note in rows.notes)


def test_records_of_one_shape_with_odd_values_among_them():
    lines = ['{"step": 1, "loss": 2.5}', '{"step": 2, "loss": true}', '{"step": 3, "loss": "1.25"}', '{"step": 4, "loss": null}']
    lines += [
        '{"step": 5, "loss": 1' + "0" * 400 + "}",
        '{"step": 6, "loss": NaN}',
        '{"step": 7, "loss": {"sft": 3}}',
        '{"step": 8, "loss": 1}',
    ]
    rows = parse_file(FILES["metrics-jsonl"], "metrics.jsonl", "\n".join(lines).encode())
    found = {m.line: m.value for m in rows.metrics if m.name == "loss"}
    assert math.isnan(found.pop(6))
    assert found == {1: 2.5, 3: 1.25, 8: 1.0}
