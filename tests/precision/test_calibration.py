"""Calibration of modules, tables of ranges, and collectors of ranges against their definitions in NumPy."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra.numpy import arrays

import xrt
from tests.passes.quantize.models import draw, make_function
from xrt.errors import CalibrationError, CalibrationWarning, OptionError
from xrt.formats.calibration_table import CalibrationTable, ValueRange
from xrt.graph import Function, Node, Value
from xrt.models import load
from xrt.passes import infer_shapes
from xrt.precision import collectors
from xrt.precision.collectors import BINS, LEVELS, METHODS, MagnitudeHistogram, find_entropy_threshold, make_collector
from xrt.testing.generate import rename_values

X = draw(1, 3, 6)


def product() -> Function:
    nodes = [Node("MatMul", ("x", "w"), ("a",)), Node("Relu", ("a",), ("r",)), Node("MatMul", ("r", "v"), ("y",))]
    return make_function(nodes, {"w": draw(2, 6, 5), "v": draw(3, 5, 4)}, ("n", 6))  # type: ignore[arg-type]  # a symbolic dim


@pytest.mark.parametrize("engine", ["toy", "ort"])
def test_the_extremes_are_those_of_the_values(engine: str) -> None:
    batches = [X, draw(5, 7, 6)]
    table = xrt.calibrate(product(), batches, engine=engine)
    assert [key.name for key in table.ranges] == ["x", "r"]
    values = [[batch, np.maximum(batch @ draw(2, 6, 5), 0)] for batch in batches]
    for place, key in enumerate(table.ranges):
        assert key.low == pytest.approx(min(float(value[place].min()) for value in values), abs=1e-5)
        assert key.high == pytest.approx(max(float(value[place].max()) for value in values), rel=1e-5)
        assert key.batches == 2


def test_batches_come_in_every_form_of_a_call() -> None:
    with xrt.XRTModule(product(), engine="toy") as module:
        tables = [module.calibrate(batches) for batches in ([X], [[X]], [(X,)], [{"x": X}], iter([X]))]
    assert all(table == tables[0] for table in tables)


def test_large_values_are_observed_in_several_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    with xrt.XRTModule(product(), engine="toy") as module:
        whole = module.calibrate([X])
        monkeypatch.setattr(collectors, "MAX_GROUP_BYTES", 1)
        assert module.calibrate([X]) == whole


@pytest.mark.parametrize("engine", ["toy", "ort"])
def test_what_the_model_updates_in_place_stays_as_it_was(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A calibration runs the model several times for large values."""
    monkeypatch.setattr(collectors, "MAX_GROUP_BYTES", 1)
    nodes = [Node("Add", ("x", "s"), ("n",)), Node("MatMul", ("n", "w"), ("a",)), Node("MatMul", ("s", "w"), ("b",))]
    nodes += [Node("Relu", ("a",), ("r",)), Node("MatMul", ("r", "w"), ("c",)), Node("Sum", ("b", "c"), ("y",))]
    function = make_function(nodes, {"w": draw(2, 6, 6)}, (3, 6), "y", "n")
    function = function.replace(inputs=(*function.inputs, Value("s", function.inputs[0].type)))
    state = 2 * X
    with xrt.XRTModule(xrt.stateful(infer_shapes(function), {"s": "n"}), engine=engine) as module:
        table = module.calibrate([(X, state)])
    np.testing.assert_array_equal(state, 2 * X)
    by_name = {key.name: key for key in table.ranges}
    assert by_name["s"].most == 2 * X.max() and by_name["n"].most == pytest.approx(3 * X.max())


BAD = {
    "nothing": ([], "calibration has seen no batch; pass a list with at least one"),
    "one array": (X, "batches= must be a list of batches, each the arguments of one call; got one ndarray: pass [x]"),
    "NaN": ([X, np.full_like(X, np.nan)], "input 'x' of batch 2 of batches= has 18 NaN and 0 infinities among its 18 numbers"),
    "an infinity": ([np.where(X > 0, np.float32(np.inf), X)], "input 'x' of batch 1 of batches= has 0 NaN and"),
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
    again = xrt.calibrate(other, [image], engine="ort")
    assert {(f.key, f.low, f.high) for f in again.ranges} == {(f.key, f.low, f.high) for f in table.ranges}


def make_range(key: int, low: float, high: float, batches: int = 1) -> ValueRange:
    low, high = sorted((low, high))
    return ValueRange(key=f"{key:032x}", low=low, high=high, least=low, most=high, batches=batches, name=f"v{key}")


RANGES = st.builds(make_range, st.integers(0, 5), *[st.floats(-1e6, 1e6)] * 2, st.integers(1, 9))
TABLES = st.lists(RANGES, unique_by=lambda found: found.key).map(
    lambda found: CalibrationTable(method="minmax", ranges=tuple(found))
)


@pytest.mark.slow
@given(TABLES)
def test_tables_are_read_as_they_were_written(table: CalibrationTable) -> None:
    assert CalibrationTable.loads(table.dumps()) == table


GOOD = CalibrationTable(method="minmax", ranges=(make_range(1, 0, 2),)).dumps()
DAMAGED = {
    "": "line 1 is not JSON: Expecting value",
    "[]": "it is not a calibration table",
    "{}": "it is not a calibration table: its kind is None, not 'xrt calibration table'",
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


Array = np.ndarray[Any, Any]
NUMBERS = st.floats(-(2.0**100), 2.0**100, width=32)
BATCHES = st.lists(arrays(np.float32, st.integers(1, 40), elements=NUMBERS), min_size=1, max_size=6)


def collect(method: str, batches: list[Array], **parameters: float) -> tuple[float, float]:
    collector = make_collector(method, parameters)
    for batch in batches:
        collector.add(batch)
    return collector.choose()


@pytest.mark.slow
@given(BATCHES)
def test_a_histogram_does_not_depend_on_the_order_of_the_data(batches: list[Array]) -> None:
    streamed, whole = MagnitudeHistogram(), MagnitudeHistogram()
    for batch in batches:
        streamed.add(batch)
    whole.add(np.concatenate(batches[::-1]))
    assert np.array_equal(streamed.counts, whole.counts)
    assert (streamed.limit, streamed.zeros, streamed.total) == (whole.limit, whole.zeros, sum(map(len, batches)))
    if whole.limit:
        magnitudes = np.abs(np.concatenate(batches).astype(np.float64))
        counts, _ = np.histogram(magnitudes[magnitudes > 0], BINS, (0, whole.limit))
        assert np.array_equal(streamed.counts, counts)


@pytest.mark.slow
@given(BATCHES, st.sampled_from([*METHODS]))
def test_every_range_is_within_the_extremes(batches: list[Array], method: str) -> None:
    low, high = collect(method, batches)
    least, most = min(float(b.min()) for b in batches), max(float(b.max()) for b in batches)
    slack = 1e-6 * max(abs(least), abs(most))  # of an average
    assert least - slack <= low <= high <= most + slack
    if method == "minmax":
        assert (low, high) == (least, most)


def test_a_moving_average_is_the_recurrence() -> None:
    batches = [np.array([-1.0, 2.0]), np.array([-3.0, 1.0]), np.array([0.0, 8.0])]
    low, high = collect("moving_average", batches, momentum=0.5)
    assert (low, high) == (((-1 - 3) / 2 + 0) / 2, ((2 + 1) / 2 + 8) / 2)


@pytest.mark.parametrize("percentile", [50.0, 90.0, 99.9, 100.0])
def test_a_percentile_is_numpys_up_to_a_bin(percentile: float) -> None:
    batches = [np.random.default_rng(seed).standard_normal(500).astype(np.float32) for seed in range(4)]
    batches = [np.append(batch, np.float32(6)) for batch in batches]
    low, high = collect("percentile", batches, percentile=percentile)
    exact = float(np.percentile(np.abs(np.concatenate(batches)), percentile, method="inverted_cdf"))
    width = math.ldexp(1.0, math.frexp(max(float(np.abs(b).max()) for b in batches))[1]) / BINS
    assert abs(high - exact) <= width
    assert low in (-high, min(float(b.min()) for b in batches))


def find_by_definition(numbers: Array) -> float:
    """Return the threshold of least squared error, tried at the end of each bin on the numbers themselves."""
    limit = math.ldexp(1.0, math.frexp(float(np.abs(numbers).max()))[1])
    best = (math.inf, 0.0)
    for end in (np.arange(BINS) + 1) * limit / BINS:
        low, high = max(float(numbers.min()), -end), min(float(numbers.max()), end)
        step = (max(high, 0) - min(low, 0)) / (LEVELS - 1)
        error = float(((numbers - np.clip(numbers, -end, end)) ** 2).sum() + numbers.size * step**2 / 12)
        best = min(best, (error, float(end)))
    return best[1]


@pytest.mark.parametrize("is_positive", [True, False])
def test_the_least_squared_error_is_found(is_positive: bool) -> None:
    numbers = np.append(np.random.default_rng(1).laplace(size=20000), 30.0)
    numbers = np.abs(numbers) if is_positive else numbers
    _, high = collect("mse", [numbers])
    assert high == pytest.approx(find_by_definition(numbers), rel=0.05)
    assert high < 30  # one far number is cut off


def diverge_by_definition(counts: Array, end: int, levels: int) -> float:
    """Return what Migacz's pseudo-code gives, by loops."""
    reference = counts[:end].astype(float)
    reference[-1] += counts[end:].sum()
    rounded = np.zeros(end)
    for level in range(levels):
        inside = [i for i in range(end) if i * levels // end == level]
        used = [i for i in inside if counts[i]]
        for i in used:
            rounded[i] = counts[inside].sum() / len(used)
    p, q = reference / reference.sum(), rounded / rounded.sum()
    return float(sum(math.inf if q[i] == 0 else p[i] * math.log(p[i] / q[i]) for i in range(end) if p[i]))


def test_entropy_finds_the_least_divergence() -> None:
    histogram = MagnitudeHistogram()
    histogram.add(np.random.default_rng(2).laplace(size=20000))
    last = int(np.flatnonzero(histogram.counts)[-1]) + 1
    ends = sorted({*range(128, last + 1, max(1, (last - 128) // 128)), last})
    best = min((diverge_by_definition(histogram.counts, end, 128), end) for end in [*ends[:: len(ends) // 8], last])
    threshold = find_entropy_threshold(histogram, 128)
    assert diverge_by_definition(histogram.counts, round(threshold / histogram.width), 128) <= best[0] + 1e-12


def test_zeros_alone_have_the_range_of_zero() -> None:
    assert {collect(method, [np.zeros(4), np.zeros(2)]) for method in METHODS} == {(0.0, 0.0)}


@pytest.mark.parametrize(
    ("method", "parameters", "message"),
    [
        ("entropie", {}, "there is no calibration method 'entropie'. Did you mean 'entropy'? There is: minmax, moving_average"),
        ("minmax", {"momentum": 0.5}, "calibration method 'minmax' has no parameter 'momentum'; it has none."),
        ("percentile", {"percent": 9}, "'percent'; its parameters are percentile. Did you mean 'percentile'?"),
        ("percentile", {"percentile": 0}, "percentile must be a number above 0, at most 100; got 0"),
        ("moving_average", {"momentum": "x"}, "momentum must be a number above 0, at most 1; got 'x'"),
    ],
)
def test_impossible_methods_are_refused(method: str, parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError) as caught:
        make_collector(method, parameters)
    assert message in str(caught.value)
