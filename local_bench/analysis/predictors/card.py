"""A trained predictor: a folder with one file, `predictor.json`; for the kind `servimage` also the folder `model`.

It has the fitted numbers, the two baselines that every evaluation compares with (the majority and the tuned threshold
rule), what the inputs are (scores, judges, rubrics), what it was trained on, and a digest of all of that.
"""

import json
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from local_bench.analysis.predictors.inputs import Inputs
from local_bench.core import strictjson
from local_bench.core.errors import UserError
from local_bench.core.files import is_file, read_text
from local_bench.core.identity import digest
from local_bench.core.storage import storage_errors, write_atomic
from local_bench.core.yamlfile import Strict
from local_bench.runs.payment import MODEL
from local_bench.settle.predictors.models import Calibrated, ConceptModel, Rule, loads

FILE = "predictor.json"
FORMAT = 1
MAX_BYTES = 64_000_000
Kind = Literal["rule", "logistic", "servimage"]
KINDS: tuple[Kind, ...] = ("rule", "logistic")
"""The kinds that are fitted to scores alone."""


class TrainedOn(Strict):
    """The training data."""

    runs: list[str]
    """Names of the runs, or of the dataset files."""
    manifest_sha256: str
    """Digest of all annotated images: work, pixels and decision."""
    n_images: dict[str, int]
    """Annotated images by split."""
    tasks: dict[str, list[str]]
    """Digests of the tasks by split."""
    calibrated_on: Literal["validation", "training, out of fold", "nothing"]


class Card(Strict):
    """The contents of `predictor.json`."""

    format: int = FORMAT
    kind: Kind
    predictor: str
    tuned_rule: str
    rule: str | None
    """The threshold rule of the first training run; None without runs."""
    majority: float = Field(ge=0, le=1)
    """Fraction of the training images that is accepted."""
    inputs: Inputs
    trained_on: TrainedOn
    calibration: Literal["platt"] = "platt"
    seed: int
    libraries: dict[str, str]
    sha256: str = ""
    """Of everything else."""

    def digest(self) -> str:
        return digest(self.model_dump(mode="json", exclude={"sha256"}))

    @property
    def used_tasks(self) -> set[str]:
        """Digests of the tasks that trained or calibrated the predictor."""
        return {*self.trained_on.tasks["train"], *self.trained_on.tasks["validation"]}


def check_folder(folder: Path) -> None:
    """UserError if `folder` exists and has other files than a payment model without its predictor."""
    with storage_errors(folder):
        if folder.exists() and (not folder.is_dir() or any(path.name != MODEL for path in folder.iterdir())):
            raise UserError(f"{folder} exists and is not an empty folder: give a new folder for the predictor")


def save(card: Card, folder: Path) -> Path:
    """Write the predictor to a new or empty folder. UserError for another."""
    check_folder(folder)
    file = folder / FILE
    write_atomic(file, (json.dumps(card.model_dump(mode="json"), indent=1, ensure_ascii=False) + "\n").encode())
    return file


def load(folder: Path) -> Card:
    """Read a predictor. UserError if it is missing, damaged or altered."""
    file = folder / FILE
    if not is_file(file):
        raise UserError(f"{folder} has no {FILE}: give a folder written by `local-bench predictor train`")
    text = read_text(file, UserError, missing="train it again", max_bytes=MAX_BYTES)
    try:
        strictjson.loads(text)  # its errors
        card = Card.model_validate_json(text)  # pairs are arrays in JSON only
        altered = card.sha256 != card.digest()
    except ValidationError as e:
        where = ".".join(map(str, e.errors()[0]["loc"])) or "contents"
        raise UserError(f"{file} is not a predictor ({where}: {e.errors()[0]['msg']}): train it again") from None
    except ValueError as e:
        raise UserError(f"{file} is not JSON ({str(e)[:200]}): train the predictor again") from None
    if card.format != FORMAT:
        raise UserError(f"{file} has format {card.format}, and this release reads {FORMAT}: train it again")
    if altered:
        raise UserError(f"{file} was altered after training (its digest differs): train it again")
    if set(card.trained_on.tasks) != {"train", "validation", "test"}:
        raise UserError(f"{file} does not list the tasks of its three splits: train it again")
    for text in (card.predictor, card.tuned_rule, *([card.rule] if card.rule else [])):
        _check_names(loads(text), card.inputs, file)
    return card


def _check_names(predictor: Rule | ConceptModel | Calibrated, inputs: Inputs, file: Path) -> None:
    if isinstance(predictor, Calibrated):
        return
    names = set(predictor.thresholds) if isinstance(predictor, Rule) else set(predictor.layout.names)
    unknown = sorted(names - set(inputs.scores))
    if unknown:
        raise UserError(f"{file} reads the score {unknown[0]!r}, which is not among its inputs: train it again")
