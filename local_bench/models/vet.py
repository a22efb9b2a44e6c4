"""What is in a model's repository or folder: what of it is loaded, and what is never loaded.

Never: weights that are only pickled (they run code when they are read), classes from the repository itself, a set of
weights with a piece missing. A pickle beside its .safetensors twin, or a script that nothing names, does no harm.
"""

import fnmatch
import importlib.util
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from local_bench.core.errors import WeightsError

PIPELINE = "model_index.json"
"""What a diffusers pipeline has at its top; its models then lie in folders below."""
KINDS = (".safetensors", ".json", ".txt", ".model", ".jinja")
"""The files that a model is loaded from."""
_PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_INDEX = ".safetensors.index.json"
_VARIANTS = tuple(f"*.{kind}{end}*" for kind in ("fp16", "bf16", "fp8", "non_ema") for end in ".-")
"""The same weights once more in another precision: not loaded."""
_UNUSED = ("safety_checker",)
"""Parts of a pipeline that no family loads."""
_LIBRARIES = ("diffusers", "transformers", "open_clip")


@dataclass(frozen=True)
class Listing:
    """A model's files by name (relative, `/` between), wherever they are."""

    where: str
    """The repository or the folder, for sentences."""
    names: frozenset[str]
    read: Callable[[str], bytes]

    @cached_property
    def index(self) -> dict[str, Any] | None:
        """What is in the pipeline's index; None for a single model. WeightsError if it is no JSON object."""
        return self.json(PIPELINE) if PIPELINE in self.names else None

    @cached_property
    def components(self) -> dict[str, list[Any]] | None:
        """The folders of a pipeline that are loaded, with library and class; None for a single model."""
        if self.index is None:
            return None
        return {
            name: entry
            for name, entry in self.index.items()
            if not name.startswith("_") and name not in _UNUSED and isinstance(entry, list) and any(entry)
        }

    @cached_property
    def loaded(self) -> list[str]:
        """The names of the files that the model is loaded from, and of its licence."""
        return sorted(name for name in self.names if self._is_loaded(PurePosixPath(name)))

    def json(self, name: str) -> dict[str, Any]:
        """A JSON object. WeightsError if the file holds something else."""
        try:
            value = json.loads(self.read(name))
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise WeightsError(f"{self.where}: {name} is not a JSON object: put a whole one in its place")
        return value

    def below(self, component: str) -> list[str]:
        """The names in a component's folder; all of them for a single model ("")."""
        return sorted(name for name in self.names if not component or name.startswith(f"{component}/"))

    def _is_loaded(self, path: PurePosixPath) -> bool:
        top = len(path.parts) == 1
        if top and path.name.startswith("LICENSE"):
            return True
        if path.suffix not in KINDS or any(fnmatch.fnmatch(path.name, pattern) for pattern in _VARIANTS):
            return False
        return self.components is None or (path.name == PIPELINE if top else path.parts[0] in self.components)


def listing_of(folder: Path) -> Listing:
    """The files of a folder."""
    names = frozenset(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
    return Listing(str(folder), names, lambda name: (folder / name).read_bytes())


def vet(listing: Listing) -> None:
    """WeightsError for the first reason not to load this model. Reads its small configs, none of its weights."""
    _refuse_code_of_its_own(listing)
    for component in listing.components if listing.components is not None else ("",):
        _refuse_pickles(listing, component)
    for name in listing.loaded:
        if name.endswith(_INDEX):
            _refuse_missing_shards(listing, name)


def _refuse_code_of_its_own(listing: Listing) -> None:
    for name in listing.loaded:
        if name == PIPELINE or name.endswith("config.json"):
            key = _asks_for_code(listing.json(name))
            if key:
                raise WeightsError(
                    f"{listing.where}: {name} asks for code from the repository ({key}), which is never run: "
                    "use a model whose classes are in diffusers, transformers or open_clip"
                )
    if listing.index is None or listing.components is None:
        return
    for name, entry in {"_class_name": listing.index.get("_class_name"), **listing.components}.items():
        if isinstance(entry, list) and not _is_known_class(listing, name, entry):
            raise WeightsError(
                f"{listing.where}: {PIPELINE} takes {name} from code of the repository ({entry}), which is never run: "
                "use a model whose classes are in diffusers, transformers or open_clip"
            )


def _asks_for_code(config: Any) -> str | None:
    """The first key of a config, at any depth, that wants code from the repository."""
    rest = [config]
    while rest:
        value = rest.pop()
        if isinstance(value, dict):
            key = next((key for key in ("auto_map", "trust_remote_code") if value.get(key)), None)
            if key:
                return key
            rest += value.values()
        elif isinstance(value, list):
            rest += value
    return None


def _is_known_class(listing: Listing, component: str, entry: list[Any]) -> bool:
    """Whether `[library, class]` comes from a library of ours and not from a file of the repository."""
    if component == "_class_name" or len(entry) != 2 or not all(isinstance(part, str) and part for part in entry):
        return False
    library, name = entry
    if not name.isidentifier() or {f"{component}/{library}.py", f"{library}.py"} & listing.names:
        return False
    return library in _LIBRARIES or library in _pipelines_of_diffusers()


def _pipelines_of_diffusers() -> set[str]:
    """The names of the modules that diffusers' own pipelines live in; nothing is imported."""
    spec = importlib.util.find_spec("diffusers")
    assert spec is not None
    assert spec.origin is not None
    return {path.name for path in (Path(spec.origin).parent / "pipelines").iterdir() if path.is_dir()}


def _refuse_pickles(listing: Listing, component: str) -> None:
    names = listing.below(component)
    if not names:
        raise WeightsError(
            f"{listing.where}: {PIPELINE} names {component}, but there is no such folder: take the whole model"
        )
    pickled = [name for name in names if name.endswith(_PICKLED)]
    if pickled and not _has_safetensors(names, listing.loaded):
        raise WeightsError(
            f"{listing.where}: {component or 'the model'} has only pickled weights ({pickled[0]}), which can run code "
            "when they are read: convert them to .safetensors and give that folder as `weights:` in the config"
        )


def _has_safetensors(names: Iterable[str], loaded: list[str]) -> bool:
    return any(name.endswith(".safetensors") for name in {*names} & {*loaded})


def _refuse_missing_shards(listing: Listing, name: str) -> None:
    shards = listing.json(name).get("weight_map")
    if not isinstance(shards, dict) or not all(isinstance(shard, str) for shard in shards.values()):
        raise WeightsError(f"{listing.where}: {name} has no weight_map: put a whole one in its place")
    folder = PurePosixPath(name).parent
    for shard in sorted(set(shards.values())):
        if (folder / shard).as_posix() not in listing.names:
            raise WeightsError(
                f"{listing.where}: {name} names {(folder / shard).as_posix()}, which is not there: "
                "put it there, or fetch the model again"
            )
