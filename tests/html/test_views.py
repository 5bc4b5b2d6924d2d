"""What notebooks show, read without a browser: it escapes names, needs nothing else, and is not loaded by a plain call."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import xrt
from tests.bench.test_page import Reader
from tests.html.views import VIEWS, make_chain, make_explanation, make_plan, make_profile, make_result
from xrt.engines.contract.registry import find_declaration, list_by_rank
from xrt.formats.placement_file import SearchRecord
from xrt.graph import Function
from xrt.html.views import (
    MAX_BOXES,
    PALETTE,
    ROOT_CLASS,
    ROOT_SELECTOR,
    Box,
    assign_colors,
    draw_boxes,
    load_cell_style,
    load_page_style,
    render_page,
)
from xrt.module.explain import render_explanation_page
from xrt.partition import Plan
from xrt.placement.result import TuningResult
from xrt.runtime import Profile


def read(value: Any) -> Reader:
    return Reader(value._repr_html_())


ACTIVE = {"script", "iframe", "object", "img", "video", "form", "base", "link", "html"}
"""Elements that load or run something, or that a cell cannot have."""


@pytest.mark.parametrize("kind", VIEWS)
def test_a_cell_is_one_part_that_needs_nothing_else_and_runs_nothing(kind: str) -> None:
    text = VIEWS[kind]._repr_html_()
    assert VIEWS[kind]._repr_html_() == text
    result = Reader(text)
    (first, attributes), (second, _), *_ = result.elements
    assert (first, attributes, second) == ("div", {"class": ROOT_CLASS}, "style")
    assert not {name for name, _ in result.elements} & ACTIVE
    names = {name for _, element in result.elements for name in element}
    assert not names & {"src", "href", "xlink:href", "action", "style", "id"}
    assert not [name for name in names if name.startswith("on")]
    assert "url(" not in text and "@import" not in text
    assert all(element.get("aria-label") for _, element in result.elements if element.get("role") in ("img", "region"))
    assert "<script>fetch('https://example.org/')</script>" in result.text or kind.startswith("plain ")
    assert "\u202e" not in result.text


def test_every_rule_of_a_cell_is_about_the_view_alone() -> None:
    text = re.sub(r"@media[^{]*\{((?:[^{}]*\{[^{}]*\})*)\s*\}", r"\1", load_cell_style())
    selectors = [item for rule in re.findall(r"([^{}]+)\{", text) for item in split_outside_of_parentheses(rule)]
    assert len(selectors) > 80
    assert [item for item in selectors if ROOT_SELECTOR not in item] == []
    assert "rem" not in load_cell_style() and "html" not in load_cell_style()
    assert "html" in load_page_style()


def split_outside_of_parentheses(rule: str) -> list[str]:
    return [part.strip() for part in re.split(r",(?![^(]*\))", rule)]


def test_a_function_is_drawn_node_by_node_or_summed_up() -> None:
    small, large = read(make_chain(5)), read(make_chain(300))
    assert sum(element.get("class") == "box" for _, element in small.elements) == 5 + 2
    assert sum(element.get("class") == "box" for _, element in large.elements) == MAX_BOXES + 2
    assert "The graph of main: 300 nodes, drawn in 16 boxes" in large.text
    assert "v0 input float32[2,3]" in small.text and "v5 output float32[2,3]" in small.text and "v0: float32[2,3]" in small.text
    assert "print(function) has its nodes one by one." in large.text
    assert "24 bytes" in small.text, "what flows along an edge"


def test_a_plan_has_its_regions_and_its_reasons() -> None:
    result = read(make_plan(4))
    assert "Plan: 4 nodes in 4 regions" in result.text and "xla (fallback)" in result.text
    assert "n0, n1, n2, n3 4 ort no kernel" in result.text
    assert all(f"r{number}" in result.text for number in range(4))
    assert sum(element.get("class") == "box" for _, element in result.elements) == 4 + 2
    assert "drawn as 16 boxes of neighbors" in make_plan(40)._repr_html_()


DECLARED = {"a": "blue", "b": "blue", "c": "green", "odd": "mauve"}


@pytest.mark.parametrize(
    ("engines", "expected"),
    [
        (["a"], ["blue"]),
        (["a", "b"], ["blue", "vermilion"]),
        (["b", "a{x=1}", "b{x=2}"], ["blue", "vermilion", "blue"]),
        (["odd", "c", "new"], ["vermilion", "green", "yellow"]),
        ([f"n{number}" for number in range(10)], [*PALETTE, PALETTE[-1], PALETTE[-1]]),
    ],
)
def test_engines_have_the_colors_that_they_declare(engines: list[str], expected: list[str]) -> None:
    assert assign_colors(engines, lambda name: DECLARED.get(name, "")) == dict(zip(engines, expected, strict=True))


def test_the_shipped_engines_have_colors_of_their_own() -> None:
    colors = [find_declaration(name).color for name in list_by_rank() if name != "tensorrt"]
    assert len({*colors} & {*PALETTE}) == len(colors) == 7
    assert all(f".{color} {{ fill: var(--{color})" in load_page_style() for color in PALETTE)


def test_what_has_no_nodes_has_no_drawing_and_a_plan_says_so() -> None:
    model = make_chain(1)
    empty = Function(model.inputs, model.inputs, opsets={"": 20})
    assert "svg" not in {name for name, _ in read(empty).elements}
    assert "It has no regions: the outputs are inputs or constants." in read(Plan(empty, ("ort",))).text


def test_a_profile_has_its_shares_and_xrts_own_work() -> None:
    text = read(make_profile()).text
    assert "r0 ort cpu 2 125 ms 50 %" in text.replace("\u00a0", " ")
    assert "2 regions, 300 ms a call, of it 17 % outside of the regions" in text.replace("\u00a0", " ")
    assert "nothing profiled yet" in read(Profile(())).text


def test_a_search_has_its_candidates_and_the_times_of_its_plan() -> None:
    text = read(make_result()).text
    assert "Placed by measurement: ort + xla" in text
    assert "ort + xla chosen 2 1 ms 0.50 (0.40 to 0.60)" in text and "failed" in text and "the best single engine" in text
    assert "Times of the regions" in text and "400 µs" in text
    other = replace(make_result(), plan=make_plan(5))
    assert "Times of the regions" not in read(other).text, "they are of another plan"
    assert "Placed by the order of the list" in read(TuningResult(make_plan(1), SearchRecord(), "priority")).text


def test_an_explanation_is_a_page_too_and_its_data_has_no_plan() -> None:
    result = make_explanation()
    page = Reader(render_explanation_page(result, "<model>"))
    assert page.text.count("Where the nodes of <model> are") == 2
    assert "svg" in {name for name, _ in page.elements}
    assert "plan" not in result.to_dict() and "plan=" not in repr(result)
    assert result == replace(result, plan=None)
    m = xrt.XRTModule(make_chain(3), "toy")
    assert m.explain().plan == m.plan


@pytest.mark.slow
def test_a_plain_call_loads_nothing_of_it() -> None:
    plain = """
import sys, numpy, xrt
class Net(xrt.Graph):
    def build(self, x):
        return xrt.ops.Relu(x)
m = xrt.XRTModule(Net())
m(numpy.ones((2, 3), "float32")), str(m.plan), str(m.explain()), str(m.profile())
found = [name for name in sys.modules if name.endswith(".html") or ".html." in name]
print(sorted([*found, *({"rich", "jinja2", "graphlay"} & {*sys.modules})]))
"""
    completed = subprocess.run([sys.executable, "-c", plain], capture_output=True, text=True, check=True)
    assert completed.stdout.strip() == "[]"


def test_a_module_and_what_it_reports_are_tables_and_pictures() -> None:
    with xrt.XRTModule(make_chain(3), engine="toy") as m:
        before = read(m)
        assert "made by the first call" in before.text and "Inputs and outputs" in before.text
        x = np.ones(m.inputs[0].type.shape, "float32")  # type: ignore[union-attr]  # a tensor of known sizes
        m(x)
        assert "svg" in {name for name, _ in read(m).elements}
        checked, memory = read(m.verify(x)), read(m.memory())
    assert "table" in {name for name, _ in checked.elements} and "the whole" in checked.text and "agrees" in checked.text
    assert "held between calls" in memory.text and "CheckVerdict" not in checked.text


def test_a_line_of_a_box_is_clipped_to_it() -> None:
    wide = "W" * 60
    drawing = draw_boxes([Box(("ort", wide), "blue", "a region")], {(0, 1): 0, (1, 2): 0}, "a plan")
    facts = {"name": "m", "doc": "", "facts": {}, "ends": [], "operators": [], "text": ""}
    text = re.sub(r"\s+", " ", render_page("function.html", "m", drawing=drawing, **facts))
    (box,) = (box for box in drawing["boxes"] if box["color"])
    clip = f'<svg x="{box["left"] + 18}" y="{box["top"]}" width="{box["width"] - 26}" height="{box["height"]}"> <text y="21"'
    assert clip in text and f"{wide}</text> </svg>" in text
