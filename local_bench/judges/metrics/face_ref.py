"""Face detection and embedding by InsightFace's buffalo_l, with onnxruntime on the CPU: an SCRFD detector (Guo et al.
2021, arXiv 2105.04714) and an ArcFace recogniser (Deng et al. 2018, arXiv 1801.07698).

The library expects BGR images. ICE-Bench's evaluator passes RGB images, so red and blue are exchanged for both
networks. This implementation does the same, since the published numbers were computed in this way. `PREPARED` states
it; with the right channel order it would be another metric.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from PIL import Image

from local_bench.core.errors import WeightsError
from local_bench.judges.metrics.base import Array, Weights, WeightsNetwork

DETECTOR, RECOGNISER = "det_10g.onnx", "w600k_r50.onnx"
SIZES = (640, 480, 384, 256, 128)
"""Sides of the detector's square input, tried in this order until a face is found."""
SIDE, WIDTH = 112, 512
THRESHOLD, OVERLAP = 0.5, 0.4
PREPARED = (
    "RGB8 taken as BGR by insightface (red and blue exchanged for both networks, as ICE-Bench's evaluator has it); "
    f"detector: longer side to {', '.join(map(str, SIZES))} in turn until a face is found (bilinear, no antialiasing, "
    f"OpenCV), zeros right and below, (x - 127.5) / 128, score >= {THRESHOLD}, suppressed over {OVERLAP} of overlap, "
    "best score first; recogniser: similarity by five points onto 112x112 (bilinear, OpenCV), (x - 127.5) / 127.5; "
    "embeddings divided by their norm; float32"
)


class FaceNetwork(WeightsNetwork):
    """Embeddings of all faces: float32 (n, 512) with norm 1 in the detector's order, (0, 512) without a face.

    Always on the CPU with one thread per image: the number of threads per image would affect the results, the number of
    images processed in parallel does not.
    """

    batch_size: ClassVar[dict[str, int]] = {"cpu": 4, "cuda": 4}
    on_cpu = True
    description = PREPARED
    _pool: ThreadPoolExecutor | None = None

    def __init__(self, weights: Weights) -> None:
        """WeightsError without the detector's file, which a repository may keep in a subfolder."""
        super().__init__(replace(weights, folder=_file(weights.folder, DETECTOR).parent))
        self.model = weights.card.name

    def load(self, device: str) -> tuple[Any, Any]:
        """The detector and the recogniser."""
        from insightface.model_zoo import SCRFD, ArcFaceONNX

        folder = self._weights.folder
        paths = folder / DETECTOR, _file(folder, RECOGNISER)
        first, second = map(_session, paths)
        detector = SCRFD(str(paths[0]), first, static_shape_sessions=False)
        recogniser = ArcFaceONNX(str(paths[1]), second)
        if not detector.use_kps or recogniser.input_size != (SIDE, SIDE):
            raise WeightsError(
                f"{folder} contains networks other than those of buffalo_l: give the folder of that model"
            )
        detector.prepare(0, nms_thresh=OVERLAP, det_thresh=THRESHOLD)
        self._pool = ThreadPoolExecutor(self.batch_size["cpu"], "faces")
        return detector, recogniser

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
        self._model = self._pool = None

    def prepare(self, images: Sequence[Image.Image], text: str | None) -> np.ndarray:
        """The image's pixels, (height, width, 3) uint8."""
        return np.asarray(images[0])

    def run(self, prepared: Sequence[np.ndarray]) -> list[Array]:
        assert self._pool is not None
        return list(self._pool.map(self._faces, prepared))

    def _faces(self, pixels: np.ndarray) -> Array:
        points, (detector, recogniser) = np.empty((0, 5, 2), np.float32), self._model
        short, long = sorted(pixels.shape[:2])
        for size in SIZES:
            if short * size < 2 * long:
                break  # the shorter side would be empty
            _, points = detector.detect(pixels, (size, size))
            if len(points):
                break
        embeddings = [recogniser.get_feat(_aligned(pixels, five))[0] for five in points]
        rows = np.asarray(embeddings, np.float32).reshape(len(embeddings), WIDTH)
        unit: Array = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        return unit


def _aligned(pixels: np.ndarray, points: np.ndarray) -> np.ndarray:
    """The face aligned to the recogniser's template, (112, 112, 3) uint8; `points` are eyes, nose and corners of the
    mouth.

    Equivalent to insightface's `norm_crop`, with scikit-image's replacement of the deprecated call.
    """
    import cv2
    from insightface.utils.face_align import arcface_dst
    from skimage.transform import SimilarityTransform

    transform = SimilarityTransform.from_estimate(points, arcface_dst)
    assert transform, "the five points of a face are distinct"
    face: np.ndarray = cv2.warpAffine(pixels, transform.params[:2], (SIDE, SIDE), borderValue=0.0)
    return face


def _session(path: Path) -> Any:
    import onnxruntime
    from onnxruntime.capi import onnxruntime_pybind11_state as errors

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except (errors.Fail, errors.InvalidArgument, errors.InvalidGraph, errors.InvalidProtobuf, errors.NoModel) as e:
        raise WeightsError(f"{path} cannot be read as an ONNX network ({e}): fetch its model again") from e


def _file(folder: Path, name: str) -> Path:
    """The path of the file; a repository may keep it in a subfolder."""
    files = sorted(folder.rglob(name))
    if not files:
        raise WeightsError(f"{folder} contains no {name}: fetch its model again (`local-bench models fetch NAME`)")
    return files[0]
