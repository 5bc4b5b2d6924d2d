"""Options that several commands share."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import click

from xrt.bench import BenchTarget
from xrt.bench.targets import DIGITS, find_batch_dim, name_batch, set_dims
from xrt.cache import default_cache, parse_size
from xrt.cli.screen import human_bytes
from xrt.engines import ExecutionOptions, parse_spec, split_specs
from xrt.engines.contract.spec import list_options
from xrt.errors import InputError, OptionError
from xrt.formats.bundle import is_bundle, load_model
from xrt.formats.output import why_not_folder, why_not_writable
from xrt.graph import TensorType
from xrt.graph.types import LARGEST_EXTENT
from xrt.module import Isolation, ModuleOptions
from xrt.module.model_source import make_source
from xrt.module.programs import DEFAULT_ENGINES
from xrt.partition import ClusteringOptions
from xrt.placement.records import read_lock, read_shapes

if TYPE_CHECKING:
    from xrt.formats.placement_file import PlacementFile
    from xrt.graph import Function, Type

__all__ = [
    "CORES",
    "DEFAULT_ENGINE",
    "ENGINE_NAMES",
    "add_all",
    "add_batch",
    "add_budget",
    "add_dims",
    "add_engines",
    "add_json",
    "add_locked_dims",
    "add_seed",
    "add_tuning_options",
    "check_folder",
    "check_sizes",
    "check_writable",
    "derive",
    "input_options",
    "is_sized",
    "isolation_keywords",
    "isolation_options",
    "list_dims",
    "load_with_options",
    "load_with_sizes",
    "module_keywords",
    "module_options",
    "parse_check",
    "parse_choices",
    "parse_dims",
    "parse_memory",
    "parse_numbers",
    "parse_seconds",
    "parse_wait",
    "read_locked_dims",
    "set_dims",
    "settle_batch",
]

Command = Callable[..., Any]
Decorator = Callable[[Command], Command]


def load_with_options(text: str) -> Function:
    """Return the model of that path, or the shipped one of that name, with its sizes in braces.

    The cache may know the hashes of a file's weights, or writes them down when the model is compiled; until then the
    Function that was read must be there, and the command keeps it.
    """
    if not os.path.lexists(text):
        return BenchTarget.parse(text).load()
    if is_bundle(text):
        return load_model(text)
    function = make_source(Path(text), default_cache()).get_declared_function()
    if (context := click.get_current_context(silent=True)) is not None:
        context.meta["xrt.model"] = function
    return function


def settle_batch(function: Function, params: dict[str, Any]) -> None:
    """Replace ``--batch`` by the ``--dim`` that it stands for."""
    if (batch := params.get("batch")) is None:
        return
    params["batch"] = None
    if (name := find_batch_dim(function, batch)) is not None:
        params["dims"] = (*params["dims"], f"{name}={batch}")


def load_with_sizes(model: str, params: dict[str, Any]) -> Function:
    """Return the model with the sizes of ``--dim`` and ``--batch``, and for the other dims those of the lockfile of ``--lock``.

    Raises OptionError where both give a size to a dim, and not the same.
    """
    function = load_with_options(model)
    settle_batch(function, params)
    return set_dims(function, add_locked_dims(model, function, parse_dims(params["dims"]), params.get("lock")))


def add_locked_dims(model: str, function: Function, sizes: Mapping[str, int], lock: str | None) -> dict[str, int]:
    """Return the sizes with those of a lockfile; raises OptionError where both give a size to a dim, and not the same."""
    if lock is None:
        return dict(sizes)
    named, found = name_batch(function), read_lock(lock)
    known = list_dims(named)
    locked = {name: size for name, size in read_locked_dims(found).items() if name in known}
    shapes = read_shapes(found, named)  # of a lock whose inputs came from files
    for value in named.inputs:
        declared = value.type.shape if isinstance(value.type, TensorType) else None
        pairs = zip(declared or (), shapes.get(value.name, ()), strict=False)
        locked |= {name: size for name, size in pairs if isinstance(name, str) and name not in locked}
    if differing := [name for name in locked if sizes.get(name, locked[name]) != locked[name]]:
        was, asked = (" ".join(f"--dim {name}={found[name]}" for name in differing) for found in (locked, sizes))
        raise OptionError(
            f"the lock {lock} is for {was}, and {asked} was given; leave that out, "
            f"or write another lock: xrt lock {model} {asked} -o FILE"
        )
    return {**locked, **sizes}


def read_locked_dims(lock: PlacementFile) -> dict[str, int]:
    """Return the sizes of symbolic dims for which `xrt lock` has written a lockfile; raises OptionError for a damaged list."""
    return parse_dims(tuple(filter(None, lock.model.get("dims", "").split(","))))


def check_writable(target: Path) -> None:
    """Raise InputError, before any work is done, where a file cannot be written."""
    if reason := why_not_writable(target):
        raise InputError(f"cannot write {target}: {reason}")


def check_sizes(function: Function) -> None:
    """Raise OptionError where something is to be measured and symbolic dims have no size; nothing could be measured.

    An extent without a name counts where the command takes files of inputs: nothing else gives its size.
    """
    context = click.get_current_context()
    opened = {value.name: value.type for value in function.inputs if not is_sized(value.type)}
    dims = list_dims(function)
    named = name_batch(function)
    has_batch = named is not function
    unnamed = [
        value.name for value in named.inputs if not isinstance(value.type, TensorType) or None in (value.type.shape or (None,))
    ]
    unnamed = unnamed if "files" in context.params else []
    if not dims and not has_batch and not (opened and "files" in context.params):
        return
    added = [f"--dim {name}=SIZE" for name in dims] + ["--batch SIZE"] * has_batch
    added += [f"-i {name}=FILE.npy" for name in unnamed]
    what = [f"dim{'s' * (len(dims) != 1)} {', '.join(dims)}"] * bool(dims)
    what += ["the first axes of the inputs, which have no name"] * has_batch
    what += [f"extents without a name of input{'s' * (len(unnamed) != 1)} {', '.join(unnamed)}"] * bool(unnamed)
    typed = shlex.join(["xrt", *(context.obj or (context.command.name or "", context.params.get("model", "MODEL")))])
    raise OptionError(
        f"times are measured for inputs of known sizes, and the model leaves open: {'; '.join(what)}. "
        f"Give them: {typed} {' '.join(added)}"
    )


def is_sized(type_: Type | None) -> bool:
    """Whether all extents of a type are known."""
    return isinstance(type_, TensorType) and type_.is_static


def list_dims(function: Function) -> list[str]:
    """Return the names of the symbolic dims of the inputs, in their order."""
    tensors = [value.type for value in function.inputs if isinstance(value.type, TensorType)]
    return list(dict.fromkeys(dim for type_ in tensors for dim in type_.shape or () if isinstance(dim, str)))


def check_folder(target: Path) -> None:
    """Raise InputError, before any work is done, where files cannot be written to a folder, which is made if need be."""
    if reason := why_not_folder(target):
        raise InputError(f"cannot write to {target}: {reason}")


def parse_check(context: click.Context, option: click.Parameter, text: str | None) -> str | float | None:
    """Return a part of the calls as a number, and a word as it is; the module says whether it is one that it knows."""
    try:
        return float(text) if text not in (None, "nan") else text
    except ValueError:
        return text


def parse_dims(texts: tuple[str, ...]) -> dict[str, int]:
    """Return sizes by name from texts such as ``batch=4``; raises OptionError for another form, and two sizes of one name."""
    choices = parse_choices(texts)
    for name, sizes in choices.items():
        if len(sizes) > 1:
            raise OptionError(f"--dim gives {name} as {' and as '.join(map(str, sizes))}; only `xrt compile` takes several sizes")
    return {name: sizes[0] for name, sizes in choices.items()}


def parse_choices(texts: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    """Return all sizes of each name, each once, in the order in which they are given; raises OptionError for another form."""
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
    """Return devices by engine from a text such as ``ort=cuda,tvm{opt_level=2}=cpu``; raises OptionError for another form."""
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
    """Return the bytes that a text such as ``4GB`` spells; raises OptionError where it spells none."""
    count = None if text is None else parse_size(text)
    if text is not None and count is None:
        raise OptionError(f"{option.opts[0]} takes a size such as 500MB or 4GB; got {text!r}")
    return count


def parse_numbers(context: click.Context, option: click.Parameter, text: str | None) -> tuple[int, ...] | None:
    """Return the integers of a text such as ``1,2,4``; raises OptionError for another form."""
    if text is None:
        return None
    parts = [one.strip() for one in text.split(",")]
    if not all(one.isdecimal() and len(one) <= DIGITS and int(one) for one in parts):
        raise OptionError(f"{option.opts[0]} takes positive integers, such as 1,2,4; got {text!r}")
    return tuple(map(int, parts))


@overload
def parse_seconds(context: click.Context, option: click.Parameter, text: str) -> float: ...
@overload
def parse_seconds(context: click.Context, option: click.Parameter, text: None) -> None: ...
def parse_seconds(context: click.Context, option: click.Parameter, text: str | None) -> float | None:
    """Return seconds from a text such as ``60s``, ``20ms``, ``2m`` or ``90``, or None from None; raises OptionError otherwise."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|)", text.strip())
    if match is None or not float(match[1]):
        raise OptionError(f"{option.opts[0]} takes a time such as 60s or 2m; got {text!r}")
    return float(match[1]) * {"ms": 1e-3, "m": 60}.get(match[2], 1)


def parse_wait(context: click.Context, option: click.Parameter, text: str | None) -> float | None:
    """Return seconds as `parse_seconds` does, of which there may be none."""
    return 0.0 if text is not None and re.fullmatch(r"0+(\.0+)?(ms|s|m|)", text.strip()) else parse_seconds(context, option, text)


# ---------------------------------------------------------------------- options from the schemas


@cache
def _describe(owner: type) -> dict[str, str]:
    """The first sentence of the description of each option, as help of a command."""
    texts = {}
    for entry in list_options(owner):
        sentence = re.split(r"\. |\.$|; None\b", entry.meaning, maxsplit=1)[0].replace('``engine="auto"``', "-e auto")
        sentence = sentence.replace("``max_error``", "--max-error")
        texts[entry.name] = re.sub(r"``(.*?)``", r"\1", sentence).replace(", in seconds", "").replace(", in bytes", "")
    return texts


def derive(owner: type, name: str, *flags: str, kind: str = "", shown: str = "", **attributes: Any) -> Decorator:
    """The option of a command for an option of a module or a server: its flag, type and help come from the declaration.

    ``kind`` is ``time``, ``size``, ``file``, ``folder`` or ``examples`` where the command line has a spelling of its own;
    ``shown`` is the text for a default that is not a value, and ``example`` is added to the help.
    """
    one = next(field for field in fields(owner) if field.name == name)
    text = attributes.pop("help", _describe(owner)[name])
    text += f": {attributes.pop('example')}" if "example" in attributes else ""
    value: Any = one.default
    text += "; repeatable" if attributes.get("multiple") else ""
    if one.type == "bool":
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
    elif one.metadata.get("at_least") is not None and "float" not in one.type:
        attributes = {"type": int, **attributes}
        shown = shown or ("" if value is None or value == 1 else str(value))
    names = flags or (f"--{name.replace('_', '-')}", name)
    return click.option(*names, help=f"{text} [default: {shown}]" if shown else text, **attributes)


ENGINE_NAMES = ("-e", "--engine", "--engines", "engine")
"""How each command that takes engines calls the option."""
DEFAULT_ENGINE = f"the first installed of {', '.join(DEFAULT_ENGINES)} that supports the whole model"
CORES = "the cores of this process"
add_dims = click.option("--dim", "dims", multiple=True, metavar="NAME=SIZE", help="Size of a symbolic dim: batch=4; repeatable")
"""Adds the option that gives symbolic dims a size: ``dims``."""
add_batch = click.option(
    "--batch", type=click.IntRange(0), metavar="ROWS", help="Size of the first axis of the inputs, also where it has no name"
)
"""Adds the option that gives the first axes of the inputs a size: ``batch``."""
add_budget = derive(ModuleOptions, "budget", kind="time")
add_json = click.option("--json", "as_json", is_flag=True, help="Print JSON")
add_seed = click.option(
    "--seed", default=0, show_default=True, type=click.IntRange(0), help="Seed of the random inputs that replace missing ones"
)


def add_engines(text: str, shown: str = DEFAULT_ENGINE, **attributes: Any) -> Decorator:
    """Add the option that names the engines: ``engine``."""
    return click.option(*ENGINE_NAMES, metavar="ENGINES", show_default=shown, help=text, **attributes)


def add_all(*options: Decorator) -> Decorator:
    """Add several options, which a command's help shows in this order."""

    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


_SHARED = (
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
"""Adds the options of `xrt.Isolation`."""
input_options = add_all(
    click.option(
        "-i",
        "--input",
        "files",
        multiple=True,
        metavar="[NAME=]FILE",
        help="An input from a file: NAME=FILE.npy, or FILE.npz with one array per input; repeatable",
    ),
    add_seed,
)
"""Adds the options that say what a model is run on: ``files`` and ``seed``."""
module_options = add_all(
    add_engines("Engines, first choice first: tvm,ort; auto places by measurement"),
    *_SHARED,
    add_batch,
    derive(ModuleOptions, "lock", kind="file"),
    add_budget,
)
"""Adds the options that become keywords of XRTModule."""
add_tuning_options = add_all(
    add_engines("Engines to choose from: ort,xla", "all that are ready", default="auto"),
    *_SHARED,
    isolation_options,
    input_options,
)
"""Adds the options of a module whose nodes are placed by measurement."""


def isolation_keywords(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keyword of XRTModule and `xrt.load` from `isolation_options`; empty without them."""
    limits = {name: params.get(name) for name in ("time_limit", "memory_limit")}
    if params.get("isolate") is not None:
        return {"isolate": Isolation(tuple(split_specs(params["isolate"])), bool(params.get("isolate_run")), **limits)}
    for name in ("isolate_run", *limits):
        if params.get(name):
            raise OptionError(f"--{name.replace('_', '-')} is for engines in worker processes; name them with --isolate")
    return {}


def module_keywords(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return XRTModule's keywords from what `module_options` collected; options that were not set are left out.

    Raises OptionError for a budget where no engine is chosen by measurement.
    """
    engines = params["engine"] and split_specs(params["engine"])
    if params.get("budget") is not None and "auto" not in (engines or ()):
        raise OptionError("--budget is the time of a search; pass it with -e auto, or a list with auto in it")
    values = {name: params[name] for name in ("minimum_nodes", "maximum_nodes", "precision", "threads")}
    values |= {name: params.get(name) for name in ("devices", "dump_subgraph_dir", "check", "lock", "budget")}
    chosen = {name: value for name, value in values.items() if value is not None}
    if "," in chosen.get("precision", ""):
        chosen["precision"] = [one.strip() for one in chosen["precision"].split(",")]
    if params["pins"]:
        chosen["pins"] = params["pins"]
    chosen |= isolation_keywords(params)
    return {**chosen, "engine": engines, "device": params["device"], "strict": params["strict"]}
