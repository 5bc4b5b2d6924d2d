"""The self-test of a bundle: an example with its outputs, computed again before a service is ready."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xrt
from tests.module.test_bundle import X, perceptron
from xrt.cache import CompileCache
from xrt.errors import BundleError, OptionError, SelfTestFailed
from xrt.formats.arrays import Example, decode_example, encode_example
from xrt.formats.bundle import BundleFile
from xrt.formats.container import Container
from xrt.graph import Constant, DType, Function, Node, TensorType, Value
from xrt.module import bundle
from xrt.module.module import XRTModule


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.xrt"


def module(function: Function | None = None, engine: str = "ort", **options: Any) -> XRTModule:
    return xrt.XRTModule(function or perceptron(), engine, cache=CompileCache(), **options)


def load(path: Path, **options: Any) -> XRTModule:
    return xrt.load(path, cache=CompileCache(), **options)


def read(path: Path) -> Example | None:
    data = BundleFile(path).find_section(bundle.SELF_TEST_SECTION)
    return None if data is None else decode_example(data)


def one(op: str, types: list[TensorType], out: TensorType, **attributes: Any) -> Function:
    names = "xyz"[: len(types)]
    node = Node(op, tuple(names), ("out",)).with_attributes(**attributes)
    inputs = tuple(Value(name, type_) for name, type_ in zip(names, types, strict=True))
    return Function(inputs, (Value("out", out),), (node,), {}, {"": 18})


def tensor(*shape: int | str, dtype: DType = DType.FLOAT32) -> TensorType:
    return TensorType(dtype, shape)


# ---------------------------------------------------------------------- what a bundle keeps


def test_a_bundle_has_a_random_example_with_its_outputs(path: Path) -> None:
    saved = module()
    saved.save(path)
    example = read(path)
    assert example is not None
    ((name, data),), ((output, expected),) = example.inputs, example.outputs
    assert (name, output) == ("x", "y")
    np.testing.assert_array_equal(saved(data), expected)
    report = load(path, strict=True).run_self_test()
    assert report is not None and report.difference == 0
    assert re.fullmatch(r"self-test passed in \d+\.\d{3} s; largest difference 0", str(report))


@pytest.mark.parametrize("way", ["examples", "named", "by name", "in order"])
def test_the_example_may_be_given(way: str, path: Path) -> None:
    saved = module(perceptron("N"))
    saved.save(path, *([X] if way == "examples" else []), **_by_way(way))
    example = read(path)
    assert example is not None
    np.testing.assert_array_equal(example.inputs[0][1], X)
    np.testing.assert_array_equal(example.outputs[0][1], saved(X))


def _by_way(way: str) -> dict[str, Any]:
    ways: dict[str, dict[str, Any]] = {"named": {"x": X}, "by name": {"example": {"x": X}}, "in order": {"example": [X]}}
    return ways.get(way, {})


def test_a_bundle_of_a_loaded_module_keeps_its_example(path: Path, tmp_path: Path) -> None:
    module().save(path, X)
    with load(path) as loaded:
        loaded.save(tmp_path / "again.xrt")
    first, again = read(path), read(tmp_path / "again.xrt")
    assert first is not None and again is not None
    assert encode_example(first) == encode_example(again)


def test_without_an_example_there_is_nothing_to_compare(path: Path) -> None:
    saved = module()
    assert saved.run_self_test() is None
    saved.save(path, example=False)
    assert read(path) is None
    assert load(path).run_self_test() is None


RANDOM = one("RandomNormalLike", [tensor(2)], tensor(2))
TEXTS = one("StringNormalizer", [tensor(2, dtype=DType.STRING)], tensor("N", dtype=DType.STRING))
TOO_LARGE = (
    "it has 16793600 bytes of inputs and outputs, and a bundle keeps at most 16777216; give a smaller one, or pass example=False "
    "for none"
)
LARGE = one("Relu", [tensor(2048, 1025)], tensor(2048, 1025))


@pytest.mark.parametrize("function", [RANDOM, TEXTS, LARGE], ids=["random", "texts", "large"])
def test_a_model_that_has_no_random_example_is_saved_without(function: Function, path: Path) -> None:
    module(function, "toy").save(path)
    assert read(path) is None
    assert load(path).run_self_test() is None


@pytest.mark.parametrize(
    ("function", "example", "text"),
    [
        (LARGE, np.zeros((2048, 1025), np.float32), TOO_LARGE),
        (TEXTS, np.array(["a", "b"], object), "an input is no tensor of numbers, or pass example=False for none"),
    ],
)  # fmt: skip
def test_an_example_that_cannot_be_kept_is_refused(function: Function, example: Any, text: str, path: Path) -> None:
    with pytest.raises(OptionError) as raised:
        module(function, "toy").save(path, example=[example])
    assert str(raised.value) == f"the example cannot be kept: {text}"
    assert not path.exists()


def test_symbolic_sizes_and_several_types_are_kept(path: Path) -> None:
    where = one("Where", [tensor("N", dtype=DType.BOOL), tensor("N", dtype=DType.BFLOAT16), tensor("N", dtype=DType.BFLOAT16)],
                tensor("N", dtype=DType.BFLOAT16))  # fmt: skip
    module(where, "toy").save(path)
    report = load(path).run_self_test()
    assert report is not None and report.difference == 0
    example = read(path)
    assert example is not None
    assert [str(DType.of(array)) for _, array in (*example.inputs, *example.outputs)] == ["bool", *["bfloat16"] * 3]


# ---------------------------------------------------------------------- what it finds


def test_other_results_are_an_error_with_the_largest_difference(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module().save(path, X)
    example = read(path)
    assert example is not None
    wrong = Example(example.inputs, tuple((name, array + np.float32(0.5)) for name, array in example.outputs))
    monkeypatch.setattr(bundle, "read_example", lambda file: wrong)
    with pytest.raises(SelfTestFailed) as raised:
        load(path).run_self_test()
    text = str(raised.value)
    assert text.startswith(f"the self-test of {str(path)!r} failed: y differs in 128 of 128 elements; at worst y[")
    assert text.endswith(f"; save the bundle again where its results are right, or find what differs with `xrt verify {path}`")
    assert raised.value.difference == pytest.approx(0.5)


def test_a_damaged_bundle_fails_wherever_the_damage_is(path: Path) -> None:
    """In whichever section: also those that no call of the example reads."""
    saved = module(perceptron("N"), ["ort", "tvm"], shapes="each", strict=True, threads=1)  # type: ignore[arg-type]
    saved.compile(X)
    saved.save(path, X[:1])
    whole = path.read_bytes()
    sections = Container.open(path, "bundle").sections
    assert {"manifest", "plan:0", "self-test", "model"} <= {*sections}
    for section in sections.values():
        damaged = bytearray(whole)
        damaged[section.offset + section.size // 2] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(BundleError, match="the checksum of its section"):
            load(path).run_self_test()


def test_a_call_that_fails_is_the_same_error(path: Path) -> None:
    module().save(path, X)
    loaded = load(path)
    loaded.close()
    with pytest.raises(SelfTestFailed) as raised:
        loaded.run_self_test()
    assert str(raised.value) == f"the self-test of {str(path)!r} failed: the module is closed; make a new XRTModule"
    assert raised.value.difference is None


@pytest.mark.parametrize("data", [b"", b"\xff" * 64, b"\x02" + bytes(7) + b"{}", encode_example(Example((), ()))[:20]])
def test_an_example_that_is_none_is_an_error(data: bytes) -> None:
    with pytest.raises(BundleError, match="its example cannot be read"):
        decode_example(memoryview(data))


@pytest.mark.usefixtures("two_cores")
def test_results_of_another_thread_budget_pass(path: Path) -> None:
    weight = Constant(np.random.default_rng(0).standard_normal((512, 64)).astype(np.float32))
    function = Function(
        (Value("x", tensor(64, 512)),),
        (Value("y", tensor(64, 64)),),
        (Node("MatMul", ("x", "w"), ("y",)),),
        {"w": weight},
        {"": 18},
    )
    for engine in ("ort", "xla"):
        module(function, engine, threads=2).save(path)
        assert load(path, threads=1).run_self_test() is not None
