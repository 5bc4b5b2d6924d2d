"""``xrt quantize``, from data to a model that ONNX Runtime and the checker take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from tests.cli.commands import Command
from tests.passes.quantize.models import draw, make_function
from xrt.bench import BenchTarget
from xrt.cli.inputs import read_batches
from xrt.engines.toolkit.reference_evaluator import evaluate
from xrt.errors import InputError
from xrt.formats.onnx import load, save
from xrt.graph import DType, Node
from xrt.models import sample_inputs
from xrt.precision import byte_sums

MODELS = {
    "a small CNN": "mobilenet{image=16,width=10,classes=4}",
    "a small transformer": "bert{layers=1,hidden=32,heads=2,tokens=6,vocabulary=40}",
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(params=["this processor", "a processor without VNNI"])
def processor(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run with the answer of the trial of this processor, and with that of one whose sums of bytes saturate."""
    if request.param != "this processor":
        monkeypatch.setattr(byte_sums, "sums_bytes_exactly", lambda engine: False)


def list_weights(path: str = "out.onnx") -> list[Any]:
    return [c.array for c in load(path).constants.values() if c.dtype is DType.INT8 and c.array.ndim > 1]


def write_examples(model: str, count: int = 6) -> None:
    Path("data").mkdir()
    function = BenchTarget.parse(model).load()
    for seed in range(count):
        np.savez(f"data/{seed}.npz", **sample_inputs(function, seed))


def measure(model: str, path: str = "out.onnx", *, weights_only: bool = False) -> float:
    """Return the relative error of ONNX Runtime's results with the file, on inputs that the command has not seen.

    They must be near those of the reference: ONNX Runtime quantizes float weights by itself in some places. What is multiplied
    with stored weights of 8 and 4 bits it rounds to bytes.
    """
    onnx.checker.check_model(onnx.load(path), full_check=True)
    function, result = BenchTarget.parse(model).load(), load(path)
    session = onnxruntime.InferenceSession(path)
    results: list[tuple[Any, ...]] = []
    for seed in range(1000, 1006):
        values = sample_inputs(function, seed)
        near = evaluate(result, [values[value.name] for value in result.inputs])[0]
        results.append((evaluate(function, list(values.values()))[0], near, session.run(None, values)[0]))
    exact, expected, actual = (np.concatenate([item[place].reshape(-1) for item in results]) for place in range(3))
    assert np.linalg.norm(actual - expected) <= (2 if weights_only else 0.1) * np.linalg.norm(expected - exact)
    return float(np.linalg.norm(actual - exact) / np.linalg.norm(exact))


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    ("arguments", "operators", "most"),
    [
        (("--method", "percentile"), {"DequantizeLinear", "QuantizeLinear"}, 0.5),
        (("--activations", "int8", "--per-tensor", "--portable"), {"DequantizeLinear", "QuantizeLinear"}, 0.9),
        (("--weights-only", "int8"), {"DequantizeLinear"}, 0.3),
    ],
)
def test_the_file_runs_elsewhere(
    model: str,
    arguments: tuple[str, ...],
    operators: set[str],
    most: float,
    command: Command,
    processor: None,
) -> None:
    write_examples(MODELS[model])
    code, out, err = command("quantize", MODELS[model], "--data", "data", "-o", "out.onnx", "-e", "ort", *arguments)
    assert (code, err) == (0, "")
    loaded_module = load("out.onnx")
    assert {node.op for node in loaded_module.nodes} & {"DequantizeLinear", "QuantizeLinear"} == operators
    assert "with weights\nlargest relative error of an output: " in out
    assert measure(MODELS[model], weights_only="--weights-only" in arguments) < most


@pytest.mark.slow
@pytest.mark.parametrize(
    ("is_exact", "arguments", "most", "told"),
    [
        (True, (), 127, "weights of 8 bits: for this processor, x86 with VNNI, and ARM; --portable makes a file for all"),
        (True, ("--portable",), 64, "weights of 7 bits: for all processors"),
        (False, (), 64, "weights of 7 bits: for all processors"),
    ],
)
def test_the_command_says_for_which_processors_the_file_is(
    is_exact: bool,
    arguments: tuple[str, ...],
    most: int,
    told: str,
    command: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(byte_sums, "sums_bytes_exactly", lambda engine: is_exact)
    np.save("x.npy", draw(2, 40, 6))
    code, out, _ = command("quantize", product(), "--data", "x.npy", "-o", "out.onnx", *arguments)
    assert code == 0 and told in out.splitlines()
    (weights,) = list_weights()
    assert np.abs(weights.astype(int)).max() == most


def product(path: str = "m.onnx", extent: Any = "n") -> str:
    save(make_function([Node("MatMul", ("x", "w"), ("y",))], {"w": draw(1, 6, 5)}, (extent, 6)), path)
    return path


def test_a_table_takes_the_place_of_data(command: Command) -> None:
    np.save("x.npy", draw(2, 40, 6))
    assert command("quantize", product(), "--data", "x.npy", "-o", "a.onnx", "--save-table", "t.json")[0] == 0
    code, out, _ = command("quantize", product(), "--table", "t.json", "-o", "b.onnx")
    assert (code, "error" in out) == (0, False)
    assert Path("a.onnx").read_bytes() == Path("b.onnx").read_bytes()


MISTAKES = {
    "no data": ((), "ranges are measured on examples: pass --data, a --table, or --weights-only for weights alone"),
    "a wrong method": (("--method", "max"), "'max' is not one of 'minmax'"),
    "a wrong pattern": (("--include", "Mat!"), "'Mat!' is no operator"),
    "no nodes": (("--include", "Conv", "--weights-only", "int8"), "nothing of the model is quantized"),
    "no such folder": (("-o", "no/out.onnx"), "cannot write no/out.onnx: there is no folder no"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes_are_one_line(case: str, command: Command) -> None:
    arguments, message = MISTAKES[case]
    code, out, err = command("quantize", product(), "-o", "out.onnx", *arguments)
    assert (code, out) == (2, "") and message in err and err.count("\n") == 1


def test_a_quantized_model_is_refused(command: Command) -> None:
    assert command("quantize", product(), "--weights-only", "int8", "-o", "a.onnx")[0] == 0
    code, _, err = command("quantize", "a.onnx", "--weights-only", "int8", "-o", "b.onnx")
    assert (code, "is quantized already" in err) == (2, True)


SHAPES: dict[str, tuple[Any, tuple[int, ...], list[int]]] = {
    "the declared extent": (4, (4, 6), [4]),
    "a multiple of it": (4, (12, 6), [4, 4, 4]),
    "a batch in each row": (4, (2, 4, 6), [4, 4]),
    "symbolic": ("n", (40, 6), [4] * 10),
    "symbolic and few": ("n", (3, 6), [1, 1, 1]),
    "what does not fit": (4, (5, 6), [5]),
}


@pytest.mark.parametrize("case", SHAPES)
def test_examples_are_cut_into_batches(case: str) -> None:
    extent, shape, rows = SHAPES[case]
    np.savez("x.npz", x=draw(1, *shape))
    batches = read_batches(Path("x.npz"), load(product(extent=extent)))
    assert [len(batch["x"]) for batch in batches] == rows
    assert np.array_equal(np.concatenate([batch["x"] for batch in batches]), draw(1, *shape).reshape(-1, 6))


def test_files_that_do_not_fit_are_named() -> None:
    function = load(product())
    Path("data").mkdir()
    with pytest.raises(InputError, match=r"there is no \.npy or \.npz file in data; write one with numpy\.savez"):
        read_batches(Path("data"), function)
    np.savez("data/a.npz", y=draw(1, 3, 6))
    with pytest.raises(InputError, match="has an array 'y', which is no input"):
        read_batches(Path("data"), function)
    np.savez("data/a.npz")
    with pytest.raises(InputError, match="has no array for input x"):
        read_batches(Path("data"), function)
