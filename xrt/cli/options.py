"""Options that several commands share, and their conversion to keywords of XRTModule."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xrt.bench.targets import MAX_DIGITS, name_batch
from xrt.cache import parse_size
from xrt.engines import ExecutionOptions, parse_spec, split_specs
from xrt.engines.contract.spec import list_options
from xrt.errors import InputError, OptionError
from xrt.formats.output import replace_file, why_not_folder, why_not_writable
from xrt.graph import TensorType
from xrt.graph.types import LARGEST_EXTENT
from xrt.html.views import format_bytes
from xrt.module import Isolation, ModuleOptions
from xrt.module.engines import DEFAULT_ENGINES
from xrt.partition import ClusteringOptions

if TYPE_CHECKING:
    from xrt.graph import Function


Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
option = partial(click.option, show_default=True)


class Text(click.ParamType):  # type: ignore[type-arg]  # generic in click's latest release only
    """The type of an option whose value is parsed from a string.

    ``parse`` converts the string. If it returns None, or raises ValueError with a hint, the string is invalid: an OptionError
    then says that the option takes ``expected``, and ends with the hint, which begins with the period of this sentence.
    """

    def __init__(self, name: str, expected: str, parse: Callable[[str], Any]) -> None:
        self.name, self._expected, self._parse = name, expected, parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        hint = ""
        try:
            parsed = self._parse(value) if isinstance(value, str) else value
        except ValueError as error:
            parsed, hint = None, str(error)
        if parsed is None and param is not None:
            raise OptionError(f"{param.opts[0]} takes {self._expected}; got {value!r}{hint}")
        return parsed


def _parse_numbers(text: str) -> tuple[int, ...] | None:
    parts = [part.strip() for part in text.split(",")]
    # The number of digits is limited because int() raises ValueError for thousands of digits.
    if not all(part.isdecimal() and len(part) <= MAX_DIGITS for part in parts):
        return None
    numbers = tuple(map(int, parts))
    return None if 0 in numbers else numbers


def _parse_seconds(text: str) -> float | None:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|)", text.strip())
    if match is None:
        return None
    return float(match[1]) * {"ms": 1e-3, "m": 60}.get(match[2], 1)


def _parse_share(text: str) -> float | None:
    match = re.fullmatch(r"(\d{1,9}(?:\.\d+)?|\.\d+)\s*(%?)", text.strip())
    if match is None:
        return None
    number = float(match[1])
    if number >= 1 and not match[2]:  # 5 is more likely meant as 5 % than as 500 %
        raise ValueError(f". Did you mean {number:g}%?")
    return number / 100 if match[2] else number


def _parse_devices(text: str) -> dict[str, str] | None:
    devices: dict[str, str] = {}
    try:
        for choice in split_specs(text):
            engine, _, device = (part.strip() for part in choice.rpartition("="))
            parse_spec(engine)  # raises OptionError
            if not engine or not device or engine in devices:
                return None
            devices[engine] = device
    except OptionError:
        return None
    return devices


def _parse_check(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text


def _parse_precision(text: str) -> str:
    """Raise ValueError, with a hint, for int8, which needs examples; other names are returned, for the module to validate."""
    if "int8" in re.split(r"\W+", text):
        raise ValueError(". `xrt quantize` writes a model in int8, and `xrt lock --max-error` a lockfile for --lock")
    return text


NUMBERS = Text("N,...", "positive integers, such as 1,2,4", _parse_numbers)
TIME = Text("TIME", "a time such as 60s or 2m", lambda text: _parse_seconds(text) or None)
WAIT = Text("TIME", "a time such as 60s or 2m", _parse_seconds)
SHARE = Text("SHARE", "a share such as 1% or 0.01", _parse_share)
SIZE = Text("SIZE", "a size such as 500MB or 4GB", parse_size)
CHECK = Text("TEXT", "", _parse_check)
_PRECISION = Text("NAME", "fp32, fp16 or bf16", _parse_precision)
_DEVICES = Text("ENGINE=DEVICE,...", "ENGINE=DEVICE, each engine once, such as ort=cuda,tvm=cpu", _parse_devices)


class Target(click.Path):
    """The path of an output, checked before any work is done; raises InputError with the reason if it cannot be written."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        reason = why_not_writable(path) if self.file_okay else why_not_folder(path)
        if reason:
            raise InputError(f"cannot write {path}: {reason}" if self.file_okay else f"cannot write to {path}: {reason}")
        return path


TARGET, FOLDER = Target(dir_okay=False), Target(file_okay=False)


def choose_target(target: Path | None, model: str, suffix: str) -> Path:
    # Not TARGET: its error for a folder, raised by click, needs the context of an option.
    return Target().convert(target or f"{Path(model).stem}{suffix}", None, None)


def write_page(path: Path | None, render: Callable[[], str]) -> None:
    if path is not None:
        content = render().encode()
        replace_file(path, lambda file: file.write(content))


def parse_dims(texts: tuple[str, ...]) -> dict[str, int]:
    choices = parse_choices(texts)
    for name, sizes in choices.items():
        if len(sizes) > 1:
            raise OptionError(f"--dim gives {name} as {' and as '.join(map(str, sizes))}; only `xrt compile` takes several sizes")
    return {name: sizes[0] for name, sizes in choices.items()}


def parse_choices(texts: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    """Parse strings such as ``batch=4`` to the distinct sizes of each name, which may occur several times."""
    choices: dict[str, tuple[int, ...]] = {}
    for text in texts:
        name, equals, size = text.partition("=")
        if not equals or not size.isdecimal():
            raise OptionError(f"--dim takes NAME=SIZE, such as batch=4; got {text!r}")
        if len(size) > MAX_DIGITS:
            raise OptionError(f"--dim {name}: an extent is at most {LARGEST_EXTENT}; got a number of {len(size)} digits")
        choices[name] = tuple(dict.fromkeys((*choices.get(name, ()), int(size))))
    return choices


_UNITS: dict[str, tuple[Text, str, Callable[[Any], str]]] = {
    ", in seconds": (TIME, "60s, 2m", "{:g}s".format),
    ", in bytes": (SIZE, "500MB, 4GB", format_bytes),
}
"""Maps the unit in the description of an option to type, examples and formatter. A value on the command line names its unit, as
in 60s, so `derive` drops the unit from the description."""
EXAMPLES = "FILE.npz, FILE.npy, or a folder of such files"
FILE = click.Path(dir_okay=False)


@cache
def _describe(owner: type) -> dict[str, str]:
    """Extract the help of each option of a class: the first sentence of its description."""
    texts = {}
    for entry in list_options(owner):
        text = re.split(r"\. |\.$|; None\b", entry.meaning, maxsplit=1)[0]
        texts[entry.name] = text.replace('``engine="auto"``', "-e auto").replace("``max_error``", "--max-error").replace("``", "")
    return texts


def derive(owner: type, name: str, *flags: str, default_text: str = "", example: str = "", **attributes: Any) -> Decorator:
    """Derive a command line option from an option of a module or a server: flag, type and help.

    ``flags`` replace the flag made from ``name``. In the help, ``default_text`` replaces a default that is not a value, and
    ``example`` replaces the text after a colon. ``attributes`` are passed to click.
    """
    # The types of fields are strings, because annotations are not evaluated.
    field = next(field for field in fields(owner) if field.name == name)
    default: Any = field.default
    at_least = field.metadata.get("at_least")
    text = attributes.pop("help", _describe(owner)[name])
    unit = next((unit for unit in _UNITS if unit in text), None)
    derived: dict[str, Any] = {}
    derived_default = ""
    if unit is not None:
        derived["type"], unit_example, format_value = _UNITS[unit]
        text = text.replace(unit, "")
        example = example or unit_example
        derived_default = format_value(default) if default else ""
    elif field.type == "bool":
        derived["is_flag"] = True
    elif at_least is not None and "float" not in field.type:
        derived |= {"type": click.IntRange(at_least), "metavar": "INTEGER"}
        derived_default = "" if default in (None, 1) else str(default)  # a minimum of 1 restricts nothing
    if example:
        summary, _, _ = text.partition(":")
        text = f"{summary}: {example}"
    if attributes.get("multiple"):
        text += "; repeatable"
    if shown_default := default_text or derived_default:
        text += f" [default: {shown_default}]"
    names = flags or (f"--{name.replace('_', '-')}", name)
    return click.option(*names, help=text, **{**derived, **attributes})


CORES = "the cores of this process"
_FIRST_ENGINE = f"the first installed of {', '.join(DEFAULT_ENGINES)} that supports the whole model"
add_dims = click.option("--dim", "dims", multiple=True, metavar="NAME=SIZE", help="Size of a symbolic dim: batch=4; repeatable")
add_batch = click.option(
    "--batch", type=click.IntRange(0), metavar="ROWS", help="Size of the first axis of the inputs, also where it has no name"
)
add_json = click.option("--json", "as_json", is_flag=True, help="Print JSON")
add_html = click.option("--html", type=TARGET, help="Also write a page to this file")


def add_engines(text: str, default_text: str | None = _FIRST_ENGINE, **attributes: Any) -> Decorator:
    attributes = {"metavar": "ENGINES", "show_default": default_text, "help": text, **attributes}
    return click.option("-e", "--engine", "--engines", "engine", **attributes)


def add_choice(name: str, words: Sequence[str], text: str) -> Decorator:
    return option(name, type=click.Choice(words), default=words[0], help=text)


def add_seed(text: str) -> Decorator:
    return option("--seed", default=0, type=click.IntRange(0), help=text)


def add_time(name: str, default: str, text: str) -> Decorator:
    return option(name, default=default, type=TIME, help=f"{text}: 60s, 2m")


def add_all(*options: Decorator) -> Decorator:
    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for decorate in reversed(options):  # the decorator that is applied last comes first in the help
            command = decorate(command)
        return command

    return add


device_options = add_all(
    option("--device", default="cpu", metavar="DEVICE", help="Device of all engines: cpu, cuda or cuda:N"),
    derive(ModuleOptions, "devices", type=_DEVICES, help="Devices of single engines: ort=cuda,tvm=cpu"),
)
_clustering_options = add_all(
    device_options,
    derive(ClusteringOptions, "pins", "--pin", "pins", multiple=True, metavar="PIN"),
    derive(ClusteringOptions, "minimum_nodes"),
    derive(ClusteringOptions, "maximum_nodes"),
)
_execution_options = add_all(
    derive(ExecutionOptions, "threads", default_text=CORES),
    derive(ModuleOptions, "strict"),
    add_dims,
)
isolation_options = add_all(
    derive(Isolation, "engines", "--isolate", "isolate", metavar="ENGINES"),
    derive(Isolation, "run", "--isolate-run", "isolate_run"),
    derive(Isolation, "time_limit", default_text="no limit"),
    derive(Isolation, "memory_limit", default_text="no limit"),
)
add_inputs = click.option(
    "-i",
    "--input",
    "files",
    multiple=True,
    metavar="[NAME=]FILE",
    help="An input from a file: NAME=FILE.npy, or FILE.npz with one array per input; repeatable",
)
_input_options = add_all(add_inputs, add_seed("Seed of the random inputs that replace missing ones"))
module_options = add_all(
    click.argument("model"),
    add_engines("Engines, first choice first: tvm,ort; auto places by measurement"),
    _clustering_options,
    derive(ExecutionOptions, "precision", type=_PRECISION, help="Precision of the arithmetic: fp32, fp16 or bf16"),
    _execution_options,
    add_batch,
    derive(ModuleOptions, "lock", type=FILE),
    derive(ModuleOptions, "budget"),
    isolation_options,
)
"""The argument MODEL, and the options of the module that runs it."""
run_options = add_all(module_options, _input_options)
add_tuning_options = add_all(
    click.argument("model"),
    add_engines("Engines to choose from: ort,xla", "all that are ready", default="auto"),
    _clustering_options,
    derive(ExecutionOptions, "precision", type=Text("NAME", "", str)),
    _execution_options,
    isolation_options,
    _input_options,
    add_time("--budget", "60s", "Time of the search"),
    derive(ModuleOptions, "max_error", type=SHARE, example="1%, 0.01"),
    add_choice(
        "--measure",
        ["relative", "cosine", "top1"],
        "Measure of that error: of the norm, of the angle, or the share of rows with another largest element",
    ),
    derive(ModuleOptions, "calibrate", type=click.Path(), example=EXAMPLES),
    derive(ModuleOptions, "validate", type=click.Path(), example=EXAMPLES, default_text="a fifth of --calibrate"),
)


def isolation_keywords(params: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the options of `isolation_options` to the keyword ``isolate`` of XRTModule; empty if none is set.

    Raises OptionError for a limit without ``--isolate``.
    """
    limits = {name: params.get(name) for name in ("time_limit", "memory_limit")}
    if params.get("isolate") is not None:
        return {"isolate": Isolation(tuple(split_specs(params["isolate"])), bool(params.get("isolate_run")), **limits)}
    for name in ("isolate_run", *limits):
        if params.get(name):
            raise OptionError(f"--{name.replace('_', '-')} is for engines in worker processes; name them with --isolate")
    return {}


def module_keywords(params: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the options of `module_options` to keywords of XRTModule, without those that are not set.

    Raises OptionError for ``--budget`` without ``auto``.
    """
    engines = split_specs(params["engine"]) if params["engine"] else params["engine"]
    if params.get("budget") is not None and "auto" not in (engines or ()):
        raise OptionError("--budget is the time of a search; pass it with -e auto, or a list with auto in it")
    # Options that are not set are omitted, so that XRTModule's own defaults apply.
    names = ("minimum_nodes", "maximum_nodes", "precision", "threads", "devices", "dump_subgraph_dir", "check", "lock", "budget")
    keywords = {name: params[name] for name in names if params.get(name) is not None}
    if "," in keywords.get("precision", ""):
        keywords["precision"] = [name.strip() for name in keywords["precision"].split(",")]
    if params["pins"]:
        keywords["pins"] = params["pins"]
    keywords |= isolation_keywords(params)
    return {**keywords, "engine": engines, "device": params["device"], "strict": params["strict"]}


def check_sizes(function: Function) -> None:
    """Raise OptionError if a model has symbolic dims without a size, since times are measured at known sizes.

    Unnamed extents are checked only if the command has ``--input``, since only a file can give their size.
    """
    context = click.get_current_context()
    missing: list[str] = []
    arguments: list[str] = []
    shapes = [value.type.shape or () for value in function.inputs if isinstance(value.type, TensorType)]
    dims = dict.fromkeys(dim for shape in shapes for dim in shape if isinstance(dim, str))
    if dims:
        noun = "dim" if len(dims) == 1 else "dims"
        missing.append(f"{noun} {', '.join(dims)}")
        arguments += [f"--dim {name}=SIZE" for name in dims]
    # Unnamed first axes become the dim ``batch``, which --batch sets; other extents without a name need a file.
    with_named_batch = name_batch(function)
    if with_named_batch is not function:
        missing.append("the first axes of the inputs, which have no name")
        arguments.append("--batch SIZE")
    unnamed = []
    for value in with_named_batch.inputs:
        shape = value.type.shape if isinstance(value.type, TensorType) else None
        if shape is None or None in shape:
            unnamed.append(value.name)
    if unnamed and "files" in context.params:
        noun = "input" if len(unnamed) == 1 else "inputs"
        missing.append(f"extents without a name of {noun} {', '.join(unnamed)}")
        arguments += [f"-i {name}=FILE.npy" for name in unnamed]
    if missing:
        # The command as typed, with the missing options appended, can be copied and run.
        typed = context.obj or (context.command.name or "", context.params.get("model", "MODEL"))
        raise OptionError(
            f"times are measured for inputs of known sizes, and these are unknown: {'; '.join(missing)}. "
            f"Set them: {' '.join([shlex.join(['xrt', *typed]), *arguments])}"
        )
