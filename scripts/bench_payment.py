"""Ten training steps of the payment model at Qwen3-VL-4B's real width with random weights: seconds, memory, MFU.

    python -m scripts.bench_payment [--tokens 8192] [--images 6] [--steps 10] [--out benchmarks/gpu/payment.json]
    python -m scripts.bench_payment --plan [--gpu a6000] [--gpus 4]

The first form needs a CUDA GPU with bfloat16; it trains stage 1's adapters and heads with gradient checkpointing at
batch size 1, as configs/payment/qwen3-vl-4b-1gpu.yaml does, on one synthetic example. The second prints the computed
memory and hours for 24,000 training examples at two prompt lengths, without a GPU.
"""

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import yaml
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

from local_bench.core.environment import versions
from local_bench.judges.payment.data import PaymentConfig, load_payment_config
from local_bench.judges.payment.inputs import Batch
from local_bench.judges.payment.network import PaymentNetwork, checkpoint_gradients, concept_loss
from local_bench.models.gpus import gpu, gpu_of
from scripts.payment_plan import MFU, Workload, forward_flop, training_plan

RECORDED = Path(__file__).parents[1] / "tests" / "data" / "checkpoints" / "qwen3-vl-4b.yaml"
SEED = 0
WARM_UP = 2
EXAMPLES = 24_000
VALIDATION = 5_000


def shapes() -> Qwen3VLConfig:
    """The recorded config of Qwen3-VL-4B."""
    return Qwen3VLConfig(**yaml.safe_load(RECORDED.read_text())["components"]["model"]["config"])


def random_model(config: Qwen3VLConfig, device: torch.device, dtype: torch.dtype) -> Any:
    """The model with random weights, made on the device."""
    torch.manual_seed(SEED)
    default = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with device:
            return Qwen3VLForConditionalGeneration(config)
    finally:
        torch.set_default_dtype(default)


def synthetic_batch(config: Any, tokens: int, images: int, device: torch.device) -> tuple[Batch, Workload]:
    """One example: `images` equal square images in about three quarters of the tokens, text for the rest."""
    vision = config.vision_config
    side = max(1, int((0.75 * tokens / images) ** 0.5))
    per_image, merge = side * side, vision.spatial_merge_size
    ids = torch.full((1, tokens), 100)
    for i in range(images):
        start = 1 + i * (per_image + 1)
        ids[0, start : start + per_image] = config.image_token_id
    marks = (ids == config.image_token_id).int()
    grid = torch.tensor([[1, side * merge, side * merge]] * images)
    values = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
    pixels = torch.randn(int(grid.prod(dim=1).sum()), values)
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "mm_token_type_ids": marks}
    batch |= {"pixel_values": pixels, "image_grid_thw": grid}
    on_device = {name: value.to(device) for name, value in batch.items()}
    return on_device, Workload(tokens, images * per_image, images, EXAMPLES, VALIDATION)


def measure(base: Any, config: PaymentConfig, batch: Batch, steps: int, device: torch.device) -> dict[str, Any]:
    """Seconds of each step after the warm-up, and the peak of allocated memory in bytes (0 on the CPU)."""
    network = PaymentNetwork(base, config).to(device)
    checkpoint_gradients(network.trunk)
    network.begin(1)
    network.train()
    trained = [p for p in network.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(trained, lr=config.stage1.learning_rate, foreach=False)
    targets = torch.tensor([[2.5, 3.0, 4.0, 1.0, float("nan"), float("nan"), 2.0]], device=device)
    on_gpu = device.type == "cuda"
    seconds, losses = [], []
    for step in range(WARM_UP + steps):
        if on_gpu:
            torch.cuda.synchronize()
        began = time.perf_counter()
        with torch.autocast(device.type, torch.bfloat16, enabled=on_gpu):
            loss = concept_loss(network(batch, ()).float(), targets, network).mean()
        loss.backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        if on_gpu:
            torch.cuda.synchronize()
        losses.append(float(loss.detach()))
        if step >= WARM_UP:
            seconds.append(time.perf_counter() - began)
    return {
        "seconds": seconds,
        "losses": losses,
        "trained_parameters": sum(p.numel() for p in trained),
        "peak_bytes": torch.cuda.max_memory_allocated() if on_gpu else 0,
    }


def benchmark(tokens: int, images: int, steps: int) -> dict[str, Any]:
    device, name = torch.device("cuda"), torch.cuda.get_device_name()
    config = load_payment_config("qwen3-vl-4b-1gpu")
    base = random_model(shapes(), device, torch.bfloat16)
    batch, workload = synthetic_batch(base.config, tokens, images, device)
    flop = 3 * forward_flop(base, workload)  # forward, recomputation, gradients of activations
    found = measure(base, config, batch, steps, device)
    middle = sorted(found["seconds"])[len(found["seconds"]) // 2]
    known = gpu_of(name)
    return {
        "command": " ".join(["-m scripts.bench_payment", *sys.argv[1:]]),
        "device": name,
        "packages": versions(),
        "tokens": tokens,
        "images": images,
        **found,
        "seconds_per_step": middle,
        "flop_per_step": flop,
        "mfu": None if known is None else flop / middle / (known.peak_tflops * 1e12),
    }


def plans(gpu_name: str, n_gpus: int) -> dict[str, Any]:
    """Prompt tokens -> the plan, for short and for full prompts."""
    config = load_payment_config("qwen3-vl-4b-4xa6000" if n_gpus > 1 else "qwen3-vl-4b-1gpu")
    found = {}
    for workload in (Workload(1500, 1000, 1, EXAMPLES, VALIDATION), Workload(8192, 6144, 6, EXAMPLES, VALIDATION)):
        base = random_model(shapes(), torch.device("meta"), torch.bfloat16)
        with torch.device("meta"):
            found[str(workload.tokens)] = asdict(training_plan(base, config, workload, gpu(gpu_name), n_gpus))
    return {"gpu": gpu_name, "gpus": n_gpus, "mfu": MFU, "examples": EXAMPLES, "plans": found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", action="store_true")
    parser.add_argument("--gpu", default="a6000")
    parser.add_argument("--gpus", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--images", type=int, default=6)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if not options.plan and not torch.cuda.is_available():
        sys.exit("this benchmark needs a CUDA GPU, and this machine has none: use --plan for the computed figures")
    found = (
        plans(options.gpu, options.gpus) if options.plan else benchmark(options.tokens, options.images, options.steps)
    )
    text = json.dumps(found, indent=1) + "\n"
    print(text, end="")
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(text)


if __name__ == "__main__":
    main()
