"""Engines in processes of their own, from the command line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.cli.commands import Command
from tests.module.test_faults import X, chain
from xrt.cli import tune
from xrt.engines import split_specs
from xrt.formats import onnx
from xrt.testing.fault_injection import FaultyEngine

pytestmark = [pytest.mark.sample(3), pytest.mark.usefixtures("own_cache")]


@pytest.fixture
def model(tmp_path: Path) -> str:
    onnx.save(chain("Abs", "Neg", "Exp", "Cos", "Sqrt"), tmp_path / "model.onnx")
    np.save(tmp_path / "x.npy", X)
    return str(tmp_path / "model.onnx")


def planted(monkeypatch: pytest.MonkeyPatch, engine: FaultyEngine) -> None:
    """Let the command's list of engines be that engine and ort; what is isolated is spelt as it is."""
    monkeypatch.setattr("xrt.cli.options.split_specs", lambda text: [engine, "ort"] if text == "planted" else split_specs(text))


@pytest.mark.full
def test_a_crash_while_verifying_is_a_warning_a_strict_error_and_bisecting_it_a_finding(
    model: str, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    planted(monkeypatch, FaultyEngine(how="kill", takes="Exp|Neg"))
    ended = "its process was ended by SIGKILL: a crash, or the system had no memory left"
    arguments = (model, "-e", "planted", "--isolate", "all", "--isolate-run", "--time-limit", "10m", "--memory-limit", "64GB")
    code, out, err = command("verify", *arguments)
    assert code == 0 and "xrt_ort_0" in out and f" failed to run xrt_faulty_1: {ended}; node" in err
    code, _, err = command("verify", *arguments, "--strict")
    assert code == 2 and err.endswith(f" failed to run xrt_faulty_1: {ended}\n")
    code, out, _ = command("bisect", *arguments)
    assert code == 1 and "1 node" in out and ended in out


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
def test_what_cannot_be_is_refused(model: str, arguments: tuple[str, ...], text: str, command: Command) -> None:
    assert command("run", model, "-e", "ort", *arguments)[::2] == (2, f"error: {text}\n")


def test_bench_needs_none_of_these() -> None:
    """Each of its candidates has a process of its own, whatever is asked."""
    assert {"isolate", "isolate_run", "memory_limit"}.isdisjoint(option.name for option in tune.bench_command.params)
