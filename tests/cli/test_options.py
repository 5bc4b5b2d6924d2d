"""Options are the same in every command: names, units, sizes and help; a mistake names the command to type instead."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np
import pytest
from onnx import parser

import xrt
from tests.cli.commands import Command, write_model
from tests.exact_errors import raises_exactly
from tests.integrations.models import write_classifier
from tests.serve.serving import double
from xrt.bench.targets import set_dims
from xrt.cli.app import cli
from xrt.cli.tune import bench_command
from xrt.errors import ModelError
from xrt.formats import onnx
from xrt.formats.bundle import load_model
from xrt.graph import DType, Function, TensorType, Value
from xrt.graph.types import Dim
from xrt.testing.corpus.entry import graph, node

DIFFERENT = {
    "--threads": "a thread budget, or several to compare",
    "--batch": "batch sizes of a model, or graphs that are compiled as one",
    "--instances": "a number of calls at a time, or several to compare",
    "--output": "a file, or a folder",
    "-o": "a file, or a folder",
}
"""Options whose values differ between commands, each with the reason. The list may only shrink."""


def list_commands(group: click.Group = cli, path: str = "xrt") -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield f"{path} {name}", command
        if isinstance(command, click.Group):
            yield from list_commands(command, f"{path} {name}")


def list_options() -> dict[str, dict[str, click.Option]]:
    """Return by long name the option of each command that has it."""
    result: dict[str, dict[str, click.Option]] = defaultdict(dict)
    for path, command in list_commands():
        for option in command.params:
            if isinstance(option, click.Option):
                for name in option.opts:
                    result[name][path] = option
    return result


OPTIONS = list_options()


@pytest.mark.parametrize("name", sorted(OPTIONS))
def test_an_option_takes_the_same_in_every_command(name: str) -> None:
    context = click.Context(cli)
    results = {
        (option.is_flag, option.type.name, option.make_metavar(context), option.callback, tuple(sorted(option.opts)))
        for option in OPTIONS[name].values()
        if name not in ("-e", "--engine", "--engines") or option.metavar != "CANDIDATE"
    }
    assert (len(results) == 1) is (name not in DIFFERENT), results


@pytest.mark.parametrize("name", sorted(OPTIONS))
def test_every_option_has_help_that_begins_with_a_capital(name: str) -> None:
    for path, option in OPTIONS[name].items():
        assert (option.help or " ")[0].isupper(), path


PLACING = ("run", "compile", "explain", "verify", "bisect", "tune", "lock")


@pytest.mark.parametrize("name", PLACING)
def test_commands_that_place_take_the_same_options(name: str) -> None:
    command = dict(list_commands())[f"xrt {name}"]
    names = {option for item in command.params for option in item.opts}
    expected = {"--engine", "--budget", "--dim", "--pin", "--threads", "--device", "--devices", "--precision", "--isolate"}
    assert expected - names == set()


@pytest.fixture
def model(tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A model of one symbolic dim in the current directory, and a cache of its own."""
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "m.onnx", ("n", 3), "Exp")
    return "m.onnx"


OPEN = "error: times are measured for inputs of known sizes, and these are unknown: dim n. Set them: "


@pytest.mark.parametrize(
    "typed",
    [
        ("tune", "m.onnx"),
        ("explain", "m.onnx", "-e", "ort,auto"),
        ("lock", "m.onnx"),
        ("tune", "m.onnx", "--json"),
        ("bench", "m.onnx", "--engines", "toy"),
    ],
)
@pytest.mark.usefixtures("model")
def test_open_dims_are_named_with_the_command(typed: tuple[str, ...], command: Command) -> None:
    code, out, err = command(*typed)
    assert (code, out, err) == (2, "", f"{OPEN}xrt {' '.join(typed)} --dim n=SIZE\n")


def test_an_extent_without_a_name_needs_a_file(tmp_path: Path, command: Command) -> None:
    model = write_model(tmp_path / "m.onnx", (2, None), "Exp")
    text = f"these are unknown: extents without a name of input x. Set them: xrt tune {model} -i x=FILE.npy"
    assert text in command("tune", model)[2]


@pytest.mark.slow
def test_compile_and_bench_run_on_the_inputs_of_files(tmp_path: Path, own_cache: Path, command: Command) -> None:
    """The random values of `shape` are 0 and 1, which fit no tensor of three elements."""
    reshape = graph({"x": "float32[n,3]", "shape": "int64[1]"}, {"y": "float32[?]"}, node("Reshape", "x shape", "y"))
    model, values = tmp_path / "m.onnx", tmp_path / "values.npz"
    onnx.save(reshape, model)
    np.savez(values, x=np.ones((2, 3), np.float32), shape=np.array([6]))
    engine = ("-e", "toy")
    assert command("compile", model, *engine, "-o", tmp_path / "m.xrt")[0] == 2
    assert command("compile", model, *engine, "-i", values, "-o", tmp_path / "m.xrt")[0] == 0
    assert xrt.load(tmp_path / "m.xrt").run_self_test() is not None
    code, out, _ = command("bench", model, *engine, "-i", values, "--rounds", "2", "--threads", "1", "--json")
    assert (code, json.loads(out)["settings"]["device"]) == (0, "cpu")


@pytest.mark.slow
def test_a_file_gives_the_sizes(model: str, command: Command) -> None:
    np.save("x.npy", np.ones((2, 3), np.float32))
    code, out, _ = command("explain", model, "-e", "toy,auto", "-i", "x.npy", "--budget", "12s")
    assert (code, "x: float32[2,3]" in out, "placed by measurement: toy" in out) == (0, True, True)


@pytest.mark.slow
def test_a_lock_brings_its_sizes(model: str, command: Command) -> None:
    """With another size the command measured for 20 seconds, and said that a fingerprint differs."""
    arguments = ("-e", "toy", "--dim", "n=2", "--budget", "12s", "--gate", "1s", "-o", "n2.lock")
    assert command("lock", model, *arguments)[0] == 0
    code, out, err = command("run", model, "-e", "auto", "--lock", "n2.lock")
    assert (code, "float32[2, 3]" in out, err) == (0, True, "")
    out = command("explain", model, "-e", "auto", "--lock", "n2.lock")[1]
    assert "placed by a lock: toy" in out
    assert "1.000 (1.000 to 1.000)" not in out, "the baseline has no ratio to itself"
    code, out, err = command("run", model, "-e", "auto", "--lock", "n2.lock", "--batch", "3", "--verify")
    assert (code, "float32[3, 3]" in out, err) == (0, True, ""), "a lock serves all sizes"


HUGE, ENDLESS = "9" * 20, "9" * 5000
BEYOND = [
    *(
        (
            (name, "m.onnx", "--dim", f"n={HUGE}"),
            f"dimension 'n' cannot be {HUGE}: an extent is at least 0 and at most {2**63 - 1}\n",
        )
        for name in ("run", "explain", "verify", "compile", "lock", "tune")
    ),
    (("run", "m.onnx", "--dim", f"n={ENDLESS}"), f"--dim n: an extent is at most {2**63 - 1}; got a number of 5000 digits\n"),
    (
        ("run", "m.onnx", "--dim", "n=400000000000000"),
        "float32[400000000000000,3], and random values for it take 9600000000000000 bytes, more than there is memory",
    ),
    (("run", f"mlp{{batch={HUGE}}}"), f"batch of model 'mlp' cannot be {HUGE}: an extent is at most {2**63 - 1}\n"),
    (("run", "mlp{hidden=400000000000000}"), "there is not enough memory: Unable to allocate"),
    (("bench", f"m.onnx{{n={ENDLESS}}}", "-e", "toy"), "is a number of 5000 digits, which is too large for an extent"),
]


@pytest.mark.parametrize(("typed", "text"), BEYOND, ids=lambda value: " ".join(value)[:40] if isinstance(value, tuple) else "")
@pytest.mark.usefixtures("model")
def test_an_extent_that_cannot_be(typed: tuple[str, ...], text: str, command: Command) -> None:
    code, _, err = command(*typed)
    assert code == 2 and err.startswith("error: ") and text in err


@pytest.mark.parametrize("end", ["input", "output"])
def test_a_negative_extent(end: str) -> None:
    wide_model = parser.parse_model('<ir_version: 8, opset_import: ["": 17]> g (float[N,3] x) => (float[N,3] y) { y = Neg(x) }')
    value = getattr(wide_model.graph, end)[0]
    value.type.tensor_type.shape.dim[1].dim_value = -2147483648
    with raises_exactly(
        ModelError,
        f"cannot load the given ModelProto: axis 1 of {value.name!r} has a negative extent, -2147483648; only -1 is allowed, "
        "for an unknown extent",
    ):
        onnx.load(wide_model)


@pytest.mark.parametrize("given", [["--batch", "5"], ["--dim", "batch=5"]])
def test_run_compile_and_explain(given: list[str], tmp_path: Path, command: Command) -> None:
    model = write_classifier(tmp_path)
    assert "output_label\tint64[5]" in command("run", model, "-e", "toy", *given)[1]
    command("compile", model, "-e", "toy", *given, "-o", tmp_path / "model.xrt")
    assert [value.type.shape for value in load_model(tmp_path / "model.xrt").inputs] == [(5, 1), (5, 1)]  # type: ignore[union-attr]
    assert "float32[5,1]" in command("explain", model, "-e", "toy", *given)[1]


def test_a_bundle_that_is_open_is_run_at_a_batch(tmp_path: Path, command: Command) -> None:
    command("compile", write_classifier(tmp_path), "-e", "toy", "-o", tmp_path / "model.xrt")
    assert "output_label\tint64[7]" in command("run", tmp_path / "model.xrt", "--batch", "7")[1]


def test_tune_takes_one_size_and_throughput_several(tmp_path: Path, command: Command) -> None:
    model = write_classifier(tmp_path)
    output = command("tune", model, "-e", "toy", "--batch", "3", "--budget", "1s", "--json")[1]
    assert json.loads(output)["model"] == model
    text = "error: --batch with several sizes is for throughput; pass --objective throughput too, or leave it out\n"
    assert command("tune", model, "-e", "toy", "--batch", "3,4")[::2] == (2, text)


@pytest.mark.parametrize("name", ["bench", "tune", "lock"])
def test_what_measures_asks_for_the_batch(name: str, tmp_path: Path, command: Command) -> None:
    error = command(name, write_classifier(tmp_path), "-e", "toy")[2]
    assert "these are unknown: the first axes of the inputs, which have no name. Set them: xrt " in error
    assert error.endswith(" --batch SIZE\n")


def test_a_named_first_axis_is_the_batch_and_a_fixed_one_must_be_it(tmp_path: Path, command: Command) -> None:
    onnx.save(double(), tmp_path / "open.onnx")
    onnx.save(double((2, 3)), tmp_path / "fixed.onnx")
    assert "float32[4, 3]" in command("run", tmp_path / "open.onnx", "-e", "toy", "--batch", "4")[1]
    assert "float32[2, 3]" in command("run", tmp_path / "fixed.onnx", "-e", "toy", "--batch", "2")[1]
    text = (
        "the model's batch is 2, and 4 was requested; the size can be chosen only for a symbolic dim, or for a shipped model by"
    )
    for name in ("run", "bench"):
        refused = command(name, tmp_path / "fixed.onnx", "-e", "toy", "--batch", "4")
        assert refused[::2] == (2, f"error: {text} 'NAME{{batch=4}}'\n")


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


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--isolate", "orr"), "isolate names 'orr', which is not in the list of engines. Did you mean 'ort'?"),
        (("--isolate", ""), "the engine list '' has an empty element; write it like 'tvm,ort'"),
        (("--isolate-run",), "--isolate-run is for engines in worker processes; name them with --isolate"),
        (("--time-limit", "0", "--isolate", "ort"), "--time-limit takes a time such as 60s or 2m; got '0'"),
        (("--time-limit", "3"), "--time-limit is for engines in worker processes; name them with --isolate"),
        (("--memory-limit", "much"), "--memory-limit takes a size such as 500MB or 4GB; got 'much'"),
    ],
)
def test_an_isolation_that_cannot_be_is_refused(model: str, arguments: tuple[str, ...], text: str, command: Command) -> None:
    assert command("run", model, "-e", "ort", *arguments)[::2] == (2, f"error: {text}\n")


def test_bench_has_no_isolation() -> None:
    """Each of its candidates has a process of its own, whatever is asked."""
    assert {"isolate", "isolate_run", "memory_limit"}.isdisjoint(option.name for option in bench_command.params)
