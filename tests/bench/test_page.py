"""The page of a comparison, read without a browser: what is on it, that nothing a user named breaks it, that it calls nobody."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from itertools import combinations
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from xrt.bench import Agreement, BenchCandidate, BenchReport, Group, ReportRow, Timing, page
from xrt.bench.job_server import StartupReport
from xrt.bench.report import summarize
from xrt.engines.toy import Toy
from xrt.graph import FrozenDict
from xrt.html.views import INPUTS, MAX_BOXES, Box, MeanCall, PlanRegion, RegionInput, draw_boxes, draw_plan, render_page
from xrt.measure.statistics import compute_round_ratio
from xrt.models import load
from xrt.partition import ClusteringOptions, partition
from xrt.partition.plan import list_regions

HOSTILE = "</title><script>fetch('https://example.org/')</script><img src=https://example.org/x onerror=alert(1)>\"'&\u202e\x00"
LONG = "models/" + "a_name_without_any_place_to_break_" * 8 + ".onnx"


def rounds(seconds: float, spread: float = 0.02, seed: int = 0, count: int = 20) -> tuple[float, ...]:
    """Return that many rounds around a time."""
    return tuple(seconds * np.exp(spread * np.random.default_rng(seed).standard_normal(count)))


def chain(*engines: str) -> tuple[PlanRegion, ...]:
    """Return regions that run one after the other, each on the result of the one before."""
    last = len(engines) - 1
    return tuple(
        PlanRegion(
            f"xrt_{engine}_{index}",
            engine,
            3 + index,
            (("Conv", 2), ("Relu", 1 + index)),
            (RegionInput(index - 1 if index else INPUTS, f"v{index}: float32[1,64,56,56]", 802_816),),
            index == last,
        )
        for index, engine in enumerate(engines)
    )


def branched() -> tuple[PlanRegion, ...]:
    """Return a fork with a long way around, and one that merely waits."""
    reads = [[INPUTS], [0], [0], [1, 2], [0, 3], [4]]
    engines = ("ort", "xla", "openvino", "ort", "xla", "ort")
    regions = chain(*engines)
    results = [
        replace(region, reads=tuple(RegionInput(source, f"v{source}: float32[8,8]", 256) for source in sources))
        for region, sources in zip(regions, reads, strict=True)
    ]
    results[5] = replace(results[5], reads=(*results[5].reads, RegionInput(2, "")))
    return tuple(results)


def started(plan: Sequence[PlanRegion], *, steady: bool = True) -> StartupReport:
    engines = tuple(dict.fromkeys(region.engine for region in plan))
    spent = (0.31, 1.72, 0.0124)
    regions = tuple(region.engine for region in plan)
    return StartupReport(
        tuple(f"lib{e} 1.2" for e in engines), regions, *spent, 21, steady, 0.0026, 92_000_000, 311_000_000, tuple(plan), engines
    )


def row(name: str, seconds: float, plan: Sequence[PlanRegion], best: Timing | None = None, **more: Any) -> ReportRow:
    """Return a candidate that ran."""
    timing = Timing(rounds(seconds, seed=len(name)))
    shares = np.linspace(1, 2, len(plan))
    spent = tuple(float(share) for share in 0.97 * seconds * shares / shares.sum())
    return replace(
        ReportRow(
            BenchCandidate.parse(name),
            "slower",
            "",
            started(plan),
            Agreement("", 2.4e-6, 3e-5),
            timing.seconds,
            timing.median,
            timing.interval,
            compute_round_ratio(timing.seconds, (best or timing).seconds),
            MeanCall(20, seconds, spent),
        ),
        **more,
    )


def group(model: str = "squeezenet") -> Group:
    """Return one of everything: the fastest, a tie, slower ones, one that is cut, a wrong one and failures."""
    first = row("ort,xla,openvino", 0.00271, branched(), verdict="fastest")
    best = Timing(first.rounds)
    reason = "strict: 2 nodes are on no engine\n  LRN_1 (LRN): the library computes it wrongly\n  <b>TopK_2</b> (TopK): refused"
    rows = (
        first,
        row("openvino", 0.00273, chain("openvino"), best, verdict="tie"),
        row("ort", 0.0033, chain("ort"), best),
        row(
            "tvm,ort with Conv|MatMul=ort",
            0.0061,
            chain(*["ort", "tvm"] * 45),
            best,
            start=started(chain(*["ort", "tvm"] * 45), steady=False),
        ),
        row("iree", 0.31, chain("iree"), best),
        row("xla", 0.0012, chain("xla"), verdict="wrong", reason="differs in 2 of 1000 elements, by 0.31", ratio=None),
        ReportRow(BenchCandidate.parse("toy"), "failed", reason),
        ReportRow(BenchCandidate.parse("nobody"), "failed", "the process ended (SIGSEGV): it said nothing"),
    )
    return Group(model, None, 2, rows)


def report(*groups: Group, command: str = "xrt bench squeezenet -e ort --html report.html") -> BenchReport:
    machine = {"processor": "A processor with a name (TM) of some length @ 2.40GHz", "cores": 2, "load": "0.10", "numpy": "2.4.6"}
    settings = {"rounds": 20, "turn_seconds": 0.05, "limit_seconds": 120.0, "seed": 0}
    return BenchReport(FrozenDict(machine), FrozenDict(settings), groups or (group(),), "2026-11-21 10:00", command)


VOID = {"meta", "link", "br"}


class Reader(HTMLParser):
    """Reads a page strictly: what is opened is closed, in the reverse order; an attribute stands once."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs)
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


PAGE = page(report())
READ = Reader(PAGE)


def test_it_tells_everything() -> None:
    for item in (
        "ort,xla,openvino takes 2.72 ms (2.69 to 2.74) a call, the least of all; openvino is a tie with it",
        "$ xrt bench squeezenet -e ort --html report.html",
        "a tie where the interval ends below 1.1, and too noisy to rank otherwise",
        "differs in 2 of 1000 elements, by 0.31",
        "strict: 2 nodes are on no engine LRN_1 (LRN): the library computes it wrongly <b>TopK_2</b> (TopK): refused",
        "the process ended (SIGSEGV): it said nothing",
        "2.4e-06",
        "not steady",
        "311.0 MB",
        "fp32",
        "A processor with a name (TM)",
        "openvino libopenvino 1.2",
        "2: the budget of each candidate",
        "2026-11-21 10:00 UTC",
        "Not all results agree",
        "openvino, ort, iree and xla each take the whole model as one region.",
    ):
        assert item in READ.text, item


def test_how_auto_chose_is_reported() -> None:
    chosen = row("auto", 0.002, chain("ort", "xla"), verdict="fastest")
    assert chosen.start is not None
    start = replace(chosen.start, placement=("placed by measurement: ort + xla", "  lost: ort, 2.1 ms <b>"))
    read = Reader(page(report(Group("m", None, 1, (replace(chosen, start=start),)))))
    assert "How auto chose its plan: placed by measurement: ort + xla lost: ort, 2.1 ms <b>" in read.text


def test_it_needs_nothing_else_and_runs_nothing() -> None:
    names = {name for name, _ in READ.elements}
    assert not names & {"script", "iframe", "object", "img", "video", "form", "base"}
    loads = [
        value
        for _, element in READ.elements
        for name, value in element.items()
        if name in ("src", "href", "xlink:href", "action")
    ]
    assert loads == ["data:,"]
    assert not [name for _, element in READ.elements for name in element if name.startswith("on")]
    assert "url(" not in PAGE and "@import" not in PAGE
    (policy,) = [element["content"] for _, element in READ.elements if element.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None and policy.startswith("default-src 'none'")


def test_tables_and_what_scrolls_have_names_and_groups_have_links() -> None:
    assert {element.get("scope") for name, element in READ.elements if name == "th"} == {"col", "row"}
    assert PAGE.count("<table>") == PAGE.count("<caption>") > 1
    parts = [element for _, element in READ.elements if element.get("role") in ("img", "region")]
    assert parts and all(element["aria-label"] for element in parts)
    assert {element.get("tabindex") for element in parts if element["role"] == "region"} == {"0"}, "by keyboard"
    read = Reader(page(report(group("one"), group("other"))))
    assert [element["href"] for name, element in read.elements if name == "a"] == ["#group-1", "#group-2"]
    assert [element["id"] for name, element in read.elements if name == "h2" and "id" in element] == ["group-1", "group-2"]


def test_what_a_user_named_is_text_and_nothing_else() -> None:
    hostile = BenchCandidate((HOSTILE,))
    fine = row("ort", 0.002, chain("ort", "toy"), verdict="fastest")
    regions = tuple(replace(region, name=HOSTILE, engine="ort", operators=((HOSTILE, 2),)) for region in chain("ort", "ort"))
    rows = (replace(fine, start=started(regions)), ReportRow(hostile, "failed", HOSTILE))
    result = report(Group(HOSTILE, None, 1, rows), command=f"xrt bench {HOSTILE}")
    read = Reader(page(replace(result, machine={HOSTILE: HOSTILE})))
    assert not {name for name, _ in read.elements} & {"script", "img"}
    assert read.text.count("<script>fetch('https://example.org/')</script>") > 6
    assert "\u202e" not in read.text and "\x00" not in read.text, "a name may not turn around what follows it"


def sound(*seconds: float, verdicts: tuple[str, ...]) -> Group:
    best = Timing(rounds(seconds[0]))
    names = ("ort", "openvino", "xla")
    rows = [row(name, s, chain(name), best, verdict=v) for name, s, v in zip(names, seconds, verdicts, strict=False)]
    return Group("m", None, 1, tuple(rows))


@pytest.mark.parametrize(
    ("group", "pattern"),
    [
        (
            sound(0.001, 0.001, 0.001, verdicts=("fastest", "tie", "tie")),
            r"ort takes 995 µs \(.*\) a call, the least of all; openvino and xla are ties with it: the difference lies within .*",
        ),
        (
            sound(0.001, 0.002, 0.003, verdicts=("fastest", "slower", "slower")),
            r".* the fastest\. openvino, the next, takes \d\.\d\d \(.* to .*\) times as long\.",
        ),
        (sound(0.001, verdicts=("fastest",)), ".*; nothing else ran and agreed with the reference."),
        (
            Group("m", None, 1, (ReportRow(BenchCandidate(("ort",)), "failed", "no"),)),
            "No candidate ran and agreed with the reference.",
        ),
    ],
)
def test_the_answer_says_which_is_fastest_and_by_how_much(group: Group, pattern: str) -> None:
    assert re.fullmatch(pattern, summarize(group))
    assert summarize(group) in Reader(page(report(group))).text


def test_a_plan_is_reported_as_plain_facts_and_comes_back_from_a_line() -> None:
    plan = partition(load("mlp", layers=2, features=3, hidden=4, classes=2), [Toy()], ClusteringOptions(maximum_nodes=2))
    regions = list_regions(plan)
    assert len(regions) == len(plan.launches) > 1
    assert [reading.source for region in regions for reading in region.reads] == [INPUTS, *range(len(regions) - 1)]
    assert [reading.size for reading in regions[0].reads] == [12]
    assert [region.is_output for region in regions] == [False] * (len(regions) - 1) + [True]
    assert msgspec.convert(json.loads(json.dumps(msgspec.to_builtins(started(regions)))), StartupReport) == started(regions)


GRAPHS = st.integers(0, 12).flatmap(
    lambda n: st.tuples(st.just(n), st.lists(st.tuples(st.integers(0, n), st.integers(1, n + 1)).filter(lambda e: e[0] < e[1])))
)
"""How many inner boxes, and the edges between all."""


@pytest.mark.slow
@settings(deadline=None)
@given(GRAPHS)
def test_boxes_stand_below_what_they_read_and_never_on_each_other(graph: tuple[int, list[tuple[int, int]]]) -> None:
    inner, edges = graph
    flows = {edge: 256 * number for number, edge in enumerate(sorted(set(edges)))}
    sample = draw_boxes([Box(("engine",), "blue")] * inner, flows, "a graph")
    boxes = sample["boxes"]
    assert all(boxes[source]["top"] + boxes[source]["height"] < boxes[target]["top"] for source, target in flows)
    for item, other in combinations(boxes, 2):
        across = max(item["left"], other["left"]) - min(item["left"] + item["width"], other["left"] + other["width"])
        down = max(item["top"], other["top"]) - min(item["top"] + item["height"], other["top"] + other["height"])
        assert max(across, down) > 0
    for box in boxes:
        assert min(box["left"], box["top"]) >= 0
        assert box["left"] + box["width"] <= sample["width"] and box["top"] + box["height"] <= sample["height"]
    assert draw_boxes([Box(("engine",), "blue")] * inner, dict(reversed(flows.items())), "a graph")["boxes"] == boxes


def draw(plan: Sequence[PlanRegion], colors: dict[str, str]) -> Reader:
    """Return the drawing of a plan, as a Function's page has it."""
    facts = {"name": "m", "doc": "", "facts": {}, "ends": [], "operators": [], "text": ""}
    return Reader(render_page("function.html", "m", drawing=draw_plan("m", plan, None, colors), **facts))


def test_a_small_plan_has_a_box_for_each_region_and_an_edge_for_each_flow() -> None:
    plan = branched()
    read = draw(plan, {"ort": "blue", "xla": "green", "openvino": "orange"})
    assert sum(element.get("class") == "box" for _, element in read.elements) == len(plan) + 2
    pairs = {(reading.source, index) for index, region in enumerate(plan) for reading in region.reads}
    assert sum(element.get("class") == "edge" for _, element in read.elements) == len(pairs) + 1


@pytest.mark.parametrize("count", [MAX_BOXES, MAX_BOXES + 1, 500])
def test_a_large_plan_is_summed_up_without_leaving_a_region_out(count: int) -> None:
    read = draw(chain(*["ort", "tvm"] * count)[:count], {"ort": "blue", "tvm": "pink"})
    assert sum(element.get("class") == "box" for _, element in read.elements) == MAX_BOXES + 2
    titles = [word for word in read.words if word.startswith("xrt_")]
    assert len(titles) == MAX_BOXES
    assert sum(int(element[1]) if (element := re.search(r"; (\d+) regions;", title)) else 1 for title in titles) == count
