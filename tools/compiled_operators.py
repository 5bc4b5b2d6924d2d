"""PyTorch's own samples of its operators under ``torch.compile(backend="xrt")``, compared with eager.

The samples are those of ``op_db``, with which PyTorch tests its operators. For each mode and operator the last samples are run;
results must be within the operator's tolerance, or as near to float64 as four times eager's own error, with eager's strides.
What eager itself cannot run, draws numbers, or fails under ``aot_eager`` too is not counted as a failure. It needs
``expecttest``:

    python -m tools.compiled_operators                         # all operators, values of float32: some 15 minutes
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


def list_samples(operator: Any, mode: str, count: int) -> list[Any]:
    """List the last samples of an operator; empty if it does not support the element type or has no gradients."""
    dtype, is_grad = MODES[mode], mode == "grad"
    if dtype not in operator.dtypes or (is_grad and not operator.supports_autograd):
        return []
    samples = list(itertools.islice(operator.sample_inputs("cpu", dtype, requires_grad=is_grad), 40))[-count:]
    return [one.noncontiguous() for one in samples] if mode == "noncontig" else samples


def copy(sample: Any, dtype: torch.dtype | None = None) -> tuple[Any, ...]:
    """Return the arguments with tensors of their own, of another element type where one is given."""

    def clone(one: torch.Tensor) -> torch.Tensor:
        copy_ = one.detach().clone() if dtype is None or not one.is_floating_point() else one.detach().to(dtype)
        return copy_.requires_grad_(one.requires_grad)

    return pytree.tree_map_only(torch.Tensor, clone, (sample.input, sample.args, sample.kwargs))


def run(operator: Any, arguments: tuple[Any, ...], is_grad: bool, backend: str | None, dynamic: bool = False) -> list[Any]:
    """Return the tensors that the operator gives, and the gradients of its inputs."""
    first, args, kwargs = arguments

    def call(first: Any, args: Any, kwargs: Any) -> Any:
        return operator(first, *args, **kwargs)

    torch._dynamo.reset()
    torch.manual_seed(0)
    called = call if backend is None else torch.compile(call, backend=backend, dynamic=dynamic or None)
    results = [one for one in pytree.tree_leaves(called(first, args, kwargs)) if isinstance(one, torch.Tensor)]
    if not is_grad:
        return results
    inputs = [one for one in pytree.tree_leaves(arguments) if isinstance(one, torch.Tensor) and one.requires_grad]
    wanted = [one for one in results if one.requires_grad]
    seeds = [torch.linspace(-1, 1, one.numel()).reshape(one.shape).to(one.dtype) for one in wanted]
    gradients = torch.autograd.grad(wanted, inputs, seeds, allow_unused=True) if wanted else ()
    return [*results, *(one for one in gradients if one is not None)]


def judge(actual: list[Any], expected: list[Any], exact: list[Any] | None) -> str:
    """Return ``right``, ``near``, ``strides`` or ``wrong``."""
    if [(one.dtype, one.shape) for one in actual] != [(one.dtype, one.shape) for one in expected]:
        return "wrong"
    word = "right"
    for index, (one, other) in enumerate(zip(actual, expected, strict=True)):
        try:
            torch.testing.assert_close(one, other, equal_nan=True, check_stride=False)
        except AssertionError:
            if exact is None or not one.is_floating_point():
                return "wrong"
            mine, eager = ((made.double() - exact[index].double()).abs().nan_to_num().max() for made in (one, other))
            if not mine <= 4 * eager:
                return "wrong"
            word = "near"
        if word == "right" and one.stride() != other.stride() and one.numel() > 1:
            word = "strides"
    return word


def run_sample(operator: Any, sample: Any, mode: str) -> tuple[str, str]:
    """Return a word, and the reason of one that is not ``right``."""
    is_grad = mode == "grad"
    try:
        expected = run(operator, copy(sample), is_grad, None)
        torch.manual_seed(1)
        again = run(lambda *a, **k: (torch.rand(3), operator(*a, **k))[1], copy(sample), is_grad, None)
        if judge(again, expected, None) != "right":
            return "random", ""
    except Exception:  # noqa: BLE001  # whatever it is, it is PyTorch's
        return "eager fails", ""
    try:
        results = run(operator, copy(sample), is_grad, "xrt", mode == "dynamic")
        try:
            exact = run(operator, copy(sample, torch.float64), is_grad, None)
        except Exception:  # noqa: BLE001  # some operators take one element type alone
            exact = None
        word, why = judge(results, expected, exact), ""
    except Exception as error:  # noqa: BLE001  # counted as a failure
        word, why = "error", f"{type(error).__name__}: {str(error)[:300]}"
    if word in ("wrong", "strides", "error"):
        try:
            if judge(run(operator, copy(sample), is_grad, "aot_eager", mode == "dynamic"), expected, None) != "right":
                return f"{word} with aot_eager too", why
        except Exception as error:  # noqa: BLE001  # of PyTorch
            return f"{word} with aot_eager too", f"{type(error).__name__}: {error}"[:200]
    return word, why


def list_operators(names: list[str], part: str) -> Iterator[Any]:
    """Yield the operators of these names, or all; of ``2/8`` every eighth, from the second."""
    from torch.testing._internal.common_methods_invocations import op_db

    number, _, parts = part.partition("/")
    for index, operator in enumerate(op_db):
        if (not names or operator.name in names) and index % int(parts) == int(number) - 1:
            yield operator


def main() -> None:
    """Run the operators; print the wrong results and the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="operators of op_db; all where none is named")
    parser.add_argument("--modes", default="values", help=f"of {', '.join(MODES)}")
    parser.add_argument("--samples", type=int, default=1)
    parser.add_argument("--part", default="1/1", help="K/N: every N-th operator, from the K-th")
    parser.add_argument("--budget", type=float, default=float("inf"), help="seconds, after which no further operator begins")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    counts: dict[str, Counter[str]] = {mode: Counter() for mode in arguments.modes.split(",")}
    end, operators = time.monotonic() + arguments.budget, set()
    for operator in list_operators(arguments.names, arguments.part):
        if time.monotonic() > end:
            break
        for mode, words in counts.items():
            for sample in list_samples(operator, mode, arguments.samples):
                word, why = run_sample(operator, sample, mode)
                words[word] += 1
                operators.add(operator.name)
                if word not in ("right", "random", "eager fails"):
                    print(f"{mode} {operator.name} {operator.variant_test_name}: {word} {why}", flush=True)
    print(f"{len(operators)} operators")
    for mode, words in counts.items():
        print(mode, dict(words.most_common()))
    sys.exit(any(words[word] for words in counts.values() for word in ("wrong", "error", "strides")))


if __name__ == "__main__":
    main()
