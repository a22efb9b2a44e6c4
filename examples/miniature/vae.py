"""Stage `vae`: an autoencoder of FLUX's geometry (8x, 16 channels) for images of 64x64.

L1 and squared error and a little of the divergence; most channels where there are few pixels. The scale and shift of
its latents are measured at the end and stand in its config.
"""

import numpy as np
import torch
import torch.nn.functional as F
from diffusers import AutoencoderKL

from examples.miniature.data import images
from examples.miniature.loop import Loss, Machine, Models, Stage, rng_of, save, train
from examples.miniature.printshop.damage import psnr_db
from local_bench.suites.printshop.checker import detect
from local_bench.suites.printshop.matching import facts
from local_bench.suites.printshop.scene import Pixels

STAGE = Stage(
    "vae",
    seed=21,
    steps=900,
    lr_muon=5e-3,
    lr_adam=2e-3,
    ema=0.99,
    adam_only=("encoder.conv_in", "decoder.conv_out"),
    masters=False,
)
CHANNELS = 16
_BATCH = 16
_KL = 1e-3


def new() -> AutoencoderKL:
    """With the stage's first weights."""
    torch.manual_seed(STAGE.seed)
    return AutoencoderKL(
        in_channels=3,
        out_channels=3,
        down_block_types=["DownEncoderBlock2D"] * 4,
        up_block_types=["UpDecoderBlock2D"] * 4,
        block_out_channels=[8, 16, 64, 64],
        layers_per_block=1,
        latent_channels=CHANNELS,
        norm_num_groups=1,
        sample_size=64,
        mid_block_add_attention=False,
        use_quant_conv=False,
        use_post_quant_conv=False,
        scaling_factor=1.0,
        shift_factor=0.0,
    )


def as_tensor(pixels: Pixels, device: torch.device) -> torch.Tensor:
    """float32 [n, 3, 64, 64] in [-1, 1]."""
    return torch.from_numpy(pixels).to(device).permute(0, 3, 1, 2).float() / 127.5 - 1


def as_pixels(images: torch.Tensor) -> Pixels:
    """uint8 [n, 64, 64, 3] of what `as_tensor` gives."""
    levels = ((images.float().clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)
    return levels.permute(0, 2, 3, 1).cpu().numpy()


def run(machine: Machine) -> bool:
    """Trains the stage; its outcome is `vae.trained.pt`."""
    models = Models(STAGE, machine, {"vae": new()})
    vae = models.run["vae"]

    def loss(step: int, steps: int) -> Loss:
        rng = rng_of(STAGE, step)
        _, drawn = images(STAGE.seed, step, _BATCH, 0.7)
        wanted = as_tensor(drawn, machine.device)
        with torch.autocast(machine.device.type, torch.bfloat16, enabled=machine.bf16):
            told = vae.encode(wanted).latent_dist
            made = vae.decode(told.sample() if rng.random() < 0.9 else told.mode()).sample.float()
        spread = 0.5 * (told.mean.float() ** 2 + told.var.float() - 1 - told.logvar.float()).mean()
        squared = F.mse_loss(made, wanted)
        return F.l1_loss(made, wanted) + squared + _KL * spread, {"squared": float(squared.detach())}

    done = train(models, loss)
    averaged = models.averaged()["vae"]
    _measure(averaged, machine)
    save(
        {"vae": averaged.state_dict(), "scale": averaged.scale, "shift": averaged.shift},
        machine.work / "vae.trained.pt",
    )
    return done


def trained(machine: Machine) -> AutoencoderKL:
    """What the stage made, frozen, its scale and shift in its config."""
    vae = new()
    kept = torch.load(machine.work / "vae.trained.pt", map_location="cpu", weights_only=True)
    vae.load_state_dict(kept["vae"])
    vae.register_to_config(scaling_factor=kept["scale"], shift_factor=kept["shift"])
    return vae.to(machine.device).eval().requires_grad_(False)


@torch.no_grad()
def latents(vae: AutoencoderKL, pixels: Pixels, device: torch.device) -> torch.Tensor:
    """Scaled and shifted as the pipelines have them, float32 [n, 16, 8, 8]."""
    found = [
        vae.encode(as_tensor(part, device)).latent_dist.mode()
        for part in np.array_split(pixels, -(-len(pixels) // 128))
    ]
    return (torch.cat(found) - vae.config.shift_factor) * vae.config.scaling_factor


@torch.no_grad()
def _measure(vae: AutoencoderKL, machine: Machine) -> None:
    """Sets `scale` and `shift` on the module and prints how true it is to fresh images."""
    scenes, drawn = images(STAGE.seed + 1, 0, 256, 0.5)
    found = torch.cat(
        [vae.encode(as_tensor(drawn[i : i + 128], machine.device)).latent_dist.mode() for i in range(0, 256, 128)]
    )
    vae.scale, vae.shift = float(1 / found.std()), float(found.mean())
    made = np.concatenate([as_pixels(vae.decode(found[i : i + 128]).sample) for i in range(0, 256, 128)])
    right = np.mean([facts(scene) <= facts(detect(image)) for scene, image in zip(scenes, made, strict=True)])
    print(f"vae, 256 fresh pictures: {psnr_db(made, drawn):.1f} dB, whole scene seen in {right:.1%}", flush=True)
