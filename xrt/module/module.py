"""XRTModule: a model and its engines, called like a function."""

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
from xrt.errors import InputError, XRTError
from xrt.module.dispatch import NO_MATCH, Call, bind_io, check_bindable, unpack_outputs
from xrt.module.engines import check_budget
from xrt.module.model_source import TracedGraph, is_graph
from xrt.module.options import add_keywords, parse_options
from xrt.module.programs import Programs, Specialization
from xrt.module.sizes import PaddedValues
from xrt.module.state import Session, StatefulFunctions
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
    from xrt.runtime import Profile
    from xrt.verify import FailingSubgraph, Verification
    from xrt.verify.regions import Progress


def find_front_end(model: object) -> type | None:
    """Return the class `TorchModule` if the model is a `torch.nn.Module`, else None. Does not import PyTorch."""
    kind = getattr(getattr(sys.modules.get("torch"), "nn", None), "Module", None)
    if not isinstance(kind, type) or not isinstance(model, kind):
        return None
    from xrt.frontends.torch.module import TorchModule

    return TorchModule


C = TypeVar("C", bound=type)


def shorten_tracebacks(cls: C) -> C:
    """Wrap the public methods and properties of a class, so that tracebacks of XRTErrors have at most two frames of XRT."""

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
        # `__call__` must be fast. What may fail is in `run_call`, which is wrapped.
        if name.startswith("_") and name != "__init__":
            continue
        if isinstance(member, FunctionType):
            setattr(cls, name, shorten(member))
        elif isinstance(member, property) and member.fget is not None:
            setattr(cls, name, property(shorten(member.fget), member.fset, member.fdel, member.__doc__))
    return cls


def _list_names(fetch: Any) -> tuple[str, ...]:
    """Return the names in the argument ``fetch`` of a call without duplicates. Raises InputError for a string."""
    if isinstance(fetch, str):
        raise InputError(f"fetch must be a list of value names; got the string {fetch!r}; pass fetch=[{fetch!r}]")
    return tuple(dict.fromkeys(fetch))


@add_keywords
@shorten_tracebacks
class XRTModule(metaclass=ABCMeta):  # noqa: B024  # `TorchModule` is registered as an XRTModule
    """A model on a list of engines, called like a function. It is compiled by the first call with new input types.

    ``model`` is an `xrt.Graph`, a Function, ONNX as a path, bytes or ModelProto, or a `torch.nn.Module`. ``engine`` is a name, a
    spec (``"tvm{opt_level=2}"``), an instance, or a list of these in order of preference. ``"auto"`` places the model by
    measurement, or as in the lockfile ``lock``. The default is the first of ort, openvino, torch, xla and toy that is installed
    and supports the whole model. Unless ``strict``, the reference engine is appended to the list. Nodes that are placed on it
    cause one FallbackWarning, and `explain` lists them.

    Further keywords are the fields of `ClusteringOptions` (``pins``, ``minimum_nodes``, ...), of `ExecutionOptions`
    (``precision``, ``threads``) and of `ModuleOptions`; docs/reference/options.md lists them. ``cache`` is a CompileCache, or its
    directory.

    A single output is returned as an array, several as a tuple. A returned array owns its memory, unless the model aliases the
    output to an input. Calls from several threads are safe.

    Raises ModelError for an invalid model, UnknownEngine or EngineUnavailable, OptionError for an unknown keyword,
    DeviceError; a call raises InputError, PlanError, or an EngineError that names the region.
    """

    def __new__(cls, model: Any = None, *args: Any, **options: Any) -> Self:
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
        settings = parse_options(options)
        if "budget" in options:
            check_budget(engine)
        store = open_cache(cache)
        # Absolute, because a pickled module may be loaded by a process with another working directory.
        path = Path(model).absolute() if isinstance(model, str | os.PathLike) else None
        self.construction = Construction(engine, device, cache, options, path)
        self.programs = Programs(model, engine, device, settings, store)
        self.source, self.sizes = self.programs.source, self.programs.sizes
        self.dispatcher, self.checks = self.programs.dispatcher, self.programs.checks
        self.stateful_functions = StatefulFunctions()
        self.bundle: BundleFile | None = None
        self.serving_record: ServingConfiguration | None = None

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The inputs with their types. Before the first call, the inputs of an `xrt.Graph` have no types."""
        last = self.dispatcher.last
        return last.function.inputs if self.source.is_traced and last else self.source.inputs

    @property
    def outputs(self) -> tuple[Value, ...]:
        """The outputs with their types. An `xrt.Graph` has none before its first call."""
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
        """The Plan of the last call. Before the first call, the plan for the declared types of the model."""
        return self.specialization.plan

    def plan_for(self, *args: Any, **kwargs: Any) -> Plan:
        """Plan for these inputs without compiling."""
        return self.programs.specialize(self.programs.check_inputs(args, kwargs)).plan

    def explain(self) -> Explanation:
        """Explain the plan of the last call: its regions, and the reason for each node's engine. Prints as text."""
        from xrt.module.explain import explain_module

        return explain_module(self)

    def profile(self) -> Profile:
        """Report the launch times of the last call's program, over its calls with ``options=RunOptions(profile=True)``."""
        return replace(self.specialization.program().profile(), threads=self.threads)

    def signatures(self) -> dict[str, Signature]:
        """Return the cache signature of each region of the last call's plan, by region name."""
        return {region.launch.name: region.signature for region in self.specialization.regions()}

    def memory(self) -> Memory:
        """Report the memory of the last call's program: weights, values between regions, each engine. Prints as a table.

        It does not compile. Engines report their memory only after the compile.
        """
        return self.specialization.memory()

    @property
    def specialization(self) -> Specialization:
        """The specialization of the last call. Before the first call, the one for the declared types of the model."""
        return self.dispatcher.last or self.programs.specialize(None)

    def compile(self, *examples: Any, **kwargs: Any) -> Plan:
        """Compile for the types of these inputs, or for the declared types if there are none. Returns the Plan.

        Without inputs, raises InputError if the model is an `xrt.Graph`, which is traced for them, or if it has symbolic dims and
        no single program serves all their sizes.
        """
        if not examples and not kwargs:
            self.sizes.check_declared(self.programs)
        build = self.programs.specialize(self.programs.check_inputs(examples, kwargs) if examples or kwargs else None)
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
        """Run the model on arrays, passed by position or by input name.

        ``fetch`` lists names of values, also intermediate ones, which the call returns as a dict. ``out`` has a buffer of the
        caller, or None, for each output; outputs are written to these buffers, which are returned. The list may be omitted for a
        single output.
        """
        # Plain calls first try the prepared call. Inputs by position and by name in one call are rare, and not prepared.
        if fetch is None and out is None and options is None:
            if not kwargs:
                result = self.dispatcher.call(args)
            elif not args:
                result = self.dispatcher.call(self.dispatcher.sort_arguments(kwargs))
            else:
                result = NO_MATCH
            if result is not NO_MATCH:
                return result
        return self.run_call(args, kwargs, fetch, out, options)

    def bind(self, *args: Any, out: Any = None, **kwargs: Any) -> IOBinding:
        """Bind the arrays of a serving loop: after ``b = m.bind(x)``, ``b()`` runs on the current values of ``x``.

        Inputs are read in place, so arrays must be C-contiguous. ``out`` has a buffer on the module's device for each output;
        None allocates one. Every call writes to the same buffers and returns them. This method compiles if necessary. Raises
        InputError like a call, and for arrays that cannot be bound.
        """
        # A bound call reads the caller's arrays, which are not padded.
        values = self.programs.check_inputs(args, kwargs, pads=False)
        arguments = inputs.bind(self.source.inputs, args, kwargs)
        check_bindable(self.source.inputs, arguments, values[: len(arguments)])
        build = self.programs.specialize(values)
        bound = bind_io(self.programs.compile(build), build.function, values, out)
        bound.inputs = bound.inputs[: len(arguments)]  # a padded model has sizes as further inputs
        return bound

    def run_call(self, args: tuple[Any, ...], kwargs: Any, fetch: Any, out: Any, options: RunOptions | None) -> Any:
        """Run a call that is not prepared: with new input types, fetched values, buffers or options."""
        is_plain = fetch is None and out is None and options is None
        if is_plain and not kwargs and (result := self.dispatcher.call_prepared(args)) is not NO_MATCH:
            return result
        names = () if fetch is None else _list_names(fetch)
        path, device = self.dispatcher.path, self.programs.engines.context.device
        # If the last prepared call accepts the inputs, they need no other check.
        if fetch is None and not kwargs and path.build is not None and path.accepts(args):
            build, program = path.build, path.program
            call = Call.create(args, options, out, build.function, device)
        else:
            # A call with buffers or fetched values is not padded, because these have the sizes of the call.
            pads = fetch is None and out is None and getattr(options, "out", None) is None
            values = self.programs.check_inputs(args, kwargs, pads=pads)
            build, program = self.programs.specialize(values, names), None  # the program is compiled below
            call = self.checks.instrument(Call.create(values, options, out, build.function, device), build)
        if program is None:
            program = self.programs.compile_for_call(build, call.inputs)
        results = build.run(call, program)
        if self.checks.record(call, build):
            self.programs.placer.mark_checked(build.function)
        if build.compiled is not program:  # a region has failed, so the plan has changed
            self.dispatcher.forget()
        padded = call.inputs if isinstance(call.inputs, PaddedValues) else None
        if padded is not None:
            results = list(padded.padding.cut(results))
        if is_plain and not self.checks.may_check_any_call:
            self.dispatcher.prepare(build, call.inputs, None if padded is None else padded.make_path)
        if fetch is None:
            return unpack_outputs(build.function)(results)
        by_name = dict(zip((v.name for v in build.function.outputs), results, strict=True))
        return {name: by_name[name] for name in names}

    @property
    def tuned(self) -> TuningResult | None:
        """The measurements that chose the plan of the last call; None if it was not placed by measurement. Prints as text."""
        return self.specialization.tuned

    @property
    def serving(self) -> ServingConfiguration | None:
        """The serving configuration that tuning for throughput has found; None if the model was not tuned.

        It comes from `tune` of this module, else from its lockfile or bundle. Without a bundle it may also come from the cache,
        where earlier processes stored it for the same model, engines and thread budget.
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

        ``objective="latency"`` searches for the plan with the fastest call and returns a TuningResult. From now on, this module
        and, through the cache, later modules use this plan. ``progress`` is called with the state of the search; True shows the
        state, False does not.

        ``objective="throughput"`` searches for the serving configuration with the most requests per second. A request is one row
        of the inputs, and 99 % of the requests must finish within ``p99`` seconds. Returns a ThroughputResult: the batch size
        (one of ``batches``), the number of concurrent calls (one of ``instances``, which share the thread budget), and with
        ``engine="auto"`` a plan for each batch size. `serving` returns it; `save` and lockfiles store it. ``batch_dim`` names the
        symbolic dim of the batch, if it is not the first dim of all inputs and outputs. ``seed`` is for random inputs. With
        ``max_error``, plans meet the error budget at the sizes at which they were searched.
        """
        from xrt.module.tuning import tune

        throughput = {"p99": p99, "batches": batches, "instances": instances, "batch_dim": batch_dim, "seed": seed}
        return tune(self, args, kwargs, objective, budget, progress, throughput)

    def new_session(self, sizes: Mapping[str, int] | None = None) -> Session:
        """Create a session, which has its own state and shares this module's weights and executables.

        ``sizes`` has the sizes of the state's symbolic dims that no other input has, such as the capacity of a cache. Raises
        InputError for a model without state, DeviceError for a module on a device, because state is in host memory.
        """
        return Session(self, sizes or {})

    def verify(self, *args: Any, inner: bool = True, progress: Progress | None = None, **kwargs: Any) -> Verification:
        """Compare the outputs of every region with the reference engine on these inputs; ``inner`` also compares inner values.

        The result prints as text, and is true if nothing differs. ``progress`` is called with the number of compared regions and
        of all regions. Raises InputError for inputs that do not fit, EngineError if a region does not compile or run.
        """
        from xrt.module.explain import verify

        return verify(self, args, kwargs, inner=inner, progress=progress)

    def bisect(self, *args: Any, progress: Progress | None = None, **kwargs: Any) -> FailingSubgraph | None:
        """Find the smallest part of a region that differs from the reference engine on these inputs; None if no region differs.

        ``progress`` is called with the number of parts tried, and the number of nodes of the smallest part so far. `save_case` of
        `xrt.formats.onnx` writes the result to a file.
        """
        from xrt.module.explain import bisect

        return bisect(self, args, kwargs, progress=progress)

    def calibrate(self, batches: Iterable[Any], method: str = "minmax", **parameters: Any) -> CalibrationTable:
        """Run the model on batches of inputs, and record the range of each value that quantization may need.

        A batch is an array, a list of arrays in the order of the inputs, or a dict of arrays by name. ``method`` is ``"minmax"``,
        ``"moving_average"`` (``momentum=0.9``), ``"entropy"``, ``"percentile"`` (``percentile=99.99``) or ``"mse"``. The table
        identifies values by hashes of the nodes that compute them.

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
        """Write a bundle for `xrt.load`: the model, its weights, and every program compiled so far, with its executables.

        ``examples`` are inputs, for which the module compiles first. Without inputs, it compiles like `compile` if nothing is
        compiled yet.

        With ``example``, the bundle contains inputs and outputs for `run_self_test`, at most 16 MiB. The inputs are ``examples``,
        else those of the bundle that the module was loaded from, else random. A nondeterministic model has none.

        Raises BundleError if the file cannot be written, and the errors of `compile`.
        """
        from xrt.module.bundle import save

        save(self, path, examples, kwargs, example)

    def run_self_test(self) -> SelfTestReport | None:
        """Check the file of the bundle that the module was loaded from, run its example, and compare with the saved outputs.

        Call it before a service reports that it is ready. Returns None if the module was not loaded from a bundle, or the bundle
        has no example.

        Raises SelfTestFailed, with the largest difference, if the file is damaged, the example does not run, or an output differs
        by more than the tolerance for whole models.
        """
        from xrt.module.bundle import run_self_test

        return None if self.bundle is None else run_self_test(self.bundle, self)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the module as the arguments of its constructor. Raises TypeError if one of them cannot be pickled."""
        model, arguments = _find_model(self), self.construction
        # A CompileCache has executables and locks of this process. A directory can be used by another process.
        if isinstance(arguments.cache, CompileCache):
            raise TypeError(
                f"a module with a CompileCache of its own cannot be pickled; give cache= a directory. {_PICKLE_ADVICE}"
            )
        # A Function can always be pickled. pickle's errors do not say which argument fails.
        parts = {"model": model if is_graph(model) else None, "engines": arguments.engine, "options": arguments.options}
        for name, part in parts.items():
            if reason := _why_not_picklable(part):
                raise TypeError(f"this module cannot be pickled, since its {name} cannot: {reason}. {_PICKLE_ADVICE}")
        return arguments.create_module, (type(self), arguments.path or model)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Create another module with the same arguments, and a copy of its graph. A Function is immutable and not copied."""
        model = _find_model(self)
        copied: Self = self.construction.create_module(type(self), copy.deepcopy(model, memo) if is_graph(model) else model)
        return copied

    def __copy__(self) -> Self:
        return self.__deepcopy__({})

    def close(self) -> None:
        """Release the programs, and close executables that no other module uses. A call in progress ends normally."""
        self.programs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _repr_html_(self) -> str:
        """Draw the plan for a notebook. Before the first call, list inputs, outputs and engines instead of planning."""
        from xrt.html.views import render_cell  # only for notebooks

        if self.dispatcher.last is not None:
            return self.explain()._repr_html_()
        rows = [("input", value.name, str(value.type or "")) for value in self.inputs]
        rows += [("output", value.name, str(value.type or "")) for value in self.outputs]
        table = ("Inputs and outputs", {"": "", "name": "", "type": ""}, rows)
        facts = {"engines": ", ".join(self.engines), "threads": str(self.threads), "plan": "made by the first call"}
        return render_cell("summary.html", title=type(self).__name__, facts=facts, tables=[table])

    def __repr__(self) -> str:
        return f"<XRTModule({', '.join(value.name for value in self.inputs)}) on {', '.join(self.engines)}>"


_PICKLE_ADVICE = "Save a bundle with m.save(path), and xrt.load it where it is needed"


@dataclass(frozen=True, slots=True)
class Construction:
    """The arguments with which a module was created, without the model."""

    engine: Any
    device: str
    cache: CompileCache | str | os.PathLike[str] | None
    options: Mapping[str, Any]
    path: Path | None

    def create_module(self, module_class: Any, model: Any) -> Any:
        return module_class(model, self.engine, self.device, cache=self.cache, **self.options)


def _find_model(module: XRTModule) -> Any:
    """Return the Function or graph of a module. Raises TypeError for a module from a bundle."""
    if module.bundle is not None:
        raise TypeError("a module from a bundle cannot be pickled or copied; xrt.load the bundle again where it is needed")
    source = module.source
    return source.graph if isinstance(source, TracedGraph) else source.get_declared_function()


def _why_not_picklable(part: Any) -> str | None:
    """Explain why an argument (or a member of a list or mapping) cannot be pickled; None if nothing speaks against it.

    Pickle stores functions and classes by name, so they must be importable. Other objects are copied as a trial: `copy.deepcopy`
    uses the same hooks as pickle (``__reduce_ex__``).
    """
    members: Iterable[Any] = (part,)
    if isinstance(part, Mapping):
        members = part.values()
    elif isinstance(part, list | tuple):
        members = part
    for member in members:
        definition = member if isinstance(member, FunctionType | type) else type(member)
        attribute: Any = sys.modules.get(definition.__module__)
        for name in definition.__qualname__.split("."):
            attribute = getattr(attribute, name, None)
        if attribute is not definition and definition is not type(None):  # no module has the class of None by name
            return f"{definition.__module__}.{definition.__qualname__} is not found by that name"
    try:
        copy.deepcopy(part)
    except Exception as error:  # noqa: BLE001  # a member's __reduce__ may raise anything
        return str(error)
    return None
