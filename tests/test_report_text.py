"""The report outside the browser: JSON, Markdown, terminal, page size, thinning, words, derived facts."""

from __future__ import annotations

import ast
import copy
import hashlib
import io
import json
import math
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
import support_report as made
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from rich.console import Console

import forensics.report as package
from forensics.redact import Redactor
from forensics.report import Report, plots
from forensics.report import text as t
from forensics.report.html import LARGEST, render_html
from forensics.report.json import render_json
from forensics.report.markdown import LIMIT, code, escape, render_markdown
from forensics.report.model import Cited, Curve, Page, PostMortem, RankRow, Track, localise
from forensics.report.terminal import LINES, render_terminal
from forensics.report.view import View
from forensics.report.words import Words, table

FOLDER = Path(package.__file__).parent


# JSON


def test_json_is_the_contract_document() -> None:
    model = made.lost_gpu()
    model.facts["environment"]["broken"] = math.nan
    model.facts["run"]["exit"]["surrogate"] = "a\udc80b"
    document = json.loads(render_json(model, "zh").encode())
    assert document["schema"] == "forensics.postmortem/1"
    assert document["verdict"]["title"] == "GPU 从总线上掉线"
    assert document["environment"]["broken"] is None
    assert document["run"]["exit"]["surrogate"] == "a?b"
    assert "page" not in document
    assert json.loads(render_json(model, "en"))["remedies"][0]["do"].startswith("Drain node001")


# Markdown


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("build", [made.lost_gpu, made.healthy, made.hostile, lambda: made.lost_gpu(1024)])
def test_markdown_fits_a_ticket(build: object, lang: str) -> None:
    out = render_markdown(build(), lang)  # type: ignore[operator]
    assert len(out) < LIMIT


def test_markdown_says_what_the_page_says() -> None:
    out = render_markdown(made.lost_gpu())
    for fact in (
        "infrastructure layer",
        "GPU fell off the bus",
        "rank 5",
        "host node001",
        "93 %",
        "Restart without node001",
        "hosts/node001/dmesg.log:2214",
        "+1,800 s",
        "nvidia-smi -q -i 5",
        "S6 suspect",
        "ipmitool sel elist",
    ):
        assert fact in out, fact


def test_markdown_lets_no_markup_through() -> None:
    # As a reader with raw HTML and bare links switched on would take it.
    tokens = MarkdownIt("commonmark", {"html": True}).enable("table").parse(render_markdown(made.hostile()))
    kinds = {token.type for token in tokens} | {child.type for token in tokens for child in token.children or ()}
    assert kinds & {"html_block", "html_inline", "image", "link_open", "table_open"} == set()
    assert "code_inline" in kinds
    assert escape("@team #12 [a](http://x) **b** | ![i](y)") == r"\@team \#12 \[a\](http:" + "\u2060" + r"//x) \*\*b\*\* \| \!\[i\](y)"
    assert escape("1. x") == r"\1. x"
    assert code("a`b``c") == "```a`b``c```"
    assert code("`x") == "`` `x ``"


# terminal


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("build", [made.lost_gpu, made.healthy, made.hostile])
def test_terminal_fits(build: object, width: int, lang: str) -> None:
    out = io.StringIO()
    render_terminal(build(), lang, Console(file=out, width=width, force_terminal=False))  # type: ignore[operator]
    lines = out.getvalue().splitlines()
    assert 3 <= len(lines) <= LINES
    assert "\x1b" not in out.getvalue()
    from rich.cells import cell_len

    assert max(map(cell_len, lines)) <= width


def test_terminal_names_the_place() -> None:
    out = io.StringIO()
    render_terminal(made.lost_gpu(), "en", Console(file=out, width=100))
    for fact in (
        "GPU fell off the bus",
        "rank 5",
        "node001",
        "Almost certain (93 %)",
        "Restart without node001",
        "[Infrastructure]",
        "dmesg.log:2214",
    ):
        assert fact in out.getvalue()


# the page


@pytest.mark.parametrize("world", [8, 1024, 4096])
def test_page_is_small_and_complete(world: int) -> None:
    out = render_html(made.lost_gpu(world))
    assert len(out.encode()) <= LARGEST
    assert "http://" not in re.sub(r"<script.*?</script>|<code>.*?</code>", "", out, flags=re.S)
    assert not re.search(r"<[^>]+\son\w+=", out)
    assert not re.search(r"<[^>]+\sstyle=", out)
    assert render_html(made.lost_gpu(world)) == out  # the same run gives the same page


def test_page_gives_up_context_before_size() -> None:
    model = made.lost_gpu()
    for n in range(1, 60):
        model.facts["findings"].append(
            {"rule": f"r{n}", "layer": "infra", "title": "x", "evidence": [{"file": "big.log", "line": n, "text": "y"}]}
        )
        model.page.context[f"big.log:{n}"] = [(i, "word " * 119) for i in range(1, 41)]
    assert len(render_html(model).encode()) <= LARGEST


def test_page_of_very_many_ranks_and_files_says_what_it_leaves_out() -> None:
    model = made.lost_gpu(8192)
    for row in model.page.ranks:  # each with words of its own, which do not pack
        row.last_collective = " ".join(hashlib.sha256(f"{row.rank}/{n}".encode()).hexdigest() for n in range(2))
        row.first_error = Cited("x.log", row.rank + 1, " ".join(hashlib.sha256(f"{row.rank}:{n}".encode()).hexdigest() for n in range(3)))
    out = render_html(model)
    assert len(out.encode()) <= LARGEST
    assert "7680 further ranks" in out.replace(",", "")
    assert re.search(r'class="cell t\d odd"', out)  # the guilty one is not among those left out
    assert len(model.page.ranks) == 8192  # other renderings still have all


def test_unknown_language_is_refused() -> None:
    with pytest.raises(ValueError, match="language"):
        render_html(made.healthy(), "xx")


def test_empty_model_renders_everywhere() -> None:
    report = Report(PostMortem({}))
    for lang in ("en", "zh"):
        assert "<h1" in report.html(lang)
        assert report.markdown(lang).startswith("## ")
    assert json.loads(report.json())["schema"]
    assert Words("en")("layer.unknown") in report._repr_html_()


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda s: st.lists(s, max_size=3) | st.dictionaries(st.text(max_size=5), s, max_size=3),
    max_leaves=6,
)


@given(
    st.dictionaries(
        st.sampled_from(["run", "verdict", "environment", "redactions"]),
        st.dictionaries(st.sampled_from(["layer", "title", "summary", "confidence", "culprit", "name", "first_failure"]), JUNK, max_size=4),
    )
)
def test_odd_values_do_not_raise(facts: dict) -> None:
    report = Report(PostMortem(facts))
    report.html()
    report.markdown()
    report.json()
    report.print(Console(file=io.StringIO()))


def test_notebook_shows_the_verdict_escaped() -> None:
    assert "<script" not in Report(made.hostile())._repr_html_()
    assert "GPU fell off the bus" in Report(made.lost_gpu())._repr_html_()


# derived facts


def test_sentence_in_each_case() -> None:
    assert (
        View(made.lost_gpu(), "en").sentence
        == "The infrastructure layer is responsible: GPU fell off the bus, rank 5, host node001, GPU 5, at 2026-03-14 06:18:03 UTC."
    )
    assert View(made.healthy(), "en").sentence == "No layer is at fault: the run reached its end."
    many = made.lost_gpu()
    many.facts["verdict"]["culprit"] = {"ranks": [8, 9, 10, 11, 15], "host": "node002"}
    assert "ranks 8–11, 15, host node002" in View(many, "en").sentence
    many.facts["verdict"] = {"layer": "unknown", "title": "the logs stop"}
    assert View(many, "zh").sentence.startswith("证据不足以判定")


def test_time_zone_of_the_reader() -> None:
    model = made.lost_gpu()
    model.page.zone = 8
    assert "2026-03-14 14:18:03 +08:00" in View(model, "en").sentence


def test_story_runs_in_time_with_the_root_first() -> None:
    model = made.lost_gpu()
    model.facts["verdict"]["chain"].reverse()
    story = View(model, "en").story()
    assert [e.kind for e in story] == ["healthy", "root", "consequence", "consequence", "symptom", "last"]
    assert [e.offset for e in story] == ["−3.0", "+0.0", "+0.4", "+1,800", "+1,801", "+1,804"]


def test_ranks_rare_end_is_odd_without_being_told() -> None:
    rows = [RankRow(r, last_step=100, exit="SIGABRT") for r in range(64)]
    rows[17].last_step = 99
    groups = View(PostMortem({}, Page(ranks=rows)), "en").groups()
    assert next((g.ranks, g.odd) for g in groups) == ([17], True)
    assert not groups[1].odd
    assert groups[1].tone == 0
    half = [RankRow(r, last_step=r % 2) for r in range(8)]
    assert not any(g.odd for g in View(PostMortem({}, Page(ranks=half)), "en").groups())


def test_strongest_are_three_and_different() -> None:
    model = made.lost_gpu()
    model.page.strongest = []
    places = [q.place for q in View(model, "en").strongest()]
    assert len(places) == len(set(places)) == 3
    assert places[0] == "hosts/node001/dmesg.log:2214"


def test_redacted_copy_leaves_no_secret_and_keeps_places() -> None:
    secret = "hf_" + "aBcD1234" * 5
    model = made.lost_gpu()
    model.facts["verdict"]["chain"][0]["text"] += f" {secret} /home/jdoe/x"
    model.page.context["a.log:1"] = [(1, f"token {secret}")]
    model.page.marks[0].text = secret
    before = copy.deepcopy(model)
    clean = model.redacted(Redactor())
    for out in (render_html(clean), render_markdown(clean), render_json(clean)):
        assert secret not in out
        assert "jdoe" not in out
    assert clean.facts["redactions"] == {"huggingface-token": 3, "user": 1}
    assert clean.facts["verdict"]["first_failure"]["file"] == "hosts/node001/dmesg.log"
    assert model.facts == before.facts
    assert clean.page.curves[0].value == model.page.curves[0].value


# the plot's data


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=1, max_size=4000), st.integers(60, 500))
def test_thinning_keeps_what_tells(values: list[float], limit: int) -> None:
    y = np.array(values)
    index = plots.thin(np.arange(len(y), dtype=float), y, limit, after=len(y) - 20)
    kept = y[index]
    assert (np.diff(index) > 0).all()
    assert index[0] == 0 or not np.isfinite(y[0]) or len(y) <= limit or 0 in index
    finite = y[np.isfinite(y)]
    if len(finite):
        assert np.nanmax(kept[np.isfinite(kept)]) == finite.max()
        assert np.nanmin(kept[np.isfinite(kept)]) == finite.min()
    bad = int((~np.isfinite(y)).sum())
    assert int((~np.isfinite(kept)).sum()) >= min(bad, 200)
    assert len(index) <= max(limit, 16) + 200 + 8 or len(y) <= limit
    if len(y) >= 20 and limit >= 60:
        assert set(range(len(y) - 20, len(y))) <= set(index.tolist())


def test_plot_says_that_it_is_thinned_and_keeps_the_spike() -> None:
    data = plots.payload(View(made.lost_gpu(), "en"))
    assert data["thinned"]
    loss = data["lanes"][0]["curves"][0]
    assert len(loss["y"]) < made.STEPS
    assert max(loss["y"]) == 3.75
    assert loss["step"][loss["y"].index(3.75)] == 1700
    assert {lane["id"] for lane in data["lanes"]} >= {"loss", "kl", "memory_used", "temperature"}


def test_plot_without_times_runs_over_steps() -> None:
    page = Page(curves=[Curve("loss", [1.0, 2.0, math.nan], [None] * 3, [1, 2, 3])])
    data = plots.payload(View(PostMortem({}, page), "en"))
    assert data["axis"] == "step"
    assert data["lanes"][0]["curves"][0]["y"] == [1.0, 2.0, None]
    assert data["lanes"][0]["curves"][0]["bad"] == [(2, "nan")]
    assert plots.payload(View(made.healthy(), "en"))["lanes"] == []


def test_plot_of_many_gpus_shows_the_guilty_and_the_odd() -> None:
    def track(n: int, level: float, culprit: bool = False) -> Track:
        return Track("h", str(n), [0.0, 10.0], [level, level], culprit=culprit)

    tracks = [track(n, 100.0) for n in range(200)]
    tracks[150] = track(150, 40.0)
    tracks[3] = track(3, 100.0, culprit=True)
    page = Page(tracks=tracks)
    data = plots.payload(View(PostMortem({}, page), "en"))
    names = [c["name"] for c in data["lanes"][0]["curves"]]
    assert {"h GPU 150", "h GPU 3"} <= set(names)
    assert len(names) == plots.GPUS
    assert "184 of 200 GPUs" in data["notes"][-1]


def test_zoom_ranges_end_with_the_run() -> None:
    spans = plots.payload(View(made.lost_gpu(), "en"))["ranges"]
    assert set(spans) == {"all", "hour", "ten", "minute", "around"}
    end = round((made.FAIL + 1803.5) * 1000)
    assert spans["minute"] == [end - 60_000, end + 3000]


# words


def test_every_word_stands_in_both_languages() -> None:
    for section, items in table().items():
        for key, texts in items.items():
            assert set(texts) == {"en", "zh"}, f"{section}.{key}"
            assert set(re.findall(r"{(\w+)}", texts["en"])) == set(re.findall(r"{(\w+)}", texts["zh"])), f"{section}.{key}"


def test_every_word_is_known_and_used() -> None:
    sources = "\n".join(
        path.read_text("utf-8") for path in [*FOLDER.glob("*.py"), *(FOLDER / "templates").glob("*.j2"), FOLDER / "page.js"]
    )
    used = set(re.findall(r"""["'(]([a-z_]+\.[A-Za-z_0-9-]+)["']""", sources))
    known = {f"{section}.{key}" for section, items in table().items() for key in items}
    prefixes = set(re.findall(r"""["']([a-z_]+)\.(?:["']\s*[~+]|\{)""", sources))
    unused = {
        word
        for word in known
        if word not in used and word.partition(".")[0] not in prefixes and not word.startswith(("layer", "lane", "kind", "redaction"))
    }
    assert sorted(unused) == []


def test_code_holds_no_words_of_a_language() -> None:
    for path in FOLDER.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                assert not re.search(r"[\u4e00-\u9fff]", node.value), path
    tomllib.loads((FOLDER / "words.toml").read_text("utf-8"))


def test_localise() -> None:
    pair = {"en": "a", "zh": "b"}
    assert localise({"x": [pair, {"en": "only"}], "y": {"en": 1}}, "zh") == {"x": ["b", "only"], "y": {"en": 1}}


# small texts


def test_visible_shows_what_would_deceive() -> None:
    assert t.visible("a\x1b[31mred\x1b[0m\x00\u202eb\r\n") == "ared␀\ufffdb"
    assert len(t.visible("x" * 10_000)) == t.LINE_LIMIT


@given(st.text())
def test_visible_is_one_bounded_line(text: str) -> None:
    out = t.visible(text)
    assert len(out) <= t.LINE_LIMIT
    assert len(out.splitlines()) <= 1
    out.encode()


def test_numbers_and_times() -> None:
    assert t.ranges([3, 1, 2, 7, 9, 8, 5]) == "1–3, 5, 7–9"
    assert t.offset(-0.04) == "+0.0"
    assert t.offset(-3) == "−3.0"
    assert t.offset(1804) == "+1,804"
    assert t.size(3_400_120) == "3.4 MB"
    assert t.clock("2026-03-14T14:02:11+08:00") == "2026-03-14 14:02:11 +08:00"
    assert t.clock("not a time") == ""
    assert t.clock(1e300) == ""
    assert t.number(3.0) == "3"
    assert Cited("a", 3).key == "a:3"


def test_every_kind_of_redaction_has_words() -> None:
    from forensics.redact import PERSONAL, SECRETS

    assert {pattern.kind for pattern in (*SECRETS, *PERSONAL)} | {"host", "ip"} == set(table()["redaction"])


def test_silent_failure_puts_the_last_step_behind_the_root() -> None:
    model = made.lost_gpu()
    model.page.healthy = Cited("logs/train.rank0.log", 48000, "step 2399", made.FAIL + 900)
    story = View(model, "en").story()
    assert [e.kind for e in story] == ["root", "consequence", "step", "consequence", "symptom", "last"]
    assert story[2].label == "Last step, 2399"


def test_a_reading_is_shown_with_the_line_it_was_read_from() -> None:
    model = PostMortem({}, Page(context={"a.log:3": [(2, "x"), (3, "{'reward': 0.0, 'step': 1}"), (4, "y")]}))
    quote = View(model, "en").quote(Cited("a.log", 3, "reward = 0 (step 1)"))
    assert quote is not None
    assert (quote.text, quote.note) == ("{'reward': 0.0, 'step': 1}", "reward = 0 (step 1)")
    same = View(model, "en").quote(Cited("a.log", 3, "'reward': 0.0"))
    assert same is not None
    assert (same.text, same.note) == ("'reward': 0.0", "")


def test_readings_that_share_a_stamp_are_spread_and_said_to_be() -> None:
    x = np.array([0.0, 0.0, 0.0, 0.0, 8.0, 8.0, 20.0, 20.0])
    assert plots.spread(x, 22.0) == 5
    assert x.tolist() == [0.0, 2.0, 4.0, 6.0, 8.0, 14.0, 20.0, 21.0]
    alone = np.array([1.0, 2.0])
    assert plots.spread(alone, 9.0) == 0
    page = Page(curves=[Curve("loss", [1.0] * 9, [0.0, 0.0, 0.0, 5.0, 5.0, 5.0, 9.0, 9.0, 9.0], list(range(9)))], ended=10.0)
    data = plots.payload(View(PostMortem({}, page), "en"))
    assert data["axis"] == "time"
    assert any("spread evenly" in note for note in data["notes"])


def test_one_stamp_for_everything_means_steps() -> None:
    page = Page(curves=[Curve("loss", [1.0] * 9, [5.0] * 9, list(range(9)))], ended=10.0, first_failure=5.0)
    data = plots.payload(View(PostMortem({}, page), "en"))
    assert data["axis"] == "step"
    assert data["lines"] == []


def test_long_lines_are_quoted_around_the_reading() -> None:
    raw = "{" + ", ".join(f"'metric{n}': '     0.{n}'" for n in range(200)) + ", 'reward': 0.0, " + "'z': 1, " * 50 + "}"
    quote = View(PostMortem({}, Page(context={"a.log:3": [(3, raw)]})), "en").quote(Cited("a.log", 3, "reward = 0 (step 1)"))
    assert quote is not None
    assert "'reward': 0.0" in quote.text
    assert quote.text.startswith("… ")
    assert len(quote.text) < 240
