"""The cost table: a value that comes back equal from a placement file."""

from __future__ import annotations

import pickle
import random

import pytest
from hypothesis import given, strategies as st

from xrt.errors import OptionError, PlacementFileError
from xrt.formats.placement_file import PlacementFile, dumps, loads
from xrt.partition import CostTable, MeasuredCost
from xrt.partition.cost_table import BOUNDARY, LAUNCH, MOST_TEXT

KEY = "0123456789abcdef" * 4
OTHER = "f" * 64

SAMPLE = (
    CostTable()
    .with_region(OTHER, "toy", "it hung")
    .with_region(KEY, "ort", MeasuredCost(0.0125, 0.012, 0.0131))
    .with_launch("ort", 4e-06)
    .with_boundary("ort", "tvm{tune=8}", 2.5e-06, 1e-10)
)

TEXT = f"""{{
  "costs": {{
    "boundaries": [
      {{"per_byte": 1e-10, "seconds": 2.5e-06, "source": "ort", "target": "tvm{{tune=8}}"}}
    ],
    "launches": [
      {{"engine": "ort", "seconds": 4e-06}}
    ],
    "regions": [
      {{"engine": "ort", "high": 0.0131, "low": 0.012, "region": "{KEY}", "seconds": 0.0125}},
      {{"engine": "toy", "region": "{OTHER}", "why_not": "it hung"}}
    ]
  }},
  "format": 1,
  "kind": "xrt placement"
}}
"""

seconds = st.floats(0, 1e3)
costs = st.one_of(
    st.text(min_size=1), st.tuples(seconds, seconds, seconds).map(sorted).map(lambda s: MeasuredCost(s[1], s[0], s[2]))
)
specs = st.text(min_size=1, max_size=20)
tables = st.builds(
    CostTable,
    st.dictionaries(st.tuples(st.sampled_from([KEY, OTHER]), specs), costs),
    st.dictionaries(specs, seconds),
    st.dictionaries(st.tuples(specs, specs), st.tuples(seconds, seconds)),
)


def test_the_text_is_sorted_one_fact_on_a_line() -> None:
    assert dumps(SAMPLE.to_document()) == TEXT
    assert dumps(CostTable().to_document()) == '{\n  "costs": {},\n  "format": 1,\n  "kind": "xrt placement"\n}\n'


@pytest.mark.slow
@given(tables)
def test_the_table_comes_back_equal(table: CostTable) -> None:
    assert CostTable.from_document(loads(dumps(table.to_document()))) == table
    assert pickle.loads(pickle.dumps(table)) == table


@pytest.mark.slow
@given(tables, st.randoms(use_true_random=False))
def test_the_order_of_facts_does_not_matter(table: CostTable, chance: random.Random) -> None:
    items = list(table.regions.items())
    chance.shuffle(items)
    assert CostTable(dict(items), table.launches, table.boundaries).to_document() == table.to_document()


def test_what_is_not_known_has_a_default() -> None:
    table = CostTable()
    assert table.region(KEY, "ort") is None
    assert (table.launch("ort"), table.boundary("ort", "toy")) == (LAUNCH, BOUNDARY)
    assert SAMPLE.launch("ort") == 4e-06
    assert SAMPLE.boundary("ort", "tvm{tune=8}") == (2.5e-06, 1e-10)


def test_tables_are_merged_and_the_later_counts() -> None:
    later = CostTable().with_region(KEY, "ort", "wrong").with_launch("toy", 1e-6)
    both = SAMPLE.merge(later)
    assert both.region(KEY, "ort") == "wrong"
    assert both.region(OTHER, "toy") == "it hung"
    assert (both.launch("toy"), both.launch("ort")) == (1e-6, 4e-6)
    assert SAMPLE.region(KEY, "ort") == MeasuredCost(0.0125, 0.012, 0.0131), "a table is a value: merging changes none"


def test_a_long_reason_is_cut() -> None:
    cost = CostTable().with_region(KEY, "ort", "x" * 10_000).region(KEY, "ort")
    assert cost == "x" * (MOST_TEXT - 3) + "..."


@pytest.mark.parametrize(
    ("cost", "message"),
    [
        ((2, 3, 4), "a measured cost needs 0 <= low <= seconds <= high <= 1e+09; got seconds=2, low=3, high=4"),
        ((1, -1, 4), "a measured cost needs 0 <= low <= seconds <= high <= 1e+09; got seconds=1, low=-1, high=4"),
        (
            (float("nan"), 0, 1),
            "a measured cost needs 0 <= low <= seconds <= high <= 1e+09; got seconds=nan, low=0, high=1",
        ),
        (("1", 0, 1), "a measured cost is three numbers of seconds; got '1', 0, 1"),
        ((True, 0, 1), "a measured cost is three numbers of seconds; got True, 0, 1"),
    ],
)
def test_impossible_measurements(cost: tuple[float, float, float], message: str) -> None:
    with pytest.raises(OptionError) as caught:
        MeasuredCost(*cost)
    assert str(caught.value) == message


def test_impossible_costs() -> None:
    with pytest.raises(OptionError, match=r"^the cost of region \('k', 'ort'\) must be Measured or a reason; got ''$"):
        CostTable({("k", "ort"): ""})
    with pytest.raises(OptionError, match=r"^the cost of launch on ort must be seconds from 0 to 1e\+09; got \(-1.0,\)$"):
        CostTable().with_launch("ort", -1.0)
    with pytest.raises(
        OptionError, match=r"^the cost of boundary \('a', 'b'\) must be seconds from 0 to 1e\+09; got \(1.0, inf\)$"
    ):
        CostTable().with_boundary("a", "b", 1.0, float("inf"))


@pytest.mark.parametrize("section", ["regions", "launches", "boundaries"])
def test_a_cost_that_is_listed_twice_is_refused(section: str) -> None:
    costs = SAMPLE.to_document().costs
    assert costs is not None
    document = PlacementFile(costs=costs.replace(**{section: getattr(costs, section)[:1] * 2}))
    with pytest.raises(PlacementFileError, match=rf"^costs\.{section}: a cost is listed twice$"):
        CostTable.from_document(document)


def test_another_placement_file_is_no_cost_table() -> None:
    with pytest.raises(PlacementFileError, match=r"^it has no section 'costs', so it is no cost table$"):
        CostTable.from_document(PlacementFile())
