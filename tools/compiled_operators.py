"""PyTorch's own samples of its operators under ``torch.compile(backend="xrt")``, compared with eager.

The samples are those of ``op_db``, with which PyTorch tests its operators; they need ``expecttest``. For each mode and operator,
the last samples are run. Results must have eager's strides, and must be within the tolerance of the element type, or have at most
four times the error of eager mode, relative to float64. A sample does not count as a failure if it fails in eager mode or with
the backend ``aot_eager`` too, or if the operator is random:

    python -m tools.compiled_operators                         # all operators, results in float32: some 15 minutes
    python -m tools.compiled_operators --modes grad --part 1/8 # gradients of an eighth of the operators
    python -m tools.compiled_operators matmul linalg.inv       # these, with the reason of each failure
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

MAX_SAMPLES = 40
"""Number of samples to generate for an operator, of which the last are run: some operators have thousands."""
MODES = {
    "values": torch.float32,
    "grad": torch.float32,
    "dynamic": torch.float32,
    "noncontig": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int64": torch.int64,
    "bool": torch.bool,
}
"""Mode to element type. ``grad`` also compares gradients, ``dynamic`` compiles with dynamic shapes."""


def list_samples(operator: Any, mode: str, count: int) -> list[Any]:
    """List the last samples of an operator; empty if it does not support the element type or, for ``grad``, has no gradients."""
    dtype, is_grad = MODES[mode], mode == "grad"
    if dtype not in operator.dtypes or (is_grad and not operator.supports_autograd):
        return []
    samples = list(itertools.islice(operator.sample_inputs("cpu", dtype, requires_grad=is_grad), MAX_SAMPLES))[-count:]
    return [sample.noncontiguous() for sample in samples] if mode == "noncontig" else samples


def copy_arguments(sample: Any, dtype: torch.dtype | None = None) -> tuple[Any, ...]:
    """Copy the arguments of a sample; floating-point tensors are converted to ``dtype`` if it is not None."""

    def clone(tensor: torch.Tensor) -> torch.Tensor:
        is_converted = dtype is not None and tensor.is_floating_point()
        copy = tensor.detach().to(dtype) if is_converted else tensor.detach().clone()
        return copy.requires_grad_(tensor.requires_grad)

    return pytree.tree_map_only(torch.Tensor, clone, (sample.input, sample.args, sample.kwargs))


def list_tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def run(operator: Any, arguments: tuple[Any, ...], is_grad: bool, backend: str | None, dynamic: bool = False) -> list[Any]:
    """Call an operator, compiled unless ``backend`` is None; return its tensors, and the gradients of its inputs if requested."""
    first, args, kwargs = arguments

    def call(first: Any, args: Any, kwargs: Any) -> Any:
        return operator(first, *args, **kwargs)

    torch._dynamo.reset()
    torch.manual_seed(0)
    compiled = call if backend is None else torch.compile(call, backend=backend, dynamic=dynamic or None)
    results = list_tensors(compiled(first, args, kwargs))
    if not is_grad:
        return results
    inputs = [tensor for tensor in list_tensors(arguments) if tensor.requires_grad]
    outputs = [tensor for tensor in results if tensor.requires_grad]
    seeds = [torch.linspace(-1, 1, tensor.numel()).reshape(tensor.shape).to(tensor.dtype) for tensor in outputs]
    gradients = torch.autograd.grad(outputs, inputs, seeds, allow_unused=True) if outputs else ()
    return [*results, *(gradient for gradient in gradients if gradient is not None)]


def compare(actual: list[Any], expected: list[Any], exact: list[Any] | None) -> str:
    """Compare results with eager's: ``right``, ``near`` (outside the tolerance, but close to ``exact``), ``strides``, ``wrong``.

    ``exact`` are the results in float64, if the operator supports it.
    """
    if [(tensor.dtype, tensor.shape) for tensor in actual] != [(tensor.dtype, tensor.shape) for tensor in expected]:
        return "wrong"
    outcome = "right"
    for index, (result, eager_result) in enumerate(zip(actual, expected, strict=True)):
        try:
            torch.testing.assert_close(result, eager_result, equal_nan=True, check_stride=False)
        except AssertionError:
            if exact is None or not result.is_floating_point():
                return "wrong"
            error, eager_error = (_compute_error(tensor, exact[index]) for tensor in (result, eager_result))
            if not error <= 4 * eager_error:
                return "wrong"
            outcome = "near"
        if outcome == "right" and result.stride() != eager_result.stride() and result.numel() > 1:
            outcome = "strides"
    return outcome


def _compute_error(result: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    return (result.double() - exact.double()).abs().nan_to_num().max()


def run_sample(operator: Any, sample: Any, mode: str) -> tuple[str, str]:
    """Run a sample in eager mode and compiled by XRT. Return the outcome of the comparison, and the reason of a failure."""
    is_grad = mode == "grad"

    def run_after_draw(*args: Any, **kwargs: Any) -> Any:
        torch.rand(3)
        return operator(*args, **kwargs)

    try:
        expected = run(operator, copy_arguments(sample), is_grad, None)
        # A random operator computes something else after other random numbers were drawn.
        if compare(run(run_after_draw, copy_arguments(sample), is_grad, None), expected, None) != "right":
            return "random", ""
    except Exception:  # noqa: BLE001  # any error of PyTorch
        return "eager fails", ""
    try:
        results = run(operator, copy_arguments(sample), is_grad, "xrt", mode == "dynamic")
        try:
            exact = run(operator, copy_arguments(sample, torch.float64), is_grad, None)
        except Exception:  # noqa: BLE001  # some operators do not support float64
            exact = None
        outcome, reason = compare(results, expected, exact), ""
    except Exception as error:  # noqa: BLE001  # counted as a failure
        outcome, reason = "error", f"{type(error).__name__}: {str(error)[:300]}"
    if outcome in ("wrong", "strides", "error"):
        try:
            results = run(operator, copy_arguments(sample), is_grad, "aot_eager", mode == "dynamic")
            if compare(results, expected, None) != "right":
                return f"{outcome} with aot_eager too", reason
        except Exception as error:  # noqa: BLE001  # any error of PyTorch
            return f"{outcome} with aot_eager too", f"{type(error).__name__}: {error}"[:200]
    return outcome, reason


def list_operators(names: list[str], part: str) -> Iterator[Any]:
    """Yield the operators with these names, or all. A part K/N, such as ``2/8``, is every N-th operator, from the K-th on."""
    from torch.testing._internal.common_methods_invocations import op_db

    number, _, parts = part.partition("/")
    for index, operator in enumerate(op_db):
        if (not names or operator.name in names) and index % int(parts) == int(number) - 1:
            yield operator


def main() -> None:
    """Run the operators; print the failures, and the counts of all outcomes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="operators of op_db; default: all")
    parser.add_argument("--modes", default="values", help=f"of {', '.join(MODES)}")
    parser.add_argument("--samples", type=int, default=1, help="samples per operator and mode")
    parser.add_argument("--part", default="1/1", help="K/N: every N-th operator, from the K-th on")
    parser.add_argument("--budget", type=float, default=float("inf"), help="seconds; no operator is started afterwards")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    counts: dict[str, Counter[str]] = {mode: Counter() for mode in arguments.modes.split(",")}
    end, operators = time.monotonic() + arguments.budget, set()
    for operator in list_operators(arguments.names, arguments.part):
        if time.monotonic() > end:
            break
        for mode, outcomes in counts.items():
            for sample in list_samples(operator, mode, arguments.samples):
                outcome, reason = run_sample(operator, sample, mode)
                outcomes[outcome] += 1
                operators.add(operator.name)
                if outcome not in ("right", "random", "eager fails"):
                    print(f"{mode} {operator.name} {operator.variant_test_name}: {outcome} {reason}", flush=True)
    print(f"{len(operators)} operators")
    for mode, outcomes in counts.items():
        print(mode, dict(outcomes.most_common()))
    sys.exit(any(outcomes[failure] for outcomes in counts.values() for failure in ("wrong", "error", "strides")))


if __name__ == "__main__":
    main()
