"""Calibration of modules, and tables of ranges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

import xrt
from tests.passes.quantize.models import draw, make_function
from xrt.errors import CalibrationError, CalibrationWarning, OptionError
from xrt.formats.calibration_table import CalibrationTable, ValueRange
from xrt.graph import Function, Node, Value
from xrt.models import load
from xrt.passes import infer_shapes
from xrt.precision import collectors
from xrt.testing.generate import rename_values

X = draw(1, 3, 6)


def product() -> Function:
    nodes = [Node("MatMul", ("x", "w"), ("a",)), Node("Relu", ("a",), ("r",)), Node("MatMul", ("r", "v"), ("y",))]
    return make_function(nodes, {"w": draw(2, 6, 5), "v": draw(3, 5, 4)}, ("n", 6))  # type: ignore[arg-type]  # a symbolic dim


@pytest.mark.parametrize("engine", ["toy", "ort"])
def test_the_extremes_are_those_of_the_values(engine: str) -> None:
    batches = [X, draw(5, 7, 6)]
    table = xrt.calibrate(product(), batches, engine=engine)
    assert [found.name for found in table.ranges] == ["x", "r"]
    values = [[batch, np.maximum(batch @ draw(2, 6, 5), 0)] for batch in batches]
    for place, found in enumerate(table.ranges):
        assert found.low == pytest.approx(min(float(value[place].min()) for value in values), abs=1e-5)
        assert found.high == pytest.approx(max(float(value[place].max()) for value in values), rel=1e-5)
        assert found.batches == 2


def test_batches_come_in_every_form_of_a_call() -> None:
    with xrt.XRTModule(product(), engine="toy") as module:
        tables = [module.calibrate(batches) for batches in ([X], [[X]], [(X,)], [{"x": X}], iter([X]))]
    assert all(table == tables[0] for table in tables)


def test_large_values_are_observed_in_several_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    with xrt.XRTModule(product(), engine="toy") as module:
        whole = module.calibrate([X])
        monkeypatch.setattr(collectors, "MOST_BYTES", 1)
        assert module.calibrate([X]) == whole


@pytest.mark.parametrize("engine", ["toy", "ort"])
def test_what_the_model_updates_in_place_stays_as_it_was(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A calibration runs the model several times for large values."""
    monkeypatch.setattr(collectors, "MOST_BYTES", 1)
    nodes = [Node("Add", ("x", "s"), ("n",)), Node("MatMul", ("n", "w"), ("a",)), Node("MatMul", ("s", "w"), ("b",))]
    nodes += [Node("Relu", ("a",), ("r",)), Node("MatMul", ("r", "w"), ("c",)), Node("Sum", ("b", "c"), ("y",))]
    function = make_function(nodes, {"w": draw(2, 6, 6)}, (3, 6), "y", "n")
    function = function.replace(inputs=(*function.inputs, Value("s", function.inputs[0].type)))
    state = 2 * X
    with xrt.XRTModule(xrt.stateful(infer_shapes(function), {"s": "n"}), engine=engine) as module:
        table = module.calibrate([(X, state)])
    np.testing.assert_array_equal(state, 2 * X)
    by_name = {one.name: one for one in table.ranges}
    assert by_name["s"].most == 2 * X.max() and by_name["n"].most == pytest.approx(3 * X.max())


BAD = {
    "nothing": ([], "calibration got no batches; pass at least one"),
    "one array": (X, "needs a list of batches, each what a call takes; got one ndarray: pass [x]"),
    "NaN": ([X, np.full_like(X, np.nan)], "input 'x' of calibration batch 2 has 18 NaN and 0 infinities among its 18 numbers"),
    "an infinity": ([np.where(X > 0, np.float32(np.inf), X)], "input 'x' of calibration batch 1 has 0 NaN and"),
    "an inner infinity": ([np.full_like(X, 3e38)], "value 'r' of calibration batch 1 has "),
}


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
@pytest.mark.parametrize("case", BAD)
def test_bad_data_is_one_clear_error(case: str) -> None:
    batches, message = BAD[case]
    with xrt.XRTModule(product(), engine="ort") as module:
        with pytest.raises(CalibrationError) as caught:
            module.calibrate(batches)
        assert message in str(caught.value)
        assert np.isfinite(module(X)).all()


def test_one_batch_is_a_warning_where_several_are_needed() -> None:
    with xrt.XRTModule(product(), engine="toy") as module:
        module.calibrate([X])
        with pytest.warns(CalibrationWarning, match="calibration by 'entropy' has seen one batch"):
            module.calibrate([X], "entropy")


def test_what_cannot_be_calibrated_is_refused() -> None:
    with xrt.XRTModule(make_function([Node("Relu", ("x",), ("y",))], {}, (3, 6)), engine="toy") as module:
        with pytest.raises(CalibrationError, match="nothing of model 'main' can be quantized"):
            module.calibrate([X])
        with pytest.raises(OptionError, match="there is no calibration method 'x'"):
            module.calibrate([X], "x")
    with (
        xrt.XRTModule(product(), engine="toy", shapes=xrt.Buckets()) as module,
        pytest.raises(OptionError, match="without shapes=Buckets"),
    ):
        module.calibrate([X])


# ---------------------------------------------------------------------- tables


@pytest.mark.slow
def test_a_table_outlasts_a_renaming_and_a_file(tmp_path: Path) -> None:
    function = load("mobilenet", image=32, width=10, classes=3)
    image = draw(4, 1, 3, 32, 32)
    table = xrt.calibrate(function, [image], engine="ort")
    table.save(tmp_path / "table.json")
    read = CalibrationTable.load(tmp_path / "table.json")
    assert read == table and read.dumps() == table.dumps()
    other = rename_values(function, {})
    assert set(read.bind(other)) == {f"{name}'" for name in read.bind(function)}
    assert xrt.calibrate(other, [image], engine="ort").compare(table) == []


def make_range(key: int, low: float, high: float, batches: int = 1) -> ValueRange:
    low, high = sorted((low, high))
    return ValueRange(key=f"{key:032x}", low=low, high=high, least=low, most=high, batches=batches, name=f"v{key}")


RANGES = st.builds(make_range, st.integers(0, 5), *[st.floats(-1e6, 1e6)] * 2, st.integers(1, 9))
TABLES = st.lists(RANGES, unique_by=lambda found: found.key).map(
    lambda found: CalibrationTable(method="minmax", ranges=tuple(found))
)


@pytest.mark.slow
@given(TABLES, TABLES, TABLES)
def test_tables_of_extremes_merge_in_any_order(a: CalibrationTable, b: CalibrationTable, c: CalibrationTable) -> None:
    def facts(table: CalibrationTable) -> set[tuple[Any, ...]]:
        return {(f.key, f.low, f.high, f.batches) for f in table.ranges}

    assert facts(a.merge(b).merge(c)) == facts(c.merge(b.merge(a)))
    assert all(f.low <= g.low <= g.high <= f.high for g in a.ranges if (f := a.merge(b).find(g.key)) is not None)
    assert CalibrationTable.loads(a.dumps()) == a
    assert a.compare(a) == [] and len(a.compare(CalibrationTable(method="minmax"))) == len(a)


def test_other_methods_average_by_batches_and_do_not_mix() -> None:
    first = CalibrationTable(method="mse", ranges=(make_range(1, 0, 2, 3),))
    second = CalibrationTable(method="mse", ranges=(make_range(1, 0, 6, 1), make_range(2, 0, 1)))
    merged = first.merge(second)
    assert [(f.high, f.most, f.batches) for f in merged.ranges] == [(3, 6, 4), (1, 1, 1)]
    assert [str(found) for found in first.compare(second, 0.1)] == ["v1: 0 to 2 and 0 to 6", "v2: no range and 0 to 1"]
    with pytest.raises(CalibrationError, match="cannot merge a calibration table of method 'mse'"):
        first.merge(CalibrationTable(method="minmax"))


GOOD = CalibrationTable(method="minmax", ranges=(make_range(1, 0, 2),)).dumps()
DAMAGED = {
    "": "line 1 is not JSON: Expecting value",
    "[]": "it is no calibration table",
    "{}": "it is no calibration table: its kind is not 'xrt calibration table'",
    GOOD.replace('"low": 0', '"low": 9'): "ranges[0]: needs low <= high and least <= most",
    GOOD.replace('"low": 0', '"low": "x"'): "ranges[0].low: expected `float`, got `str`",
    GOOD.replace("0001", "000x"): "ranges[0].key: expected `str` matching regex",
    GOOD.replace('"name"', '"nick"'): "unknown field `nick`",
    GOOD.replace(
        "  ]", ', {"key": "' + f"{1:032x}" + '", "low": 0, "high": 0, "least": 0, "most": 0}]'
    ): "two ranges of one value",
}


@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_table_says_what_is_wrong(text: str, tmp_path: Path) -> None:
    (tmp_path / "table.json").write_text(text)
    with pytest.raises(CalibrationError) as caught:
        CalibrationTable.load(tmp_path / "table.json")
    assert str(caught.value).startswith(f"cannot read the calibration table '{tmp_path}/table.json': ")
    assert DAMAGED[text] in str(caught.value)


def test_a_table_that_cannot_be_read_or_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CalibrationError, match="No such file or directory"):
        CalibrationTable.load(tmp_path / "absent.json")
    with pytest.raises(CalibrationError, match="it is not a regular file"):
        CalibrationTable.load(tmp_path)
    with pytest.raises(CalibrationError, match="cannot write"):
        CalibrationTable.loads(GOOD).save(tmp_path / "absent" / "table.json")
