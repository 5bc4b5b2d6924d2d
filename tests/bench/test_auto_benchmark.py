"""benchmarks/auto.py on made-up records: who takes turns, who won, what is a tie, and what its section says of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tools.performance_auto import auto_tables, auto_verdicts, nearest_row
from xrt.bench import RatioInterval

FOLDER = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(FOLDER))

import auto  # noqa: E402  # benchmarks are scripts, not a package
import auto_figures as told  # noqa: E402
import auto_steps as steps  # noqa: E402


def taken(seconds: float, seed: int = 0, spread: float = 0.005) -> list[float]:
    return [float(s) for s in seconds * np.exp(spread * np.random.default_rng(seed).standard_normal(20))]


def contender(title: str, seconds: float | None = 0.01, verdict: str = "lost", **more: Any) -> dict[str, Any]:
    engines = sorted(set(title.split(" + ")))
    own = {"title": title, "verdict": verdict, "seconds": seconds, "engines": engines, "count": len(title.split(" + "))}
    ratios = {"ratio": None, "ratio_low": None, "ratio_high": None}
    return {**own, **ratios, "note": "", "regions": None, **more}


def record(model: str = "resnet50", **seconds: float) -> dict[str, Any]:
    """Return a record in which auto and engines take so long."""
    rounds = {name: taken(s, seed) for seed, (name, s) in enumerate(seconds.items())}
    tuned = {"budget": 20.0, "spent": 12.0, "wall": 13.0, "measurements": 9, "contenders": [], "versions": {"ort": "1"}}
    chosen = {"plan": "ort", "engines": ["ort"], "regions": 1, "planned": 0.2, "how": "remembered"}
    return {"model": model, "tuned": tuned, "judged": {"rounds": rounds, **chosen, "left": {}, "off": {"auto": 1e-6}}}


# ---------------------------------------------------------------------- verdicts


@pytest.mark.parametrize(
    ("gain", "verdict"),
    [
        (RatioInterval(1.2, 1.1, 1.3), "win"),
        (RatioInterval(1.2, 0.99, 1.3), "tie"),
        (RatioInterval(1.005, 1.001, 1.009), "tie"),
        (RatioInterval(0.9, 0.85, 0.97), "loss"),
        (RatioInterval(0.9, 0.85, 1.01), "tie"),
        (RatioInterval(0.995, 0.991, 0.999), "tie"),
    ],
)
def test_only_what_excludes_one_and_is_beyond_the_floor_is_won_or_lost(gain: RatioInterval, verdict: str) -> None:
    assert told.verdict_of(gain) == verdict


def test_a_model_is_compared_with_its_best_single_engine() -> None:
    row = told.figures_of(record(ort=0.012, openvino=0.010, auto=0.008))
    assert (row["verdict"], row["best"]) == ("win", "openvino")
    assert row["gain"]["median"] == pytest.approx(1.25, rel=0.02)
    assert row["to_ort"]["median"] == pytest.approx(1.5, rel=0.02)
    assert row["gain"]["low"] <= row["gain"]["median"] <= row["gain"]["high"]
    assert not row["built"] and told.figures_of(record("softmax_chain{batch=2}", ort=1.0, auto=1.0))["built"]


def test_where_auto_chose_the_best_engine_nothing_is_won_or_lost() -> None:
    noisy = record(ort=0.010, openvino=0.020, auto=0.0103)
    assert told.figures_of(noisy)["verdict"] == "same"
    noisy["judged"]["engines"] = ["openvino"]
    assert told.figures_of(noisy)["verdict"] == "loss"


@pytest.mark.parametrize(
    ("judged", "why"),
    [
        ({"failed": "no answer within 170 s"}, "no answer within 170 s"),
        ({"rounds": {"ort": [1.0]}, "left": {"auto": "wrong: differs"}}, "wrong: differs"),
        ({"rounds": {"auto": [1.0]}, "left": {}}, "no single engine ran beside auto"),
    ],
)
def test_a_model_without_a_figure_says_why(judged: dict[str, Any], why: str) -> None:
    row = told.figures_of({**record(), "judged": judged})
    assert (row["verdict"], row["why"]) == ("none", why)
    assert why in auto.line(row)


# ---------------------------------------------------------------------- who takes turns


def test_engines_are_sorted_out_by_what_the_search_found() -> None:
    contenders = [
        contender("ort", 0.01, "won"),
        contender("openvino", 0.011),
        contender("tvm", 0.5),
        contender("iree", None, "failed", note="refused: TopK"),
        contender("xla", None, "failed", note="failed: no answer within 5 s"),
        contender("ort + xla", 0.012),
    ]
    judged, hopeless, unknown = told.sorted_out(["ort", "openvino", "xla", "tvm", "iree", "toy"], contenders)
    assert judged == ["ort", "openvino"]
    assert hopeless == {"tvm": "slow: 50 x the quickest, in the search", "iree": "refused: TopK"}
    assert unknown == ["xla", "toy"], "one that the search had no time for may be the best"


def test_ort_takes_turns_however_slow_it_is() -> None:
    assert told.sorted_out(["ort", "xla"], [contender("ort", 0.5), contender("xla", 0.01, "won")])[0] == ["ort", "xla"]
    assert told.with_probes([], {"ort": {"seconds": 5.0}, "xla": {"seconds": 0.1}}, []) == (["ort", "xla"], {})


def test_a_search_that_found_nothing_leaves_all_to_be_tried() -> None:
    assert told.sorted_out(["ort", "toy"], []) == ([], {}, ["ort", "toy"])


def test_who_is_quick_alone_takes_turns_and_who_is_not_is_reported() -> None:
    probes = {"xla": {"seconds": 0.02, "compile": 9.0}, "toy": {"seconds": 3.0, "compile": 0.1}, "tvm": {"failed": "no answer"}}
    singles, left = told.with_probes(["ort"], probes, [contender("ort", 0.01)])
    assert singles == ["ort", "xla"]
    assert left == {"toy": "slow: 300 x the quickest, alone", "tvm": "no answer"}
    assert told.with_probes([], {}, []) == ([], {})


@pytest.mark.slow
def test_the_slow_take_no_turns_and_each_of_the_others_as_many() -> None:
    """By a clock that the calls move, so that no busy machine makes the quick ones slow."""
    clock: dict[str, int] = {"ort": 0, "auto": 0, "toy": 0}
    now = [0.0]

    def call(name: str, seconds: float) -> Any:
        def run() -> None:
            clock[name] += 1
            now[0] += seconds

        return run

    rounds, slow = steps.in_turns(
        {"ort": call("ort", 0.001), "auto": call("auto", 0.001), "toy": call("toy", 0.1)}, 0.5, lambda: now[0]
    )
    assert len(rounds["ort"]) == len(rounds["auto"]) >= steps.FEWEST
    assert set(slow) == {"toy"} and clock["toy"] == 2 and slow["toy"].startswith("slow: ")


# ---------------------------------------------------------------------- over all


def test_the_nearest_mixture_says_what_it_lost_on() -> None:
    far = contender("tvm + ort", 0.02, ratio=2.0, ratio_low=1.9, ratio_high=2.1, regions=0.0199)
    between = contender("ort + xla", 0.0106, ratio=1.06, ratio_low=1.05, ratio_high=1.07, regions=0.0099)
    found = told.nearest_mixture([contender("ort", 0.01, "won"), far, between])
    assert found is not None and found["plan"] == "ort + xla"
    assert found["lost_on"] == "between its regions go 0.7 ms of 10.6"
    assert told.lost_on(far) == "its regions take 19.9 ms, the best engine alone 10"
    assert told.lost_on({**between, "ratio": 0.9}) == ""
    assert told.nearest_mixture([contender("ort", 0.01)]) is None


def test_the_nearest_of_mixtures_that_did_not_race_is_that_of_the_least_sum() -> None:
    found = told.nearest_mixture([contender("ort", 0.01, "won"), contender("tvm + ort", 0.07), contender("ort + xla", 0.05)])
    assert found is not None and (found["plan"], found["ratio"]) == ("ort + xla", None)
    assert found["lost_on"] == "its regions, measured one by one, take 50 ms together, the best engine 10"
    row = nearest_row({"model": "m", "nearest": found})
    assert row == ("`m`", "ort + xla", "it did not race", found["lost_on"])


def test_a_small_graph_is_compared_with_the_best_placement() -> None:
    rounds = {"0: ort": taken(0.011, 1), "3: ort + xla": taken(0.0097, 2), "auto": taken(0.01, 3)}
    own = {"model": "lrn_small", "engines": ["ort", "xla"], "nodes": 4, "plans": 16, "chosen": "ort", "rounds": rounds}
    found = told.small_figures(own)
    assert found["best"] == "ort + xla" and found["share"]["median"] == pytest.approx(0.97, rel=0.01)
    assert told.small_figures({"model": "x", "failed": "SIGSEGV"}) == {"graph": "x", "failed": "SIGSEGV"}


# ---------------------------------------------------------------------- what the page says


def figures(*records: dict[str, Any], **more: Any) -> dict[str, Any]:
    rows = [told.figures_of(one) for one in records]
    best, ort = (auto.mean_of(records, rows, other) for other in ("best", "ort"))
    same = {"model": "squeezenet", "regions": 4, "plans": 3, "digest": "0", "same": True}
    own = {"threads": 2, "budget": 20.0, "versions": {"ort": "1"}, "models": rows, "to_best": best, "to_ort": ort}
    return {"machine": "m", **own, "small": [], "same_plans": same, **more}


def verdicts(found: dict[str, Any]) -> dict[str, bool]:
    return {verdict.what.partition(",")[0]: verdict.reached for verdict in auto_verdicts(found)}


GOOD = record("softmax_chain", ort=0.02, auto=0.01), record("resnet50", ort=0.02, openvino=0.01, auto=0.01)


def test_targets_are_judged() -> None:
    found = verdicts(figures(*GOOD))
    assert found == {
        "gain over the best single engine": True,
        "gain over `ort` alone": True,
        "softmax": True,
        "mixtures over 1.1 x the best single engine": False,
        "time of a search over its budget": True,
        "a second process plans": True,
        "plans from one cost table in two processes": True,
    }


def test_what_missed_is_reported() -> None:
    lost, missing = record("vgg19", openvino=0.010, auto=0.0105), {**record("gpt"), "judged": {"failed": "SIGSEGV"}}
    late = {**record("bert", ort=0.01, auto=0.01)}
    late["judged"]["planned"], late["tuned"]["spent"] = 1.4, 21.0
    found = figures(lost, missing, late, same_plans={"model": "m", "failed": "SIGSEGV"})
    judged = {verdict.what.partition(",")[0]: verdict for verdict in auto_verdicts(found)}
    assert not any(verdict.reached for verdict in judged.values())
    assert "under it: vgg19; no figure: gpt" in judged["gain over the best single engine"].figure
    assert judged["time of a search over its budget"].figure == "1.050 x (bert)"
    assert judged["a second process plans"].figure == "1.40 s (bert)"
    text = "\n".join(auto_tables(found))
    assert "no figure: SIGSEGV" in text and "| loss |" in text
    assert "Of 3 models: 1 chose the best single engine, 1 lost, 1 without a figure." in text


def test_three_great_mixtures_that_were_not_built_for_it_are_needed() -> None:
    great = [record(model, ort=0.02, auto=0.01) for model in ("vit", "gpt", "bert")]
    for one in great:
        one["judged"]["engines"] = ["ort", "xla"]
    built = [{**one, "model": "chain"} for one in great]
    what = "mixtures over 1.1 x the best single engine"
    assert verdicts(figures(*great))[what]
    assert not verdicts(figures(*great[:2], *built))[what]


@pytest.mark.parametrize(("share", "reached"), [(0.98, True), (0.96, False)])
def test_small_graphs_are_judged(share: float, reached: bool) -> None:
    small = {"graph": "lrn_small", "engines": ["ort", "xla"], "nodes": 4, "plans": 16, "chosen": "ort", "best": "xla"}
    small["share"] = {"median": share, "low": share, "high": share}  # type: ignore[assignment]  # a mixed record
    found = figures(*GOOD, small=[small])
    assert verdicts(found)["`lrn_small`: the best placement's time over auto's"] is reached
    assert "`lrn_small`" in "\n".join(auto_tables(found))


def test_a_pipe_in_a_reason_does_not_break_the_table() -> None:
    one = record(ort=0.01, auto=0.01)
    one["judged"]["left"] = {"tvm": "failed: a | b\nc " + "x" * 500}
    line = next(line for text in auto_tables(figures(one)) for line in text.splitlines() if "`tvm`" in line)
    assert line.count("|") == 4 and len(line) < 220


# ---------------------------------------------------------------------- the run


def test_what_was_found_is_kept_and_a_run_goes_on(tmp_path: Path) -> None:
    found = iter([{"a": 1}, {"a": 2}])
    assert [auto.kept(str(tmp_path), "judge x{y=1}", lambda: next(found)) for _ in range(2)] == [{"a": 1}] * 2
    assert auto.kept(str(tmp_path), "judge x{y=1}", lambda: next(found), anew=True) == {"a": 2}


@pytest.mark.slow
def test_a_process_that_dies_or_hangs_is_a_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "benchmarks" / "steps.py"
    script.parent.mkdir()
    monkeypatch.setattr(auto, "STEPS", script)
    asked = {"threads": 1}
    script.write_text("raise SystemExit('no such luck')", encoding="utf-8")
    assert auto.process("judge", asked, 60) == {"failed": "the process ended with code 1: no such luck"}
    script.write_text("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", encoding="utf-8")
    assert auto.process("judge", asked, 60) == {"failed": "the process ended with code -9: it said nothing"}
    script.write_text("import time; time.sleep(60)", encoding="utf-8")
    assert auto.process("judge", asked, 0.5) == {"failed": "no answer within 0.5 s"}


def test_a_judged_run_that_dies_is_repeated_with_ort_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def process(step: str, asked: dict[str, Any], limit: float) -> dict[str, Any]:
        dies = asked["singles"] != ["ort"]
        return {"failed": "SIGSEGV"} if dies else {"rounds": {"auto": [1.0], "ort": [1.0]}}

    monkeypatch.setattr(auto, "process", process)
    found, reason = auto.judged_of({"singles": ["ort", "tvm"]}, 1), "the judged run with all engines failed: SIGSEGV"
    assert found["left"] == {"tvm": reason} and set(found["rounds"]) == {"auto", "ort"}
    assert auto.judged_of({"singles": ["tvm"]}, 1) == {"failed": "SIGSEGV", "left": {"tvm": reason}}


@pytest.mark.full
@pytest.mark.slow
def test_a_quick_run_answers_everything(tmp_path: Path) -> None:
    command = [sys.executable, str(FOLDER / "auto.py"), "--quick", "--json", "--store", str(tmp_path), "--model", "mlp{layers=1}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=True)
    found = json.loads(done.stdout)
    (row,) = found["models"]
    assert row["verdict"] in ("win", "tie", "loss", "same")
    assert set(row["ms"]) <= {"auto", "ort", "toy"}
    assert found["small"][0]["plans"] == 4 and found["same_plans"]["same"] is True
    assert list(auto_tables(found)) and list(auto_verdicts(found))
