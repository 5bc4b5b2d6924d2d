"""Conformance cases (a model, inputs and expected outputs), and the test suites of the installed ``onnx`` package as such cases.

The node tests come from Python code in ``onnx``. Small models, models exported from PyTorch and the light networks are files.
"""

from __future__ import annotations

import fnmatch
import importlib
import pkgutil
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache, partial
from importlib.abc import InspectLoader
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import onnx as onnx_package
from onnx import ModelProto, OptionalProto, SequenceProto, TensorProto, ValueInfoProto, numpy_helper

from xrt.comparison import BIT_EQUAL, Ambiguity, Comparison, Tolerance, compare_all, tolerance_for
from xrt.engines.contract import registry
from xrt.engines.toolkit.reference_evaluator import REFERENCE
from xrt.errors import OptionError, did_you_mean
from xrt.formats import onnx
from xrt.graph import Function, find_schema
from xrt.models import fill_random_weights
from xrt.operators import is_training
from xrt.verify.comparison import find_ambiguities
from xrt.verify.execution import run_alone

Array: TypeAlias = np.ndarray[Any, Any]


@dataclass(frozen=True)
class ConformanceCase:
    name: str
    model: ModelProto
    inputs: tuple[Any, ...]
    """Arrays, lists (sequences) and None (absent optionals), as engines accept them."""
    expected: tuple[Any, ...]
    """The expected outputs. Empty if the reference engine computes them, see `seed`."""
    rtol: float
    atol: float
    group: str = "node"
    """A key of `GROUPS`."""
    seed: int | None = None
    """If not None, the weights are random numbers from this seed, the reference engine computes the expected outputs, and the
    tolerance is that of a whole network."""

    @cached_property
    def function(self) -> Function:
        """The model as a Function. Raises ModelError if the model cannot be read."""
        function = onnx.load(self.model)
        return function if self.seed is None else fill_random_weights(function, self.seed)

    @cached_property
    def truth(self) -> tuple[Any, ...]:
        """`expected`, or if `seed` is set the outputs of the reference engine."""
        return self.expected if self.seed is None else tuple(_run_reference(self.function, self.inputs))

    @cached_property
    def ties(self) -> list[Ambiguity | None]:
        """The elements of each output that may have two values, because a discontinuous operator is near a step."""
        return find_ambiguities(self.function, self.inputs, _run_reference)

    @cached_property
    def operators(self) -> tuple[str, ...]:
        """The sorted operators of the main graph, without those in the bodies of control flow."""
        return tuple(sorted({f"{n.domain}.{n.op_type}" if n.domain else n.op_type for n in self.model.graph.node}))

    @cached_property
    def is_random(self) -> bool:
        """Whether the outputs differ from run to run, so that only types and shapes can be compared.

        True if an operator, also in a body, is non-deterministic by its ONNX schema and has a ``seed`` attribute; Dropout only in
        training mode. (AffineGrid is also declared non-deterministic, but has no seed.)
        """
        return is_random(self.function)

    def judge(self, results: Sequence[Any], *, admit_ties: bool = False) -> Comparison:
        """Compare results with the expected outputs: types and shapes exactly, numbers within the tolerance of the case.

        With ``admit_ties``, an output of a discontinuous operator (ArgMax, Round, a cast to integers) may be on the other side of
        a step if its input is close to the step. This is needed for a run on several engines, which rounds between them.
        """
        names = [output.name for output in self.model.graph.output]
        if self.is_random:
            return compare_all([_set_to_zero(r) for r in results], [_set_to_zero(e) for e in self.truth], names=names)
        if len(results) != len(self.truth):
            return compare_all(results, self.truth)  # its message has both counts
        comparison = self._compare(results, names, [None] * len(names))
        # Ties are computed only for a difference: that runs the reference engine.
        if admit_ties and not comparison:
            comparison = self._compare(results, names, self.ties)
        return comparison

    def _compare(self, results: Sequence[Any], names: Sequence[str], ties: Sequence[Ambiguity | None]) -> Comparison:
        largest = Comparison()
        for result, expected, tie, name in zip(results, self.truth, ties, names, strict=True):
            comparison = compare_all([result], [expected], self._choose_tolerance(expected), ties=[tie], names=[name])
            if not comparison:
                return comparison
            largest = max(largest, comparison, key=lambda comparison: comparison.absolute)
        return largest

    def _choose_tolerance(self, expected: Any) -> Tolerance:
        """Choose the tolerance for an output: that of the case, or a larger one that its type and operators need."""
        # Random weights make a whole network sensitive to rounding; the equal weights of the stored models do not.
        if self.seed is not None:
            return tolerance_for(expected.dtype, "network")
        peak = tolerance_for(expected.dtype).peak if _TRANSFORMS.intersection(self.operators) else 0.0
        dtype = expected.dtype.name if isinstance(expected, np.ndarray) else ""
        min_rtol = 0.0
        if dtype == "bfloat16":
            min_rtol = 2**-6  # two rounding steps, as in onnx's test runner
        elif dtype == "float16" and len(self.model.graph.node) > 1:
            min_rtol = tolerance_for("float16").rtol
        return Tolerance(max(self.rtol, min_rtol), self.atol, peak)


_TRANSFORMS = frozenset({"DFT", "STFT"})
"""Operators of which each output element is a sum over all inputs, so that its error scales with the largest element."""


def _run_reference(function: Function, inputs: Sequence[Any]) -> list[Any]:
    return run_alone(registry.create(REFERENCE), function, inputs)


def is_random(function: Function) -> bool:
    """Whether a Function has a random operator, see `ConformanceCase.is_random`."""
    for holder, node in function.walk():
        schema = find_schema(node.op_type, holder.opsets.get(node.domain, 0), node.domain)
        if schema is not None and schema.non_deterministic and "seed" in schema.attributes:
            if node.op_type != "Dropout" or is_training(node, holder):
                return True
    return False


def _set_to_zero(value: Any) -> Any:
    """Set all numbers to zero, so that only type and shape are compared."""
    if isinstance(value, list):
        return [_set_to_zero(item) for item in value]
    if isinstance(value, dict):
        return {key: _set_to_zero(item) if isinstance(item, np.ndarray) else type(item)() for key, item in value.items()}
    return np.zeros_like(value) if isinstance(value, np.ndarray) else value


def node_cases(pattern: str = "*") -> tuple[ConformanceCase, ...]:
    """Collect the node tests whose names match ``pattern``, sorted by name.

    ``pattern`` has one or more globs, separated by commas; the prefix ``test_`` is optional. Imports only the modules of ``onnx``
    that may define a matching test, since importing all modules takes several seconds.
    """
    matching = (case for case in _collect_cases(pattern) if matches(case.name, pattern))
    return tuple(sorted(matching, key=lambda case: case.name))


def matches(name: str, pattern: str) -> bool:
    """Whether a case's name, with or without ``test_``, matches one of the comma-separated globs."""
    return any(fnmatch.fnmatchcase(text, glob) for glob in _split_globs(pattern) for text in (name, name.removeprefix("test_")))


def _split_globs(pattern: str) -> list[str]:
    return [glob.strip() for glob in pattern.split(",")]


_LOADED: list[tuple[ConformanceCase, ...]] = []
"""The cases of each node test, in the order of onnx's list, to which a module appends its tests when it is imported."""
_COLLECTION_LOCK = Lock()


def _collect_cases(pattern: str) -> list[ConformanceCase]:
    """Import the modules that may define a matching test; list the cases of every module imported so far."""
    from onnx.backend.test.case import node

    with _COLLECTION_LOCK, warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # the cases overflow and cast NaN on purpose
        for name in _list_modules():
            if may_name_a_match(name, pattern):
                importlib.import_module(name)
        tests = node._NodeTestCases  # collect_testcases() returns this list too, but imports every module
        _LOADED.extend(tuple(_convert_test(test)) for test in tests[len(_LOADED) :])
        return [case for cases in _LOADED for case in cases]


@cache
def _list_modules() -> tuple[str, ...]:
    from onnx.backend.test.case import node

    return tuple(module.name for module in pkgutil.walk_packages(node.__path__, f"{node.__name__}.") if not module.ispkg)


def may_name_a_match(module: str, pattern: str) -> bool:
    """Whether a module of onnx's node tests may define a matching test, judged by the ``test_...`` strings in its source."""
    # The start of each glob up to its first wildcard. A string in the source may be longer or shorter.
    prefixes = [re.split(r"[*?\[]", glob, maxsplit=1)[0] for glob in _split_globs(pattern)]
    prefixes += [f"test_{prefix}" for prefix in prefixes]
    return any(prefix.startswith(string) or string.startswith(prefix) for string in _list_prefixes(module) for prefix in prefixes)


@cache
def _list_prefixes(module: str) -> frozenset[str]:
    """List the strings in a module's source that begin with ``test_``, up to an interpolation."""
    spec = find_spec(module)
    loader = spec.loader if spec else None
    source = loader.get_source(module) if isinstance(loader, InspectLoader) else None
    # A module without source is always imported, because the empty prefix matches every name.
    return frozenset({""} if source is None else re.findall(r"[\"'](test_\w*)", source))


def _convert_test(test: Any) -> Iterator[ConformanceCase]:
    """Yield a case for each data set of one of onnx's tests."""
    for index, (inputs, expected) in enumerate(test.data_sets):
        omitted = (None,) * (len(test.model.graph.input) - len(inputs))  # optional inputs at the end
        values = (*map(read_value, inputs), *omitted)
        expected_values = tuple(map(read_value, expected))
        yield ConformanceCase(_number_name(test.name, index), test.model, values, expected_values, test.rtol, test.atol)


def _number_name(name: str, index: int) -> str:
    """Name the case of a data set: the first has the test's name, the others get ``/1``, ``/2`` and so on."""
    return f"{name}/{index}" if index else name


def read_value(value: Any) -> Any:
    """Convert a test value (ONNX message, array, scalar or list) to the arrays, lists and None that engines accept."""
    if isinstance(value, TensorProto):
        return _convert_array(numpy_helper.to_array(value))
    if isinstance(value, SequenceProto):
        return [read_value(item) for item in numpy_helper.to_list(value)]
    if isinstance(value, OptionalProto):
        return read_value(numpy_helper.to_optional(value))
    if isinstance(value, list | tuple):
        return [read_value(item) for item in value]
    return None if value is None else _convert_array(value)


def _convert_array(value: Any) -> np.ndarray[Any, Any]:
    array = np.asarray(value)
    if array.dtype.kind not in "OUS":
        return array
    # Engines accept strings as object arrays only, because NumPy's own string types have a fixed width.
    strings = [item.decode() if isinstance(item, bytes) else str(item) for item in array.flat]
    return np.array(strings, object).reshape(array.shape)


def are_inputs_unchanged(function: Function, before: Sequence[Any], after: Sequence[Any]) -> Comparison:
    """Compare inputs bit by bit with copies from before a run, except those that an alias updates in place."""
    aliased = {name for name, _ in function.aliases}
    indices = [index for index, value in enumerate(function.inputs) if value.name not in aliased]
    actual, expected = ([inputs[index] for index in indices] for inputs in (after, before))
    return compare_all(actual, expected, BIT_EQUAL, names=[f"input {index}" for index in indices])


_STORED_RTOL, _STORED_ATOL = 1e-3, 1e-7
"""The tolerance that onnx's test runner uses for stored cases."""


@lru_cache
def load_stored_cases(group: str) -> tuple[ConformanceCase, ...]:
    """Load the cases of a folder of stored models, sorted by name: one for each data set of a model."""
    cases = []
    for path in sorted((_DATA / group).glob("*/model.onnx")):
        model = onnx_package.load(path)
        for index, folder in enumerate(sorted(path.parent.glob("test_data_set_*"))):
            inputs = tuple(_read(folder / f"input_{i}.pb", info) for i, info in enumerate(_list_caller_inputs(model)))
            expected = tuple(_read(folder / f"output_{i}.pb", info) for i, info in enumerate(model.graph.output))
            name = _number_name(path.parent.name, index)
            cases.append(ConformanceCase(name, model, inputs, expected, _STORED_RTOL, _STORED_ATOL, group))
    return tuple(cases)


_DATA = Path(onnx_package.__file__).parent / "backend" / "test" / "data"


def _list_caller_inputs(model: ModelProto) -> list[ValueInfoProto]:
    """List the inputs that a caller passes. Older models also list their initializers as inputs."""
    weights = {tensor.name for tensor in model.graph.initializer}
    return [info for info in model.graph.input if info.name not in weights]


def _read(path: Path, info: ValueInfoProto) -> Any:
    messages = {"sequence_type": SequenceProto, "optional_type": OptionalProto}
    message = messages.get(info.type.WhichOneof("value"), TensorProto)
    return read_value(message.FromString(path.read_bytes()))


@lru_cache
def load_light_cases() -> tuple[ConformanceCase, ...]:
    """Load two cases for each light network: one with the stored weights, and one with random weights.

    In a stored model, all elements of a weight are equal, and so are all outputs. With random weights the outputs differ, and the
    reference engine computes the expected ones.
    """
    cases = []
    for path in sorted((_DATA / "light").glob("light_*.onnx")):
        model = onnx_package.load(path)
        stored = read_value(onnx_package.load_tensor(path.with_name(f"{path.stem}_output_0.pb")))
        inputs = tuple(_make_ramp(info) for info in _list_caller_inputs(model))
        rtol = 2e-3 if path.stem == "light_densenet121" else _STORED_RTOL  # as in onnx's test runner
        # The stored SqueezeNet ends in a Softmax of equal logits of 1e10, where one rounding error changes the result.
        if path.stem != "light_squeezenet":
            cases.append(ConformanceCase(path.stem, model, inputs, (stored,), rtol, _STORED_ATOL, "light"))
        cases.append(ConformanceCase(f"{path.stem}_random", model, inputs, (), rtol, _STORED_ATOL, "light", seed=0))
    return tuple(cases)


def _make_ramp(info: ValueInfoProto) -> np.ndarray[Any, Any]:
    """Make float32 numbers that increase from 0 to 1, for which the stored outputs were computed."""
    shape = tuple(dim.dim_value for dim in info.type.tensor_type.shape.dim)
    count = int(np.prod(shape))
    return (np.arange(count).reshape(shape) / count).astype(np.float32)


GROUPS: Mapping[str, Callable[[], Sequence[ConformanceCase]]] = MappingProxyType(
    {
        "node": node_cases,
        **{name: partial(load_stored_cases, name) for name in ("simple", "pytorch-operator", "pytorch-converted")},
        "light": load_light_cases,
    }
)
"""The loader of each group. A case of ``node`` is one operator or its decomposition; a case of the other groups is a model."""


def group_cases(groups: Sequence[str] = (), pattern: str = "*") -> tuple[ConformanceCase, ...]:
    """Collect the cases of the given groups (default: all) whose names match ``pattern``.

    Raises OptionError for an unknown group.
    """
    for name in groups:
        if name not in GROUPS:
            raise OptionError(f"there is no group {name!r}.{did_you_mean(name, GROUPS)} There is: {', '.join(GROUPS)}")
    # The node tests get the pattern, because importing all their modules takes seconds.
    collected = [node_cases(pattern) if name == "node" else make() for name, make in GROUPS.items() if name in (groups or GROUPS)]
    return tuple(case for cases in collected for case in cases if matches(case.name, pattern))
