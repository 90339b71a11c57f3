"""Statistics on training series: departures, ramps, leaks, and hostile values."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rules import statistics as s

NASTY = st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=60)


def test_step_is_found_where_it_begins() -> None:
    rng = random.Random(1)
    values = [1 + rng.gauss(0, 0.05) for _ in range(60)] + [2 + rng.gauss(0, 0.05) for _ in range(40)]
    spot = s.departure(values)
    assert spot is not None
    assert spot.index == 60
    assert spot.baseline == pytest.approx(1, abs=0.05)
    assert s.departure(values, up=False) is None


def test_spike_that_recovers_is_no_departure() -> None:
    rng = random.Random(2)
    values = [1 + rng.gauss(0, 0.05) for _ in range(100)]
    values[50] = 9.0
    assert s.departure(values) is None
    assert [(spike.start, spike.recovered) for spike in s.spikes(values)] == [(50, True)]


def test_slow_ramp_after_a_decline() -> None:
    rng = random.Random(3)
    values = [3 - 0.02 * i + rng.gauss(0, 0.03) for i in range(60)] + [1.8 + 0.03 * i + rng.gauss(0, 0.03) for i in range(100)]
    spot = s.leaves(values, relative=0.1)
    assert spot is not None
    assert 60 <= spot.index <= 90


def test_always_rising_is_no_turn() -> None:
    assert s.turn([0.001 * i for i in range(200)]) is None


def test_few_readings_decide_nothing() -> None:
    assert s.departure([1, 1, 1, 9, 9]) is None
    assert s.growth([1, 2, 3]) == (0.0, 0.0, 0.0)


def test_rounding_is_seen() -> None:
    assert s.looks_rounded([0.123, 4.5, 0.0])
    assert not s.looks_rounded([0.1234, 0.5])


def test_runs_of_equal_readings() -> None:
    assert s.constant_run([1, 2, 0, 0, 0], 0.0) == (2, 3)
    assert s.constant_run([0, 0, 1], 0.0) is None
    assert s.settles_at([0.3, 0.4, 0.5, 0.41, *[0.5] * 20], 0.5) == (2, 22)
    assert s.trailing_nonfinite([1.0, math.nan, math.inf]) == (1, 2)


def test_staircase_and_sawtooth() -> None:
    assert s.sawtooth([i * 1.0 for i in range(30)]) == 0
    assert s.sawtooth([30 + 10 * (i % 2) for i in range(30)]) > 0.3
    assert s.plateau([min(i, 10) * 1.0 for i in range(40)])
    assert not s.plateau([float(i) for i in range(40)])


def test_long_series_is_bounded_and_located() -> None:
    values = [1.0 + 0.01 * (i % 7) for i in range(40_000)] + [5.0 + 0.01 * (i % 7) for i in range(8_000)]
    spot = s.departure(values)
    assert spot is not None
    assert abs(spot.index - 40_000) <= 40


@given(NASTY)
def test_nothing_raises(values: list[float]) -> None:
    s.leaves(values)
    s.leaves(values, up=False)
    s.spikes(values)
    s.growth(values)
    s.plateau(values)
    s.sawtooth(values)
    s.slope_onset(values)
    s.constant_run(values)
    s.settles_at(values, 0.0)
    s.std(values)
