"""Checks of a model's repository or folder before it is loaded.

Refused: weights available only as pickles (loading them can run code) or in another precision, the repository's own
classes, a missing shard, a tokenizer without vocabulary. Accepted, but not loaded: a pickle with a .safetensors
equivalent, an unused script.
"""

import fnmatch
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from local_bench.core import strictjson
from local_bench.core.environment import location
from local_bench.core.errors import WeightsError
from local_bench.core.files import read_bytes

PIPELINE = "model_index.json"
"""The index file of a diffusers pipeline, whose components are in subfolders."""
KINDS = (".safetensors", ".json", ".txt", ".model", ".jinja")
"""Suffixes of the files that a model is loaded from."""
_PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_INDEX = ".safetensors.index.json"
MAX_FILE_BYTES = 200_000_000
"""Tokenizers have the largest: tens of megabytes."""
_VARIANTS = tuple(f"*.{kind}{end}*" for kind in ("fp16", "bf16", "fp8", "non_ema") for end in ".-")
"""Copies of the weights in another precision, not loaded."""
UNUSED = ("safety_checker",)
"""Pipeline components that are never loaded."""
_VOCABULARIES = ("tokenizer.json", "vocab.*", "*.model", "tekken.json")
_LIBRARIES = ("diffusers", "transformers", "open_clip")


@dataclass(frozen=True)
class Listing:
    """The names of a model's files (relative, separated by `/`), local or on the Hub."""

    where: str
    """The repository or folder, for messages."""
    names: frozenset[str]
    read: Callable[[str], bytes]

    @cached_property
    def index(self) -> dict[str, Any] | None:
        """The content of the pipeline's index; None for a single model. WeightsError if it is not a JSON object."""
        return self.json(PIPELINE) if PIPELINE in self.names else None

    @cached_property
    def components(self) -> dict[str, list[Any]] | None:
        """The pipeline's loaded components with library and class; None for a single model. Lists of numbers
        are settings (Krea 2's `text_encoder_select_layers`)."""
        if self.index is None:
            return None
        return {
            name: entry
            for name, entry in self.index.items()
            if not name.startswith("_")
            and name not in UNUSED
            and isinstance(entry, list)
            and not all(isinstance(part, int | float | None) for part in entry)
        }

    @cached_property
    def loaded(self) -> list[str]:
        """The names of the files that the model is loaded from, and of its licence files."""
        return sorted(name for name in self.names if self._is_loaded(PurePosixPath(name)))

    def json(self, name: str) -> dict[str, Any]:
        """Read a JSON object. WeightsError if the file contains anything else."""
        try:
            value = strictjson.loads(self.read(name).decode(), constants=True)  # schedulers have -Infinity
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise WeightsError(f"{self.where}: {name} is not a JSON object: replace it with a valid one")
        return value

    def below(self, component: str) -> list[str]:
        """The names in a component's folder; all names for a single model ("")."""
        return sorted(name for name in self.names if not component or name.startswith(f"{component}/"))

    def _is_loaded(self, path: PurePosixPath) -> bool:
        top = len(path.parts) == 1
        if top and path.name.startswith("LICENSE"):
            return True
        if path.suffix not in KINDS or any(fnmatch.fnmatch(path.name, pattern) for pattern in _VARIANTS):
            return False
        return self.components is None or (path.name == PIPELINE if top else path.parts[0] in self.components)


def listing_of(folder: Path) -> Listing:
    """The listing of a local folder."""
    names = frozenset(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
    return Listing(str(folder), names, lambda name: model_file(folder / name))


def vet(listing: Listing) -> None:
    """Raise WeightsError if the model must not be loaded. Reads configs, not weights."""
    known = "use a model whose classes are in diffusers, transformers or open_clip"
    for name in listing.loaded:
        if name == PIPELINE or name.endswith("config.json"):
            key = _remote_code_key(listing.json(name))
            if key:
                raise WeightsError(
                    f"{listing.where}: {name} requires code from the repository ({key}), which is never run: {known}"
                )
    if listing.index is not None and listing.components is not None:
        for name, entry in {"_class_name": listing.index.get("_class_name"), **listing.components}.items():
            if isinstance(entry, list) and not _is_known_class(listing, name, entry):
                raise WeightsError(
                    f"{listing.where}: {PIPELINE} loads {name} from code in the repository ({entry}), which is never "
                    f"run: {known}"
                )
    for component in listing.components if listing.components is not None else ("",):
        names = listing.below(component)
        if not names:
            raise WeightsError(
                f"{listing.where}: {PIPELINE} lists {component}, but that folder is missing: use the complete model"
            )
        stored = [name for kind in (*_PICKLED, ".safetensors") for name in names if name.endswith(kind)]
        if stored and not any(name.endswith(".safetensors") for name in {*names} & {*listing.loaded}):
            pickle = f"pickled weights ({stored[0]}), which can run code when loaded: convert them to .safetensors"
            other = f"weights of another precision ({stored[0]}), which are not loaded: save it without `variant`"
            raise WeightsError(
                f"{listing.where}: {component or 'the model'} has only "
                f"{pickle if stored[0].endswith(_PICKLED) else other} and give that folder as `weights:` in the config"
            )
    _vet_tokenizers(listing)
    for name in (name for name in listing.loaded if name.endswith(_INDEX)):
        shards = listing.json(name).get("weight_map")
        if not isinstance(shards, dict) or not all(isinstance(shard, str) for shard in shards.values()):
            raise WeightsError(f"{listing.where}: {name} has no valid weight_map: replace it with a valid file")
        files = sorted((PurePosixPath(name).parent / shard).as_posix() for shard in set(shards.values()))
        missing = next((file for file in files if file not in listing.names), None)
        if missing is not None:
            raise WeightsError(
                f"{listing.where}: {name} lists {missing}, which is missing: add the file, or fetch the model again"
            )


def _vet_tokenizers(listing: Listing) -> None:
    for path in (PurePosixPath(name) for name in listing.loaded if name.endswith("tokenizer_config.json")):
        in_folder = [name for name in listing.loaded if PurePosixPath(name).parent == path.parent]
        if not any(PurePosixPath(name).match(kind) for name in in_folder for kind in _VOCABULARIES) and (
            listing.json(str(path)).get("tokenizer_class") != "ByT5Tokenizer"  # its tokens are bytes
        ):
            raise WeightsError(
                f"{listing.where}: {path} has no vocabulary in its folder ({', '.join(_VOCABULARIES)}), so that every "
                "text would be empty: add the tokenizer's files, or fetch the model again"
            )


def _remote_code_key(config: Any) -> str | None:
    """The first key of a config, at any depth, that enables code from the repository."""
    pending = [config]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            key = next((key for key in ("auto_map", "trust_remote_code") if value.get(key)), None)
            if key:
                return key
            pending += value.values()
        elif isinstance(value, list):
            pending += value
    return None


def _is_known_class(listing: Listing, component: str, entry: list[Any]) -> bool:
    """Whether `[library, class]` is from an installed library and not from a file in the repository."""
    if component == "_class_name" or len(entry) != 2 or not all(isinstance(part, str) and part for part in entry):
        return False
    library, name = entry
    if not name.isidentifier() or {f"{component}/{library}.py", f"{library}.py"} & listing.names:
        return False
    if library in _LIBRARIES:
        return True
    pipelines = location("diffusers").parent / "pipelines"  # their names are modules; nothing is imported
    return library in {path.name for path in pipelines.iterdir() if path.is_dir()}


def model_file(path: Path) -> bytes:
    """A small file of a model (a config, an index). WeightsError if it is no regular file or too large."""
    return read_bytes(path, WeightsError, max_bytes=MAX_FILE_BYTES, missing="fetch the model again")
