"""Sizes that no array has are the user's mistake, and are told as one."""

from __future__ import annotations

from pathlib import Path

import pytest
from onnx import parser

from xrt.cli import main
from xrt.errors import ModelError
from xrt.formats import onnx
from xrt.graph import DType, Function, Node, TensorType, Value

HUGE = "9" * 20


@pytest.fixture
def model(tmp_path: Path) -> str:
    type_ = TensorType(DType.FLOAT32, ("n", 4))
    onnx.save(
        Function((Value("x", type_),), (Value("y", type_),), (Node("Relu", ("x",), ("y",)),), opsets={"": 18}),
        tmp_path / "m.onnx",
    )
    return str(tmp_path / "m.onnx")


def error_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    assert ended.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("command", ["run", "explain", "verify", "compile", "lock", "tune"])
def test_an_extent_beyond_64_bits(command: str, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = ("-o", str(tmp_path / "out")) if command in ("compile", "lock") else ()
    assert error_of(capsys, command, model, "--dim", f"n={HUGE}", *output) == (
        f"error: dimension 'n' cannot be {HUGE}: an extent is at least 0 and at most 9223372036854775807\n"
    )
    assert "got a number of 5000 digits" in error_of(capsys, command, model, "--dim", f"n={'9' * 5000}", *output)


def test_an_extent_beyond_memory(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert error_of(capsys, "run", model, "--dim", "n=400000000000000") == (
        "error: input 'x' is float32[400000000000000,4], and random values for it take 12800000000000000 bytes, more than there "
        "is memory\n"
    )
    assert error_of(capsys, "run", f"mlp{{batch={HUGE}}}") == (
        f"error: batch of model 'mlp' cannot be {HUGE}: an extent is at most 9223372036854775807\n"
    )
    assert error_of(capsys, "run", "mlp{hidden=400000000000000}").startswith(
        "error: there is not enough memory: Unable to allocate"
    )
    assert "is a number of 5000 digits, and no extent" in error_of(capsys, "bench", f"{model}{{n={'9' * 5000}}}", "-e", "toy")


@pytest.mark.parametrize("end", ["input", "output"])
def test_a_negative_extent(end: str) -> None:
    model = parser.parse_model('<ir_version: 8, opset_import: ["": 17]> g (float[N,3] x) => (float[N,3] y) { y = Neg(x) }')
    value = getattr(model.graph, end)[0]
    value.type.tensor_type.shape.dim[1].dim_value = -2147483648
    with pytest.raises(ModelError) as caught:
        onnx.load(model)
    assert str(caught.value) == (
        f"cannot load the given ModelProto: axis 1 of {value.name!r} has a negative extent, -2147483648; only -1 stands for one "
        f"that is not known"
    )
