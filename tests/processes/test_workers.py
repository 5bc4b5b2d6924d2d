"""A worker process answers messages; whatever else it does is one of three errors."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import xrt.errors
from xrt.errors import CompileRefused, InputError
from xrt.processes.client import RemoteError, WorkerDied, WorkerProcess, WorkerTimedOut

SERVER = """
import os, signal, subprocess, sys, time
from xrt.errors import CompileRefused, InputError
from xrt.processes.server import serve

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
    assert worker.is_alive
    assert worker.ask({"do": "echo"})[0] == {"do": "echo", "memory": ""}


ERRORS = [name for name, one in vars(xrt.errors).items() if isinstance(one, type) and issubclass(one, xrt.errors.XRTError)]


@pytest.mark.parametrize("nodes", [(), ("a", "b")])
@pytest.mark.parametrize("kind", ERRORS)
def test_every_error_can_be_restored(kind: str, nodes: tuple[str, ...]) -> None:
    found = RemoteError(kind, "a text", nodes).restore()
    assert (type(found).__name__, str(found), getattr(found, "nodes", ())) == (kind, "a text", nodes)


def test_a_death_says_how_and_what_was_written_last(start: Callable[..., WorkerProcess]) -> None:
    worker = start()
    with pytest.raises(WorkerDied, match="its process ended by itself, with status 3; it last wrote: another one") as caught:
        worker.ask({"do": "leave"})
    assert (caught.value.code, caught.value.output) == (3, "one line\nanother one")
    assert not worker.is_alive


def test_a_crash_is_seen_although_what_it_started_lives_on(start: Callable[..., WorkerProcess]) -> None:
    """What it started has not inherited the socket, which would stay open."""
    with pytest.raises(WorkerDied, match=r"its process was ended by SIGSEGV: a crash, or the system had no memory left$"):
        start().ask({"do": "crash"}, seconds=100)


@pytest.mark.slow
def test_reports_do_not_begin_the_limit_again(start: Callable[..., WorkerProcess]) -> None:
    worker = start()
    with pytest.raises(WorkerTimedOut, match=r"it gave no answer within 0\.5 s, and its process was killed"):
        worker.ask({"do": "endless"}, seconds=0.5)
    assert not worker.is_alive


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
    assert not worker.is_alive


def test_what_a_library_prints_is_no_output_of_the_command(
    start: Callable[..., WorkerProcess], capfd: pytest.CaptureFixture[str]
) -> None:
    assert start(keeps_output=False).ask({"do": "loud"})[0] == {"said": None}
    assert capfd.readouterr() == ("", "aloud\n")
