"""Rules on the environment: a circumstance until an error speaks; every rule found, excluded and undecided."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import test_nvidia_smi_views as views
from test_environment_host import IBSTAT, LSPCI

import forensics
import rules
from forensics.knowledge import load
from forensics.run import RankInfo, Run
from parsers.base import Event
from rules import environment, environment_gpu, environment_host, versions
from rules.base import Finding

LOG = "".join(
    f"2026-03-14 06:{m:02d}:00 {{'loss': {2 - m / 50:.3f}, 'grad_norm': 1.0, 'learning_rate': 1e-06, 'epoch': 0.{m:02d}}}\n"
    for m in range(20)
)
FREEZE = "accelerate=={accelerate}\nnumpy=={numpy}\npeft==0.11.1\ntorch=={torch}\ntransformers=={transformers}\ntrl=={trl}\n"
GOOD = {"accelerate": "0.30.1", "numpy": "1.26.4", "torch": "2.3.1+cu121", "transformers": "4.41.2", "trl": "0.9.4"}


def trace(error: str) -> str:
    return f'Traceback (most recent call last):\n  File "/srv/job/train.py", line 12, in <module>\n    main()\n  File "/srv/job/train.py", line 9, in main\n    build()\n{error}\n'


def judged(folder: Path, **files: str) -> dict[str, Finding]:
    """Findings of the environment rules, by rule, of a run with these files (`name__txt` is name.txt)."""
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)
    report = forensics.analyze(folder)
    return {f.rule: f for f in report.run.findings if f.rule.startswith("env.")}


def run_with(*events: Event, **more: Any) -> Run:
    return Run("run", events=list(events), **more)


def event(kind: str, line: int = 1, source: str = "x.txt", **fields: Any) -> Event:
    more = {key: fields.pop(key) for key in ("gpu", "host", "pid", "time", "severity") if key in fields}
    return Event(kind, source, line, f"{kind} {fields}", fields=fields, **more)


# ---------------------------------------------------------------------------------------------------------- versions


@pytest.mark.parametrize(
    ("version", "condition", "answer"),
    [
        ("4.40.0", ">=4.40,<4.41", True),
        ("4.40.2", ">=4.40,<4.41", True),
        ("4.41.0.dev0", ">=4.40,<4.41", False),
        ("2.10.0", ">=2.9", True),
        ("2.9.0", ">=2.10", False),
        ("0.6.3.post1", ">0.6.3", True),
        ("2.4.0+cu121", "==2.4", True),
        ("535.104.05", "<550.54.14", True),
        ("v1.2", "!=1.3", True),
        ("unknown", ">=1", False),
        ("1.0", "about 1", False),
    ],
)
def test_conditions(version: str, condition: str, answer: bool) -> None:
    assert versions.holds(version, condition) is answer


def test_catalogues_are_readable() -> None:
    pairs = environment._pairs()
    assert len(pairs) >= 10
    for entry, pattern in pairs:
        assert pattern.pattern
        assert entry["source"]
        assert entry["advice"]["en"]
        assert entry["advice"]["zh"]
        for side in ("a", "b"):
            assert versions.key(entry[side]["is"].lstrip("<>=!").split(",")[0])
    table = environment._toml("cuda_drivers.toml")["release"]
    ordered = sorted(table, key=lambda cuda: versions.key(cuda))
    drivers = [versions.key(table[cuda]) for cuda in ordered]
    assert drivers == sorted(drivers)


def test_every_rule_has_words_in_both_languages() -> None:
    import re

    words = load().words
    for module in (environment, environment_gpu, environment_host):
        assert module.__file__
        named = set(re.findall(r'"(env\.[a-z.-]+)"', Path(module.__file__).read_text("utf-8")))
        named -= {rule.id for rule in module.RULES if rule.id not in words} | {"env."}
        for name in named | {f"env.gpu-{what.replace('_', '-')}" for what in environment_gpu.CAUSES}:
            assert words[name]["title"]["en"], name
            assert words[name]["title"]["zh"], name


def test_guide_items_are_covered() -> None:
    covered = {item for rule in rules.load() if rule.id.startswith("env.") for item in rule.covers}
    assert {"L0.1", "L0.2", "L0.3", "L0.4", "L0.5", "L0.6", "L4.2", "L4.3", "S11", "Q2"} <= covered


# ------------------------------------------------------------------------------------------- drivers, CUDA, packages


def test_a_quiet_environment_is_cleared(tmp_path: Path) -> None:
    found = judged(
        tmp_path,
        train__log=LOG,
        requirements__txt=FREEZE.format(**GOOD),
        smi__txt=views.TABLE.replace("ERR!", "60C "),
        limits__txt="open files                      (-n) 1048576\n",
    )
    for name in ("env.gpu-driver", "env.driver-cuda", "env.known-pairs", "env.open-files"):
        assert found[name].outcome == "excluded", name
        assert found[name].evidence, name


def test_nothing_recorded_is_undecided(tmp_path: Path) -> None:
    found = judged(tmp_path, train__log=LOG)
    assert {name for name, f in found.items() if f.outcome == "undecided"} >= {
        "env.gpu-driver",
        "env.driver-cuda",
        "env.known-pairs",
        "env.open-files",
        "env.swappiness",
        "env.topology",
        "env.compute-apps",
    }
    assert all(f.needs for f in found.values() if f.outcome == "undecided")
    assert not [f for f in found.values() if f.outcome == "found"]


@pytest.mark.parametrize(
    ("driver", "torch", "rule"),
    [
        ("470.57.02", "2.3.1+cu121", "env.driver-too-old"),  # 12.x needs 525
        ("525.85.12", "2.3.1+cu121", "env.driver-behind"),  # 12.1 came with 530
        ("535.104.05", "2.3.1+cu121", "env.driver-cuda"),
        ("570.86.15", "2.9.0+cu130", "env.driver-too-old"),  # 13.x needs 580
    ],
)
def test_driver_against_cuda(tmp_path: Path, driver: str, torch: str, rule: str) -> None:
    table = views.TABLE.replace("535.104.05", driver).replace("ERR!", "60C ")
    files = {"requirements__txt": FREEZE.format(**{**GOOD, "torch": torch}), "smi__txt": table}
    found = judged(tmp_path, train__log=LOG, **files)
    assert found[rule].role == "context"
    error = trace("RuntimeError: The NVIDIA driver on your system is too old (found version 11040).")
    found = judged(tmp_path, train__log=error, **files)
    if rule == "env.driver-cuda":
        assert found[rule].outcome == "excluded"
    else:
        accused = found[f"{rule}.error"]
        assert accused.role == "root"
        assert accused.evidence[0].file == "train.log"
        assert accused.facts["driver"] == driver


def test_drivers_that_differ_between_hosts_are_shown(tmp_path: Path) -> None:
    table = views.TABLE.replace("ERR!", "60C ")
    found = judged(tmp_path, train__log=LOG, node1_smi__txt=table, node2_smi__txt=table.replace("535.104.05", "550.54.15"))
    assert found["env.gpu-mixed"].role == "context"
    assert len(found["env.gpu-mixed"].evidence) == 3


def test_names_cut_by_old_tables_are_one_model() -> None:
    assert environment.models(["Tesla V100-SXM2...", "Tesla V100-SXM2-16GB", "NVIDIA Tesla V100-SXM2-16GB"]) == ["Tesla V100-SXM2-16GB"]
    assert len(environment.models(["NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3"])) == 2


@pytest.mark.parametrize(
    ("change", "pair", "error"),
    [
        ({"trl": "0.8.2", "transformers": "4.40.1"}, "trl-0.8.2-transformers-4.40", "ImportError: cannot import name 'x' from 'trl.trainer'"),
        ({"trl": "0.11.4", "transformers": "4.46.0"}, "trl-0.11-get-batch-samples", "TypeError: DPOTrainer.get_batch_samples() takes 3 positional arguments but 4 were given"),
        ({"numpy": "2.0.1", "torch": "2.2.2+cu121"}, "numpy-2-torch-before-2.3", "RuntimeError: Numpy is not available"),
        ({"accelerate": "1.1.0", "transformers": "4.39.3"}, "accelerate-1-dispatch-batches", "TypeError: Accelerator.__init__() got an unexpected keyword argument 'dispatch_batches'"),
    ],
)  # fmt: skip
def test_known_pairs(tmp_path: Path, change: dict[str, str], pair: str, error: str) -> None:
    freeze = FREEZE.format(**{**GOOD, **change})
    found = judged(tmp_path, train__log=LOG, requirements__txt=freeze)
    assert found["env.known-pair"].facts["pair"] == pair
    assert found["env.known-pair"].role == "context"
    report = judged(tmp_path, train__log=trace(error), requirements__txt=freeze)
    assert report["env.known-pair.error"].cause == "infra/library-incompatibility"
    assert report["env.known-pair.error"].evidence[0].file == "train.log"
    # The same error with versions that go together accuses no pair.
    assert "env.known-pair.error" not in judged(tmp_path, train__log=trace(error), requirements__txt=FREEZE.format(**GOOD))


def test_open_files(tmp_path: Path) -> None:
    low = "open files                      (-n) 1024\n"
    assert judged(tmp_path, train__log=LOG, limits__txt=low)["env.open-files.low"].role == "context"
    hit = trace("OSError: [Errno 24] Too many open files: '/data/shard-000001.arrow'")
    assert judged(tmp_path, train__log=hit, limits__txt=low)["env.open-files.low"].role == "precursor"


def test_swappiness_is_shown_and_weighs_nothing(tmp_path: Path) -> None:
    found = judged(tmp_path, train__log=LOG, sys__txt="vm.swappiness = 60\n")["env.swappiness.shown"]
    assert (found.weight, found.cause, found.facts["value"]) == (0.0, None, 60)


# --------------------------------------------------------------------------------------------------------------- host


def test_container_limits_and_kills(tmp_path: Path) -> None:
    limits = "MemTotal:       2113460896 kB\nMemFree: 1 kB\n/sys/fs/cgroup/memory.max: 68719476736\n/sys/fs/cgroup/cpu.max: 1600000 100000\nlow 0\nhigh 0\nmax 9\noom 2\noom_kill 2\n"
    found = judged(tmp_path, train__log=LOG, cgroup__txt=limits)
    assert found["env.container-limits.shown"].facts == {"memory": "64", "host": "2015.55", "cpus": "16", "host_cpus": "?"}
    assert found["env.cgroup-kills"].role == "precursor"
    killed = run_with(event("container_state", oom_killed=True, exit_code=137, name="/t"))
    (accused,) = [f for f in environment_host.containers(killed) if f.rule == "env.container-killed"]
    assert (accused.cause, accused.role) == ("infra/cgroup-oom-kill", "root")


@pytest.mark.parametrize(("size", "rule"), [("64M", "env.shm-small"), ("47G", "env.shm")])
def test_shared_memory(tmp_path: Path, size: str, rule: str) -> None:
    found = judged(
        tmp_path,
        train__log=LOG,
        df__txt=f"Filesystem      Size  Used Avail Use% Mounted on\nshm              {size}   1M    40M   2% /dev/shm\n",
    )
    assert rule in found
    assert found["env.disks"].outcome == "excluded"


def test_quota_with_and_without_a_failed_write(tmp_path: Path) -> None:
    quota = "Disk quotas for user a (uid 1): \n     Filesystem  blocks   quota   limit   grace   files   quota   limit   grace\n      /dev/sda1  20971520* 20000000 20971520   6days   12345       0       0        \n"
    found = judged(tmp_path, train__log=LOG, quota__txt=quota)
    assert found["env.quota-reached"].role == "precursor"
    hit = trace("OSError: [Errno 122] Disk quota exceeded: '/home/out/model.safetensors'")
    found = judged(tmp_path, train__log=hit, quota__txt=quota)
    assert (found["env.quota-reached.write"].role, found["env.quota-reached.write"].evidence[0].file) == ("root", "train.log")


def test_processes() -> None:
    held = event("compute_app", 9, gpu="0", pid=None, memory_mib=70000.0)
    held.fields["pid"] = 77
    orphan = event("ps_process", 2, ppid=1, command="python train.py", state="Sl")
    orphan.fields["pid"] = 77
    found = {f.rule: f for f in environment_host.processes(run_with(held, orphan))}
    assert found["env.orphans"].role == "precursor"
    ours = run_with(held, orphan, ranks={0: RankInfo(0, pids={77})})
    assert "env.orphans" not in {f.rule for f in environment_host.processes(ours)}
    stuck = [event("ps_process", n, command="python train.py", state="D", wchan="rpc_wait") for n in (1, 2)]
    for one in stuck:
        one.fields["pid"] = 5
    found = {f.rule: f for f in environment_host.processes(run_with(*stuck))}
    assert found["env.stuck-processes"].role == "precursor"  # in two listings
    found = {f.rule: f for f in environment_host.processes(run_with(stuck[0]))}
    assert found["env.stuck-processes"].role == "context"


def test_leaked_workers_need_more_than_the_processors() -> None:
    def listing(workers: int) -> list[Event]:
        out = [event("ps_process", 1, ppid=1, command="python train.py", state="Sl")]
        out[0].fields["pid"] = 100
        for n in range(workers):
            out.append(event("ps_process", 2 + n, ppid=100, command="python train.py", state="Sl"))
            out[-1].fields["pid"] = 200 + n
        return out

    cpus = [("host.cpus", "x.txt", 16, 1)]
    many = {f.rule: f for f in environment_host.processes(run_with(*listing(40), facts=cpus))}
    assert (many["env.many-workers"].facts["count"], many["env.many-workers"].role) == (40, "precursor")
    assert "env.many-workers" not in {f.rule for f in environment_host.processes(run_with(*listing(8), facts=cpus))}
    later = run_with(*listing(40), facts=cpus, last_step=500.0)
    assert {f.rule: f.role for f in environment_host.processes(later)}["env.many-workers"] == "context"


def test_ports(tmp_path: Path) -> None:
    # One of two is down: half of the ports of many hosts are not cabled.
    assert judged(tmp_path, train__log=LOG, ib__txt=IBSTAT)["env.ib-ports"].outcome == "excluded"
    up = IBSTAT.split("CA 'mlx5_1'")[0]
    many = "".join(up.replace("mlx5_0", f"mlx5_{n}") for n in range(2, 9)) + IBSTAT
    odd = judged(tmp_path, train__log=LOG, ib__txt=many)["env.ib-port-odd"]
    assert (odd.facts["device"], odd.role) == ("mlx5_1", "precursor")


# Slurm 23.02
NODE = """NodeName=gpu07 Arch=x86_64 CoresPerSocket=48
   CPUAlloc=0 CPUEfctv=192 CPUTot=192 CPULoad=N/A
   Gres=gpu:h100:8
   RealMemory=2063837 AllocMem=0 FreeMem=N/A Sockets=2 Boards=1
   State={state} ThreadsPerCore=2 TmpDisk=0 Weight=1
   Reason=Not responding [slurm@2026-03-14T06:20:01]

"""


@pytest.mark.parametrize(("state", "rule"), [("DOWN*", "env.node-unfit"), ("IDLE+DRAIN", "env.node-unfit"), ("MIXED", "env.nodes")])
def test_nodes_as_slurm_has_them(tmp_path: Path, state: str, rule: str) -> None:
    found = judged(tmp_path, train__log=LOG, nodes__txt=NODE.format(state=state))[rule]
    assert found.evidence[0].line == 5
    if rule == "env.node-unfit":
        assert (found.role, found.host) == ("precursor", "gpu07")
        assert "Not responding" in found.facts["reason"]


@pytest.mark.parametrize(("rss", "rule"), [(62_000_000, "env.process-memory.near-limit"), (9_000_000, "env.process-memory")])
def test_memory_of_a_process_against_the_limit(tmp_path: Path, rss: int, rule: str) -> None:
    status = f"Name:\tpython\nState:\tS (sleeping)\nPid:\t41872\nPPid:\t1\nVmPeak:\t 900000000 kB\nVmHWM:\t {rss} kB\nVmRSS:\t {rss} kB\nThreads:\t12\n"
    found = judged(tmp_path, train__log=LOG, status__txt=status, limits__txt="/sys/fs/cgroup/memory.max: 68719476736\n")
    assert rule in found
    assert found[rule].facts["pid"] == 41872


def test_bucket_size() -> None:
    (shown,) = environment_host.bucket(run_with(facts=[("setting.bucket_cap_mb", "train.log", 100, 3)]))
    assert (shown.outcome, shown.facts["value"], shown.weight) == ("found", 100, 0.0)


# ---------------------------------------------------------------------------------------------------------------- GPU


def app(pid: int, memory: float, gpu: str = "0", line: int = 5) -> Event:
    one = event("compute_app", line, gpu=gpu, memory_mib=memory, name="python")
    one.fields["pid"] = pid
    return one


def test_foreign_process_beside_ours() -> None:
    ranks = {0: RankInfo(0, pids={11})}
    shared = run_with(app(11, 20000.0), app(99, 50000.0), ranks=ranks)
    (found,) = environment_gpu.compute_apps(shared)
    assert (found.rule, found.role, found.facts["pid"]) == ("env.foreign-process", "context", 99)
    oom = run_with(app(11, 20000.0), app(99, 50000.0), event("gpu_oom"), ranks=ranks)
    (found,) = environment_gpu.compute_apps(oom)
    assert (found.role, found.cause) == ("root", "infra/gpu-memory-held-by-other")
    # A display server, or a list where none of our processes stands, accuses nobody.
    assert [f.outcome for f in environment_gpu.compute_apps(run_with(app(11, 20000.0), app(99, 4.0), ranks=ranks))] == ["excluded"]
    assert [f.outcome for f in environment_gpu.compute_apps(run_with(app(99, 50000.0), ranks=ranks))] == ["excluded"]


def test_memory_that_no_process_accounts_for(tmp_path: Path) -> None:
    table = views.TABLE.replace("ERR!", "60C ")
    found = judged(tmp_path, train__log=LOG, smi__txt=table)
    gap = found["env.unaccounted-memory"]
    assert (gap.gpu, gap.facts["used"], gap.facts["held"], gap.role) == ("1", "70015", "12004", "context")
    assert "env.compute-apps" in judged(tmp_path, train__log=LOG, smi__txt=table.replace("12000MiB", "69000MiB"))


def test_repair_flags_support_and_do_not_accuse_alone(tmp_path: Path) -> None:
    found = judged(tmp_path, train__log=LOG, q__txt=views.TREE)
    for name, cause in (
        ("remap-pending", "infra/gpu-ecc-uncorrectable"),
        ("fabric", "infra/fabric-manager"),
        ("link-width", "infra/pcie-error"),
    ):
        finding = found[f"env.gpu-{name}"]
        assert (finding.cause, finding.role, finding.gpu) == (cause, "precursor", "0000:4c:00.0")


def test_links_of_every_card_alike_are_the_boards(tmp_path: Path) -> None:
    alike = views.TREE.replace("Current                       : 16x", "Current                       : 8x")
    alike = alike.replace("            Current                       : 16x", "            Current                       : 8x")
    found = judged(tmp_path, train__log=LOG, q__txt=alike)
    assert "env.gpu-link-width" not in found


@pytest.mark.parametrize(("cell", "rule", "outcome"), [("NV18", "env.topology", "excluded"), ("NV12", "env.topology.uneven", "found")])
def test_topology(tmp_path: Path, cell: str, rule: str, outcome: str) -> None:
    found = judged(tmp_path, train__log=LOG, topo__txt=views.TOPO.format(cell))
    assert found[rule].outcome == outcome


def test_transports() -> None:
    off = [("env.NCCL_IB_DISABLE", "env.txt", "1", 4)]
    assert {f.rule: f.outcome for f in environment_gpu.transports(run_with(facts=off, hosts=["a", "b"]))} == {"env.ib-off": "found"}
    assert {f.rule: f.outcome for f in environment_gpu.transports(run_with(facts=off, hosts=["a"]))} == {"env.transports": "excluded"}


def test_acs_matters_without_nvlink(tmp_path: Path) -> None:
    pcie = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tPHB\t0-31\t0\nGPU1\tPHB\t X \t0-31\t0\n"
    assert judged(tmp_path, train__log=LOG, lspci__txt=LSPCI, topo__txt=pcie)["env.acs.redirects"].role == "precursor"
    assert judged(tmp_path, train__log=LOG, lspci__txt=LSPCI, topo__txt=views.TOPO.format("NV18"))["env.acs.redirects"].role == "context"
    stalled = "2026-03-14 06:00:00 INFO building the model\n2026-03-14 06:00:09 INFO all_reduce of a test tensor\n"
    assert judged(tmp_path, train__log=stalled, lspci__txt=LSPCI, topo__txt=pcie)["env.acs.redirects"].role == "root"
    # A bug report lists every bridge of the board: nobody looked for this cause.
    report = "".join(LSPCI.replace("00:01.1", f"{n:02x}:01.1") for n in range(20))
    assert judged(tmp_path, train__log=stalled, lspci__txt=report, topo__txt=pcie)["env.acs.redirects"].role == "precursor"


def test_snapshots_alone_leave_a_healthy_run_healthy(tmp_path: Path) -> None:
    """Odd snapshots beside a log without any failure must not convict anything with confidence."""
    for name, text in {
        "train.log": LOG,
        "limits.txt": "open files                      (-n) 1024\nvm.swappiness = 60\n",
        "topo.txt": views.TOPO.format("NV12"),
        "ib.txt": IBSTAT,
    }.items():
        (tmp_path / name).write_text(text)
    verdict = forensics.analyze(tmp_path).verdict
    assert verdict.layer in ("none", "unknown")
