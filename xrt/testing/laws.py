"""The laws, as tests: what must hold however a Function is cut, listed, named, mixed and run, whatever the engine.

They are stated over generated Functions; the numbers are those of the laws in the order in which XRT states them.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from xrt.cache import make_signature
from xrt.engines import CompileContext, GraphCompiler
from xrt.formats import onnx
from xrt.formats.text import to_text
from xrt.formats.text_parser import parse
from xrt.partition import ClusteringOptions, Pin, Plan, partition
from xrt.passes import infer_shapes
from xrt.testing.fault_injection import RecordingEngine
from xrt.testing.renaming import rename_values
from xrt.testing.running import as_planned, make_module
from xrt.testing.strategies import functions, labels, make_random_inputs
from xrt.testing.suite_base import SuiteBase, alone_or_skip, bounded, run_outputs
from xrt.verify.execution import run_regions

if TYPE_CHECKING:
    from xrt.graph import Function

__all__ = ["Laws"]


@pytest.mark.filterwarnings("ignore::xrt.errors.FallbackWarning")  # an engine may refuse at compile; what then happens is the law
class Laws(SuiteBase):
    """What holds of the engine alone, in pieces, and in a list with the reference engine."""

    @bounded
    @given(data=st.data(), seed=st.integers(0, 99))
    def test_it_agrees_with_the_reference(self, data: st.DataObject, seed: int) -> None:
        function = data.draw(functions(self.supported_form()))
        results = alone_or_skip(self.made(), function.replace(aliases=()), make_random_inputs(function, seed))
        self.same(results, function, seed, "on the engine alone")

    @bounded
    @given(data=st.data())
    def test_cut_law(self, data: st.DataObject) -> None:
        """Law 1: cut anywhere and run in pieces, it is the same."""
        function = data.draw(functions(self.supported_form(aliases=False)))
        cut = data.draw(labels(function))
        engine = self.made()
        results = run_regions(function, cut, make_random_inputs(function, 3), lambda f, i: alone_or_skip(engine, f, i))
        self.same(results, function, 3, f"cut into pieces by {cut}")

    @bounded
    @given(data=st.data(), most=st.none() | st.integers(1, 3))
    def test_acyclic_law(self, data: st.DataObject, most: int | None) -> None:
        """Law 2: the regions of its plans can run in the order in which they are listed, and hold every node once."""
        function = as_planned(data.draw(functions(self.form)))
        plan = partition(function, self.list_engines(), ClusteringOptions(maximum_nodes=most), strict=True)
        home = {name: index for index, launch in enumerate(plan.launches) for name in launch.nodes}
        assert sorted(home) == sorted(node.name for node in function.nodes), f"a node is in no region\n{plan}"
        late = [(a, b) for a, b in _waits(function) if home[a] > home[b]]
        assert not late, f"{late[0][1]!r} runs before {late[0][0]!r}, for which it waits\n{plan}"

    @bounded
    @given(data=st.data())
    def test_order_law(self, data: st.DataObject) -> None:
        """Law 3: neither the listing of nodes nor the names of values change what the engine takes, or the signature."""
        function = as_planned(data.draw(functions(self.form)))
        listed = function.replace(nodes=tuple(data.draw(st.permutations(function.nodes))))
        named = rename_values(function, {"v1": "zz", "v3": "a"})
        engine, context = self.made(), CompileContext()
        for other, what in ((listed, "the listing of the nodes"), (named, "their names")):
            assert self._regions(other) == self._regions(function), f"{what} changes the regions\n{function}"
            same = make_signature(other, engine, context).key == make_signature(function, engine, context).key
            assert same, f"{what} changes the signature\n{function}"

    def _regions(self, function: Function) -> list[tuple[str, str]]:
        plan: Plan = partition(function, self.list_engines(), strict=True)
        return [(launch.engine, launch.function.fingerprint) for launch in plan.launches]

    @bounded
    @given(data=st.data())
    def test_fallback_law(self, data: st.DataObject) -> None:
        """Law 4: with the reference engine behind it, nothing is lost."""
        function = data.draw(functions(self.form))
        with make_module(function, self.list_engines()) as module:
            results = run_outputs(module(*make_random_inputs(function, 4)), function)
        self.same(results, function, 4, "with the reference engine behind it")

    @bounded
    @given(data=st.data(), alternate=st.integers(0, 1), all_taken=st.booleans())
    def test_mixture_law(self, data: st.DataObject, alternate: int, all_taken: bool) -> None:
        """Law 5: nodes that alternate between two engines compute what each of them does."""
        form = self.supported_form() if all_taken else self.form
        function = as_planned(data.draw(functions(form)))  # a pin on a node that is gone would be an error
        engines = self.list_engines()
        pins = _alternating(function, engines, alternate)
        assume(pins)
        with make_module(function, engines, pins=pins) as module:
            results = run_outputs(module(*make_random_inputs(function, 5)), function)
        self.same(results, function, 5, f"with {', '.join(map(str, pins))}")

    @bounded
    @given(data=st.data())
    def test_round_trip_law(self, data: st.DataObject) -> None:
        """Law 6: the engine answers the same of a Function that went through ONNX, or through text."""
        function = infer_shapes(data.draw(functions(self.form)))
        engine = self.made()
        reasons = [engine.why_not(node, function) for node in function.nodes]
        for again in (onnx.load(onnx.to_model(function).SerializeToString()), parse(to_text(function))):
            assert [engine.why_not(node, again) for node in again.nodes] == reasons, (
                f"why_not reads more than is stored\n{function}"
            )

    @bounded
    @given(data=st.data())
    def test_signature_law(self, data: st.DataObject) -> None:
        """Law 7: the engine made again has the same signature; another context, or another value of an option, has not."""
        function = data.draw(functions(self.form))
        engine, context = self.made(), CompileContext()
        mine = make_signature(function, engine, context)
        assert make_signature(function, self.made(), context).key == mine.key, "the engine made again has another signature"
        others = [(engine, replace(context, threads=context.threads + 1)), *((other, context) for other in _varied(engine))]
        for other, around in others:
            assert make_signature(function, other, around).key != mine.key, f"{other!r} has the signature of {engine!r}"

    @settings(bounded, max_examples=5)
    @given(data=st.data(), runs=st.integers(1, 4))
    def test_once_law(self, data: st.DataObject, runs: int) -> None:
        """Law 8: prepared once, run as often as it is called."""
        function = data.draw(functions(replace(self.form, symbolic=False)))
        recording = RecordingEngine(inner=self.made().spec)
        with make_module(function, [recording, self.reference]) as module:
            for seed in range(runs):
                module(*make_random_inputs(function, seed))
            regions = [launch for launch in module.plan.launches if launch.engine == recording.spec]
            distinct = len({launch.function.fingerprint for launch in regions})
        counts = {word: recording.journal.count(word) for word in ("prepare", "run")}
        assert counts == {"prepare": distinct, "run": runs * len(regions)}, f"{len(regions)} regions, {runs} runs: {counts}"

    @bounded
    @given(data=st.data())
    def test_reason_law(self, data: st.DataObject) -> None:
        """Law 9: every node that is not on the engine has a reason."""
        function = data.draw(functions(self.form))
        engines = self.list_engines()
        with make_module(function, engines) as module:
            module(*make_random_inputs(function, 0))
            elsewhere = {n for launch in module.plan.launches if launch.engine != engines[0].spec for n in launch.nodes}
            reasons = {reason.node: reason.text for reason in module.plan.reasons if reason.engine == engines[0].spec}
        assert elsewhere == set(reasons), f"nodes without a reason: {sorted(elsewhere - set(reasons))}"
        assert all(text.strip() for text in reasons.values())


def _waits(function: Function) -> list[tuple[str, str]]:
    """Return every (earlier, later) pair of nodes, worked out from the nodes alone."""
    maker = {name: node.name for node in function.nodes for name in node.defines}
    by_value = [(maker[name], node.name) for node in function.nodes for name in node.uses if name in maker]
    return by_value + [(earlier, node.name) for node in function.nodes for earlier in node.control]


def _alternating(function: Function, engines: list[GraphCompiler], start: int) -> list[Pin]:
    """Return pins that give every other node that the first engine takes to it, the rest to the second; none for no node."""
    engine = engines[0]
    taken = [n.name for n in function.nodes if engine.why_not(n, function) is None][start::2]
    others = [n.name for n in function.nodes if n.name not in taken]
    pins = [Pin(tuple(names), e.spec, "name") for names, e in ((taken, engine), (others, engines[1])) if names]
    return pins if taken else []


def _varied(engine: GraphCompiler) -> list[GraphCompiler]:
    """Return the engine with each of its switches, which have but one other value, turned."""
    switches = [f.name for f in fields(engine) if isinstance(getattr(engine, f.name), bool)]  # type: ignore[arg-type]  # engines are dataclasses
    return [replace(engine, **{name: not getattr(engine, name)}) for name in switches]  # type: ignore[type-var]
