"""The command as a person meets it, off a terminal; `xrt doctor`, `xrt verify` and `xrt bisect`."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path

import numpy as np
import pytest

from tests.cli.commands import Command, write_model
from tests.precision.lossy import Lossy
from tests.verify.wrong import Wrong, long_model, numbers
from xrt import XRTModule
from xrt.cache import CompileCache
from xrt.cli import engines as engines_module
from xrt.engines import EngineStatus, split_specs
from xrt.errors import EngineError, XRTWarning
from xrt.formats import onnx
from xrt.logging import configure_logging
from xrt.testing.corpus.entry import graph, node
from xrt.testing.fault_injection import FaultyEngine


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """x -> Relu -> Sin -> y, with a symbolic batch, in the current directory."""
    monkeypatch.chdir(tmp_path)
    return write_model(tmp_path / "model.onnx", ("batch", 3), "Relu", "Sin")


def test_without_arguments_the_help_is_shown(command: Command) -> None:
    code, out, err = command()
    assert (code, err) == (2, "")
    assert out.startswith("Usage: xrt")
    assert all(name in out for name in ("engines", "inspect", "run", "explain", "conformance", "doctor"))


@pytest.mark.slow
def test_engines_are_listed_with_their_state(command: Command) -> None:
    code, out, _ = command("engines")
    assert code == 0
    ready = {tuple(line.split("\t")[:2]) for line in out.splitlines()[1:]}
    assert ready >= {("toy", "ready"), ("ort", "ready"), ("tvm", "ready")}
    states = json.loads(command("engines", "--json")[1])
    assert {state["name"] for state in states} >= {"toy", "ort", "tvm"}


def test_inspect(model: str, command: Command) -> None:
    code, out, _ = command("inspect", model)
    assert code == 0
    assert "input\tx\tfloat32[batch,3]" in out
    assert "Sin\t1" in out
    facts = json.loads(command("inspect", model, "--json")[1])
    assert (facts["nodes"], facts["opsets"], facts["inputs"]) == (2, {"ai.onnx": 18}, {"x": "float32[batch,3]"})


def test_run_reads_and_writes_arrays(model: str, tmp_path: Path, command: Command) -> None:
    x = np.array([[-1, 0, 2]], "float32")
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "all.npz", x=x)
    for item in ("x=x.npy", "x.npy", "all.npz"):
        code, out, err = command("run", model, "--input", item, "--output", "out.npz", "--verify", "-e", "ort")
        assert (code, err) == (0, "")
        assert "y agrees with the reference" in out
        np.testing.assert_allclose(np.load(tmp_path / "out.npz")["y"], np.sin(np.maximum(x, 0)), rtol=1e-6)
        (tmp_path / "out.npz").unlink()
    assert {p.name for p in tmp_path.iterdir()} == {"model.onnx", "x.npy", "all.npz"}


def test_run_makes_up_what_is_not_given_from_the_seed(model: str, tmp_path: Path, command: Command) -> None:
    seen = []
    for seed in (1, 1, 2):
        assert command("run", model, "--dim", "batch=4", "--seed", seed, "-o", "out.npz")[0] == 0
        seen.append(np.load(tmp_path / "out.npz")["y"])
    assert seen[0].shape == (4, 3)
    assert np.array_equal(seen[0], seen[1])
    assert not np.array_equal(seen[0], seen[2])


def test_explain_gives_regions_and_reasons(model: str, command: Command) -> None:
    code, out, _ = command("explain", model, "--engine", "ort,toy", "--pin", "Sin=toy")
    assert code == 0
    assert "xrt_ort_0  on ort: 1 node (Relu)" in out
    assert "sin (Sin) not on ort: pinned to toy by 'Sin=toy'" in out
    data = json.loads(command("explain", model, "--engine", "ort,toy", "--pin", "Sin=toy", "--json")[1])
    assert [(r["name"], r["nodes"]) for r in data["regions"]] == [("xrt_ort_0", 1), ("xrt_toy_1", 1)]
    assert data["reasons"][0]["node"] == "sin"


def test_explain_compiles_to_tell_of_memory(model: str, command: Command) -> None:
    code, out, _ = command("explain", model, "--engine", "ort,toy", "--pin", "Sin=toy", "--memory")
    assert code == 0
    table = out[out.index("memory:") :].splitlines()
    assert [line.split("  ")[0] for line in table[1:3]] == ["weights", "between regions"]
    assert table[-1].startswith("held between calls")
    data = json.loads(command("explain", model, "--engine", "ort,toy", "--pin", "Sin=toy", "--memory", "--json")[1])
    assert [use["name"] for use in data["memory"]["regions"][0]["uses"]] == ["session", "workspace"]


@pytest.mark.slow
def test_conformance_runs_groups_and_alternates(command: Command) -> None:
    arguments = ("conformance", "ort,toy", "--group", "simple", "--group", "pytorch-operator", "--cases", "*relu*,operator_mm")
    code, out, err = command(*arguments, "--alternate", "--operators")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert "Relu\t1\t0\t0\t0\tort 1, toy 1" in lines
    assert "simple\t1\t0\t0\t0" in lines
    assert lines[-1].startswith("ort,toy, alternating: 2 passed, 0 declined, 0 failed, 0 gap of 2")
    data = json.loads(command(*arguments, "--json")[1])
    assert data["groups"]["pytorch-operator"] == {"passed": 1, "declined": 0, "failed": 0, "gap": 0}
    assert [(outcome["case"], outcome["word"]) for outcome in data["outcomes"]] == [
        ("test_single_relu_model", "passed"),
        ("test_operator_mm", "passed"),
    ]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["rum", "m.onnx"], "there is no command 'rum'. Did you mean 'run'?"),
        (
            ["run", "mlp", "--precision", "int8"],
            "--precision takes fp32, fp16 or bf16; got 'int8'. `xrt quantize` writes a model in",
        ),
        (["run", "mlp", "--threads", "0"], "Invalid value for '--threads': 0 is not in the range x>=1. `xrt run --help` lists"),
        (["run", "missing.onnx"], "cannot load 'missing.onnx': there is no such file"),
        (["run", "squeezenot"], "'squeezenot' is neither a file nor a shipped model. Did you mean 'squeezenet'? Shipped: bert, "),
        (["inspect"], "Missing argument 'MODEL'. `xrt inspect --help` lists the options"),
        (["inspect", "model.onnx", "more"], "Got unexpected extra argument (more)"),
        (["run", "model.onnx", "--seed", "-1"], "Invalid value for '--seed': -1 is not in the range x>=0."),
        (["run", "model.onnx", "--dump", "/proc/none"], "/proc/none: No such file or directory"),
        (["bench"], "Missing argument 'MODEL...'."),
        (["bench", "mlp", "-e", "ort with Conv=tvm"], "pin 'Conv=tvm' names engine 'tvm', which is not in the list: ort"),
        (["bench", "mlp", "-e", "toy", "--devices", "ort=cuda"], "--devices names 'ort', which no candidate has: toy"),
        (["bench", "mlp", "light", "-i", "x.npy"], "--input is for one model at one batch size; name one MODEL and at most one"),
        (["run", "model.onnx", "--budget", "5s"], "--budget is the time of a search; pass it with -e auto"),
        (["check", "model.onnx"], "model.onnx is a model, and `xrt check` takes a lockfile; `xrt lock model.onnx` writes one"),
        (["fuzz", "--engines", ""], "no engine is named; name some to try with --engines"),
        (["fuzz", "--engines", "ort,ort"], "engine 'ort' is named twice; name each once"),
        (
            ["fuzz", "--engines", "toy{native=off}"],
            "every engine is compared with 'toy{native=off}', which cannot be compared with itself; name others",
        ),
        (["doctor", "--bogus"], "xrt doctor has no option --bogus. `xrt doctor --help` lists the options"),
        (["run", "model.onnx", "--dim", "batch"], "--dim takes NAME=SIZE, such as batch=4; got 'batch'"),
        (["run", "model.onnx", "--dim", "bath=2"], "no input has a dimension 'bath'. Did you mean 'batch'? The model has: batch"),
        (["run", "model.onnx", "--input", "x=nothing.npy"], "there is no input file nothing.npy"),
        (
            ["run", "model.onnx", "--input", "x=model.onnx"],
            "model.onnx is not a .npy or .npz file of numbers: the magic string is not correct",
        ),
        (["run", "model.onnx", "--engin", "ort"], "xrt run has no option --engin. Did you mean '--engine'? `xrt run --help`"),
        (["check", "empty.onnx"], "empty.onnx is an empty file, and `xrt check` takes a lockfile; `xrt lock MODEL -o FILE.lock`"),
        (
            ["conformance", "toy", "--cases", "nothing*", "--in-process"],
            "no test has a name like nothing*; names read like test_",
        ),
    ],
)
def test_an_error_is_a_line_and_exit_code_2(
    arguments: list[str], text: str, model: str, tmp_path: Path, command: Command
) -> None:
    (tmp_path / "empty.onnx").touch()
    code, out, err = command(*arguments)
    assert (code, out) == (2, "")
    assert text in err
    assert err.startswith("error: ")
    assert len(err.splitlines()) == 1
    assert "this should not happen" not in err


@pytest.mark.slow
def test_nothing_that_ran_is_exit_code_2(model: str, command: Command) -> None:
    code, out, _ = command("bench", model, "-e", "ort with Relu!=ort", "--rounds", "2", "--threads", "1", "--batch", "2")
    assert code == 2
    row = next(line.split("\t") for line in out.splitlines() if line.startswith("ort with"))
    assert row[3] == "failed"
    output = (
        "'Relu!=ort' cannot be satisfied: no engine is left for 1 of 2 nodes; change the pin, or list an engine that takes them"
    )
    assert row[-1] == f"{output}: 'relu' (Relu): ort: kept from ort by 'Relu!=ort'"


@pytest.mark.slow
def test_a_reader_that_leaves_is_no_error(tmp_path: Path) -> None:
    """`xrt engines | head -1` had exit code 1, which means a broken engine."""
    reads, writes = os.pipe()
    os.close(reads)
    command = [sys.executable, "-m", "xrt.cli", "engines", "ort"]
    completed = subprocess.run(command, stdout=writes, stderr=subprocess.PIPE, text=True, timeout=600, check=False)
    os.close(writes)
    assert (completed.returncode, completed.stderr) == (0, "")


@pytest.mark.slow
def test_debug_shows_the_traceback() -> None:
    command = [sys.executable, "-m", "xrt.cli", "--debug", "run", "missing.onnx"]
    completed = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert completed.returncode == 1
    assert "Traceback" in completed.stderr and "xrt.errors.ModelError" in completed.stderr


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_a_plan_is_verified_at_its_precision(
    precision: str, model: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Lossy(fault="0.02", reduced="0.02" if precision == "bf16" else "")
    monkeypatch.setattr("xrt.cli.options.split_specs", lambda text: [engine])
    code, out, _ = command("run", model, "-e", "lossy", "--verify")
    assert (code, "y agrees in bf16 with the reference" in out) == ((0, True) if precision == "bf16" else (1, False))


def test_what_the_reference_does_not_take_is_not_verified_and_the_advice_applies(tmp_path: Path, command: Command) -> None:
    gelu = node("Gelu", "x", "y", domain="com.microsoft")
    function = graph({"x": "float32[2,3]"}, {"y": "float32[2,3]"}, gelu, opset=17)
    onnx.save(function.replace(opsets={"": 17, "com.microsoft": 1}), tmp_path / "m.onnx")
    code, out, _ = command("run", str(tmp_path / "m.onnx"), "-e", "ort", "--verify")
    assert code == 0
    assert (
        "not verified: the reference engine does not take com.microsoft.Gelu. Write what such an operator computes into the "
        "model, as a function of it, or compare two engines by what each saves: xrt run MODEL -e ENGINE -o FILE"
    ) in " ".join(out.split())


def test_an_interrupt_in_a_weak_references_callback_ends_the_command(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python drops the exceptions of such a callback, also after a while on a busy machine."""
    start = threading.Thread.start

    def start_slowly(thread: threading.Thread) -> None:
        start(thread)
        threading.Event().wait(0.1)

    monkeypatch.setattr(threading.Thread, "start", start_slowly)

    def load(_: object) -> None:
        array = np.ones(1)
        reference = weakref.ref(array, lambda _: signal.default_int_handler(signal.SIGINT, None))
        del array
        time.sleep(600)
        assert reference

    monkeypatch.setattr("xrt.cli.inputs.load_with_options", load)
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        code, out, err = command("inspect", "model.onnx")
    finally:
        signal.signal(signal.SIGINT, handler)
    assert (code, out, err.strip()) == (130, "", "interrupted: stopped before the end")


@pytest.mark.slow
def test_an_interrupt_during_the_imports_shows_no_traceback() -> None:
    """Ctrl-C in the first half second, before the command reads its arguments."""
    code = """
import sys
import xrt
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "click":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt())
from xrt.cli import main
main(["engines"])
"""
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=False)
    assert (completed.returncode, completed.stdout, completed.stderr) == (130, "", "interrupted: stopped before the end\n")


def test_an_interrupt_that_an_extension_replaces_ends_the_command(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """pybind11 raises an ImportError from whatever stops the import of an extension."""

    def load(_: object) -> None:
        try:
            raise ImportError("initialization failed") from KeyboardInterrupt()
        except ImportError as error:
            raise EngineError("engine 'openvino' is broken: ImportError: initialization failed") from error

    monkeypatch.setattr("xrt.cli.inputs.load_with_options", load)
    code, out, err = command("inspect", "model.onnx")
    assert (code, out, err.strip()) == (130, "", "interrupted: stopped before the end")


def test_a_plan_for_cuda_needs_no_gpu(model: str, command: Command) -> None:
    code, out, _ = command("explain", str(model), "--device", "cuda", "--engine", "toy")
    assert code == 0 and "device cuda:0" in out


@pytest.fixture
def long_path(tmp_path: Path) -> str:
    """Twenty nodes, of which one is an Atan."""
    path = tmp_path / "model.onnx"
    onnx.save(long_model(count=20, at=9), path)
    return str(path)


@pytest.mark.sample(3)
@pytest.mark.full
def test_a_wrong_engine(long_path: str, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xrt.cli.options.split_specs", lambda text: [Wrong(native="off")])
    np.save(tmp_path / "x.npy", numbers())
    code, out, _ = command("verify", long_path, "-e", "wrong", "--json", "-i", tmp_path / "x.npy")
    (region,) = json.loads(out)["regions"]
    assert code == 1
    assert next(v["node"] for v in region["inner"] if v["judgement"]["verdict"] == "disagrees") == "n9"
    code, out, _ = command("verify", long_path, "-e", "wrong", "--outputs-only")
    assert code == 1 and "inside" not in out
    code, out, _ = command("bisect", long_path, "-e", "wrong", "--output", tmp_path / "case")
    assert code == 1
    assert "differs on 1 node: 'n9' (Atan)" in out and out.endswith(f"written to {tmp_path / 'case'}\n")
    assert (tmp_path / "case" / "test_data_set_0" / "input_0.pb").exists()


@pytest.mark.full
def test_a_crash_while_verifying_is_a_warning_a_strict_error_and_bisecting_it_a_finding(
    own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    engines = [FaultyEngine(how="kill", takes="Exp|Neg"), "ort"]
    monkeypatch.setattr("xrt.cli.options.split_specs", lambda text: engines if text == "planted" else split_specs(text))
    model = write_model(tmp_path / "model.onnx", (2, 3), "Abs", "Neg", "Exp", "Cos", "Sqrt")
    ended = "its process was ended by SIGKILL: a crash, or the system had no memory left"
    arguments = (model, "-e", "planted", "--isolate", "all", "--isolate-run", "--time-limit", "10m", "--memory-limit", "64GB")
    code, out, err = command("verify", *arguments)
    assert code == 0 and "xrt_ort_0" in out and f" failed to run xrt_faulty_1: {ended}; node" in err
    code, _, err = command("verify", *arguments, "--strict")
    assert code == 2 and err.endswith(f" failed to run xrt_faulty_1: {ended}\n")
    code, out, _ = command("bisect", *arguments)
    assert code == 1 and "1 node" in out and ended in out


def test_the_default_engine_is_compared(long_path: str, command: Command) -> None:
    assert command("verify", long_path)[:2] == (0, "xrt_ort_0 (ort, 20 nodes): agrees\nthe whole: agrees\n")


FUNCTION = graph({"x": "float32[2]"}, {"y": "float32[2]"}, node("Relu", "x", "y")).replace(name="relu")
READY = EngineStatus("toy", "ready", "xrt 0.1.0", version="1", devices=("cpu",))
BROKEN = EngineStatus("odd", "broken", "odd 1.0", cause="ImportError: no")


def test_doctor_reports_machine_cache_and_broken_engines(
    command: Command, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines = [READY]
    monkeypatch.setattr(engines_module, "probe_all", lambda: engines)
    code, out, _ = command("doctor", "--json", "--debug")
    document = json.loads(out)
    keys = ["python", "platform", "versions", "processor", "cores", "threads", "memory", "cache", "environment", "engines"]
    assert (code, list(document)) == (0, keys)
    assert document["versions"]["numpy"] == np.__version__
    assert document["processor"]["features"]
    assert document["cores"]["this process"] == document["threads"]["budget"] >= 1
    assert any(name.partition(" ")[2] for name in document["threads"])  # NumPy's BLAS, with its version
    assert document["engines"][0]["name"] == "toy"
    engines.append(BROKEN)
    for switch, expected in (("off", ["cache\toff"]), ("on", ["directory", "entries", "bytes", "limit"])):
        monkeypatch.setenv("XRT_CACHE", switch)
        code, out, _ = command("doctor", "--debug")
        assert code == 1 and f"numpy\t{np.__version__}" in out and "odd\tbroken\todd 1.0\tImportError: no" in out
        lines = [line for line in out.splitlines() if line.startswith("cache")]
        assert [re.sub("cache (.*)\t.*", r"\1", line) for line in lines] == expected


def test_only_variables_that_matter_are_reported() -> None:
    results = {"XRT_LOG": "info", "OMP_NUM_THREADS": "2", "MY_PASSWORD": "secret", "HOME": "/root"}
    assert engines_module.read_engine_environment(results) == {"OMP_NUM_THREADS": "2", "XRT_LOG": "info"}


def test_the_log_tells_plan_compile_and_cache(caplog: pytest.LogCaptureFixture) -> None:
    cache = CompileCache()
    with caplog.at_level(logging.DEBUG, "xrt"):
        for _ in range(2):
            XRTModule(FUNCTION, engine="toy", cache=cache)(np.ones(2, "float32"))
    plan, starts, ends, miss, again, hit = caplog.messages
    assert plan == again == "plan of relu: 1 nodes in 1 regions: xrt_toy_0 of 1"
    assert starts == "xrt_toy_0: toy compiles 1 nodes"
    assert ends.startswith("xrt_toy_0: compiled in 0.")
    assert miss.startswith("cache miss for xrt_toy_0 (")
    assert hit == miss.replace("miss", "hit")


def test_the_log_tells_a_refusal(caplog: pytest.LogCaptureFixture) -> None:
    refusing = FaultyEngine(where="compile", how="refuse")
    with caplog.at_level(logging.INFO, "xrt"), pytest.warns(XRTWarning):
        XRTModule(FUNCTION, engine=refusing)(np.ones(2, "float32"))
    assert "xrt_faulty_0 is refused: the faulty engine is set to refuse" in caplog.messages


@pytest.mark.parametrize(("level", "told"), [("", False), ("info", True)])
def test_the_variable_turns_it_on(level: str, told: bool) -> None:
    program = "import xrt, logging; logging.getLogger('xrt.any').info('hello')"
    completed = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "XRT_LOG": level}, capture_output=True, text=True, check=True
    )
    assert ("INFO xrt.any: hello" in completed.stderr) == told
    assert told or completed.stderr == ""


def test_an_unknown_level_is_warned_of() -> None:
    with pytest.warns(XRTWarning, match="XRT_LOG must be info or debug; got 'infos', so nothing is logged. Did you mean 'info'?"):
        configure_logging({"XRT_LOG": "infos"})
