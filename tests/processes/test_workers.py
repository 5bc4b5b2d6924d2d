"""A worker process answers messages; and what lies in the current directory is data to every process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xrt.errors
from tests.module.test_faults import X, chain
from xrt.errors import CompileRefused, InputError
from xrt.formats import onnx
from xrt.processes import end, start_python
from xrt.processes.client import RemoteError, WorkerDied, WorkerProcess, WorkerTimedOut

SERVER = """
import os, signal, subprocess, sys, time
from xrt.errors import CompileRefused, InputError
from xrt.processes.ipc import serve

class Odd(InputError):
    pass

def raise_it(error):
    raise error

def write_and_leave(request):
    print("one line")
    print("another one", flush=True)
    os._exit(3)

def start_and_leave(request):
    process = subprocess.Popen(["sleep", "3600"], close_fds=False)
    os.kill(os.getpid(), signal.SIGSEGV)

ANSWERS = {
    "echo": lambda request: {"memory": request.memory.tobytes().decode(), **request.message},
    "endless": lambda request: time.sleep(3600),
    "odd": lambda request: raise_it(Odd("no such input")),
    "refused": lambda request: raise_it(CompileRefused("too large", ["a", "b"])),
    "own": lambda request: raise_it(ConnectionError("the engine's own")),
    "unsaid": lambda request: {"answer": object()},
    "leave": write_and_leave,
    "crash": start_and_leave,
    "loud": lambda request: {"said": print("aloud", flush=True)},
}

def main(handle, *arguments):
    serve(handle, lambda request: ANSWERS[request.message["do"]](request))
"""


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., WorkerProcess]]:
    """Start workers of the server above, which end with the test."""
    (tmp_path / "planted_server.py").write_text(SERVER)
    monkeypatch.syspath_prepend(str(tmp_path))
    workers: list[WorkerProcess] = []

    def begin(**options: Any) -> WorkerProcess:
        workers.append(WorkerProcess("planted_server:main", **options))
        return workers[-1]

    yield begin
    for worker in workers:
        worker.end()


@pytest.mark.parametrize(
    ("what", "kind", "text", "restored"),
    [
        ("odd", "InputError", "no such input", InputError),
        ("refused", "CompileRefused", "too large", CompileRefused),
        ("own", "ConnectionError", "the engine's own", RemoteError),
        ("unsaid", "TypeError", "Object of type object is not JSON serializable", RemoteError),
        ("nothing", "KeyError", "'nothing'", RemoteError),
    ],
)
def test_what_is_raised_there_is_an_error_here(
    what: str, kind: str, text: str, restored: type[Exception], start: Callable[..., WorkerProcess]
) -> None:
    worker = start()
    with pytest.raises(RemoteError) as caught:
        worker.ask({"do": what})
    assert (caught.value.kind, caught.value.text, str(caught.value)) == (kind, text, f"{kind}: {text}")
    assert type(caught.value.restore()) is restored
    assert getattr(caught.value.restore(), "nodes", ()) == (("a", "b") if what == "refused" else ())
    assert worker.is_open
    assert worker.ask({"do": "echo"})[0] == {"do": "echo", "memory": ""}


ERRORS = [name for name, one in vars(xrt.errors).items() if isinstance(one, type) and issubclass(one, xrt.errors.XRTError)]


@pytest.mark.parametrize("nodes", [(), ("a", "b")])
@pytest.mark.parametrize("kind", ERRORS)
def test_every_error_can_be_restored(kind: str, nodes: tuple[str, ...]) -> None:
    result = RemoteError(kind, "a text", nodes).restore()
    assert (type(result).__name__, str(result), getattr(result, "nodes", ())) == (kind, "a text", nodes)


def test_a_death_says_how_and_what_was_written_last(start: Callable[..., WorkerProcess]) -> None:
    worker = start()
    with pytest.raises(WorkerDied, match="its process ended by itself, with status 3; it last wrote: another one") as caught:
        worker.ask({"do": "leave"})
    assert (caught.value.code, caught.value.output) == (3, "one line\nanother one")
    assert not worker.is_open


def test_a_crash_is_seen_although_what_it_started_lives_on(start: Callable[..., WorkerProcess]) -> None:
    """What it started has not inherited the socket, which would stay open."""
    with pytest.raises(WorkerDied, match=r"its process was ended by SIGSEGV: a crash, or the system had no memory left$"):
        start().ask({"do": "crash"}, seconds=100)


def test_a_signal_without_a_name_is_a_number() -> None:
    assert str(WorkerDied(-40)) == "its process was ended by signal 40: a crash, or the system had no memory left"


@pytest.mark.slow
def test_reports_do_not_begin_the_limit_again(start: Callable[..., WorkerProcess]) -> None:
    worker = start()
    with pytest.raises(WorkerTimedOut, match=r"it gave no answer within 0\.5 s, and its process was killed"):
        worker.ask({"do": "endless"}, seconds=0.5)
    assert not worker.is_open


@pytest.mark.slow
def test_who_is_interrupted_has_no_worker_any_more(start: Callable[..., WorkerProcess]) -> None:
    """The answer that is still to come would be taken for the next one's."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    worker, before = start(), signal.signal(signal.SIGALRM, interrupt)
    worker.ask({"do": "echo"})
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            worker.ask({"do": "endless"})
    finally:
        signal.signal(signal.SIGALRM, before)
    assert not worker.is_open


def test_what_a_library_prints_is_no_output(start: Callable[..., WorkerProcess], capfd: pytest.CaptureFixture[str]) -> None:
    assert start(keeps_output=False).ask({"do": "loud"})[0] == {"said": None}
    assert capfd.readouterr() == ("", "aloud\n")


PLANTED = """
import _io
_io.open(__file__ + ".ran", "w").close()
raise ImportError("this file lies in the current directory and must not run")
"""
NAMES = ("onnxruntime", "tvm", "openvino", "json", "numpy", "socket", "statistics", "xrt", "sitecustomize")
LIMIT = 600
"""Seconds after which a command counts as hung."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a model, its input, and modules by the names of libraries."""
    place = tmp_path / "downloaded"
    place.mkdir()
    onnx.save(chain("Abs", "Neg", "Exp"), place / "m.onnx")
    np.save(place / "x.npy", X)
    for name in NAMES:
        (place / f"{name}.py").write_text(PLANTED, encoding="utf-8")
    return place


def command(folder: Path, *arguments: str, more: Mapping[str, str] = {}) -> subprocess.CompletedProcess[str]:
    """Run the command in the folder as its script does, which has no current directory in its search path either."""
    start = [sys.executable, "-P", "-m", "xrt.cli", *arguments]
    environment = {**os.environ, "XRT_CACHE_DIR": str(folder.parent / "cache"), **more}
    return subprocess.run(start, cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False)


def ran(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.ran"))


COMMANDS: dict[str, tuple[str, ...]] = {
    "run": ("run", "m.onnx", "--engine", "ort", "-i", "x.npy"),
    "run --isolate": ("run", "m.onnx", "--engine", "ort", "-i", "x.npy", "--isolate", "ort"),
    "run --isolate-run": ("run", "m.onnx", "--engine", "ort", "-i", "x.npy", "--isolate", "ort", "--isolate-run"),
    "run iree": ("run", "m.onnx", "--engine", "iree", "-i", "x.npy"),
    "tune": ("tune", "m.onnx", "--engines", "ort,toy", "--budget", "60s"),
    "lock": ("lock", "m.onnx", "--engines", "ort,toy", "--budget", "60s", "--gate", "1s", "-o", "m.lock"),
    "engines": ("engines",),
    "doctor": ("doctor",),
    "bench": ("bench", "m.onnx", "--engine", "ort", "--rounds", "2"),
    "conformance": ("conformance", "ort", "--cases", "test_abs*"),
    "fuzz": ("fuzz", "--engines", "ort", "--count", "2"),
    "verify": ("verify", "m.onnx", "--engine", "ort"),
}


@pytest.mark.slow
@pytest.mark.sample(6)
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_runs_no_code_of_the_current_directory(name: str, folder: Path) -> None:
    completed = command(folder, *COMMANDS[name])
    assert (completed.returncode, ran(folder)) == (0, []), completed.stderr


def child(entry: str, *arguments: str, **more: str) -> str:
    pipe = subprocess.PIPE
    process = start_python(entry, *arguments, environment=more, stdout=pipe, stderr=pipe, text=True)
    try:
        written, output = process.communicate(timeout=LIMIT)
    finally:
        end(process)
    assert process.returncode == 0, output
    return str(written)


@pytest.mark.slow
def test_a_child_imports_from_where_its_parent_does_and_turns_to_no_person(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "startup.py").write_text("print('started up')")
    monkeypatch.setenv("PYTHONSTARTUP", str(tmp_path / "startup.py"))
    monkeypatch.setenv("PYTHONINSPECT", "1")
    (tmp_path / "only_there.py").write_text(
        "import sys\nfrom os import environ\ndef main(*given):\n"
        "    print(*given, sys.flags.safe_path, *map(environ.get, ['PYTHONINSPECT', 'PYTHONSTARTUP', 'KEPT']))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert child("only_there:main", "a", "b c", KEPT="x") == "a b c True None None x\n"


def test_the_users_own_search_path_holds_in_a_child(folder: Path) -> None:
    """Who names a folder in PYTHONPATH means it, the current one too."""
    (folder / "sitecustomize.py").unlink()
    completed = command(folder, *COMMANDS["run --isolate"], more={"PYTHONPATH": str(folder)})
    assert completed.returncode != 0
    assert ran(folder) != []


def test_a_folder_that_cannot_be_named_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its halves would be other folders, one of them in the current directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path / "one:two"))
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "json.py").write_text(PLANTED)
    assert child("json:loads", "null") == ""
    assert ran(tmp_path / "two") == []
