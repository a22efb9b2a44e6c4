"""Small generators with seeded random weights, saved as the real ones are, so that one code path loads both.

Weights are scaled up from the usual initialisation: otherwise the picture would hardly depend on the prompt.
"""

import string
from pathlib import Path

import torch
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer, T5Config, T5EncoderModel, T5Tokenizer

from local_bench.core.small import amplify, byte_characters

SEED = 20260101
LATENT_CHANNELS = 16
_PROMPT_INPUTS = {"context_embedder": 2.0, "text_embedder": 2.0}


def build_flux(folder: Path) -> None:
    """Saves a FLUX of 0.5 M parameters into `folder`: every class, the 8x VAE and 16 latent channels of FLUX.1."""
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        clip_tokenizer, t5_tokenizer = _clip_tokenizer(), _t5_tokenizer()
        clip = CLIPTextModel(
            CLIPTextConfig(
                vocab_size=len(clip_tokenizer),
                hidden_size=32,
                intermediate_size=64,
                num_hidden_layers=2,
                num_attention_heads=2,
                projection_dim=32,
                bos_token_id=clip_tokenizer.bos_token_id,
                eos_token_id=clip_tokenizer.eos_token_id,
                pad_token_id=clip_tokenizer.pad_token_id,
            )
        )
        t5 = T5EncoderModel(
            T5Config(
                vocab_size=len(t5_tokenizer),
                d_model=32,
                d_kv=16,
                d_ff=64,
                num_layers=2,
                num_heads=2,
                feed_forward_proj="gated-gelu",
                dropout_rate=0.0,
            )
        )
        transformer = FluxTransformer2DModel(
            patch_size=1,
            in_channels=4 * LATENT_CHANNELS,
            num_layers=1,
            num_single_layers=2,
            attention_head_dim=32,
            num_attention_heads=2,
            joint_attention_dim=32,
            pooled_projection_dim=32,
            guidance_embeds=True,
            axes_dims_rope=(8, 12, 12),
        )
        vae = small_vae()
    for module, factor in ((clip, 3.0), (t5, 3.0), (transformer, 3.0), (vae, 1.5)):
        amplify(module, {"": factor, **_PROMPT_INPUTS})
    FluxPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
        vae=vae,
        text_encoder=clip.eval(),
        tokenizer=clip_tokenizer,
        text_encoder_2=t5.eval(),
        tokenizer_2=t5_tokenizer,
        transformer=transformer.eval(),
    ).save_pretrained(folder)


def small_vae() -> AutoencoderKL:
    """An AutoencoderKL with the geometry of FLUX.1's and SD-3.5's: 8x down, 16 latent channels."""
    return AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        block_out_channels=(8, 8, 16, 16),
        layers_per_block=1,
        latent_channels=LATENT_CHANNELS,
        norm_num_groups=4,
        use_quant_conv=False,
        use_post_quant_conv=False,
        scaling_factor=0.3611,
        shift_factor=0.1159,
    ).eval()


def _clip_tokenizer() -> CLIPTokenizer:
    """One token a byte, no merges: nothing is learnt, so nothing can differ between two builds."""
    characters = byte_characters()
    pieces = [*characters, *(f"{c}</w>" for c in characters), "<|startoftext|>", "<|endoftext|>"]
    return CLIPTokenizer(vocab={piece: i for i, piece in enumerate(pieces)}, merges=[], model_max_length=77)


def _t5_tokenizer() -> T5Tokenizer:
    """One token a character (the rarer ones are unknown)."""
    characters = ["▁", *string.printable.strip(), *(chr(c) for c in range(0xA1, 0x17F))]
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *((c, -float(i + 1)) for i, c in enumerate(characters))]
    return T5Tokenizer(vocab=pieces, extra_ids=0, model_max_length=512)
