"""``xrt tune``: its table, JSON, page and lockfile, and mistakes on the command line."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import xrt
from tests.cli.commands import Command
from tests.module.test_faults import X, chain
from xrt.cli import main
from xrt.formats import onnx
from xrt.formats.placement_file import read_placement
from xrt.graph import DType, TensorType, Value
from xrt.placement.profiler import LocalRunner
from xrt.placement.throughput import COLUMNS

pytestmark = [pytest.mark.filterwarnings("ignore::xrt.errors.NativeWarning"), pytest.mark.sample(3)]


@pytest.fixture
def command(command: Command, own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Run ``xrt tune`` on a model of one node, with a cache of its own, measuring in this process."""
    onnx.save(chain("Exp"), tmp_path / "model.onnx")
    monkeypatch.setattr("xrt.placement.autotune.choose_runner", lambda engine, limits: LocalRunner(engine))
    return partial(command, "tune", tmp_path / "model.onnx")


@pytest.mark.full
def test_a_table_and_where_the_result_is_stored(command: Command, tmp_path: Path) -> None:
    code, out, err = command("--engines", "toy", "--budget", "12s", "--threads", "1")
    assert (code, err) == (0, "")
    head, row, legend, placed, stored = out.splitlines()
    assert legend == "ratio: to the best single engine, with its 95 % interval"
    assert head.split("\t") == ["plan", "ms", "ratio", "verdict", "regions", "note"]
    name, _, ratio, verdict, regions, *_ = row.split("\t")
    assert (name, ratio, verdict, regions) == ("toy", "1.000 (1.000-1.000)", "chosen", "1")
    assert placed.startswith("placed by measurement: toy (1 thread), in ") and placed.endswith(" of 12 s")
    call = "XRTModule(MODEL, engine=['toy', 'auto'], threads=1)"
    assert stored == f"stored: {call} uses it for these shapes, whatever its budget"
    with xrt.XRTModule(tmp_path / "model.onnx", engine=["toy", "auto"], cache=tmp_path / "cache", threads=1) as m:
        m(X)
        assert m.tuned is not None
        assert (m.tuned.how, m.tuned.record.budget) == ("remembered", 12.0), "and not 20 seconds, which the module has"


@pytest.mark.slow
def test_what_could_not_be_stored_is_not_called_stored(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xrt.placement.CostStore.store_decision", lambda *given: None)
    code, out, _ = command("--engines", "toy", "--budget", "30s")
    assert code == 0
    assert "\nnot stored in " in out
    assert "\nstored" not in out


@pytest.mark.full
def test_json(command: Command) -> None:
    code, out, _ = command("--engines", "toy,toy{native=off}", "--budget", "0.5m", "--json")
    document = json.loads(out)
    assert (code, document["how"], document["budget"], document["threads"] >= 1) == (0, "measured", 30.0, True)
    assert {item["title"] for item in document["contenders"]} == {"toy", "toy{native=off}"}
    assert document["contenders"][0]["verdict"] == "won"


@pytest.mark.slow
def test_a_symbolic_dim_is_tuned_at_sizes(command: Command, tmp_path: Path) -> None:
    """A later module uses the result for the size of its first call, or the latest one, for all sizes."""
    path, rows = tmp_path / "model.onnx", TensorType(DType.FLOAT32, ("s", 3))
    onnx.save(chain("Exp").replace(inputs=(Value("x", rows),), outputs=(Value("y"),)), path)
    for size in (2, 40):
        assert command("--engines", "toy", "--dim", f"s={size}")[0] == 0
    for sizes, near in (((3, 50, 2), 40), ((2, 3), 2)):
        with xrt.XRTModule(path, ["toy", "auto"], budget=0.001) as module:
            for size in sizes:
                module(np.ones((size, 3), "float32"))
                assert module.tuned is not None
                assert module.tuned.how == "remembered"
                assert module.tuned.notes == ((f"placed as it was measured for s={near}",) if size != near else ())


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--budget", "0"], "error: --budget takes a time such as 60s or 2m; got '0'\n"),
        (["--budget", "soon"], "error: --budget takes a time such as 60s or 2m; got 'soon'\n"),
        (["--engines", "orr"], "error: no engine is named 'orr'. Did you mean 'ort'?"),
        *(
            (
                ["--devices", text],
                f"error: --devices takes ENGINE=DEVICE, each engine once, such as ort=cuda,tvm=cpu; got {text!r}\n",
            )
            for text in ("cuda", "ort=", "=cuda", "ort=cuda,", "ort=cuda,ort=cpu", "ort{=cuda", "ort{level=2}", "")
        ),
        (["--devices", "ort=gpu"], "error: "),
        (["--devices", "orr=cpu", "--engines", "ort"], "error: devices names 'orr', which is not in the list of engines: "),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], text: str, command: Command) -> None:
    code, _, err = command(*arguments)
    assert code == 2
    assert err.startswith(text)


@pytest.mark.full
def test_a_device_that_is_not_there_is_reported_before_anything_is_measured(command: Command) -> None:
    code, out, err = command("--engines", "ort,toy", "--devices", "ort=cuda:77", "--budget", "30s")
    assert (code, out) == (2, "")
    assert "device 'cuda:77' is not available" in err
    assert "measuring" not in err and "starting" not in err


@pytest.fixture
def throughput(command: Command, tmp_path: Path) -> Command:
    """Run ``xrt tune --objective throughput`` on a model of a row for each request."""
    row = TensorType(DType.FLOAT32, ("N", 3))
    onnx.save(chain("Exp").replace(inputs=(Value("x", row),), outputs=(Value("y", row),)), tmp_path / "model.onnx")
    fixed = ("--objective", "throughput", "--engines", "toy", "--threads", "1", "--budget", "1s")
    return lambda *arguments: command(*fixed, *arguments)


@pytest.mark.full
def test_throughput_is_a_table_a_lock_and_a_page(
    throughput: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xrt.cli.tune.COMPARISON_SECONDS", 0.3)
    lock, page = tmp_path / "serve.lock", tmp_path / "page.html"
    code, out, _ = throughput("--batch", "1,2", "-o", str(lock), "--html", str(page))
    assert code == 0
    head, first, *_ = out.splitlines()
    assert head.split("\t") == list(COLUMNS)
    assert first.split("\t")[0] == "chosen"
    assert f"{lock}: written; XRTModule(MODEL, engine='auto', lock=...) uses it" in out.splitlines()
    assert "Throughput of " in page.read_text()
    values = read_placement(lock).serving
    assert values is not None
    with xrt.XRTModule(tmp_path / "model.onnx", engine="auto", lock=lock, threads=1, strict=True) as m:
        m.compile(X)
        assert m.tuned is not None
        assert m.tuned.how == "locked"
        assert m.serving is not None
        assert (m.serving.batch, m.serving.plans, m.serving.rate) == (values.batch, values.plans, values.rate)
    with pytest.raises(SystemExit) as raised:
        main(["check", str(lock), "--budget", "1s", "--max-regress", "9900%"])
    assert not raised.value.code
    assert "its results agree with the reference" in capsys.readouterr().out


@pytest.mark.full
def test_throughput_as_json_and_out_of_reach(throughput: Command) -> None:
    code, out, err = throughput("--p99", "0.001ms", "--batch", "1", "--json")
    assert code == 1
    assert json.loads(out)["configuration"] is None
    assert "warning: nothing serves requests within a p99 of 0.001 ms; the fastest request takes" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--p99", "20ms"), "--p99 is for throughput; pass --objective throughput too, or leave it out"),
        (("-o", "x.lock"), "--output is for throughput; pass --objective throughput too, or leave it out"),
        (("--objective", "throughput", "--batch", "1,x"), "--batch takes positive integers, such as 1,2,4; got '1,x'"),
    ],
)
def test_options_of_another_objective_are_refused(command: Command, arguments: tuple[str, ...], message: str) -> None:
    code, _, err = command(*arguments)
    assert code == 2
    assert err == f"error: {message}\n"
