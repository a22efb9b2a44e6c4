"""Small face, depth and pose networks, built on this machine.

The parameters of the face detector and the body network are set by hand so that they detect what a test can draw: blobs
of one colour as faces, dots of 18 colours as joints. All other networks have seeded random weights.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from local_bench.judges.metrics.condition_maps import (
    FIELDS,
    JOINTS,
    LIMBS,
    N_CONFIDENCES,
    N_FIELDS,
    POSE_WEIGHTS,
    STAGES,
    TRUNK,
    stage,
)
from local_bench.judges.metrics.face_ref import DETECTOR, RECOGNISER
from local_bench.models.cards import ModelCard

SEED = 20260104
FACE_COLOUR = (255, 0, 255)
"""The colour that the tiny detector recognises as a face, if surrounded by other colours; red and blue may be
exchanged."""
STRIDES, ANCHORS = (8, 16, 32), 2
_OPSET, _IR = 17, 8
STEP = 0.25
"""Distance from a joint's colour, summed over the channels in [0, 1], at which the tiny body network's response is
0."""


def joint_colour(joint: int) -> tuple[int, int, int]:
    """RGB of the dot that the tiny body network recognises as that joint."""
    levels = (0, 128, 255)
    return levels[(joint + 8) // 9], levels[(joint + 8) // 3 % 3], levels[(joint + 8) % 3]


_PLACES = (
    *((92, 36), (92, 60), (68, 60), (52, 84), (44, 108), (116, 60), (132, 84), (140, 108), (76, 108), (76, 140)),
    *((68, 172), (108, 108), (108, 140), (116, 172), (84, 20), (100, 20), (68, 28), (116, 28)),
)
FIGURE = dict(enumerate(_PLACES))
"""Positions of a figure's joints in an image of 184x184 pixels, each in the centre of a cell of 8x8; the tiny affinity
fields point along its limbs."""


def build_faces(folder: Path, card: ModelCard) -> None:
    """Saves a detector and a recogniser with the inputs and outputs of buffalo_l's into `folder` (0.9 MB)."""
    _save_onnx(folder / DETECTOR, *_detector(), ("h", "w"))
    _save_onnx(folder / RECOGNISER, *_recogniser(), (112, 112))


def build_depth(folder: Path, card: ModelCard) -> None:
    """Saves a DPT-hybrid of 0.3 M parameters into `folder`, in transformers' layout."""
    from transformers import DPTConfig, DPTForDepthEstimation

    backbone = {
        "model_type": "bit",
        "global_padding": "same",
        "layer_type": "bottleneck",
        "embedding_dynamic_padding": True,
        "depths": [1, 1, 1],
        "hidden_sizes": [16, 32, 64],
        "embedding_size": 8,
        "num_groups": 4,
        "out_features": ["stage1", "stage2", "stage3"],
    }
    config = DPTConfig(
        is_hybrid=True,
        backbone_config=backbone,
        backbone_featmap_shape=[1, 64, 4, 4],
        image_size=64,
        hidden_size=48,
        num_hidden_layers=12,
        num_attention_heads=2,
        intermediate_size=64,
        neck_hidden_sizes=[16, 32, 48, 48],
        fusion_hidden_size=16,
        reassemble_factors=[1, 1, 1, 0.5],
    )
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        model = DPTForDepthEstimation(config)
        for name, tensor in model.named_parameters():
            torch.nn.init.normal_(tensor, std=0.2 if "position" in name else max(0.05, tensor[0].numel() ** -0.5))
    torch.nn.init.constant_(model.head.head[4].bias, 2.0)  # so that most of a map is not cut off at zero
    model.save_pretrained(folder)


def build_pose(folder: Path, card: ModelCard) -> None:
    """Saves a body network with OpenPose's architecture and small widths into `folder`."""
    generator = torch.Generator().manual_seed(SEED)
    state: dict[str, torch.Tensor] = {}

    def add(layer: str, kernel: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        state[f"{layer}.weight"] = kernel.contiguous()
        state[f"{layer}.bias"] = torch.zeros(len(kernel)) if bias is None else bias

    for layer in TRUNK[:-2]:
        add(layer, _passing(3, 3, 3), torch.full((3,), 0.5 if layer == TRUNK[0] else 0.0))
    add(TRUNK[-2], *_differences())
    add(TRUNK[-1], -torch.eye(JOINTS).repeat_interleave(6, 1)[..., None, None] / STEP, torch.ones(JOINTS))
    for number in range(1, STAGES):
        wide = JOINTS + (N_FIELDS + N_CONFIDENCES if number > 1 else 0)
        for branch, out in ((1, N_FIELDS), (2, N_CONFIDENCES)):
            widths = [wide, *[4] * (len(stage(number, branch)) - 1), out]
            for n, layer in enumerate(stage(number, branch)):
                side = (3 if n < 3 else 1) if number == 1 else (7 if n < 5 else 1)
                shape = (widths[n + 1], widths[n], side, side)
                add(layer, torch.randn(shape, generator=generator) / (widths[n] * side * side) ** 0.5)
    for branch, out in ((1, N_FIELDS), (2, N_CONFIDENCES)):
        first, *others, last = stage(STAGES, branch)
        from_trunk = torch.zeros(JOINTS, N_FIELDS + N_CONFIDENCES + JOINTS, 7, 7)
        for row, column, share in ((3, 3, 1.0), (3, 2, 0.2), (2, 3, 0.1)):  # uneven, so that no two pixels are the peak
            from_trunk[:, -JOINTS:, row, column] = share * torch.eye(JOINTS)
        add(first, from_trunk)
        for n, layer in enumerate(others):
            add(layer, _passing(JOINTS, JOINTS, 7 if n < 4 else 1))
        add(last, torch.zeros(out, JOINTS, 1, 1) if branch == 1 else _passing(out, JOINTS, 1), _directions(branch, out))
    save_file(state, folder / POSE_WEIGHTS)


def _passing(out: int, into: int, side: int) -> torch.Tensor:
    kernel = torch.zeros(out, into, side, side)
    kernel[: min(out, into), : min(out, into), side // 2, side // 2] = torch.eye(min(out, into))
    return kernel


def _differences() -> tuple[torch.Tensor, torch.Tensor]:
    """Six channels per joint: the differences of each colour channel (BGR) above and below the joint's colour."""
    colours = torch.tensor([joint_colour(joint)[::-1] for joint in range(JOINTS)]) / 255
    kernel = torch.zeros(JOINTS * 6, 3, 3, 3)
    kernel[:, :, 1, 1] = torch.cat([torch.eye(3), -torch.eye(3)]).repeat(JOINTS, 1)
    return kernel, torch.cat([-colours, colours], 1).flatten()


def _directions(branch: int, out: int) -> torch.Tensor:
    """The last layer's bias: constant along the figure's limbs for the affinity fields, else 0."""
    bias = torch.zeros(out)
    for (start, end), field in zip(LIMBS, FIELDS, strict=True) if branch == 1 else ():
        away = torch.tensor(FIGURE[end], dtype=torch.float32) - torch.tensor(FIGURE[start], dtype=torch.float32)
        bias[field : field + 2] = away / away.norm()
    return bias


def _detector() -> tuple[list[Any], dict[str, np.ndarray], list[tuple[str, int]]]:
    """Nodes, constants and outputs (name, width): a face is a cell filled with the colour, with little of it around.

    A cell counts as 1 if it has the colour, as 0 if it is grey.
    """
    from onnx import helper

    nodes: list[Any] = []
    constants = {
        "colour": np.array([0.25, -0.5, 0.25], np.float32).reshape(1, 3, 1, 1),
        "sharp": np.array([60.0], np.float32),
        "enough": np.array([-45.0], np.float32),
        "twice": np.zeros((ANCHORS, 1, 1, 1), np.float32) + np.array([1.0, 0.9], np.float32).reshape(2, 1, 1, 1),
        **{f"flat{width}": np.array([-1, width], np.int64) for width in (1, 4, 10)},
        **{f"none{width}": np.zeros((ANCHORS * width, 1, 1, 1), np.float32) for width in (4, 10)},
        "box": np.tile(np.array([1.5, 1.5, 2.5, 2.5], np.float32), ANCHORS),
        "points": np.tile(np.array([-0.5, 0, 1.5, 0, 0.5, 0.8, -0.2, 1.5, 1.2, 1.5], np.float32), ANCHORS),
    }
    outputs: dict[int, list[tuple[str, int]]] = {1: [], 4: [], 10: []}
    for s in STRIDES:
        node = helper.make_node
        nodes += [
            node("AveragePool", ["input.1"], [f"mean{s}"], kernel_shape=[s, s], strides=[s, s]),
            node("Conv", [f"mean{s}", "colour"], [f"cell{s}"]),
            node("AveragePool", [f"cell{s}"], [f"around{s}"], kernel_shape=[7, 7], pads=[3] * 4, count_include_pad=1),
            node("Sub", [f"cell{s}", f"around{s}"], [f"alone{s}"]),
            node("Mul", [f"alone{s}", "sharp"], [f"sharp{s}"]),
            node("Add", [f"sharp{s}", "enough"], [f"one{s}"]),
            node("Conv", [f"one{s}", "twice"], [f"logit{s}"]),
            node("Sigmoid", [f"logit{s}"], [f"map1-{s}"]),
            node("Conv", [f"one{s}", "none4", "box"], [f"map4-{s}"]),
            node("Conv", [f"one{s}", "none10", "points"], [f"map10-{s}"]),
        ]
        for width, names in outputs.items():
            nodes += [
                node("Transpose", [f"map{width}-{s}"], [f"last{width}-{s}"], perm=[0, 2, 3, 1]),
                node("Reshape", [f"last{width}-{s}", f"flat{width}"], [f"out{width}-{s}"]),
            ]
            names.append((f"out{width}-{s}", width))
    return nodes, constants, [*outputs[1], *outputs[4], *outputs[10]]


def _recogniser() -> tuple[list[Any], dict[str, np.ndarray], list[tuple[str, int]]]:
    from onnx import helper

    random = np.random.default_rng(SEED)
    constants = {
        "kernel": random.normal(size=(8, 3, 8, 8)).astype(np.float32) / 8,
        "matrix": random.normal(size=(8 * 7 * 7, 512)).astype(np.float32) / 20,
    }
    nodes = [
        helper.make_node("Conv", ["input.1", "kernel"], ["patches"], strides=[8, 8]),
        helper.make_node("Relu", ["patches"], ["positive"]),
        helper.make_node("AveragePool", ["positive"], ["pooled"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Flatten", ["pooled"], ["flat"]),
        helper.make_node("MatMul", ["flat", "matrix"], ["683"]),
    ]
    return nodes, constants, [("683", 512)]


def _save_onnx(
    path: Path,
    nodes: list[Any],
    constants: dict[str, np.ndarray],
    outputs: list[tuple[str, int]],
    sides: tuple[str | int, str | int],
) -> None:
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    graph = helper.make_graph(
        nodes,
        path.stem,
        [helper.make_tensor_value_info("input.1", TensorProto.FLOAT, [1, 3, *sides])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", width]) for name, width in outputs],
        [numpy_helper.from_array(np.ascontiguousarray(value), name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR)
    onnx.checker.check_model(model)
    path.write_bytes(model.SerializeToString(deterministic=True))
