"""Operations and memory of one generated image."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Operations:
    """One image's operations (flop), and the sizes of the model's modules."""

    encode_flop: int
    """All text encoders, including a negative prompt."""
    picture_flop: int
    """Encoding of input images: VAE, CLIP image encoder, the language model's vision encoder."""
    forward_flop: int
    """One forward pass of one image through the transformer or UNet."""
    passes: int
    """Forward passes per step: two or three with guidance."""
    together: bool
    """Whether an image's passes run as one batch."""
    steps: int
    decode_flop: int
    encoder_parameters: int
    transformer_parameters: int
    vae_parameters: int
    encoder_bytes: int
    """Weights and buffers in the card's dtype, as are the next two."""
    transformer_bytes: int
    vae_bytes: int
    encoder_layer_bytes: int
    """The largest single layer, which must fit on the device even with offloading."""
    transformer_layer_bytes: int
    encode_live_bytes: int
    """Peak of live tensors, without weights, while one prompt is encoded."""
    picture_live_bytes: int
    """The same while the VAE encodes one input image."""
    forward_live_bytes: int
    """The same in one forward pass of one image."""
    decode_live_bytes: int
    """The same while one image is decoded."""

    @property
    def denoise_flop(self) -> int:
        return self.steps * self.passes * self.forward_flop

    @property
    def total_flop(self) -> int:
        return self.encode_flop + self.picture_flop + self.denoise_flop + self.decode_flop

    @property
    def pflop(self) -> float:
        """`total_flop` in units of 10^15."""
        return self.total_flop / 1e15
