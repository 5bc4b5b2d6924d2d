"""Capture a PyTorch module with torch.export and lower it to a Function with the mapping of its inputs and outputs."""

from __future__ import annotations

import dataclasses
import inspect
import logging
import re
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import is_
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.export import _trace
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind, SymIntArgument, TensorArgument
from torch.utils import _pytree as pytree

from xrt.builder import Builder, Tensor
from xrt.errors import DataDependentError, InputError, ModelError
from xrt.forking import renew_after_fork
from xrt.frontends.torch.lower import CHECKS, Lowering
from xrt.frontends.torch.symbols import Symbols
from xrt.graph import Function
from xrt.passes import drop_dead_nodes

if TYPE_CHECKING:
    from torch.export import ExportedProgram


def export(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic_shapes: Any) -> ExportedProgram:
    """Run torch.export. If the module returns unregistered dataclasses, register them as pytrees and try again."""
    try:
        return _export(module, args, kwargs, dynamic_shapes)
    except Exception as error:
        if "which is not a known type" not in str(error):
            raise

    def register_output(_: torch.nn.Module, inputs: Any, output: Any) -> None:
        register_dataclasses(output)  # returns None, because a result would replace the output

    hook = module.register_forward_hook(register_output)
    try:
        return _export(module, args, kwargs, dynamic_shapes)
    finally:
        hook.remove()


def _export(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic_shapes: Any) -> ExportedProgram:
    """Run torch.export. A graph that fails is not printed: the error has the reason, and another attempt may succeed."""
    # A global named "print" hides the builtin in this module of PyTorch.
    scope = vars(_trace)
    scope["print"] = lambda *_, **__: None
    try:
        with drop_warnings("torch.fx.experimental.symbolic_shapes", "torch.export._trace"):
            return torch.export.export(module, args, kwargs, dynamic_shapes=dynamic_shapes, strict=False)
    finally:
        scope.pop("print", None)


@contextmanager
def drop_warnings(*loggers: str) -> Iterator[None]:
    """Context manager: drop warnings and errors of these loggers. Messages of lower levels, which the user enabled, pass."""

    def is_below_warning(record: logging.LogRecord) -> bool:
        return record.levelno < logging.WARNING

    for name in loggers:
        logging.getLogger(name).addFilter(is_below_warning)
    try:
        yield
    finally:
        for name in loggers:
            logging.getLogger(name).removeFilter(is_below_warning)


def register_dataclasses(values: Any) -> bool:
    """Register the dataclasses in nested values as pytrees; return whether there were any."""
    instances = [leaf for leaf in pytree.tree_leaves(values) if dataclasses.is_dataclass(leaf) and not isinstance(leaf, type)]
    for kind in {type(leaf) for leaf in instances}:
        torch.export.register_dataclass(kind)
    for leaf in instances:
        register_dataclasses([getattr(leaf, field.name) for field in dataclasses.fields(leaf)])
    return bool(instances)


@dataclass(frozen=True, slots=True)
class ModuleState:
    """State of a PyTorch module that a capture depends on: submodules, training flags, and tensors with their versions.

    The state is read and compared in each call. It consists of flat lists because Python compares these quickly.
    """

    layout: list[Any]
    """Each module, followed by the names of its submodules, parameters and buffers."""
    training: tuple[bool, ...]
    tensors: list[torch.Tensor | None]
    versions: list[tuple[object, ...]]
    """Address, write count, dtype and shape of each tensor; () for None."""

    @classmethod
    def read(cls, model: torch.nn.Module) -> ModuleState:
        """Read the state of a module; raises ModelError for tensors whose writes PyTorch does not count."""
        layout: list[Any] = []
        flags: list[bool] = []
        tensors: list[Any] = []
        stack = [model]
        while stack:
            module = stack.pop()
            layout.append(module)
            flags.append(module.training)
            children, parameters, buffers = module._modules, module._parameters, module._buffers
            if children:
                layout += children
                stack += [child for child in reversed(children.values()) if child is not None]
            if parameters:
                layout += parameters
                tensors += parameters.values()
            if buffers:
                layout += buffers
                tensors += buffers.values()
        versions: list[tuple[object, ...]]
        try:
            versions = [() if t is None else (t.data_ptr(), t._version, t.dtype, t.shape) for t in tensors]
        except RuntimeError:
            # A tensor without a write count, which check_module refuses, or without an address, such as a sparse tensor.
            check_module(model)
            versions = []
            for tensor in tensors:
                if tensor is None:
                    versions.append(())
                    continue
                address = tensor.data_ptr() if tensor.layout is torch.strided else id(tensor)
                versions.append((address, tensor._version, tensor.dtype, tensor.shape))
        return cls(layout, tuple(flags), tensors, versions)

    def is_capture_valid(self, current: ModuleState, updated: Sequence[int]) -> bool:
        """Whether a capture made in this state is valid in the current state. The capture writes to the tensors ``updated``."""
        if self.layout != current.layout:
            return False
        # In most calls nothing has changed.
        if self.versions == current.versions and all(map(is_, self.tensors, current.tensors)):
            return True
        for index, (version, current_version) in enumerate(zip(self.versions, current.versions, strict=True)):
            is_same = self.tensors[index] is current.tensors[index] and version == current_version
            # Address and write count of an updated tensor may change, but not its dtype and shape.
            if not is_same and (index not in updated or version[2:] != current_version[2:]):
                return False
        return True


def list_tensor_names(model: torch.nn.Module) -> list[str]:
    """List the names of parameters and buffers in the order of `ModuleState.tensors`."""
    names = []
    stack = [("", model)]
    while stack:
        prefix, module = stack.pop()
        children = [(f"{prefix}{name}.", child) for name, child in module._modules.items() if child is not None]
        stack += reversed(children)
        names += [prefix + name for name in (*module._parameters, *module._buffers)]
    return names


def check_module(model: torch.nn.Module) -> None:
    """Raise ModelError for torch.jit modules and tensors whose writes PyTorch does not count."""
    if isinstance(model, torch.jit.ScriptModule):
        raise ModelError("a module of torch.jit cannot be captured; pass the module that it was scripted or traced from")
    tensors = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    for name, tensor in tensors:
        if tensor.is_inference():
            raise ModelError(
                f"{name} was made under torch.inference_mode, and PyTorch neither exports such a tensor nor counts writes to it; "
                f"make or load the module outside, or under torch.no_grad"
            )


_XRT_KEYWORDS = {"fetch", "out", "options"}
"""Keywords of XRTModule calls that are not supported for a PyTorch module."""


def check_keywords(model: torch.nn.Module, keywords: Mapping[str, Any]) -> None:
    """Raise InputError for a keyword in `_XRT_KEYWORDS`, unless the module's forward accepts it."""
    for name in _XRT_KEYWORDS & keywords.keys():
        parameters = inspect.signature(model.forward).parameters
        if name not in parameters and all(p.kind is not inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
            raise InputError(
                f"a module of PyTorch is called without {name}=; it is of xrt.XRTModule(xrt.from_torch(module, args))"
            )


_EXPORT_LOCK = renew_after_fork(threading.RLock())
"""torch.export is not thread-safe."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """Source of one leaf of the module's result: an output of the Function, an unchanged input, or a fixed value."""

    kind: Literal["output", "input", "value"]
    index: int = 0
    """Index of the output, or of the flattened input."""
    value: Any = None
    is_number: bool = False
    """Whether the module returns the output as a Python number."""

    def pick(self, outputs: Sequence[torch.Tensor], inputs: Sequence[Any]) -> Any:
        """Select the leaf's value in a call from the Function's outputs and the module's flattened inputs."""
        if self.kind == "value":
            return self.value
        if self.kind == "input":
            return inputs[self.index]
        return outputs[self.index].item() if self.is_number else outputs[self.index]


@dataclass(frozen=True, slots=True)
class Capture:
    function: Function
    out_spec: Any
    inputs: tuple[int, ...]
    """For each input of the Function, the index of the flattened input leaf."""
    buffers: tuple[str, ...]
    """Names of the buffers that the module updates: the last inputs of the Function, each aliased to its next value."""
    leaves: tuple[Leaf, ...]
    opaque: Mapping[str, str]
    """Maps each operator that became an opaque node to the reason."""
    updated: tuple[int, ...] = ()
    """Indices of flattened input leaves that the module updates in place."""
    guards: Callable[..., object] | None = None
    """Raises an error if called with inputs of sizes that the capture does not cover. None if all sizes are static."""


def capture(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    *,
    allow_guards: bool = False,
) -> Capture:
    """Capture a module with example inputs.

    Raises ModelError if PyTorch cannot export the module, DataDependentError if its code depends on values. Also raises
    ModelError if the capture covers only some of the dynamic sizes, unless ``allow_guards`` is true.
    """
    if isinstance(module, torch.nn.Module):  # the export rejects other objects
        check_module(module)
    with _EXPORT_LOCK, warnings.catch_warnings():
        for category in (DeprecationWarning, FutureWarning):
            warnings.simplefilter("ignore", category)  # PyTorch's own deprecations
        warnings.filterwarnings("ignore", "The tensor attributes .*_flat_weights")  # kept by nn.LSTM
        return _capture(module, args, dict(kwargs or {}), dynamic_shapes, allow_guards)


def _capture(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], shapes: Any, allow_guards: bool) -> Capture:
    """Export, functionalize and lower a module; PyTorch's errors are raised as XRT's."""
    if shapes:
        # PyTorch marks tensors that have dynamic sizes: pass views, not the caller's tensors.
        args, kwargs = pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, (args, kwargs))
    try:
        with torch.no_grad():
            program = export(module, args, kwargs, _replace_names(shapes))
    except KeyError as error:
        raise InputError(f"forward of {type(module).__name__} reads the key {error}, which no input has; pass it") from error
    except Exception as error:
        _check_arguments(module, args, kwargs)
        first_line = str(error).strip().partition("\n")[0]
        text = f"PyTorch cannot export {type(module).__name__}: {first_line}"
        if "Cache'>" in text and ("not a known type" in text or "input type" in text):
            text = f"PyTorch cannot export {type(module).__name__} with a cache of transformers as input or output{_CACHE_HINT}"
        if "data-dependent" in text:
            raise DataDependentError(text + _DATA_HINT) from error
        raise ModelError(text) from error
    if not allow_guards:
        _check_guards(program, shapes)
    guards = getattr(program.module(), "_guards_fn", None) if shapes else None
    names = _name_symbols(module, args, kwargs, shapes, program)
    return dataclasses.replace(_lower(_functionalize(program), names, type(module).__name__), guards=guards)


def _check_arguments(module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    signature = inspect.signature(module.forward)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise InputError(f"forward of {type(module).__name__} is called as {signature}: {error}") from None


_CACHE_HINT = "; pass use_cache=False, or use torch.compile(model, backend='xrt'), with which generate() runs as well"
_DATA_HINT = "; write it with torch.cond, or run it by torch.compile(module, backend='xrt'), which splits the module there"


def _check_guards(program: ExportedProgram, shapes: Any) -> None:
    """Raise ModelError if the capture covers only some of the sizes that the user declared dynamic.

    Guards of two kinds are accepted: equalities of sizes, which the types of the Function show, and inequalities like
    `size != 1`, which come from PyTorch's broadcasting checks and not from branches of the module.
    """
    dims = pytree.tree_leaves(shapes)
    if all(dim is None or isinstance(dim, int | torch.export.Dim) for dim in dims):
        return  # PyTorch checks the range of a Dim
    for guard in program._guards_code:
        if ".size()[" in guard and not _HARMLESS.fullmatch(guard):
            raise ModelError(
                f"the captured module holds only where {_LOCAL.sub(lambda match: match[1], guard)}, and the size is to be free; "
                f"give it as torch.export.Dim(name, min=..., max=...), or leave it out of dynamic_shapes"
            )


_HARMLESS = re.compile(r"L\S*\.size\(\)\[\d+\] == L\S*\.size\(\)\[\d+\]|.* != \S+")
"""Guards that `_check_guards` accepts."""
_LOCAL = re.compile(r"L\['(\w+)'\]")


def _is_functional(program: ExportedProgram) -> bool:
    """Whether the graph and its subgraphs have neither updates in place nor transforms of torch.func."""
    graphs = [module.graph for module in program.graph_module.modules() if isinstance(module, torch.fx.GraphModule)]
    for target in {call.target for graph in graphs for call in graph.nodes if call.op == "call_function"}:
        if getattr(target, "__module__", "") == "torch._functorch.predispatch":
            return False
        is_operator = isinstance(target, torch._ops.OpOverload)
        # Lowering drops checks and treats detach_ as the identity.
        if is_operator and target._schema.is_mutable and str(target) not in (*CHECKS, "aten.detach_.default"):
            return False
    return True


def _functionalize(program: ExportedProgram) -> ExportedProgram:
    # Only if needed, because PyTorch traces the module again.
    if _is_functional(program):
        return program
    try:
        return program.run_decompositions({})
    except Exception as error:
        text = str(error).strip().partition("\n")[0]
        raise ModelError(f"PyTorch cannot make the captured module functional: {text}") from error


def _lower(program: ExportedProgram, names: Mapping[str, str], function_name: str) -> Capture:
    """Lower a functional program to a Capture. ``names`` maps PyTorch's symbols to the user's names."""
    builder = Builder(function_name)
    lowering = Lowering(builder, Symbols(names))
    with builder:
        inputs, buffers = _add_inputs(lowering, program)
        lowering.run(program.graph, program.graph_module)
        leaves = _add_outputs(lowering, program, buffers)
    function = drop_dead_nodes(builder.function())
    opaque = {str(operator): reason for operator, reason in lowering.opaque.items()}
    signature = program.graph_signature
    user_inputs = [entry.arg.name for entry in signature.input_specs if entry.kind is InputKind.USER_INPUT]
    mutations = [entry for entry in signature.output_specs if entry.kind is OutputKind.USER_INPUT_MUTATION]
    updated_leaves = tuple(user_inputs.index(entry.target) for entry in mutations)
    return Capture(function, program.call_spec.out_spec, tuple(inputs), tuple(buffers), tuple(leaves), opaque, updated_leaves)


def _add_inputs(lowering: Lowering, program: ExportedProgram) -> tuple[list[int], dict[str, Tensor]]:
    """Add an input or constant for each placeholder; return the leaf indices of the user inputs, and the updated buffers."""
    signature = program.graph_signature
    placeholders = {call.name: call for call in program.graph.nodes if call.op == "placeholder"}
    updated = set(signature.buffers_to_mutate.values())
    inputs: list[int] = []
    user_specs = [spec for spec in signature.input_specs if spec.kind is InputKind.USER_INPUT]
    for index, spec in enumerate(user_specs):
        if isinstance(spec.arg, TensorArgument | SymIntArgument):
            call = placeholders[spec.arg.name]
            lowering.values[call] = lowering.add_input(call.name, call.meta["val"])
            inputs.append(index)
        elif isinstance(spec.arg, ConstantArgument) and spec.arg.name in placeholders:
            lowering.values[placeholders[spec.arg.name]] = spec.arg.value
    tokens = (spec.arg.name for spec in signature.input_specs if spec.kind is InputKind.TOKEN)
    lowering.values.update((placeholders[name], None) for name in tokens)
    # Updated buffers are inputs after the user's inputs. All other tensors of the module are constants.
    buffers: dict[str, Tensor] = {}
    for spec in signature.input_specs:
        if spec.kind is InputKind.BUFFER and spec.target in updated:
            call = placeholders[spec.arg.name]
            buffers[spec.target] = lowering.add_input(spec.target, call.meta["val"])
            lowering.values[call] = buffers[spec.target]
    for spec in signature.input_specs:
        if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR) and spec.target not in buffers:
            # Non-persistent buffers are not in the state dict.
            is_in_state = spec.kind is InputKind.PARAMETER or (spec.kind is InputKind.BUFFER and spec.persistent)
            tensor = (program.state_dict if is_in_state else program.constants)[spec.target]
            lowering.values[placeholders[spec.arg.name]] = lowering.add_constant(spec.target, tensor)
    return inputs, buffers


def _add_outputs(lowering: Lowering, program: ExportedProgram, buffers: Mapping[str, Tensor]) -> list[Leaf]:
    """Add the module's outputs, then the updates of inputs and buffers; return the leaves of the module's result."""
    signature = program.graph_signature
    users = [spec.arg.name for spec in signature.input_specs if spec.kind is InputKind.USER_INPUT]
    calls = {call.name: call for call in program.graph.nodes}
    updated = {s.target for s in signature.output_specs if s.kind is OutputKind.USER_INPUT_MUTATION}
    leaves: list[Leaf] = []
    paths = _name_outputs(program.call_spec.out_spec)
    for spec in signature.output_specs:
        if spec.kind is OutputKind.USER_OUTPUT:
            name = next(paths)
            if isinstance(spec.arg, ConstantArgument):
                leaves.append(Leaf("value", value=spec.arg.value))
            elif spec.arg.name in users and spec.arg.name not in updated:
                leaves.append(Leaf("input", users.index(spec.arg.name)))
            else:
                is_number = not isinstance(spec.arg, TensorArgument)
                value = lowering.values[calls[spec.arg.name]]
                leaves.append(Leaf("output", len(lowering.builder.outputs), is_number=is_number))
                # An input may have the name of an output already.
                unique_name = f"{name}_output" if name in lowering.builder.names else name
                lowering.builder.output(value.scalar if is_number else value, unique_name)
    for spec in signature.output_specs:
        if spec.kind is OutputKind.BUFFER_MUTATION:
            lowering.builder.update(buffers[spec.target], lowering.values[calls[spec.arg.name]])
        elif spec.kind is OutputKind.USER_INPUT_MUTATION:
            lowering.builder.update(lowering.values[calls[spec.target]], lowering.values[calls[spec.arg.name]])
    return leaves


def _name_outputs(spec: Any) -> Iterator[str]:
    """Yield a name for each output leaf: the keys and fields of its pytree path, or ``output`` if the path is empty."""
    # Leaves are tensors, because the caches of transformers can only be built from tensors.
    tree = pytree.tree_unflatten([torch.empty(0)] * spec.num_leaves, spec)
    for path, _ in pytree.tree_flatten_with_path(tree)[0]:
        # The entry is the key of a mapping, the name of an attribute, or the index in a sequence.
        parts = [str(getattr(entry, "key", getattr(entry, "name", getattr(entry, "idx", "")))) for entry in path]
        label = ".".join(parts)
        if not label:
            yield "output"
        else:
            yield f"output_{label}" if parts[0].isdigit() else label


def _replace_names(shapes: Any) -> Any:
    """Convert the user's dynamic shapes for PyTorch: a string, which names a dim, becomes Dim.DYNAMIC."""
    if isinstance(shapes, str):
        return torch.export.Dim.DYNAMIC
    if isinstance(shapes, Mapping):
        return {key: _replace_names(value) for key, value in shapes.items()}
    if isinstance(shapes, list | tuple):
        return type(shapes)(map(_replace_names, shapes))
    return shapes


def _name_symbols(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], shapes: Any, program: ExportedProgram
) -> dict[str, str]:
    """Map PyTorch's symbols to the names that the user gave to dynamic dims."""
    if not shapes:
        return {}
    calls = {call.name: call for call in program.graph.nodes if call.op == "placeholder"}
    user_inputs = [spec.arg for spec in program.graph_signature.input_specs if spec.kind is InputKind.USER_INPUT]
    bound = dict(inspect.signature(module.forward).bind(*args, **kwargs).arguments)
    specs = shapes if isinstance(shapes, Mapping) else dict(zip(bound, shapes, strict=False))
    names: dict[str, str] = {}
    for (path, _), arg in zip(pytree.tree_flatten_with_path(bound)[0], user_inputs, strict=False):
        fake: Any = calls[arg.name].meta.get("val") if getattr(arg, "name", "") in calls else None
        spec = _find_spec(specs, path)
        # The dims of a tensor are listed for all axes, or mapped by axis.
        dims = dict(enumerate(spec)) if isinstance(spec, list | tuple) else spec
        if not isinstance(fake, torch.Tensor) or not isinstance(dims, Mapping):
            continue
        for axis, dim in dims.items():
            name = dim if isinstance(dim, str) else getattr(dim, "__name__", None)  # None for a number or no dim
            size = fake.shape[axis]
            if name and isinstance(size, torch.SymInt) and size.node.expr.is_Symbol:
                names.setdefault(str(size.node.expr), name)
    return names


def _find_spec(spec: Any, path: Sequence[Any]) -> Any:
    """Look up the dynamic shape of the leaf at a pytree path; None if the user specified none."""
    for entry in path:
        key: Any = getattr(entry, "key", getattr(entry, "idx", None))
        if isinstance(spec, Mapping):
            spec = spec.get(key)
        elif isinstance(spec, list | tuple):
            spec = spec[key]
        else:
            return None
    return spec
