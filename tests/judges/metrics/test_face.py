"""Faces: equal to InsightFace's own FaceAnalysis called as ICE-Bench's evaluator calls it, on the same ONNX files."""

import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image, ImageDraw

from local_bench.core.errors import WeightsError
from local_bench.judges.metrics.base import FeatureInput, Subject
from local_bench.judges.metrics.face_ref import DETECTOR, RECOGNISER, SIZES, FaceNetwork
from local_bench.judges.metrics.registry import make_metric
from local_bench.testing.condition_models import FACE_COLOUR, build_faces

from .helpers import drawing, read, saved, score, values


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("faces")
    build_faces(path, None)
    return path


@pytest.fixture
def metric():
    return make_metric("face_ref:tiny-faces")


def with_faces(*boxes, size=(240, 180), ground=(90, 120, 90)):
    image = Image.new("RGB", size, ground)
    for n, box in enumerate(boxes):
        ImageDraw.Draw(image).ellipse(box, fill=FACE_COLOUR)
        ImageDraw.Draw(image).rectangle((box[0] - 6, box[1] - 12, box[2], box[1] - 8), fill=(40 * n, 200, 255 - 50 * n))
    return image


TWO = ((40, 50, 70, 80), (150, 80, 190, 130))


def images(tmp_path):
    """Faces, a face that only small inputs of the detector show, nobody, and one that fills the image."""
    made = {
        "two": with_faces(*TWO),
        "one": with_faces((90, 60, 130, 100), ground=(20, 60, 60)),
        "tall": with_faces((30, 150, 55, 175), size=(100, 300)),
        "big": with_faces((30, 30, 170, 170), size=(200, 200), ground=(20, 20, 20)),
        "nobody": drawing(),
    }
    return {name: saved(image, tmp_path / f"{name}.png") for name, image in made.items()}


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


def test_equals_the_librarys_own_analysis(folder, metric, tmp_path):
    found = {}
    for name, image in images(tmp_path).items():
        (ours,) = read(metric.network, [FeatureInput((image,))], 1)
        theirs = official(folder, image.load())
        assert ours.dtype == np.float32
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, atol=1e-6)
        found[name] = len(ours)
    assert found["nobody"] == 0
    assert all(found[name] for name in ("two", "one", "tall", "big"))


def test_a_face_too_large_for_the_first_size_is_found_at_a_later_one(folder, tmp_path):
    from insightface.model_zoo import SCRFD

    detector = SCRFD(str(folder / DETECTOR), static_shape_sessions=False)
    pixels = np.asarray(images(tmp_path)["big"].load())
    found = [len(detector.detect(pixels, (size, size))[0]) for size in SIZES]
    assert found[0] == 0
    assert any(found)


def test_colour_channels_are_swapped_as_by_the_evaluator(folder, metric, tmp_path):
    image = with_faces(TWO[0], ground=(150, 110, 20))
    swapped = Image.fromarray(np.asarray(image)[..., ::-1].copy())
    one, other = (saved(image, tmp_path / name) for image, name in ((image, "a.png"), (swapped, "b.png")))
    ours, mirrored = read(metric.network, [FeatureInput((one,)), FeatureInput((other,))], 1)
    np.testing.assert_allclose(ours, official(folder, image), atol=1e-6)
    assert np.abs(ours - mirrored).max() > 1e-3


def test_neighbours_and_order_change_nothing(metric, tmp_path):
    inputs = [FeatureInput((image,)) for image in images(tmp_path).values()]
    alone = read(metric.network, inputs, 1)
    together = read(metric.network, inputs, 4)
    turned = read(metric.network, inputs[::-1], 3)[::-1]
    for one, two, three in zip(alone, together, turned, strict=True):
        assert one.dtype == np.float32
        assert one.tobytes() == two.tobytes() == three.tobytes()


def test_the_likest_face_counts_against_the_references_first(metric, folder, tmp_path):
    made = images(tmp_path)
    subjects = [
        Subject("same", made["two"], references=(made["two"],)),
        Subject("other", made["two"], references=(made["one"], made["two"])),
        Subject("nobody", made["nobody"], references=(made["one"],)),
    ]
    same, other, nobody = values(metric, subjects)
    two, one = (official(folder, made[name].load()) for name in ("two", "one"))
    assert same == pytest.approx(1, abs=1e-6)
    assert other == pytest.approx((two @ one[0]).max(), abs=1e-6)
    assert other < 0.999
    assert nobody == 0


def test_a_reference_without_a_face_is_unscored(metric, tmp_path):
    made = images(tmp_path)
    references = (made["nobody"],)
    both = [Subject("a", made["one"], references=references), Subject("b", made["nobody"], references=references)]
    for one in score(metric, both):
        assert one.value is None
        assert one.unscored == "no face was found in the reference"


def test_an_extreme_aspect_ratio_has_no_face(metric, tmp_path):
    lines = [saved(Image.new("RGB", size, FACE_COLOUR), tmp_path / f"{size}.png") for size in ((9, 5000), (5000, 1))]
    assert [one.shape for one in read(metric.network, [FeatureInput((line,)) for line in lines])] == [
        (0, 512),
        (0, 512),
    ]


def test_golden(metric, tmp_path):
    made = images(tmp_path)
    (value,) = values(metric, [Subject("golden", made["two"], references=(made["one"],))])
    assert value == pytest.approx(GOLDEN, abs=1e-4)


GOLDEN = 0.795463


def test_missing_and_damaged_files_are_reported(tmp_path):
    weights = SimpleNamespace(card=SimpleNamespace(name="faces"), folder=tmp_path, parts={})
    with pytest.raises(WeightsError, match=DETECTOR):
        FaceNetwork(weights).open("cpu")
    build_faces(tmp_path, None)
    (tmp_path / RECOGNISER).write_bytes((tmp_path / RECOGNISER).read_bytes()[:1000])
    with pytest.raises(WeightsError, match=f"{RECOGNISER} cannot be read"):
        FaceNetwork(weights).open("cpu")


def test_files_may_be_in_a_folder_of_their_repository(tmp_path):
    below = tmp_path / "models" / "buffalo_l"
    below.mkdir(parents=True)
    build_faces(below, None)
    network = FaceNetwork(SimpleNamespace(card=SimpleNamespace(name="faces"), folder=tmp_path, parts={}))
    assert len(network.identity["weights"]) == 64
    network.open("cpu")
    (found,) = network.run([np.asarray(with_faces(*TWO))])
    network.close()
    assert len(found) > 1
