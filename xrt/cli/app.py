"""The command's root: it finds the subcommand, and turns every error into one message and exit code 2."""

from __future__ import annotations

import importlib
import io
import sys
from typing import Any

import click

from xrt import __version__
from xrt.cli.screen import complain, out, warnings_as_lines
from xrt.errors import XRTError, did_you_mean

__all__ = ["main"]

_DAILY = {
    "run": "Run a model once, on files or random inputs",
    "bench": "Compare the speed of engines",
    "tune": "Find the fastest engine or mixture",
    "compile": "Write a bundle that starts without compiling",
    "serve": "Serve models over HTTP and gRPC",
    "batch": "Run a model over files of rows",
    "quantize": "Write a model in int8 or int4",
    "explain": "Show which engine runs what, and why",
    "inspect": "Show inputs, outputs and operators",
    "verify": "Compare results with the reference engine",
    "lock": "Write a measured placement to a file",
    "check": "Check a lock: still as fast, still correct?",
    "engines": "List the engines and their options",
    "cache": "List and clean the compiled regions on disk",
    "export-triton": "Write a model repository for Triton",
    "doctor": "Show versions and settings for a bug report",
}
_WORKSHOP = {
    "conformance": "Run the conformance tests of an engine",
    "fuzz": "Compare engines on generated graphs",
    "bisect": "Find the smallest part that an engine gets wrong",
}
_COMMANDS = (*_DAILY, *_WORKSHOP)
_MODULES = {
    "run": ("run", "compile", "explain", "inspect", "verify"),
    "bench": ("bench",),
    "tune": ("tune", "lock", "check"),
    "serve": ("serve", "batch", "export-triton"),
    "quantize": ("quantize",),
    "engines": ("engines", "cache", "doctor"),
    "workshop": ("conformance", "fuzz", "bisect"),
}
"""The commands of each module; the function of the first one is ``command``."""


class Commands(click.Group):
    """Subcommands by name, each imported when it is asked for."""

    def list_commands(self, context: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            raise click.UsageError(
                f"there is no command {name!r}.{did_you_mean(name, _COMMANDS)} There is: {', '.join(_COMMANDS)}"
            )
        home, names = next((home, names) for home, names in _MODULES.items() if name in names)
        attribute = "command" if name == names[0] else f"{name.replace('-', '_')}_command"
        command: click.Command = getattr(importlib.import_module(f"xrt.cli.{home}"), attribute)
        return command

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        for title, commands in (("Commands", _DAILY), ("For authors of engines", _WORKSHOP)):
            with formatter.section(title):
                formatter.write_dl(list(commands.items()))


@click.command(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="xrt")
@click.option("--debug", is_flag=True, help="Show the traceback of an error")
def cli(debug: bool) -> None:
    """Run one model on several engines."""


def main(arguments: list[str] | None = None) -> None:
    """Run the command and leave the process: 0 when it succeeded, 1 for a finding, 2 for an error, 130 when interrupted."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a name may hold half a character, which no encoding has
    typed = sys.argv[1:] if arguments is None else arguments
    sys.exit(_run([a for a in typed if a != "--debug"], debug="--debug" in typed))


def _run(arguments: list[str], *, debug: bool) -> int:
    try:
        with warnings_as_lines():
            result: Any = cli(args=arguments, prog_name="xrt", standalone_mode=False, obj=tuple(arguments))
        return int(result or 0)
    except click.exceptions.Abort:
        complain("interrupted", "stopped before the end")
        return 130
    except click.exceptions.NoArgsIsHelpError as error:
        out.print(error.format_message(), markup=False)
        return 2
    except click.ClickException as error:
        complain("error", _describe_usage(error))
        return 2
    except (BrokenPipeError, SystemExit):  # click makes an exit of a broken pipe
        sys.stderr.close()  # the reader left; say nothing more
        return 0
    except (XRTError, OSError) as error:
        if debug:
            raise
        complain("error", _describe_error(error))
        return 2
    except MemoryError as error:
        if debug:
            raise
        complain("error", f"there is not enough memory: {error}")
        return 2
    except Exception as error:
        if debug:
            raise
        complain("error", f"{type(error).__name__}: {error} (this should not happen; --debug shows where)")
        return 2


def _describe_usage(error: click.ClickException) -> str:
    """Return a mistake on the command line as one line, with what to do next."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    if context is None:
        return error.format_message()
    text = error.format_message().rstrip(".")
    if isinstance(error, click.NoSuchOption):
        names = [name for option in context.command.get_params(context) for name in option.opts]
        nearest = did_you_mean(error.option_name, names)
        text = f"{context.command_path} has no option {error.option_name}.{nearest}".rstrip(".")
    return f"{text}{'' if text.endswith('?') else '.'} `{context.command_path} --help` lists the options"


def _describe_error(error: Exception) -> str:
    """Return an error as one line says it; the system's own without its number."""
    if isinstance(error, OSError) and not isinstance(error, XRTError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error)
