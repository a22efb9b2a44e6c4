"""Download sources of the published benchmark files: `configs/datasets.yaml`."""

from pathlib import PurePosixPath
from typing import Annotated, Literal

from pydantic import Field

from local_bench.core.errors import DatasetError
from local_bench.core.messages import hint
from local_bench.core.paths import configs_dir
from local_bench.core.yamlfile import Strict, load_yaml

_REPO = r"^[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*$"
_COMMIT = r"^[0-9a-f]{40}$"
_SUFFIXES = {
    *(".json", ".jsonl", ".csv", ".parquet", ".txt", ".md"),
    *(".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff"),
}


class GitHubSource(Strict):
    """A folder of a GitHub repository at a commit, downloaded as an archive."""

    kind: Literal["github"]
    repo: str = Field(pattern=_REPO)
    revision: str = Field(pattern=_COMMIT)
    folder: str
    """Stored under its last path component (src/tasks becomes tasks)."""
    also: list[str] = Field(default=[])
    """Additional files of the repository, such as its licence; stored under their names."""
    host: str = "https://github.com"


class HubSource(Strict):
    """A dataset repository on the Hub."""

    kind: Literal["hub"]
    repo: str = Field(pattern=_REPO)
    revision: str | None = Field(default=None, pattern=_COMMIT)
    """The commit; None if none could be determined from public sources: then the current commit of `main` is used."""
    files: list[str] = Field(min_length=1)
    """Glob patterns of the files to download; `*` also matches `/`."""
    unpack: list[str] = Field(default=[])
    """Names of .zip files among them that are replaced by their content."""


class ImageSource(Strict):
    """Images hosted elsewhere, with one URL per image named in a list of tasks."""

    tasks: str
    """Path of the JSON file in the folder: a list of objects with `task_id` and `input_images`."""
    url: str = Field(pattern=r"\{task_id\}.*\{name\}")
    """URL template; images are stored as TASK_ID/NAME in the folder of that file."""


class Dataset(Strict):
    """The published files of one benchmark."""

    suite: str
    """The suite that reads them."""
    licence: str
    source: Annotated[GitHubSource | HubSource, Field(discriminator="kind")]
    pictures: ImageSource | None = None
    reads: str
    """Glob pattern, relative to the folder, of the suite's `path`."""
    tasks: int = Field(ge=1)
    """Number of tasks at `source.revision`, or according to the paper if no commit is pinned."""
    files: int | None = Field(default=None, ge=1)
    """Number of files at `source.revision`, including images hosted elsewhere, if known."""
    bytes: int | None = Field(default=None, ge=1)
    """Total size of the files in bytes, if known."""
    max_bytes: int = Field(ge=1)
    """Limit on the downloaded and on the unpacked size, in bytes."""
    not_included: str
    """Parts of the benchmark that are not included, and what could not be verified."""


class _File(Strict):
    datasets: dict[str, Dataset]


def datasets() -> dict[str, Dataset]:
    """All entries by name. ConfigError if the file is invalid."""
    return load_yaml(configs_dir() / "datasets.yaml", _File).datasets


def dataset(name: str) -> Dataset:
    """The entry with this name. The DatasetError for an unknown name suggests the nearest one."""
    known = datasets()
    if name not in known:
        suggestion = hint(name, known, f"available: {', '.join(known)}")
        raise DatasetError(f"no download source for the suite {name!r}: {suggestion}")
    return known[name]


def is_data(name: str) -> bool:
    """Whether a file is data: JSON, a table, text, an image or a licence; never executable, pickled or hidden."""
    path = PurePosixPath(name)
    if any(part.startswith(".") or part == "__MACOSX" for part in path.parts):
        return False
    return path.suffix.lower() in _SUFFIXES or (not path.suffix and path.name.upper().startswith("LICENSE"))
