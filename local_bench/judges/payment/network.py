"""The two-stage network: concepts from the backbone with stage 1's adapters, then the payment from everything.

The backbone is a Qwen2-VL or Qwen3-VL with LoRA on the vision encoder, the projector and the language model, chosen by
module name. The adapters are attached to the full `ForConditionalGeneration` model; `hidden` then calls its inner
model, so that no logits are computed.

Stage 1 (`concept_outputs`) predicts the seven concepts. Stage 2 (`payment_logits`) concatenates, for one backbone:

- the original model's features, without adapters: last token and mean;
- the frozen quality model's features and concepts;
- the features with stage 2's own adapters on top of the frozen ones;
- judge-measured scores, if `measured` is set; and whether there is a source image and whether there are other images.

The first two do not change during stage 2 (`constants`) and are computed once per example.
"""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import nn

from local_bench.core.environment import quiet_libraries
from local_bench.core.errors import ConfigError
from local_bench.judges.payment.data import CONCEPTS, DIMENSIONS, HIGHEST, Example, Lora, PaymentConfig, Pooling
from local_bench.judges.payment.inputs import Batch
from local_bench.models.tensors import complete, loading

FAMILIES = ("qwen2_vl", "qwen3_vl")
QUALITY = "quality"
"""The adapter of stage 1."""
DECISION = "decision"
"""The adapter of stage 2, active together with the frozen `quality`."""
TARGETS = {
    "vision": r"model\.visual\.blocks\.\d+\.(attn\.(qkv|proj)|mlp\.(linear_fc1|linear_fc2|fc1|fc2))",
    "projector": r"model\.visual\.(merger|deepstack_merger_list\.\d+)\.(linear_fc1|linear_fc2|mlp\.0|mlp\.2)",
    "language": r"model\.language_model\.layers\.\d+\.(self_attn\.(q|k|v|o)_proj|mlp\.(gate|up|down)_proj)",
}
"""Module names by group, as regular expressions for full names."""
_OFFLINE = {"local_files_only": True, "trust_remote_code": False}


def set_up_device(name: str = "auto") -> torch.device:
    """`auto`: the first CUDA GPU, or the CPU. On a CPU this process then computes in one thread: with several, sums
    depend on their number, and small models wait for busy cores."""
    device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)
    if device.type == "cpu":
        torch.set_num_threads(1)
    return device


def precision_of(config: PaymentConfig, device: torch.device) -> str:
    if config.precision != "auto":
        return config.precision
    has_bfloat16 = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return "bfloat16" if has_bfloat16 else "float32"


def load_processor(folder: Path) -> Any:
    """Raises WeightsError."""
    from transformers import AutoProcessor

    quiet_libraries()
    with loading(folder):
        return AutoProcessor.from_pretrained(folder, **_OFFLINE)


def load_backbone(folder: Path, device: torch.device, precision: str) -> nn.Module:
    """The frozen model. Raises WeightsError."""
    from transformers import AutoModelForImageTextToText

    quiet_libraries()
    placed: dict[str, Any] = {"dtype": precision, "device_map": {"": device}, "attn_implementation": "sdpa"}
    with loading(folder), complete():
        model: nn.Module = AutoModelForImageTextToText.from_pretrained(
            folder, use_safetensors=True, **placed, **_OFFLINE
        )
    return model.requires_grad_(False).eval()


def attach(base: Any, lora: Lora) -> Any:
    """Freeze `base` and add the adapters `quality` and `decision` to the groups of `lora`; without groups `base` is
    returned. ConfigError for another model family."""
    from peft import LoraConfig, get_peft_model

    if base.config.model_type not in FAMILIES:
        raise ConfigError(
            f"a payment model cannot be trained on {base.config.model_type}: choose a judge card of "
            + ", ".join(FAMILIES)
        )
    base.requires_grad_(False)
    if not lora.groups:
        return base
    targets = "|".join(f"({TARGETS[group]})" for group in lora.groups)

    def config(rank: int) -> Any:
        return LoraConfig(r=rank, lora_alpha=lora.alpha, lora_dropout=lora.dropout, target_modules=targets, bias="none")

    model = get_peft_model(base, config(lora.rank), adapter_name=QUALITY)
    model.add_adapter(DECISION, config(lora.decision_rank))
    activate(model, (QUALITY,), ())
    return model


def activate(trunk: nn.Module, active: Sequence[str], trained: Sequence[str]) -> None:
    """Make the adapters `active` take part in forward passes and those in `trained`, which are among them, trainable.
    Does nothing to a model without adapters."""
    if not hasattr(trunk, "peft_config"):
        return
    tuner: Any = trunk.base_model
    if not active:
        tuner.disable_adapter_layers()
        return
    tuner.enable_adapter_layers()
    tuner.set_adapter(list(active), inference_mode=True)
    tuner.set_requires_grad(list(trained))


def full_model(trunk: Any) -> Any:
    """The `ForConditionalGeneration` model inside."""
    return trunk.get_base_model() if hasattr(trunk, "peft_config") else trunk


def hidden(trunk: nn.Module, batch: Batch) -> torch.Tensor:
    """Last hidden states (examples, tokens, hidden size), with the active adapters."""
    model, mask = full_model(trunk), batch["attention_mask"]
    inputs = batch | {"pixel_values": batch["pixel_values"].to(model.dtype)}
    padded = bool((mask == 0).any())
    states: torch.Tensor = model.model(
        **inputs | {"attention_mask": mask if padded else None}, use_cache=False
    ).last_hidden_state
    return states


def checkpoint_gradients(trunk: nn.Module) -> None:
    """Recompute the activations of each block in the backward pass. Its dropout is repeated exactly."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        full_model(trunk).gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})


CLASSES = 5
"""Of the ordinal variant: scores 1 to 5."""
N_CONCEPTS = len(CONCEPTS)
_CNS_EDIT, _CNS_SET = CONCEPTS.index("cns_edit"), CONCEPTS.index("cns_set")


class Pool(nn.Module):
    """(examples, tokens, hidden) -> (examples, features); padding does not count."""

    def __init__(self, kind: Pooling, hidden_size: int) -> None:
        super().__init__()
        self.kind = kind
        self.features = hidden_size * (2 if kind == "both" else 1)
        if kind == "attention":
            self.query = nn.Parameter(torch.randn(hidden_size) * 0.02)

    def forward(self, states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        states = states.float()
        if self.kind == "attention":
            scores = (states @ self.query * states.shape[-1] ** -0.5).masked_fill(mask == 0, float("-inf"))
            return torch.einsum("bt,bth->bh", scores.softmax(dim=-1), states)
        weights = (mask / mask.sum(dim=1, keepdim=True)).float()
        mean = torch.einsum("bt,bth->bh", weights, states)
        if self.kind == "mean":
            return mean
        last = states[torch.arange(len(states), device=states.device), mask.sum(dim=1) - 1]
        return last if self.kind == "last" else torch.cat([last, mean], dim=-1)


def _mlp(features: int, width: int, dropout: float, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.LayerNorm(features),
        nn.Linear(features, width),
        nn.GELU(),
        nn.Dropout(dropout),
        nn.Linear(width, outputs),
    )


class PaymentNetwork(nn.Module):
    """The backbone `base` (a Qwen-VL `ForConditionalGeneration`) with adapters and heads."""

    concept_mean: torch.Tensor
    concept_spread: torch.Tensor
    measured_mean: torch.Tensor
    measured_spread: torch.Tensor

    def __init__(self, base: Any, config: PaymentConfig, n_measured: int = 0) -> None:
        super().__init__()
        size = int(base.config.get_text_config().hidden_size)
        self.config = config
        self.n_measured = n_measured if config.measured else 0
        self.trunk = attach(base, config.lora)
        self.has_concepts = config.concepts != "none"
        self.has_decision_adapter = bool(config.lora.groups)
        outputs = N_CONCEPTS * (CLASSES if config.concepts == "ordinal" else 1)
        self.original_pool = Pool("both", size)
        n_features = self.original_pool.features
        heads: dict[str, nn.Module] = {}
        if self.has_concepts:
            heads["quality_pool"] = pool = Pool(config.pooling, size)
            heads["quality"] = _mlp(pool.features, config.width, config.head_dropout, outputs)
            n_features += pool.features
        if self.has_decision_adapter:
            heads["decision_pool"] = pool = Pool(config.pooling, size)
            n_features += pool.features
        n_inputs = 2 * self.n_measured + 2 + (N_CONCEPTS if self.has_concepts else 0)
        heads["decision"] = _mlp(n_features + n_inputs, config.width, config.head_dropout, 1)
        heads["decision_line"] = nn.Linear(n_inputs, 1)
        self.heads = nn.ModuleDict(heads)
        for name, length in (("concept", N_CONCEPTS), ("measured", self.n_measured)):
            self.register_buffer(f"{name}_mean", torch.zeros(length))
            self.register_buffer(f"{name}_spread", torch.ones(length))
        self.stage = 0

    def set_scales(self, examples: Sequence[Example]) -> None:
        """Standardise targets and measured inputs by these training examples, NaN left out; a constant column has the
        standard deviation 1."""
        tables = {"concept": [example.concepts for example in examples]} if self.config.standardise else {}
        if self.n_measured:
            tables["measured"] = [example.measured for example in examples]
        for name, rows in tables.items():
            table = pd.DataFrame(rows)
            spread = table.std(ddof=0)
            getattr(self, f"{name}_mean").copy_(torch.tensor(table.mean().fillna(0).tolist()))
            getattr(self, f"{name}_spread").copy_(torch.tensor(spread.where(spread > 1e-6, 1.0).tolist()))

    def begin(self, stage: int) -> None:
        """Make the parameters of this stage trainable and all others fixed; stage 0: none."""
        trained = {0: "", 1: QUALITY, 2: DECISION}[stage]
        activate(self.trunk, (QUALITY, DECISION) if stage == 2 else (QUALITY,), (trained,) if trained else ())
        for name, head in self.heads.items():
            head.requires_grad_(bool(trained) and name.startswith(trained))
        self.stage = stage

    def train(self, mode: bool = True) -> "PaymentNetwork":
        """As `nn.Module.train`, but what is frozen in stage 2 keeps its inference mode: no dropout."""
        super().train(mode)
        if mode and self.stage == 2:
            for module in self.trunk.modules():
                dropout: Any = getattr(module, "lora_dropout", {})
                if QUALITY in dropout:
                    dropout[QUALITY].eval()
        return self

    def forward(self, batch: Batch | None, rest: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """The current stage's outputs: concepts of `concept_outputs(batch)`, or `payment_logits(batch, *rest)`."""
        if self.stage == 1:
            assert batch is not None
            return self.concept_outputs(batch)[1]
        return self.payment_logits(batch, *rest)

    def concept_outputs(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Pooled features, and the concepts (examples, 7), standardised if `standardise` is set; (examples, 7, 5) class
        logits in the ordinal variant."""
        pooled = self.heads["quality_pool"](hidden(self.trunk, batch), batch["attention_mask"])
        outputs = self.heads["quality"](pooled)
        return pooled, outputs.view(-1, N_CONCEPTS, CLASSES) if self.config.concepts == "ordinal" else outputs

    @torch.no_grad()
    def constants(self, batch: Batch) -> torch.Tensor:
        """(examples, constant features): the original model's features, and the quality model's features and
        concepts. Leaves the active adapters as in the current stage."""
        activate(self.trunk, (), ())
        features = [self.original_pool(hidden(self.trunk, batch), batch["attention_mask"])]
        if self.has_concepts:
            activate(self.trunk, (QUALITY,), ())
            pooled, outputs = self.concept_outputs(batch)
            if self.config.concepts == "ordinal":
                classes = torch.arange(1, CLASSES + 1, dtype=outputs.dtype, device=outputs.device)
                scores = outputs.softmax(dim=-1) @ classes
            else:
                scores = (outputs * self.concept_spread + self.concept_mean).clamp(0, HIGHEST)
            features += [pooled, scores]  # (examples, 7), 0 to 5
        self.begin(self.stage)
        return torch.cat(features, dim=-1)

    def payment_logits(self, batch: Batch | None, constants: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
        """(examples,) log-odds of payment.

        `constants` as from `constants`; `given` (examples, 2 + measured) from `given_inputs`. `batch` is used only if
        stage 2 has adapters.
        """
        inputs = [given[:, :2]]
        if self.has_concepts:
            constants, scores = constants[:, :-N_CONCEPTS], constants[:, -N_CONCEPTS:]
            applies = torch.ones_like(scores)
            applies[:, _CNS_EDIT], applies[:, _CNS_SET] = given[:, 0], given[:, 1]
            inputs.append((scores - self.concept_mean) / self.concept_spread * applies)
        if self.n_measured:
            measured = given[:, 2:]
            measured_here = ~measured.isnan()
            scaled = (measured - self.measured_mean) / self.measured_spread
            inputs += [torch.where(measured_here, scaled, torch.zeros_like(scaled)), measured_here.float()]
        line = torch.cat(inputs, dim=-1)
        features = [constants, line]
        if self.has_decision_adapter:
            assert batch is not None
            features.append(self.heads["decision_pool"](hidden(self.trunk, batch), batch["attention_mask"]))
        logits: torch.Tensor = self.heads["decision"](torch.cat(features, dim=-1)) + self.heads["decision_line"](line)
        return logits.squeeze(-1)

    def given_inputs(self, example: Example) -> list[float]:
        """Whether there is a source image, whether there are other images, and the measured scores."""
        measured = example.measured if self.n_measured else ()
        return [float(example.source is not None), float(bool(example.siblings)), *measured]

    def trained_state(self) -> dict[str, torch.Tensor]:
        """All adapters and heads by name, without the backbone."""
        return {name: value for name, value in self.state_dict().items() if is_own(name)}

    def load_trained(self, state: dict[str, torch.Tensor]) -> None:
        """Inverse of `trained_state`; raises RuntimeError if a name or a shape differs."""
        missing, unexpected = self.load_state_dict(state, strict=False)
        missing = [name for name in missing if is_own(name)]
        if missing or unexpected:
            raise RuntimeError(f"missing {missing[:1]}, unexpected {unexpected[:1]}")


def load_network(
    folder: Path, config: PaymentConfig, n_measured: int, device: torch.device, precision: str, seed: int = 0
) -> PaymentNetwork:
    """The backbone in `folder` with adapters and heads, whose random weights follow from the seed. WeightsError."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return PaymentNetwork(load_backbone(folder, device, precision), config, n_measured).to(device)


def is_own(name: str) -> bool:
    """Whether a tensor belongs to the adapters, heads or scales rather than to the backbone."""
    return ".lora_" in name or not name.startswith("trunk.")


def concept_loss(outputs: torch.Tensor, targets: torch.Tensor, network: PaymentNetwork) -> torch.Tensor:
    """(examples,) loss of stage 1: the sum over BRF, VEQ and CNS (equation 2) of the mean over the dimension's scores
    that apply; NaN targets do not count, and a dimension without a target is 0."""
    applies = ~targets.isnan()
    if network.config.concepts == "ordinal":
        labels = torch.where(applies, targets, torch.ones_like(targets)).round().clamp(1, CLASSES).long() - 1
        losses = nn.functional.cross_entropy(outputs.transpose(1, 2), labels, reduction="none")
    else:
        scaled = (targets - network.concept_mean) / network.concept_spread
        losses = (outputs - torch.where(applies, scaled, outputs.detach())) ** 2
    weights = torch.zeros_like(losses)
    for indices in DIMENSIONS:
        columns = list(indices)
        count = applies[:, columns].sum(dim=1, keepdim=True)
        weights[:, columns] = applies[:, columns] / count.clamp(min=1)
    return (losses * weights).sum(dim=1)
