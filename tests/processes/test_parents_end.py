"""However a command ends, what it has started ends with it; and what a forked child may do."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.hanging import PATIENCE, is_running, wait_until
from tests.module.test_faults import X, chain
from xrt.formats import onnx
from xrt.processes import end, list_descendants, start, start_python

WITH_COMPILER = """
import os
if "COMPILER_HANGS" in os.environ:
    from xrt.engines.iree import compiler
    compiler.BINARY = "{}"
"""
"""For every Python that starts, a worker too: IREE's compiler is a script that never ends, nor does what it has started."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a model, an engine that hangs when it runs, and one whose import hangs."""
    onnx.save(chain("Abs", "Neg", "Exp"), tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", X)
    info = tmp_path / "found" / "planted-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: planted\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[xrt.engines]\nfaulty = xrt.testing.fault_injection:FaultyEngine\nhanging = hanging:Engine\n"
    )
    (tmp_path / "found" / "hanging.py").write_text("import time\ntime.sleep(3600)\n")
    (tmp_path / "found" / "sitecustomize.py").write_text(WITH_COMPILER.format(tmp_path / "compiler"))
    (tmp_path / "compiler").write_text("#!/bin/sh\nread line || exit 1\nsleep 3600 & wait\n")
    (tmp_path / "compiler").chmod(0o700)
    return tmp_path


PLAIN = "from xrt.cli import main; import sys; main(sys.argv[1:])"
COMMANDS: dict[str, tuple[str, int, tuple[str, ...]]] = {
    "run iree": (PLAIN, 2, ("run", "m.onnx", "--engine", "iree", "-i", "x.npy")),
    "run --isolate iree": (PLAIN, 3, ("run", "m.onnx", "--engine", "ort,iree", "--isolate", "iree", "--pin", "*=iree")),
    "run --isolate": (
        PLAIN,
        1,
        ("run", "m.onnx", "--engine", "faulty{how=hang}", "--isolate", "faulty{how=hang}", "--isolate-run"),
    ),
    "tune": (PLAIN, 1, ("tune", "m.onnx", "--engines", "ort,faulty{how=hang}", "--budget", "600s")),
    "bench": (PLAIN, 1, ("bench", "m.onnx", "--engine", "faulty{how=hang}", "--time-limit", "10m")),
    "engines": (PLAIN, 1, ("engines",)),
}
"""What to run, how many processes it must have started before it is ended, and its arguments."""


@pytest.fixture
def begun(folder: Path, request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[bytes]]:
    code, _, arguments = COMMANDS[request.param]
    code = f"import signal; signal.signal(signal.SIGHUP, signal.SIG_DFL); {code}"  # the tests may run under nohup
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(folder / "found"), *sys.path]),
        "XRT_CACHE_DIR": str(folder / "cache"),
        **({"COMPILER_HANGS": "1"} if "iree" in request.param else {}),
    }
    with (folder / "said").open("wb") as context:
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", code, *arguments], cwd=folder, env=environment, stdout=context, stderr=context
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [signal.SIGKILL, *(pytest.param(how, marks=[pytest.mark.full]) for how in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT))],
    ids=lambda how: how.name,
)
@pytest.mark.parametrize("begun", COMMANDS, indirect=True)
def test_nothing_outlives_a_command(
    begun: subprocess.Popen[bytes], how: signal.Signals, folder: Path, request: pytest.FixtureRequest
) -> None:
    _, due, _ = COMMANDS[request.node.callspec.params["begun"]]
    children: set[int] = set()

    def has_begun() -> bool:
        assert begun.poll() is None, (folder / "said").read_text()
        children.update(list_descendants(begun.pid))
        return len(children) >= due

    wait_until(has_begun)
    begun.send_signal(how)
    wait_until(lambda: begun.poll() is not None)
    wait_until(lambda: not any(map(is_running, children)))
    assert "Traceback" not in (folder / "said").read_text()


def begin(inner: str = "sleep 3600") -> tuple[subprocess.Popen[str], int]:
    process = start(["sh", "-c", f"{inner} & echo $!; wait"], stdout=subprocess.PIPE, text=True)
    return process, int(process.stdout.readline())


@pytest.mark.parametrize("command", ["sleep 3600", "setsid sleep 3600"], ids=["in its group", "in a session of its own"])
def test_a_process_that_is_ended_ends_with_what_it_has_started(command: str) -> None:
    process, inner = begin(command)
    wait_until(lambda: os.getsid(inner) == (inner if command.startswith("setsid") else process.pid))
    end(process)
    assert process.returncode == -signal.SIGKILL
    wait_until(lambda: not is_running(inner))
    end(process)  # again is no matter


@pytest.mark.parametrize("waits", [False, True], ids=["in the moment of the start", "later"])
def test_a_python_ties_itself_to_a_parent_that_ends(waits: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The parent has not told the system whom to kill, and is gone."""
    results: list[int] = []
    monkeypatch.setattr("xrt.processes.spawn.attach_lifeline", lambda process, reads, writes: results.append(writes))
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "waits.py").write_text("import signal\ndef main():\n    print('is there', flush=True)\n    signal.pause()\n")
    process = start_python("waits:main", stdout=subprocess.PIPE, text=True)
    assert not waits or process.stdout.readline() == "is there\n"
    os.close(results[0])
    assert process.wait(PATIENCE) == -signal.SIGKILL
    end(process)


def test_a_process_outlives_the_thread_that_started_it() -> None:
    """Which it would not with PR_SET_PDEATHSIG."""
    results: list[tuple[subprocess.Popen[str], int]] = []
    thread = threading.Thread(target=lambda: results.append(begin()))
    thread.start()
    thread.join()
    ((process, inner),) = results
    assert process.poll() is None and is_running(inner)
    end(process)


def test_a_fork_of_the_parent_does_not_keep_its_children() -> None:
    """The parent starts a process and forks; when it ends, the fork lives on and the process does not."""
    code = (
        "import os, sys, signal, subprocess; from xrt.processes import start;"
        "p = start(['sleep', '3600']); f = os.fork();\n"
        "if f == 0: signal.pause()\n"
        "print(p.pid, f, flush=True); signal.pause()"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=os.environ)
    process, fork = map(int, parent.stdout.readline().split())
    try:
        parent.kill()
        wait_until(lambda: not is_running(process))
        assert is_running(fork)
    finally:
        os.kill(fork, signal.SIGKILL)
        parent.stdout.close()
        parent.wait()


def test_what_cannot_be_started_leaves_no_handle() -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        with pytest.raises(FileNotFoundError):
            start(["/nowhere/at/all"])
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.slow
def test_a_worker_whose_parent_has_ended_says_nothing(tmp_path: Path) -> None:
    """Its first word meets a closed socket."""
    mine, its = socket.socketpair()
    with (tmp_path / "said").open("w+") as context, its:
        process = start_python("xrt.worker.server:main", str(its.fileno()), "0", inherited=[its.fileno()], stderr=context)
        mine.close()
        assert process.wait(PATIENCE) == 0
        context.seek(0)
        assert context.read() == ""
    end(process)


SCRIPT = """
import os, sys, threading, time, warnings
import numpy as np, xrt
from xrt.cache import CompileCache
from xrt.testing.corpus.entry import graph, node

warnings.simplefilter("ignore")
engine, ends = sys.argv[1], sys.argv[2]
X = np.ones((4, 64), "float32")
CACHE = CompileCache(capacity=2)  # more are closed, in the background

def make(seed):
    weights = {"w": np.random.default_rng(seed).random((64, 1), np.float32)}
    model = graph({"x": "float32[n,64]"}, {"y": "float32[n,1]"}, node("MatMul", "x w", "y"), constants=weights)
    module = xrt.XRTModule(model, engine=engine, threads=2, cache=CACHE)
    assert module(X).shape == (4, 1)
    return module

kept = [make(seed) for seed in range(5)][-2:]
held = threading.Event()

def hold():
    with kept[0].dispatcher._lock, CACHE._lock:
        held.set()
        time.sleep(3600)

threading.Thread(target=hold, daemon=True).start()
assert held.wait(60)
pid = os.fork()
if pid == 0:
    for module in kept:
        assert module(X).shape == (4, 1)
        assert module(np.ones((5, 64), "float32")).shape == (5, 1)
    for seed in range(100, 103):
        make(seed)
    for module in kept:
        module.close()
    del kept, module
    CACHE.clear()
    time.sleep(0.2)  # what is to be closed, is closed
    os._exit(0) if ends == "at once" else sys.exit(0)
print("child", os.waitpid(pid, 0)[1])
os._exit(0)
"""


@pytest.mark.slow
@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("engine", "ends"),
    [
        *((engine, "as others do") for engine in ("toy", "ort", "openvino", "torch", "xla", "iree")),
        ("tvm", "at once"),
    ],
)
def test_a_child_goes_on_and_ends(engine: str, ends: str) -> None:
    completed = subprocess.run(
        [sys.executable, "-c", SCRIPT, engine, ends], capture_output=True, text=True, timeout=240, check=False
    )
    assert "child 0" in completed.stdout.splitlines(), completed.stderr


@pytest.mark.parametrize("kind", ["Lock", "RLock"])
def test_a_lock_is_free_in_a_child(kind: str) -> None:
    script = (
        f"import os, threading; from xrt.forking import renew_after_fork; lock = renew_after_fork(threading.{kind}()); "
        "threading.Thread(target=lock.acquire).start(); pid = os.fork(); "
        "os._exit(not lock.acquire(timeout=5)) if pid == 0 else print(os.waitpid(pid, 0)[1])"
    )
    completed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert completed.stdout == "0\n"


def test_a_child_frees_no_value_of_its_parent_though_it_has_no_hash() -> None:
    """A dataclass that compares by value has no hash, and two equal ones are two."""
    script = """
import os
from dataclasses import dataclass
from xrt.forking import leak_in_child

@dataclass
class Executable:
    name: str
    def __del__(self):
        os.write(1, f"freed in {'parent' if os.getpid() == parent else 'child'}\\n".encode())

parent = os.getpid()
values = [Executable("x"), Executable("x")]
for value in values:
    leak_in_child(value)
del value
child = os.fork()
values.clear()
if child:
    os.waitpid(child, 0)
else:
    os._exit(0)
"""
    completed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert completed.stdout.splitlines() == ["freed in parent"] * 2


def test_a_closed_model_without_streams_leaves_openvino_to_the_child() -> None:
    """With one thread it has no pool, whose threads a child would lack."""
    script = """
import os, numpy as np, xrt
from xrt.cache import CompileCache
from xrt.testing.corpus.entry import graph, node

def call(op):
    function, cache = graph({"x": "float32[3]"}, {"y": "float32[3]"}, node(op, "x", "y")), CompileCache()
    with xrt.XRTModule(function, engine="openvino", strict=True, threads=1, cache=cache) as module:
        module(np.ones(3, "float32"))
    cache.clear()

call("Relu")
child = os.fork()
if child:
    print(os.waitpid(child, 0)[1])
else:
    call("Exp")
    os._exit(0)
"""
    completed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=240, check=True)
    assert completed.stdout == "0\n", completed.stderr
