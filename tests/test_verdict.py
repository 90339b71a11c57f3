"""The verdict: roots and consequences on the clock, what was survived, who is at fault, and when nothing is named."""

from __future__ import annotations

import pytest

from forensics import engine, verdict
from forensics.join import fate
from forensics.knowledge import Cause, Knowledge
from forensics.run import FileInfo, RankInfo, Run
from parsers.base import Event
from rules.base import Evidence, Finding

CAUSES = {
    "infra/gpu-fell-off-bus": ("comms/collective-timeout", "training/code-exception"),
    "infra/pcie-error": ("infra/gpu-fell-off-bus",),
    "training/code-exception": ("comms/peer-lost",),
    "comms/collective-timeout": (),
    "comms/peer-lost": (),
    "comms/ib-error": ("comms/collective-timeout", "training/code-exception"),
    "data/corrupt-sample": ("training/code-exception",),
    "infra/time-limit": (),
}
KNOWN = Knowledge([], {name: Cause(name, leads, "unknown", {}) for name, leads in CAUSES.items()})


def found(cause, weight, time=None, line=1, file="train.log", role="root", rule=None, **more):
    return Finding(
        rule or f"rule-{cause}", cause=cause, weight=weight, role=role, time=time, evidence=[Evidence(file, line, "text", time)], **more
    )


def make_run(steps=(), files=("train.log", "dmesg.txt")):
    run = Run("r")
    run.files = {path: FileInfo(path, 1, kinds=("train",)) for path in files}
    run.progress_lines = {"train.log": [line for line, _ in steps]}
    run.progress_times = [time for _, time in steps if time is not None]
    return run


def decide(findings, run=None):
    run = run or make_run()
    run.findings = findings
    return verdict.decide(run, findings, KNOWN)


def test_the_loud_consequence_is_not_the_verdict():
    said = decide(
        [
            found("comms/collective-timeout", 0.35, 700.0, 50, role="consequence"),
            found("infra/gpu-fell-off-bus", 0.9, 100.0, 3, "dmesg.txt"),
        ]
    )
    assert (said.layer, said.cause) == ("infra", "gpu-fell-off-bus")
    assert [c.cause for c in said.consequences] == ["comms/collective-timeout"]
    assert said.first.file == "dmesg.txt"


def test_a_consequence_alone_is_named_with_less_confidence():
    alone = decide([found("comms/collective-timeout", 0.35, 700.0, role="consequence")])
    rooted = decide([found("infra/gpu-fell-off-bus", 0.9, 100.0)])
    assert alone.cause == "collective-timeout"
    assert alone.confidence < 0.8 < rooted.confidence


def test_what_comes_later_explains_nothing():
    """A kernel fault long after the time-out is no reason for it."""
    said = decide(
        [found("comms/collective-timeout", 0.5, 100.0, role="consequence"), found("infra/gpu-fell-off-bus", 0.45, 5000.0, 3, "dmesg.txt")]
    )
    assert said.cause == "collective-timeout"


def test_order_in_one_file_outranks_stamps_of_one_second():
    said = decide([found("infra/pcie-error", 0.85, 101.0, 12, "dmesg.txt"), found("infra/gpu-fell-off-bus", 0.9, 100.0, 10, "dmesg.txt")])
    assert said.cause == "gpu-fell-off-bus"


def test_peers_see_a_network_error_when_a_process_dies_first():
    first = found("training/code-exception", 0.45, 100.0, 11, "rank0.err", rank=0)
    later = found("comms/ib-error", 0.62, 213.0, 18, "rank9.log", rank=9)
    run = make_run(files=("rank0.err", "rank9.log"))
    said = decide([first, later], run)
    assert (said.layer, said.rank) == ("training", 0)
    assert said.confidence > 0.7
    swapped = [found("training/code-exception", 0.45, 213.0, 11, "rank0.err"), found("comms/ib-error", 0.62, 100.0, 18, "rank9.log")]
    assert decide(swapped, run).layer == "comms"


def test_an_uncertain_clock_proves_no_order():
    run = make_run(files=("rank0.err", "rank9.log"))
    run.clock_uncertainty = {"rank9.log": 3600.0}
    said = decide(
        [found("training/code-exception", 0.45, 100.0, 1, "rank0.err"), found("comms/ib-error", 0.62, 110.0, 1, "rank9.log")], run
    )
    assert said.layer == "comms"


@pytest.mark.parametrize(
    ("steps", "line", "want"),
    [
        ([(n, float(n)) for n in range(1, 20)], 10, "went-on"),
        ([(n, float(n)) for n in range(1, 20)], 17, "ended"),
        ([(n, float(n)) for n in range(1, 20)], 30, "ended"),
    ],
)
def test_what_became_of_training_after_a_line(steps, line, want):
    assert fate(make_run(steps), "train.log", line, float(line)) == want


def test_steps_of_a_later_attempt_are_a_restart_not_survival():
    run = make_run([(n, float(n)) for n in (1, 2, 3, 4, 20, 21, 22, 23)])
    run.restarts = {"train.log": [10]}
    assert fate(run, "train.log", 5, 5.0) == "restarted"
    assert fate(run, "train.log", 3, 3.0) == "went-on" or fate(run, "train.log", 3, 3.0) == "restarted"
    # Before the first step of all, a start is the first one: every rank prints it.
    assert fate(run, "train.log", 0, 0.5) == "went-on"


def test_a_fault_that_training_survived_is_set_aside():
    run = make_run([(n, float(n)) for n in range(1, 50)])
    finding = found("data/corrupt-sample", 0.75, 10.0, 10, facts={})
    run.findings = [finding]
    engine.set_aside(run, [finding])
    assert finding.outcome == "excluded"
    assert finding.role == "recovery"
    assert decide([finding], run).layer == "none"


def test_a_lasting_condition_is_not_cleared_by_progress():
    run = make_run([(n, float(n)) for n in range(1, 50)])
    finding = found("infra/gpu-thermal", 0.75, 10.0, 10)
    engine.set_aside(run, [finding])
    assert finding.outcome == "found"


def test_a_time_limit_after_the_end_ended_nothing():
    run = make_run()
    done = found(None, 0.9, 50.0, 20, role="done", rule="finished")
    late = found("infra/time-limit", 0.92, 60.0, 25)
    findings = [done, late]
    engine.set_aside(run, findings)
    said = decide(findings, run)
    assert (said.layer, said.cause) == ("none", "healthy")
    early = [found(None, 0.9, 50.0, 20, role="done", rule="finished"), found("infra/time-limit", 0.92, 40.0, 15)]
    engine.set_aside(run, early)
    assert decide(early, run).cause == "time-limit"


def test_the_end_clears_earlier_faults_unless_a_process_failed():
    run = make_run()
    findings = [found("data/corrupt-sample", 0.75, 10.0, 10), found(None, 0.9, 50.0, 20, role="done", rule="finished")]
    engine.set_aside(run, findings)
    assert decide(findings, run).layer == "none"
    run.events = [Event("exit", "train.log", 30, "", fields={"exitcode": 1})]
    run.__post_init__()
    findings = [found("data/corrupt-sample", 0.75, 10.0, 10), found(None, 0.9, 50.0, 20, role="done", rule="finished")]
    engine.set_aside(run, findings)
    assert decide(findings, run).layer == "data"


def test_user_stop_is_none_unless_something_failed_before():
    stop = found(None, 0.8, 50.0, 20, role="stop", rule="interrupt")
    assert decide([stop]).cause == "interrupted-by-user"
    assert decide([stop, found("infra/gpu-fell-off-bus", 0.9, 10.0, 3, "dmesg.txt")]).layer == "infra"


def test_weak_signs_name_nothing():
    said = decide([found("comms/peer-lost", 0.1, 5.0, role="consequence"), found(None, 0.0, 5.0, role="symptom", rule="s")])
    assert (said.layer, said.cause) == ("unknown", None)
    assert decide([], make_run([(1, 1.0)])).layer == "none"
    assert decide([]).layer == "unknown"  # no line of any kind is known


def test_the_culprit_is_not_the_victim_that_printed_the_line():
    run = make_run()
    run.ranks = {5: RankInfo(5, host="node-1"), 0: RankInfo(0, host="node-0")}
    said = decide(
        [
            found("comms/collective-timeout", 0.45, 10.0, rank=5, rule="missing"),
            found("comms/collective-timeout", 0.33, 10.0, rank=0, host="node-0", rule="watchdog"),
        ],
        run,
    )
    assert (said.rank, said.host) == (5, "node-1")


def test_a_silent_rank_gets_the_host_of_its_neighbours():
    run = make_run()
    run.ranks = {r: RankInfo(r, host=f"node-{r // 8}") for r in range(16) if r != 11} | {11: RankInfo(11)}
    assert verdict.neighbour_host(run, 11) == "node-1"
    run.ranks = {r: RankInfo(r, host=f"node-{r // 8}") for r in (8, 9, 12)} | {15: RankInfo(15)}
    assert verdict.neighbour_host(run, 15) == "node-1"


def test_confidence_is_a_probability_that_grows_with_the_lead():
    values = [verdict.confidence({"score": s, "margin": s}) for s in (0.2, 0.4, 0.6, 0.8, 0.99)]
    assert values == sorted(values)
    assert 0.5 < values[0] < 0.8
    assert values[-1] < 1.0


@pytest.mark.parametrize("content", [b"# Notes\n\nBuy milk, call the plumber.\n", bytes(range(256)) * 400])
def test_files_in_which_nothing_is_known_are_no_healthy_run(tmp_path, content):
    from forensics import analyze

    (tmp_path / "notes.txt").write_bytes(content)
    said = analyze(tmp_path).to_dict()["verdict"]
    assert (said["layer"], said["cause"]) == ("unknown", None)
    assert "Nothing known" in said["title"]
