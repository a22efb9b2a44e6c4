"""Training of a payment model: two stages, each with early stopping on validation tasks, resumable at any step.

On one machine with one thread and without a GPU the result is a function of the settings, the data and the weights,
whether the training was interrupted or not. `accelerate launch` (or `torchrun`) runs it on several GPUs.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from local_bench.core.errors import LocalBenchError, UserError
from local_bench.core.identity import digest
from local_bench.judges.payment.adapters import checkpoint_gradients
from local_bench.judges.payment.artefact import (
    Base,
    Card,
    Progress,
    TrainedOn,
    finished,
    libraries,
    load_checkpoint,
    load_constants,
    optimiser_state,
    prepare_folder,
    remove_checkpoint,
    restore_optimiser,
    save_artefact,
    save_checkpoint,
    save_tensors,
)
from local_bench.judges.payment.backbone import (
    base_digests,
    card_of,
    device_of,
    folder_of,
    load_backbone,
    load_processor,
    precision_of,
)
from local_bench.judges.payment.config import PaymentConfig, Stage, require_gpu
from local_bench.judges.payment.examples import CONCEPTS, Example, Load, TrainingSet
from local_bench.judges.payment.inputs import Encoder
from local_bench.judges.payment.network import PaymentNetwork, concept_loss, scales_of


def steps_per_epoch(n_examples: int, stage: Stage) -> int:
    """Optimiser steps; the examples of an incomplete step are left out, others in each epoch."""
    return max(1, n_examples // stage.effective_batch)


def total_steps(n_examples: int, stage: Stage) -> int:
    return stage.epochs * steps_per_epoch(n_examples, stage)


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
    return int(digest([str(one) for one in what])[:16], 16) >> 1


def oversampled(examples: Sequence[Example]) -> list[Example]:
    """The examples with those of the rarer class repeated in order until both classes are equally frequent."""
    paid = [one for one in examples if one.accepted == 1]
    rest = [one for one in examples if one.accepted == 0]
    rare, often = sorted((paid, rest), key=len)
    if not rare:
        return list(examples)
    return [*often, *(rare[i % len(rare)] for i in range(len(often)))]


def payment_metrics(logits: Sequence[float], labels: Sequence[float]) -> dict[str, Any]:
    """Of probabilities of payment: accuracy at one half, majority's accuracy, AUC (None with one class), Brier score
    and log loss."""
    from sklearn.metrics import roc_auc_score

    z, y = np.asarray(logits), np.asarray(labels)
    p = 1 / (1 + np.exp(-np.clip(z, -700, 700)))
    return {
        "n": len(y),
        "accuracy": float(((z >= 0) == (y == 1)).mean()),
        "majority": float(max(y.mean(), 1 - y.mean())),
        "auc": float(roc_auc_score(y, z)) if len(set(labels)) == 2 else None,
        "brier": float(((p - y) ** 2).mean()),
        "log_loss": float((np.logaddexp(0, z) - y * z).mean()),
    }


def concept_metrics(predicted: Sequence[Sequence[float]], targets: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Concept -> number of images it applies to, and R²; None if the scores do not vary."""
    found: dict[str, Any] = {}
    for name, of, true in zip(CONCEPTS, np.asarray(predicted).T, np.asarray(targets).T, strict=True):
        known = ~np.isnan(true)
        spread = float(((true[known] - true[known].mean()) ** 2).sum()) if known.any() else 0.0
        r2 = 1 - float(((of[known] - true[known]) ** 2).sum()) / spread if spread > 0 else None
        found[name] = {"n": int(known.sum()), "r2": r2}
    return found


CHECKPOINTS = "checkpoints"
CONSTANTS = "constants.safetensors"
State = dict[str, torch.Tensor]
Report = Callable[[str], None]
AfterStep = Callable[[Progress], None]


@dataclass(frozen=True)
class Job:
    """What `train` was given, checked."""

    data: TrainingSet
    config: PaymentConfig
    base: Base
    fingerprint: str

    def examples(self, stage: int) -> list[Example]:
        """The training examples of a stage: those with a concept score, or with a label."""
        train = self.data.of("train")
        if stage == 1:
            return [one for one in train if not all(map(math.isnan, one.concepts))]
        labelled = [one for one in train if one.known]
        return oversampled(labelled) if self.config.oversample else labelled

    def validation(self, stage: int) -> list[Example]:
        found = self.data.of("validation")
        return [one for one in found if (one.known if stage == 2 else not all(map(math.isnan, one.concepts)))]


def train(
    data: TrainingSet,
    images: Load,
    config: PaymentConfig,
    out: Path,
    *,
    weights: str | None = None,
    device: str = "auto",
    report: Report = lambda text: None,
    after_step: AfterStep = lambda progress: None,
) -> Card:
    """Train on `data` and write the artefact to the folder `out`; an interrupted training there is continued.

    `images` loads an image by its pixel digest, `weights` is another folder for the backbone. UserError for a model of
    real size without a GPU, for too few labels, and for a folder with something else.
    """
    card = card_of(config)
    torch_device = device_of(device)
    require_gpu(card, torch.cuda.device_count() if torch_device.type == "cuda" else 0)
    _check_data(data, config)
    prepare_folder(out)
    folder = folder_of(config, weights)
    base = Base(card=card.name, **base_digests(folder))
    if (done := finished(out, config, base, data.manifest_sha256)) is not None:
        remove_checkpoint(out / CHECKPOINTS, CONSTANTS)
        return done
    fingerprint = digest(
        [config.digest, data.manifest_sha256, base.model_dump(), libraries(), precision_of(config, torch_device)]
    )
    job = Job(data, config, base, fingerprint)
    threads = torch.get_num_threads()
    try:
        if torch_device.type == "cpu":
            torch.set_num_threads(1)  # with several, sums depend on their number
        return _Trainer(job, images, folder, out, torch_device, report, after_step).run()
    finally:
        torch.set_num_threads(threads)


def _check_data(data: TrainingSet, config: PaymentConfig) -> None:
    labels = [one.accepted for one in data.of("train") if one.known]
    if len(set(labels)) < 2:
        raise UserError(
            f"the training tasks have {len(labels)} annotated images, all with the same decision: annotate more images"
        )
    if config.measured and not data.measured_names:
        raise UserError("`measured` is set, and the examples have no measured scores: judge the runs first")
    if config.concepts != "none" and not any(not math.isnan(v) for one in data.of("train") for v in one.concepts):
        raise UserError("no training image has a concept score: judge the runs first, or set `concepts: none`")


class _Trainer:
    def __init__(
        self, job: Job, images: Load, folder: Path, out: Path, device: torch.device, report: Report, after: AfterStep
    ) -> None:
        from accelerate import Accelerator

        self.job, self.config, self.out = job, job.config, out
        self.after_step = after
        precision = precision_of(job.config, device)
        mixed = "bf16" if precision == "bfloat16" and device.type == "cuda" else "no"
        self.accelerator = Accelerator(mixed_precision=mixed, cpu=device.type == "cpu")
        self.device = self.accelerator.device
        self.report: Report = report if self.main else lambda text: None
        processor = load_processor(folder)
        self.encoder = Encoder(processor, job.config, card_of(job.config), images)
        with torch.random.fork_rng():
            torch.manual_seed(seed_at(job.config.seed, "weights"))
            base = load_backbone(folder, self.device, precision)
            self.network = PaymentNetwork(base, job.config, len(job.data.measured_names)).to(self.device)
        self.network.set_scales(scales_of(job.data.of("train"), job.config.standardise))
        self.network.begin(0)
        if job.config.gradient_checkpointing and self.network.has_decision_adapter:
            checkpoint_gradients(self.network.trunk)
        self.constants: State = {}

    @property
    def main(self) -> bool:
        return bool(self.accelerator.is_main_process)

    @property
    def checkpoints(self) -> Path:
        return self.out / CHECKPOINTS

    def run(self) -> Card:
        first = 1 if self.network.has_concepts else 2
        found = load_checkpoint(self.checkpoints, self.job.fingerprint)
        progress = Progress(self.job.fingerprint, stage=first) if found is None else found[0]
        best: State = {}
        optimiser: State = {}
        if found is not None:
            _, state, best, optimiser = found
            self.network.load_trained(state)
            self.report(f"continuing stage {progress.stage} after step {progress.step}")
        while not progress.finished:
            progress, best = self._stage(progress, best, optimiser)
            self.network.load_trained(best)
            progress = progress.next_stage() if progress.stage == 1 else replace(progress, finished=True)
            optimiser, best = {}, {}
            self._save(progress, best, optimiser)
        return self._finish(progress)

    def _stage(self, progress: Progress, best: State, stored_optimiser: State) -> tuple[Progress, State]:
        """Train one stage to its end; returns the best weights."""
        number = progress.stage
        stage = self.config.stage1 if number == 1 else self.config.stage2
        examples, held = self.job.examples(number), self.job.validation(number)
        network = self.network
        network.begin(number)
        if number == 2:
            self._compute_constants([*self.job.data.of("train"), *held])
        named = [(name, p) for name, p in network.named_parameters() if p.requires_grad]
        optimiser = _optimiser(named, stage)
        restore_optimiser(optimiser, named, stored_optimiser)
        model = self.accelerator.prepare_model(network)
        total = total_steps(len(examples), stage)
        best = best or self._weights()
        while progress.step < total:
            loss = self._step(model, optimiser, stage, number, progress.step, total, examples)
            progress = replace(progress, step=progress.step + 1)
            last = progress.step == total
            if last or progress.step % self.config.evaluate_every == 0:
                progress, best = self._evaluated(progress, best, held, loss)
                last = last or (bool(held) and progress.waited >= self.config.patience)
            if not last and progress.step % self.config.save_every == 0:
                self._save(progress, best, optimiser_state(optimiser, named))
            self.after_step(progress)
            if last:
                break
        self.accelerator.unwrap_model(model, keep_fp32_wrapper=False)
        self.accelerator.free_memory()
        return progress, best

    def _step(
        self,
        model: nn.Module,
        optimiser: torch.optim.Optimizer,
        stage: Stage,
        number: int,
        step: int,
        total: int,
        examples: Sequence[Example],
    ) -> float:
        """One optimiser step; returns its mean loss on this process."""
        rank, world = self.accelerator.process_index, self.accelerator.num_processes
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
                loss = self._loss(model, chosen, number).mean()
                self.accelerator.backward(loss / passes)
            loss_sum += float(loss.detach())
        if not math.isfinite(loss_sum):
            raise LocalBenchError(
                f"the loss of step {step + 1} in stage {number} is not finite: lower the learning rate and train again"
            )
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        return loss_sum / passes

    def _loss(self, model: nn.Module, examples: Sequence[Example], number: int) -> torch.Tensor:
        """(examples,)"""
        network = self.network
        if number == 1:
            batch = self.encoder.batch(examples, self.device)
            targets = torch.tensor([one.concepts for one in examples], device=self.device)
            return concept_loss(model(batch, ()).float(), targets, network)
        logits = self._logits(model, examples)
        labels = torch.tensor([one.accepted for one in examples], device=self.device)
        return nn.functional.binary_cross_entropy_with_logits(logits, labels, reduction="none")

    def _logits(self, model: nn.Module, examples: Sequence[Example]) -> torch.Tensor:
        rest = (
            torch.stack([self.constants[key_of(one)] for one in examples]).to(self.device),
            torch.tensor([self.network.given_inputs(one) for one in examples], device=self.device),
        )
        batch = self.encoder.batch(examples, self.device) if self.network.has_decision_adapter else None
        logits: torch.Tensor = model(batch, rest).float()
        return logits

    def _evaluated(self, progress: Progress, best: State, held: list[Example], loss: float) -> tuple[Progress, State]:
        """The progress after an evaluation, and the best weights so far; without validation examples the last ones."""
        entry = {"stage": float(progress.stage), "step": float(progress.step), "train": loss}
        if not held:
            return replace(progress, history=(*progress.history, entry)), self._weights()
        entry["validation"] = value = self._mean_loss(held, progress.stage)
        self.report(f"stage {progress.stage}, step {progress.step}: loss {loss:.4f}, validation {value:.4f}")
        progress = replace(progress, history=(*progress.history, entry))
        if progress.best is None or value < progress.best:
            return replace(progress, best=value, best_step=progress.step, waited=0), self._weights()
        return replace(progress, waited=progress.waited + 1), best

    def _weights(self) -> State:
        return {name: value.detach().cpu().clone() for name, value in self.network.trained_state().items()}

    @torch.no_grad()
    def _mean_loss(self, examples: list[Example], number: int) -> float:
        self.network.eval()
        losses = [float(self._loss(self.network, [one], number)[0]) for one in self._share(examples)]
        return float(sum(self._gathered(losses))) / len(examples)

    def _share(self, examples: Sequence[Example]) -> Sequence[Example]:
        return examples[self.accelerator.process_index :: self.accelerator.num_processes]

    def _gathered(self, values: list[Any]) -> list[Any]:
        """The values of all processes, process by process."""
        from accelerate.utils import gather_object

        found: list[Any] = gather_object(values)
        return found

    def _compute_constants(self, examples: Sequence[Example]) -> None:
        """Compute the features that stage 2 does not change, or read them from the interrupted training."""
        wanted = {key_of(one): one for one in examples if one.known}
        stored = self.checkpoints / CONSTANTS
        if stored.is_file() and not self.constants:
            self.constants = load_constants(stored, self.job.fingerprint)
        missing = [one for key, one in wanted.items() if key not in self.constants]
        if not missing:
            return
        self.network.eval()
        made = []
        for one in self._share(missing):
            with self.accelerator.autocast():
                row = self.network.constants(self.encoder.batch([one], self.device))[0]
            made.append((key_of(one), row.float().cpu()))
        self.constants |= dict(self._gathered(made))
        if self.main:
            save_tensors(stored, self.constants, {"fingerprint": self.job.fingerprint})
        self.accelerator.wait_for_everyone()

    def _save(self, progress: Progress, best: State, optimiser: State) -> None:
        if self.main:
            save_checkpoint(self.checkpoints, progress, self._weights(), best, optimiser)
        self.accelerator.wait_for_everyone()

    @torch.no_grad()
    def _finish(self, progress: Progress) -> Card:
        """Evaluate, and write the artefact."""
        network, data = self.network, self.job.data
        network.begin(0)
        network.eval()
        self._compute_constants(data.examples)
        logits: dict[str, float] = {}
        network.begin(2)
        for one in self._share([one for one in data.examples if one.known]):
            with self.accelerator.autocast():
                logits[key_of(one)] = float(self._logits(network, [one])[0])
        logits = dict(self._gathered(list(logits.items())))
        metrics: dict[str, Any] = {"history": list(progress.history)}
        for split in ("train", "validation", "test"):
            examples = [one for one in data.of(split) if one.known]
            if examples:
                metrics[split] = payment_metrics(
                    [logits[key_of(one)] for one in examples], [one.accepted for one in examples]
                )
                if network.has_concepts:
                    rows = torch.stack([self.constants[key_of(one)] for one in examples])[:, -7:]
                    metrics[split]["concepts"] = concept_metrics(rows.tolist(), [one.concepts for one in examples])
        card = Card(
            base=self.job.base,
            config=self.config,
            measured_names=list(data.measured_names) if self.config.measured else [],
            precision=precision_of(self.config, self.device),
            trained_on=TrainedOn(
                manifest_sha256=data.manifest_sha256,
                n_images={split: len(data.of(split)) for split in ("train", "validation", "test")},
                n_labelled={
                    split: sum(one.known for one in data.of(split)) for split in ("train", "validation", "test")
                },
                tasks={
                    split: sorted({one.task_id for one in data.of(split)}) for split in ("train", "validation", "test")
                },
            ),
            n_processes=self.accelerator.num_processes,
            libraries=libraries(),
            metrics=metrics,
        )
        if self.main:
            card = save_artefact(self.out, card, network.trained_state())
            remove_checkpoint(self.checkpoints, CONSTANTS)
        self.accelerator.wait_for_everyone()
        return card


def _optimiser(named: Sequence[tuple[str, nn.Parameter]], stage: Stage) -> torch.optim.Optimizer:
    """AdamW with the heads' own learning rate."""
    adapters = [parameter for name, parameter in named if ".lora_" in name]
    heads = [parameter for name, parameter in named if ".lora_" not in name]
    factor = (stage.head_learning_rate or stage.learning_rate) / stage.learning_rate
    groups = [{"params": adapters, "factor": 1.0}, {"params": heads, "factor": factor}]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]], weight_decay=stage.weight_decay, foreach=False
    )


def key_of(example: Example) -> str:
    return f"{example.work_id}/{example.task_id}"
