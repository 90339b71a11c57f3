"""Slurm's own words inside job output, controller logs and accounting tables.

Event `slurm`: fields `what` (time-limit preempted node-fail requeue task-failure cancelled failed oom memory-limit memory-touched
kill-failed launch-failed ctrl-c node-hold prolog job-state teardown), `id`, `node`, and what the line adds.  Event `exit` for `srun: error: … task 3: Exited …`.
Facts from `scontrol show job` and `sacct`: `slurm.job_state`, `slurm.reason`, `slurm.exit_code`, `slurm.time_limit` ….
"""

from __future__ import annotations

import regex

from parsers.base import Context, Line, LineParser, Rows, lazy_regex
from parsers.exit_codes import WORDS, exit_event, numbers

CANCELLED = lazy_regex(
    r"\*\*\* (?:JOB|STEP|EXTERN STEP FOR|INTERACTIVE STEP FOR) (?P<id>\S{1,60}) ON (?P<node>\S{1,200}) CANCELLED AT (?P<at>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)"
    r"(?: DUE (?:TO|to) (?P<why>[A-Za-z][A-Za-z ]{2,40}))?"
)
FAILED = lazy_regex(r"\*\*\* (?:JOB|STEP) (?P<id>\S{1,60}) ON (?P<node>\S{1,200}) FAILED \(non-zero")
STUCK = lazy_regex(r"STEPD TERMINATED ON (?P<node>\S{1,200}) AT \S{1,40} DUE TO (?P<why>JOB NOT \w+(?: WITH SIGNALS)?)")
OOM = lazy_regex(
    r"[Dd]etected (?P<count>\d{1,9}) oom[_-]kill event(?:\(s\)|s)? in (?:StepId=|step )(?P<id>\S{1,60}?)(?: cgroup)?\.(?: Some|$)"
)
EXCEEDED = lazy_regex(
    r"(?:(?:Job|StepId=|Step|step)[ =]?(?P<id>\S{0,60}) exceeded (?:virtual )?memory limit \((?P<used>\d{1,18}) > (?P<limit>\d{1,18})\)|Exceeded (?:job|step) memory limit)"
)
TOUCHED = lazy_regex(r"(?:StepId=|step )(?P<id>\S{1,60}) hit memory(?:\+swap)? limit at least once")
TASK = lazy_regex(
    r"srun: error: (?P<hosts>\S{1,300}): tasks? (?P<tasks>[\d,-]{1,400}): (?P<how>[A-Z][A-Za-z0-9 ]{2,60}?)(?P<core> \(core dumped\))?\s*$"
)
NODE = lazy_regex(r"(?:srun|salloc|sbatch): error: Node failure on (?P<node>\S{1,300})")
CREATE = lazy_regex(
    r"(?:srun|sbatch|salloc): error: (?:Unable to (?:create step for job \d+|allocate resources|confirm allocation)|Task launch for \S+ failed on node \S+|Batch job submission failed): (?P<why>.{1,200})"
)
TEARDOWN = lazy_regex(
    r"srun: (?:Job step aborted|Force Terminated|Terminating (?:job step|StepId)|error: Timed out waiting for job step|First task exited)"
)
CTRL_C = lazy_regex(r"srun: (?:interrupt \(one more|sending Ctrl-C to|aborting job|forcing job termination)")
CONTROLLER = (
    ("time-limit", lazy_regex(r"Time limit exhausted for JobId=(?P<id>\d+)")),
    (
        "node-fail",
        lazy_regex(
            r"Nodes? (?P<node>\S{1,200}) not responding|due to failure of node (?P<node2>\S{1,100})|JobId=(?P<id>\d+) cancelled by node failure|on (?:failed|DOWN) node (?P<node3>\S{1,100})"
        ),
    ),
    ("prolog", lazy_regex(r"(?:[Pp]rolog|[Ee]pilog)\b.{0,80}(?:fail(?:ed status=|ure on node|ed due to timing out)|hook on host)")),
    (
        "node-hold",
        lazy_regex(
            r"nhc: Health check failed:\s{1,8}(?P<why>.{1,300})|error: .{0,80}(?P<why2>Kill task failed|Low RealMemory|gres/gpu count (?:reported )?lower than configured)"
        ),
    ),
    ("preempted", lazy_regex(r"preempted JobId=(?P<id>\d+)|JobId=(?P<id2>\d+).{0,60}has been preempted|_preempt_jobs|preempting JobId")),
)
WHY = {
    "TIME LIMIT": "time-limit",
    "PREEMPTION": "preempted",
    "NODE FAILURE": "node-fail",
    "JOB REQUEUE": "requeue",
    "TASK FAILURE": "task-failure",
}
SHOW = {
    "JobState": "slurm.job_state",
    "Reason": "slurm.reason",
    "ExitCode": "slurm.exit_code",
    "DerivedExitCode": "slurm.derived_exit_code",
    "TimeLimit": "slurm.time_limit",
    "RunTime": "slurm.run_time",
    "Restarts": "slurm.restarts",
    "Requeue": "slurm.requeue",
    "NodeList": "slurm.nodes",
    "NumNodes": "slurm.num_nodes",
    "StartTime": "slurm.start",
    "EndTime": "slurm.end",
    "PreemptTime": "slurm.preempt_time",
}
PAIR = lazy_regex(r"\b([A-Z][A-Za-z]{3,20})=(\S{1,200})")
STATES = r"(?:COMPLETED|FAILED|TIMEOUT|OUT_OF_ME(?:MORY|\+)|NODE_FAIL|PREEMPTED|BOOT_FAIL|DEADLINE|REQUEUED|CANCELLED(?: by (?P<uid>\d{1,12})|\+)?)"
SACCT = lazy_regex(
    r"^\s*(?P<id>\d{1,12}(?:_\d+)?(?:\.\w{1,12}\+?)?)[ |].{0,400}?(?<![\w.])(?P<state>"
    + STATES
    + r")(?:[ |]{1,40}|$)(?:.{0,120}?(?P<exit>\d{1,3}):(?P<signal>\d{1,3})\b)?"
)


NODE_COLUMN = lazy_regex(r"\|(?P<node>[A-Za-z][\w.-]{0,60}\d)\|?\s*$")


def _parse(line: Line, rows: Rows, context: Context) -> None:
    text = line.text
    if (found := CANCELLED.search(text)) is not None:
        why = (found["why"] or "").strip()
        what = next((name for words, name in WHY.items() if why.upper().startswith(words)), "cancelled")
        rows.event(
            line,
            "slurm",
            "error",
            host=found["node"],
            fields={"what": what, "id": found["id"], "node": found["node"], "at": found["at"], "why": why or None},
        )
    elif (found := STUCK.search(text)) is not None:
        rows.event(line, "slurm", "error", host=found["node"], fields={"what": "kill-failed", "node": found["node"], "why": found["why"]})
    elif (found := FAILED.search(text)) is not None:
        rows.event(line, "slurm", "error", fields={"what": "failed", "id": found["id"], "node": found["node"]})
    elif (found := OOM.search(text)) is not None:
        rows.event(line, "slurm", "error", fields={"what": "oom", "id": found["id"].rstrip("."), "count": int(found["count"])})
    elif (found := EXCEEDED.search(text)) is not None:
        fields = {
            "what": "memory-limit",
            "id": found["id"],
            "used": int(found["used"]) if found["used"] else None,
            "limit": int(found["limit"]) if found["limit"] else None,
        }
        rows.event(line, "slurm", "error", fields=fields)
    elif (found := TOUCHED.search(text)) is not None:
        rows.event(line, "slurm", "warning", fields={"what": "memory-touched", "id": found["id"]})
    elif (found := TASK.search(text)) is not None:
        _task(line, rows, found)
    elif (found := NODE.search(text)) is not None:
        rows.event(line, "slurm", "fatal", host=found["node"], fields={"what": "node-fail", "node": found["node"]})
    elif (found := CREATE.search(text)) is not None:
        rows.event(line, "slurm", "error", fields={"what": "launch-failed", "why": found["why"]})
    elif CTRL_C.search(text):
        rows.event(line, "slurm", "warning", fields={"what": "ctrl-c"})
    elif TEARDOWN.search(text):
        rows.event(line, "slurm", "info", fields={"what": "teardown"})
    elif text.startswith("#SBATCH"):
        _request(line, rows)
    elif "JobState=" in text:
        _show_job(line, rows, context)
    else:
        _controller(line, rows)


def _task(line: Line, rows: Rows, found: regex.Match) -> None:
    how = found["how"].strip()
    tasks = numbers(found["tasks"])
    host = found["hosts"] if "[" not in found["hosts"] else None
    if how == "Out Of Memory":
        rows.event(
            line,
            "slurm",
            "error",
            host=host,
            rank=tasks[0] if len(tasks) == 1 else None,
            fields={"what": "oom", "tasks": tasks, "hosts": found["hosts"]},
        )
        return
    if how.startswith("Exited with exit code"):
        code: int | None = int(how.rsplit(" ", 1)[1][:6])
    elif how in WORDS:
        code = -WORDS[how]
    else:
        return
    # By default srun's task ids are the ranks of one-process-per-task jobs; with torchrun inside, a task is a node.
    exit_event(line, rows, "srun", code, host=host, rank=None, tasks=tasks, hosts=found["hosts"], core=bool(found["core"]))


def _show_job(line: Line, rows: Rows, context: Context) -> None:
    for item in [line, *context.following(40)]:
        if item.number != line.number and (not item.text.strip() or "JobId=" in item.text):
            break
        for name, value in PAIR.findall(item.text):
            if name in SHOW:
                rows.fact(item, SHOW[name], value)
                if name == "JobState":
                    rows.event(item, "slurm", "info", fields={"what": "job-state", "state": value})


def limit_seconds(text: str) -> float | None:
    """A Slurm time limit in seconds: minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM, D-HH:MM:SS; None for anything else."""
    days, dash, rest = text.strip().rpartition("-")
    parts = rest.split(":")
    if len(parts) > 3 or not all(part.isdigit() and len(part) < 8 for part in parts) or (dash and not days.isdigit()):
        return None
    numbers_ = [int(part) for part in parts]
    if dash:
        hours, minutes, seconds = (*numbers_, 0, 0)[:3]
        return ((int(days[:6]) * 24 + hours) * 60 + minutes) * 60.0 + seconds
    if len(numbers_) == 1:
        return numbers_[0] * 60.0
    if len(numbers_) == 2:
        return numbers_[0] * 60.0 + numbers_[1]
    return numbers_[0] * 3600.0 + numbers_[1] * 60.0 + numbers_[2]


def _request(line: Line, rows: Rows) -> None:
    found = regex.search(r"(?:--time[= ]|-t )\s{0,4}(?P<limit>[\d:-]{1,20})", line.text)
    if found and (seconds := limit_seconds(found["limit"])):
        rows.fact(line, "slurm.limit_seconds", seconds)
    signal = regex.search(r"--signal[= ](?:[BR]{1,2}:)?(?:SIG)?(?P<signal>\w{1,8})(?:@(?P<lead>\d{1,6}))?", line.text)
    if signal:
        rows.fact(line, "slurm.signal", signal["signal"])
        rows.fact(line, "slurm.signal_lead", float(signal["lead"] or 60))


def _controller(line: Line, rows: Rows) -> None:
    for what, pattern in CONTROLLER:
        found = pattern.search(line.text)
        if found:
            groups = {name.rstrip("23"): value for name, value in found.groupdict().items() if value}
            rows.event(line, "slurm", "error", host=groups.get("node"), fields={"what": what, **groups})
            return
    found = SACCT.match(line.text)
    if found:
        state = found["state"].split(" ")[0].rstrip("+")
        state = "OUT_OF_MEMORY" if state.startswith("OUT_OF") else state
        fields = {
            "what": "job-state",
            "id": found["id"],
            "state": state,
            "uid": found["uid"],
            "exit": found["exit"],
            "signal": found["signal"],
        }
        # `sacct -P` with NodeList last: one node is named plainly, several in brackets.
        node = NODE_COLUMN.search(line.text) if "|" in line.text and state in ("NODE_FAIL", "BOOT_FAIL") else None
        rows.event(line, "slurm", "info", host=node["node"] if node else line.host, fields=fields)


PARSER = LineParser(
    name="slurm",
    triggers=(
        " CANCELLED AT ",
        "STEPD TERMINATED ON",
        "FAILED (non-zero",
        "oom-kill event",
        "oom_kill event",
        "exceeded memory limit",
        "exceeded virtual memory limit",
        "Exceeded job memory",
        "Exceeded step memory",
        "limit at least once",
        "srun: ",
        "salloc: error",
        "sbatch: error",
        "JobState=",
        "#SBATCH",
        "Time limit exhausted for JobId",
        "not responding",
        "failure of node",
        "cancelled by node failure",
        "on DOWN node",
        "on failed node",
        "rolog ",
        "pilog ",
        "nhc: Health check failed",
        "Kill task failed",
        "preempted JobId",
        "has been preempted",
        "preempting JobId",
        "TIMEOUT",
        "OUT_OF_ME",
        "NODE_FAIL",
        "PREEMPTED",
        "BOOT_FAIL",
        "CANCELLED by",
        "CANCELLED+",
        "|COMPLETED|",
        "|FAILED|",
        " COMPLETED ",
        " FAILED ",
    ),
    parse=_parse,
    kind="scheduler",
)
