"""Metrics in four threads have the results of one thread: every host metric, and every network's preprocessing."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from PIL import Image

from local_bench.judges.metrics.base import HostMetric, LoadedSubject, NetworkMetric, Unscorable
from local_bench.judges.metrics.pyiqa_cards import FORMULAS
from local_bench.judges.metrics.pyiqa_metric import PyiqaFormula
from local_bench.judges.metrics.registry import make_metric, metric_names

from .helpers import alone, blurred, drawing, noise, saved, small_cards

TINY = small_cards()
HOST = sorted({*metric_names()} - {*TINY}) + [f"pyiqa:{name}" for name in sorted(FORMULAS)]
SLOW = ("pyiqa:mad", "pyiqa:vif")


@pytest.fixture(scope="module")
def subjects(tmp_path_factory):
    place = tmp_path_factory.mktemp("threads")
    samples = []
    for i, size in enumerate([(192, 176), (176, 192), (192, 176), (208, 176)]):
        source = saved(noise(20 + i, size), place / f"s{i}.png")
        image = saved(noise(i, size) if i else blurred(drawing(size), 1), place / f"i{i}.png")
        samples.append(alone(str(i), image, source=source, references=(source,), caption=f"a house {i}"))
    return samples


def measured(metric, subject):
    try:
        return metric.measure(LoadedSubject(subject))
    except Unscorable as e:
        return str(e)


def wrong(work, items, calls=64):
    """How many of `calls` calls in four threads, begun together, give something else than alone."""
    expected = [work(item) for item in items]
    together = threading.Barrier(4)
    order = [i % len(items) for i in range(calls)]

    def share(first):
        together.wait()
        return [differ(work(items[i]), expected[i]) for i in order[first::4]]

    with ThreadPoolExecutor(4) as pool:
        return sum(sum(results) for results in pool.map(share, range(4)))


def differ(item, other):
    if isinstance(item, (list, tuple)):
        return len(item) != len(other) or any(differ(a, b) for a, b in zip(item, other, strict=True))
    if isinstance(item, (torch.Tensor, np.ndarray, Image.Image)):
        return not np.array_equal(np.asarray(item), np.asarray(other), equal_nan=True)
    if hasattr(item, "__dict__"):
        return differ(list(vars(item).values()), list(vars(other).values()))
    return item != other


@pytest.mark.parametrize("name", HOST)
def test_a_host_metric_has_equal_results_in_four_threads(subjects, name):
    metric = make_metric(name)
    assert isinstance(metric, HostMetric)
    assert (metric.spec.name, bool(metric.spec.source), bool(metric.spec.preprocessing)) == (name, True, True)
    assert wrong(lambda subject: measured(metric, subject), subjects, 4 if name in SLOW else 16) == 0


def test_sharing_a_pyiqa_module_between_threads_mixes_scores(subjects, monkeypatch):
    """The negative control: threads meet where pyiqa's module has stored its result and not yet returned it."""
    metric = make_metric("piqe")
    assert isinstance(metric, PyiqaFormula)
    shared = metric._network()
    meeting = threading.Barrier(4)
    real = type(shared).__setattr__

    def meet(module, name, value):
        real(module, name, value)
        if name == "results" and threading.current_thread() is not threading.main_thread():
            meeting.wait(60)

    monkeypatch.setattr(type(shared), "__setattr__", meet)
    assert wrong(lambda subject: measured(metric, subject), subjects, 16) == 0
    monkeypatch.setattr(metric, "_network", lambda: shared)
    assert wrong(lambda subject: measured(metric, subject), subjects, 16) > 0


@pytest.mark.parametrize("name", TINY)
def test_preprocessing_is_equal_in_four_threads_and_keeps_the_random_state(subjects, name):
    metric = make_metric(f"{name}:{TINY[name]}")
    assert isinstance(metric, NetworkMetric)
    network = metric.network
    network.open("cpu")
    inputs = [
        ([image.load() for image in feature_input.images], feature_input.text)
        for s in subjects
        for feature_input in metric.inputs(s)
    ]
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    assert wrong(lambda feature_input: network.prepare(*feature_input), inputs, 32) == 0
    assert torch.equal(before[0], torch.get_rng_state())
    assert (before[1] == np.random.get_state()[1]).all()
    network.close()


def test_faces_are_read_in_threads_as_alone(subjects):
    network = make_metric("face_ref:tiny-faces").network
    network.open("cpu")
    assert wrong(network._faces, [np.asarray(s.image.load()) for s in subjects]) == 0
    network.close()
