"""The causes: complete, in both languages, and a sound graph of consequences."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "rules" / "causes"
TEXTS = ("title", "what", "shows", "confirmed_by", "excluded_by", "capture")
RESTARTS = {"as-is", "after-change", "without-host", "unknown"}
CJK = re.compile(r"[\u4e00-\u9fff]")

# The vocabulary that outside tools rely on: ids may be added, never taken away.
VOCABULARY = {
    "infra": """
        gpu-fell-off-bus gpu-ecc-uncorrectable gpu-nvlink-error gpu-mmu-fault gpu-gsp-timeout gpu-hang gpu-thermal gpu-power
        gpu-memory-held-by-other pcie-error host-oom-kill cgroup-oom-kill host-memory-exhausted machine-check disk-full fd-limit
        shm-too-small filesystem-stall filesystem-io-error driver-mismatch cuda-mismatch library-incompatibility missing-file
        permission-denied preempted time-limit node-down hub-unreachable native-crash gpu-access-lost nic-failure clock-skew
        memlock-limit pids-limit pcie-acs-p2p fabric-manager gpu-slow quota-exceeded inode-exhausted resources-unavailable
        device-not-exposed device-held-by-stale-process dns-failure gpu-init-failure cpu-lockup kernel-panic gpu-sm-exception
        silent-data-corruption
    """,
    "data": """
        tokenizer-mismatch token-id-out-of-range corrupt-sample length-imbalance batch-size-mismatch dataloader-worker-killed
        uneven-batches preference-inverted empty-dataset preprocessing-timeout sequence-too-long dataset-format
        all-labels-masked dataloader-deadlock data-order-after-resume slow-dataloader duplicated-data streaming-source-lost
    """,
    "model": """
        device-mismatch shape-mismatch dtype-mismatch frozen-parameters checkpoint-mismatch vocab-size-mismatch invalid-config
        attention-kernel corrupt-checkpoint wrong-reference-model moe-routing-collapse
    """,
    "training": """
        loss-nan gradient-explosion gradient-vanishing lr-schedule gpu-oom gpu-oom-fragmentation gpu-memory-leak loss-spike
        loss-divergence autograd-error compile-failure checkpoint-save optimizer-state code-exception slow-step evaluation-stall
        loss-scale-overflow activation-checkpoint-mismatch
    """,
    "comms": """
        collective-timeout collective-mismatch connect-failed rendezvous-timeout ib-error nccl-version straggler address-in-use
        peer-lost duplicate-gpu efa-error hccl-error ray-placement
    """,
    "reward": """
        reward-zero reward-collapse reward-hacking reward-swing kl-explosion kl-zero margin-collapse zero-advantage
        reward-function-exception policy-mismatch entropy-collapse entropy-explosion length-explosion length-collapse advantage-nan
        reward-service-down value-loss-divergence reward-inverted
    """,
    "none": """
        healthy interrupted-by-user
    """,
}
EXPECTED = {f"{layer}/{cause}" for layer, names in VOCABULARY.items() for cause in names.split()}
CAUSES = {
    f"{path.stem}/{name}": entry
    for path in sorted(FOLDER.glob("*.toml"))
    for name, entry in tomllib.loads(path.read_text(encoding="utf-8")).items()
}


def test_every_cause_of_the_vocabulary_is_described() -> None:
    assert EXPECTED - CAUSES.keys() == set()
    assert {cause.partition("/")[0] for cause in CAUSES} == VOCABULARY.keys()


@pytest.mark.parametrize("cause", CAUSES)
def test_texts_are_there_in_both_languages(cause: str) -> None:
    entry = CAUSES[cause]
    assert set(entry) == {"leads_to", "restart", "en", "zh"}
    assert entry["restart"] in RESTARTS
    for lang in ("en", "zh"):
        words = entry[lang]
        assert set(words) == {*TEXTS, "remedies"}
        for key in TEXTS:
            assert words[key].strip() == words[key] != "", (lang, key)
        assert 1 <= len(words["remedies"]) <= 3
        for remedy in words["remedies"]:
            assert set(remedy) == {"do", "verify", "why"}
            assert all(text.strip() == text != "" for text in remedy.values())
    assert len(entry["en"]["remedies"]) == len(entry["zh"]["remedies"])


@pytest.mark.parametrize("cause", CAUSES)
def test_chinese_is_chinese_and_english_is_not(cause: str) -> None:
    chinese, english = CAUSES[cause]["zh"], CAUSES[cause]["en"]
    for key in ("title", "what", "confirmed_by", "excluded_by"):  # the signs are often log words only
        assert CJK.search(chinese[key]), key
    assert all(CJK.search(remedy["do"]) and CJK.search(remedy["why"]) for remedy in chinese["remedies"])
    assert not CJK.search(str(english))


def test_consequences_exist_and_are_named_once() -> None:
    for cause, entry in CAUSES.items():
        leads_to = entry["leads_to"]
        assert len(leads_to) == len(set(leads_to)), cause
        assert cause not in leads_to
        assert set(leads_to) <= CAUSES.keys(), (cause, set(leads_to) - CAUSES.keys())


def test_no_two_causes_lead_to_each_other() -> None:
    mutual = [(a, b) for a, entry in CAUSES.items() for b in entry["leads_to"] if a in CAUSES[b]["leads_to"]]
    assert mutual == []


@pytest.mark.parametrize(
    ("cause", "consequence"),
    [
        ("infra/host-oom-kill", "data/dataloader-worker-killed"),
        ("infra/filesystem-stall", "comms/collective-timeout"),
        ("infra/disk-full", "training/checkpoint-save"),
        ("data/token-id-out-of-range", "infra/gpu-sm-exception"),
        ("training/code-exception", "comms/peer-lost"),
        ("data/preprocessing-timeout", "comms/collective-timeout"),
        ("reward/reward-service-down", "reward/reward-zero"),
    ],
)
def test_well_known_chains(cause: str, consequence: str) -> None:
    assert consequence in CAUSES[cause]["leads_to"]


def test_what_only_reports_a_failure_is_never_upstream_of_hardware() -> None:
    hardware = {
        f"infra/{name}"
        for name in ["gpu-fell-off-bus", "gpu-ecc-uncorrectable", "gpu-gsp-timeout", "host-oom-kill", "kernel-panic", "node-down"]
    }
    for victim in ("comms/collective-timeout", "comms/peer-lost", "training/code-exception"):
        seen, pending = set(), [victim]
        while pending:
            for cause in CAUSES[pending.pop()]["leads_to"]:
                if cause not in seen:
                    seen.add(cause)
                    pending.append(cause)
        assert seen & hardware == set(), victim


def test_corrections_to_the_practitioners_text_are_kept() -> None:
    fragmentation = CAUSES["training/gpu-oom-fragmentation"]["en"]["remedies"]
    assert "expandable_segments:True" in fragmentation[0]["verify"]
    assert "CUDA_LAUNCH_BLOCKING does not" in fragmentation[0]["why"]
    assert any("swappiness: it does not choose" in remedy["do"] for remedy in CAUSES["infra/host-oom-kill"]["en"]["remedies"])
