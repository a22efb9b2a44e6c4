"""What is read, how often and in what shape: with small networks whose every call is seen."""

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import numpy as np
import pytest
import torch
from PIL import Image

from local_bench.core.errors import LocalBenchError
from local_bench.core.types import Message, PhaseAdvanced, ScoresComputed, TimeCharged
from local_bench.judges.metrics.base import (
    NO_MEMORY,
    FeatureInput,
    HostMetric,
    ImageFile,
    MetricSpec,
    Network,
    NetworkMetric,
    Subject,
    Unscorable,
)
from local_bench.judges.metrics.evaluator import Evaluator, FeatureCache, FeatureExtractor, cut_captions
from local_bench.judges.metrics.registry import make_metric

from .helpers import make_image, run_all, saved


class Means(Network):
    """The mean of an image's channels, or the length of a text: a minimal network."""

    batch_size: ClassVar = {"cpu": 4}
    reads_text = True

    def __init__(self, name="means", *, swayed=False, memory=99, max_pixels=10_000):
        self.name, self.swayed, self.memory, self.max_pixels = name, swayed, memory, max_pixels
        self.batches, self.opened, self.closed = [], 0, 0

    @property
    def identity(self):
        return {"network": self.name, "swayed": self.swayed}

    def open(self, device):
        self.opened += 1

    def close(self):
        self.closed += 1

    def prepare(self, images, text):
        if text == "unsayable":
            raise Unscorable("these words cannot be read")
        if text is not None:
            return torch.full((3,), float(len(text)))
        return torch.from_numpy(np.asarray(images[0], np.float32).mean((0, 1)))

    def run(self, prepared):
        if len(prepared) > self.memory:
            raise RuntimeError("CUDA out of memory")
        self.batches.append(len(prepared))
        batch = torch.stack(list(prepared))
        return [row.numpy() for row in (batch + batch[0] * 1e-3 if self.swayed else batch)]


class Likeness(NetworkMetric):
    def __init__(self, network, name="likeness", needs=("source",), caption=False):
        self.network, self._caption = network, caption
        self.spec = MetricSpec(name, True, "none", "a test", needs)

    def inputs(self, subject):
        other = FeatureInput(text=subject.caption) if self._caption else FeatureInput((subject.source,))
        return FeatureInput((subject.image,)), other

    def value(self, arrays):
        return float(arrays[0] @ arrays[1])


def subjects(folder, n=9, sources=2):
    shared = [make_image(folder, 100 + i) for i in range(sources)]
    return [Subject(str(i), make_image(folder, i), shared[i % sources], caption="c" * (i + 1)) for i in range(n)]


def scores_of(steps):
    """(subject, metric) -> score, each once."""
    rows = [(key, score) for step in steps if isinstance(step, ScoresComputed) for key, score in step.rows]
    scores = {(key, score.name): score for key, score in rows}
    assert len(scores) == len(rows)
    return scores


def run(metrics, samples, **settings):
    """The values and all events of these metrics, or of the metric `a` of one network."""
    metrics = metrics if isinstance(metrics, dict) else {"a": Likeness(metrics, "a")}
    steps = list(run_all(Evaluator(metrics, **settings), [(subject, tuple(metrics)) for subject in samples]))
    return {key: score.value for key, score in scores_of(steps).items()}, steps


def said(steps, sentence):
    return any(isinstance(step, Message) and sentence in step.sentence for step in steps)


def test_each_image_is_read_once_for_all_metrics_in_batches_of_one_shape(tmp_path):
    network, samples = Means("once"), subjects(tmp_path)
    metrics = {"a": Likeness(network, "a"), "b": Likeness(network, "b", ("source",), caption=True)}
    scores, steps = run(metrics, samples)
    assert len(scores) == 18
    assert network.opened == network.closed == 1
    after_the_trial = network.batches[4:]
    assert after_the_trial == [4] * (-(-11 // 4) + -(-9 // 4))  # 9 images and 2 sources; 9 captions
    assert [step.phase for step in steps if isinstance(step, TimeCharged)] == ["load"]
    for s in samples:
        expected = network.prepare([s.image.load()], None) @ network.prepare([s.source.load()], None)
        assert scores[s.key, "a"] == float(expected)


def test_cached_features_are_not_computed_again(tmp_path):
    samples = subjects(tmp_path)
    first, second, other = Means("kept"), Means("kept"), Means("kept")
    assert run(first, samples)[0] == run(second, samples)[0]
    assert second.opened == 0
    run(other, samples, numerics={"device": "another"})
    assert other.opened == 1


def test_order_and_neighbours_change_nothing(tmp_path):
    samples = subjects(tmp_path)
    expected, _ = run(Means("order a"), samples)
    assert run(Means("order b"), samples[::-1])[0] == expected
    single = {key: value for s in samples for key, value in run(Means(f"order {s.key}"), [s])[0].items()}
    assert single == expected


def test_a_network_without_batch_invariance_runs_one_by_one_and_is_reported(tmp_path):
    samples, network = subjects(tmp_path, 5), Means("swayed", swayed=True)
    _, steps = run(network, samples)
    assert set(network.batches[2:]) == {1}
    assert said(steps, "the batch size is 1")
    again = Means("swayed", swayed=True)  # remembered: no second trial, and what was read is found
    run(again, samples)
    assert again.batches == []


def test_unreadable_inputs_are_unscored_and_the_others_are_measured(tmp_path):
    samples, large = subjects(tmp_path, 6), make_image(tmp_path, 50, (160, 160))
    samples[1] = Subject("1", large, samples[0].source)
    samples[2] = Subject("2", samples[2].image, ImageFile(tmp_path / "gone.png"))
    samples[3] = Subject("3", samples[3].image, None)
    subjects_and_names = [(s, ("a",)) for s in samples]
    subjects_and_names += [
        (Subject("x", large, caption="unsayable"), ("w",)),
        (Subject("y", samples[0].image, caption="yes"), ("w",)),
    ]
    subjects_and_names += [
        (Subject("z", samples[0].image), ("w",)),
        (Subject("s", samples[0].image, caption="unsayable"), ("w",)),
    ]
    words = Likeness(Means("words"), "w", ("caption",), caption=True)
    scores = scores_of(run_all(Evaluator({"a": Likeness(Means("faults"), "a"), "w": words}), subjects_and_names))
    reasons = {key: score.unscored for (key, _), score in scores.items() if score.value is None}
    assert reasons.keys() == set("123xzs")
    assert "160x160" in reasons["1"]
    assert "160x160" in reasons["x"]
    assert reasons["2"].startswith("gone.png does not exist")
    assert reasons["3"] == "there is no source picture to compare it with"
    assert reasons["z"] == "there is no caption to compare it with"
    assert reasons["s"] == "these words cannot be read"


def test_out_of_memory_is_an_error_for_a_batch_and_unscored_for_one_image(tmp_path):
    samples = subjects(tmp_path, 4)
    limited = Means("crowded", memory=99)
    with ThreadPoolExecutor(1) as pool, FeatureExtractor(limited, pool, 1, "cpu", {}) as reader:
        list(reader.read([(0, [FeatureInput((samples[0].image,))])]))
        limited.memory = 2
        with pytest.raises(LocalBenchError, match=r"engine\.metric_batch_size"):
            list(reader.read([(0, [FeatureInput((samples[1].image,))])]))
    _, steps = run(Means("narrow", memory=0), samples[:1], batch_size=1)
    assert [score.unscored for score in scores_of(steps).values()] == [NO_MEMORY]


def test_a_damaged_cache_is_ignored(tmp_path):
    samples, repaired = subjects(tmp_path, 3), Means("damaged")
    expected, _ = run(Means("damaged"), samples)
    path = FeatureCache({"network": repaired.identity, "numerics": {}, "batch_size": 4}).path
    with sqlite3.connect(path) as db:
        db.execute("UPDATE arrays SET data = zeroblob(12) WHERE look = (SELECT min(look) FROM arrays)")
    assert run(repaired, samples)[0] == expected
    assert repaired.batches == [4]  # the one row, read anew
    path.write_bytes(b"no database at all, but long enough to be one" * 99)
    scores, steps = run(Means("damaged"), samples)
    assert scores == expected
    assert said(steps, "cannot be used")


def test_arrays_are_stored_with_their_shapes():
    stored = FeatureCache({"test": "shapes"})
    stored.put({"faces": np.zeros((0, 512), np.float32), "map": np.arange(6, dtype=np.float32).reshape(2, 3)})
    assert stored.get("faces").shape == (0, 512)
    assert stored.get("map").tolist() == [[0, 1, 2], [3, 4, 5]]
    assert stored.get("nothing") is None
    assert stored.alone is None
    stored.alone = False
    assert FeatureCache({"test": "shapes"}).alone is False


def test_host_metrics_run_first_and_every_requested_score_is_counted(tmp_path):
    metrics = {"a": Likeness(Means("counted"), "a")} | {name: make_metric(name) for name in ("l1_raw", "ssim")}
    wanted = [(s, tuple(metrics) if i % 2 else ("ssim",)) for i, s in enumerate(subjects(tmp_path, 70))]
    survey = Evaluator(metrics)
    events = list(run_all(survey, wanted))
    assert sum(event.n for event in events if isinstance(event, PhaseAdvanced)) == survey.n_steps(wanted) == 70 + 35
    first = next(event for event in events if isinstance(event, ScoresComputed))
    assert {score.name for _, score in first.rows} == {"l1_raw", "ssim"}
    assert len(scores_of(events)) == 70 + 35 + 35


class Shrinks(HostMetric):
    spec = MetricSpec("shrinks", True, "none", "a test", needs=("source",))

    def measure(self, seen):
        images = seen.image, seen.source, seen.image_as_source
        for image in images:
            image.thumbnail((8, 8))
        return float(images[0].width)


def test_a_metric_that_changes_its_image_changes_no_other_score(tmp_path):
    others = {name: make_metric(name) for name in ("entropy", "l1_raw", "ssim")}
    alone, _ = run(others, subjects(tmp_path, 2))
    together, _ = run({"shrinks": Shrinks()} | others, subjects(tmp_path, 2))
    assert {key: score for key, score in together.items() if key[1] != "shrinks"} == alone


class Centred(Likeness):
    def value(self, arrays):
        arrays[0] -= arrays[0].mean()
        return float(np.abs(arrays[0]).sum())


class Doubles(Means):
    """Arrays in float64, which the cache holds in float32; an input is two images with a text."""

    def prepare(self, images, text):
        one, other = images
        assert text
        return torch.stack([torch.from_numpy(np.asarray(image, float).mean((0, 1))) for image in (one, other)])


class Pair(Likeness):
    def inputs(self, subject):
        return (FeatureInput((subject.image, subject.source), subject.caption),)

    def value(self, arrays):
        return float(arrays[0].sum(dtype=np.float64))


def test_scores_are_the_same_together_with_other_metrics_of_a_network_and_with_its_cached_arrays(tmp_path):
    samples = subjects(tmp_path)

    def both(name):
        network = Means(name)
        return {"centred": Centred(network, "centred"), "likeness": Likeness(network)}

    together = [run(both("together"), samples)[0] for _ in range(2)]  # computed, then cached
    assert together[0] == together[1]
    alone, _ = run({"likeness": Likeness(Means("alone"))}, samples)
    assert {key: value for key, value in together[0].items() if key[1] == "likeness"} == alone


def test_a_network_of_pairs_in_float64_gives_equal_scores_from_the_cache(tmp_path):
    samples = subjects(tmp_path)
    computed, cached = (run({"a": Pair(Doubles("pairs"), "a")}, samples)[0] for _ in range(2))
    assert computed == cached
    assert None not in computed.values()


class Constant(HostMetric):
    def __init__(self, value, lowest, highest):
        self._value = value
        self.spec = MetricSpec("constant", True, "none", "a test", lowest=lowest, highest=highest)

    def measure(self, seen):
        return self._value


@pytest.mark.parametrize(
    ("value", "lowest", "highest", "kept"),
    [
        (0.0, 0.0, 1.0, 0.0),
        (1.0000001, -1.0, 1.0, 1.0),  # a cosine in float32
        (-4e-8, 0.0, 80.0, 0.0),  # the PSNR of black and white
        (10.000003, 1.0, 10.0, 10.0),  # a mean of a distribution in float32
        (1.00001, -1.0, 1.0, None),
        (-0.1, 0.0, None, None),
        (7.0, None, 5.0, None),
        (1e9, 0.0, None, 1e9),
        (-3.5, None, None, -3.5),
        (float("nan"), 0.0, 1.0, None),
        (float("inf"), 0.0, None, None),
        (float("-inf"), None, 1.0, None),
    ],
)
def test_a_value_outside_the_metrics_range_is_unscored(tmp_path, value, lowest, highest, kept):
    _, steps = run({"constant": Constant(value, lowest, highest)}, [Subject("s", make_image(tmp_path, 0))])
    (score,) = scores_of(steps).values()
    assert score.value == kept
    assert (score.unscored is None) == (kept is not None)
    if kept is None and np.isfinite(value):
        ends = [f"{end:g}" for end in (lowest, highest) if end is not None]
        assert score.unscored.startswith("the metric gave a number outside its range, ")
        assert all(end in score.unscored for end in ends)


@pytest.mark.parametrize(("value", "kept"), [(None, None), ("0.5", None), (np.float32(0.5), 0.5), (1, 1.0)])
def test_a_value_that_is_no_number_is_unscored(tmp_path, value, kept):
    _, steps = run({"constant": Constant(value, None, None)}, [Subject("s", make_image(tmp_path, 0))])
    (score,) = scores_of(steps).values()
    assert (score.value, type(score.value)) == (kept, type(kept))
    if kept is None:
        assert score.unscored == f"the metric gave no number, but {type(value).__name__}"


def test_every_metric_that_states_a_range_gives_its_exact_ends(tmp_path):
    """Metrics of pixels at the ends of their ranges: equal, black and white, and flat images."""
    names = ("psnr", "ssim", "l1_raw", "entropy", "pyiqa:entropy", "pyiqa:ssim", "pyiqa:nlpd", "pyiqa:gmsd")
    metrics = {name: make_metric(name) for name in (*names, "pyiqa:fsim", "pyiqa:vsi", "colorfulness")}
    flat = [Image.new("RGB", (96, 96), colour) for colour in ("black", "white", "red")]
    files = [saved(image, tmp_path / f"{i}.png") for i, image in enumerate(flat)]
    pairs = [Subject(f"{a}{b}", files[a], files[b]) for a in range(3) for b in range(3)]
    _, steps = run(metrics, pairs)
    assert [key for key, score in scores_of(steps).items() if "range" in (score.unscored or "")] == []
    _, steps = run({"pyiqa:cw_ssim": make_metric("pyiqa:cw_ssim")}, pairs[:1])
    (score,) = scores_of(steps).values()
    assert score.unscored == "the metric gave a number outside its range, from 0 to 1"  # a million


def test_captions_that_are_cut_are_counted_once_for_each_subject(tmp_path):
    class Short(Means):
        def tokens_if_cut(self, text):
            return 5 if len(text) > 5 else None

    captions = ["short", "longer", "longer", "", None, " "]
    samples = [Subject(str(i), make_image(tmp_path, i), caption=text) for i, text in enumerate(captions)]
    networks = {"cutting": Short(), "whole": Means("other")}
    metrics = {name: Likeness(network, name, ("caption",), caption=True) for name, network in networks.items()}
    metrics["host"] = Constant(1.0, None, None)
    counted = cut_captions(metrics, [(subject, tuple(metrics)) for subject in samples])
    assert counted == {"cutting": {"n": 3, "n_cut": 2, "max_tokens": 5}}
    assert cut_captions(metrics, [(subject, ("whole", "unknown")) for subject in samples]) == {}
