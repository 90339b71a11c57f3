"""Post-mortems built by hand for the tests of the report: a lost GPU on 8 or 1,024 ranks, a healthy run, a hostile one."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

from forensics.report.model import Cited, Curve, FileRow, Mark, Page, PostMortem, RankRow, Track

START = datetime(2026, 3, 14, 2, 10, 0, tzinfo=UTC).timestamp()
STEP = 6.2
STEPS = 2400
FAIL = START + STEPS * STEP + 3.0
HOSTILE = "<script>window.pwned=1</script><img src=x onerror=window.pwned=2>{{7*7}}\"'`</style><!--\x1b[31m\x00\u202e[TRAIN]"


def iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def curve(name: str, base: float, drift: float, noise: float) -> Curve:
    steps = range(STEPS)
    value: list[float | None] = [base + drift * s / STEPS + noise * math.sin(s * 12.9898) * math.cos(s * 0.37) for s in steps]
    return Curve(name, value, [START + s * STEP for s in steps], [float(s) for s in steps], file="logs/train.rank0.log")


def lost_gpu(world: int = 8, extra: str = "") -> PostMortem:
    """GPU fell off the bus on one host; the peers wait for its rank and the watchdog ends the job 30 minutes later."""
    per_host = 8
    bad = 5 if world <= per_host else 517
    hosts = [f"node{n:03d}{extra}" for n in range(1, world // per_host + 1)]
    host, gpu = hosts[bad // per_host], bad % per_host
    end = FAIL + 1803.5
    kernel, train = "hosts/" + host + "/dmesg.log", "logs/train.rank0.log"
    xid = f"[Sat Mar 14 06:18:03 2026] NVRM: Xid (PCI:0000:91:00): 79, pid=41872, name=python3, GPU has fallen off the bus.{extra}"
    hang = f"[rank0]:[E314 06:48:06.431] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=88213, OpType=ALLREDUCE, NumelIn=4194304, Timeout(ms)=1800000) ran for 1800214 milliseconds before timing out.{extra}"
    healthy = f"[TRAIN] step {STEPS - 1} loss 0.0132 grad_norm 0.412 reward 0.713 kl 0.0211{extra}"
    last = f"torch.distributed.elastic.multiprocessing.errors.ChildFailedError: train_grpo.py FAILED{extra}"
    chain = [
        {"cause": "infra/gpu-fell-off-bus", "role": "root", "time": iso(FAIL), "file": kernel, "line": 2214, "rank": bad, "text": xid, "title": {"en": "GPU fell off the bus", "zh": "GPU 从总线上掉线"}},
        {"cause": "infra/pcie-error", "role": "consequence", "time": iso(FAIL + 0.4), "file": kernel, "line": 2217, "text": f"[Sat Mar 14 06:18:03 2026] pcieport 0000:8e:01.0: AER: Uncorrectable (Fatal) error message received{extra}", "title": {"en": "PCIe error", "zh": "PCIe 错误"}},
        {"cause": "comms/collective-timeout", "role": "consequence", "time": iso(FAIL + 1800.4), "file": train, "line": 48211, "rank": 0, "text": hang, "title": {"en": "Collective timed out", "zh": "集合通信超时"}},
        {"cause": "comms/peer-lost", "role": "symptom", "time": iso(FAIL + 1801.2), "file": train, "line": 48260, "rank": 0, "text": f"[rank0]: torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error{extra}", "title": {"en": "Peer lost", "zh": "对端丢失"}},
    ]  # fmt: skip
    facts: dict[str, Any] = {
        "version": "0.1.0",
        "run": {"name": f"grpo-7b-0314{extra}", "started": iso(START), "ended": iso(end), "duration_s": round(end - START), "frameworks": ["trl 0.24", "deepspeed"], "world_size": world, "hosts": hosts, "last_step": STEPS - 1, "exit": {"code": 1}},
        "verdict": {
            "layer": "infra", "cause": "infra/gpu-fell-off-bus", "title": {"en": "GPU fell off the bus", "zh": "GPU 从总线上掉线"}, "confidence": 0.93,
            "summary": {"en": f"The kernel on {host} lost GPU {gpu} three seconds after step {STEPS - 1}. Its rank went silent; the other {world - 1} ranks waited in an all-reduce until the 30-minute watchdog ended the job.", "zh": f"第 {STEPS - 1} 步之后三秒，{host} 的内核丢失了 GPU {gpu}。对应的 rank 不再输出；其余 {world - 1} 个 rank 卡在 all-reduce，直到 30 分钟的看门狗结束任务。"},
            "first_failure": {"file": kernel, "line": 2214, "time": iso(FAIL), "text": xid},
            "culprit": {"rank": bad, "host": host, "gpu": gpu, "pid": 41872, "ranks": [bad]},
            "chain": chain,
            "alternatives": [
                {"layer": "comms", "cause": "comms/collective-timeout", "confidence": 0.04, "why_not": {"en": "The time-out comes 30 minutes after the GPU was lost, and the silent rank is the one on that GPU.", "zh": "超时发生在掉卡 30 分钟之后，且沉默的正是该 GPU 上的 rank。"}, "title": {"en": "Collective timed out", "zh": "集合通信超时"}},
                {"layer": "infra", "cause": "infra/gpu-power", "confidence": 0.02, "why_not": {"en": "Power stood at 512 W of 700 W and no brake was reported.", "zh": "功耗为 512 W（上限 700 W），未见功率刹车。"}},
            ],
        },
        "findings": [
            {"rule": "xid", "layer": "infra", "cause": "infra/gpu-fell-off-bus", "severity": "fatal", "title": {"en": "Xid 79 on 0000:91:00", "zh": "0000:91:00 上出现 Xid 79"}, "time": iso(FAIL), "evidence": [{"file": kernel, "line": 2214, "text": xid}], "covers": ["L0.1", "S1"], "count": 3},
            {"rule": "watchdog", "layer": "comms", "cause": "comms/collective-timeout", "severity": "error", "title": {"en": "NCCL watchdog fired on 7 ranks", "zh": "7 个 rank 的 NCCL 看门狗触发"}, "evidence": [{"file": train, "line": 48211, "text": hang}], "covers": ["L4.1", "S6", "Q9"]},
            {"rule": "oom-killer", "layer": "infra", "cause": "infra/host-oom-kill", "outcome": "excluded", "severity": "info", "title": {"en": "No OOM kill on any host", "zh": "所有主机均无 OOM kill"}, "evidence": [{"file": kernel, "line": 1, "text": "[Fri Mar 13 20:00:00 2026] Linux version 5.15.0-1061"}], "covers": ["L0.6"]},
            {"rule": "preference-pairs", "layer": "data", "cause": "data/preference-inverted", "outcome": "undecided", "severity": "info", "title": {"en": "Preference pairs", "zh": "偏好对"}, "needs": {"en": "the scores of chosen and rejected samples", "zh": "chosen 与 rejected 样本的得分"}, "evidence": [], "covers": ["L1.2"]},
            {"rule": "loss-jump", "layer": "training", "cause": "training/loss-spike", "outcome": "excluded", "severity": "info", "title": {"en": "The loss did not jump", "zh": "损失没有跳变"}, "evidence": [{"file": train, "line": 47801, "text": healthy}], "covers": ["H1"]},
        ],
        "checklist": [
            {"id": "S1", "verdict": "guilty", "reading": {"en": "GPU 5 stops answering at 06:18:03; memory of the others 71 to 73 of 80 GB.", "zh": "GPU 5 在 06:18:03 停止应答；其余显存 71–73 GB（共 80 GB）。"}, "evidence": [{"file": kernel, "line": 2214, "text": xid}]},
            {"id": "S2", "verdict": "ok", "reading": {"en": "Batch 16, longest sample 3,904 to 4,096 tokens.", "zh": "批大小 16，最长样本 3,904–4,096 个 token。"}, "evidence": []},
            {"id": "S6", "verdict": "suspect", "reading": {"en": "The all-reduce with sequence number 88213 timed out on seven ranks.", "zh": "七个 rank 上序号 88213 的 all-reduce 超时。"}, "evidence": [{"file": train, "line": 48211, "text": hang}]},
            {"id": "S10", "verdict": "ok", "reading": {"en": "Largest difference 3.1e-9.", "zh": "最大偏差 3.1e-9。"}, "evidence": []},
            {"id": "S12", "verdict": "guilty", "reading": {"en": "GPU lost 1,800 s before the first time-out.", "zh": "掉卡比首个超时早 1,800 秒。"}, "evidence": []},
        ],
        "clocks": [{"file": train, "basis": "own stamps, UTC", "offset_s": 0.0, "uncertainty_s": 0.5}, {"file": kernel, "basis": "dmesg -T, checked against two events both logs show", "offset_s": 1.8, "uncertainty_s": 0.9}, {"file": "hosts/x/raw_dmesg.log", "basis": "boot time", "offset_s": None, "uncertainty_s": 2, "zero": iso(START - 864000)}],
        "environment": {"gpu": {"name": "NVIDIA H100 80GB HBM3", "count": 8, "driver": "550.54.15"}, "version": {"torch": "2.5.1+cu124", "cuda": "12.4", "nccl": "2.21.5", "transformers": "4.46.3", "trl": "0.24.0", "deepspeed": "0.15.4"}, "limit": {"open_files": 65536}, "swappiness": 60},
        "gaps": [{"missing": {"en": "The BMC event log", "zh": "BMC 事件日志"}, "why_it_matters": {"en": "It would tell a power loss of the slot from a link failure.", "zh": "可区分插槽掉电与链路故障。"}, "how_to_capture": "ipmitool sel elist"}],
        "remedies": [
            {"do": {"en": f"Drain {host} and reset the GPU; replace it if it drops again.", "zh": f"排空 {host} 并复位该 GPU；若再次掉线则更换。"}, "verify": "nvidia-smi -q -i 5 | grep -i 'bus id'", "why": {"en": "A GPU that left the bus does not come back without a reset.", "zh": "掉线的 GPU 不复位不会恢复。"}},
            {"do": {"en": "Check slot, riser and power cables.", "zh": "检查插槽、转接卡与供电线。"}, "verify": "sudo lspci -vvv -s 91:00.0 | grep -E 'LnkSta|UESta'", "why": {"en": "Fatal PCIe errors came from the port above.", "zh": "上游端口报了致命 PCIe 错误。"}},
        ],
        "advice": {"restart": "without-host", "exclude_hosts": [host], "why": {"en": "Nothing in the run itself failed.", "zh": "训练本身没有问题。"}},
        "redactions": {"email": 2, "user": 5},
    }  # fmt: skip
    facts["verdict"]["culprit"]["gpu"] = gpu
    page = Page(
        curves=[curve("loss", 0.02, -0.007, 0.004), curve("grad_norm", 0.45, 0, 0.1), curve("reward", 0.3, 0.41, 0.05), curve("kl", 0.005, 0.016, 0.002), curve("entropy", 1.4, -0.5, 0.05), curve("length", 900, 350, 60), curve("learning_rate", 1e-6, -9e-7, 0), curve("step_time", STEP, 0.1, 0.3)],
        tracks=tracks(hosts, bad, end),
        marks=[
            Mark(START, "train", f"training starts{extra}", train, 12), Mark(FAIL - 1200, "gpu", f"temperature 83 C{extra}", "hosts/gpu.csv", 900, "warning"),
            Mark(FAIL, "kernel", xid, kernel, 2214, "fatal"), Mark(FAIL + 0.4, "kernel", "AER: Uncorrectable (Fatal) error", kernel, 2217, "error"),
            Mark(FAIL + 1800.4, "nccl", hang, train, 48211, "error"), Mark(end - 1, "scheduler", "JOB 88121 FAILED exit code 1", "slurm.out", 88, "error"),
        ],
        ranks=[
            RankRow(r, hosts[r // per_host], str(r % per_host), STEPS - 1, end - 2 if r != bad else FAIL - 1.1,
                    "ALLREDUCE #88213" if r != bad else "ALLREDUCE #88212", None if r == bad else Cited(f"logs/train.rank{r}.log", 48211, hang.replace("Rank 0", f"Rank {r}"), FAIL + 1800.4), "SIGABRT" if r != bad else None, r == bad)
            for r in range(world)
        ],
        files=[FileRow(train, 8_412_330, 48_322, ("train", "nccl"), hosts[0], 0), FileRow(kernel, 212_004, 2231, ("kernel",), host), FileRow(f"hosts/gpu{extra}.csv", 3_400_120, 20_114, ("gpu",), host, None, [{"en": "3 torn lines skipped", "zh": "跳过 3 行残缺内容"}]), FileRow("core.41872", 91_000_000, 0, (), None, None, ["binary"], False)],
        context={
            f"{kernel}:2214": [(2211 + i, s + extra) for i, s in enumerate(["[Sat Mar 14 06:17:40 2026] perf: interrupt took too long (2503 > 2500), lowering rate", "[Sat Mar 14 06:17:58 2026] nvidia-uvm: Loaded the UVM driver", "[HARDWARE] watchdog: GPU 5 slow to answer", xid, "[Sat Mar 14 06:18:03 2026] NVRM: GPU 0000:91:00.0: GPU has fallen off the bus.", "[Sat Mar 14 06:18:03 2026] NVRM: A GPU crash dump has been created."])],
            f"{train}:48211": [(48209, healthy), (48210, "[MODEL] reference policy synced"), (48211, hang), (48212, "[TRAIN] aborting")],
        },
        strongest=[Cited(kernel, 2214, xid, FAIL), Cited(kernel, 2217, str(chain[1]["text"]), FAIL + 0.4), Cited(train, 48211, hang, FAIL + 1800.4)],
        healthy=Cited(train, 47801, healthy, FAIL - 3.0),
        healthy_step=STEPS - 1,
        first_failure=FAIL,
        last=Cited(train, 48322, last, end),
        ended=end,
        last_colour=Cited(kernel, 2213, f"[HARDWARE] watchdog: GPU 5 slow to answer{extra}", FAIL - 2),
    )  # fmt: skip
    page.curves[0].value[1700] = 3.75  # a spike that thinning must keep
    return PostMortem(facts, page)


def tracks(hosts: list[str], bad: int, end: float) -> list[Track]:
    out = []
    count = 400
    for index in range(len(hosts) * 8):
        lost = index == bad
        stop = FAIL if lost else end
        time: list[float | None] = [START + (stop - START) * i / (count - 1) for i in range(count)]
        out.append(
            Track(
                hosts[index // 8],
                str(index % 8),
                time,
                [71_000 + 40 * index % 900 + 300 * math.sin(i) for i in range(count)],
                [96 + 3 * math.sin(i * 0.7 + index) if t is not None and t < FAIL else 100 for i, t in enumerate(time)],
                [61 + index % 8 + 4 * math.sin(i * 0.05) + (9 if lost else 0) for i in range(count)],
                [510 + 60 * math.sin(i * 0.9 + index) if t is not None and t < FAIL else 118 for i, t in enumerate(time)],
                81_559,
                lost,
            )
        )
    return out


def healthy() -> PostMortem:
    """A run that reached its end: no chain, no alternatives, no plot of GPUs."""
    facts = {
        "version": "0.1.0",
        "run": {"name": "sft-ok", "started": iso(START), "ended": iso(START + 900), "duration_s": 900, "world_size": 1, "hosts": ["n1"], "last_step": 100},
        "verdict": {"layer": "none", "cause": "none/healthy", "title": {"en": "the run reached its end", "zh": "运行正常结束"}, "summary": None, "confidence": 0.97, "chain": [], "alternatives": []},
        "advice": {"restart": "as-is"},
    }  # fmt: skip
    return PostMortem(facts, Page())


def hostile() -> PostMortem:
    """The lost GPU with markup, script and control characters in every text that comes from the run."""
    model = lost_gpu(8, HOSTILE)
    model.page.curves.append(Curve(HOSTILE, [1.0, float("nan"), math.inf, 2.0], [START, START + 1, START + 2, START + 3], [0, 1, 2, 3]))
    model.page.files.append(FileRow(HOSTILE, 1, 1, (HOSTILE,), HOSTILE, 3, [HOSTILE]))
    model.facts["environment"][HOSTILE] = HOSTILE
    model.facts["remedies"].append({"do": HOSTILE, "verify": HOSTILE, "why": HOSTILE})
    model.facts["gaps"].append({"missing": HOSTILE, "why_it_matters": HOSTILE, "how_to_capture": HOSTILE})
    model.facts["redactions"][HOSTILE] = 1
    model.facts["clocks"].append({"file": HOSTILE, "basis": HOSTILE, "zero": HOSTILE, "offset_s": math.nan})
    model.page.marks.append(Mark(FAIL, HOSTILE, HOSTILE, HOSTILE, 3, HOSTILE))
    return model
