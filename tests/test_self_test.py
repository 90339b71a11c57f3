"""Readings of bandwidth self-tests, and the small host parsers on hostile text."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from support_lines import feed

from parsers import cpu_limits, self_test

TEXT = """all-reduce of 1 MiB over 8 ranks: 0.045 ms, bus bandwidth 40.78 GB/s
all-reduce of 256 MiB over 8 ranks: 2.607 ms, bus bandwidth 180.20 GB/s
all-reduce self-test passed
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 178.431
"""


def test_our_own_and_nccl_tests() -> None:
    facts = {key: value for key, value, _ in feed(self_test.PARSER, TEXT).facts}
    assert facts == {
        "self_test.bandwidth.1MiB": 40.78,
        "self_test.bandwidth.256MiB": 180.2,
        "self_test.bandwidth.average": 178.431,
        "self_test.ranks": 8,
    }


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            ["bus bandwidth", "nr_throttled ", "nr_periods 7", "# Avg ", ": ", "9" * 30, "\x00", "all-reduce of 1 MiB over 1 ranks: "]
        )
        | st.text(max_size=20)
    )
)
def test_hostile_text_raises_nothing(pieces: list[str]) -> None:
    text = "".join(pieces)
    for parser in (self_test.PARSER, cpu_limits.PARSER):
        feed(parser, text)
        feed(parser, "\n".join([text, f"bus bandwidth {text}", f"nr_throttled {text}"]))
