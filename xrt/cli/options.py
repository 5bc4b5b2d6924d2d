"""Options that several commands share."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import click

from xrt.bench import BenchTarget
from xrt.bench.targets import DIGITS, find_batch_dim, name_batch, set_dims
from xrt.cache import default_cache
from xrt.cache.disk.config import parse_size
from xrt.engines import parse_spec, split_specs
from xrt.errors import InputError, OptionError
from xrt.formats.bundle import is_bundle, load_model
from xrt.formats.output import why_not_folder, why_not_writable
from xrt.graph import TensorType
from xrt.graph.types import LARGEST_EXTENT
from xrt.module import Isolation
from xrt.module.model_source import make_source
from xrt.module.programs import DEFAULT_ENGINES
from xrt.placement.lockfile import read_lock, read_shapes

if TYPE_CHECKING:
    from xrt.formats.placement_file import PlacementFile
    from xrt.graph import Function, Type

__all__ = [
    "DEFAULT_ENGINE",
    "ENGINE_NAMES",
    "add_batch",
    "add_dims",
    "add_engines",
    "add_locked_dims",
    "add_tuning_options",
    "check_folder",
    "check_sizes",
    "check_writable",
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
    "parse_seconds",
    "parse_wait",
    "read_locked_dims",
    "set_dims",
    "settle_batch",
]

Command = Callable[..., Any]


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


def settle_batch(function: Function, given: dict[str, Any]) -> None:
    """Replace ``--batch`` by the ``--dim`` that it stands for."""
    if (batch := given.get("batch")) is None:
        return
    given["batch"] = None
    if (name := find_batch_dim(function, batch)) is not None:
        given["dims"] = (*given["dims"], f"{name}={batch}")


def load_with_sizes(model: str, given: dict[str, Any]) -> Function:
    """Return the model with the sizes of ``--dim`` and ``--batch``, and for the other dims those of the lockfile of ``--lock``.

    Raises OptionError where both give a size to a dim, and not the same.
    """
    function = load_with_options(model)
    settle_batch(function, given)
    return set_dims(function, add_locked_dims(model, function, parse_dims(given["dims"]), given.get("lock")))


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


def parse_dims(given: tuple[str, ...]) -> dict[str, int]:
    """Return sizes by name from texts such as ``batch=4``; raises OptionError for another form, and two sizes of one name."""
    choices = parse_choices(given)
    for name, sizes in choices.items():
        if len(sizes) > 1:
            raise OptionError(f"--dim gives {name} as {' and as '.join(map(str, sizes))}; only `xrt compile` takes several sizes")
    return {name: sizes[0] for name, sizes in choices.items()}


def parse_choices(given: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    """Return all sizes of each name, each once, in the order in which they are given; raises OptionError for another form."""
    choices: dict[str, tuple[int, ...]] = {}
    for text in given:
        name, equals, size = text.partition("=")
        if not equals or not size.isdecimal():
            raise OptionError(f"--dim takes NAME=SIZE, such as batch=4; got {text!r}")
        if len(size) > DIGITS:
            raise OptionError(f"--dim {name}: an extent is at most {LARGEST_EXTENT}; got a number of {len(size)} digits")
        choices[name] = tuple(dict.fromkeys((*choices.get(name, ()), int(size))))
    return choices


def _checked_spec(text: str) -> str:
    """Return the text; raises OptionError for one that is no spec."""
    parse_spec(text)
    return text


def parse_devices(context: click.Context, option: click.Parameter, text: str | None) -> dict[str, str] | None:
    """Return devices by engine from a text such as ``ort=cuda,tvm{opt_level=2}=cpu``; raises OptionError for another form."""
    if text is None:
        return None
    try:
        pairs = [one.rpartition("=") for one in split_specs(text)]
        found = {_checked_spec(engine.strip()): device.strip() for engine, _, device in pairs}
    except OptionError:
        pairs, found = [("", "", "")], {"": ""}
    if len(found) < len(pairs) or not all((*found, *found.values())):
        raise OptionError(f"--devices takes ENGINE=DEVICE, each engine once, such as ort=cuda,tvm=cpu; got {text!r}")
    return found


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


ENGINE_NAMES = ("-e", "--engine", "--engines", "engine")
"""How each command that takes engines calls the option."""
DEFAULT_ENGINE = f"the first installed of {', '.join(DEFAULT_ENGINES)} that supports the whole model"
_DIM = click.option("--dim", "dims", multiple=True, metavar="NAME=SIZE", help="Size of a symbolic dim: batch=4; repeatable")
_BATCH = click.option(
    "--batch",
    type=click.IntRange(0),
    metavar="ROWS",
    help="Size of the first axis of the inputs, also where it has no name",
)
_SHARED = (
    click.option(
        *ENGINE_NAMES,
        metavar="ENGINES",
        show_default=DEFAULT_ENGINE,
        help="Engines, first choice first: tvm,ort; auto places by measurement",
    ),
    click.option(
        "--device", default="cpu", show_default=True, metavar="DEVICE", help="Device of all engines: cpu, cuda or cuda:N"
    ),
    click.option(
        "--devices", callback=parse_devices, metavar="ENGINE=DEVICE,...", help="Devices of single engines: ort=cuda,tvm=cpu"
    ),
    click.option(
        "--pin",
        "pins",
        multiple=True,
        metavar="PIN",
        help="Force or forbid an engine: 'Conv|Gemm=ort', 'Softmax!=tvm', 'name:/layer1/*=ort'; repeatable",
    ),
    click.option("--minimum-nodes", type=int, help="Dissolve regions of fewer nodes"),
    click.option("--maximum-nodes", type=int, help="Split regions of more nodes"),
    click.option(
        "--precision",
        metavar="NAME",
        help="Precision of the arithmetic: fp32, fp16, bf16 or int8; with --max-error several: bf16,int8,int4,Softmax=fp32",
    ),
    click.option("--threads", type=int, help="Thread budget of all engines [default: the cores of this process]"),
    click.option("--strict", is_flag=True, help="No fallback to toy: a node that no listed engine supports is an error"),
    _DIM,
)


_INPUTS = (
    click.option(
        "-i",
        "--input",
        "files",
        multiple=True,
        metavar="[NAME=]FILE",
        help="An input from a file: NAME=FILE.npy, or FILE.npz with one array per input; repeatable",
    ),
    click.option(
        "--seed",
        default=0,
        show_default=True,
        type=click.IntRange(0),
        help="Seed of the random inputs that replace missing ones",
    ),
)


def parse_memory(context: click.Context, option: click.Parameter, text: str | None) -> int | None:
    """Return the bytes that a text such as ``4GB`` spells; raises OptionError where it spells none."""
    found = None if text is None else parse_size(text)
    if text is not None and found is None:
        raise OptionError(f"{option.opts[0]} takes a size such as 500MB or 4GB; got {text!r}")
    return found


_ISOLATION = (
    click.option("--isolate", metavar="ENGINES", help="Engines that compile in a worker process: tvm,ort, or all"),
    click.option("--isolate-run", is_flag=True, help="These engines also run there"),
    click.option(
        "--time-limit",
        callback=parse_seconds,
        metavar="TIME",
        help="Time of each compile and each run in a worker process: 60s, 2m [default: no limit]",
    ),
    click.option(
        "--memory-limit",
        callback=parse_memory,
        metavar="SIZE",
        help="Address space of a worker process: 500MB, 4GB [default: no limit]",
    ),
)


def isolation_options(command: Command) -> Command:
    """Add the options of `xrt.Isolation`: ``isolate``, ``isolate_run`` and the limits."""
    for option in reversed(_ISOLATION):
        command = option(command)
    return command


def isolation_keywords(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keywords of XRTModule and `xrt.load` from what `isolation_options` collected; empty without the options."""
    limits = {name: given.get(name) for name in ("time_limit", "memory_limit")}
    if given.get("isolate") is not None:
        return {"isolate": Isolation(tuple(split_specs(given["isolate"])), bool(given.get("isolate_run")), **limits)}
    for name in ("isolate_run", *limits):
        if given.get(name):
            raise OptionError(f"--{name.replace('_', '-')} is for engines in worker processes; name them with --isolate")
    return {}


def input_options(command: Command) -> Command:
    """Add the options that say what a model is run on: ``files`` and ``seed``."""
    for option in reversed(_INPUTS):
        command = option(command)
    return command


def add_dims(command: Command) -> Command:
    """Add the option that gives symbolic dims a size: ``dims``."""
    return _DIM(command)


def add_batch(command: Command) -> Command:
    """Add the option that gives the first axes of the inputs a size: ``batch``."""
    return _BATCH(command)


def add_engines(command: Command) -> Command:
    """Add the option that names the engines: ``engine``."""
    return _SHARED[0](command)


def module_options(command: Command) -> Command:
    """Add the options that become keywords of XRTModule."""
    for option in reversed((*_SHARED, _BATCH, *_AUTO)):
        command = option(command)
    return command


_ENGINES = click.option(
    *ENGINE_NAMES,
    default="auto",
    metavar="ENGINES",
    show_default="all that are ready",
    help="Engines to choose from: ort,xla",
)


_AUTO = (
    click.option("--lock", type=click.Path(dir_okay=False), help="With -e auto: use the plan of this lockfile, do not measure"),
    click.option(
        "--budget", callback=parse_seconds, metavar="TIME", help="With -e auto: time of the search: 60s, 2m [default: 20s]"
    ),
)


def add_tuning_options(command: Command) -> Command:
    """Add the options of a module whose nodes are placed by measurement."""
    for option in reversed((_ENGINES, *_SHARED[1:])):
        command = option(command)
    return command


def module_keywords(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return XRTModule's keywords from what `module_options` collected; what was not given is left out.

    Raises OptionError for a budget where no engine is chosen by measurement.
    """
    engines = given["engine"] and split_specs(given["engine"])
    if given.get("budget") is not None and "auto" not in (engines or ()):
        raise OptionError("--budget is the time of a search; pass it with -e auto, or a list with auto in it")
    kept = {name: given[name] for name in ("minimum_nodes", "maximum_nodes", "precision", "threads")}
    kept |= {name: given.get(name) for name in ("devices", "dump_subgraph_dir", "check", "lock", "budget")}
    chosen = {name: value for name, value in kept.items() if value is not None}
    if "," in chosen.get("precision", ""):
        chosen["precision"] = [one.strip() for one in chosen["precision"].split(",")]
    if given["pins"]:
        chosen["pins"] = given["pins"]
    chosen |= isolation_keywords(given)
    return {**chosen, "engine": engines, "device": given["device"], "strict": given["strict"]}
