"""XRTModule: the class."""

from __future__ import annotations

import copy
import os
import sys
from abc import ABCMeta
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from types import FunctionType, TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, cast

from xrt.cache import CompileCache, Signature, open_cache
from xrt.errors import InputError, OptionError, XRTError
from xrt.module.dispatch import NO_MATCH, Call, OutputChecks, bind_io, check_bindable, make_argument_sorter, unpack_outputs
from xrt.module.model_source import TracedGraph, find_front_end, is_graph
from xrt.module.options import add_keywords, parse_options
from xrt.module.programs import Programs, Specialization
from xrt.module.sizes import PaddedValues
from xrt.module.state import Session, StatefulFunctions
from xrt.placement.engine_list import is_auto
from xrt.runtime import inputs

if TYPE_CHECKING:
    from xrt.engines import GraphCompiler, RunOptions
    from xrt.formats.bundle import BundleFile
    from xrt.formats.calibration_table import CalibrationTable
    from xrt.formats.placement_file import ServingConfiguration
    from xrt.graph import Value
    from xrt.module.bundle import SelfTestReport
    from xrt.module.dispatch import IOBinding
    from xrt.module.explain import Explanation, Memory
    from xrt.module.keywords import ModuleKeywords
    from xrt.module.tuning import Objective
    from xrt.partition import Plan
    from xrt.placement import ProgressCallback, TuningResult
    from xrt.placement.auto import Placer
    from xrt.runtime import Profile
    from xrt.verify import FailingSubgraph, Verification
    from xrt.verify.regions import Progress


C = TypeVar("C", bound=type)
_STEPS = ("check_inputs", "specialize")  # public methods that other wrapped methods call


def shorten_tracebacks(cls: C) -> C:
    """Wrap public methods and properties of a class, so that the traceback of an XRTError has at most two frames of XRT."""

    def shorten(method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return method(*args, **kwargs)
            except XRTError as error:
                if os.environ.get("XRT_TRACEBACK") == "full":
                    raise
                raise error.with_traceback(None)  # noqa: B904  # the same error: its cause and context stay

        return call

    for name, member in list(vars(cls).items()):
        # `__call__` is the fast path; code that may fail is in `run_call`.
        if (name.startswith("_") and name != "__init__") or name in _STEPS:
            continue
        if isinstance(member, FunctionType):
            setattr(cls, name, shorten(member))
        elif isinstance(member, property) and member.fget is not None:
            setattr(cls, name, property(shorten(member.fget), member.fset, member.fdel, member.__doc__))
    return cls


def _list_names(fetch: Any) -> tuple[str, ...]:
    """Return the names in the argument ``fetch`` of a call, each once; raises InputError if it is a string."""
    if isinstance(fetch, str):
        raise InputError(f"fetch must be a list of value names; got the string {fetch!r}; pass fetch=[{fetch!r}]")
    return tuple(dict.fromkeys(() if fetch is None else fetch))


@add_keywords
@shorten_tracebacks
class XRTModule(metaclass=ABCMeta):  # noqa: B024  # `TorchModule` is registered as an XRTModule
    """A model on a list of engines, compiled on the first call of each signature and called like a function.

    ``model`` is an `xrt.Graph`, a Function, ONNX as a path, bytes or ModelProto, or a `torch.nn.Module`. ``engine`` is a name, a
    spec (``"tvm{opt_level=2}"``), an instance, a list of these in order of preference, or ``"auto"``: placed by measurement, or
    by the ``lock`` that `xrt lock` has written. The default is the first of ort, openvino, torch, xla and toy that is installed
    and supports the whole model. Unless ``strict``, the reference engine is appended to the list; nodes that are placed on it
    cause one FallbackWarning and are listed by `explain`.

    Further keywords are the fields of `ClusteringOptions` (``pins``, ``minimum_nodes``, ...), of `ExecutionOptions`
    (``precision``, ``threads``) and of `ModuleOptions`; docs/reference/options.md lists them. ``cache`` is a CompileCache, or its
    directory.

    A single output is returned as an array, several as a tuple. A returned array owns its memory, unless the model aliases the
    output to an input. Calls from several threads are safe.

    Raises ModelError for an invalid model, UnknownEngine or EngineUnavailable, OptionError for an unknown keyword,
    DeviceError; a call raises InputError, PlanError, or an EngineError that names the region.
    """

    def __new__(cls, model: Any = None, *args: Any, **options: Any) -> Self:
        """Make a `TorchModule` for a `torch.nn.Module`."""
        if cls is XRTModule and (front_end := find_front_end(model)) is not None:
            return cast("Self", front_end(model, *args, **options))
        return super().__new__(cls)

    def __init__(
        self,
        model: Any,
        engine: str | GraphCompiler | Sequence[str | GraphCompiler] | None = None,
        device: str = "cpu",
        *,
        cache: CompileCache | str | os.PathLike[str] | None = None,
        **options: Unpack[ModuleKeywords],
    ) -> None:
        if "budget" in options and not is_auto(engine):
            raise OptionError("budget= is the time of a search; pass engine='auto', or a list with 'auto' in it")
        settings = parse_options(options)
        store = open_cache(cache)
        # A copy in another process, which may have another working directory, reads the same file.
        path = Path(model).absolute() if isinstance(model, str | os.PathLike) else None
        self.construction = Construction(engine, device, cache, options, path)
        self.programs = Programs(model, engine, device, settings, store)
        self.source, self.sizes = self.programs.source, self.programs.sizes
        self.dispatcher = self.programs.dispatcher
        self._sort_arguments = make_argument_sorter([value.name for value in self.source.inputs])
        self.checks = OutputChecks(settings.check, self.programs.engines.context.threads)
        self.stateful_functions = StatefulFunctions()
        self.bundle: BundleFile | None = None
        self.serving_record: ServingConfiguration | None = None

    # ------------------------------------------------------------------ properties

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The inputs with their types; those of an `xrt.Graph` have no types before the first call."""
        last = self.dispatcher.last
        return last.function.inputs if self.source.is_traced and last else self.source.inputs

    @property
    def outputs(self) -> tuple[Value, ...]:
        """The outputs with their types; empty for an `xrt.Graph` before its first call."""
        last = self.dispatcher.last
        return last.function.outputs if self.source.is_traced and last else self.source.outputs

    @property
    def engines(self) -> tuple[str, ...]:
        """Specs of the engines in order of preference, including the implicit reference engine."""
        return self.programs.engines.specs

    @property
    def threads(self) -> int:
        """The thread budget, shared by all engines."""
        return self.programs.engines.context.threads

    @property
    def plan(self) -> Plan:
        """The Plan of the last call; before the first call, that of the model with its declared types."""
        return self.specialization.plan

    def plan_for(self, *args: Any, **kwargs: Any) -> Plan:
        """Plan for these inputs without compiling; return the Plan."""
        return self.specialize(self.check_inputs(args, kwargs)).plan

    def explain(self) -> Explanation:
        """Explain the plan of the last call: regions, their inputs and outputs, and each node's engine. Prints as text."""
        from xrt.module.explain import explain_module

        return explain_module(self)

    def profile(self) -> Profile:
        """Launch times of the last call's program, over all its calls with ``options=RunOptions(profile=True)``."""
        return replace(self.specialization.program().profile(), threads=self.threads)

    def signatures(self) -> dict[str, Signature]:
        """The cache signature of each region in the program of the last call, by region name."""
        return {region.launch.name: region.signature for region in self.specialization.regions()}

    def memory(self) -> Memory:
        """Memory use of the last call's program: weights, values between regions, each engine. Prints as a table.

        Does not compile; engines report their memory only once the program is compiled.
        """
        return self.specialization.memory()

    @property
    def specialization(self) -> Specialization:
        """The specialization of the last call; before the first call, that of the model with its declared types."""
        return self.dispatcher.last or self.specialize(None)

    # ------------------------------------------------------------------ compile and call

    def compile(self, *examples: Any, **kwargs: Any) -> Plan:
        """Compile without running: for the types of these inputs or, without any, for the declared types. Returns the Plan.

        Raises InputError if examples are needed and none are passed: an `xrt.Graph` is traced for its inputs, and symbolic
        extents need concrete sizes unless one program serves all sizes.
        """
        if not examples and not kwargs:
            self.sizes.check_declared(self.programs)
        build = self.specialize(self.check_inputs(examples, kwargs) if examples or kwargs else None)
        self.programs.compile(build)
        return build.plan

    def __call__(
        self,
        *args: Any,
        fetch: Sequence[str] | None = None,
        out: Any = None,
        options: RunOptions | None = None,
        **kwargs: Any,
    ) -> Any:
        """Run the model on arrays given by position or by input name.

        With ``fetch`` the call returns a dict of these values, which may be intermediate. ``out`` is one caller-owned
        buffer (or None) per output, written to and returned; for a single output it may be passed without a list.
        """
        # Plain calls try the prepared call first. Positional and named inputs together are rare, so they take the slow path.
        if fetch is None and out is None and options is None:
            if not kwargs:
                result = self.dispatcher.call(args)
            elif not args:
                result = self.dispatcher.call(self._sort_arguments(kwargs))
            else:
                result = NO_MATCH
            if result is not NO_MATCH:
                return result
        return self.run_call(args, kwargs, fetch, out, options)

    def bind(self, *args: Any, out: Any = None, **kwargs: Any) -> IOBinding:
        """Bind the arrays of a serving loop: after ``b = m.bind(x)``, ``b()`` runs on the current values of ``x``.

        Inputs are read in place, so arrays must be C-contiguous. Inputs other than arrays are stored as they are. ``out`` has one
        buffer per output (None: allocate one), on the module's device. Every call writes to the same buffers and returns them.
        Compiles immediately. Raises InputError like a call, and for arrays that cannot be bound.
        """
        # A bound call reads the caller's arrays, which have the sizes of the call and not padded ones.
        values = self.check_inputs(args, kwargs, pads=False)
        arguments = inputs.bind(self.source.inputs, args, kwargs)
        check_bindable(self.source.inputs, arguments, values[: len(arguments)])
        build = self.specialize(values)
        bound = bind_io(self.programs.compile(build), build.function, values, out)
        bound.inputs = bound.inputs[: len(arguments)]  # without the size inputs of a padded model
        return bound

    def run_call(self, args: tuple[Any, ...], kwargs: Any, fetch: Any, out: Any, options: RunOptions | None) -> Any:
        """Run a call that no prepared call covers: a new signature, fetches, buffers or options."""
        is_plain = fetch is None and out is None and options is None
        if is_plain and not kwargs and (result := self.dispatcher.call_prepared(args)) is not NO_MATCH:
            return result
        path, device = self.dispatcher.path, self.programs.engines.context.device
        # A call with options or buffers whose inputs match the last prepared call needs no further check of them.
        if fetch is None and not kwargs and path.build is not None and path.fits(args):
            build, program = path.build, path.program
            call = Call.of(args, options, out, build.function, device)
        else:
            # The caller's buffers and the fetched values have the sizes of the call, so such a call is not padded.
            pads = fetch is None and out is None and getattr(options, "out", None) is None
            values = self.check_inputs(args, kwargs, pads=pads)
            build, program = self.specialize(values, _list_names(fetch)), None
            call = self.checks.instrument(Call.of(values, options, out, build.function, device), build)
        if program is None:
            program = self.programs.compile_for_call(build, call.inputs)
        results = build.run(call, program)
        if self.checks.record(call, build):
            self.programs.placer.mark_checked(build.function)
        if build.compiled is not program:  # a region has failed, and its plan was abandoned
            self.dispatcher.forget()
        padded = call.inputs if isinstance(call.inputs, PaddedValues) else None
        if padded is not None:
            results = list(padded.padding.cut(results))
        # A prepared call makes no checks.
        if is_plain and not self.checks.sees_every_call:
            self.dispatcher.prepare(build, call.inputs, None if padded is None else padded.make_path)
        if fetch is None:
            return unpack_outputs(build.function)(results)
        by_name = dict(zip((v.name for v in build.function.outputs), results, strict=True))
        return {name: by_name[name] for name in _list_names(fetch)}

    def check_inputs(self, args: Sequence[Any], kwargs: Any, *, pads: bool = True) -> list[Any]:
        """Return the inputs of a call in order, checked, normalized and padded; ``pads=False`` leaves their sizes unchanged."""
        self.programs.check_open()
        declared, device = self.source.inputs, self.programs.engines.context.device
        return self.sizes.pad(inputs.read(declared, args, kwargs, device), self.programs, pads=pads)

    def specialize(self, values: Any, fetch: tuple[str, ...] = (), place: Placer | None = None) -> Specialization:
        """Look up the specialization for checked inputs, or plan a new one.

        Without ``fetch`` (names of values to return) it also becomes the module's current specialization.
        """
        build = self.programs.find(values, fetch, place)
        if not fetch:
            self.dispatcher.select(build)
        return build

    @property
    def tuned(self) -> TuningResult | None:
        """How the program of the last call was placed by measurement, with all candidates; None if it was not. Prints as text."""
        return self.specialization.tuned

    @property
    def serving(self) -> ServingConfiguration | None:
        """The serving configuration from tuning for throughput; None if the model was not tuned.

        From `tune` of this module, else from its lock or bundle. Without a bundle also from the cache, which stores the results
        of earlier processes for the same model, engines and thread budget.
        """
        from xrt.module.tuning import find_serving_record

        record = find_serving_record(self)
        return None if record is None else record.replace(rows=())

    def tune(
        self,
        *args: Any,
        objective: Objective = "latency",
        budget: float | None = None,
        progress: ProgressCallback | bool | None = None,
        p99: float | None = None,
        batches: Sequence[int] | None = None,
        instances: Sequence[int] | int | None = None,
        batch_dim: str | None = None,
        seed: int | None = None,
        **kwargs: Any,
    ) -> Any:
        """Search again for the best placement for these inputs, or for random ones, within ``budget`` seconds.

        ``objective="latency"`` searches for the plan with the fastest call and returns a TuningResult. The module uses this plan
        from now on, and so do later modules, through the cache, regardless of their budget. ``progress`` is called with the state
        of the search; True shows it, False does not.

        ``objective="throughput"`` searches for the configuration with the most requests per second (a request is one row of the
        inputs) whose 99th percentile latency is at most ``p99`` seconds, and returns a ThroughputResult: the batch size (one of
        ``batches``), the number of concurrent calls (one of ``instances``, which divide the thread budget), and with
        ``engine="auto"`` the plan per batch size. `serving` returns it; `save` and locks store it. ``batch_dim`` names the
        symbolic dim of the batch, if it is not the first extent of all inputs and outputs. ``seed`` is for random inputs.
        In a module with ``max_error``, plans meet the error budget at the sizes at which they were searched.
        """
        from xrt.module.tuning import tune

        throughput = {"p99": p99, "batches": batches, "instances": instances, "batch_dim": batch_dim, "seed": seed}
        return tune(self, args, kwargs, objective, budget, progress, throughput)

    def new_session(self, sizes: Mapping[str, int] | None = None) -> Session:
        """Create a session: separate state that shares this module's weights and executables.

        ``sizes`` sets named extents of the state that no other input has, such as the capacity of a cache. Raises InputError for
        a model without state, DeviceError for a module on a device, because state is in host memory.
        """
        return Session(self, sizes or {})

    # ------------------------------------------------------------------ verification

    def verify(self, *args: Any, inner: bool = True, progress: Progress | None = None, **kwargs: Any) -> Verification:
        """Compare every region with the reference engine on these inputs; with ``inner`` also every value inside.

        Prints as text; true if nothing differs. ``progress`` is called with the number of regions done and their total. Raises
        InputError for inputs that do not fit, EngineError if the model or a region of it does not compile or run.
        """
        from xrt.module.explain import verify

        return verify(self, args, kwargs, inner=inner, progress=progress)

    def bisect(self, *args: Any, progress: Progress | None = None, **kwargs: Any) -> FailingSubgraph | None:
        """Find the smallest part of a region that differs from the reference engine on these inputs; None if none does.

        ``progress`` is called with the number of parts tried and the node count of the smallest so far. `save_case` of
        `xrt.formats.onnx` writes the result to a file.
        """
        from xrt.module.explain import bisect

        return bisect(self, args, kwargs, progress=progress)

    def calibrate(self, batches: Iterable[Any], method: str = "minmax", **parameters: Any) -> CalibrationTable:
        """Record the ranges of the values that quantization may need, over batches of inputs.

        A batch is an array, a list of arrays in the order of the inputs, or a dict of arrays by name. ``method`` is ``"minmax"``,
        ``"moving_average"`` (``momentum=0.9``), ``"entropy"``, ``"percentile"`` (``percentile=99.99``) or ``"mse"``. The table
        identifies values by the nodes that compute them, not by name.

        Raises CalibrationError without batches, and for NaN or infinities; OptionError for an unknown method or parameter.
        """
        from xrt.module.precision import calibrate_module

        return calibrate_module(self, batches, method, parameters)

    def save(
        self,
        path: str | os.PathLike[str],
        *examples: Any,
        example: bool = True,
        **kwargs: Any,
    ) -> None:
        """Write a bundle for `xrt.load`: model, weights, and every program compiled so far, in the engines' compiled forms.

        Compiles for the examples first, if there are any; without examples like `compile`, if nothing is compiled yet.

        The bundle contains one example with its outputs, at most 16 MiB, which `run_self_test` recomputes: the given inputs, else
        those of the bundle that the module was loaded from, else random ones unless the model is nondeterministic.
        ``example=False`` saves none.

        Raises BundleError if the file cannot be written, and the errors of `compile`.
        """
        from xrt.module.bundle import save

        save(self, path, examples, kwargs, example)

    def run_self_test(self) -> SelfTestReport | None:
        """Check the bundle that the module was loaded from, run its example, and compare with the saved outputs.

        Call it before a service reports that it is ready. None if the module was not loaded from a bundle, or the bundle has no
        example (its file is checked anyway).

        Raises SelfTestFailed, with the largest difference, if the file is damaged, the example does not run, or an output differs
        by more than the tolerance of a network.
        """
        from xrt.module.bundle import run_self_test

        return None if self.bundle is None else run_self_test(self.bundle, self)

    # ------------------------------------------------------------------ copies

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the module as its constructor's arguments. Raises TypeError, with advice, if one of them cannot be pickled."""
        model, arguments = _find_model(self), self.construction
        # A cache object holds executables and locks of this process; a directory is shared with the one that unpickles.
        if isinstance(arguments.cache, CompileCache):
            raise TypeError(f"a module with a CompileCache of its own cannot be pickled; give cache= a directory. {ADVICE}")
        # A Function can always be pickled. Errors name the part, because pickle's own errors do not.
        parts = {"model": model if is_graph(model) else None, "engines": arguments.engine, "options": arguments.options}
        for name, part in parts.items():
            if reason := _why_not_picklable(part):
                raise TypeError(f"this module cannot be pickled, since its {name} cannot: {reason}. {ADVICE}")
        return arguments.repeat, (type(self), arguments.path or model)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Create another module with the same arguments and a copy of its graph; a Function is immutable."""
        model = _find_model(self)
        copied: Self = self.construction.repeat(type(self), copy.deepcopy(model, memo) if is_graph(model) else model)
        return copied

    def __copy__(self) -> Self:
        return self.__deepcopy__({})

    def close(self) -> None:
        """Release the programs and close executables without other users. A call in progress ends normally."""
        self.programs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _repr_html_(self) -> str:
        """Draw the plan for a notebook; before the first call, list inputs and engines, because drawing must not plan."""
        from xrt.html.views import render_cell  # only for notebooks

        if self.dispatcher.last is not None:
            return self.explain()._repr_html_()
        values = [(kind, v.name, str(v.type or "")) for kind in ("input", "output") for v in getattr(self, f"{kind}s")]
        table = ("Inputs and outputs", {"": "", "name": "", "type": ""}, values)
        facts = {"engines": ", ".join(self.engines), "threads": str(self.threads), "plan": "made by the first call"}
        return render_cell("summary.html", title=type(self).__name__, facts=facts, tables=[table])

    def __repr__(self) -> str:
        return f"<XRTModule({', '.join(value.name for value in self.inputs)}) on {', '.join(self.engines)}>"


# ---------------------------------------------------------------------- copies

ADVICE = "Save a bundle with m.save(path), and xrt.load it where it is needed"


@dataclass(frozen=True, slots=True)
class Construction:
    """The arguments that a module was created with. A model passed as bytes is not stored, as its Function replaces it."""

    engine: Any
    device: str
    cache: CompileCache | str | os.PathLike[str] | None
    options: Mapping[str, Any]
    path: Path | None
    """Absolute path of the model's file; None for other kinds of models."""

    def repeat(self, kind: Any, model: Any) -> Any:
        """Create another module with these arguments."""
        return kind(model, self.engine, self.device, cache=self.cache, **self.options)


def _find_model(module: XRTModule) -> Any:
    """Return the Function or graph that a module runs; raises TypeError for a module from a bundle."""
    if module.bundle is not None:
        raise TypeError("a module from a bundle cannot be pickled or copied; xrt.load the bundle again where it is needed")
    source = module.source
    return source.graph if isinstance(source, TracedGraph) else source.get_declared_function()


def _why_not_picklable(part: Any) -> str | None:
    """Explain why an argument cannot be pickled, or return None if no obstacle is found.

    Pickle stores functions and classes by name, so these must be importable. For other objects `copy.deepcopy` is tried, which
    uses the same hooks (``__reduce_ex__``) without writing the data.
    """
    members = part.values() if isinstance(part, Mapping) else part if isinstance(part, list | tuple) else (part,)
    for member in members:
        definition = member if isinstance(member, FunctionType | type) else type(member)
        attribute: Any = sys.modules.get(definition.__module__)
        for name in definition.__qualname__.split("."):
            attribute = getattr(attribute, name, None)
        if attribute is not definition and definition is not type(None):
            return f"{definition.__module__}.{definition.__qualname__} is not found by that name"
    try:
        copy.deepcopy(part)
    except Exception as error:  # noqa: BLE001  # a member's __reduce__ may raise anything
        return str(error)
    return None
