"""`xrt batch` on one machine: rows as inputs, parts in order, errors kept apart, continued after a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from hypothesis import given, settings, strategies as st

from tests.exact_errors import raises_exactly
from tests.integrations.models import (
    FOUR,
    LOOKUP,
    SCALE,
    TEXT,
    check_squares,
    read_results,
    write_classifier,
    write_model,
    write_texts,
)
from xrt.cli.app import cli
from xrt.errors import BatchJobError, EngineError, InputError, OptionError
from xrt.integrations.batch import BatchJob, RowModel, open_model, run_job
from xrt.integrations.batch.job import claim_folder
from xrt.integrations.batch.model import choose_batch
from xrt.integrations.batch.tables import RowFile, list_chunks, list_row_files
from xrt.ray import Predictor


def _run(*arguments: str) -> tuple[int, str]:
    completed = CliRunner().invoke(cli, ["batch", *arguments], standalone_mode=False, catch_exceptions=False)
    return completed.return_value, completed.output


@pytest.mark.slow
def test_rows_of_several_files_come_out_in_order(tmp_path):
    model = write_model(tmp_path, TEXT)
    (tmp_path / "in").mkdir()
    rows = write_texts(tmp_path / "in" / "a.parquet", 23, group=7)
    rows += write_texts(tmp_path / "in" / "b.parquet", 9, seed=1)
    code, completed = _run(
        model, str(tmp_path / "in"), "-o", str(tmp_path / "out"), "-e", "toy", "--part-rows", "5", "--workers", "2"
    )
    assert (code, completed) == (0, f"{tmp_path / 'out'}: 32 of 32 rows written in 7 parts\n")
    result = read_results(tmp_path / "out")
    assert result.column("row").to_pylist() == [*range(23), *range(9)]
    assert result.column("squares").to_pylist() == [(row.astype("float32") ** 2).tolist() for row in rows]
    assert result.schema.field("squares").type == pa.list_(pa.float32())
    again = _run(model, str(tmp_path / "in"), "-o", str(tmp_path / "out"), "-e", "toy", "--part-rows", "5", "--batch", "3")
    assert again == (0, f"{tmp_path / 'out'}: 0 of 32 rows written in 0 parts, 32 were there\n")


@pytest.mark.slow
def test_rows_are_read_again_after_a_change(tmp_path):
    job = BatchJob(write_model(tmp_path, TEXT), ("toy",), part_rows=5)
    for seed, group in enumerate((20, 7, 20)):
        rows = write_texts(tmp_path / "rows.parquet", 20, seed=seed, group=group)
        run_job(job, [str(tmp_path / "rows.parquet")], tmp_path / str(seed))
        check_squares(tmp_path / str(seed), rows)


@pytest.mark.parametrize("ending", ["csv", "jsonl", "feather"])
def test_rows_of_other_formats(tmp_path, ending):
    import pyarrow.csv
    import pyarrow.feather

    table = pa.table({"index": [0, 2, 1], "name": ["a", "b", "c"]})
    path = tmp_path / f"rows.{ending}"
    if ending == "csv":
        pyarrow.csv.write_csv(table, path)
    elif ending == "feather":
        pyarrow.feather.write_feather(table, path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    run_job(BatchJob(write_model(tmp_path, LOOKUP), ("toy",), part_rows=2), [str(path)], tmp_path / "out")
    assert read_results(tmp_path / "out").to_pylist() == [{"name": n, "y": y} for n, y in (("a", 1.0), ("b", 4.0), ("c", 2.0))]


def test_rows_with_errors_have_nulls_and_a_reason(tmp_path):
    model = write_model(tmp_path, LOOKUP)
    pq.write_table(pa.table({"row": range(5), "index": [1, 7, None, 2, -50]}), tmp_path / "rows.parquet")
    arguments = (model, str(tmp_path / "rows.parquet"), "-o", str(tmp_path / "out"), "-e", "toy")
    code, completed = _run(*arguments, "--on-error", "column")
    assert (code, completed) == (1, f"{tmp_path / 'out'}: 5 of 5 rows written in 1 part; 3 rows have errors\n")
    result = read_results(tmp_path / "out")
    assert result.column("y").to_pylist() == [2.0, None, None, 4.0, None]
    reasons = result.column("error").to_pylist()
    assert reasons[0] is reasons[3] is None
    assert reasons[2] == "input 'index' takes rows of int64[]; got nothing"
    assert "index" in reasons[1] and "index" in reasons[4]
    again = f"{tmp_path / 'out'}: 0 of 5 rows written in 0 parts, 5 were there; 3 rows have errors\n"
    assert _run(*arguments, "--on-error", "column") == (1, again)  # a finished job with errors fails each time
    with pytest.raises((EngineError, InputError)):
        _run(*arguments[:3], str(tmp_path / "raised"), *arguments[4:])


def test_a_folder_belongs_to_one_job(tmp_path):
    model = write_model(tmp_path, LOOKUP)
    rows, out = tmp_path / "rows.parquet", tmp_path / "out"
    pq.write_table(pa.table({"index": [1, 2]}), rows)
    run_job(BatchJob(model, ("toy",)), [str(rows)], out)
    with raises_exactly(
        BatchJobError,
        f'{out} has results of another job: on_error was "raise" and is "column"; '
        "continue it with the same arguments and files, or use another folder",
    ):
        run_job(BatchJob(model, ("toy",), on_error="column"), [str(rows)], out)
    os.utime(model, ns=(1, 1))
    with pytest.raises(BatchJobError, match="has results of another job: model was "):
        run_job(BatchJob(model, ("toy",)), [str(rows)], out)
    (out / "_xrt_batch.json").unlink()
    with raises_exactly(BatchJobError, f"{out} has parts without _xrt_batch.json, which names their job; use another folder"):
        run_job(BatchJob(model, ("toy",)), [str(rows)], out)
    job, folder = BatchJob(model, ("toy",)), tmp_path / "other"
    with (
        claim_folder(folder, job, [str(rows)]),
        raises_exactly(
            BatchJobError, f"{tmp_path / 'other'} is being filled by another process; wait for it, or use another folder"
        ),
    ):
        run_job(job, [str(rows)], folder)


@pytest.mark.slow
def test_parts_are_as_large_as_their_bytes_allow(tmp_path):
    wide = pa.table({"x": pa.array(np.random.default_rng(0).random((40, 1 << 17)).tolist(), pa.list_(pa.float64()))})
    pq.write_table(wide, tmp_path / "wide.parquet")
    (file,) = list_row_files([str(tmp_path / "wide.parquet")])
    sizes = {chunk.stop - chunk.start for chunk in list_chunks([file])}
    assert 20 <= max(sizes) <= 32  # rows of 1 MiB


@pytest.mark.parametrize(("rows", "size"), [(100, 100), (1000, 256), (64_000, 1000), (10_000_000, 16384)])
def test_many_processors_have_a_part_of_small_rows(tmp_path, rows, size):
    (tmp_path / "rows.csv").write_text("x\n1\n")
    file = RowFile(str(tmp_path / "rows.csv"), rows, bytes=8 * rows, modified=0)
    parts = [chunk.stop - chunk.start for chunk in list_chunks([file])]
    assert (max(parts), sum(parts)) == (size, rows)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["missing.parquet"], "there are no rows at missing.parquet: no such file or folder"),
        (
            ["model.onnx"],
            "model.onnx is not a file of rows, whose name ends in .parquet, .csv, .json, .jsonl, .arrow, .feather",
        ),
        (["empty"], "folder empty has no file of rows, whose name ends in .parquet, .csv, .json, .jsonl, .arrow, .feather"),
        (["rows.parquet", "--cpus", "2"], "--cpus is for the workers of a cluster; pass it with --address, or choose --workers"),
        (["rows.parquet", "--column", "x"], "--column takes INPUT=COLUMN, each input once, such as ids=tokens; got 'x'"),
    ],
)
def test_mistakes_on_the_command_line(tmp_path, monkeypatch, arguments, text):
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path, SCALE)
    (tmp_path / "empty").mkdir()
    pq.write_table(pa.table({"x": [1]}), "rows.parquet")
    with raises_exactly((InputError, OptionError), text):
        _run("model.onnx", *arguments, "-o", "out", "-e", "toy")


_KILLED = """
import os, signal, sys
from xrt.integrations.batch import BatchJob, run_job
def stop(report):
    if report.parts == int(sys.argv[4]):
        os.kill(os.getpid(), signal.SIGKILL)
run_job(BatchJob(sys.argv[1], ("toy",), part_rows=3), [sys.argv[2]], sys.argv[3], workers=2, progress=stop)
"""


@pytest.mark.slow
def test_a_killed_job_is_continued(tmp_path):
    """Killed after one, three and five parts; each run does what is missing, and the files of the dead are gone."""
    model = write_model(tmp_path, TEXT)
    rows = write_texts(tmp_path / "rows.parquet", 40)
    job = [model, str(tmp_path / "rows.parquet"), str(tmp_path / "out")]
    results = set()
    for parts in (1, 2, 2):
        completed = subprocess.run([sys.executable, "-c", _KILLED, *job, str(parts)], check=False, env=dict(os.environ))
        assert completed.returncode == -signal.SIGKILL
        there = {part: part.stat().st_mtime_ns for part in (tmp_path / "out").glob("part-*")}
        assert results <= set(there.items())  # what was written is not written again
        results = set(there.items())
        assert parts <= len(there) < 14
    (tmp_path / "out" / ".xrt-of-a-dead-writer.tmp").write_bytes(b"half")
    report = run_job(BatchJob(model, ("toy",), part_rows=3), job[1:2], job[2])
    assert report.present + report.written == 40
    assert not list((tmp_path / "out").glob(".xrt-*"))
    check_squares(tmp_path / "out", rows)


def test_an_interrupt_while_parts_are_submitted_cancels_the_rest(tmp_path, monkeypatch):
    pq.write_table(pa.table({"index": [1] * 40}), tmp_path / "rows.parquet")
    submit, submitted = ThreadPoolExecutor.submit, []

    def submit_or_interrupt(pool, *arguments):
        submitted.append(arguments)
        if len(submitted) == 40:
            raise KeyboardInterrupt
        return submit(pool, *arguments)

    monkeypatch.setattr(ThreadPoolExecutor, "submit", submit_or_interrupt)
    job = BatchJob(write_model(tmp_path, LOOKUP), ("toy",), part_rows=1)
    with pytest.raises(KeyboardInterrupt):
        run_job(job, [str(tmp_path / "rows.parquet")], tmp_path / "out", workers=1)
    assert len(list((tmp_path / "out").glob("part-*"))) < 39


def test_damaged_parts_are_run_again(tmp_path):
    job = BatchJob(write_model(tmp_path, TEXT), ("toy",), part_rows=5)
    rows, out = write_texts(tmp_path / "rows.parquet", 20), tmp_path / "out"
    run_job(job, [str(tmp_path / "rows.parquet")], out)
    first, second, third, fourth = sorted(out.glob("part-*"))
    first.write_bytes(b"PAR1")
    second.write_bytes(second.read_bytes()[:-10])
    pq.write_table(pq.read_table(third).slice(1), third)
    report = run_job(job, [str(tmp_path / "rows.parquet")], out)
    assert (report.present, report.written) == (5, 15)
    whole = fourth.read_bytes()
    for place in range(4, 200, 7):
        fourth.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        run_job(job, [str(tmp_path / "rows.parquet")], out)
        check_squares(out, rows)  # what the checksums do not cover is not read
    check_squares(out, rows)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"\xff\xfe{}", b"[" * 100_000, b"null"])
def test_a_damaged_manifest_is_named_and_one_without_results_is_replaced(tmp_path, text):
    job, rows, out = BatchJob(write_model(tmp_path, LOOKUP), ("toy",)), tmp_path / "rows.parquet", tmp_path / "out"
    pq.write_table(pa.table({"index": [1, 2]}), rows)
    out.mkdir()
    (out / "_xrt_batch.json").write_bytes(text)
    assert run_job(job, [str(rows)], out).written == 2
    (out / "_xrt_batch.json").write_bytes(text)
    with pytest.raises(BatchJobError) as caught:
        run_job(job, [str(rows)], out)
    assert str(caught.value).startswith(f"{out}/_xrt_batch.json is damaged (")
    assert str(caught.value).endswith("); remove the folder to run the whole job again, or use another folder")


def test_a_job_that_failed_without_a_result_does_not_keep_its_folder(tmp_path):
    rows, out = tmp_path / "rows.parquet", tmp_path / "out"
    pq.write_table(pa.table({"index": [9]}), rows)
    with pytest.raises(EngineError):
        run_job(BatchJob(write_model(tmp_path, LOOKUP), ("toy",)), [str(rows)], out)
    report = run_job(BatchJob(write_model(tmp_path, LOOKUP), ("toy",), on_error="column"), [str(rows)], out)
    assert (report.written, report.errors) == (1, 1)


MIXING = """
<ir_version: 10, opset_import: ["" : 21]>
mixing (float[ROWS,2] x) => (float[ROWS,2] y) {
  axis = Constant <value_ints = [0]> ()
  mean = ReduceMean (x, axis)
  y = Sub (x, mean)
}
"""


@pytest.mark.parametrize(("rows", "cure"), [("n", "pass batch=1 (--batch 1)"), ("4", "export it with a dynamic batch size")])
def test_rows_that_depend_on_each_other_are_refused(tmp_path, rows, cure):
    model = write_model(tmp_path, MIXING.replace("ROWS", rows))
    pq.write_table(pa.table({"x": [[1.0, 1.0]] * 4 + [[1.0, 2.0], [3.0, 4.0]]}), tmp_path / "rows.parquet")
    for on_error in ("raise", "column"):
        job = BatchJob(model, ("toy",), part_rows=2 if rows == "n" else 6, on_error=on_error)
        with pytest.raises(OptionError) as caught:
            run_job(job, [str(tmp_path / "rows.parquet")], tmp_path / on_error, workers=1)
        assert str(caught.value).startswith("the rows of a call change each other: row ")
        assert str(caught.value).endswith(f"; {cure}, so that each call has one row")
    if rows == "n":
        run_job(BatchJob(model, ("toy",), batch=1), [str(tmp_path / "rows.parquet")], tmp_path / "alone")
        assert read_results(tmp_path / "alone").column("y").to_pylist() == [[0.0, 0.0]] * 6


@pytest.mark.parametrize("engine", ["toy", "ort"])
def test_the_maps_of_a_classifier_of_scikit_learn_become_maps(tmp_path, engine):
    model = write_classifier(tmp_path)
    (tmp_path / "rows.csv").write_text("age,income\n20,1\n70,30\n40,2\n")
    assert _run(model, str(tmp_path / "rows.csv"), "-o", str(tmp_path / "out"), "-e", engine, "--batch", "2")[0] == 0
    result = read_results(tmp_path / "out")
    assert result.column("output_label").to_pylist() == [7, 7, 7]
    assert result.schema.field("output_probability").type == pa.map_(pa.int64(), pa.float32())
    for row in result.column("output_probability").to_pylist():
        assert [key for key, _ in row] == [3, 7] and sum(share for _, share in row) == pytest.approx(1)


def test_numbers_that_the_input_cannot_hold_are_refused(tmp_path):
    rows = _open(tmp_path, LOOKUP.replace("int64[n] index", "int32[n] index"), on_error="column")
    result = rows({"index": np.array([1, 2**40])})
    message = "input 'index' takes rows of int32[]; got numbers from 1099511627776 to 1099511627776, which int32 cannot hold"
    assert (result["y"][0], list(result["error"])) == (2, [None, message])
    pq.write_table(
        pa.table({"x": [[1.0, 2.0, 3.0], [1e300, 0.0, 0.0], [float("inf"), 0.0, 0.0]], "bias": [0.0] * 3}),
        tmp_path / "rows.parquet",
    )
    job = BatchJob(write_model(tmp_path, SCALE), ("toy",), on_error="column")
    assert run_job(job, [str(tmp_path / "rows.parquet")], tmp_path / "out").errors == 1
    message = "input 'x' takes rows of float32[3]; got 1e+300, which float32 cannot hold"
    assert read_results(tmp_path / "out").column("error").to_pylist() == [None, message, None]


def _open(tmp_path, text, **options):
    return RowModel(open_model(write_model(tmp_path, text), engine="toy"), **options)


def _objects(items):
    array = np.empty(len(items), object)
    array[:] = items
    return array


def test_columns_fill_inputs_by_name_and_others_are_passed_on(tmp_path):
    rows = _open(tmp_path, SCALE, columns={"bias": "b"}, outputs={"y": "out"})
    x, b = np.arange(6, dtype="float32").reshape(2, 3), np.array([10.0, 20.0])  # float64 becomes what the input takes
    result = rows({"id": np.array([7, 8]), "x": x, "b": b})
    assert list(result) == ["id", "out"]
    np.testing.assert_array_equal(result["out"], 2 * x + b[:, None])
    assert result["out"].dtype == np.float32


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=12), st.sampled_from([None, 1, 3]))
def test_ragged_rows_equal_single_ones_and_keep_their_order(tmp_path_factory, lengths, batch):
    rows = _open(tmp_path_factory.mktemp("ragged"), TEXT, batch=batch)
    ids = [np.arange(length) + number for number, length in enumerate(lengths)]
    result = rows({"ids": _objects(ids)})
    for number, row in enumerate(ids):
        first = row[None].astype("float32")
        np.testing.assert_array_equal(result["squares"][number], (first * first)[0])
        np.testing.assert_allclose(result["mean"][number], (first * first).mean(), rtol=1e-6)


def test_a_fixed_batch_is_filled_up_and_cut(tmp_path):
    rows = _open(tmp_path, FOUR)
    x = np.arange(12, dtype="float32").reshape(6, 2)
    np.testing.assert_array_equal(rows({"x": x})["y"], -x)
    assert rows.batch == 4
    with raises_exactly(OptionError, "batch is 3, and the model takes 4 rows in each call; leave batch out"):
        _open(tmp_path, FOUR, batch=3)


def test_naming_outputs_leaves_out_one_without_rows(tmp_path):
    total = "float total) {\n  total = ReduceSum <keepdims = 0> (x)\n"
    text = FOUR.replace("[4,2]", "[n,2]").replace("y) {\n", f"y, {total}")
    x = np.arange(6, dtype="float32").reshape(3, 2)
    assert list(_open(tmp_path, text, outputs=["y"])({"x": x})) == ["y"]
    with raises_exactly(OptionError, "output 'total' has no item for each row: [] for 3 rows; name the outputs to keep"):
        _open(tmp_path, text)({"x": x})


def test_rows_that_cannot_be_run_are_kept_apart(tmp_path):
    rows = _open(tmp_path, TEXT, on_error="column")
    result = rows({"ids": _objects([[1, 2], None, [3, 4], [[5]], ["a"], [1.5]])})
    np.testing.assert_array_equal(result["mean"][[0, 2]], [2.5, 12.5])
    assert np.isnan(result["mean"][[1, 3, 4, 5]]).all()
    assert list(result["error"]) == [
        None,
        "input 'ids' takes rows of int64[s]; got nothing",
        None,
        "input 'ids' takes rows of int64[s]; got int64[1, 1]",
        "input 'ids' takes rows of int64[s]; <U1 is another kind of value",
        "input 'ids' takes rows of int64[s]; float64 is another kind of value",
    ]
    rows = _open(tmp_path, TEXT)
    with raises_exactly(
        InputError, "row 1: input 'ids' takes rows of int64[s]; got nothing; with on_error='column' the other rows are computed"
    ):
        rows({"ids": _objects([[1], None])})


def test_flat_rows_get_the_shape_of_the_input(tmp_path):
    rows = _open(tmp_path, FOUR.replace("[4,2]", "[n,2,3]"))
    x = np.arange(12, dtype="float32").reshape(2, 6)
    np.testing.assert_array_equal(rows({"x": x})["y"], -x.reshape(2, 2, 3))


def test_no_rows_give_no_rows(tmp_path):
    result = _open(tmp_path, SCALE)({"x": np.zeros((0, 3), "float32"), "bias": np.zeros(0, "float32")})
    assert result["y"].shape == (0, 3)
    assert result["total"].shape == (0,)


@pytest.mark.parametrize(
    ("options", "columns", "text"),
    [
        ({"columns": {"z": "b"}}, None, "columns names 'z'; the model's inputs are x, bias."),
        ({"outputs": ["sum"]}, None, "outputs names 'sum'; the model's outputs are y, total."),
        ({"on_error": "skip"}, None, "on_error must be 'raise' or 'column'; got 'skip'."),
        ({"batch": 0}, None, "batch must be a positive number of rows; got 0"),
        ({"outputs": {"y": "a", "total": "a"}}, None, "outputs maps two outputs to one column: a, a; use different columns"),
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
    results = {name: np.zeros((1, 3) if name == "x" else 1, "float32") for name in columns or ()}
    with raises_exactly((OptionError, InputError), text):
        _open(tmp_path, SCALE, **options)(results)


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
