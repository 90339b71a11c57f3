"""Redaction: every kind goes, nothing that only looks like a secret does, and twice is the same as once."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forensics.redact import Redactor

# Built from parts so that no scanner takes this file for a leak.
SECRETS = {
    "huggingface-token": ["hf_" + "aBcD1234" * 5],
    "wandb-key": ["WANDB_API_KEY=" + "0a1b2c3d" * 5, "local-" + "0a1b2c3d" * 5],
    "api-key": ["sk-" + "proj-Ab12Cd34Ef56Gh78Ij90", "sk-" + "ant-api03-" + "Zz9_" * 12],
    "aws-key": ["AKIA" + "IOSFODNN7EXAMPLE"],
    "gcp-key": ["AIza" + "SyA-1234567890abcdefghijklmnopqrstu", "ya29." + "a0AfH6SMBx1234567890"],
    "azure-key": ["DefaultEndpointsProtocol=https;AccountName=a;AccountKey=" + "Ab1+" * 21 + "==", "https://a.blob/x?sv=1&sig=" + "a1B2%2F" * 6],
    "github-token": ["ghp_" + "a1B2c3D4" * 5, "github_pat_" + "11ABCDEFG0" * 4],
    "gitlab-token": ["glpat-" + "x1Y2z3W4v5U6t7S8r9Q0"],
    "slack-token": ["xoxb-" + "123456789012-abcdefGHIJ"],
    "nvidia-key": ["nvapi-" + "Ab1_" * 12],
    "jwt": ["eyJ" + "hbGciOiJIUzI1NiJ9" + ".eyJ" + "zdWIiOiIxMjM0In0" + ".dBjftJeZ4CVP-mB92K27uhbUJU1p1r"],
    "bearer": ["Authorization: Bearer " + "abcdef0123456789abcdef", "authorization: Basic " + "dXNlcjpwYXNzd29yZA=="],
    "url-password": ["redis://worker:" + "hunter2@10.0.0.7:6379/0", "https://user:" + "p%40ss@host.example/x.git"],
    "secret": ["aws_secret_access_key = " + "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", '"password": "' + 'correct-horse"', "export DB_PASSWORD=" + "s3cr3t99", "--hf_token=" + "abcdefghijk"],
    "private-key": ["-----BEGIN RSA " + "PRIVATE KEY-----\nMIIEow\nabc\n-----END RSA PRIVATE KEY-----"],
    "email": ["mail to jane.doe+x@lab.example.org now"],
    "user": ['File "/home/jdoe/train/run.py", line 3', "C:\\Users\\jdoe\\runs", "/mnt/home/j.doe/x", "USER=jdoe"],
}  # fmt: skip

KEPT = [
    "commit 9fceb02d0ae598e95dc970b74767f19372d61af8",
    "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "GPU-8f6d1e2a-3b4c-5d6e-7f80-91a2b3c4d5e6",
    "NVRM: Xid (PCI:0000:91:00): 79, pid=41872, name=python3, GPU has fallen off the bus.",
    "RIP: 0010:[<ffffffff81060b2a>]  [<ffffffff81060b2a>] native_write_msr+0xa/0x30",
    "[rank3]:[E314 06:48:06.431887221 ProcessGroupNCCL.cpp:616] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=88213)",
    "pad_token: <|endoftext|>, eos_token_id=151645, token: 42, num_tokens=4096",
    "special tokens: bos_token=<s> unk_token = <unk>",
    "systemd[1]: user@1000.service: Main process exited",
    "pip install torch@git+https://github.com/pytorch/pytorch@v2.5.1",
    "git@github.com:org/repo.git",
    "nccl 2.21.5+cuda12.4, cudnn 9.1.0.70, driver 550.54.15",
    'File "/home/ubuntu/train.py", line 3, in <module>',
    "KeyError: 'lm_head.weight'",
    "key: value", "api_key=None", "password: ********", "HF_TOKEN=${HF_TOKEN}",
    "loss=0.0132 grad_norm=0.412 secret_sauce=1",
    "task-12345678-sk-abcdefghijklmnopqrstuvwxyz",
    "disk-1234567890123456789012345",
    "asia-northeast1-b AKIAS",
]  # fmt: skip


@pytest.mark.parametrize(("kind", "text"), [(kind, text) for kind, texts in SECRETS.items() for text in texts])
def test_taken_out(kind: str, text: str) -> None:
    redactor = Redactor()
    out = redactor.text(f"2026-03-14 02:10:00 INFO {text}" if kind != "private-key" else text)
    assert f"[REDACTED:{kind}]" in out
    assert redactor.counts[kind] == 1
    assert Redactor().text(out) == out


@pytest.mark.parametrize("text", KEPT)
def test_kept(text: str) -> None:
    redactor = Redactor()
    assert redactor.text(text) == text
    assert redactor.counts == {}


def test_rest_of_the_line_stays() -> None:
    assert (
        Redactor().text("PUT s3://b/k Authorization: Bearer abcdef0123456789abcdef 403")
        == "PUT s3://b/k Authorization: Bearer [REDACTED:bearer] 403"
    )
    assert Redactor().text('File "/home/jdoe/a/b.py", line 3') == 'File "/home/[REDACTED:user]/a/b.py", line 3'


def test_hosts_only_on_request_and_stable() -> None:
    line = "node07.cluster.local (10.1.2.3) -> node08 (10.1.2.4), again node07, log node07.log, cudnn=9.1.0.70 127.0.0.1 fe80::1"
    assert Redactor(names=["node07"]).text(line) == line
    redactor = Redactor(hosts=True, names=["node07", "node08"])
    assert redactor.text(line) == "host-1 (ip-1) -> host-2 (ip-2), again host-1, log host-1.log, cudnn=9.1.0.70 127.0.0.1 ip-3"
    assert redactor.text("at 12:34:56.789 PCI 0000:91:00.0 std::vector") == "at 12:34:56.789 PCI 0000:91:00.0 std::vector"
    assert redactor.name("logs/node08/dmesg.log") == "logs/host-2/dmesg.log"
    assert redactor.counts == {"host": 5, "ip": 3}


def test_names_keep_what_is_looked_up() -> None:
    assert Redactor().name("home/jdoe/run@node1.example.log") == "home/jdoe/run@node1.example.log"
    assert "hf_" not in Redactor().name("run-hf_" + "aBcD1234" * 5 + ".log")


@given(st.text(max_size=400))
def test_any_text_is_a_fixed_point(text: str) -> None:
    once = Redactor().text(text)
    assert Redactor().text(once) == once


@given(
    st.lists(st.sampled_from([s for texts in SECRETS.values() for s in texts] + KEPT), min_size=1, max_size=5),
    st.sampled_from([" ", "=", ":", "'", "/", "@", "\n"]),
)
def test_secrets_side_by_side_are_a_fixed_point(parts: list[str], joint: str) -> None:
    once = Redactor().text(joint.join(parts))
    assert Redactor().text(once) == once


@pytest.mark.parametrize(
    "unit", ["a", "a@", "sk-", "://", "eyJ", "password=", "/home/", "1.", "-----BEGIN PRIVATE KEY-----", "bearer ", "A1"]
)
def test_long_lines_take_linear_time(unit: str) -> None:
    text = unit * (200_000 // len(unit))
    start = time.perf_counter()
    Redactor(hosts=True, names=["node1"]).text(text)
    assert time.perf_counter() - start < 3


def test_a_host_that_only_a_line_names_is_hidden_with_the_known_ones(tmp_path):
    from forensics import analyze

    (tmp_path / "train.log").write_text(
        "2026-03-01 10:00:00 INFO step 1 loss 2.31 host node-17\n2026-03-01 10:00:01 rank0 of node rank0 lost server r7i4n2.example.com\n"
        "2026-03-01 10:00:05 torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 3 has a total capacity of 79.15 GiB of which 1.62 MiB is free. node-17\n"
    )
    hidden = analyze(tmp_path, hide_hosts=True)
    for text in (hidden.to_html(), hidden.to_json(), hidden.to_markdown()):
        assert "node-17" not in text and "r7i4n2" not in text
        assert "rank0" not in text or "node rank0" in hidden.to_html()
    assert "node-17" in analyze(tmp_path).to_html()
