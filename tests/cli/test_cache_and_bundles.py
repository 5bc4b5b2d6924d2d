"""``xrt cache``, ``xrt compile``, and bundles given to ``xrt run`` and ``xrt inspect``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xrt
from xrt.cache import Store, default_cache
from xrt.cli import main
from xrt.engines.contract import registry
from xrt.formats import onnx
from xrt.graph import Constant, DType, Function, Node, TensorType, Value


@pytest.fixture
def model(tmp_path: Path) -> str:
    type_ = TensorType(DType.FLOAT32, ("N", 3))
    nodes = (Node("Relu", ("x",), ("h",)), Node("Softmax", ("h",), ("y",)))
    onnx.save(Function((Value("x", type_),), (Value("y", type_),), nodes, opsets={"": 18}), tmp_path / "model.onnx")
    return str(tmp_path / "model.onnx")


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache directory of the test's own, and no memory tier that remembers another test's."""
    monkeypatch.setenv("XRT_CACHE_DIR", str(tmp_path / "cache"))
    default_cache.cache_clear()
    yield tmp_path / "cache"
    default_cache.cache_clear()


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as caught:
        main(list(arguments))
    captured = capsys.readouterr()
    return int(caught.value.code or 0), captured.out, captured.err


@pytest.mark.usefixtures("small_is_kept")
def test_the_cache_is_listed_checked_and_cleared(model: str, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, "cache", "list")[1].splitlines()[-1] == f"0 entries, 0 bytes, in {directory}"
    assert call(capsys, "run", model, "-e", "ort")[0] == 0
    code, out, _ = call(capsys, "cache", "list", "--json")
    (entry,) = json.loads(out)["entries"]
    assert code == 0 and entry["engine"] == "Ort ort" and entry["entry"] == "float32[N,3]"
    assert call(capsys, "cache", "verify")[:2] == (0, f"1 entries, 0 of them damaged, in {directory}\n")
    path = Store(directory).entries.items()[0].path
    path.write_bytes(path.read_bytes()[:-1])
    code, out, _ = call(capsys, "cache", "verify")
    assert code == 1 and "cannot be used: it should have" in out
    assert call(capsys, "cache", "gc")[1].startswith("removed 1 damaged entries, 0 remembered failures, 0 entries over the limit")
    call(capsys, "run", model, "-e", "ort{memory_arena=false}")
    assert call(capsys, "cache", "clear")[1].startswith("removed 1 entries")
    assert Store(directory).entries.items() == []


@pytest.mark.usefixtures("small_is_kept")
def test_why_miss_names_the_ingredient(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, "cache", "explain-miss", model, "-e", "ort")[:2] == (
        1,
        "xrt_ort_0: not in the cache\n  the cache is empty\n",
    )
    call(capsys, "run", model, "-e", "ort", "--threads", "1")
    assert call(capsys, "cache", "explain-miss", model, "-e", "ort", "--threads", "1")[:2] == (0, "xrt_ort_0: in the cache\n")
    code, out, _ = call(capsys, "cache", "explain-miss", model, "-e", "ort{memory_arena=false}", "--threads", "1", "--json")
    assert code == 1
    (differs,) = json.loads(out)["xrt_ort_0"]["differs"]
    assert differs["ingredient"] == "engine"
    assert (differs["asked"].split(" ")[1], differs["entry"].split(" ")[1]) == ("ort{memory_arena=false}", "ort")


def test_why_miss_says_what_is_not_worth_saving(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    output = "engine 'ort' compiles so small a region in less time than it takes to load one, so it is compiled in each process"
    assert call(capsys, "cache", "explain-miss", model, "-e", "ort")[:2] == (0, f"xrt_ort_0: {output}\n")


def test_an_impossible_size_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = call(capsys, "cache", "gc", "--size", "much")
    assert code == 2 and "--size takes a size such as 500MB or 4GB; got 'much'" in err


def test_a_model_is_compiled_inspected_and_run(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "model.xrt"
    code, out, _ = call(capsys, "compile", model, "-e", "ort", "-o", str(target), "--strict")
    assert code == 0 and "xrt_ort_0  on ort: 2 nodes" in out and str(target) in out
    code, out, _ = call(capsys, "inspect", str(target), "--json")
    facts = json.loads(out)
    assert facts["inputs"] == {"x": "float32[N,3]"} and facts["programs"][0]["regions"][0]["compiled"] is True
    assert "a bundle of xrt" in call(capsys, "inspect", str(target))[1]
    assert "Launch" in call(capsys, "inspect", str(target), "--text")[1]
    np.save(tmp_path / "x.npy", np.ones((2, 3), np.float32))
    arguments = ("run", str(target), "-i", f"x={tmp_path / 'x.npy'}", "--output", str(tmp_path / "y.npz"), "--verify", "--strict")
    assert call(capsys, *arguments)[0] == 0
    np.testing.assert_allclose(np.load(tmp_path / "y.npz")["y"], np.full((2, 3), 1 / 3), rtol=1e-6)
    code, _, err = call(capsys, "run", str(target), "-e", "ort", "--threads", "1")
    assert code == 2 and "is a bundle, which settles --engine; leave that out" in err
    assert "ort: 1 region on 1 thread;" in call(capsys, "run", str(target), "--strict", "--threads", "1")[1]


@pytest.mark.slow
def test_symbolic_extents_are_given_where_an_engine_needs_them(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "model.xrt"
    assert call(capsys, "compile", model, "-e", "tvm", "-o", str(target), "--dim", "N=4", "--strict")[0] == 0
    assert [str(v.type) for v in xrt.load(target, strict=True).inputs] == ["float32[4,3]"]
    code, _, err = call(capsys, "compile", model, "-o", str(tmp_path / "nowhere" / "model.xrt"))
    assert code == 2 and "there is no folder" in err


@pytest.mark.parametrize("command", ["explain", "verify", "inspect", "bisect", "run"])
def test_commands_take_a_bundle(command: str, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "model.xrt")
    assert call(capsys, "compile", model, "-e", "ort", "--strict", "-o", path)[0] == 0
    code, out, _ = call(capsys, command, path)
    assert code == 0
    results = {
        "explain": "its compiled form comes from the bundle",
        "verify": "the whole: agrees",
        "inspect": "a bundle of xrt",
        "bisect": "no region differs from the reference engine",
        "run": "ort: 1 region on",
    }
    assert results[command] in out
    if command == "explain":
        assert call(capsys, command, path, "-v")[0] == 0
    if command not in ("inspect",):
        code, _, err = call(capsys, command, path, "--pin", "Relu=toy")
        assert (code, err) == (2, f"error: {path} is a bundle, which settles --pin; leave that out, or compile the model again\n")


@pytest.mark.slow
def test_a_bundle_is_compared_by_its_model(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "model.xrt")
    assert call(capsys, "compile", model, "-e", "ort", "--strict", "-o", path)[0] == 0
    code, out, _ = call(capsys, "bench", f"{path}{{N=4}}", "-e", "toy", "--rounds", "2", "--threads", "1")
    assert code == 0
    assert out.startswith(f"{path}{{N=4}}, 1 thread")


def count_compiles(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list that gets the shape of the input of each Function that xla compiles from now on."""
    compiled: list[Any] = []
    kind = registry.create("xla").implementation
    real = kind.compile

    def compile_(engine: Any, function: Function, context: Any) -> Any:
        compiled.append(function.inputs[0].type.shape)
        return real(engine, function, context)

    monkeypatch.setattr(kind, "compile", compile_)
    return compiled


@pytest.mark.slow
def test_a_bundle_has_several_sizes(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "model.xrt")
    code, out, _ = call(capsys, "compile", model, "-e", "xla", "--strict", "-o", path, "--dim", "N=2", "--dim", "N=5")
    assert code == 0
    assert "float32[5, 3]" in call(capsys, "run", path, "--dim", "N=5")[1]
    assert "no input has a dimension 'M'" in call(capsys, "run", path, "--dim", "M=5")[2]
    assert "compiled for N=2; N=5; for other sizes the bundle compiles when it meets them\n" in out
    compiled = count_compiles(monkeypatch)
    with xrt.load(path, cache=tmp_path / "empty", strict=True) as loaded:
        assert str(loaded.inputs[0].type) == "float32[N,3]"
        for rows in (2, 5):
            loaded(np.ones((rows, 3), np.float32))
        assert compiled == []
        assert loaded(np.ones((7, 3), np.float32)).shape == (7, 3)
        assert compiled == [(8, 3)]  # padding serves later sizes


@pytest.mark.slow
def test_all_combinations_of_sizes_are_compiled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    type_ = TensorType(DType.FLOAT32, ("a", "b"))
    onnx.save(
        Function((Value("x", type_),), (Value("y", type_),), (Node("Relu", ("x",), ("y",)),), opsets={"": 18}),
        tmp_path / "m.onnx",
    )
    path = str(tmp_path / "model.xrt")
    dims = [text for a in range(1, 5) for text in ("--dim", f"a={a}")] + [
        text for b in range(1, 6) for text in ("--dim", f"b={b}")
    ]
    code, out, _ = call(capsys, "compile", str(tmp_path / "m.onnx"), "-e", "xla", "--strict", "-o", path, *dims)
    assert code == 0 and "compiled for a=1, b=1; a=1, b=2; " in out and "; a=4, b=5; for other sizes" in out
    compiled = count_compiles(monkeypatch)
    with xrt.load(path, cache=tmp_path / "empty", strict=True) as loaded:
        for a in range(1, 5):
            for b in range(1, 6):
                loaded(np.ones((a, b), np.float32))
        assert compiled == []


@pytest.mark.slow
@pytest.mark.parametrize("command", ["compile", "verify"])
def test_a_model_that_cannot_run_is_refused(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    type_ = TensorType(DType.FLOAT32, (2, 3))
    function = Function(
        (Value("x", type_),),
        (Value("y"),),
        (Node("Gather", ("x", "beyond"), ("y",)),),
        {"beyond": Constant(np.array([7]))},
        opsets={"": 18},
    )
    onnx.save(function, tmp_path / "m.onnx")
    target = tmp_path / "model.xrt"
    code, _, err = call(
        capsys, command, str(tmp_path / "m.onnx"), "-e", "ort", *(("-o", str(target)) if command == "compile" else ())
    )
    assert code == 2 and "failed while it ran" in err and "idx=7" in err
    assert not target.exists()


def test_the_sizes_that_were_compiled_for_are_reported(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "model.xrt")
    assert (
        "compiled once for every size of N, which its engines leave open\n"
        in call(capsys, "compile", model, "-e", "ort", "-o", path)[1]
    )
    out = call(capsys, "compile", model, "-e", "xla", "-o", path)[1]
    assert "compiled for N=1 (N as no --dim says otherwise); for other sizes the bundle compiles when it meets them\n" in out
    out = call(capsys, "compile", model, "-e", "openvino", "-o", path, "--dim", "N=4")[1]
    assert "fixed at N=4: an input of another size is an error\n" in out and "compiled for" not in out
    code, _, err = call(capsys, "compile", model, "-e", "openvino", "-o", path, "--dim", "M=2")
    assert code == 2 and err == "error: no input has a dimension 'M'. The model has: N\n"
    code, _, err = call(capsys, "run", model, "--dim", "N=2", "--dim", "N=3")
    assert code == 2 and err == "error: --dim gives N as 2 and as 3; only `xrt compile` takes several sizes\n"


@pytest.mark.slow
def test_a_bundle_has_one_program_for_all_sizes(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "model.xrt")
    code, out, _ = call(capsys, "compile", model, "-e", "openvino", "--strict", "-o", path)
    assert code == 0
    assert "compiled once for every size of N, which its engines leave open\n" in out
    assert "float32[5, 3]" in call(capsys, "run", path, "--dim", "N=5")[1]
