"""A model in parts on a small cluster of Ray: equal to the whole, on few cores too, and no wait without an end.

Nothing is timed. What must not happen for ever is shown by what happens instead: an error that names the stage.
"""

from __future__ import annotations

import itertools
import os
import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xrt
from benchmarks.pipeline import write_model as write_perceptron
from tests.integrations.clusters import start_cluster
from tests.integrations.models import LOOKUP, SCALE, write_model
from xrt.errors import EngineError, OptionError, StageLost
from xrt.integrations.ray.stage_channels import choose_channel
from xrt.integrations.ray.stage_process import StageProcess
from xrt.ray import StagePipeline, pipeline
from xrt.runtime import available_cores

LATE = 120.0
"""Seconds after which a test fails that would hang."""


# ---------------------------------------------------------------------- the choice, without a cluster


def describe(machine: str, node: str, cores: int, threads: int = 1) -> StageProcess:
    return StageProcess(threads, 1, machine, node, cores)


@pytest.mark.parametrize(
    ("cores", "stages", "kind"),
    [
        (2, 1, "calls"),  # caller and stage poll, and both write to another node
        (4, 1, "graph"),
        (2, 4, "calls"),
        (9, 4, "calls"),
        (10, 4, "graph"),
    ],
)
def test_a_graph_is_used_where_each_thread_that_polls_has_a_core(cores, stages, kind):
    caller = describe("here", "0", cores)
    others = [describe("here", str(place + 1), cores) for place in range(stages)]
    assert choose_channel("auto", caller, others) == kind


def test_cores_are_counted_by_machine():
    stages = [describe(f"m{place}", str(place), 2) for place in range(4)]
    assert choose_channel("auto", describe("here", "9", 2), stages) == "graph"
    assert choose_channel("auto", describe("m0", "0", 2), stages) == "calls"
    together = [describe("m", "1", 4, threads=2), describe("m", "1", 4, threads=1)]
    assert choose_channel("auto", describe("here", "9", 2), together) == "graph"  # one node: no thread sends to the second
    assert choose_channel("auto", describe("here", "9", 2), [describe("m", "1", 4, threads=2)] * 2) == "calls"


@pytest.mark.parametrize("kind", ["calls", "graph"])
def test_a_channel_that_is_named_is_used(kind):
    assert choose_channel(kind, describe("m", "0", 1), [describe("m", "1", 1)]) == kind


def test_a_channel_that_is_unknown():
    with pytest.raises(OptionError) as caught:
        choose_channel("grahp", describe("m", "0", 1), [])  # type: ignore[arg-type]  # the mistake is the test
    assert str(caught.value) == "channel must be 'auto', 'calls' or 'graph'; got 'grahp'. Did you mean 'graph'?"


# ---------------------------------------------------------------------- on a cluster

on_ray = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # the warnings of Ray and its libraries are theirs


@pytest.fixture(scope="module")
def cluster():
    with start_cluster(0, 1, 1, 1, 1) as (cluster, _):
        yield cluster


def chain(folder: Path, layers: int = 8, width: int = 4) -> str:
    """Write a model of products with small integers, which are exact in any order."""
    weights = "".join(f"float[{width},{width}] w{i} = {{{', '.join(map(str, draw(i, width)))}}}, " for i in range(layers))
    nodes = "\n".join(f"  x{i + 1} = MatMul (x{i}, w{i})" for i in range(layers))
    text = f"""
<ir_version: 10, opset_import: ["" : 21]>
chain (float[n,{width}] x0) => (float[n,{width}] x{layers}) <{weights.removesuffix(", ")}> {{
{nodes}
}}
"""
    return write_model(folder, text)


def draw(seed: int, width: int) -> list[float]:
    return np.random.default_rng(seed).integers(-1, 2, width * width).astype("float32").tolist()


def count_mapped(pid: int, path: Path) -> int:
    """Return the bytes of a file that are in memory of a process."""
    found, here = 0, False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            here = line.endswith(str(path))
        elif here and line.startswith("Rss:"):
            found += 1024 * int(line.split()[1])
    return found


def count_peak(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def has_poller(process: StageProcess) -> bool:
    """Whether the process has the thread of Ray that polls for values to send to another node."""
    return any(file.read_text().startswith("worker.channel") for file in Path(f"/proc/{process.pid}/task").glob("*/comm"))


def call_for_ever(piped: StagePipeline, *inputs: Any) -> None:
    """Call until there is an error: a process that was killed may still be listed as one that lives."""
    while True:
        piped(*inputs)


@pytest.mark.sample(9)
class TestOnRay:
    pytestmark = on_ray

    @pytest.mark.full
    def test_four_stages_run_on_the_cores_there_are(self, cluster, tmp_path):
        """More stages than cores, one node for each; many parts, in order, twice over the bound of parts on their way."""
        model = chain(tmp_path)
        items = [np.full((2, 4), number, "float32") for number in range(40)]
        with xrt.XRTModule(model, engine="ort") as module:
            expected = [module(item) for item in items]
        with pipeline(model, 4, engine="ort", timeout=LATE) as piped:
            assert len({process.node for process in piped.processes}) == 4
            assert len({process.machine for process in piped.processes}) == 1
            assert piped.channel == ("calls" if available_cores() < 10 else "graph")
            assert any(map(has_poller, piped.processes)) is (piped.channel == "graph")
            for found, whole in zip(piped.map(items), expected, strict=True):
                np.testing.assert_array_equal(found, whole)
                assert found.flags.writeable

    @pytest.mark.full
    def test_a_process_has_the_weights_of_its_stage_alone(self, cluster, tmp_path):
        """Pages of the mapped bundle, the largest ones, and the peak over that of a model without weights to speak of."""
        layers, width = 16, 1024  # 4 MB each
        small = self.find_peaks(tmp_path / "small.xrt", layers, 32)
        large = self.find_peaks(tmp_path / "large.xrt", layers, width)
        own = 4 * width * width * layers // 4
        for (_, before), (mapped, peak) in zip(small, large, strict=True):
            assert mapped <= own + (1 << 20)
            assert peak - before <= 2.5 * own  # mapped while they are packed, and packed; all weights are 4 times as much

    def find_peaks(self, path: Path, layers: int, width: int) -> list[tuple[int, int]]:
        """Return for each of four stages the bytes of the bundle that its process has mapped, and its peak."""
        write_perceptron(path, layers, width, "ort")
        x = np.ones((2, width), "float32")
        with pipeline(path, 4, channel="calls", timeout=LATE) as piped, xrt.load(path) as module:
            np.testing.assert_allclose(piped(x), module(x), rtol=1e-4, atol=1e-6)
            return [(count_mapped(process.pid, path), count_peak(process.pid)) for process in piped.processes]

    @pytest.mark.full
    def test_parts_on_their_way_are_bounded(self, cluster, tmp_path):
        taken = []

        def count() -> Any:
            for number in itertools.count():
                taken.append(number)
                yield np.full((1, 4), number, "float32")

        with pipeline(chain(tmp_path), 2, engine="toy", channel="calls", timeout=LATE) as piped:
            results = piped.map(count())
            next(results)
            assert len(taken) == 5  # two for each stage, and the one that made room
            results.close()  # type: ignore[attr-defined]  # a generator
            assert piped(np.zeros((1, 4), "float32")).shape == (1, 4)

    @pytest.mark.full
    def test_a_pipeline_equals_the_whole_model(self, cluster, tmp_path):
        model = write_model(tmp_path, SCALE)
        rng = np.random.default_rng(0)
        x, bias = rng.random((7, 3), "float32"), rng.random(7, "float32")
        with xrt.XRTModule(model, engine="ort") as module:
            expected = module(x, bias)
            parts = [module(x[i : i + 1], bias[i : i + 1]) for i in range(7)]
        with pipeline(model, 2, engine="ort", micro_batch=2, timeout=LATE) as found:
            assert [process.threads for process in found.processes] == [1, 1]
            assert [sum(len(launch.nodes) for launch in stage.plan.launches) for stage in found.stages] == [2, 2]
            for mine, whole in zip(found(x, bias=bias), expected, strict=True):
                np.testing.assert_array_equal(mine, whole)
            streamed = list(found.map((x[i : i + 1], bias[i : i + 1]) for i in range(7)))
            for mine, whole in zip(streamed, parts, strict=True):
                for a, b in zip(mine, whole, strict=True):
                    np.testing.assert_array_equal(a, b)
            with pytest.raises(xrt.errors.InputError) as caught:
                found(x.astype("float64"), bias)
            assert str(caught.value) == "input 'x' must be float32; got float64; convert it with .astype('float32')"
        with pytest.raises(OptionError) as closed:
            found(x, bias)
        assert str(closed.value) == "the pipeline is closed; make another one: xrt.ray.pipeline(...)"

    @pytest.mark.slow
    @pytest.mark.parametrize("channel", ["calls", "graph"])
    def test_a_stage_that_dies_is_named_and_started_again(self, cluster, tmp_path, channel):
        x, bias = np.ones((1, 3), "float32"), np.ones(1, "float32")
        with pipeline(write_model(tmp_path, SCALE), 2, engine="toy", channel=channel, timeout=LATE) as piped:
            before, expected = piped.processes, piped(x, bias)
            os.kill(before[1].pid, signal.SIGKILL)
            with pytest.raises(StageLost) as caught:
                call_for_ever(piped, x, bias)
            shown = f"{before[1].pid} on {before[1].machine}"
            if channel == "calls":
                assert caught.value.stages == (1,)
                assert str(caught.value) == (
                    f"stage 2 of 2 has ended (process {shown}), and what was on its way is lost; "
                    "start again what has ended: p.rebuild()"
                )
            else:  # Ray may end the others of a graph as well
                assert 1 in caught.value.stages
                assert shown in str(caught.value)
            assert piped.rebuild() == ((1,) if channel == "calls" else (0, 1))
            assert piped.processes[1].pid != before[1].pid
            assert (piped.processes[0].pid == before[0].pid) is (channel == "calls")
            for mine, whole in zip(piped(x, bias), expected, strict=True):
                np.testing.assert_array_equal(mine, whole)

    @pytest.mark.slow
    def test_a_machine_that_is_lost_takes_its_stage(self, cluster, tmp_path):
        kept, node = (
            cluster.add_node(num_cpus=1, object_store_memory=100 << 20, resources={name: 1}) for name in ("kept", "lost")
        )
        options = [{"resources": {"kept": 1}}, {"resources": {"lost": 1}}]
        x = np.ones((1, 4), "float32")
        with pipeline(chain(tmp_path), 2, engine="toy", channel="calls", actor_options=options, timeout=LATE) as piped:
            expected = piped(x)
            cluster.remove_node(node, allow_graceful=False)
            with pytest.raises(StageLost) as caught:
                call_for_ever(piped, x)
            assert caught.value.stages == (1,)
            cluster.add_node(num_cpus=1, object_store_memory=100 << 20, resources={"lost": 1})
            assert piped.rebuild() == (1,)
            np.testing.assert_array_equal(piped(x), expected)
        cluster.remove_node(kept)

    @pytest.mark.parametrize("channel", ["calls", "graph"])
    def test_an_error_in_a_stage_is_the_engines(self, cluster, tmp_path, channel):
        text = LOOKUP.replace("y = Gather (table, index)", "z = Gather (table, index) y = Neg (z)")
        with pipeline(write_model(tmp_path, text), 2, engine="toy", channel=channel, timeout=LATE) as found:
            assert found.channel == channel
            assert any(map(has_poller, found.processes)) is (channel == "graph")
            good, bad = np.array([1, 2]), np.array([99])
            with pytest.raises(EngineError):
                found(bad)
            np.testing.assert_array_equal(found(good), [-2, -4])
            for number, result in enumerate(found.map(np.array([place % 3]) for place in range(30))):
                np.testing.assert_array_equal(result, [-(2.0 ** (number % 3))])

    @pytest.mark.full
    def test_a_stage_that_does_not_answer(self, cluster, tmp_path):
        """A process that is stopped neither computes nor ends; the pipeline names it, and replaces it."""
        x = np.ones((1, 4), "float32")
        with pipeline(chain(tmp_path), 2, engine="toy", channel="calls", timeout=LATE) as piped:
            expected = piped(x)
            piped._timeout = piped._channel._timeout = 3.0
            os.kill(piped.processes[1].pid, signal.SIGSTOP)
            with pytest.raises(StageLost) as caught:
                piped(x)
            assert 1 in caught.value.stages
            assert str(caught.value).startswith("the pipeline gave no result in 3 s, and stage")
            assert str(caught.value).endswith("computes; wait longer (timeout); start again what has ended: p.rebuild()")
            piped._timeout = LATE
            piped.rebuild()
            np.testing.assert_array_equal(piped(x), expected)

    @pytest.mark.full
    def test_a_stage_that_nothing_can_run(self, cluster, tmp_path):
        with pytest.raises(StageLost) as caught:
            pipeline(chain(tmp_path), 2, engine="toy", actor_options=[{}, {"resources": {"absent": 1}}], timeout=5)
        assert 1 in caught.value.stages
        assert "cannot be used: Ray has started no process for it in 5 s; each stage asks for CPU 1; CPU 1, absent 1, and" in str(
            caught.value
        )
        assert str(caught.value).endswith("add nodes, ask for less (num_cpus, memory, actor_options), or wait longer (timeout)")

    @pytest.mark.slow
    def test_an_error_while_a_stage_loads(self, cluster, tmp_path):
        """The first process that loads finds no model: the error is that of the file, not a dead actor."""
        from xrt.integrations.ray.stage_process import StageSource, load_stages, start_stages

        source = StageSource(str(tmp_path / "absent.xrt"), "toy", (1,), {})
        actors = start_stages(source, {0: {"num_cpus": 1}}, LATE)
        with pytest.raises(Exception, match=r"absent\.xrt") as caught:
            load_stages(actors, 1, LATE)
        assert not isinstance(caught.value, StageLost)
