"""Faces: equal to InsightFace's own FaceAnalysis called as ICE-Bench's evaluator calls it, on the same ONNX files."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image, ImageDraw

from local_bench.core.errors import WeightsError
from local_bench.judges.metrics.base import FeatureInput, Subject
from local_bench.judges.metrics.face_ref import DETECTOR, RECOGNISER, SIZES, FaceNetwork
from local_bench.judges.metrics.registry import make_metric
from local_bench.testing.condition_models import FACE_COLOUR, build_faces

from .helpers import assert_the_same_bytes_in_any_batch, drawing, read, saved, score, weights_of


@pytest.fixture
def metric():
    return make_metric("face_ref:tiny-faces")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("faces")
    build_faces(path, None)
    return path


def with_faces(*boxes, size=(240, 180), ground=(90, 120, 90)):
    image = Image.new("RGB", size, ground)
    for n, box in enumerate(boxes):
        ImageDraw.Draw(image).ellipse(box, fill=FACE_COLOUR)
        ImageDraw.Draw(image).rectangle((box[0] - 6, box[1] - 12, box[2], box[1] - 8), fill=(40 * n, 200, 255 - 50 * n))
    return image


TWO = ((40, 50, 70, 80), (150, 80, 190, 130))


def images(tmp_path):
    """Faces, a face that only small inputs of the detector show, nobody, and one that fills the image."""
    samples = {
        "two": with_faces(*TWO),
        "one": with_faces((90, 60, 130, 100), ground=(20, 60, 60)),
        "tall": with_faces((30, 150, 55, 175), size=(100, 300)),
        "big": with_faces((30, 30, 170, 170), size=(200, 200), ground=(20, 20, 20)),
        "nobody": drawing(),
    }
    return {name: saved(image, tmp_path / f"{name}.png") for name, image in samples.items()}


def official(folder, image):
    """The evaluator's own steps: an analysis for each size, the first that finds somebody, RGB pixels."""
    from insightface.app import FaceAnalysis

    for size in SIZES:
        model = FaceAnalysis(str(folder), providers=["CPUExecutionProvider"], static_shape_sessions=False)
        model.prepare(ctx_id=0, det_size=(size, size))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            faces = model.get(np.array(image))
        if faces:
            return np.stack([face.normed_embedding for face in faces])
    return np.empty((0, 512), np.float32)


def test_equals_the_librarys_own_analysis_whatever_the_order_and_the_neighbours(folder, metric, tmp_path):
    from insightface.model_zoo import SCRFD

    samples = images(tmp_path)
    inputs = [FeatureInput((image,)) for image in samples.values()]
    for name, ours in zip(samples, assert_the_same_bytes_in_any_batch(metric.network, inputs), strict=True):
        theirs = official(folder, samples[name].load())
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, atol=1e-6)
        assert bool(len(ours)) == (name != "nobody")
    # A face too large for the first size is found at a later one.
    detector = SCRFD(str(folder / DETECTOR), static_shape_sessions=False)
    seen = [len(detector.detect(np.asarray(samples["big"].load()), (size, size))[0]) for size in SIZES]
    assert seen[0] == 0 < max(seen)


def test_the_likest_face_counts_against_the_references_first(metric, folder, tmp_path):
    samples = images(tmp_path)
    subjects = [
        Subject("same", samples["two"], references=(samples["two"],)),
        Subject("other", samples["two"], references=(samples["one"], samples["two"])),
        Subject("nobody", samples["nobody"], references=(samples["one"],)),
        Subject("no reference", samples["one"], references=(samples["nobody"],)),
        Subject("nobody twice", samples["nobody"], references=(samples["nobody"],)),
    ]
    scores = score(metric, subjects)
    two, single = (official(folder, samples[name].load()) for name in ("two", "one"))
    likest = (two @ single[0]).max()
    assert [each.value for each in scores] == [*map(pytest.approx, (1, likest)), 0, None, None]
    assert scores[1].value == pytest.approx(0.795463, abs=1e-4)  # the golden value
    assert {each.unscored for each in scores[3:]} == {"no face was found in the reference"}


def test_an_extreme_aspect_ratio_has_no_face(metric, tmp_path):
    lines = [saved(Image.new("RGB", size, FACE_COLOUR), tmp_path / f"{size}.png") for size in ((9, 5000), (5000, 1))]
    assert {array.shape for array in read(metric.network, [FeatureInput((line,)) for line in lines])} == {(0, 512)}


def test_files_may_be_in_a_folder_of_their_repository_and_damaged_ones_are_reported(tmp_path):
    weights = replace(weights_of("tiny-faces"), folder=tmp_path)
    with pytest.raises(WeightsError, match=DETECTOR):
        FaceNetwork(weights).open("cpu")
    below = tmp_path / "models" / "buffalo_l"
    below.mkdir(parents=True)
    build_faces(below, None)
    network = FaceNetwork(weights)
    assert len(network.identity["weights"]) == 64
    network.open("cpu")
    (faces,) = network.run([np.asarray(with_faces(*TWO))])
    network.close()
    assert len(faces) > 1
    (below / RECOGNISER).write_bytes((below / RECOGNISER).read_bytes()[:1000])
    with pytest.raises(WeightsError, match=f"{RECOGNISER} cannot be read"):
        FaceNetwork(weights).open("cpu")
