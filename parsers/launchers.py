"""Launchers other than torchrun and srun: Open MPI and Intel MPI, DeepSpeed, accelerate, torch.multiprocessing spawn, shells, docker.

Events: `exit` (see parsers/exit_codes.py), `spawned` (a process by pid and rank, DeepSpeed) and `interrupt` (fields `what`: keyboard | signal, `signal`, `target`: process | launcher).
"""

from __future__ import annotations

import regex

from parsers.base import Context, Line, LineParser, Rows, lazy_regex
from parsers.exit_codes import WORDS, exit_event

MPI_SIGNAL = lazy_regex(
    r"mpirun noticed that process rank (?P<rank>\d{1,7}) with PID (?P<pid>\d{1,9}) on node (?P<host>\S{1,200}) exited on signal (?P<signal>\d{1,3})"
)
MPI_CODE = lazy_regex(r"Process name: \[\[\d{1,9},\d{1,9}\],(?P<rank>\d{1,7})\]")
MPI_STATUS = lazy_regex(r"Exit code: {1,8}(?P<code>\d{1,9})")
MPI_ABORT = lazy_regex(r"MPI_ABORT was invoked on rank (?P<rank>\d{1,7}) ")
HYDRA = lazy_regex(r"=\s+RANK (?P<rank>\d{1,7}) PID (?P<pid>\d{1,9}) RUNNING AT (?P<host>\S{1,200})")
HYDRA_BAD = lazy_regex(r"=\s+(?:EXIT CODE: (?P<code>\d{1,9})|KILLED BY SIGNAL: (?P<signal>\d{1,3}))")
DS_KILL = lazy_regex(r"(?:Killing subprocess|Process) (?P<pid>\d{1,9})(?P<ok> exits successfully)?")
DS_CODE = lazy_regex(r"exits with return code = (?P<code>-?\d{1,9})")
DS_PDSH = lazy_regex(r"pdsh@(?P<me>\S{1,100}): (?P<host>[^\s:]{1,200}): ssh exited with exit code (?P<code>\d{1,9})")
DS_NODES = lazy_regex(r"nnodes=(?P<nodes>\d{1,6}), num_local_procs=(?P<local>\d{1,4}), node_rank=(?P<node>\d{1,6})")
DS_SPAWN = lazy_regex(r"process (?P<pid>\d{1,9}) spawned with command: .{0,4000}?--local_rank[=', ]{1,6}(?P<local>\d{1,4})")
CALLED = lazy_regex(
    r"(?:subprocess\.)?CalledProcessError: Command .{0,4000}? (?:returned non-zero exit status (?P<code>\d{1,9})|died with <Signals\.(?P<signal>SIG\w+): (?P<number>\d{1,3})>)"
)
SPAWN = lazy_regex(
    r"(?:-- Process (?P<index>\d{1,6}) terminated with the following error|process (?P<index2>\d{1,6}) terminated with (?:exit code (?P<code>-?\d{1,9})|signal (?P<signal>SIG\w+)))"
)
SHELL = lazy_regex(
    r"(?:line \d{1,7}:\s{1,4})?(?P<pid>\d{1,9}) (?P<word>Killed|Terminated|Aborted|Segmentation fault|Bus error|Illegal instruction|Floating point exception|Hangup)\s{0,80}(?P<core>\(core dumped\))?(?:\s|$)"
)
ECHO = lazy_regex(
    r"^(?:.{0,80}?)(?:exit(?:ed)?(?: with)?[ _-]?(?:code|status)|EXIT_CODE|Exit code|exitcode|return code|rc)\s?[:=]?\s?(?P<code>-?\d{1,3})\b",
    regex.IGNORECASE,
)
# Of the many services of a machine only one that is named for a training job is the run.
SYSTEMD = lazy_regex(
    r"systemd\[\d{1,9}\]: [\w@.\\-]{0,80}?(?i:train|tune|sft|ppo|grpo|dpo|rlhf|llm|torch)[\w@.\\-]{0,80}?\.(?:service|scope): "
    r"Main process exited, code=(?P<how>exited|killed|dumped), status=(?P<code>\d{1,3})"
)
SIGNALS = {
    name: number
    for number, name in ((1, "SIGHUP"), (2, "SIGINT"), (6, "SIGABRT"), (7, "SIGBUS"), (9, "SIGKILL"), (11, "SIGSEGV"), (15, "SIGTERM"))
}
SIGNAL_TEXT = lazy_regex(
    r"(?:[Rr]eceived|[Cc]aught|[Gg]ot|[Hh]andling)(?: \w+){0,3}? (?:signal[ :]{0,2})?(?:Signals\.)?(?P<name>SIG(?:TERM|INT|HUP|USR1|USR2|QUIT|XCPU))\b|"
    r"[Ss]ignal (?:handler called with signal |received: )(?P<number>\d{1,2})\b|exiting program after receiving (?P<name2>SIG\w+)|(?P<term>Detected KeyboardInterrupt|Bypassing SIG(?P<by>\w+))"
)
NUMBER = {"SIGTERM": 15, "SIGINT": 2, "SIGHUP": 1, "SIGUSR1": 10, "SIGUSR2": 12, "SIGQUIT": 3, "SIGXCPU": 24}


def _parse(line: Line, rows: Rows, context: Context) -> None:
    text = line.text
    if (found := MPI_SIGNAL.search(text)) is not None:
        exit_event(
            line,
            rows,
            "mpirun",
            -int(found["signal"]),
            rank=int(found["rank"]),
            host=found["host"],
            pid=int(found["pid"]) or None,
            first_observed=True,
        )
    elif (found := MPI_CODE.search(text)) is not None:
        code = next((MPI_STATUS.search(below.text) for below in context.following(3) if "Exit code" in below.text), None)
        exit_event(line, rows, "mpirun", int(code["code"]) if code else None, rank=int(found["rank"]), first_observed=True)
    elif (found := MPI_ABORT.search(text)) is not None:
        exit_event(line, rows, "mpirun", None, rank=int(found["rank"]), first_observed=True, abort=True)
    elif (found := HYDRA.search(text)) is not None:
        bad = next((match for below in context.following(3) if (match := HYDRA_BAD.search(below.text))), None)
        if bad:
            code_value = -int(bad["signal"]) if bad["signal"] else int(bad["code"])
            exit_event(
                line, rows, "mpirun", code_value, rank=int(found["rank"]), host=found["host"], pid=int(found["pid"]), first_observed=True
            )
    elif (found := DS_NODES.search(text)) is not None:
        # Each node's launcher prints its own line; with pdsh the host label tells them apart.
        context.state[f"first {line.host}"] = int(found["node"]) * int(found["local"])
    elif (found := DS_SPAWN.search(text)) is not None:
        first = context.state.get(f"first {line.host}")
        rank = int(found["local"]) + (first or 0) if first is not None or line.host is None else None
        rows.event(line, "spawned", "debug", rank=rank, pid=int(found["pid"]), fields={"local_rank": int(found["local"])})
    elif (found := SYSTEMD.search(text)) is not None:
        exit_event(line, rows, "systemd", int(found["code"]) * (1 if found["how"] == "exited" else -1))
    elif (found := DS_CODE.search(text)) is not None:
        exit_event(line, rows, "deepspeed", int(found["code"]))
    elif (found := DS_PDSH.search(text)) is not None:
        exit_event(line, rows, "deepspeed", int(found["code"]), host=found["host"])
    elif "Killing subprocess" in text or "exits successfully" in text:
        found = DS_KILL.search(text)
        if found:
            exit_event(line, rows, "deepspeed", 0 if found["ok"] else None, pid=int(found["pid"]), by_launcher=not found["ok"])
    elif (found := CALLED.search(text, max(0, text.rfind("CalledProcessError: Command") - 11))) is not None:
        number = -int(found["number"]) if found["number"] else int(found["code"] or 1)
        exit_event(line, rows, "accelerate", number)
    elif (found := SPAWN.search(text)) is not None:
        index = found["index"] or found["index2"]
        number = -SIGNALS.get(found["signal"], 0) if found["signal"] else int(found["code"] or 1)
        if index:
            exit_event(line, rows, "spawn", number, local_rank=int(index))
    elif (found := SHELL.search(text)) is not None and "srun: error" not in text and "process rank" not in text:
        exit_event(line, rows, "shell", -WORDS[found["word"]], pid=int(found["pid"]), core=bool(found["core"]))
    elif "KeyboardInterrupt" in text:
        if text.strip() in ("KeyboardInterrupt", "KeyboardInterrupt:") or text.strip().startswith("KeyboardInterrupt: "):
            rows.event(line, "interrupt", "warning", fields={"what": "keyboard", "signal": 2, "target": "process"})
    elif text.strip() in ("^C", "^C^C", "^\\Quit") or text.startswith("^C") or text.rstrip().endswith("^C"):
        rows.event(line, "interrupt", "warning", fields={"what": "keyboard", "signal": 2, "target": "terminal"})
    elif (found := SIGNAL_TEXT.search(text)) is not None:
        name = found["name"] or found["name2"] or (f"SIG{found['by']}" if found["by"] else None)
        signal = NUMBER.get(name or "", int(found["number"]) if found["number"] else (2 if found["term"] else None))
        if signal is not None:
            rows.event(line, "interrupt", "warning", fields={"what": "signal", "signal": signal, "target": "process"})
    elif (found := ECHO.match(text)) is not None and len(text) < 200:
        exit_event(line, rows, "shell", int(found["code"]), echo=True)


PARSER = LineParser(
    name="launchers",
    triggers=(
        "mpirun noticed that process",
        "Process name: [[",
        "MPI_ABORT was invoked",
        "RUNNING AT ",
        ": Main process exited, code=",
        "exits with return code",
        "ssh exited with exit code",
        "Killing subprocess ",
        "exits successfully",
        "CalledProcessError: Command",
        "terminated with the following error",
        "terminated with exit code",
        "terminated with signal",
        " Killed",
        " Terminated",
        " Aborted",
        " Segmentation fault",
        " Bus error",
        " Illegal instruction",
        "num_local_procs=",
        "spawned with command",
        "KeyboardInterrupt",
        "^C",
        "SIGTERM",
        "SIGINT",
        "SIGHUP",
        "SIGUSR",
        "SIGXCPU",
        "handler called with signal",
        "exit code",
        "exit status",
        "Exit code",
        "EXIT_CODE",
        "exitcode=",
        "exit_code",
        "return code",
    ),
    parse=_parse,
    kind="train",
)
