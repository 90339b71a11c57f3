"""PBS, LSF, SGE, submitit, HTCondor and Kubernetes: why the platform ended a job.

Event `platform`: fields `system` (pbs lsf k8s submitit cloud), `what` (time-limit memory preempted node-fail evicted oom
unschedulable image deadline owner admin requeue backoff restart), `why` (the resource or the text), and codes where given.
"""

from __future__ import annotations

from typing import Any

import regex

from forensics.stamps import find_stamp
from parsers.base import Context, Line, LineParser, Rows, lazy_regex
from parsers.exit_codes import exit_event

PBS = lazy_regex(
    r"=>> PBS: job killed: (?P<what>walltime|mem|vmem|cput|ncpus|\w{1,20}) (?P<used>[\d.]{1,24})\w{0,3} ?exceeded limit (?P<limit>[\d.]{1,24})"
)
PBS_EXIT = lazy_regex(r"\bExit_status=(?P<code>-?\d{1,6})")
PBS_CODES = {
    -26: "memory",
    -27: "memory",
    -28: "time-limit",
    -29: "time-limit",
    -11: "requeue",
    -14: "requeue",
    -15: "requeue",
    -20: "requeue",
    -3: "requeue",
}
LSF = lazy_regex(r"\bTERM_(?P<term>[A-Z_]{3,30})\b(?:: (?P<text>[^.]{1,200}))?")
LSF_TERMS = {
    "MEMLIMIT": "memory",
    "SWAP": "memory",
    "RUNLIMIT": "time-limit",
    "DEADLINE": "time-limit",
    "WINDOW": "time-limit",
    "CPULIMIT": "time-limit",
    "PREEMPT": "preempted",
    "RC_RECLAIM": "preempted",
    "LOAD": "preempted",
    "OWNER": "owner",
    "FORCE_OWNER": "owner",
    "ADMIN": "admin",
    "FORCE_ADMIN": "admin",
    "ZOMBIE": "node-fail",
    "UNKNOWN": "node-fail",
    "PROCESSLIMIT": "processes",
    "THREADLIMIT": "processes",
    "REQUEUE_OWNER": "requeue",
    "REQUEUE_ADMIN": "requeue",
}
LSF_EXIT = lazy_regex(r"^\s{0,8}(?:Exited with exit code (?P<code>\d{1,6})|Exited by signal (?P<signal>\d{1,3}))\b")
SUBMITIT = lazy_regex(
    r"Job has (?P<what>timed out|been preempted)|Bypassing signal SIG(?P<by>\w{2,5})|Caught signal SIG(?P<caught>\w{2,5}) on \S{1,100}: this job is (?P<claim>preempted|timed-out)|Caught signal SIG(?P<caught2>\w{2,5}) on|Job (?:not requeued because|requeued|was requeued)(?P<why>.{0,120})"
)
K8S_OOM = lazy_regex(r"(?:[Rr]eason\"?\s{0,16}[:=]\s{0,16}\"?|^|\s)OOMKilled\b|OOMKilling\b|System OOM encountered")
EVICTED = lazy_regex(
    r"The node was low on resource: \[?(?P<res>[\w-]{3,30})|(?:Reason\"?\s{0,16}[:=]\s{0,16}\"?|\s)Evicted\b|(?:[Pp]od )?ephemeral local storage usage exceeds|Usage of EmptyDir volume|Container \S{1,100} exceeded its local ephemeral storage limit|Evicting pod|EvictionThresholdMet"
)
DEADLINE = lazy_regex(
    r"\bDeadlineExceeded\b.{0,80}(?:Job|Pod|[Aa]ctive)|was active (?:on the node )?longer than (?:the )?specified deadline|BackoffLimitExceeded"
)
PREEMPT = lazy_regex(
    r"Preempted (?:by (?:pod |a pod |node|\S)|in order to admit)|PreemptionByScheduler|EvictionByEvictionAPI|\bPreempting\b.{0,60}pod"
)
NODE = lazy_regex(
    r"\bNodeNotReady\b|\bNodeLost\b|node\.kubernetes\.io/(?:unreachable|not-ready)|DeletionByTaintManager|TaintManagerEviction|DeletionByPodGC|TerminationByKubelet|\bNodeShutdown\b|Pod was terminated in response to imminent node shutdown|status is now: NodeNotReady"
)
UNSCHEDULABLE = lazy_regex(
    r"\bFailedScheduling\b|\d{1,6}/\d{1,6} nodes are available|Insufficient (?:nvidia|amd)\.com/gpu|Allocate failed due to|UnexpectedAdmissionError|OutOfnvidia\.com/gpu"
)
IMAGE = lazy_regex(
    r"\b(?:ErrImagePull|ImagePullBackOff|InvalidImageName|CreateContainerConfigError|CreateContainerError|FailedMount|FailedAttachVolume|RunContainerError|FailedCreatePodSandBox)\b"
)
EXIT = lazy_regex(r"(?:Exit Code|exitCode)\"?\s{0,16}[:=]\s{0,16}\"?(?P<code>\d{1,6})")
DOCKER = lazy_regex(r"\bcontainer die\b.{0,400}exitCode=(?P<code>\d{1,4})|\"OOMKilled\": ?(?P<oom>true)")
CLOUD = lazy_regex(
    r"[Ss]pot [Ii]nstance (?:[Ii]nterruption|termination)|instance-action.{0,40}terminate|instance will be (?:terminated|stopped|preempted)|compute\.instances\.preempted|"
    r"(?:Instance|VM|machine|node|Node) (?:was |is being |has been )?preempted\b|Preempt (?:event|scheduled)|Scheduled ?Event.{0,80}\bPreempt\b|rebalance recommendation"
)


def _add(line: Line, rows: Rows, system: str, what: str, why: str | None = None, **more: Any) -> None:
    place = {"host": more["node"]} if more.get("node") else {}
    rows.event(line, "platform", "error", fields={"system": system, "what": what, "why": why, **more}, **place)


# Possible reasons listed in an error text are no evidence.
GUESS = lazy_regex(
    r"\b(?:can happen|could be|may have|might|possibl[ey]|likely) .{0,80}preempted|\bif the (?:node|instance|VM) was preempted|has failed, got preempted"
)
POD_NODE = lazy_regex(r"^\s{0,8}(?:Node: {1,20}(?P<node>[a-z0-9][\w.-]{0,120})/|nodeName: (?P<node2>[a-z0-9][\w.-]{0,120}))")

POD_NAME = lazy_regex(r"^Name: {1,20}(?P<pod>[a-z0-9][\w.-]{0,120})\s*$")
EVENT_NODE = lazy_regex(r"\sSystemOOM\s{1,20}node/(?P<node>[\w.-]{1,80})")
POD_ROW = lazy_regex(
    r"^\S{1,200} {2,}\d{1,4}/\d{1,4} {2,}\S{3,40} {2,}.{1,80}? {2,}(?:\d{1,3}\.){3}\d{1,3} {2,}(?P<node>[a-z0-9][\w.-]{0,120})\b"
)


def _pod_node(line: Line, context: Context) -> dict[str, Any]:
    """The node of a pod, from its row in a wide table of pods or from the description that the line stands in."""
    if (row := POD_ROW.match(line.text)) is not None:
        return {"node": row["node"]}
    if (event := EVENT_NODE.search(line.text)) is not None:
        return {"node": event["node"]}
    if not line.text[:1].isspace():
        return {}
    above = [near.text for near in context.preceding(80)]
    found = next((f for text in above if (f := POD_NODE.match(text)) is not None), None)
    pod = next((f for text in above if (f := POD_NAME.match(text)) is not None), None)
    return ({"node": found["node"] or found["node2"]} if found else {}) | ({"pod": pod["pod"]} if pod else {})


def _finished(line: Line, context: Context) -> None:
    """A described container tells when it ended a few lines below; the stamp above is that of its start or of another part."""
    for near in context.following(6):
        if "Finished:" in near.text or "finishedAt" in near.text:
            stamp = find_stamp(near.text)
            if stamp is not None:
                line.stamp, line.inherited = stamp, False
            return


def _claim(found: regex.Match) -> str:
    """What submitit says.  It cannot tell the two apart: an early signal is "preempted" to it, a late one "timed out"."""
    if found["what"] == "timed out" or found["claim"] == "timed-out":
        return "claimed-time-limit"
    if found["what"] or found["claim"]:
        return "claimed-preempted"
    return "signal" if found["by"] or found["caught2"] else "requeue"


def _parse(line: Line, rows: Rows, context: Context) -> None:
    text = line.text
    if (found := PBS.search(text)) is not None:
        what = "memory" if found["what"] in ("mem", "vmem") else "time-limit" if found["what"] in ("walltime", "cput") else "limit"
        _add(line, rows, "pbs", what, found["what"], used=found["used"], limit=found["limit"])
    elif (found := PBS_EXIT.search(text)) is not None:
        code = int(found["code"])
        if code < 0:
            _add(line, rows, "pbs", PBS_CODES.get(code, "start-failed"), f"Exit_status={code}", code=code)
        else:
            exit_event(line, rows, "pbs", -(code - 256) if code > 256 else code)
    elif (found := LSF.search(text)) is not None and found["term"] in LSF_TERMS:
        _add(line, rows, "lsf", LSF_TERMS[found["term"]], found["text"] or f"TERM_{found['term']}")
    elif (found := LSF_EXIT.match(text)) is not None:
        exit_event(line, rows, "lsf", -int(found["signal"]) if found["signal"] else int(found["code"]))
    elif ("submitit" in text or "Job has" in text or "signal SIG" in text or "requeued" in text) and (
        found := SUBMITIT.search(text)
    ) is not None:
        _add(
            line,
            rows,
            "submitit",
            _claim(found),
            (found["by"] or found["caught"] or found["caught2"] or found["why"] or "").strip() or None,
        )
    elif K8S_OOM.search(text):
        _finished(line, context)
        _add(line, rows, "k8s", "oom", "node" if "System OOM" in text else "container", **_pod_node(line, context))
    elif (found := EVICTED.search(text)) is not None:
        resource = found["res"] or (
            "ephemeral-storage"
            if "ephemeral" in text or "EmptyDir" in text
            else "memory"
            if "memory" in text.lower()
            else "disk"
            if "Disk" in text
            else ""
        )
        _add(line, rows, "k8s", "evicted", resource or None)
    elif (found := DEADLINE.search(text)) is not None:
        _add(line, rows, "k8s", "backoff" if "Backoff" in found[0] else "time-limit", "deadline")
    elif PREEMPT.search(text):
        _add(line, rows, "k8s", "preempted", text[:160])
    elif NODE.search(text):
        _add(line, rows, "k8s", "node-fail", text[:160])
    elif UNSCHEDULABLE.search(text):
        _add(line, rows, "k8s", "unschedulable", text[:200])
    elif IMAGE.search(text):
        _add(line, rows, "k8s", "start-failed", text[:200])
    elif (found := DOCKER.search(text)) is not None:
        if found["oom"]:
            _add(line, rows, "docker", "oom", "container")
        else:
            exit_event(line, rows, "docker", int(found["code"]))
    elif (found := EXIT.search(text)) is not None:
        exit_event(line, rows, "k8s", int(found["code"]))
    elif CLOUD.search(text) and not GUESS.search(text):
        _add(line, rows, "cloud", "preempted", text[:160])


PARSER = LineParser(
    name="batch-systems",
    triggers=(
        "PBS: job killed",
        "Exit_status=",
        "TERM_",
        "Exited with exit code ",
        "Exited by signal ",
        "Job has timed out",
        "Job has been preempted",
        "Bypassing signal",
        "Caught signal SIG",
        "requeued",
        "OOMKill",
        "System OOM encountered",
        "low on resource",
        "Evict",
        "ephemeral local storage",
        "ephemeral storage limit",
        "EmptyDir",
        "DeadlineExceeded",
        "specified deadline",
        "BackoffLimitExceeded",
        "reempted",
        "PreemptionByScheduler",
        "Preempt ",
        '"Preempt"',
        "NodeNotReady",
        "NodeLost",
        "node.kubernetes.io/",
        "DeletionBy",
        "TerminationByKubelet",
        "NodeShutdown",
        "imminent node shutdown",
        "FailedScheduling",
        "nodes are available",
        "com/gpu",
        "UnexpectedAdmissionError",
        "ErrImagePull",
        "ImagePullBackOff",
        "CreateContainer",
        "RunContainerError",
        "FailedMount",
        "FailedAttachVolume",
        "FailedCreatePodSandBox",
        "Exit Code:",
        "exitCode",
        "container die",
        "nstance-action",
        "nstance Interruption",
        "nstance interruption",
        "nstance will be",
        "rebalance recommendation",
    ),
    parse=_parse,
    kind="scheduler",
)
