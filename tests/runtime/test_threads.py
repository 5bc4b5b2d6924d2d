"""The thread budget: what the system grants, what a module asks, and what NumPy's BLAS then uses."""

from __future__ import annotations

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import xrt
from xrt.engines import OpTable, blas_limit
from xrt.engines.toolkit.blas import BlasLibrary, BlasThreads, find_blas
from xrt.engines.toy import Toy
from xrt.errors import BudgetWarning, OptionError
from xrt.graph import Function, Node
from xrt.runtime import count_available_cores, get_default_budget, resolve_thread_budget
from xrt.runtime.threads import read_cpu_quotas
from xrt.testing.corpus.entry import graph, node

RELU = graph({"x": "float32[2,3]"}, {"y": "float32[2,3]"}, node("Relu", "x", "y"))
X = np.ones((2, 3), "float32")


def test_fewer_cores_for_the_process_are_fewer_cores() -> None:
    script = "import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]); "
    script += "import xrt.runtime as r; print(r.count_available_cores())"
    assert ran(script) == "1"


GROUPS = [
    ("0::/a/b\n", {"a/b/cpu.max": "max 100000", "a/cpu.max": "150000 100000"}, [1.5]),
    ("0::/a/b\n", {"a/b/cpu.max": "50000 100000", "a/cpu.max": "300000 100000"}, [0.5, 3.0]),
    ("0::/\n", {"cpu.max": "200000 100000\n"}, [2.0]),
    ("0::/../other\n", {"cpu.max": "200000 100000\n"}, [2.0]),
    (
        "4:cpu,cpuacct:/job\n2:memory:/job\n",
        {"cpu,cpuacct/job/cpu.cfs_quota_us": "250000", "cpu,cpuacct/job/cpu.cfs_period_us": "100000"},
        [2.5],
    ),
    ("1:cpu:/job\n", {"cpu/job/cpu.cfs_quota_us": "-1", "cpu/job/cpu.cfs_period_us": "100000"}, []),
    ("0::/a\n", {"a/cpu.max": "nonsense"}, []),
    ("", {}, []),
    (None, {}, []),  # a system without control groups
]


@pytest.mark.parametrize(("group", "files", "cores"), GROUPS)
def test_quotas_of_control_groups(tmp_path: Path, group: str | None, files: dict[str, str], cores: list[float]) -> None:
    if group is not None:
        (tmp_path / "group").write_text(group)
    for name, text in files.items():
        path = tmp_path / "groups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert list(read_cpu_quotas(tmp_path / "groups", tmp_path / "group")) == cores


def test_a_quota_of_a_part_of_a_core_is_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xrt.runtime.threads.get_cpu_quotas", lambda: (0.3,))
    assert count_available_cores() == 1


def test_more_threads_than_cores_are_the_cores_with_a_word() -> None:
    cores = count_available_cores()
    with pytest.warns(BudgetWarning) as caught:
        module = xrt.XRTModule(RELU, engine="toy", threads=cores + 7)
    output = f"threads={cores + 7} is more than the {cores} cores that this process may use; {cores} threads are used"
    assert [str(w.message) for w in caught] == [output]
    assert [w.filename for w in caught] == [__file__]
    assert module.threads == resolve_thread_budget(cores + 7) == cores


@pytest.mark.parametrize("threads", [0, -1, True, 1.5, "2"])
def test_what_is_no_number_of_threads_is_refused(threads: Any) -> None:
    with pytest.raises(OptionError) as raised:
        xrt.XRTModule(RELU, engine="toy", threads=threads)
    assert str(raised.value) == f"threads must be a positive integer or None; got {threads!r}"
    with pytest.raises(OptionError, match="threads must be a positive integer"):
        xrt.configure(threads=threads)


def test_explain_says_the_budget() -> None:
    explanation = xrt.XRTModule(RELU, engine="toy", threads=1).explain()
    assert explanation.to_dict()["threads"] == 1
    assert str(explanation).splitlines()[0] == "engines: toy; 1 thread for all together"


def test_the_process_can_have_another_default() -> None:
    before = xrt.XRTModule(RELU, engine="toy")
    xrt.configure(threads=1)
    try:
        assert xrt.XRTModule(RELU, engine="toy").threads == get_default_budget() == 1
        assert before.threads == count_available_cores()
    finally:
        xrt.configure()
    assert xrt.XRTModule(RELU, engine="toy").threads == get_default_budget() == count_available_cores()


class Fake:
    """A BLAS library that knows its number of threads."""

    def __init__(self, threads: int) -> None:
        self.threads = threads

    def library(self) -> BlasLibrary:
        return BlasLibrary("fake 1", lambda: self.threads, lambda n: setattr(self, "threads", n))


def test_a_limit_holds_while_calls_are_under_way_and_is_put_back() -> None:
    first, other = Fake(8), Fake(3)
    blas = BlasThreads([first.library(), other.library()])
    assert blas.threads == 8
    blas.enter(4)
    assert (first.threads, other.threads) == (4, 3)
    blas.enter(2)
    blas.enter(4)
    assert (first.threads, other.threads) == (2, 2)
    blas.leave(4)
    blas.leave(2)
    assert (first.threads, other.threads) == (4, 3)
    blas.leave(4)
    assert (first.threads, other.threads) == (8, 3)
    first.threads = 1  # the user's own
    blas.enter(4)
    assert first.threads == 1
    blas.leave(4)
    assert first.threads == 1


def test_a_limit_of_one_call_does_not_hide_the_threads_from_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was prepared while another budget held BLAS down was never limited itself."""
    fake = Fake(8)
    blas = BlasThreads([fake.library()])
    monkeypatch.setattr("xrt.engines.toolkit.blas.find_blas", lambda: blas)
    assert blas_limit(8) is None
    blas.enter(1)
    limit = blas_limit(2)
    blas.leave(1)
    assert limit is not None
    with limit:
        assert fake.threads == 2
    assert fake.threads == 8


def test_limits_from_many_threads_leave_the_number_as_it_was() -> None:
    fake = Fake(8)
    blas = BlasThreads([fake.library()])

    def call(budget: int) -> None:
        for _ in range(200):
            blas.enter(budget)
            assert fake.threads <= budget
            blas.leave(budget)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(call, (1, 2, 3, 4)))
    assert fake.threads == 8


def test_the_library_of_numpy_is_found_and_follows() -> None:
    blas = find_blas()
    assert blas.libraries, "NumPy's BLAS was not found"
    before = blas.threads
    if before > 1:
        limit = blas_limit(1)
        assert limit is not None
        with limit:
            assert blas.threads == 1
    assert blas.threads == before
    assert blas_limit(before) is None


@pytest.mark.parametrize("threads", [1, None])
def test_toy_holds_blas_to_one_thread(threads: int | None) -> None:
    """BLAS's own threads would spin on after a product; toy's products are cut into parts for threads that sleep."""
    spying = graph({"x": "float32[2,3]"}, {"y": "int64[]"}, node("Threads", "x", "y", domain="spy"))
    spying = spying.replace(opsets={"": 20, "spy": 1})
    before = find_blas().threads
    with xrt.XRTModule(spying, Spy(), strict=True, threads=threads) as module:
        assert module(X) == 1
        assert find_blas().threads == before


class Spy(Toy):
    """Toy with an operator that tells how many threads NumPy's BLAS has while it runs."""

    name: ClassVar[str] = "spy"
    kernels: ClassVar[OpTable[Any]] = Toy.kernels.extend("spy")


@Spy.kernels("Threads", domain="spy")
def threads_of_blas(node: Node, env: Any) -> Any:
    return lambda x: np.array(find_blas().threads)


def ran(script: str, *arguments: str) -> str:
    completed = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr
    return completed.stdout.strip()


BUDGETS = """
import os, xrt
from tests.runtime.test_threads import RELU, X
from xrt.runtime import threads
threads.count_available_cores = lambda: 4
kept = []

def grown(spec, budget):
    before = set(os.listdir("/proc/self/task"))  # perhaps with threads that are ending
    kept.append(xrt.XRTModule(RELU, spec, threads=budget, strict=True))
    kept[-1](X)
    return len(set(os.listdir("/proc/self/task")) - before)

grown("ort", 1)  # what the library starts once
print([grown("ort{deterministic=true}", budget) for budget in (1, 2, 4)])
"""


@pytest.mark.slow
def test_modules_of_different_budgets_have_their_own_threads() -> None:
    """The calling thread computes too, so that a budget of four is three threads more."""
    assert ran(BUDGETS) == "[0, 1, 3]"


def alternating() -> Function:
    """Products and Tanh in turn."""
    names = ["x", *(f"v{i}" for i in range(6))]
    nodes = [node("Tanh", a, b) if i % 2 else node("MatMul", f"{a} w", b) for i, (a, b) in enumerate(pairwise(names))]
    weight = np.full((256, 256), 1 / 256, "float32")
    return graph({"x": "float32[256,256]"}, {names[-1]: "float32[256,256]"}, *nodes, constants={"w": weight})


MIXTURES: list[tuple[list[str], list[str]]] = [
    (["toy"], []),
    (["ort"], []),
    (["tvm"], []),
    (["ort", "toy"], ["Tanh=toy"]),
    (["ort", "toy"], ["MatMul=toy"]),
    (["ort", "tvm"], ["Tanh=tvm"]),
    (["toy", "tvm"], ["Tanh=tvm"]),
]


@pytest.mark.slow
@pytest.mark.parametrize(("engines", "pins"), MIXTURES)
def test_after_a_run_the_process_is_idle(engines: list[str], pins: list[str]) -> None:
    x = np.ones((256, 256), "float32")
    with xrt.XRTModule(alternating(), engines, pins=pins, strict=True) as module:
        for _ in range(5):
            module(x)
        assert any(busy(0.3) < 0.1 for _ in range(5))


def busy(seconds: float) -> float:
    """Return how many cores the process keeps busy while it waits."""
    began, used = time.perf_counter(), time.process_time()
    time.sleep(seconds)
    return (time.process_time() - used) / (time.perf_counter() - began)
