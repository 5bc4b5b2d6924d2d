"""Rows as inputs: by name, by size, in order, and with errors for single ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import xrt
from tests.integrations.models import FOUR, LOOKUP, SCALE, TEXT, write_model
from xrt.errors import InputError, OptionError
from xrt.integrations.batch import RowModel, open_model
from xrt.integrations.batch.model import choose_batch
from xrt.ray import Predictor


def _open(tmp_path, text, **options):
    return RowModel(open_model(write_model(tmp_path, text), engine="toy"), **options)


def _objects(items):
    found = np.empty(len(items), object)
    found[:] = items
    return found


def test_columns_fill_inputs_by_name_and_others_are_passed_on(tmp_path):
    rows = _open(tmp_path, SCALE, columns={"bias": "b"}, outputs={"y": "out"})
    x, b = np.arange(6, dtype="float32").reshape(2, 3), np.array([10.0, 20.0])  # float64 becomes what the input takes
    found = rows({"id": np.array([7, 8]), "x": x, "b": b})
    assert list(found) == ["id", "out"]
    np.testing.assert_array_equal(found["out"], 2 * x + b[:, None])
    assert found["out"].dtype == np.float32


def test_a_block_of_the_right_type_is_taken_as_it_is(tmp_path, monkeypatch):
    rows = _open(tmp_path, FOUR.replace("[4,2]", "[n,2]"))
    block = np.ones((5, 2), "float32")
    block.flags.writeable = False
    seen = []
    call = rows.module
    monkeypatch.setattr(rows, "module", _Spy(call, seen))
    rows({"x": block})
    assert seen[0][0] is block


class _Spy:
    def __init__(self, module, seen):
        self.outputs, self._module, self._seen = module.outputs, module, seen

    def __call__(self, *values):
        self._seen.append(values)
        return self._module(*values)


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=12), st.sampled_from([None, 1, 3]))
def test_ragged_rows_equal_single_ones_and_keep_their_order(tmp_path_factory, lengths, batch):
    rows = _open(tmp_path_factory.mktemp("ragged"), TEXT, batch=batch)
    ids = [np.arange(length) + number for number, length in enumerate(lengths)]
    found = rows({"ids": _objects(ids)})
    for number, row in enumerate(ids):
        one = row[None].astype("float32")
        np.testing.assert_array_equal(found["squares"][number], (one * one)[0])
        np.testing.assert_allclose(found["mean"][number], (one * one).mean(), rtol=1e-6)


def test_a_fixed_batch_is_filled_up_and_cut(tmp_path):
    rows = _open(tmp_path, FOUR)
    x = np.arange(12, dtype="float32").reshape(6, 2)
    np.testing.assert_array_equal(rows({"x": x})["y"], -x)
    assert rows.batch == 4
    with pytest.raises(OptionError) as caught:
        _open(tmp_path, FOUR, batch=3)
    assert str(caught.value) == "batch is 3, and the model takes 4 rows in each call; leave batch out"


def test_rows_that_cannot_be_run_are_kept_apart(tmp_path):
    rows = _open(tmp_path, TEXT, on_error="column")
    found = rows({"ids": _objects([[1, 2], None, [3, 4], [[5]], ["a"], [1.5]])})
    np.testing.assert_array_equal(found["mean"][[0, 2]], [2.5, 12.5])
    assert np.isnan(found["mean"][[1, 3, 4, 5]]).all()
    assert list(found["error"]) == [
        None,
        "input 'ids' takes rows of int64[s]; got nothing",
        None,
        "input 'ids' takes rows of int64[s]; got int64[1, 1]",
        "input 'ids' takes rows of int64[s]; <U1 is another kind of value",
        "input 'ids' takes rows of int64[s]; float64 is another kind of value",
    ]
    rows = _open(tmp_path, TEXT)
    with pytest.raises(InputError) as caught:
        rows({"ids": _objects([[1], None])})
    assert str(caught.value) == (
        "row 1: input 'ids' takes rows of int64[s]; got nothing; on_error='column' keeps such rows apart"
    )


def test_a_row_that_an_engine_cannot_run_is_found_among_others(tmp_path):
    rows = _open(tmp_path, LOOKUP, on_error="column")
    found = rows({"index": np.array([0, 1, 99, 2, -50])})
    np.testing.assert_array_equal(found["y"][[0, 1, 3]], [1, 2, 4])
    assert [row for row, error in enumerate(found["error"]) if error] == [2, 4]
    with pytest.raises(xrt.errors.EngineError):
        _open(tmp_path, LOOKUP)({"index": np.array([0, 99])})


def test_integers_are_not_narrowed_to_others(tmp_path):
    rows = _open(tmp_path, LOOKUP.replace("int64[n] index", "int32[n] index"), on_error="column")
    found = rows({"index": np.array([1, 2**40])})
    said = "input 'index' takes rows of int32[]; got numbers from 1099511627776 to 1099511627776, which int32 cannot hold"
    assert (found["y"][0], list(found["error"])) == (2, [None, said])


def test_flat_rows_get_the_shape_of_the_input(tmp_path):
    rows = _open(tmp_path, FOUR.replace("[4,2]", "[n,2,3]"))
    x = np.arange(12, dtype="float32").reshape(2, 6)
    np.testing.assert_array_equal(rows({"x": x})["y"], -x.reshape(2, 2, 3))


def test_no_rows_give_no_rows(tmp_path):
    found = _open(tmp_path, SCALE)({"x": np.zeros((0, 3), "float32"), "bias": np.zeros(0, "float32")})
    assert found["y"].shape == (0, 3)
    assert found["total"].shape == (0,)


@pytest.mark.parametrize(
    ("options", "columns", "text"),
    [
        ({"columns": {"z": "b"}}, None, "columns names 'z'; the model's inputs are x, bias."),
        ({"outputs": ["sum"]}, None, "outputs names 'sum'; the model's outputs are y, total."),
        ({"on_error": "skip"}, None, "on_error must be 'raise' or 'column'; got 'skip'."),
        ({"batch": 0}, None, "batch must be a number of rows from 1 on; got 0"),
        ({"outputs": {"y": "a", "total": "a"}}, None, "outputs gives two outputs one column: a, a; give each its own"),
        (
            {},
            ["x", "biases"],
            (
                "input 'bias' is filled from column 'bias', and the rows have x, biases. Did you mean 'biases'? "
                "Name the column: columns={'bias': ...} (--column bias=COLUMN on the command line)"
            ),
        ),
        ({"keep": ["id"]}, ["x", "bias"], "keep names 'id'; the rows have x, bias."),
        (
            {},
            ["x", "bias", "y"],
            (
                "'y' is a column of the rows and of the results; give the output another name: outputs={'y': ...}, "
                "or list the columns to keep without it"
            ),
        ),
    ],
)
def test_mistakes_name_what_there_is(tmp_path, options, columns, text):
    given = {name: np.zeros((1, 3) if name == "x" else 1, "float32") for name in columns or ()}
    with pytest.raises((OptionError, InputError)) as caught:
        _open(tmp_path, SCALE, **options)(given)
    assert str(caught.value) == text


@pytest.mark.slow
def test_the_batch_is_what_the_model_declares_or_was_tuned_for(tmp_path):
    with open_model(write_model(tmp_path, FOUR), engine="toy") as fixed:
        assert choose_batch(fixed) == 4
    with open_model(write_model(tmp_path, TEXT), engine="toy") as free:
        assert choose_batch(free) == 32
        free.tune(np.ones((1, 2), "int64"), objective="throughput", batches=[1, 2], instances=1, batch_dim="n", budget=2)
        assert choose_batch(free) == free.serving.batch
        free.save(tmp_path / "tuned.xrt", np.ones((1, 2), "int64"))
        batch = free.serving.batch
    assert Predictor.batch(tmp_path / "tuned.xrt") == batch


def test_a_model_file_runs_on_the_default_engine(tmp_path):
    with open_model(write_model(tmp_path, FOUR)) as module:
        assert module.engines[0] == "ort"
