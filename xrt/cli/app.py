"""The root of the command line: finds the subcommand, and turns errors into one message and an exit code."""

from __future__ import annotations

import importlib
import io
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from xrt import __version__
from xrt.cli.screen import complain, out, warnings_as_lines
from xrt.errors import XRTError, did_you_mean

# Each command: its module in xrt.cli, and its line in the help. The help is printed from here, because importing the modules
# would load the whole library.
_DAILY = {
    "run": ("run", "Run a model once, on files or random inputs"),
    "bench": ("tune", "Compare the speed of engines"),
    "tune": ("tune", "Find the fastest engine or mixture"),
    "compile": ("run", "Write a bundle that starts without compiling"),
    "serve": ("serve", "Serve models over HTTP and gRPC"),
    "batch": ("serve", "Run a model over files of rows"),
    "quantize": ("run", "Write a model in int8"),
    "explain": ("run", "Show which engine runs what, and why"),
    "inspect": ("run", "Show inputs, outputs and operators"),
    "verify": ("run", "Compare results with the reference engine"),
    "lock": ("tune", "Write a measured placement to a file"),
    "check": ("tune", "Check a lock: still as fast, still correct?"),
    "engines": ("engines", "List the engines and their options"),
    "cache": ("engines", "List and clean the compiled regions on disk"),
    "export-triton": ("serve", "Write a model repository for Triton"),
    "doctor": ("engines", "Show versions and settings for a bug report"),
}
_WORKSHOP = {
    "conformance": ("workshop", "Run the conformance tests of an engine"),
    "fuzz": ("workshop", "Compare engines on generated graphs"),
    "bisect": ("workshop", "Find the smallest part that an engine gets wrong"),
}
_COMMANDS = {**_DAILY, **_WORKSHOP}


class Commands(click.Group):
    def list_commands(self, context: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            command_list = ", ".join(_COMMANDS)
            raise click.UsageError(f"there is no command {name!r}.{did_you_mean(name, _COMMANDS)} There is: {command_list}")
        module = importlib.import_module(f"xrt.cli.{_COMMANDS[name][0]}")
        return getattr(module, f"{name.replace('-', '_')}_command")  # type: ignore[no-any-return]

    # click's own version imports every command to read its short help.
    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        for title, commands in (("Commands", _DAILY), ("For authors of engines", _WORKSHOP)):
            with formatter.section(title):
                formatter.write_dl([(name, help_) for name, (_, help_) in commands.items()])


@click.command(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="xrt")
@click.option("--debug", is_flag=True, help="Show the traceback of an error")
def cli(debug: bool) -> None:
    """Run one model on several engines."""


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with its code. ``arguments`` are those after ``xrt``; None reads those of the process."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names may contain half a surrogate pair, which cannot be encoded
    typed = sys.argv[1:] if arguments is None else arguments
    # --debug is accepted anywhere, also after the subcommand, where click would reject it.
    sys.exit(_run([a for a in typed if a != "--debug"], debug="--debug" in typed))


def _run(arguments: list[str], *, debug: bool) -> int:
    try:
        with warnings_as_lines(), _repeat_lost_interrupts():
            # Standalone, click would print errors in its own form and end the process with its own exit codes.
            result: Any = cli(args=arguments, prog_name="xrt", standalone_mode=False, obj=tuple(arguments))
        return int(result or 0)
    except click.exceptions.Abort:
        complain("interrupted", "stopped before the end")
        return 130
    except click.exceptions.NoArgsIsHelpError as error:
        out.print(error.format_message(), markup=False)
        return 2
    except (BrokenPipeError, SystemExit):  # click turns a broken pipe into SystemExit
        sys.stderr.close()  # the reader left; say nothing more
        return 0
    except Exception as error:
        if _comes_from_interrupt(error):
            complain("interrupted", "stopped before the end")
            return 130
        if debug and not isinstance(error, click.ClickException):  # a mistake on the command line needs no traceback
            raise
        complain("error", _describe(error))
        return 2


@contextmanager
def _repeat_lost_interrupts() -> Iterator[None]:
    """Send Ctrl-C again if it came during a finalizer or a weak reference's callback, whose exceptions Python drops."""
    report, main_thread = sys.unraisablehook, threading.main_thread().ident or 0

    def send() -> None:
        # Wait until the hook has returned, since an interrupt inside the hook would be dropped again.
        while any(frame.f_code is repeat.__code__ for frame, _ in traceback.walk_stack(sys._current_frames()[main_thread])):
            time.sleep(0.01)
        signal.pthread_kill(main_thread, signal.SIGINT)

    def repeat(unraisable: Any) -> None:
        if unraisable.exc_type is KeyboardInterrupt:
            threading.Thread(target=send).start()
        else:
            report(unraisable)

    sys.unraisablehook = repeat
    try:
        yield
    finally:
        sys.unraisablehook = report


def _comes_from_interrupt(error: BaseException | None) -> bool:
    """Whether a KeyboardInterrupt is among the causes: during an import, pybind11 turns it into an ImportError."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _describe(error: Exception) -> str:
    match error:
        case click.ClickException():
            return _describe_usage(error)
        case OSError() if error.filename is not None:
            return f"{error.filename}: {error.strerror}"
        case XRTError() | OSError():
            return str(error)
        case MemoryError():
            return f"there is not enough memory: {error}"
    return f"{type(error).__name__}: {error} (this should not happen; --debug shows where)"


def _describe_usage(error: click.ClickException) -> str:
    """Describe an error of the command line, with the nearest option for an unknown one, and where its options are listed."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    if context is None:
        return error.format_message()
    text = error.format_message().rstrip(".")
    if isinstance(error, click.NoSuchOption):
        names = [name for option in context.command.get_params(context) for name in option.opts]
        nearest = did_you_mean(error.option_name, names)
        text = f"{context.command_path} has no option {error.option_name}.{nearest}".rstrip(".")
    text += "" if text.endswith("?") else "."
    return f"{text} `{context.command_path} --help` lists the options"
