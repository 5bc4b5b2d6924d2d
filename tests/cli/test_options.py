"""Options are the same in every command: names, units and help; a mistake names the command to type instead."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np
import pytest

from tests.cli.test_cache_and_bundles import call
from xrt.cache import default_cache
from xrt.cli.app import cli
from xrt.formats import onnx
from xrt.graph import DType, Function, Node, TensorType, Value

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
    found: dict[str, dict[str, click.Option]] = defaultdict(dict)
    for path, command in list_commands():
        for option in command.params:
            if isinstance(option, click.Option):
                for name in option.opts:
                    found[name][path] = option
    return found


OPTIONS = list_options()


@pytest.mark.parametrize("name", sorted(OPTIONS))
def test_an_option_takes_the_same_in_every_command(name: str) -> None:
    context = click.Context(cli)
    taken = {
        (option.is_flag, option.type.name, option.make_metavar(context), option.callback, tuple(sorted(option.opts)))
        for option in OPTIONS[name].values()
        if name not in ("-e", "--engine", "--engines") or option.metavar != "CANDIDATE"
    }
    assert (len(taken) == 1) is (name not in DIFFERENT), taken


@pytest.mark.parametrize("name", SECONDS)
def test_a_time_has_a_unit(name: str) -> None:
    for path, option in OPTIONS[name].items():
        assert (option.metavar, "60s, 2m" in (option.help or "") or "2m" in (option.help or "")) == ("TIME", True), path


@pytest.mark.parametrize("name", sorted(OPTIONS))
def test_every_option_has_help_that_begins_with_a_capital(name: str) -> None:
    for path, option in OPTIONS[name].items():
        assert (option.help or " ")[0].isupper(), path


PLACING = ("run", "compile", "explain", "verify", "bisect", "tune", "lock")


@pytest.mark.parametrize("name", PLACING)
def test_commands_that_place_take_the_same_options(name: str) -> None:
    command = dict(list_commands())[f"xrt {name}"]
    names = {option for one in command.params for option in one.opts}
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
