"""Training of a payment model: two stages, each with early stopping on validation tasks, resumable at any step.

On one machine with one thread and without a GPU the result is a function of the settings, the data and the weights,
whether the training was interrupted or not. `accelerate launch` (or `torchrun`) runs it on several GPUs.
"""

import json
import math
import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import TypeAdapter
from scipy.special import expit
from torch import nn

from local_bench.core.errors import ConfigError, LocalBenchError, UserError, WeightsError
from local_bench.core.files import storage_errors, sweep
from local_bench.core.types import digest
from local_bench.judges.payment.artefact import (
    ADAPTERS,
    HEADS,
    Base,
    Card,
    State,
    TrainedOn,
    base_of,
    libraries,
    load_card,
    save_artefact,
    save_tensors,
)
from local_bench.judges.payment.data import CONCEPTS, REAL_SIZE_B, Example, Load, PaymentConfig, Stage, TrainingSet
from local_bench.judges.payment.inputs import Encoder
from local_bench.judges.payment.network import (
    PaymentNetwork,
    checkpoint_gradients,
    concept_loss,
    load_network,
    load_processor,
    precision_of,
    set_up_device,
)
from local_bench.models.tensors import load_tensors, open_tensors
from local_bench.models.weights import resolve
from local_bench.settle.discrimination import auc, brier
from local_bench.settle.features import SPLITS, Split

CHECKPOINTS, CHECKPOINT, CONSTANTS = "checkpoints", "checkpoint.safetensors", "constants.safetensors"


@dataclass
class Progress:
    """Where a training is. Random numbers follow from the seed, the stage and the step, so no generator is stored."""

    fingerprint: str
    """Digest of everything that determines the result."""
    stage: int = 1
    step: int = 0
    """Optimiser steps done in this stage."""
    finished: bool = False
    history: list[dict[str, float]] = field(default_factory=list)
    """One entry per evaluation: stage, step, training and validation loss."""

    @property
    def losses(self) -> list[float]:
        """Validation losses in this stage."""
        return [entry["validation"] for entry in self.history if entry["stage"] == self.stage and "validation" in entry]

    @property
    def waited(self) -> int:
        """Evaluations of this stage since the lowest validation loss."""
        return len(self.losses) - 1 - self.losses.index(min(self.losses)) if self.losses else 0


def part_of(tensors: State, part: str) -> State:
    return {name.removeprefix(part): value for name, value in tensors.items() if name.startswith(part)}


def remove_checkpoints(folder: Path) -> None:
    """Remove checkpoint, constants and what killed processes were writing, and the folder if it is then empty."""
    sweep(folder)
    for name in (CHECKPOINT, CONSTANTS):
        (folder / name).unlink(missing_ok=True)
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def steps_per_epoch(n_examples: int, stage: Stage) -> int:
    """Optimiser steps; the examples of an incomplete step are left out, others in each epoch."""
    return max(1, n_examples // stage.effective_batch)


def step_examples(n_examples: int, stage: Stage, stage_number: int, step: int, seed: int) -> list[int]:
    """The indices of the examples of an optimiser step, from 0; every epoch has its own permutation."""
    epoch, position = divmod(step, steps_per_epoch(n_examples, stage))
    generator = torch.Generator().manual_seed(seed_at(seed, stage_number, epoch, "order"))
    order = torch.randperm(n_examples, generator=generator).tolist()
    start = position * stage.effective_batch
    return [order[i % n_examples] for i in range(start, start + stage.effective_batch)]


def learning_rate(stage: Stage, step: int, total: int) -> float:
    """Linear warm-up, then a cosine to 0."""
    warm = math.ceil(stage.warmup * total)
    if step < warm:
        return stage.learning_rate * (step + 1) / warm
    return stage.learning_rate * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, total - warm)))


def seed_at(*what: object) -> int:
    """A 63-bit seed for a place in the training."""
    return int(digest([str(part) for part in what])[:16], 16) >> 1


def oversampled(examples: Sequence[Example]) -> list[Example]:
    """The examples with those of the rarer class repeated in order until both classes are equally frequent."""
    paid = [example for example in examples if example.accepted == 1]
    rest = [example for example in examples if example.accepted == 0]
    rare, often = sorted((paid, rest), key=len)
    if not rare:
        return list(examples)
    return [*often, *(rare[i % len(rare)] for i in range(len(often)))]


def payment_metrics(logits: Sequence[float], labels: Sequence[float]) -> dict[str, Any]:
    """Of probabilities of payment: accuracy at one half, majority's accuracy, AUC (None with one class), Brier score
    and log loss."""
    z, paid = np.asarray(logits), np.asarray(labels) == 1
    return {
        "n": len(paid),
        "accuracy": float(((z >= 0) == paid).mean()),
        "majority": float(max(paid.mean(), 1 - paid.mean())),
        "auc": auc(z, paid),
        "brier": brier(expit(z), paid),
        "log_loss": float((np.logaddexp(0, z) - paid * z).mean()),
    }


def concept_metrics(predicted: Sequence[Sequence[float]], targets: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Concept -> number of images it applies to, and R²; None if the scores do not vary."""
    from sklearn.metrics import r2_score

    metrics: dict[str, Any] = {}
    for name, scores, true in zip(CONCEPTS, np.asarray(predicted).T, np.asarray(targets).T, strict=True):
        applies = ~np.isnan(true)
        varies = len(np.unique(true[applies])) > 1
        r2 = float(r2_score(true[applies], scores[applies])) if varies else None
        metrics[name] = {"n": int(applies.sum()), "r2": r2}
    return metrics


def train(
    data: TrainingSet,
    images: Load,
    config: PaymentConfig,
    out: Path,
    *,
    device: str = "auto",
    report: Callable[[str], None] = lambda text: None,
    after_step: Callable[[Progress], None] = lambda progress: None,
) -> Card:
    """Train on `data` and write the artefact to the folder `out`; an interrupted training there is continued.

    `images` loads an image by its pixel digest. UserError for a model of real size without a GPU, for too few labels,
    and for a folder with something else.
    """
    from accelerate import Accelerator

    torch_device = set_up_device(device)
    if config.judge.parameters_b >= REAL_SIZE_B and not (torch_device.type == "cuda" and torch.cuda.device_count()):
        raise ConfigError(
            f"{config.judge.name} has {config.judge.parameters_b:g} billion parameters, and this machine has no CUDA "
            "GPU to train it on: use a machine with one, or train on a small judge (mini-judge)"
        )
    labels = [example.accepted for example in data.of("train") if example.known]
    if len(set(labels)) < 2:
        raise UserError(
            f"the training tasks have {len(labels)} annotated images, all with the same decision: annotate more images"
        )
    if config.measured and not data.measured_names:
        raise UserError("`measured` is set, and the examples have no measured scores: judge the runs first")
    if config.concepts != "none" and not any(example.scored for example in data.of("train")):
        raise UserError("no training image has a concept score: judge the runs first, or set `concepts: none`")
    ours = {Card.FILE, ADAPTERS, HEADS, CHECKPOINTS}
    with storage_errors(out):
        out.mkdir(parents=True, exist_ok=True)
        other = sorted(path.name for path in out.iterdir() if path.name not in ours and not path.name.startswith("."))
    if other:
        raise UserError(f"{out} has other files ({other[0]}): give a new folder for the predictor")
    folder = resolve(config.judge)
    base = base_of(config.judge.name, folder)
    if (out / Card.FILE).is_file():
        card = load_card(out)
        if (card.config, card.base, card.trained_on.manifest_sha256) != (config, base, data.manifest_sha256):
            raise UserError(f"{out} has a payment model with other settings, data or weights: give a new folder")
        remove_checkpoints(out / CHECKPOINTS)
        return card
    precision = precision_of(config, torch_device)
    mixed = "bf16" if precision == "bfloat16" and torch_device.type == "cuda" else "no"
    accelerator = Accelerator(mixed_precision=mixed, cpu=torch_device.type == "cpu")
    seed = seed_at(config.seed, "weights")
    network = load_network(folder, config, len(data.measured_names), accelerator.device, precision, seed)
    encoder = Encoder(load_processor(folder), config, images)
    return _Trainer(data, config, base, out, precision, accelerator, network, encoder, report, after_step).run()


@dataclass
class _Trainer:
    """The state of a training: its progress, the best weights of the stage so far, and the constant features."""

    data: TrainingSet
    config: PaymentConfig
    base: Base
    out: Path
    precision: str
    accelerator: Any
    network: PaymentNetwork
    encoder: Encoder
    report: Callable[[str], None]
    after_step: Callable[[Progress], None]
    best: State = field(default_factory=dict)
    constants: State = field(default_factory=dict)

    def __post_init__(self) -> None:
        parts = [self.config.digest, self.data.manifest_sha256, self.base.model_dump(), libraries(), self.precision]
        self.progress = Progress(digest(parts), stage=1 if self.network.has_concepts else 2)
        self.checkpoints = self.out / CHECKPOINTS
        self.device, self.main = self.accelerator.device, bool(self.accelerator.is_main_process)
        if not self.main:
            self.report = lambda text: None
        self.settings = {1: self.config.stage1, 2: self.config.stage2}
        self.network.set_scales(self.data.of("train"))
        self.network.begin(0)
        if self.config.gradient_checkpointing and self.network.has_decision_adapter:
            checkpoint_gradients(self.network.trunk)

    def run(self) -> Card:
        saved: State = {}
        if os.path.isfile(self.checkpoints / CHECKPOINT):
            path, ours = self.checkpoints / CHECKPOINT, self.progress.fingerprint
            try:
                with open_tensors(path) as file:
                    self.progress = TypeAdapter(Progress).validate_json((file.metadata() or {}).get("progress", ""))
                saved = load_tensors(path)  # `state/`: current weights; `best/`: those of the stage; `optimiser/`
            except (WeightsError, ValueError):
                raise UserError(f"{path} is damaged: remove it to train from the start") from None
            if self.progress.fingerprint != ours:
                raise UserError(
                    f"{self.checkpoints} has an unfinished training with other settings, data, weights or libraries: "
                    "give a new folder, or remove it"
                )
            self.network.load_trained(part_of(saved, "state/"))
            self.report(f"continuing stage {self.progress.stage} after step {self.progress.step}")
        progress = self.progress
        while not progress.finished:
            self._stage(part_of(saved, "best/"), part_of(saved, "optimiser/"))
            self.network.load_trained(self.best)
            progress.finished = progress.stage == 2
            if progress.stage == 1:
                progress.stage, progress.step = 2, 0
            saved = {}
            self._save({})
        return self._finish()

    def _examples(self, split: Split, number: int) -> list[Example]:
        """The examples that a stage uses: those with a concept score, or with a label."""
        return [example for example in self.data.of(split) if (example.scored if number == 1 else example.known)]

    def _stage(self, best: State, moments: State) -> None:
        """Train one stage to its end, from its start or from the best weights and moments of a checkpoint."""
        progress, network, config = self.progress, self.network, self.config
        stage = self.settings[progress.stage]
        examples, held = self._examples("train", progress.stage), self._examples("validation", progress.stage)
        network.begin(progress.stage)
        if progress.stage == 2:
            self._compute_constants([*examples, *held])
            examples = oversampled(examples) if config.oversample else examples
        named = {name: parameter for name, parameter in network.named_parameters() if parameter.requires_grad}
        of_heads = (stage.head_learning_rate or stage.learning_rate) / stage.learning_rate
        groups: list[dict[str, Any]] = [
            {"params": [p for name, p in named.items() if (".lora_" in name) == adapters], "factor": factor}
            for adapters, factor in ((True, 1.0), (False, of_heads))
        ]
        groups = [group for group in groups if group["params"]]
        optimiser = torch.optim.AdamW(groups, weight_decay=stage.weight_decay, foreach=False)
        for path, value in moments.items():
            name, _, key = path.rpartition("/")
            optimiser.state[named[name]][key] = value if key == "step" else value.to(named[name].device)
        model = self.accelerator.prepare_model(network)
        total = stage.epochs * steps_per_epoch(len(examples), stage)
        self.best, last = best or self._weights(), progress.step >= total
        while not last:
            loss = self._step(model, optimiser, total, examples)
            progress.step += 1
            last = progress.step == total
            if last or progress.step % config.evaluate_every == 0:
                self._evaluate(held, loss)
                last = last or progress.waited >= config.patience
            if not last and progress.step % config.save_every == 0:
                moments = {f"{n}/{key}": value for n, p in named.items() for key, value in optimiser.state[p].items()}
                self._save({"best": self.best, "optimiser": moments})
            self.after_step(progress)
        self.accelerator.unwrap_model(model, keep_fp32_wrapper=False)
        self.accelerator.free_memory()

    def _step(
        self, model: nn.Module, optimiser: torch.optim.Optimizer, total: int, examples: Sequence[Example]
    ) -> float:
        """One optimiser step; returns its mean loss on this process."""
        number, step = self.progress.stage, self.progress.step
        stage, rank, world = self.settings[number], self.accelerator.process_index, self.accelerator.num_processes
        passes = stage.accumulation(world)
        mine = step_examples(len(examples), stage, number, step, self.config.seed)[rank::world]
        for group in optimiser.param_groups:
            group["lr"] = learning_rate(stage, step, total) * group["factor"]
        model.train()
        loss_sum = 0.0
        for i in range(passes):
            torch.manual_seed(seed_at(self.config.seed, number, step, i, rank))
            chosen = [examples[k] for k in mine[i * stage.batch_size : (i + 1) * stage.batch_size]]
            last = i == passes - 1
            with nullcontext() if last else self.accelerator.no_sync(model):  # gradients are averaged once per step
                loss = self._loss(model, chosen).mean()
                self.accelerator.backward(loss / passes)
            loss_sum += float(loss.detach())
        if not math.isfinite(loss_sum):
            raise LocalBenchError(
                f"the loss of step {step + 1} in stage {number} is not finite: lower the learning rate and train again"
            )
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        return loss_sum / passes

    def _loss(self, model: nn.Module, examples: Sequence[Example]) -> torch.Tensor:
        if self.progress.stage == 1:
            batch = self.encoder.batch(examples, self.device)
            targets = torch.tensor([example.concepts for example in examples], device=self.device)
            return concept_loss(model(batch, ()).float(), targets, self.network)
        labels = torch.tensor([example.accepted for example in examples], device=self.device)
        return nn.functional.binary_cross_entropy_with_logits(self._logits(model, examples), labels, reduction="none")

    def _logits(self, model: nn.Module, examples: Sequence[Example]) -> torch.Tensor:
        rest = (
            torch.stack([self.constants[key_of(example)] for example in examples]).to(self.device),
            torch.tensor([self.network.given_inputs(example) for example in examples], device=self.device),
        )
        batch = self.encoder.batch(examples, self.device) if self.network.has_decision_adapter else None
        logits: torch.Tensor = model(batch, rest).float()
        return logits

    def _evaluate(self, held: list[Example], loss: float) -> None:
        """Add to the history, and keep the weights if they are the best of the stage; without validation examples
        always."""
        progress = self.progress
        entry = {"stage": float(progress.stage), "step": float(progress.step), "train": loss}
        improved = True
        if held:
            losses = self._each(held, lambda example: float(self._loss(self.network, [example])[0]))
            entry["validation"] = value = sum(losses) / len(held)
            self.report(f"stage {progress.stage}, step {progress.step}: loss {loss:.4f}, validation {value:.4f}")
            improved = value < min(progress.losses, default=math.inf)
        progress.history.append(entry)
        self.best = self._weights() if improved else self.best

    def _weights(self) -> State:
        return {name: value.detach().cpu().clone() for name, value in self.network.trained_state().items()}

    @torch.no_grad()
    def _each(self, examples: Sequence[Example], value_of: Callable[[Example], Any]) -> list[Any]:
        """The values of the examples in inference mode, process by process; each process computes a part of them."""
        from accelerate.utils import gather_object

        self.network.eval()
        with self.accelerator.autocast():
            mine = examples[self.accelerator.process_index :: self.accelerator.num_processes]
            values: list[Any] = gather_object([value_of(example) for example in mine])
        return values

    def _compute_constants(self, examples: Sequence[Example]) -> None:
        """Compute the features that stage 2 does not change, or read them from the interrupted training."""

        def computed(example: Example) -> tuple[str, torch.Tensor]:
            return key_of(example), self.network.constants(self.encoder.batch([example], self.device))[0].float().cpu()

        path = self.checkpoints / CONSTANTS
        if not self.constants:
            with suppress(WeightsError), open_tensors(path) as file:  # none, or damaged
                if (file.metadata() or {}).get("fingerprint") == self.progress.fingerprint:
                    self.constants = load_tensors(path)
        missing = {key_of(example): example for example in examples if key_of(example) not in self.constants}
        if missing:
            self.constants |= dict(self._each(list(missing.values()), computed))
            if self.main:
                save_tensors(path, self.constants, {"fingerprint": self.progress.fingerprint})
            self.accelerator.wait_for_everyone()

    def _save(self, parts: dict[str, State]) -> None:
        if self.main:
            parts = {"state": self._weights(), **parts}
            tensors = {f"{part}/{name}": value for part, of_part in parts.items() for name, value in of_part.items()}
            save_tensors(self.checkpoints / CHECKPOINT, tensors, {"progress": json.dumps(asdict(self.progress))})
        self.accelerator.wait_for_everyone()

    def _finish(self) -> Card:
        network, data = self.network, self.data
        labelled = {split: self._examples(split, 2) for split in SPLITS}
        every = [example for of_split in labelled.values() for example in of_split]
        network.begin(2)
        self._compute_constants(every)
        logits = dict(self._each(every, lambda example: (key_of(example), float(self._logits(network, [example])[0]))))
        metrics: dict[str, Any] = {"history": self.progress.history}
        for split, examples in labelled.items():
            if examples:
                of_split = [logits[key_of(example)] for example in examples]
                metrics[split] = payment_metrics(of_split, [example.accepted for example in examples])
                if network.has_concepts:
                    rows = torch.stack([self.constants[key_of(example)] for example in examples])[:, -len(CONCEPTS) :]
                    metrics[split]["concepts"] = concept_metrics(
                        rows.tolist(), [example.concepts for example in examples]
                    )
        card = Card(
            base=self.base,
            config=self.config,
            measured_names=list(data.measured_names) if self.config.measured else [],
            precision=self.precision,
            trained_on=TrainedOn(
                manifest_sha256=data.manifest_sha256,
                n_images={split: len(data.of(split)) for split in labelled},
                n_labelled={split: len(examples) for split, examples in labelled.items()},
                tasks={split: sorted({example.task_id for example in data.of(split)}) for split in labelled},
            ),
            n_processes=self.accelerator.num_processes,
            libraries=libraries(),
            metrics=metrics,
        )
        if self.main:
            card = save_artefact(self.out, card, network.trained_state())
            remove_checkpoints(self.checkpoints)
        self.accelerator.wait_for_everyone()
        return card


def key_of(example: Example) -> str:
    return f"{example.work_id}/{example.task_id}"
