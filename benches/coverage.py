"""Simulated coverage of the printed 95 % intervals: one row per kind of interval, data and clusters.

Data is drawn from distributions whose true value is known, for 3, 5, 8 and 24 clusters. A cluster holds one observation
(`none`), or 1 to 16 that are alike to a degree, the intra-class correlation. The last line of output is JSON.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from contextlab.benchmarks.metrics import estimates as metrics
from contextlab.benchmarks.task import Measure, Metric, Part

Array = np.ndarray[Any, Any]
CLUSTERS = (3, 5, 8, 24)
CORRELATIONS = (None, 0.0, 0.3, 0.6)
LARGEST = 16
SEED = 0
NOMINAL = 0.95


@dataclasses.dataclass(frozen=True)
class Sample:
    """Clusters of unequal size with an intra-class correlation; None is one observation per cluster."""

    generator: np.random.Generator
    clusters: int
    correlation: float | None

    def names(self) -> list[str]:
        """The cluster of every observation."""
        sizes = self.generator.integers(1, LARGEST + 1, self.clusters)
        repeats = np.ones(self.clusters, dtype=int) if self.correlation is None else sizes
        return [str(name) for name in np.repeat(np.arange(self.clusters), repeats)]

    def normal(self, names: list[str]) -> Array:
        """Standard normal numbers, correlated within clusters."""
        correlation = self.correlation or 0.0
        common = dict(zip(dict.fromkeys(names), self.generator.normal(size=self.clusters), strict=True))
        own = self.generator.normal(size=len(names))
        return math.sqrt(correlation) * np.array([common[name] for name in names]) + math.sqrt(1 - correlation) * own

    def copied(self, names: list[str], draw: Callable[[int], Array]) -> Array:
        """Draws of any distribution; each is randomly the common draw of its cluster or its own."""
        common = dict(zip(dict.fromkeys(names), draw(self.clusters), strict=True))
        lot = self.generator.random(len(names)) < math.sqrt(self.correlation or 0.0)
        own = draw(len(names))
        return np.array(
            [common[name] if shared else value for name, shared, value in zip(names, lot, own, strict=True)]
        )

    def chances(self, names: list[str], chance: float) -> Array:
        """The probability of success of every observation: beta-distributed over clusters."""
        if not self.correlation:
            return np.full(len(names), chance)
        scale = (1 - self.correlation) / self.correlation
        drawn = self.generator.beta(chance * scale, (1 - chance) * scale, self.clusters)
        common = dict(zip(dict.fromkeys(names), drawn, strict=True))
        return np.array([common[name] for name in names])


Case = Callable[[Sample], tuple[Metric | None, float]]


def _parts(values: Array, weights: Array, names: list[str]) -> list[Part]:
    rows = zip((values * weights).tolist(), weights.tolist(), names, strict=True)
    return [Part(value, weight, name) for value, weight, name in rows]


def _examples(values: Array, weights: Array, names: list[str]) -> dict[str, list[Part]]:
    """A run: every observation an example."""
    return {str(n): [part] for n, part in enumerate(_parts(values, weights, names))}


def mean(kind: str, weighted: bool) -> Case:
    """A mean or, weighted, a ratio whose denominators are log-normal."""

    def case(sample: Sample) -> tuple[Metric | None, float]:
        names = sample.names()
        draws: dict[str, tuple[Callable[[int], Array], float]] = {
            "normal": (lambda n: sample.generator.normal(3, 1, n), 3.0),
            "log-normal, sigma 0.5": (lambda n: sample.generator.lognormal(0, 0.5, n), math.exp(0.125)),
            "log-normal, sigma 1": (lambda n: sample.generator.lognormal(0, 1, n), math.exp(0.5)),
            "t with 3 degrees": (lambda n: sample.generator.standard_t(3, n), 0.0),
        }
        draw, truth = draws[kind]
        values = sample.copied(names, draw)
        weights = sample.generator.lognormal(0, 0.5, len(names)) if weighted else np.ones(len(names))
        return metrics.ratio(_parts(values, weights, names)), truth

    return case


def proportion(chance: float) -> Case:
    """A share of right answers."""

    def case(sample: Sample) -> tuple[Metric | None, float]:
        names = sample.names()
        right = sample.generator.random(len(names)) < sample.chances(names, chance)
        return metrics.proportion(_parts(right, np.ones(len(names)), names)), chance

    return case


def macro_f1(shares: list[float], accuracy: float) -> Case:
    """Classes with these shares, which are confused with each other equally often."""
    classes, come = len(shares), np.array(shares)
    errors = come * accuracy + (1 - come) * (1 - accuracy) / (classes - 1)
    truth = float((2 * come * accuracy / (come + errors)).mean())

    def case(sample: Sample) -> tuple[Metric | None, float]:
        names = sample.names()
        answers = sample.generator.choice(classes, p=come, size=len(names))
        right = sample.generator.random(len(names)) < sample.chances(names, accuracy)
        others = (answers + sample.generator.integers(1, classes, len(names))) % classes
        return metrics.macro_f1(answers.tolist(), np.where(right, answers, others).tolist(), names), truth

    return case


def task_mean(sample: Sample) -> tuple[Metric | None, float]:
    """Accuracy averaged over tasks that differ in difficulty."""
    names = sample.names()
    right = sample.generator.random(len(names)) < sample.chances(names, 0.5)
    return metrics.proportion(
        [Part(float(value), 1.0, name, name) for value, name in zip(right, names, strict=True)]
    ), 0.5


def paired_nats(skewed: bool) -> Case:
    """Nats of two methods on the same documents, of which one is slightly better."""

    def case(sample: Sample) -> tuple[Metric | None, float]:
        names = sample.names()
        lengths = sample.generator.lognormal(0, 0.5, len(names))
        nats = 3 + sample.normal(names)
        shift, noise = 0.1, sample.normal(names)
        gain = shift * np.exp(0.5 * noise) if skewed else shift * (1 + noise)
        better, worse = (_examples(values, lengths, names) for values in (nats - gain, nats))
        truth = -shift * (math.exp(0.125) if skewed else 1)
        return metrics.paired(Measure("nats_per_token", False), better, worse), truth

    return case


def paired_accuracy(first: float, second: float, alike: float) -> Case:
    """Right answers of two methods; the second has the answer of the first with probability `alike`."""

    def case(sample: Sample) -> tuple[Metric | None, float]:
        names = sample.names()
        lots = sample.copied(names, lambda n: sample.generator.random((n, 2)))
        copies = sample.copied(names, sample.generator.random) < alike
        first_right, second_right = lots[:, 0] < first, np.where(copies, lots[:, 0], lots[:, 1]) < second
        runs = (_examples(values, np.ones(len(names)), names) for values in (first_right, second_right))
        return metrics.paired(Measure("accuracy", True, True), *runs), first - second

    return case


def share(gain: float, spread: float) -> Case:
    """The share of full attention's gain that a method reaches: 0.7, over documents with different gains."""

    def case(sample: Sample) -> tuple[Metric | None, float]:
        names = sample.names()
        lengths = sample.generator.lognormal(0, 0.5, len(names))
        window = 3 + 0.3 * sample.normal(names)
        gains = gain * (1 + spread * sample.normal(names))
        reached = 0.7 * gains + 0.15 * gain * sample.normal(names)
        runs = (_examples(values, lengths, names) for values in (window, window - reached, window - gains))
        return metrics.share_of_full(*runs), 0.7

    return case


CASES: dict[tuple[str, str], Case] = {
    **{
        ("mean", kind): mean(kind, False)
        for kind in ("normal", "t with 3 degrees", "log-normal, sigma 0.5", "log-normal, sigma 1")
    },
    **{
        ("ratio", kind): mean(kind, True)
        for kind in ("normal", "t with 3 degrees", "log-normal, sigma 0.5", "log-normal, sigma 1")
    },
    **{("proportion", f"p = {chance}"): proportion(chance) for chance in (0.1, 0.5, 0.9)},
    ("proportion", "mean over tasks, p = 0.5"): task_mean,
    ("macro F1", "2 classes, accuracy 0.7"): macro_f1([0.5, 0.5], 0.7),
    ("macro F1", "4 classes, accuracy 0.6"): macro_f1([0.25] * 4, 0.6),
    ("macro F1", "classes of 0.85 and 0.15, accuracy 0.9"): macro_f1([0.85, 0.15], 0.9),
    ("paired, nats", "normal"): paired_nats(False),
    ("paired, nats", "log-normal, sigma 0.5"): paired_nats(True),
    ("paired, accuracy", "0.6 - 0.5, 0.5 alike"): paired_accuracy(0.6, 0.5, 0.5),
    ("paired, accuracy", "0.9 - 0.8, 0.8 alike"): paired_accuracy(0.9, 0.8, 0.8),
    ("paired, accuracy", "0.5 - 0.5, 0.9 alike"): paired_accuracy(0.5, 0.5, 0.9),
    ("share", "gains spread by 0.3"): share(0.15, 0.3),
    ("share", "gains spread by 0.8"): share(0.15, 0.8),
}


def coverage(
    case: Case, clusters: int, correlation: float | None, repetitions: int, seed: int = SEED
) -> dict[str, Any]:
    """The rate at which an interval covers the true value, and the rate at which it exists."""
    sample = Sample(np.random.default_rng([seed, clusters]), clusters, correlation)
    held, shown, widths = 0, 0, []
    for _ in range(repetitions):
        metric, truth = case(sample)
        if metric is not None and metric.low is not None and metric.high is not None:
            shown += 1
            held += metric.low - 1e-12 <= truth <= metric.high + 1e-12
            widths.append(metric.high - metric.low)
    return {
        "coverage": round(held / shown, 4) if shown else None,
        "shown": round(shown / repetitions, 3),
        "width": round(float(np.median(widths)), 4) if widths else None,
    }


def table(repetitions: int) -> Iterator[dict[str, Any]]:
    """One row per interval, data and correlation, one column per number of clusters."""
    for (interval, data), case in CASES.items():
        for correlation in CORRELATIONS:
            cells = {n: coverage(case, n, correlation, repetitions) for n in CLUSTERS}
            shown = min(cell["shown"] for cell in cells.values())
            yield {
                "interval": interval,
                "data": data,
                "correlation": "one each" if correlation is None else correlation,
                **{f"n={n}": cell["coverage"] for n, cell in cells.items()},
                **{f"width n={n}": cell["width"] for n, cell in cells.items()},
                **({"least_shown": shown} if shown < 1 else {}),
            }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=2000)
    options = parser.parse_args()
    rows = []
    for row in table(options.repetitions):
        print(json.dumps(row), flush=True)
        rows.append(row)
    print(json.dumps({"nominal": NOMINAL, "repetitions": options.repetitions, "seed": SEED, "coverage": rows}))


if __name__ == "__main__":
    main()
