"""The account of a chosen plan: predicted and measured time."""

from __future__ import annotations

import json

import pytest

from tests.placement.test_lock import NET, mixed, single
from xrt.graph import shape_key
from xrt.partition.cost_table import BOUNDARY, CostTable, MeasuredCost
from xrt.placement.report import CostReport, make_report
from xrt.placement.result import CandidateComparison, CandidateResult, TuningResult
from xrt.placement.search import format_seconds

TOY = "toy{native=off}"


def table(*, wrong: bool = False) -> CostTable:
    """The mixture's regions at 1, 2 and 3 ms, the whole at 9 on ort and 20 on toy."""
    costs = CostTable()
    for number, launch in enumerate(mixed().launches, 1):
        cost = "wrong: it differs" if wrong and number == 2 else MeasuredCost.exactly(number * 1e-3)
        costs = costs.with_region(shape_key(launch.function), launch.engine, cost)
    for spec, seconds in (("ort", 9e-3), (TOY, 20e-3)):
        (launch,) = single(spec).launches
        costs = costs.with_region(shape_key(launch.function), spec, MeasuredCost.exactly(seconds))
    return costs


def tuned() -> TuningResult:
    won = CandidateResult(mixed(), "won", 6.5e-3, 6.4e-3, 6.6e-3, 0.7, 0.69, 0.71, regions=(1.1e-3, 2.1e-3, 3.1e-3))
    lost = CandidateResult(single("ort"), "lost", 9e-3, 8.9e-3, 9.2e-3, 1.0, 1.0, 1.0)
    return TuningResult(mixed(), race=CandidateComparison((won, lost), 12, 1))


def account(known: CostTable) -> CostReport:
    return make_report(mixed(), tuned(), NET, known)


def test_each_part_is_reported() -> None:
    result = account(table())
    assert result.predicted == pytest.approx(6e-3 + 2 * BOUNDARY[0], rel=1e-5)
    assert result.measured == 6.5e-3
    assert [(part.engine, part.predicted, part.measured) for part in result.parts] == [
        ("ort", 1e-3, 1.1e-3),
        (TOY, 2e-3, 2.1e-3),
        ("ort", 3e-3, 3.1e-3),
    ]
    assert str(result).splitlines()[:4] == [
        "predicted 6.01 ms for a call; it took 6.5 ms:",
        "  xrt_ort_0 on ort, 2 nodes: predicted 1 ms (measured), took 1.1 ms",
        "  xrt_toy_1 on toy{native=off}, 2 nodes: predicted 2 ms (measured), took 2.1 ms",
        "  xrt_ort_2 on ort, 1 node: predicted 3 ms (measured), took 3.1 ms",
    ]


def test_what_is_impossible_has_no_number() -> None:
    result = account(table(wrong=True))
    assert result.predicted is None and result.parts[1].predicted is None and result.parts[1].source == "impossible"
    assert "predicted unknown (impossible wrong: it differs), took 2.1 ms" in str(result.parts[1])
    assert "Infinity" not in json.dumps(result.to_dict(), allow_nan=False)


def test_of_nothing_known_there_is_no_account_but_the_time_in_the_race() -> None:
    result = account(CostTable())
    assert (result.predicted, result.measured, result.parts, str(result)) == (None, 6.5e-3, (), "")


@pytest.mark.parametrize(
    ("seconds", "told"), [(None, "unknown"), (0.0, "0 us"), (9.9996e-4, "1000 us"), (0.0123456, "12.35 ms"), (2.0, "2 s")]
)
def test_times_are_short(seconds: float | None, told: str) -> None:
    assert format_seconds(seconds) == told
