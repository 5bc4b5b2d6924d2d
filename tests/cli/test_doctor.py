"""`xrt doctor`, and what the logger says."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys

import numpy as np
import pytest

from xrt import DType, Function, Node, Value, XRTModule
from xrt.cache import CompileCache
from xrt.cli import app, engines as engines_module
from xrt.engines import EngineStatus
from xrt.errors import XRTWarning
from xrt.graph import TensorType
from xrt.logging import follow
from xrt.testing.fault_injection import FaultyEngine

TYPE = TensorType(DType.FLOAT32, (2,))
FUNCTION = Function((Value("x", TYPE),), (Value("y", TYPE),), (Node("Relu", ("x",), ("y",)),), opsets={"": 18}, name="relu")
STATES = (EngineStatus("toy", "ready", "xrt 0.1.0", version="1", devices=("cpu",)),)
BROKEN = EngineStatus("odd", "broken", "odd 1.0", cause="ImportError: no")


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> list[EngineStatus]:
    found = list(STATES)
    monkeypatch.setattr(engines_module, "probe_all", lambda: found)
    return found


def test_doctor_tells_all_as_json(engines: list[EngineStatus], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^0$"):
        app.main(["doctor", "--json", "--debug"])
    found = json.loads(capsys.readouterr().out)
    keys = ["python", "platform", "versions", "processor", "cores", "threads", "memory", "cache", "environment", "engines"]
    assert list(found) == keys
    assert found["versions"]["numpy"] == np.__version__
    assert found["processor"]["features"]
    assert found["cores"]["this process"] == found["threads"]["budget"] >= 1
    assert any(name.partition(" ")[2] for name in found["threads"])  # NumPy's BLAS, with its version
    assert found["engines"][0]["name"] == "toy"


def test_doctor_shows_it_and_fails_for_a_broken_engine(engines: list[EngineStatus], capsys: pytest.CaptureFixture[str]) -> None:
    engines.append(BROKEN)
    with pytest.raises(SystemExit, match=r"^1$"):
        app.main(["doctor", "--debug"])
    said = capsys.readouterr().out
    assert f"numpy\t{np.__version__}" in said
    assert "odd\tbroken\todd 1.0\tImportError: no" in said


def test_only_variables_that_matter_are_reported() -> None:
    given = {"XRT_LOG": "info", "OMP_NUM_THREADS": "2", "MY_PASSWORD": "secret", "HOME": "/root"}
    assert engines_module.read_engine_environment(given) == {"OMP_NUM_THREADS": "2", "XRT_LOG": "info"}


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
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "XRT_LOG": level}, capture_output=True, text=True, check=True
    )
    assert ("INFO xrt.any: hello" in done.stderr) == told
    assert told or done.stderr == ""


def test_an_unknown_level_is_warned_of() -> None:
    with pytest.warns(XRTWarning, match="XRT_LOG must be info or debug; got 'infos', so nothing is logged. Did you mean 'info'?"):
        follow({"XRT_LOG": "infos"})
