"""Progress that shows itself: on a terminal and in a notebook, after two seconds, nowhere else. Clocks and streams are fakes."""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest.mock import Mock, call

import numpy as np
import pytest

import xrt
from xrt import progress
from xrt.cache import CompileCache
from xrt.cli.screen import show_status
from xrt.engines import CompileContext, Executable
from xrt.graph import Function
from xrt.placement.result import Progress
from xrt.progress import ERASE_LINE, NotebookLine, ProgressLine, TerminalLine, find_display, show_progress
from xrt.testing.corpus.entry import graph, node
from xrt.testing.fault_injection import RecordingEngine

RELU = graph({"x": "float32[3]"}, {"y": "float32[3]"}, node("Relu", "x", "y"))
X = np.ones(3, "float32")


class Terminal(io.StringIO):
    encoding = "ascii"

    def isatty(self) -> bool:
        return True


class Recording:
    """A display that keeps what it is given, and can be waited for."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.is_shown = threading.Event()
        self.last: str | None = None

    def show(self, text: str) -> None:
        self.lines.append(text)
        self.is_shown.set()

    def close(self, last: str) -> None:
        self.last = last


@pytest.fixture
def display(monkeypatch: pytest.MonkeyPatch) -> Recording:
    """A display that is found, on which work is shown from its beginning."""
    result = Recording()
    monkeypatch.setattr(progress, "find_display", lambda: result)
    monkeypatch.setattr(progress, "DELAY_SECONDS", 0.0)
    return result


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Standard error as a terminal, in a process that may show progress."""
    stream = Terminal()
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=stream, modules={}))  # pytest sets its own for each phase
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv(progress.PROGRESS_VARIABLE, raising=False)
    return stream


class TestLine:
    def test_it_appears_after_two_seconds_and_changes_in_place(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("COLUMNS", "80")
        now, stream = [100.0], Terminal()
        line = ProgressLine(TerminalLine(stream), "compiling main", lambda: now[0])
        line.set_stage("0 of 3 regions")
        now[0] = 101.99
        line.tick()
        assert stream.getvalue() == ""
        now[0] = 102.0
        line.tick()
        line.tick()  # nothing has changed
        line.set_stage("1 of 3 regions")
        now[0] = 103.4
        line.tick()
        line.close()
        lines = ["xrt: compiling main, 2 s: 0 of 3 regions", "xrt: compiling main, 3 s: 1 of 3 regions"]
        assert stream.getvalue() == ERASE_LINE + ERASE_LINE.join(lines) + ERASE_LINE

    def test_it_is_cut_to_the_terminal_and_its_encoding_and_steers_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("COLUMNS", "40")
        now, stream = [0.0], Terminal()
        line = ProgressLine(TerminalLine(stream), "compiling \x1b[31m\u202e\n\u00e9 net", lambda: now[0])
        line.set_stage("x" * 100)
        now[0] = 2.0
        line.tick()
        assert stream.getvalue() == f"{ERASE_LINE}xrt: compiling ?[31m??? net, 2 s: xx..."
        assert len(stream.getvalue()) - len(ERASE_LINE) == 39

    def test_a_notebook_replaces_one_output_and_keeps_the_last_line(self) -> None:
        now, show = [0.0], Mock()
        line = ProgressLine(NotebookLine(show), "compiling main", lambda: now[0])
        for now[0] in (2.0, 3.0):
            line.tick()
        now[0] = 3.25
        line.close()
        assert show.mock_calls == [
            call({"text/plain": "xrt: compiling main, 2 s"}, raw=True, display_id=True),
            call().update({"text/plain": "xrt: compiling main, 3 s"}, raw=True),
            call().update({"text/plain": "xrt: compiling main took 3.2 s"}, raw=True),
        ]

    def test_a_search_says_its_stage_and_the_best_by_now(self) -> None:
        assert Progress("asking the engines", "", None, 0.1, 20.0).text == "asking the engines"
        output = Progress("round 3", "ort + xla", 0.00123, 4.0, 20.0).text
        assert output == "round 3; best so far: ort + xla, 1.23 ms"


class WriteOnly:
    """What some frameworks put in the place of standard error."""

    def write(self, text: str) -> int:
        return len(text)


def use_stream(stream: Any) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setattr(progress.sys, "stderr", stream)


def detached() -> io.TextIOWrapper:
    stream = io.TextIOWrapper(io.BytesIO())
    stream.detach()
    return stream


def closed() -> Terminal:
    stream = Terminal()
    stream.close()
    return stream


UNSUITABLE: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "switched off": lambda patch: patch.setenv(progress.PROGRESS_VARIABLE, "off"),
    "switched off in capitals": lambda patch: patch.setenv(progress.PROGRESS_VARIABLE, " OFF "),
    "a pipe": use_stream(io.StringIO()),
    "a write-only stream": use_stream(WriteOnly()),
    "a detached stream": use_stream(detached()),
    "a closed stream": use_stream(closed()),
    "no stream": use_stream(None),
    "a terminal that cannot erase": lambda patch: patch.setenv("TERM", "dumb"),
    "a child of multiprocessing": lambda patch: patch.setitem(
        progress.sys.modules, "multiprocessing", SimpleNamespace(parent_process=lambda: object())
    ),
    "an import of multiprocessing in another thread": lambda patch: patch.setitem(
        progress.sys.modules, "multiprocessing", SimpleNamespace()
    ),
}
"""Where no display is found, and how a test gets there from a terminal."""


class TestWhere:
    def test_on_a_terminal(self, terminal: Terminal) -> None:
        assert isinstance(find_display(), TerminalLine)

    def test_not_where_it_is_captured(self) -> None:
        assert not sys.stderr.isatty() and find_display() is None

    @pytest.mark.parametrize("name", UNSUITABLE)
    def test_not_where_it_would_disturb(self, terminal: Terminal, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        UNSUITABLE[name](monkeypatch)
        assert find_display() is None

    @pytest.mark.parametrize(
        ("shell", "kind"), [(SimpleNamespace(kernel=object()), NotebookLine), (SimpleNamespace(), type(None)), (None, type(None))]
    )
    def test_in_a_notebook_and_not_in_another_shell(
        self, terminal: Terminal, monkeypatch: pytest.MonkeyPatch, shell: Any, kind: type
    ) -> None:
        ipython = SimpleNamespace(get_ipython=lambda: shell, display=SimpleNamespace(display=print))
        monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=io.StringIO(), modules={"IPython": ipython}))
        assert isinstance(find_display(), kind)


class TestWork:
    def test_it_shows_itself_and_goes(self, display: Recording) -> None:
        with show_progress("working") as tell:
            assert display.is_shown.wait(60)
            tell("more")
        assert display.lines[0].startswith("xrt: working, ") and (display.last or "").startswith("xrt: working took ")
        assert progress.claim_display(), "it is given back"
        progress.release_display()

    def test_not_before_its_time(self, display: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(progress, "DELAY_SECONDS", 1e6)
        with show_progress("working") as tell:
            tell("more")
        assert (display.lines, display.last) == ([], None)

    def test_an_error_of_the_work_ends_it_too(self, display: Recording) -> None:
        def work() -> None:
            with show_progress("working"):
                assert display.is_shown.wait(60)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            work()
        assert display.last is not None

    def test_a_display_that_goes_away_ends_nothing(self, display: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
        was_asked = threading.Event()

        def fails(text: str) -> None:
            was_asked.set()
            raise ValueError("I/O operation on closed file")

        monkeypatch.setattr(display, "show", fails)
        with show_progress("working") as tell:
            assert was_asked.wait(60)
            tell("more")

    def test_one_at_a_time(self, display: Recording) -> None:
        with show_progress("outer"), show_progress("inner") as tell:
            assert tell is None
            assert display.is_shown.wait(60)
        assert not any("inner" in line for line in display.lines)

    def test_not_while_a_command_says_what_it_does(self, display: Recording) -> None:
        with show_status("verifying"), show_progress("inner"):
            assert not progress.claim_display()
        assert progress.claim_display()
        progress.release_display()
        assert display.lines == []


@dataclass(frozen=True)
class Waiting(RecordingEngine):
    """An engine that compiles once the display has shown something."""

    display: ClassVar[Any] = None

    def compile(self, function: Function, context: CompileContext) -> Executable:
        assert self.display.is_shown.wait(60)
        return super().compile(function, context)


class TestModule:
    @pytest.mark.slow
    @pytest.mark.parametrize("options", [{}, {"progress": None}, {"progress": True}])
    def test_a_compile_shows_itself(self, display: Recording, monkeypatch: pytest.MonkeyPatch, options: Any) -> None:
        monkeypatch.setattr(Waiting, "display", display)
        with xrt.XRTModule(RELU, [Waiting()], cache=CompileCache(), strict=True, **options) as m:
            m(X)
        assert display.lines[0] == "xrt: compiling main, 0 s"

    @pytest.mark.parametrize("given", [False, lambda done, count: None])
    def test_it_does_not_where_it_is_off_or_another_is_reported(self, monkeypatch: pytest.MonkeyPatch, given: Any) -> None:
        monkeypatch.setattr(progress, "find_display", lambda: pytest.fail("it looks for a display"))
        with xrt.XRTModule(RELU, [RecordingEngine()], cache=CompileCache(), strict=True, progress=given) as m:
            m(X)

    @pytest.mark.parametrize(
        ("of_module", "of_search", "shows"),
        [
            (None, None, True),
            (True, False, False),
            (False, None, False),
            (False, True, True),
            (None, lambda progress: None, False),
        ],
    )
    def test_a_search_shows_itself_as_it_or_its_module_says(
        self, monkeypatch: pytest.MonkeyPatch, of_module: Any, of_search: Any, shows: bool
    ) -> None:
        """Whether a display is looked for while the search goes on; the compile behind it is another matter."""
        search, display = Mock(side_effect=KeyError("searched")), Mock()
        monkeypatch.setattr("xrt.placement.auto.tune", search)
        monkeypatch.setattr(progress, "find_display", display)
        with xrt.XRTModule(RELU, ["toy", "auto"], cache=CompileCache(), progress=of_module) as m, pytest.raises(KeyError):
            m.tune(X, budget=5.0, progress=of_search)
        assert display.called is shows
        reported = search.call_args.kwargs["progress"]
        assert callable(reported) and (reported is of_search or not callable(of_search))


def test_work_goes_on_where_no_thread_can_be_started(display: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
        with show_progress("working") as tell:
            tell("a stage")
    assert display.lines == []
    with show_progress("working"):  # the display was given back
        assert display.is_shown.wait(60)
