"""Where the authors of the benchmarks publish their files: `configs/datasets.yaml`."""

from pathlib import PurePosixPath
from typing import Annotated, Literal

from pydantic import Field

from local_bench.core.errors import DatasetError
from local_bench.core.paths import configs_dir
from local_bench.core.suggest import hint
from local_bench.core.yamlfile import Strict, load_yaml

_REPO = r"^[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*$"
_COMMIT = r"^[0-9a-f]{40}$"
_KINDS = {
    *(".json", ".jsonl", ".csv", ".parquet", ".txt", ".md"),
    *(".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff"),
}


class GitHubSource(Strict):
    """A folder of a repository at a commit, from the archive that GitHub makes of it."""

    kind: Literal["github"]
    repo: str = Field(pattern=_REPO)
    revision: str = Field(pattern=_COMMIT)
    folder: str
    """Kept under its last name (src/tasks becomes tasks)."""
    also: list[str] = Field(default=[])
    """Single files of the repository that belong to it, such as its licence; kept under their names."""
    host: str = "https://github.com"


class HubSource(Strict):
    """A dataset repository on the Hub."""

    kind: Literal["hub"]
    repo: str = Field(pattern=_REPO)
    revision: str | None = Field(default=None, pattern=_COMMIT)
    """None where no commit could be established from public sources: the Hub is asked for that of `main`."""
    files: list[str] = Field(min_length=1)
    """Shell patterns of what is wanted; `*` matches `/` too."""
    unpack: list[str] = Field(default=[])
    """Names of .zip files among them whose content is kept in their place."""


class Pictures(Strict):
    """Pictures that lie elsewhere, one address for each name in a list of tasks."""

    tasks: str
    """The JSON file, below the folder: a list of objects with `task_id` and `input_images`."""
    url: str = Field(pattern=r"\{task_id\}.*\{name\}")
    """The pictures go to TASK_ID/NAME beside that file."""


class Dataset(Strict):
    """One benchmark's published files."""

    suite: str
    """The suite that reads them."""
    licence: str
    source: Annotated[GitHubSource | HubSource, Field(discriminator="kind")]
    pictures: Pictures | None = None
    reads: str
    """What the suite's `path` is, as a pattern below the folder."""
    tasks: int = Field(ge=1)
    """How many tasks there are at `source.revision`, or according to the paper where no commit is pinned."""
    files: int | None = Field(default=None, ge=1)
    """How many files there are at `source.revision`, pictures from elsewhere included, where it was established."""
    bytes: int | None = Field(default=None, ge=1)
    """The size of the files, where it was established."""
    max_bytes: int = Field(ge=1)
    """More than this is refused, downloaded or unpacked."""
    not_included: str
    """What of the benchmark does not come with it, and what could not be verified."""


class _File(Strict):
    datasets: dict[str, Dataset]


def datasets() -> dict[str, Dataset]:
    """All entries by name. ConfigError for a file of another form."""
    return load_yaml(configs_dir() / "datasets.yaml", _File).datasets


def dataset(name: str) -> Dataset:
    """The entry of that name. DatasetError names the nearest one."""
    known = datasets()
    if name not in known:
        suggestion = hint(name, known, f"there are {', '.join(known)}")
        raise DatasetError(f"no published files are known for the suite {name!r}: {suggestion}")
    return known[name]


def is_data(name: str) -> bool:
    """Whether a file is kept: JSON, tables, text, images and licences; nothing that is run or unpickled, nothing
    hidden."""
    path = PurePosixPath(name)
    if any(part.startswith(".") or part == "__MACOSX" for part in path.parts):
        return False
    return path.suffix.lower() in _KINDS or (not path.suffix and path.name.upper().startswith("LICENSE"))
