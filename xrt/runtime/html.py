"""Notebook display of a Profile: one call as a strip of regions, and a table of times."""

from __future__ import annotations

from xrt.html.drawing import MeanCall, RegionTimes, Strip, make_strips
from xrt.html.formatting import format_count, percent, seconds
from xrt.html.rendering import render_cell
from xrt.partition.html import color_engines
from xrt.runtime.profile import Profile

__all__ = ["make_mean_call", "render_profile"]


def render_profile(profile: Profile) -> str:
    """Render a Profile as HTML."""
    if not any(launch.calls for launch in profile.launches):
        return render_cell("profile.html", profile=profile, strips=None)
    regions = [RegionTimes(x.launch, x.engine, 0, (), (), is_output=False) for x in profile.launches]
    colors, call = color_engines(region.engine for region in regions), make_mean_call(profile)
    total = sum(call.regions) or 1.0
    launches = [
        (x.launch, x.engine, x.device, x.calls, seconds(taken), percent(taken / total))
        for x, taken in zip(profile.launches, call.regions, strict=True)
    ]
    threads = "" if profile.threads is None else f" on {format_count(profile.threads, 'thread')}"
    strip = Strip(f"One call{threads}, mean of {format_count(call.calls, 'call')}", regions, call)
    strips = make_strips([strip], colors)
    return render_cell("profile.html", profile=profile, strips=strips, colors=colors, launches=launches)


def make_mean_call(profile: Profile) -> MeanCall:
    """Mean times of the profiled calls. A call without recorded whole time counts the sum of its launches."""
    regions = tuple(launch.seconds / max(launch.calls, 1) for launch in profile.launches)
    whole = [moment.ended - moment.began for moment in profile.moments if moment.category == "call"]
    seconds_of_call = sum(whole) / len(whole) if whole else sum(regions)
    return MeanCall(max((launch.calls for launch in profile.launches), default=0), seconds_of_call, regions)
