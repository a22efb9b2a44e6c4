"""Plans a run before anything is loaded: its tasks, models and candidates."""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

from PIL import Image

from local_bench.core.errors import ConfigError, LedgerError, RunImageError, UserError, count
from local_bench.core.files import unused
from local_bench.core.hardrules import HardRules, size_by_rules, size_like
from local_bench.core.images import image_path, load_image, load_verified, pixel_digest, store_image
from local_bench.core.money import nearest_micro_usd
from local_bench.core.types import UNSUPPORTED, Deliverable, Task, Unsupported, canonical_json, digest
from local_bench.generators.architecture import piece
from local_bench.generators.imported import find_images
from local_bench.generators.registry import FAMILIES, GENERIC, Sampler, check_card, check_folder, without_effect
from local_bench.judges.metrics.registry import check_known
from local_bench.judges.rules import RULES, FileFacts, file_facts
from local_bench.judges.vlm.adding import unknown_variables
from local_bench.judges.vlm.client import claim_port
from local_bench.judges.vlm.judge import BUILT_IN, plugin
from local_bench.judges.vlm.rubrics import DEFAULT_SET
from local_bench.models.cards import SHIPPED, ModelCard, Takes, card
from local_bench.models.vet import listing_of
from local_bench.models.weights import check_local, resolve, resolve_parts, weights_digest
from local_bench.runs.config import JudgeConfig, ModelConfig, RunConfig, parse_shard
from local_bench.runs.image_store import IMAGES, INPUTS
from local_bench.runs.plugins import check_suite, unused_entry_points
from local_bench.runs.progress import Progress, Quiet
from local_bench.runs.rundir import RunDir
from local_bench.runs.store import Candidate
from local_bench.runs.store.rows import State
from local_bench.runs.work import ModelPlan
from local_bench.suites.base import Suite
from local_bench.suites.questions_from import check_borrowed
from local_bench.suites.registry import BUILT_IN_SUITES, FilesSuite, suite

_MISTRAL = (
    "INST|IMG|IMG_BREAK|IMG_END|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|TOOL_CONTENT|ARGS|CALL_ID|THINK|"
    "PREFIX|MIDDLE|SUFFIX|AUDIO|BEGIN_AUDIO"
)
_CONTROL = re.compile(
    r"<(?=\|[^<>|\s]+\|>"  # CLIP, Qwen, Phi and OmniGen: <|endoftext|>, <|image_pad|>, <|image_1|>
    r"|/?(?:think|tool_call|tool_response|tool_calls)>"  # Qwen
    r"|/?(?:s|pad|unk|mask|bos|eos|img|image|video|cls|sep)>|extra_id_\d+>"  # T5, Llama, Gemma; OmniGen's image tags
    r"|(?:start|end)_of_(?:turn|image)>|(?:image|boi|eoi)_(?:soft_)?token>|SPECIAL_\d+>)"  # Gemma, Mistral
    rf"|\[(?=/?(?:{_MISTRAL})\])"
)


def without_control_tokens(text: str) -> str:
    """`text` with a space after the first character of each control token of the known tokenizers."""
    return _CONTROL.sub(r"\g<0> ", text)


@dataclass(frozen=True)
class RunPlan:
    """The plan of a run."""

    suite: Suite
    tasks: list[Task]
    models: list[ModelPlan]
    candidates: list[Candidate]
    notes: list[str]
    """Notes for the user, one sentence each."""
    positions: tuple[int, ...] = ()
    """Index of each task among the tasks of all shards."""
    refused: tuple[str, ...] = ()
    """Cases of the suite's files that cannot be read and are skipped: file, case and reason."""
    delivered: Mapping[str, FileFacts] = field(default_factory=dict)
    """Work id -> the file of an imported image of a task with hard rules."""

    def scheduled(self, model: str) -> list[Candidate]:
        """The candidates of a model that are to be generated or are imported."""
        return [row for row in self.candidates if row.model == model and row.unscored is None]


def make_plan(
    config: RunConfig,
    run_dir: Path | None = None,
    *,
    files: bool = True,
    only: frozenset[str] | None = None,
    progress: Progress | None = None,
) -> RunPlan:
    """Plan a run; input and imported images are stored in `run_dir` if given. Raises UserError for invalid input.

    With `only` the plan has these tasks alone. With `files=False` model weights need not be present; such a plan cannot
    be executed.
    """
    progress = progress or Quiet()
    check_config(config, files=files)
    entry = suite(config.suite.name)
    sizes: dict[str, tuple[int, int]] = {}
    settings = config.suite
    keep = _keeper(run_dir and run_dir / INPUTS, sizes)
    refused: list[str] = []
    of_suite = entry.tasks(settings.path, keep, settings.part, settings.written, refused.append)
    every = of_suite[: settings.limit]
    positions = [
        i
        for i, task in enumerate(every)
        if in_shard(task.task_id, settings.shard) and (only is None or task.task_id in only)
    ]
    tasks = [every[i] for i in positions]
    if settings.name not in BUILT_IN_SUITES and not isinstance(entry, FilesSuite):
        check_suite(entry, of_suite, tasks, sizes, config)
    in_plan = {task.task_id for task in tasks}
    left_out = [task for task in of_suite if task.task_id not in in_plan]
    models = [_model(m, files) for m in config.models]
    cases = count(len(refused), "cases cannot be read and are")
    notes: list[str] = [*unused_entry_points(config), *([f"{cases} skipped:"] if refused else []), *refused]
    notes += [f"{task.task_id}: {' '.join(task.notes)}" for task in tasks if task.notes]
    notes += _without_effect(config, files)
    if broken := [f"{task.task_id}: {task.unscored}" for task in tasks if task.unscored]:
        notes.append(f"{count(len(broken), 'tasks')} cannot be run; the first: {broken[0]}")
    candidates, delivered = list[Candidate](), dict[str, FileFacts]()
    progress.begin("plan candidates", len(tasks) * len(models))
    for model in models:
        shown, at = _counted(tasks, progress), len(candidates)
        if model.card is None:
            keep = _keeper(run_dir and run_dir / IMAGES, {})
            candidates += _imported(model, entry, shown, left_out, keep, notes, delivered, at)
        else:
            fits = list(_fits(entry, shown, model.card.takes, settings.unsupported or entry.unsupported))
            candidates += _generated(model, model.card, fits, sizes, config, at)
            notes += _model_notes(model, fits, settings.unsupported or entry.unsupported)
        if model.config.attempts != entry.attempts and entry.attempts > 1:
            attempts = model.config.attempts
            notes.append(
                f"{model.label} generates {count(attempts, 'candidates')} per image; the benchmark's protocol requires "
                f"{entry.attempts}."
            )
    logit = [judge.label for judge in config.judges if judge.protocol == "logit"]
    if entry.repeats > 1 and logit:
        notes.append(
            f"{', '.join(logit)}: the {entry.repeats} repeats of each question are identical under protocol logit and "
            "count as one; with protocol json each repeat is sampled with its own seed."
        )
    split = sum(d.prompt != without_control_tokens(d.prompt) for task in tasks for d in entry.deliverables(task))
    if split and any(model.card for model in models):
        prompts = count(split, "prompts contain")
        notes.append(f"{prompts} control tokens of language models, which are split by a space.")
    if any(model.card for model in models):
        notes += _never_met([HardRules.model_validate(rules) for task in tasks for rules in task.rules])
    _refuse_duplicates(candidates)
    return RunPlan(entry, tasks, models, candidates, notes, tuple(positions), tuple(refused), delivered)


def _never_met(rules: Sequence[HardRules]) -> list[str]:
    """A note with the rules that no generated image meets."""
    found = {
        "file_type (cannot be met)": sum(bool(r.file_type) and "PNG" not in r.file_type for r in rules),
        "min_dpi (stays undetermined)": sum(r.visual_specs.min_dpi is not None for r in rules),
    }
    counts = ", ".join(f"{name} {n}" for name, n in found.items() if n)
    return [f"Generated images are PNG files without a resolution; images with such a rule: {counts}."] * bool(counts)


def _counted(tasks: Sequence[Task], progress: Progress) -> Iterator[Task]:
    """The tasks; `progress` advances when the next one is taken."""
    for task in tasks:
        yield task
        progress.advance()


def in_shard(task_id: str, shard: str | None) -> bool:
    """Whether a task belongs to the shard `i/n`. It depends on the task's id alone, so it does not change when tasks
    are added, and all images of a task are in one shard."""
    if shard is None:
        return True
    i, n = parse_shard(shard)
    return int(digest(task_id)[:16], 16) % n == i - 1


def check_config(config: RunConfig, *, files: bool = True, stages: Collection[str] = ("generate",)) -> None:
    """Unknown names, and what `stages` need (with `files` also weights, images, and implementations by torch). A run
    that has its images may be of cards and plug-ins that are not here. Raises UserError, of all faults if there are
    several."""
    begins = "generate" in stages
    checks: list[Callable[[], object]] = [
        # missing weights only leave a metric's scores unscored
        *(partial(check_known, name) for name in config.metrics if begins or "measure" in stages),
        partial(_check_suite, config, begins or "judge" in stages),
        partial(_check_scores, config),
        *(partial(_check_model, model, files) for model in config.models if begins),
        *(partial(_check_judge, *entry, files) for entry in enumerate(config.judges) if begins or "judge" in stages),
    ]
    faults: list[UserError] = []
    for check in checks:
        try:
            check()
        except UserError as e:
            faults.append(e)
    if len(faults) > 1:
        raise ConfigError("\n".join(dict.fromkeys(map(str, faults))))
    if faults:
        raise faults[0]


def no_judge_key(config: RunConfig) -> str | None:
    """A sentence if the config says neither who judges nor that nobody does."""
    if "judge" in config.model_fields_set:
        return None
    return (
        "judge: name the judge, as `judge: {card: qwen3-vl-8b}` (`local-bench models list` has them), or write "
        "`judge: null` for a run without one"
    )


def refuse_no_judge_key(config: RunConfig) -> None:
    """ConfigError with `no_judge_key`, after the config's other faults."""
    sentence = no_judge_key(config)
    if sentence is None:
        return
    try:
        check_config(config)
    except UserError as e:
        sentence = f"{e}\n{sentence}"
    raise ConfigError(sentence)


def _check_suite(config: RunConfig, judges: bool) -> None:
    name, entry = config.suite.name, suite(config.suite.name)
    by_mean = config.panel_word == "mean" or not config.panel
    has_expectations = isinstance(entry, FilesSuite) and by_mean and any(j.protocol == "logit" for j in config.judges)
    for rubric, fields in entry.rubrics.items():
        labels_of = {criterion.field: criterion.labels for criterion in DEFAULT_SET[rubric].criteria}
        absent = next((field for field in fields if field not in labels_of), None)
        if absent is not None:
            raise ConfigError(f"suite {name}: the rubric {rubric!r} has no field {absent!r} under `answer`: correct it")
        unfilled = sorted({*DEFAULT_SET[rubric].slots} - {*FilesSuite.slots})
        if isinstance(entry, FilesSuite) and unfilled:
            slots = ", ".join(FilesSuite.slots)
            raise ConfigError(f"suite {name}: the rubric {rubric!r} has the slot {unfilled[0]!r}: use those of {slots}")
        for score in fields if isinstance(entry, FilesSuite) else ():
            least, most = (entry.thresholds or {}).get(score, 0), max(map(float, labels_of[score]))
            what = f"suite {name}: the score {score} of the rubric {rubric!r}"
            flags = (criterion.flag for criterion in DEFAULT_SET[rubric].criteria if criterion.field == score)
            if judges and any(flags):
                raise ConfigError(f"{what} is a list: a score has labels that are numbers, true or false")
            top = most if entry.top_score is None else entry.top_score
            if judges and (least > most or top < most):
                other = f"threshold is {least:g}" if least > most else f"top_score is {top:g}"
                raise ConfigError(f"{what} has the highest label {most:g}, and its {other}: correct one of them")
            if has_expectations and least >= most:
                raise ConfigError(
                    f"suite {name}: with `protocol: logit` the score {score} is an expectation, which never reaches "
                    f"its threshold {least:g}, the highest label: lower the threshold, or use `protocol: json`"
                )


def _check_scores(config: RunConfig) -> None:
    """ConfigError if two scores of an image have one name, of which the run would keep the one that came last."""
    settings = config.suite
    borrowed = check_borrowed(settings.name, settings.questions_from)
    entries = [suite(name) for name in (settings.name, *BUILT_IN_SUITES)]
    # of a suite and those that inherit from it, the built-in one's title
    derived = {entry.derived: f"{entry.title.partition(':')[0]}'s score" for entry in entries if entry.derived}
    named = [
        (RULES, "the score of the hard rules"),
        *derived.items(),
        *((name, f"a judge's score of {settings.name}") for name in suite(settings.name).scores_of_judge),
        *((name, "a judge's score of suite.questions_from") for name in borrowed),
        *((name, "a metric") for name in dict.fromkeys(config.metrics)),
    ]
    first: dict[str, str] = {}
    for name, what in named:
        if name in first:
            raise ConfigError(
                f"metrics, suite: {name!r} is {first[name]} and {what}, and an image has one score of a name: rename "
                "the field in the suite's rubrics or the plug-in metric, or remove the metric"
            )
        first[name] = what


def _check_model(model: ModelConfig, files: bool) -> None:
    if model.imported is None:
        described = card(model.card, "generator")
        if files and model.load == "weights":
            check_local(described, model.weights)
            if folder := model.weights or described.source.folder:
                check_folder(described, Path(folder).expanduser())
        check_card(described)
        _settings(model, described)
        if files and model.load == "weights" and described.family not in FAMILIES:
            _check_implementation(described, model.weights)
    elif files and not Path(images := model.imported.images).exists():
        raise ConfigError(f"imported.images: {images} does not exist: give an existing folder or manifest")


def _check_implementation(described: ModelCard, weights: str | None) -> None:
    """ConfigError if a package's family cannot be imported, or any pipeline cannot be called as its card says. Imports
    torch, as the run will."""
    from local_bench.generators.staged import family

    family(described.family)
    if described.family in GENERIC:
        from local_bench.generators.any_pipeline import arguments_of, pipeline_class

        kind = described.pipeline or (listing_of(resolve(described, weights)).index or {}).get("_class_name")
        arguments_of(pipeline_class(kind, described.name), described)


def judge_card(judge: JudgeConfig) -> ModelCard:
    """The judge's card. ConfigError if the config names none, or one that no judge can have."""
    if not judge.card:
        raise ConfigError("judge.card: name the judge's card (`local-bench models list` has them)")
    described = card(judge.card, "judge")
    if described.parts:
        raise ConfigError(f"{described.name}: a judge reads no parts: merge an adapter into its weights")
    return described


_OF_VLLM = ("extra_args", "attention_backend", "batch_invariant", "start_timeout_s", "port", "in_flight")


def _without_effect(config: RunConfig, files: bool) -> Iterator[str]:
    """A sentence about settings of other transports, if they differ from their defaults, which a stored config has;
    about variables that a judge's template does not have, and about prices of no model."""
    for judge in config.judges:
        others = {"served": (), "embedded": _OF_VLLM[-2:], "auto": ()}.get(judge.transport, _OF_VLLM)
        others = (*(() if judge.base_url else ("served_model", "api_key_env")), *others)
        names = [name for name in others if getattr(judge, name) != JudgeConfig.model_fields[name].default]
        if names:
            what = f"transport {judge.transport}{'' if judge.base_url else ' without base_url'}"
            yield f"{judge.label}: {', '.join(names)} {'has' if len(names) == 1 else 'have'} no effect with {what}."
        if files and judge.base_url is None and judge.transport in BUILT_IN:
            yield from unknown_variables(judge_card(judge), judge.weights, judge.chat_template_kwargs)
    if no_model := sorted({*config.settlement.api_usd_per_image} - {model.label for model in config.models}):
        yield f"settlement.api_usd_per_image.{no_model[0]} has no effect: no model of the run has this name."


def _check_judge(at: int, judge: JudgeConfig, files: bool) -> None:
    """`at` is the judge's index in `RunConfig.judges`: the second one is the first of the panel."""
    try:
        described = judge_card(judge)
        judge.rubric_set(described)
        if judge.transport not in BUILT_IN:
            plugin(judge.transport)
        if files and judge.base_url is None:
            check_local(described, judge.weights)
            if judge.transport == "served":
                claim_port(judge.port)
    except ConfigError as e:
        if at and str(e).startswith("judge."):
            raise ConfigError(str(e).replace("judge.", f"panel.{at - 1}.")) from e
        raise


def _keeper(folder: Path | None, sizes: dict[str, tuple[int, int]]) -> Callable[[Image.Image], str]:
    """A function that stores an image below `folder` (if given) and returns its digest; `sizes` receives its size.
    Stored copies that are missing, damaged or altered are written again."""

    def keep(image: Image.Image) -> str:
        sha256 = pixel_digest(image)
        if folder is not None and sha256 not in sizes:
            try:
                load_verified(image_path(folder, sha256), sha256)
            except RunImageError:
                store_image(folder, image)
        sizes[sha256] = image.size
        return sha256

    return keep


def _model(config: ModelConfig, files: bool) -> ModelPlan:
    if config.imported is not None:
        return ModelPlan(config)
    described = card(config.card, "generator")
    sampler = _settings(config, described)
    if config.load == "random":
        if described.source.build == SHIPPED:
            raise ConfigError(f"models: {config.label} ships with its weights: remove `load: random`")
        if described.lora:
            raise ConfigError(f"models: {config.label} has LoRA adapters: remove `load: random`")
        from local_bench.generators.architecture import architecture_digest

        random = f"random:{architecture_digest(described)}"
        return ModelPlan(config, described, weights_sha256=random, sampler=sampler)
    if not files:
        return ModelPlan(config, described, weights_sha256=config.weights or "", sampler=sampler)
    weights, parts = resolve(described, config.weights), resolve_parts(described)
    return ModelPlan(config, described, weights, parts, weights_digest(weights, parts), sampler)


def _settings(config: ModelConfig, described: ModelCard) -> dict[str, Any]:
    """The config's sampler settings over the card's. ConfigError for one that the model does not have or cannot use."""
    settings = described.sampler.model_dump(exclude_none=True)
    overrides = config.model_dump(include={*type(described.sampler).model_fields}, exclude_none=True)
    for name in overrides:
        if name not in settings:
            raise ConfigError(f"models: {config.label} has no {name} (its card sets {', '.join(settings)}): remove it")
    settings |= overrides
    scheduler = described.architecture.get("scheduler")
    if settings["num_inference_steps"] == 1 and scheduler and piece(str(scheduler)).config.get("shift_terminal"):
        raise ConfigError(f"models: {config.label}: its scheduler divides by zero with num_inference_steps 1: raise it")
    return settings


@dataclass(frozen=True, slots=True)
class _Fit:
    """A task's deliverables for a model, with the reason if the model does not support the task."""

    task: Task
    deliverables: Sequence[Deliverable]
    reason: str | None


_PREFIX = dict.fromkeys(get_args(Unsupported), UNSUPPORTED) | {"unscored": "not supported, but counted: "}
"""Of the reason for a task that a model does not support, by `suite.unsupported`."""


def _fits(entry: Suite, tasks: Iterable[Task], takes: Takes, unsupported: Unsupported) -> Iterator[_Fit]:
    for task in tasks:
        fitted = entry.fitted(task, takes)
        reason = fitted if isinstance(fitted, str) else None
        deliverables = entry.deliverables(task) if isinstance(fitted, str) else fitted
        n_inputs = max((len(d.input_images) for d in deliverables), default=0)
        if unsupported == "text_only":
            reason = None
        elif reason is None and n_inputs > takes.pictures:
            takes_n = takes.pictures or "none"
            reason = (
                f"{UNSUPPORTED}the task has {n_inputs} input image{'s' * (n_inputs > 1)}, and the model takes {takes_n}"
            )
        if reason is None:
            deliverables = [replace(d, prompt=without_control_tokens(d.prompt)) for d in deliverables]
        else:
            reason = f"{_PREFIX[unsupported]}{reason.removeprefix(UNSUPPORTED)}"
        yield _Fit(task, deliverables, reason)


def _generated(
    model: ModelPlan,
    described: ModelCard,
    fits: Sequence[_Fit],
    sizes: dict[str, tuple[int, int]],
    config: RunConfig,
    first: int,
) -> Iterator[Candidate]:
    takes, settings = described.takes, config.suite
    not_supported = _PREFIX[settings.unsupported or suite(settings.name).unsupported]
    made_by = model.made_by
    wanted = (
        (fit.task, fit.reason, deliverable, attempt)
        for fit in fits
        for deliverable in fit.deliverables
        for attempt in range(1, model.config.attempts + 1)
    )
    for position, (task, reason, deliverable, attempt) in enumerate(wanted, first):
        seen = deliverable.input_images[: takes.pictures]
        sampler = model.sampler  # shared by all candidates of the usual size
        area = sampler["height"] * sampler["width"]
        size = None
        if settings.sizes_from_rules and task.rules:
            specs = HardRules.model_validate(task.rules[deliverable.index - 1]).visual_specs
            size = size_by_rules(specs, area, takes.size_multiple)
        if size is None and takes.size_from_picture and seen:
            size = size_like(*(task.size or sizes[seen[0]]), area, takes.size_multiple)
        if size is not None:
            sampler = sampler | dict(zip(("height", "width"), size, strict=True))
        work = {
            "task": task.task_id,
            "deliverable": deliverable.index,
            "prompt": deliverable.prompt,
            "pictures": seen,
            "model": made_by,
            "sampler": sampler,
            "attempt": attempt,
            "run_seed": config.seed,
        }
        if takes.mask:
            work["mask"] = deliverable.mask
        unscored = task.unscored or reason
        if unscored is None and takes.mask and (deliverable.mask is None or not seen):
            unscored = f"{not_supported}the model fills the masked part of a picture, and this order gives no mask"
        if unscored is None and not seen and not takes.text_alone:
            unscored = f"{not_supported}{model.label} works on a picture, and this order gives none."
        if unscored is None and (misfit := next(filter(None, (_misfit(takes, *sizes[sha]) for sha in seen)), None)):
            unscored = f"{not_supported}{model.label} takes pictures {misfit}."
        state: State = "unscored" if unscored else "planned"
        yield Candidate.planned(position, model.label, deliverable.prompt, work, state=state, unscored=unscored)


def _misfit(takes: Takes, width: int, height: int) -> str | None:
    """The limit that an input image exceeds."""
    actual = f"and one of this order's is {width} x {height} pixels"
    if min(width, height) < takes.min_side:
        return f"of at least {takes.min_side} pixels a side, {actual}"
    if takes.max_aspect is not None and max(width, height) > takes.max_aspect * min(width, height):
        return f"whose longer side is at most {takes.max_aspect:g} times the shorter one, {actual}"
    return None


def _model_notes(model: ModelPlan, fits: Sequence[_Fit], mode: Unsupported) -> list[str]:
    assert model.card is not None
    label, takes = model.label, model.card.takes
    n_inputs = [
        len(d.input_images) for fit in fits if not fit.task.unscored and not fit.reason for d in fit.deliverables
    ]
    beyond_limit = sum(n > takes.pictures for n in n_inputs)
    sentences = []
    if unsupported := sum(bool(fit.reason and fit.deliverables) for fit in fits):
        then = "which it skips" if mode == "skip" else "which stay unscored"
        sentences.append(f"{label} does not support {unsupported} of {count(len(fits), 'tasks')}, {then}.")
    if beyond_limit:
        limit = count(takes.pictures, "input images") if takes.pictures else "no input images"
        sentences.append(
            f"{label} takes {limit}; {beyond_limit} of {len(n_inputs)} deliverables have more and are generated "
            "without them (suite.unsupported)."
        )
    if model.sampler.get("paste_back"):
        sentences.append(f"{label}: pixels outside the mask are copied from the source (paste_back).")
    negative = {"negative_prompt"} & (model.sampler.keys() | model.card.call.keys())
    if (model.sampler.get("true_cfg_scale") or 0) > 1 and not negative:
        sentences.append(f'{label}: true_cfg_scale has no effect without a negative_prompt in its card ("" is one).')
    if ignored := without_effect(model.card, Sampler(**model.sampler)):
        sentences.append(f"{label}: {ignored}")
    if takes.condition and any(n_inputs):
        sentences.append(f"{label} uses a task's input image as its {takes.condition} map.")
    return sentences


def _imported(
    model: ModelPlan,
    entry: Suite,
    tasks: Iterable[Task],
    left_out: Sequence[Task],
    keep: Callable[[Image.Image], str],
    notes: list[str],
    delivered: dict[str, FileFacts],
    first: int,
) -> Iterator[Candidate]:
    source = model.config.imported
    assert source is not None
    attempts = range(1, model.config.attempts + 1)
    requested = [(task, d, attempt) for task in tasks for d in entry.deliverables(task) for attempt in attempts]
    keys = [(t.task_id, d.index, attempt) for t, d, attempt in requested]
    others = ((t.task_id, d.index, attempt) for t in left_out for d in entry.deliverables(t) for attempt in attempts)
    images, left = find_images(Path(source.images), keys, others)
    if left:
        notes.append(f"{model.label}: {unused(Path(source.images), left)}.")
    usual = None if source.cost_usd_per_image is None else nearest_micro_usd(source.cost_usd_per_image)
    for position, (task, deliverable, attempt) in enumerate(requested, first):
        image = images.get((task.task_id, deliverable.index, attempt))
        pixels = None if image is None or task.unscored else keep(load_image(image.path))
        work = {
            "task": task.task_id,
            "deliverable": deliverable.index,
            "model": model.made_by,
            "attempt": attempt,
            "pixels": pixels,
        }
        unscored = task.unscored or (None if pixels else f"No picture by {model.label} was imported for this.")
        cost = None if pixels is None or image is None else image.cost_micro_usd
        cost_micro_usd = usual if cost is None and pixels else cost
        state: State = "unscored" if unscored else "done"
        row = Candidate.planned(position, model.label, deliverable.prompt, work, state=state, unscored=unscored)
        if image and pixels and task.rules:
            delivered[row.work_id] = file_facts(image.path)
        identity = row.work_id if state == "done" else None
        yield replace(row, identity=identity, pixels_sha256=pixels, cost_micro_usd=cost_micro_usd)


def _refuse_duplicates(candidates: Sequence[Candidate]) -> None:
    seen: dict[str, str] = {}
    for candidate in candidates:
        other = seen.setdefault(candidate.work_id, candidate.model)
        if other != candidate.model:
            raise ConfigError(
                f"models: {other!r} and {candidate.model!r} are the same in everything that determines an image: "
                "remove one"
            )


_PER_IMAGE = ("encode", "denoise", "decode")
"""Phases whose time grows with the number of images."""
_DETERMINED = ("work_json", "prompt", "seed", "height", "width")
"""The columns of a candidate that follow from its work id."""


def enter_plan(run: RunDir, plan: RunPlan) -> list[str]:
    """Store the plan, or what it adds to the stored plan; return a sentence per model with additions, with the time
    that they take at the speed measured in this run.

    ConfigError, before anything is changed, if the plan lacks stored work or would change it.
    """
    rows = plan.candidates
    if not run.store.planned:
        run.store.enter_plan(plan.positions, plan.tasks, rows)
        _enter_delivered(run, plan)
        return []
    stored = run.store.candidates()
    planned = {task.task_id: canonical_json(task.content) for task in plan.tasks}
    for task_id, content in run.store.task_contents().items():
        if task_id not in planned:
            raise ConfigError(
                f"{run.path}: the task {task_id!r} is in the run and not in the plan: tasks can be added, not removed; "
                "give a new --run-dir, or the old settings"
            )
        if planned[task_id] != content:
            raise ConfigError(
                f"{run.path}: the task {task_id!r} has changed since this run began: give a new --run-dir"
            )
    _refuse_other_candidates(run, stored, rows)
    stored_ids = {row.work_id for row in stored}
    if [row.work_id for row in stored] != [row.work_id for row in rows]:
        run.store.enter_plan(plan.positions, plan.tasks, rows)
    _enter_delivered(run, plan)
    added = Counter(row.model for row in rows if row.work_id not in stored_ids)
    return [
        f"{model}: {count(n, 'candidates are')} added to the run's {len(stored_ids):,}{_takes(run, model, n)}"
        for model, n in added.items()
    ]


def _enter_delivered(run: RunDir, plan: RunPlan) -> None:
    """Store the facts of the imported files, of which the run keeps the pixels alone."""
    for model in plan.models:
        of_model = (row.work_id for row in plan.candidates if row.model == model.label)
        if facts := {work_id: plan.delivered[work_id] for work_id in of_model if work_id in plan.delivered}:
            run.store.set_meta(f"delivered:{model.label}", canonical_json(facts))


def _takes(run: RunDir, model: str, n: int) -> str:
    """How long `n` images of a model take on one device, if the run has generated images of it."""
    rows = [row for row in run.store.meter() if row.model == model and row.phase in _PER_IMAGE]
    n_images = sum(row.n_items for row in rows if row.phase == "denoise")
    if not n_images:
        return ""
    seconds = n * sum(row.t1_ns - row.t0_ns for row in rows) / 1e9 / n_images
    took = f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"
    took = f"{seconds / 3600:.1f} h" if seconds >= 3600 else took
    return f", about {took} on one device at the speed measured in this run"


def _refuse_other_candidates(run: RunDir, stored: Sequence[Candidate], planned: Sequence[Candidate]) -> None:
    """ConfigError with the first difference if a stored candidate is not planned, LedgerError if it has other inputs
    than the planned one of the same work id. An imported image that was missing and has been found may replace its
    unscored candidate, and another model one of which nothing could be generated."""
    by_key, void = {row.key: row for row in planned}, run.store.without_images()
    for row in stored:
        other, name = by_key.get(row.key), f"{run.path}: {row.name}"
        if row.model in void and (other is None or other.work_id != row.work_id):
            continue
        if other is None:
            raise ConfigError(
                f"{name} is in the run and not in the plan: candidates can be added, not removed; give a "
                "new --run-dir, or the old settings"
            )
        if other.work_id == row.work_id:
            changed = next((column for column in _DETERMINED if getattr(row, column) != getattr(other, column)), None)
            if changed:
                raise LedgerError(
                    f"{name} has a {changed.removesuffix('_json')} that does not follow from its work id: the ledger "
                    "was changed by hand; `local-bench verify` lists what differs, `recover` restores a backup"
                )
            continue
        if row.state == "unscored" and "imported" in other.work["model"]:
            continue
        key, before, now = _first_difference(row.work, other.work)
        raise ConfigError(
            f"{name} would change ({key}: {before} then, {now} now), because the models' files, the "
            "imported images or the suite are not the same: give a new --run-dir"
        )


def _first_difference(before: Any, now: Any, at: str = "work") -> tuple[str, str, str]:
    """(path, value before, value now) of the first difference of two JSON values that are not equal."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in sorted({*before, *now}):
            if before.get(key) != now.get(key):
                return _first_difference(before.get(key), now.get(key), f"{at}.{key}")
    return at, canonical_json(before)[:80], canonical_json(now)[:80]
