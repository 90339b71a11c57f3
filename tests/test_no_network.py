"""No command opens a network connection: sockets that could leave the machine are denied while it works."""

from __future__ import annotations

import socket

import pytest

from forensics.cli.app import run as command

LOG = (
    "".join(f"2026-03-01 10:00:{n:02d} INFO step {n} loss 2.0\n" for n in range(60))
    + "RuntimeError: NCCL error: remote process exited http://example.com/x\n"
)


@pytest.fixture
def offline(monkeypatch):
    asked = []

    def deny(*args, **kwargs):
        asked.append(args)
        raise AssertionError("a network connection was asked for")

    monkeypatch.setattr(socket.socket, "connect", deny)
    monkeypatch.setattr(socket.socket, "connect_ex", deny)
    monkeypatch.setattr(socket.socket, "sendto", deny)
    for name in ("create_connection", "getaddrinfo", "gethostbyname", "gethostbyaddr", "getfqdn"):
        monkeypatch.setattr(socket, name, deny)
    return asked


@pytest.mark.parametrize(
    "arguments",
    [
        ["analyze", "a", "--html", "a.html", "--json", "a.json", "--markdown", "a.md", "--timeline", "tables"],
        ["explain", "infra/gpu-fell-off-bus"],
        ["compare", "a", "b"],
        ["rules", "list"],
        ["probes"],
        ["bulk", ".", "--out", "fleet", "--jobs", "1"],
        ["collect", "--out", "collected"],
    ],
    ids=lambda value: value[0],
)
def test_nothing_is_asked_of_the_network(tmp_path, monkeypatch, capsys, offline, arguments):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.log").write_text(LOG)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["forensics", *arguments])
    assert command() == 0, capsys.readouterr().err
    assert offline == []


def test_the_page_asks_for_nothing(tmp_path):
    from forensics import analyze

    (tmp_path / "train.log").write_text(LOG)
    page = analyze(tmp_path).to_html()
    policy = page.partition("Content-Security-Policy")[2].partition(">")[0].replace("&#39;", "'")
    assert "default-src 'none'" in policy and "http" not in policy
    for tag in ("<script src", '<link rel="stylesheet"', '<img src="http', "<iframe", "@import"):
        assert tag not in page
