"""Charts of the results, as PNG."""

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

_COLOURS = {"cold": "#7fb3d5", "warm": "#1f618d", "limit": "#b2babb"}
_RATES = (("records_per_second", "records per second"), ("records_per_cpu_second", "records per CPU-second"))


def draw(result: Mapping[str, Any], folder: Path) -> Path:
    """Draw a result into a folder, under its benchmark's name, and return the path."""
    mpl.use("Agg")
    kinds = (("cases", _histograms), ("topics", _dirt), ("slices", _over_time))
    figure = next((drawn for part, drawn in kinds if part in result), _bars)(result)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{result['benchmark']}.png"
    figure.savefig(path, dpi=110)
    return path


def _bars(result: Mapping[str, Any]) -> Figure:
    """Return both rates of every contender on the first topic, with the range of the repeats."""
    topic = result["series"][0]["topic"]
    series = [item for item in result["series"] if item["topic"] == topic][::-1]
    figure = Figure(figsize=(11, 1.2 + 0.42 * len(series)), layout="constrained")
    labels = [f"{entry['contender']}{'' if entry['state'] == 'limit' else ', ' + entry['state']}" for entry in series]
    for axes, (rate, title) in zip(figure.subplots(1, 2, sharey=True), _RATES, strict=True):
        medians = [entry["median"][rate] / 1000 for entry in series]
        bars = axes.barh(labels, medians, color=[_COLOURS[entry["state"]] for entry in series])
        axes.bar_label(bars, fmt="%.0f k", padding=3)
        axes.set_title(title)
        axes.margins(x=0.15)
        axes.xaxis.set_visible(False)
        axes.spines[["top", "right", "bottom"]].set_visible(False)
    records = f"{result['settings']['records']:,} records of {result['bytes_per_record'][topic]:.0f} B"
    machine = result["machine"]
    figure.suptitle(f"{records}, {machine['cores']} cores, medians of {result['settings']['repeats']}")
    return figure


def _dirt(result: Mapping[str, Any]) -> Figure:
    """Return the warm rates of every contender, a group of bars for each topic."""
    topics = result["topics"]
    warm = [series for series in result["series"] if series["state"] == "warm"]
    contenders = list(dict.fromkeys(series["contender"] for series in warm))
    figure = Figure(figsize=(11, 4), layout="constrained")
    for axes, (rate, title) in zip(figure.subplots(1, 2), _RATES, strict=True):
        for number, contender in enumerate(contenders):
            found = {item["topic"]: item["median"][rate] / 1000 for item in warm if item["contender"] == contender}
            places = [place + number / (len(contenders) + 1) for place in range(len(topics))]
            bars = axes.barh(places, [found[topic] for topic in topics], 0.9 / (len(contenders) + 1), label=contender)
            axes.bar_label(bars, fmt="%.0f k", padding=3)
        axes.set_yticks([place + (len(contenders) - 1) / (len(contenders) + 1) / 2 for place in range(len(topics))])
        axes.set_yticklabels(topics.values())
        axes.invert_yaxis()
        axes.set_title(title)
        axes.margins(x=0.15)
        axes.xaxis.set_visible(False)
        axes.spines[["top", "right", "bottom"]].set_visible(False)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=len(contenders))
    figure.suptitle(f"{result['settings']['records']:,} records each, {result['machine']['cores']} cores, warm")
    return figure


def _over_time(result: Mapping[str, Any]) -> Figure:
    """Return how long records waited, and the memory of each process, over the time of a soak."""
    figure = Figure(figsize=(11, 4), layout="constrained")
    fresh, memory = figure.subplots(1, 2)
    middles = [(item["from"] + item["to"]) / 2 for item in result["slices"]]
    for name, label in (("p50", "median"), ("p95", "95 %")):
        fresh.plot(middles, [item["seconds"].get(name, 0) for item in result["slices"]], marker="o", label=label)
    for kill in result["kills"]:
        fresh.axvline(kill["at"] / 60, color="#e6b0aa", linewidth=0.8, zorder=0)
    fresh.set_title("seconds from a record to its row; lines are kills")
    minutes = [sample["at"] / 60 for sample in result["samples"]]
    for part in sorted({name for sample in result["samples"] for name in sample["memory"]}):
        memory.plot(minutes, [sample["memory"].get(part, 0) / 2**20 for sample in result["samples"]], label=part)
    memory.set_title("memory, MiB")
    for axes in (fresh, memory):
        axes.set_xlabel("minutes")
        axes.set_ylim(bottom=0)
        axes.legend(frameon=False, fontsize="small")
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def _histograms(result: Mapping[str, Any]) -> Figure:
    """Return how many records waited how long, a histogram for each case."""
    cases = [case for case in result["cases"] if "histogram" in case]
    figure = Figure(figsize=(11, 0.8 + 2.2 * len(cases)), layout="constrained")
    for axes, case in zip(figure.subplots(len(cases), 1, squeeze=False, sharex=True)[:, 0], cases, strict=True):
        edges, counts = case["histogram"]["edges"], case["histogram"]["counts"]
        axes.bar(edges[:-1], counts, width=[b - a for a, b in pairwise(edges)], align="edge")
        for name, style in (("p50", ":"), ("p95", "--"), ("p99", "-.")):
            axes.axvline(
                case["seconds"][name], linestyle=style, color="#c0392b", label=f"{name} {case['seconds'][name]:.2f} s"
            )
        axes.set_title(case["name"])
        axes.set_xlabel("seconds from produced to visible")
        axes.set_ylabel("records")
        axes.legend()
    return figure
