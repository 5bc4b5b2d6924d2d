"""The benchmarks run, and answer what they ask: no time is asserted. `make cuda-check` runs on a simulated device as well."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gpu
from tools import cuda_check, cuda_page
from xrt.runtime.devices import device
from xrt.testing import node_cases
from xrt.testing.simulated import simulate_devices

TOP = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_peak_stays_within_the_target() -> None:
    script = str(TOP / "benchmarks" / "memory.py")
    command = [sys.executable, script, "--megabytes", "60", "--large", "0", "--engines", "ort", "--regions", "8", "--json"]
    completed = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=True)
    (external,), (inline,) = (json.loads(completed.stdout)["forms"][form] for form in ("external", "inline"))
    for cut in (cut for row in (external, inline) for cut in (row["xrt"]["8"], row["xrt"]["8"]["again"])):
        assert "failed" not in cut, cut
        assert cut["launches"] == 8
        assert 40e6 < cut["packed"] < 80e6  # all but the embedding
        assert cut["within"], cut
        assert cut["memory"].startswith("weights ")
        assert cut["peak"] >= cut["now"]


@pytest.mark.full
def test_a_short_soak_finds_nothing() -> None:
    command = [sys.executable, str(TOP / "tools" / "soak.py"), "--processes", "3", "--rounds", "1", "--minutes", "0.1"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TOP), os.environ.get("PYTHONPATH", "")])}
    completed = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert "3 processes at once: 6 compiles for 6 signatures, results right, cache clean" in completed.stdout
    assert "no handle or thread left over" in completed.stdout


@pytest.fixture(scope="module", name="results")
def measured() -> dict[str, Any]:
    with simulate_devices():
        simulated = device("cuda")
        engines = gpu.probe_engines(simulated)
        latency = list(gpu.measure_latencies({"chain": gpu.make_chain(8)}, simulated, ["toy", "tvm"], 2))
        figures = {
            "engines": engines,
            "latency": latency,
            "chain": gpu.measure_bandwidth(simulated, 16, 2, ["toy"]),
            "copies": gpu.count_copies(gpu.make_chain(8), simulated),
            "mixtures": list(gpu.measure_mixtures(gpu.make_chain(8), simulated, ["toy"], "Relu")),
        }
    more = {"device": "simulated", "date": "2026-01-01", "versions": "none", "tests": {"all": {"passed": 3}}}
    return json.loads(json.dumps(figures | more))  # as written and read


@pytest.mark.slow
def test_every_question_is_answered(results: dict[str, Any]) -> None:
    assert results["engines"]["toy"] == "ready"
    assert "has no CUDAExecutionProvider" in results["engines"]["ort"] and results["engines"]["tensorrt"] != "ready"
    assert results["latency"][0]["seconds"].keys() == {"call", "graph"}
    assert "TVM cannot use cuda:0: its arrays have no memory addresses" in results["latency"][1]["said"]
    assert "TVM cannot use cuda:0: its arrays have no memory addresses" in results["engines"]["tvm"]
    assert (results["copies"]["host"]["copies_in"], results["copies"]["device"]["copies_in"]) == (1, 0)
    assert results["mixtures"] == [], "one engine is no mixture"


def test_they_are_a_section(results: dict[str, Any]) -> None:
    text = cuda_page.cuda_section(results)
    assert "| `toy` | ready |" in text and "| all | 3 | 0 | 0 | 0 | 0 |" in text
    assert "A call with arrays of the host: 1 arrays to the device, 0 to the host, 0 waits in 1 call(s)." in text
    assert "No mixture was measured: fewer than two engines are ready." in text
    mixed = {"engines": ["tvm", "toy"], "regions": ["toy", "tvm", "toy"], "traffic": results["copies"]["device"]}
    text = cuda_page.cuda_section(results | {"mixtures": [mixed]})
    assert "Two calls of tvm and toy (3 regions): 0 arrays to the device, 0 to the host" in text
    assert "no machine with a GPU has run" in cuda_page.cuda_section(None)


def test_node_tests_are_judged_on_a_device() -> None:
    with simulate_devices():
        words = [cuda_check.run_case(case, "toy{native=off}") for case in node_cases("test_relu*")]
    assert words and set(words) == {"passed"}


@pytest.mark.parametrize(
    ("text", "counts"),
    [("x\n2 failed, 30 passed in 1s", {"failed": 2, "passed": 30}), ("1 error in 2s", {"failed": 1}), ("", {"failed": 1})],
)
def test_counts_are_read(text: str, counts: dict[str, int]) -> None:
    assert cuda_check.parse_counts(text) == counts


@pytest.mark.slow
@pytest.mark.parametrize("command", [["-m", "tools.cuda_check"], ["benchmarks/gpu.py"]])
def test_without_a_device_nothing_is_written_and_the_code_says_so(command: list[str]) -> None:
    before = cuda_page.RESULTS.exists(), (TOP / "docs" / "performance.md").read_bytes()
    hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    completed = subprocess.run([sys.executable, *command], cwd=TOP, env=hidden, capture_output=True, text=True, check=False)
    assert completed.returncode == cuda_check.NO_DEVICE and "device 'cuda:0' is not available" in completed.stderr
    assert before == (cuda_page.RESULTS.exists(), (TOP / "docs" / "performance.md").read_bytes())
