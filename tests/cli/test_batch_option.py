"""``--batch`` sets the first axes of inputs in every command, also where they have no name, as skl2onnx leaves them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.integrations.models import write_classifier
from tests.serve.serving import double
from xrt.bench.targets import set_dims
from xrt.cli.app import cli
from xrt.errors import ModelError, OptionError
from xrt.formats import onnx
from xrt.formats.bundle import load_model
from xrt.graph import DType, Function, TensorType, Value
from xrt.graph.types import Dim


def run(*arguments: object) -> str:
    done = CliRunner().invoke(cli, list(map(str, arguments)), standalone_mode=False, catch_exceptions=False)
    return done.output


@pytest.mark.parametrize("given", [["--batch", "5"], ["--dim", "batch=5"]])
def test_run_compile_and_explain(given: list[str], tmp_path: Path) -> None:
    model = write_classifier(tmp_path)
    assert "output_label\tint64[5]" in run("run", model, "-e", "toy", *given)
    run("compile", model, "-e", "toy", *given, "-o", tmp_path / "model.xrt")
    assert [value.type.shape for value in load_model(tmp_path / "model.xrt").inputs] == [(5, 1), (5, 1)]  # type: ignore[union-attr]
    assert "float32[5,1]" in run("explain", model, "-e", "toy", *given)


def test_a_bundle_that_is_open_is_run_at_a_batch(tmp_path: Path) -> None:
    model = write_classifier(tmp_path)
    run("compile", model, "-e", "toy", "-o", tmp_path / "model.xrt")
    assert "output_label\tint64[7]" in run("run", tmp_path / "model.xrt", "--batch", "7")


def test_a_lock_keeps_the_batch(tmp_path: Path) -> None:
    model, lock = write_classifier(tmp_path), tmp_path / "model.lock"
    run("lock", model, "-e", "toy", "--batch", "3", "--budget", "1s", "--gate", "1s", "-o", lock)
    assert "output_label\tint64[3]" in run("run", model, "-e", "auto", "--lock", lock)
    with pytest.raises(OptionError, match=r" is for --dim batch=3, and --dim batch=4 was given; "):
        run("run", model, "-e", "auto", "--lock", lock, "--batch", "4")


def test_tune_takes_one_size_and_throughput_several(tmp_path: Path) -> None:
    model = write_classifier(tmp_path)
    output = run("tune", model, "-e", "toy", "--batch", "3", "--budget", "1s", "--json")
    assert json.loads(output[output.index("{\n") :])["model"] == model
    with pytest.raises(OptionError) as error:
        run("tune", model, "-e", "toy", "--batch", "3,4")
    assert str(error.value) == "--batch with several sizes is of throughput; pass --objective throughput too, or leave it out"


@pytest.mark.parametrize("command", ["bench", "tune", "lock"])
def test_what_measures_asks_for_the_batch(command: str, tmp_path: Path) -> None:
    model = write_classifier(tmp_path)
    with pytest.raises(OptionError) as error:
        run(command, model, "-e", "toy")
    message = "the model leaves open: the first axes of the inputs, which have no name. Give them: xrt "
    assert message in str(error.value)
    assert str(error.value).endswith(" --batch SIZE")


def test_a_named_first_axis_is_the_batch_and_a_fixed_one_must_be_it(tmp_path: Path) -> None:
    onnx.save(double(), tmp_path / "open.onnx")
    onnx.save(double((2, 3)), tmp_path / "fixed.onnx")
    assert "float32[4, 3]" in run("run", tmp_path / "open.onnx", "-e", "toy", "--batch", "4")
    assert "float32[2, 3]" in run("run", tmp_path / "fixed.onnx", "-e", "toy", "--batch", "2")
    for command in ("run", "bench"):
        with pytest.raises(ModelError) as error:
            run(command, tmp_path / "fixed.onnx", "-e", "toy", "--batch", "4")
        message = "the model's batch is 2, and 4 was asked; only a named extent can be chosen"
        assert str(error.value) == message


@pytest.mark.parametrize(
    ("shapes", "sized"),
    [
        ([("batch", 4), (None, 4)], [(8, 4), (8, 4)]),
        ([(None, 4), ("batch", 4)], [(8, 4), (8, 4)]),
        ([(None, "batch", 4), (None, 4)], [(None, 8, 4), (None, 4)]),  # a sequence: its first axis is the time
    ],
)
def test_the_batch_sizes_named_and_unnamed_first_axes(shapes: list[tuple[Dim, ...]], sized: list[tuple[Dim, ...]]) -> None:
    inputs = tuple(Value(f"x{place}", TensorType(DType.FLOAT32, shape)) for place, shape in enumerate(shapes))
    function = set_dims(Function(inputs, inputs, opsets={"": 20}), {"batch": 8})
    assert [value.type.shape for value in function.inputs] == sized  # type: ignore[union-attr]
