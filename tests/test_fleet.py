"""The calculation about a fleet: its laws, and that the page has what comes of the record."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tools.fleet import PAGE, ProcessorKind, compute_fleet, compute_record, make_page, read_record

KINDS = (ProcessorKind("a", 0.75, "ort", 20.0, 10.0), ProcessorKind("b", 0.25, "openvino", 40.0, 20.0))
INPUTS = {
    "hosts": 1000.0,
    "price": 0.1,
    "utilization": 0.5,
    "tuning": 60.0,
    "bundle": 1e9,
    "lock": 1e3,
    "start": 0.2,
    "first": 0.3,
    "compile": 2.0,
    "store": 1e9,
    "link": 5e8,
    "boot": 30.0,
}


def test_the_page_is_that_of_the_record() -> None:
    assert PAGE.read_text(encoding="utf-8") == make_page()


def test_every_input_says_where_it_is_from() -> None:
    record = read_record()
    for one in (*record["inputs"].values(), *record["processors"]):
        assert one["kind"] in ("measured", "computed", "chosen", "assumed")
        assert one["how"]


def test_the_figures_follow_from_the_inputs() -> None:
    found = compute_fleet(INPUTS, KINDS)
    assert found.rate == 1000 * (0.75 * 20 + 0.25 * 40)
    assert found.rate_of_one_plan == 1000 * (0.75 * 20 + 0.25 * 20)
    assert found.cost == pytest.approx(1e6 * 100 / (25_000 * 0.5 * 3600))
    assert found.central == 1000.0
    assert (found.rounds, found.peers) == (10, 20.0)
    assert found.ready == pytest.approx(30 + 20 + 0.2 + 0.3)
    assert found.ready_compiling - found.ready == pytest.approx(2.0)
    assert found.tuning_hours_alone / found.tuning_hours == pytest.approx(500)


def test_twice_the_hosts_cost_the_same_per_request_and_need_one_round_more() -> None:
    once, twice = compute_fleet(INPUTS, KINDS), compute_fleet({**INPUTS, "hosts": 2000.0}, KINDS)
    assert twice.cost == pytest.approx(once.cost)
    assert twice.rounds == once.rounds + 1
    assert twice.rate == 2 * once.rate


def test_shares_must_add_up() -> None:
    with pytest.raises(ValueError, match=r"^the shares of the kinds add up to 1\.5, and not to 1$"):
        compute_fleet(INPUTS, (replace(KINDS[0], share=0.5), replace(KINDS[1], share=1.0)))
    assert math.isclose(sum(one["share"] for one in read_record()["processors"]), 1.0)
    assert compute_record(read_record()).rate > 0
