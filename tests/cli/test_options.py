"""Options are the same in every command: names, units, sizes and help; a mistake names the command to type instead."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner
from onnx import parser

from tests.cli.test_cache_and_bundles import call
from tests.integrations.models import write_classifier
from tests.serve.serving import double
from xrt.bench.targets import set_dims
from xrt.cache import default_cache
from xrt.cli import main
from xrt.cli.app import cli
from xrt.errors import ModelError, OptionError
from xrt.formats import onnx
from xrt.formats.bundle import load_model
from xrt.graph import DType, Function, Node, TensorType, Value
from xrt.graph.types import Dim

SECONDS = ("--budget", "--time-limit", "--gate")
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


@pytest.mark.parametrize("name", SECONDS)
def test_a_time_has_a_unit(name: str) -> None:
    context = click.Context(cli)
    for path, option in OPTIONS[name].items():
        assert (option.make_metavar(context), "60s, 2m" in (option.help or "") or "2m" in (option.help or "")) == (
            "TIME",
            True,
        ), path


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
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A model of one symbolic dim, and a cache of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XRT_CACHE_DIR", str(tmp_path / "cache"))
    default_cache.cache_clear()
    type_ = TensorType(DType.FLOAT32, ("n", 3))
    function = Function((Value("x", type_),), (Value("y", type_),), (Node("Exp", ("x",), ("y",)),), opsets={"": 17})
    onnx.save(function, tmp_path / "m.onnx")
    yield "m.onnx"
    default_cache.cache_clear()


OPEN = "error: times are measured for inputs of known sizes, and the model leaves open: dim n. Give them: "


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
def test_open_dims_are_named_with_the_command(typed: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, *typed)
    assert (code, out, err) == (2, "", f"{OPEN}xrt {' '.join(typed)} --dim n=SIZE\n")


def test_an_extent_without_a_name_needs_a_file(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    type_ = TensorType(DType.FLOAT32, (2, None))
    onnx.save(Function((Value("x", type_),), (Value("y", type_),), (Node("Exp", ("x",), ("y",)),), opsets={"": 17}), model)
    text = "the model leaves open: extents without a name of input x. Give them: xrt tune m.onnx -i x=FILE.npy"
    assert text in call(capsys, "tune", model)[2]


@pytest.mark.slow
def test_a_file_gives_the_sizes(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    np.save("x.npy", np.ones((2, 3), np.float32))
    code, out, _ = call(capsys, "explain", model, "-e", "toy,auto", "-i", "x.npy", "--budget", "12s")
    assert (code, "x: float32[2,3]" in out, "placed by measurement: toy" in out) == (0, True, True)


@pytest.mark.slow
def test_a_lock_brings_its_sizes(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With another size the command measured for 20 seconds, and said that a fingerprint differs."""
    arguments = ("-e", "toy", "--dim", "n=2", "--budget", "12s", "--gate", "1s", "-o", "n2.lock")
    assert call(capsys, "lock", model, *arguments)[0] == 0
    code, out, err = call(capsys, "run", model, "-e", "auto", "--lock", "n2.lock")
    assert (code, "float32[2, 3]" in out, err) == (0, True, "")
    out = call(capsys, "explain", model, "-e", "auto", "--lock", "n2.lock")[1]
    assert "placed by a lock: toy" in out
    assert "1.000 (1.000 to 1.000)" not in out, "the baseline has no ratio to itself"
    code, out, err = call(capsys, "run", model, "-e", "auto", "--lock", "n2.lock", "--dim", "n=3")
    assert (code, out) == (2, "")
    assert err == (
        "error: the lock n2.lock is for --dim n=2, and --dim n=3 was given; leave that out, or write another lock: "
        "xrt lock m.onnx --dim n=3 -o FILE\n"
    )


HUGE = "9" * 20


@pytest.fixture
def wide_model(tmp_path: Path) -> str:
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
def test_an_extent_beyond_64_bits(command: str, wide_model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = ("-o", str(tmp_path / "out")) if command in ("compile", "lock") else ()
    assert error_of(capsys, command, wide_model, "--dim", f"n={HUGE}", *output) == (
        f"error: dimension 'n' cannot be {HUGE}: an extent is at least 0 and at most 9223372036854775807\n"
    )
    assert "got a number of 5000 digits" in error_of(capsys, command, wide_model, "--dim", f"n={'9' * 5000}", *output)


def test_an_extent_beyond_memory(wide_model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert error_of(capsys, "run", wide_model, "--dim", "n=400000000000000") == (
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
    wide_model = parser.parse_model('<ir_version: 8, opset_import: ["": 17]> g (float[N,3] x) => (float[N,3] y) { y = Neg(x) }')
    value = getattr(wide_model.graph, end)[0]
    value.type.tensor_type.shape.dim[1].dim_value = -2147483648
    with pytest.raises(ModelError) as caught:
        onnx.load(wide_model)
    assert str(caught.value) == (
        f"cannot load the given ModelProto: axis 1 of {value.name!r} has a negative extent, -2147483648; only -1 stands for one "
        f"that is not known"
    )


def run(*arguments: object) -> str:
    completed = CliRunner().invoke(cli, list(map(str, arguments)), standalone_mode=False, catch_exceptions=False)
    return completed.output


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
