"""The cost table: a value whose text comes back equal, and whose text may be anything."""

from __future__ import annotations

import json
import pickle
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xrt.errors import CacheError, OptionError
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
  "format": 1,
  "launches": [
    {{"engine": "ort", "seconds": 4e-06}}
  ],
  "boundaries": [
    {{"from": "ort", "to": "tvm{{tune=8}}", "seconds": 2.5e-06, "per_byte": 1e-10}}
  ],
  "regions": [
    {{"region": "{KEY}", "engine": "ort", "seconds": 0.0125, "low": 0.012, "high": 0.0131}},
    {{"region": "{OTHER}", "engine": "toy", "why_not": "it hung"}}
  ]
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
    assert SAMPLE.to_text() == TEXT
    assert CostTable().to_text() == '{\n  "format": 1,\n  "launches": [],\n  "boundaries": [],\n  "regions": []\n}\n'


@given(tables)
def test_the_text_comes_back_equal(table: CostTable) -> None:
    again = CostTable.parse(table.to_text())
    assert again == table
    assert again.to_text() == table.to_text()
    assert CostTable.parse(table.to_text().encode()) == table
    assert pickle.loads(pickle.dumps(table)) == table


@given(tables, st.randoms(use_true_random=False))
def test_the_order_of_facts_does_not_matter(table: CostTable, chance: random.Random) -> None:
    items = list(table.regions.items())
    chance.shuffle(items)
    assert CostTable(dict(items), table.launches, table.boundaries).to_text() == table.to_text()


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


# ------------------------------------------------------------------ hostile text

ADVICE = "; delete it, and what it held is measured again"


def changed(**fields: object) -> str:
    return json.dumps({**json.loads(TEXT), **fields})


def region(**fields: object) -> str:
    return changed(regions=[{"region": KEY, "engine": "ort", "seconds": 1, "low": 1, "high": 1, **fields}])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "Expecting value: line 1 column 1 (char 0)"),
        ("[]", "the table must have format, launches, boundaries, regions and nothing else"),
        (changed(more=1), "the table must have format, launches, boundaries, regions and nothing else"),
        (changed(format=2), "it has format 2, and this version of XRT reads 1"),
        (changed(format=True), "it has format True, and this version of XRT reads 1"),
        (changed(regions={}), "it must hold a list of at most 1000000 region costs"),
        (changed(regions=[1]), "a region must have region, engine, seconds, low, high and nothing else"),
        (changed(launches=[{}]), "a launch must have engine, seconds and nothing else"),
        (region(region="abc"), "a region is named by 64 hexadecimal digits; it has 'abc'"),
        (region(region=["a"]), "a region is named by 64 hexadecimal digits; it has \"['a']\""),
        (region(engine=""), "an engine or a reason is text of 1 to 2000 characters; it has ''"),
        (region(engine=7), "an engine or a reason is text of 1 to 2000 characters; it has '7'"),
        (region(seconds="1"), "seconds are a number; it has '1'"),
        (region(seconds=True), "seconds are a number; it has 'True'"),
        (region(high=0.5), "a measured cost needs 0 <= low <= seconds <= high <= 1e+09; got seconds=1.0, low=1.0, high=0.5"),
        (region(high=float("nan")), "NaN is no number of seconds"),
        (region(high=float("inf")), "Infinity is no number of seconds"),
        (region(why_not="hung"), "a region must have region, engine, why_not and nothing else"),
        (changed(launches=[{"engine": "a", "seconds": 1}] * 2), "it tells the cost of launch a twice"),
        (
            changed(launches=[{"engine": "a", "seconds": -1}]),
            "the cost of launch on a must be seconds from 0 to 1e+09; got (-1.0,)",
        ),
    ],
)
def test_damaged_text_is_told(text: str, why: str) -> None:
    with pytest.raises(CacheError) as caught:
        CostTable.parse(text)
    assert str(caught.value) == f"the cost table cannot be read: {why}{ADVICE}"


@pytest.mark.parametrize("text", ["[" * 100_000, '{"format": ' + "9" * 10_000 + "}", b"\xff\xfe", region(high=10**400)])
def test_text_that_breaks_a_parser_is_told(text: str | bytes) -> None:
    with pytest.raises(CacheError, match=r"^the cost table cannot be read: "):
        CostTable.parse(text)


def test_text_that_is_too_long_is_not_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xrt.partition.cost_table_text.MOST_BYTES", 100)
    with pytest.raises(
        CacheError, match=r"^the cost table cannot be read: it is 101 bytes long, and 100 are the most; delete it"
    ):
        CostTable.parse(" " * 101)


@given(st.data())
def test_any_change_of_a_byte_is_read_or_told(data: st.DataObject) -> None:
    raw = bytearray(TEXT.encode())
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        table = CostTable.parse(bytes(raw))
    except CacheError:
        return
    assert CostTable.parse(table.to_text()) == table
