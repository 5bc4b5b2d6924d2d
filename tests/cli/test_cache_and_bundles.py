"""``xrt cache``, ``xrt compile``, and bundles given to ``xrt run`` and ``xrt inspect``."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import xrt
from tests.cli.commands import Command, write_model
from xrt.cache import Store
from xrt.formats import onnx
from xrt.testing.corpus.entry import graph, node

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def model(tmp_path: Path) -> str:
    return write_model(tmp_path / "model.onnx", ("N", 3), "Relu", "Softmax")


@pytest.fixture
def bundle(model: str, tmp_path: Path, command: Command) -> str:
    """The model, compiled for ort."""
    path = str(tmp_path / "model.xrt")
    code, out, _ = command("compile", model, "-e", "ort", "--strict", "-o", path)
    assert code == 0 and "xrt_ort_0  on ort: 2 nodes" in out and path in out
    return path


@pytest.mark.usefixtures("small_is_kept")
def test_the_cache_is_listed_checked_and_cleared(model: str, own_cache: Path, command: Command) -> None:
    assert command("cache", "list")[1].splitlines()[-1] == f"0 entries, 0 bytes, in {own_cache}"
    assert command("run", model, "-e", "ort")[0] == 0
    code, out, _ = command("cache", "list", "--json")
    (entry,) = json.loads(out)["entries"]
    assert code == 0 and entry["engine"] == "Ort ort" and entry["entry"] == "float32[N,3]"
    assert command("cache", "verify")[:2] == (0, f"1 entries, 0 of them damaged, in {own_cache}\n")
    path = Store(own_cache).entries.items()[0].path
    path.write_bytes(path.read_bytes()[:-1])
    code, out, _ = command("cache", "verify")
    assert code == 1 and "cannot be used: it should have" in out
    assert command("cache", "gc")[1].startswith("removed 1 damaged entries, 0 remembered failures, 0 entries over the limit")
    command("run", model, "-e", "ort{memory_arena=false}")
    assert command("cache", "clear")[1].startswith("removed 1 entries")
    assert Store(own_cache).entries.items() == []


@pytest.mark.usefixtures("small_is_kept")
def test_why_miss_names_the_ingredient(model: str, command: Command) -> None:
    assert command("cache", "explain-miss", model, "-e", "ort")[:2] == (1, "xrt_ort_0: not in the cache\n  the cache is empty\n")
    command("run", model, "-e", "ort", "--threads", "1")
    assert command("cache", "explain-miss", model, "-e", "ort", "--threads", "1")[:2] == (0, "xrt_ort_0: in the cache\n")
    code, out, _ = command("cache", "explain-miss", model, "-e", "ort{memory_arena=false}", "--threads", "1", "--json")
    assert code == 1
    (differs,) = json.loads(out)["xrt_ort_0"]["differs"]
    assert differs["ingredient"] == "engine"
    assert (differs["asked"].split(" ")[1], differs["entry"].split(" ")[1]) == ("ort{memory_arena=false}", "ort")


@pytest.mark.parametrize(
    ("engine", "reason"),
    [("ort", "compiles so small a region in less time than it takes to load one"), ("toy", "cannot save an executable")],
)
def test_why_miss_says_what_is_never_saved(engine: str, reason: str, model: str, command: Command) -> None:
    output = f"xrt_{engine}_0: engine {engine!r} {reason}, so it is compiled in each process\n"
    assert command("cache", "explain-miss", model, "-e", engine)[:2] == (0, output)


def test_a_bundle_is_inspected_and_run(bundle: str, tmp_path: Path, command: Command) -> None:
    facts = json.loads(command("inspect", bundle, "--json")[1])
    assert facts["inputs"] == {"x": "float32[N,3]"} and facts["programs"][0]["regions"][0]["compiled"] is True
    assert "Launch" in command("inspect", bundle, "--text")[1] and command("explain", bundle, "-v")[0] == 0
    np.save(tmp_path / "x.npy", np.ones((2, 3), np.float32))
    arguments = ("-i", f"x={tmp_path / 'x.npy'}", "--output", tmp_path / "y.npz", "--verify", "--strict")
    assert command("run", bundle, *arguments)[0] == 0
    np.testing.assert_allclose(np.load(tmp_path / "y.npz")["y"], np.full((2, 3), 1 / 3), rtol=1e-6)
    assert "ort: 1 region on 1 thread;" in command("run", bundle, "--strict", "--threads", "1")[1]


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("explain", "its compiled form comes from the bundle"),
        ("verify", "the whole: agrees"),
        ("inspect", "a bundle of xrt"),
        ("bisect", "no region differs from the reference engine"),
        ("run", "ort: 1 region on"),
    ],
)
def test_commands_take_a_bundle(name: str, line: str, bundle: str, command: Command) -> None:
    code, out, _ = command(name, bundle)
    assert code == 0 and line in out
    if name != "inspect":
        for option, value in (("--pin", "Relu=toy"), ("--engine", "ort")):
            error = f"error: {bundle} is a bundle with fixed {option}; leave that out, or compile the model again\n"
            assert command(name, bundle, option, value)[::2] == (2, error)


@pytest.mark.slow
def test_a_bundle_is_compared_by_its_model(bundle: str, command: Command) -> None:
    code, out, _ = command("bench", f"{bundle}{{N=4}}", "-e", "toy", "--rounds", "2", "--threads", "1")
    assert code == 0
    assert out.startswith(f"{bundle}{{N=4}}, 1 thread")


@pytest.mark.slow
def test_all_combinations_of_sizes_are_compiled(tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    model, path = write_model(tmp_path / "m.onnx", ("a", "b"), "Relu"), tmp_path / "model.xrt"
    dims = [part for text in ("a=1", "a=2", "b=3", "b=4", "b=5") for part in ("--dim", text)]
    with monkeypatch.context() as patch:
        patch.setattr("xrt.module.dispatch.MIN_BYTES", 1 << 40)  # what a compile makes is kept, however much that is
        code, out, _ = command("compile", model, "-e", "xla", "--strict", "-o", path, *dims)
    sizes = "; ".join(f"a={a}, b={b}" for a in (1, 2) for b in (3, 4, 5))
    assert code == 0 and f"compiled for {sizes}; for other sizes the bundle compiles when it meets them\n" in out
    assert "float32[2, 5]" in command("run", path, "--dim", "a=2", "--dim", "b=5")[1]
    assert "no input has a dimension 'M'" in command("run", path, "--dim", "M=5")[2]
    with xrt.load(path, cache=tmp_path / "empty", strict=True) as loaded:
        assert str(loaded.inputs[0].type) == "float32[a,b]"
        with monkeypatch.context() as patch:
            patch.setattr("xrt.engines.xla.Xla.compile", lambda *_: pytest.fail("it is compiled again"))
            for shape in ((1, 3), (2, 4), (2, 5)):
                loaded(np.ones(shape, np.float32))
        assert loaded(np.ones((2, 7), np.float32)).shape == (2, 7)
        assert loaded.plan.function.inputs[0].type.shape == (2, 8)  # padding serves later sizes


@pytest.mark.slow
@pytest.mark.parametrize("name", ["compile", "verify"])
def test_a_model_that_cannot_run_is_refused(name: str, tmp_path: Path, command: Command) -> None:
    gather = node("Gather", "x beyond", "y")
    function = graph({"x": "float32[2,3]"}, {"y": "float32[1,3]"}, gather, constants={"beyond": np.array([7])})
    onnx.save(function, tmp_path / "m.onnx")
    target = tmp_path / "model.xrt"
    code, _, err = command(name, tmp_path / "m.onnx", "-e", "ort", *(("-o", target) if name == "compile" else ()))
    assert code == 2 and "failed while it ran" in err and "idx=7" in err
    assert not target.exists()


def test_the_sizes_that_were_compiled_for_are_reported(model: str, tmp_path: Path, command: Command) -> None:
    path = str(tmp_path / "model.xrt")
    for engine in ("ort", "openvino"):
        out = command("compile", model, "-e", engine, "--strict", "-o", path)[1]
        assert "compiled once for every size of N, which its engines leave open\n" in out
        assert "float32[5, 3]" in command("run", path, "--dim", "N=5")[1]
    out = command("compile", model, "-e", "xla", "-o", path)[1]
    assert "compiled for N=1 (N as no --dim says otherwise); for other sizes the bundle compiles when it meets them\n" in out
    out = command("compile", model, "-e", "openvino", "-o", path, "--dim", "N=4")[1]
    assert "fixed at N=4: an input of another size is an error\n" in out and "compiled for" not in out
    refused = command("compile", model, "-e", "openvino", "-o", path, "--dim", "M=2")
    assert refused[::2] == (2, "error: no input has a dimension 'M'. The model has: N\n")
    refused = command("run", model, "--dim", "N=2", "--dim", "N=3")
    assert refused[::2] == (2, "error: --dim gives N as 2 and as 3; only `xrt compile` takes several sizes\n")
