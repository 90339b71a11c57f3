"""Dates in unknown forms: asked once, then read by pattern."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forensics.odd_stamps import infer


@pytest.mark.parametrize(
    ("sample", "further", "when"),
    [
        (
            ["Donnerstag, 12. Juni 2025 09:30:12 Start", "Donnerstag, 12. Juni 2025 09:30:19 Schritt 1"],
            "Freitag, 3. Oktober 2025 21:04:05 Fehler",
            datetime(2025, 10, 3, 21, 4, 5),
        ),
        (
            ["12 de junio de 2025 09:30:12 x", "12 de junio de 2025 09:31:12 x"],
            "1 de agosto de 2025 00:00:01 x",
            datetime(2025, 8, 1, 0, 0, 1),
        ),
        (["09:30:12 12-Jun-2025 x", "09:30:13 12-Jun-2025 x"], "10:30:12 13-Jul-2025 x", datetime(2025, 7, 13, 10, 30, 12)),
        (
            ["[Thursday, June 12, 2025 at 9:30:12 PM] x", "[Thursday, June 12, 2025 at 9:30:13 PM] x"],
            "[Friday, June 13, 2025 at 12:00:13 AM] x",
            datetime(2025, 6, 13, 0, 0, 13),
        ),
        (
            ["четверг, 12 июня 2025 г. 09:30:12 x", "четверг, 12 июня 2025 г. 09:30:13 x"],
            "пятница, 13 июня 2025 г. 10:00:00 x",
            datetime(2025, 6, 13, 10),
        ),
    ],
)
def test_inferred_once_then_read_by_pattern(sample: list[str], further: str, when: datetime) -> None:
    form = infer(["noise", *sample])
    assert form is not None
    stamp = form.find(further)
    assert stamp is not None
    assert stamp.seconds == when.replace(tzinfo=UTC).timestamp()
    assert form.find("no date here") is None


@pytest.mark.parametrize(
    "lines",
    [
        ["step 12 loss 3:45 of 2025", "step 13 loss 3:46 of 2025"],
        ["[2025-06-12 09:30:12] known", "[2025-06-12 09:30:13] known"],
        ["Epoch 1: 100%| 20/20 [01:12<00:00]"] * 4,
        ["node 10:20 saw 2024 samples in 11:20", "node 10:21 saw 2023 samples in 11:22"],
        [],
    ],
)
def test_no_form(lines: list[str]) -> None:
    assert infer(lines) is None


@settings(max_examples=15, deadline=None)
@given(st.lists(st.text(max_size=60).map(lambda text: text + " 2025 10:30:11"), max_size=3))
def test_hostile_samples(lines: list[str]) -> None:
    form = infer(lines)
    if form is not None:
        for line in lines:
            form.find(line)
