"""Tracebacks in every dress, whose frame it is, allocation failures and native stacks."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support_lines import feed

from parsers import gpu_oom, stack_dumps, torchelastic, traceback
from parsers.base import FileParser, Source

PLAIN = """\
step 12 loss 2.1
Traceback (most recent call last):
  File "/home/u/job/train.py", line 88, in <module>
    main()
  File "/home/u/job/train.py", line 61, in main
    loss = step(batch)
           ^^^^^^^^^^^
  File "/opt/env/lib/python3.11/site-packages/torch/nn/modules/linear.py", line 125, in forward
    return F.linear(input, self.weight, self.bias)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x768 and 512x768)
done
"""


def tracebacks(text: str):
    return [event for event in feed(traceback.PARSER, text).events if event.kind == "traceback"]


def test_plain_traceback_names_both_frames() -> None:
    (event,) = tracebacks(PLAIN)
    assert event.line == 2
    assert event.fields["type"] == "RuntimeError"
    assert event.fields["message"].startswith("mat1 and mat2 shapes")
    assert event.fields["error_line"] == 11
    assert event.end_line == 11
    assert [f["line"] for f in event.fields["frames"]] == [88, 61, 125]
    assert event.fields["user_frame"]["file"] == "/home/u/job/train.py"
    assert event.fields["user_frame"]["line"] == 61
    assert event.fields["user_frame"]["code"] == "loss = step(batch)"
    assert event.fields["innermost"]["func"] == "forward"
    assert not event.fields["innermost"]["user"]


def test_interleaved_ranks_are_told_apart() -> None:
    text = """\
[rank1]: Traceback (most recent call last):
[rank3]: Traceback (most recent call last):
[rank1]:   File "/app/a.py", line 5, in f
[rank3]:   File "/app/b.py", line 7, in g
[rank1]:     one()
[rank3]:     two()
 45%|####5     | 9/20 [00:03<00:04,  2.61it/s]
[rank3]: KeyError: 'answer'
[rank1]: ValueError: odd number
"""
    first, second = tracebacks(text)
    assert (first.rank, first.fields["type"], first.fields["innermost"]["file"], first.fields["error_line"]) == (
        1,
        "ValueError",
        "/app/a.py",
        9,
    )
    assert (second.rank, second.fields["type"], second.fields["innermost"]["file"], second.fields["error_line"]) == (
        3,
        "KeyError",
        "/app/b.py",
        8,
    )


def test_traceback_behind_a_progress_bar() -> None:
    text = ' 23%|##3       | 451/2000 [01:12<04:07,  6.28it/s]Traceback (most recent call last):\n  File "t.py", line 3, in <module>\n    f()\nZeroDivisionError: division by zero\n'
    (event,) = tracebacks(text)
    assert event.fields["type"] == "ZeroDivisionError"


def test_chain_is_one_event_with_the_earlier_exception() -> None:
    text = """\
Traceback (most recent call last):
  File "/app/net.py", line 10, in get
    connect()
ConnectionRefusedError: [Errno 111] Connection refused

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/app/reward.py", line 20, in score
    get()
RewardError: no answer

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/app/main.py", line 30, in main
    score()
RuntimeError: giving up
"""
    (event,) = tracebacks(text)
    assert event.fields["type"] == "RuntimeError"
    assert [(c["type"], c["relation"], c["error_line"]) for c in event.fields["chain"]] == [
        ("ConnectionRefusedError", "cause", 4),
        ("RewardError", "during", 11),
    ]
    assert event.fields["error_line"] == 18


def test_ray_wrapped_error_shows_the_inner_exception() -> None:
    text = """\
Traceback (most recent call last):
  File "/app/main.py", line 8, in <module>
    ray.get(ref)
ray.exceptions.RayTaskError(KeyError): ray::Rollout.generate() (pid=4123, ip=10.0.0.12, actor_id=ab12, repr=<main.Rollout object at 0x7f>)
  File "/app/rollout.py", line 55, in generate
    return table[name]
KeyError: 'prompt'
"""
    (event,) = tracebacks(text)
    assert event.fields["type"] == "KeyError"
    assert event.fields["ray"] == {"actor": "Rollout.generate", "pid": 4123, "ip": "10.0.0.12"} or event.fields["ray"]["pid"] == 4123
    assert event.fields["user_frame"]["line"] == 55


def test_rich_box() -> None:
    text = """\
╭─────────────────── Traceback (most recent call last) ────────────────────╮
│ /app/train.py:12 in main                                                 │
│                                                                          │
│    10 │                                                                  │
│ ❱  12 │   run(cfg)                                                       │
│                                                                          │
│ /opt/env/lib/python3.11/site-packages/trl/trainer.py:77 in run           │
╰──────────────────────────────────────────────────────────────────────────╯
ValueError: bad config
"""
    (event,) = tracebacks(text)
    assert event.fields["type"] == "ValueError"
    assert [f["func"] for f in event.fields["frames"]] == ["main", "run"]
    assert event.fields["user_frame"]["file"] == "/app/train.py"


def test_loguru_and_exception_group() -> None:
    loguru = '2026-11-29 18:00:49.646 | ERROR    | __main__:<module>:3 - failed\nTraceback (most recent call last):\n\n> File "/app/x.py", line 9, in <module>\n    go()\n    └ <function go at 0x7f>\n\nIndexError: list index out of range\n'
    (event,) = tracebacks(loguru)
    assert event.fields["type"] == "IndexError"
    group = """\
  + Exception Group Traceback (most recent call last):
  |   File "/app/x.py", line 9, in <module>
  |     go()
  | ExceptionGroup: two failed (1 sub-exception)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/app/y.py", line 4, in child
    |     raise ValueError("x")
    | ValueError: x
    +------------------------------------
"""
    outer, inner = tracebacks(group)
    assert outer.fields["group"]
    assert inner.fields["type"] == "ValueError"
    assert inner.fields["innermost"]["file"] == "/app/y.py"


def test_device_errors_are_marked_late_and_messages_joined() -> None:
    text = """\
Traceback (most recent call last):
  File "/app/t.py", line 1, in <module>
    x.cpu()
RuntimeError: CUDA error: device-side assert triggered
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.

step 3 loss 1
"""
    (event,) = tracebacks(text)
    assert event.fields["reported_late"]
    assert event.end_line == 7


def test_swallowed_and_cut_off() -> None:
    text = 'Exception ignored in: <finalize object at 0x7f; dead>\nTraceback (most recent call last):\n  File "/a/weakref.py", line 585, in __call__\n    f()\nTimeoutError: too slow\n'
    (event,) = tracebacks(text)
    assert event.fields["ignored"]
    assert tracebacks('Traceback (most recent call last):\n  File "/app/t.py", line 1, in f\n')[0].fields["type"] == ""
    assert tracebacks("the words Traceback (most recent call last) in prose\nnothing\n") == []


def test_exception_without_traceback() -> None:
    rows = feed(traceback.PARSER, "ValueError: bad\nnot an Error: here\nINFO: fine Error: x\n")
    assert [e.text for e in rows.events if e.kind == "exception"] == ["ValueError: bad"]
    assert [e.kind for e in feed(traceback.PARSER, PLAIN).events] == ["traceback"]


def test_error_file_of_torchelastic() -> None:
    data = {
        "message": {
            "message": "ValueError: no",
            "extraInfo": {
                "py_callstack": 'Traceback (most recent call last):\n  File "/app/t.py", line 4, in f\n    g()\nValueError: no\n',
                "timestamp": "1718184600",
            },
        }
    }
    parser = next(p for p in torchelastic.PARSER if isinstance(p, FileParser))
    from support_lines import head, parse_file

    raw = json.dumps(data).encode()
    assert parser.recognises(head("error.json", raw)) > 0.5
    rows = parse_file(parser, "error.json", raw)
    assert rows.events[0].fields["innermost"]["line"] == 4
    with pytest.raises(ValueError, match="error file"):
        parse_file(parser, "error.json", b'{"message": 3}')
    assert isinstance(Source, type)


OOM_OLD = "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 1; 39.59 GiB total capacity; 31.05 GiB already allocated; 1.12 GiB free; 37.20 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation."
OOM_21 = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB. GPU 3 has a total capacity of 79.15 GiB of which 255.00 MiB is free. Process 7 has 40.00 GiB memory in use. Including non-PyTorch memory, this process has 38.90 GiB memory in use. Of the allocated memory 36.10 GiB is allocated by PyTorch, and 1.20 GiB is reserved by PyTorch but unallocated."
OOM_HIP = "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 3.91 GiB. GPU 0 has a total capacity of 191.98 GiB of which 1.02 GiB is free. Of the allocated memory 150.00 GiB is allocated by PyTorch, and 38.00 GiB is reserved by PyTorch but unallocated."
OOM_NPU = "RuntimeError: NPU out of memory. Tried to allocate 1.50 GiB (NPU 2; 60.97 GiB total capacity; 57.10 GiB already allocated; 57.10 GiB current active; 900.00 MiB free; 58.01 GiB reserved in total by PyTorch)"


def oom(text: str):
    (event,) = [e for e in feed(gpu_oom.PARSER, text).events if e.kind == "gpu_oom"]
    return event


def test_oom_numbers_of_all_torch_versions() -> None:
    old = oom(OOM_OLD)
    assert old.gpu == "1"
    assert old.fields["tried"] == pytest.approx(2048)
    assert old.fields["capacity"] == pytest.approx(39.59 * 1024)
    assert old.fields["free"] == pytest.approx(1.12 * 1024)
    assert old.fields["allocated"] == pytest.approx(31.05 * 1024)
    assert old.fields["unallocated"] == pytest.approx(6.15 * 1024)
    new = oom(OOM_21)
    assert new.gpu == "3"
    assert new.fields["capacity"] == pytest.approx(79.15 * 1024)
    assert new.fields["used"] == pytest.approx(38.9 * 1024)
    assert new.fields["other"] == [{"pid": 7, "used": pytest.approx(40 * 1024)}]
    assert new.fields["unallocated"] == pytest.approx(1.2 * 1024)
    assert oom(OOM_HIP).fields["flavour"] == "hip"
    npu = oom(OOM_NPU)
    assert (npu.fields["flavour"], npu.gpu) == ("npu", "2")
    assert npu.fields["capacity"] == pytest.approx(60.97 * 1024)
    engine = oom(
        "ValueError: Free memory on device (11.2/79.1 GiB) on startup is less than desired GPU memory utilization (0.9, 71.2 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes."
    )
    assert engine.fields["flavour"] == "engine"
    assert engine.fields["capacity"] == pytest.approx(79.1 * 1024)


def test_oom_in_source_code_is_no_event() -> None:
    assert not feed(gpu_oom.PARSER, '    raise RuntimeError("CUDA out of memory. Tried to allocate")\n').events


def test_memory_summary_table() -> None:
    text = """\
|===========================================================================|
|                  PyTorch CUDA memory summary, device ID 0                 |
|---------------------------------------------------------------------------|
|            CUDA OOMs: 2            |        cudaMalloc retries: 5         |
|===========================================================================|
|        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  |
|---------------------------------------------------------------------------|
| Allocated memory      |  10240 MiB |  70 GiB    |    900 GiB |    890 GiB |
| Active memory         |  10240 MiB |  70 GiB    |    900 GiB |    890 GiB |
"""
    (event,) = feed(gpu_oom.PARSER, text).events
    assert (event.fields["ooms"], event.fields["retries"]) == (2, 5)
    assert event.fields["allocated_memory"]["peak"] == pytest.approx(70 * 1024)


def test_faulthandler_dump() -> None:
    text = """\
Fatal Python error: Segmentation fault

Thread 0x00007f2 (most recent call first):
  File "/opt/env/lib/python3.11/threading.py", line 331 in wait

Current thread 0x00007f1 (most recent call first):
  File "/opt/env/lib/python3.11/site-packages/fast/ops.py", line 12 in call
  File "/app/train.py", line 40 in main

Extension modules: numpy (total: 1)
"""
    rows = feed(stack_dumps.PARSER, text)
    (event,) = rows.events
    assert (event.kind, event.fields["signal"]) == ("fatal_error", "SIGSEGV")
    assert event.fields["innermost"]["file"].endswith("ops.py")


def test_terminate_carries_what() -> None:
    text = "terminate called after throwing an instance of 'c10::DistBackendError'\n  what():  [Rank 1] NCCL watchdog thread terminated with exception: CUDA error: uncorrectable ECC error encountered\n"
    (event,) = feed(stack_dumps.PARSER, text).events
    assert event.fields["exception"] == "c10::DistBackendError"
    assert "ECC" in event.fields["what"]


def test_py_spy_dump() -> None:
    text = 'Thread 4127 (idle): "MainThread"\n    wait (threading.py:331)\n    all_reduce (torch/distributed/distributed_c10d.py:2501)\n    main (train.py:40)\n\n'
    (event,) = feed(stack_dumps.PARSER, text).events
    assert event.kind == "stack_dump"
    assert [f["func"] for f in event.fields["threads"][0]["frames"]] == ["wait", "all_reduce", "main"]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [
                "Traceback (most recent call last):",
                '  File "a.py", line 1, in f',
                "    x()",
                "ValueError: y",
                "",
                "  | ",
                "+-+--- 1 ---",
                "│",
                "╭ Traceback (most recent call last) ╮",
                "During handling of the above exception, another exception occurred:",
                "ray.exceptions.RayTaskError(A): ray::f() (pid=1)",
                "CUDA out of memory. Tried to allocate",
                "Fatal Python error: x",
                "Thread 0x1 (",
                "\x00\ufffd",
                "[rank1]: KeyError: z",
            ]
        )
        | st.text(max_size=40),
        max_size=25,
    )
)
def test_nothing_raises_on_any_arrangement(parts: list[str]) -> None:
    rows = feed((traceback.PARSER, gpu_oom.PARSER, stack_dumps.PARSER), "\n".join(parts))
    for event in rows.events:
        assert (event.end_line or event.line) >= event.line
        assert len(event.fields.get("frames") or []) <= 60
