"""Every model that the onnx package brings: the node tests, and those of its wheel."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator

from xrt.errors import ModelError
from xrt.formats.onnx import load, to_lowest_model, to_model, why_not_downgradable
from xrt.graph import Constant, Function, since_version
from xrt.passes import infer_shapes

pytestmark = pytest.mark.slow

DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"
GROUPS = ("simple", "pytorch-operator", "pytorch-converted", "light")
ENGINE_OPSET, ENGINE_IR = 26, 13
"""The newest that ONNX Runtime 1.31 reads: a limit that many node tests are beyond."""


@pytest.fixture(scope="module")
def cases() -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # generating the tests divides by zero on purpose
        from onnx.backend.test.case.node import collect_testcases

        return list(collect_testcases(None))


@pytest.fixture(scope="module")
def models(cases: list[Any]) -> dict[str, ModelProto]:
    results = {case.name: case.model for case in cases}
    for group in GROUPS:
        results.update((str(path.relative_to(DATA)), onnx.load(path)) for path in sorted((DATA / group).rglob("*.onnx")))
    return results


@pytest.fixture(scope="module")
def functions(models: dict[str, ModelProto]) -> dict[str, Function]:
    return {name: load(model) for name, model in models.items()}


def test_the_round_trip_is_equal(functions: dict[str, Function]) -> None:
    for name, function in functions.items():
        again = load(to_model(function).SerializeToString())
        assert again == function, name
        assert again.fingerprint == function.fingerprint, name


def test_the_checker_accepts_what_is_written(functions: dict[str, Function]) -> None:
    for name, function in functions.items():
        for model in (to_model(function), to_lowest_model(function)):
            try:
                onnx.checker.check_model(model)
            except onnx.checker.ValidationError as error:
                pytest.fail(f"{name}: {error}")


def test_at_the_lowest_opset_every_operator_means_the_same(functions: dict[str, Function]) -> None:
    for name, function in functions.items():
        emitted = load(to_lowest_model(function))
        results = [since_version(node, holder) for holder, node in function.walk()]
        assert [since_version(node, holder) for holder, node in emitted.walk()] == results, name


def test_what_a_node_says_of_the_limits_is_what_the_model_does(functions: dict[str, Function]) -> None:
    lowered = 0
    for name, declared in functions.items():
        function = infer_shapes(declared)
        reasons = [r for node in function.nodes if (r := why_not_downgradable(node, function, ENGINE_OPSET))]
        if reasons:
            with pytest.raises(ModelError) as caught:
                to_lowest_model(function, ENGINE_OPSET)
            assert reasons[0] == str(caught.value), name
            continue
        lowered += 1
        model = to_lowest_model(function, ENGINE_OPSET)
        assert model.ir_version <= ENGINE_IR
        assert all(entry.version <= ENGINE_OPSET for entry in model.opset_import if not entry.domain)
    assert lowered >= 1960


def plain(value: Any) -> Any:
    if isinstance(value, TensorProto):
        return numpy_helper.to_array(value)
    if isinstance(value, onnx.SequenceProto):
        return numpy_helper.to_list(value)
    return numpy_helper.to_optional(value) if isinstance(value, onnx.OptionalProto) else value


def results(model: ModelProto, inputs: dict[str, Any]) -> list[Any] | str:
    """Return what the reference computes, or what it raises."""
    try:
        return list(ReferenceEvaluator(model).run(None, inputs))
    except Exception as error:  # noqa: BLE001  # some of the tests are beyond the reference
        return type(error).__name__


def comparable(value: Any) -> Any:
    """Return arrays as Constants, which are equal bit for bit."""
    if isinstance(value, list):
        return [comparable(item) for item in value]
    return Constant(np.asarray(value)) if isinstance(value, np.ndarray | np.generic) else value


UNREPEATABLE = ("Bernoulli", "RandomUniformLike", "RandomNormalLike", "RandomNormal", "RandomUniform", "Multinomial", "Dropout")


def test_what_is_lowered_computes_the_same(cases: list[Any], functions: dict[str, Function]) -> None:
    compared = 0
    for case in cases[::8]:
        function = functions[case.name]
        if any(node.op_type in UNREPEATABLE for _, node in function.walk()):
            continue
        inputs = dict(zip((v.name for v in function.inputs), map(plain, case.data_sets[0][0]), strict=False))
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = results(case.model, inputs)
            actual = results(to_lowest_model(infer_shapes(function)), inputs)
        assert comparable(actual) == comparable(expected), case.name
        compared += isinstance(expected, list)
    assert compared >= 200
