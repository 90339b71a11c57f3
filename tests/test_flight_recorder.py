"""Flight-recorder dumps: reading untrusted pickles, and who held the others up."""

from __future__ import annotations

import contextlib
import json
import pickle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support_lines import head, parse_file

from forensics.run import Run
from parsers.flight_recorder import PARSER, rank_of, read_plain
from rules.flight_recorder import judge


def entry(
    group: str, number: int, seq: int, state: str = "scheduled", op: str = "all_reduce", sizes: Any = ((1024,),), p2p: int = 0
) -> dict[str, Any]:
    return {
        "record_id": seq,
        "pg_id": number,
        "process_group": (group, "dp" if group != "0" else "default_pg"),
        "collective_seq_id": seq,
        "p2p_seq_id": p2p,
        "op_id": seq,
        "profiling_name": f"nccl:{op}",
        "time_created_ns": 1_700_000_000_000_000_000 + seq,
        "input_sizes": [list(s) for s in sizes],
        "input_dtypes": ["BFloat16"],
        "output_sizes": [list(s) for s in sizes],
        "state": state,
        "retired": state == "completed",
        "timeout_ms": 600_000,
        "is_p2p": bool(p2p),
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None,
    }


def dump(groups: dict[str, tuple[list[int], int, int]], entries: list[dict[str, Any]]) -> dict[str, Any]:
    """groups: name -> (members, last enqueued, last completed)."""
    return {
        "version": "2.10",
        "pg_config": {name: {"name": name, "desc": "dp", "ranks": str(members)} for name, (members, _, _) in groups.items()},
        "pg_status": {
            str(i): {"last_enqueued_collective": enqueued, "last_started_collective": -1, "last_completed_collective": completed}
            for i, (_, enqueued, completed) in enumerate(groups.values())
        },
        "entries": entries,
    }


def run_of(dumps: dict[int, dict[str, Any]], as_json: bool = False) -> Run:
    events = []
    for rank, content in dumps.items():
        path = f"fr/node-a_rank_{rank}" + (".json" if as_json else "")
        data = json.dumps(content).encode() if as_json else pickle.dumps(content, protocol=2)
        assert PARSER.recognises(head(path, data)) > 0.5
        events += parse_file(PARSER, path, data).events
    return Run("run", events=events)


def healthy(rank: int, world: int = 4) -> dict[str, Any]:
    return dump({"0": (list(range(world)), 10, 9)}, [entry("0", 0, 9, "completed"), entry("0", 0, 10)])


@pytest.mark.parametrize("as_json", [False, True])
def test_the_rank_that_never_enqueued_is_the_culprit(as_json: bool) -> None:
    dumps = {r: healthy(r) for r in range(4)}
    dumps[2] = dump({"0": ([0, 1, 2, 3], 9, 9)}, [entry("0", 0, 9, "completed")])
    (finding,) = judge(run_of(dumps, as_json))
    assert finding.rule == "flight-recorder-missing"
    assert finding.ranks == [2]
    assert finding.facts["waiting"] == [0, 1, 3]
    assert finding.facts["seq"] == 10


def test_a_rank_without_a_dump_is_the_culprit_when_all_others_wait() -> None:
    (finding,) = judge(run_of({r: healthy(r) for r in (0, 1, 3)}))
    assert finding.ranks == [2]


def test_with_most_dumps_missing_nobody_is_accused() -> None:
    (finding,) = judge(run_of({r: healthy(r, 16) for r in range(2)}))
    assert finding.ranks == []


def test_waiting_is_followed_through_groups_to_its_end() -> None:
    # tensor groups 1 = {0, 1}, 2 = {2, 3}; world group 0.  Rank 3 stopped: 2 waits for it in group 2, and 0, 1 wait for both in group 0.
    world = list(range(4))
    front = dump({"0": (world, 5, 4), "1": ([0, 1], 8, 8)}, [entry("0", 0, 5)])
    dumps = {
        0: front,
        1: front,
        2: dump({"0": (world, 4, 4), "2": ([2, 3], 8, 7)}, [entry("2", 1, 8)]),
        3: dump({"0": (world, 4, 4), "2": ([2, 3], 7, 7)}, []),
    }
    (finding,) = judge(run_of(dumps))
    assert finding.ranks == [3]


def test_different_operations_under_one_number() -> None:
    dumps = {r: healthy(r) for r in range(4)}
    dumps[1] = dump({"0": ([0, 1, 2, 3], 10, 9)}, [entry("0", 0, 10, op="_all_gather_base")])
    found = list(judge(run_of(dumps)))
    assert [f.rule for f in found] == ["flight-recorder-mismatch"]
    assert found[0].cause == "comms/collective-mismatch"
    assert found[0].ranks == [1]


def test_different_sizes_matter_only_where_they_must_agree() -> None:
    def sized(op: str) -> list[Any]:
        dumps = {r: dump({"0": ([0, 1, 2], 10, 9)}, [entry("0", 0, 10, op=op, sizes=((64 if r else 32,),))]) for r in range(3)}
        return [f for f in judge(run_of(dumps)) if f.rule == "flight-recorder-mismatch"]

    assert sized("all_reduce")[0].ranks == [0]
    assert sized("all_to_all") == []


def test_the_device_that_stopped_is_behind_in_completing() -> None:
    dumps = {r: dump({"0": ([0, 1, 2, 3], 12, 11)}, [entry("0", 0, 12)]) for r in range(4)}
    dumps[3] = dump({"0": ([0, 1, 2, 3], 12, 9)}, [entry("0", 0, s) for s in (10, 11, 12)])
    (finding,) = judge(run_of(dumps))
    assert (finding.rule, finding.ranks) == ("flight-recorder-stalled", [3])


def test_receiver_waits_for_the_sender_of_a_pipeline() -> None:
    groups = {"0": ([0, 1], 6, 5)}
    dumps = {
        0: dump(groups, [entry("0", 0, 3, op="recv 0<-1", p2p=6)]),
        1: dump({"0": ([0, 1], 5, 5)}, [entry("0", 0, 3, "completed", op="send 1->0", p2p=5)]),
    }
    (finding,) = judge(run_of(dumps))
    assert finding.ranks == [1]


def test_nothing_unfinished_excludes() -> None:
    (finding,) = judge(run_of({r: dump({"0": ([0, 1], 9, 9)}, [entry("0", 0, 9, "completed")]) for r in range(2)}))
    assert finding.outcome == "excluded"


class Evil:
    def __reduce__(self) -> Any:
        return (print, ("executed",))


@pytest.mark.parametrize("content", [{"entries": [Evil()]}, {"entries": [{1, 2}], "x": complex(1, 2)}])
def test_pickles_of_anything_but_plain_data_are_refused(content: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="plain data"):
        read_plain(pickle.dumps(content, protocol=2))
    assert capsys.readouterr().out == ""


def test_a_huge_memo_index_is_refused() -> None:
    with pytest.raises(ValueError, match="memo"):
        read_plain(b"\x80\x02]r\xff\xff\xff\x7f.")


def test_a_shared_nest_does_not_blow_up() -> None:
    nest: list[Any] = [1]
    for _ in range(60):
        nest = [nest, nest]
    content = healthy(0)
    content["entries"][0]["input_sizes"] = nest
    rows = parse_file(PARSER, "rank_0", pickle.dumps(content, protocol=2))
    assert len(rows.events) == 1


@pytest.mark.parametrize(
    ("path", "rank"), [("nccl_trace_rank_17", 17), ("a/_dump_3", 3), ("host-2_rank_5.pkl", 5), ("fr/gpu07_rank12.json", 12), ("dump", None)]
)
def test_ranks_from_names(path: str, rank: int | None) -> None:
    assert rank_of(path, {}) == rank
    assert rank_of(path, {"rank": 1}) == 1


@settings(max_examples=80, deadline=None)
@given(st.binary(max_size=400), st.integers(0, 200))
def test_damaged_dumps_raise_only_value_errors(junk: bytes, cut: int) -> None:
    whole = pickle.dumps(healthy(0), protocol=2)
    for data in (junk, b"\x80\x02" + junk, whole[:cut] + junk, whole[: len(whole) - cut % len(whole)]):
        with contextlib.suppress(ValueError):
            parse_file(PARSER, "rank_0", data)
