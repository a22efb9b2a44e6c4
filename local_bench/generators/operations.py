"""The operations and memory that one image takes."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Operations:
    """One image's operations (flop), and what its modules weigh."""

    encode_flop: int
    """All text encoders, a negative prompt's reading included."""
    picture_flop: int
    """All that looks at input pictures: VAE, image encoder, the language model's eyes."""
    forward_flop: int
    """One pass of one image through the transformer or UNet."""
    passes: int
    """A step's passes: guidance takes two or three."""
    together: bool
    """Whether an image's passes run as one batch."""
    steps: int
    decode_flop: int
    encoder_parameters: int
    transformer_parameters: int
    vae_parameters: int
    encoder_bytes: int
    """Weights and buffers in the card's own precision; so the next two."""
    transformer_bytes: int
    vae_bytes: int
    encoder_layer_bytes: int
    """The largest single layer, which must be whole on the device even where the rest streams in."""
    transformer_layer_bytes: int
    encode_live_bytes: int
    """The most that lives beside the weights while one prompt is encoded."""
    picture_live_bytes: int
    """… while the VAE reads one picture."""
    forward_live_bytes: int
    """… in one pass of one image."""
    decode_live_bytes: int
    """… while one image is decoded."""

    @property
    def denoise_flop(self) -> int:
        return self.steps * self.passes * self.forward_flop

    @property
    def total_flop(self) -> int:
        return self.encode_flop + self.picture_flop + self.denoise_flop + self.decode_flop

    @property
    def pflop(self) -> float:
        """`total_flop` in 10^15."""
        return self.total_flop / 1e15
