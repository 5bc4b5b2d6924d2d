"""Models and candidates as text, and the messages that carry them to a worker."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from xrt.bench import BenchCandidate, BenchTarget
from xrt.bench.job_server import Job, Start
from xrt.errors import ModelError, OptionError, XRTError
from xrt.formats import onnx
from xrt.graph import DType, FrozenDict, Function, Node, TensorType, Value

TINY = "mlp{layers=2, features=3, hidden=4, classes=2}"


@pytest.fixture
def saved(tmp_path: Path) -> str:
    type_ = TensorType(DType.FLOAT32, ("n", "m"))
    path = tmp_path / "model.onnx"
    onnx.save(Function((Value("x", type_),), (Value("y", type_),), (Node("Relu", ("x",), ("y",)),), opsets={"": 20}), path)
    return str(path)


def first_shape(function: Function) -> object:
    type_ = function.inputs[0].type
    return type_.shape if isinstance(type_, TensorType) else None


@pytest.mark.parametrize("text", ["squeezenet", TINY, "some/model.onnx{tokens=128}"])
def test_a_model_reads_as_it_prints(text: str) -> None:
    assert str(BenchTarget.parse(text)) == text
    assert BenchTarget.parse(str(BenchTarget.parse(text))) == BenchTarget.parse(text)


def test_a_batch_is_a_size_of_a_model_by_code_and_the_first_extent_of_a_file(saved: str) -> None:
    assert first_shape(BenchTarget.parse(TINY, 5).load()) == (5, 3)
    assert first_shape(BenchTarget.parse(TINY).load()) == (1, 3)
    assert first_shape(BenchTarget.parse(f"{saved}{{m=7}}", 5).load()) == (5, 7)
    assert first_shape(BenchTarget.parse(saved).load()) == ("n", "m")
    assert first_shape(BenchTarget.parse("squeezenet", 1).load()) == (1, 3, 224, 224)


@pytest.mark.parametrize(
    ("text", "batch", "error", "says"),
    [
        (
            "mlp{layers}",
            None,
            OptionError,
            "a model's size is written NAME=NUMBER, such as layers=2; got 'layers' in 'mlp{layers}'",
        ),
        ("mlp{layers=2", None, OptionError, "'mlp{layers=2' is not a model; one reads like 'squeezenet', 'bert{layers=2}' or"),
        ("squeezenet", 4, ModelError, "the model's batch is 1, and 4 was asked; only a named extent can be chosen"),
        ("missing.onnx", None, ModelError, "cannot load 'missing.onnx': there is no such file"),
        ("mlp{depth=2}", None, OptionError, "model 'mlp' has no size 'depth'"),
    ],
)
def test_what_is_no_model_is_reported(text: str, batch: int | None, error: type[XRTError], says: str) -> None:
    with pytest.raises(error) as caught:
        BenchTarget.parse(text, batch).load()
    assert str(caught.value).startswith(says)


def test_a_dimension_that_no_input_has_is_reported(saved: str) -> None:
    with pytest.raises(OptionError, match=r"no input has a dimension 'k'\. The model has: m, n"):
        BenchTarget.parse(f"{saved}{{k=1}}").load()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ort", BenchCandidate(("ort",))),
        ("tvm{opt_level=2}, ort", BenchCandidate(("tvm{opt_level=2}", "ort"))),
        ("tvm,ort with Conv|MatMul=ort; Softmax!=tvm", BenchCandidate(("tvm", "ort"), ("Conv|MatMul=ort", "Softmax!=tvm"))),
    ],
)
def test_a_candidate_reads_as_it_prints(text: str, expected: BenchCandidate) -> None:
    assert BenchCandidate.parse(text) == expected == BenchCandidate.parse(str(expected))


@pytest.mark.parametrize("text", ["", "tvm,", "tvm ort", "tvm,ort with ", "tvm,ort with Conv=ort;"])
def test_what_is_no_candidate_is_reported(text: str) -> None:
    with pytest.raises(OptionError):
        BenchCandidate.parse(text)


def test_messages_survive_the_way() -> None:
    job = Job(BenchTarget("mlp", FrozenDict(layers=2), 3), BenchCandidate(("tvm", "ort"), ("Conv=ort",)), 2, 0, 1.0, 0.1)
    assert msgspec.convert(json.loads(json.dumps(msgspec.to_builtins(job))), Job) == job
    start = Start(("1",), ("ort", "tvm"), 0.1, 0.2, 0.3, 4, True, 0.5, 6, 7)
    assert msgspec.convert(json.loads(json.dumps(msgspec.to_builtins(start))), Start) == start
