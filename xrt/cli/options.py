"""Options that several commands share, and the keywords of XRTModule that they become."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xrt.bench.targets import DIGITS, name_batch
from xrt.cache import parse_size
from xrt.cli.screen import human_bytes
from xrt.engines import ExecutionOptions, parse_spec, split_specs
from xrt.engines.contract.spec import list_options
from xrt.errors import InputError, OptionError
from xrt.formats.output import replace_file, why_not_folder, why_not_writable
from xrt.graph import TensorType
from xrt.graph.types import LARGEST_EXTENT
from xrt.module import Isolation, ModuleOptions
from xrt.module.programs import DEFAULT_ENGINES
from xrt.partition import ClusteringOptions

if TYPE_CHECKING:
    from xrt.graph import Function


Command = Callable[..., Any]
Decorator = Callable[[Command], Command]

# ---------------------------------------------------------------------- checks before any work is done


def check_writable(path: Path) -> None:
    """Raise InputError if a file cannot be written."""
    if reason := why_not_writable(path):
        raise InputError(f"cannot write {path}: {reason}")


def check_folder(path: Path) -> None:
    """Raise InputError if a folder cannot be created or written to."""
    if reason := why_not_folder(path):
        raise InputError(f"cannot write to {path}: {reason}")


def write_page(path: Path, text: str) -> None:
    """Write an HTML page."""
    replace_file(path, lambda file: file.write(text.encode()))


def check_sizes(function: Function) -> None:
    """Raise OptionError if a model has symbolic dims without a size, since times are measured at known sizes.

    Unnamed extents count if the command reads inputs from files, which alone can give their size.
    """
    context = click.get_current_context()
    dims, named = list_dims(function), name_batch(function)
    unnamed = []
    if "files" in context.params:
        shapes = {v.name: v.type.shape if isinstance(v.type, TensorType) else None for v in named.inputs}
        unnamed = [name for name, shape in shapes.items() if shape is None or None in shape]
    missing = [
        *([(f"dim{'s' * (len(dims) > 1)} {', '.join(dims)}", [f"--dim {name}=SIZE" for name in dims])] if dims else []),
        *([("the first axes of the inputs, which have no name", ["--batch SIZE"])] if named is not function else []),
        *(
            [
                (
                    f"extents without a name of input{'s' * (len(unnamed) > 1)} {', '.join(unnamed)}",
                    [f"-i {name}=FILE.npy" for name in unnamed],
                )
            ]
            if unnamed
            else []
        ),
    ]
    if missing:
        typed = shlex.join(["xrt", *(context.obj or (context.command.name or "", context.params.get("model", "MODEL")))])
        raise OptionError(
            f"times are measured for inputs of known sizes, and the model leaves open: {'; '.join(what for what, _ in missing)}. "
            f"Give them: {' '.join([typed, *(option for _, options in missing for option in options)])}"
        )


def list_dims(function: Function) -> list[str]:
    """The symbolic dims of the inputs, in order."""
    tensors = [value.type for value in function.inputs if isinstance(value.type, TensorType)]
    return list(dict.fromkeys(dim for type_ in tensors for dim in type_.shape or () if isinstance(dim, str)))


# ---------------------------------------------------------------------- values of options


def parse_check(context: click.Context, option: click.Parameter, text: str | None) -> str | float | None:
    """Parse a share of the calls as a number; the module checks words."""
    try:
        return float(text) if text not in (None, "nan") else text
    except ValueError:
        return text


def parse_dims(texts: tuple[str, ...]) -> dict[str, int]:
    """Parse texts such as ``batch=4``, one for each name."""
    choices = parse_choices(texts)
    for name, sizes in choices.items():
        if len(sizes) > 1:
            raise OptionError(f"--dim gives {name} as {' and as '.join(map(str, sizes))}; only `xrt compile` takes several sizes")
    return {name: sizes[0] for name, sizes in choices.items()}


def parse_choices(texts: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    """Parse texts such as ``batch=4``, several for each name: the distinct sizes in the order of the texts."""
    choices: dict[str, tuple[int, ...]] = {}
    for text in texts:
        name, equals, size = text.partition("=")
        if not equals or not size.isdecimal():
            raise OptionError(f"--dim takes NAME=SIZE, such as batch=4; got {text!r}")
        if len(size) > DIGITS:
            raise OptionError(f"--dim {name}: an extent is at most {LARGEST_EXTENT}; got a number of {len(size)} digits")
        choices[name] = tuple(dict.fromkeys((*choices.get(name, ()), int(size))))
    return choices


def parse_devices(context: click.Context, option: click.Parameter, text: str | None) -> dict[str, str] | None:
    """Parse devices by engine: ``ort=cuda,tvm{opt_level=2}=cpu``."""
    if text is None:
        return None
    try:
        pairs = [one.rpartition("=") for one in split_specs(text)]
        devices = {engine.strip(): device.strip() for engine, _, device in pairs}
        for engine in devices:
            parse_spec(engine)
    except OptionError:
        pairs, devices = [("", "", "")], {"": ""}
    if len(devices) < len(pairs) or not all((*devices, *devices.values())):
        raise OptionError(f"--devices takes ENGINE=DEVICE, each engine once, such as ort=cuda,tvm=cpu; got {text!r}")
    return devices


def parse_memory(context: click.Context, option: click.Parameter, text: str | None) -> int | None:
    """Parse a number of bytes: ``4GB``."""
    count = None if text is None else parse_size(text)
    if text is not None and count is None:
        raise OptionError(f"{option.opts[0]} takes a size such as 500MB or 4GB; got {text!r}")
    return count


def parse_numbers(context: click.Context, option: click.Parameter, text: str | None) -> tuple[int, ...] | None:
    """Parse positive integers: ``1,2,4``."""
    if text is None:
        return None
    parts = [one.strip() for one in text.split(",")]
    if not all(one.isdecimal() and len(one) <= DIGITS and int(one) for one in parts):
        raise OptionError(f"{option.opts[0]} takes positive integers, such as 1,2,4; got {text!r}")
    return tuple(map(int, parts))


def parse_wait(context: click.Context, option: click.Parameter, text: str | None) -> float | None:
    """Parse a time of 0 or more, in seconds: ``60s``, ``20ms``, ``2m`` or ``90``."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|)", (text or "0").strip())
    if match is None:
        raise OptionError(f"{option.opts[0]} takes a time such as 60s or 2m; got {text!r}")
    return None if text is None else float(match[1]) * {"ms": 1e-3, "m": 60}.get(match[2], 1)


def parse_seconds(context: click.Context, option: click.Parameter, text: str | None) -> float | None:
    """Parse a positive time, as `parse_wait` does."""
    seconds = parse_wait(context, option, text)
    if seconds == 0:
        raise OptionError(f"{option.opts[0]} takes a time such as 60s or 2m; got {text!r}")
    return seconds


def parse_share(context: click.Context, option: click.Parameter, text: str | None) -> float | None:
    """Parse a share: ``5%`` or ``0.05``. A number from 1 on needs the sign, since 5 is more likely 5 % than 500 %."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d{1,9}(?:\.\d+)?|\.\d+)\s*(%?)", text.strip())
    share = float(match[1]) / (100 if match[2] else 1) if match else 0.0
    if match is None or (share >= 1 and not match[2]):
        hint = f". Did you mean {share:g}%?" if match else ""
        raise OptionError(f"{option.opts[0]} takes a share such as 1% or 0.01; got {text!r}{hint}")
    return share


# ---------------------------------------------------------------------- options from the schemas


@cache
def _describe(owner: type) -> dict[str, str]:
    """The help of each option: the first sentence of its description."""
    texts = {}
    for entry in list_options(owner):
        sentence = re.split(r"\. |\.$|; None\b", entry.meaning, maxsplit=1)[0].replace('``engine="auto"``', "-e auto")
        sentence = sentence.replace("``max_error``", "--max-error")
        texts[entry.name] = re.sub(r"``(.*?)``", r"\1", sentence).replace(", in seconds", "").replace(", in bytes", "")
    return texts


def derive(owner: type, name: str, *flags: str, kind: str = "", shown: str = "", **attributes: Any) -> Decorator:
    """Derive a command line option from an option of a module or a server: flag, type and help.

    ``kind`` is ``time``, ``size``, ``file``, ``folder`` or ``examples`` for values that the command line spells differently;
    ``shown`` is the help's text for a default that is not a value, and ``example`` is added to the help.
    """
    field = next(field for field in fields(owner) if field.name == name)
    value: Any = field.default
    text = attributes.pop("help", _describe(owner)[name])
    text += f": {attributes.pop('example')}" if "example" in attributes else ""
    text += "; repeatable" if attributes.get("multiple") else ""
    if field.type == "bool":
        attributes = {"is_flag": True, **attributes}
    elif kind == "time":
        attributes = {"callback": parse_seconds, "metavar": "TIME", **attributes}
        text, shown = f"{text}: 60s, 2m", shown or (f"{value:g}s" if value else "")
    elif kind == "size":
        attributes = {"callback": parse_memory, "metavar": "SIZE", **attributes}
        text, shown = f"{text}: 500MB, 4GB", shown or (human_bytes(value) if value else "")
    elif kind in ("file", "folder", "examples"):
        attributes = {"type": click.Path(dir_okay=kind != "file", file_okay=kind != "folder"), **attributes}
        text = f"{text.partition(':')[0]}: FILE.npz, FILE.npy, or a folder of such files" if kind == "examples" else text
    elif field.metadata.get("at_least") is not None and "float" not in field.type:
        attributes = {"type": int, **attributes}
        shown = shown or ("" if value is None or value == 1 else str(value))
    names = flags or (f"--{name.replace('_', '-')}", name)
    return click.option(*names, help=f"{text} [default: {shown}]" if shown else text, **attributes)


ENGINE_NAMES = ("-e", "--engine", "--engines", "engine")
"""The names of the option for engines in every command."""
CORES = "the cores of this process"
_FIRST_ENGINE = f"the first installed of {', '.join(DEFAULT_ENGINES)} that supports the whole model"
add_dims = click.option("--dim", "dims", multiple=True, metavar="NAME=SIZE", help="Size of a symbolic dim: batch=4; repeatable")
add_batch = click.option(
    "--batch", type=click.IntRange(0), metavar="ROWS", help="Size of the first axis of the inputs, also where it has no name"
)
add_json = click.option("--json", "as_json", is_flag=True, help="Print JSON")


def add_engines(text: str, shown: str = _FIRST_ENGINE, **attributes: Any) -> Decorator:
    """Add the option for engines."""
    return click.option(*ENGINE_NAMES, metavar="ENGINES", show_default=shown, help=text, **attributes)


def add_all(*options: Decorator) -> Decorator:
    """Add several options, which the help shows in this order."""

    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


_shared_options = add_all(
    click.option(
        "--device", default="cpu", show_default=True, metavar="DEVICE", help="Device of all engines: cpu, cuda or cuda:N"
    ),
    derive(
        ModuleOptions,
        "devices",
        callback=parse_devices,
        metavar="ENGINE=DEVICE,...",
        help="Devices of single engines: ort=cuda,tvm=cpu",
    ),
    derive(ClusteringOptions, "pins", "--pin", "pins", multiple=True, metavar="PIN"),
    derive(ClusteringOptions, "minimum_nodes"),
    derive(ClusteringOptions, "maximum_nodes"),
    derive(ExecutionOptions, "precision", metavar="NAME"),
    derive(ExecutionOptions, "threads", shown=CORES),
    derive(ModuleOptions, "strict"),
    add_dims,
)
isolation_options = add_all(
    derive(Isolation, "engines", "--isolate", "isolate", metavar="ENGINES"),
    derive(Isolation, "run", "--isolate-run", "isolate_run"),
    derive(Isolation, "time_limit", kind="time", shown="no limit"),
    derive(Isolation, "memory_limit", kind="size", shown="no limit"),
)
input_options = add_all(
    click.option(
        "-i",
        "--input",
        "files",
        multiple=True,
        metavar="[NAME=]FILE",
        help="An input from a file: NAME=FILE.npy, or FILE.npz with one array per input; repeatable",
    ),
    click.option(
        "--seed", default=0, show_default=True, type=click.IntRange(0), help="Seed of the random inputs that replace missing ones"
    ),
)
module_options = add_all(
    add_engines("Engines, first choice first: tvm,ort; auto places by measurement"),
    _shared_options,
    add_batch,
    derive(ModuleOptions, "lock", kind="file"),
    derive(ModuleOptions, "budget", kind="time"),
)
add_tuning_options = add_all(
    add_engines("Engines to choose from: ort,xla", "all that are ready", default="auto"),
    _shared_options,
    isolation_options,
    input_options,
)
add_precision_options = add_all(
    derive(ModuleOptions, "max_error", callback=parse_share, metavar="SHARE", example="1%, 0.01"),
    click.option(
        "--measure",
        type=click.Choice(["relative", "cosine", "top1"]),
        default="relative",
        show_default=True,
        help="Measure of that error: of the norm, of the angle, or the share of rows with another largest element",
    ),
    derive(ModuleOptions, "calibrate", kind="examples"),
    derive(ModuleOptions, "validate", kind="examples", shown="a fifth of --calibrate"),
)


def isolation_keywords(params: Mapping[str, Any]) -> dict[str, Any]:
    """The keyword ``isolate`` from `isolation_options`; empty if none is set."""
    limits = {name: params.get(name) for name in ("time_limit", "memory_limit")}
    if params.get("isolate") is not None:
        return {"isolate": Isolation(tuple(split_specs(params["isolate"])), bool(params.get("isolate_run")), **limits)}
    for name in ("isolate_run", *limits):
        if params.get(name):
            raise OptionError(f"--{name.replace('_', '-')} is for engines in worker processes; name them with --isolate")
    return {}


def module_keywords(params: Mapping[str, Any]) -> dict[str, Any]:
    """XRTModule's keywords from `module_options`, without those that are not set."""
    engines = params["engine"] and split_specs(params["engine"])
    if params.get("budget") is not None and "auto" not in (engines or ()):
        raise OptionError("--budget is the time of a search; pass it with -e auto, or a list with auto in it")
    names = ("minimum_nodes", "maximum_nodes", "precision", "threads", "devices", "dump_subgraph_dir", "check", "lock", "budget")
    keywords = {name: params[name] for name in names if params.get(name) is not None}
    if "," in keywords.get("precision", ""):
        keywords["precision"] = [one.strip() for one in keywords["precision"].split(",")]
    if params["pins"]:
        keywords["pins"] = params["pins"]
    keywords |= isolation_keywords(params)
    return {**keywords, "engine": engines, "device": params["device"], "strict": params["strict"]}
