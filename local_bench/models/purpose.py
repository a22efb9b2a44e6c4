"""The context of a download for error messages: models and datasets share the download code."""

from dataclasses import dataclass

from local_bench.core.errors import DatasetError, UserError, WeightsError


@dataclass(frozen=True)
class Purpose:
    """Values used in the messages of `hub` and `pull`."""

    name: str
    """The name of the model card or dataset."""
    command: str
    """The command line that fetches it, without backquotes."""
    source: str
    """Where its repository or URL is configured: `the card's source`."""
    error: type[UserError] = WeightsError
    """The exception raised if the download fails."""
    larger_disk: str = "set LOCAL_BENCH_CACHE to a larger disk"
    """How to use a larger disk."""

    @property
    def again(self) -> str:
        return f"run `{self.command}` again"


def for_model(card: str) -> Purpose:
    """The files of a model card."""
    return Purpose(card, f"local-bench models fetch {card}", "the card's source")


def for_dataset(name: str, folder: object) -> Purpose:
    """The published files of a benchmark."""
    return Purpose(
        name,
        f"local-bench suites fetch {name} --out {folder}",
        f"{name} in configs/datasets.yaml",
        DatasetError,
        "give --out (and LOCAL_BENCH_CACHE) on a larger disk",
    )
