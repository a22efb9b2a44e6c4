"""The error tree. Every message is one sentence: what is wrong, where, and what to do.

LocalBenchError            exit 1: the run ended with a failure, or a check did not hold
├── UserError              exit 2: the user's input is wrong
│   ├── ConfigError        a run config, a model card or a price table
│   ├── TaskFileError      a benchmark's task file
│   ├── ResultFileError    a benchmark's result file
│   ├── ImageError         an image that cannot be read safely
│   │   └── RunImageError  exit 1: an image of a run is missing, damaged or does not match its digest
│   ├── WeightsError       a model whose files are not on this machine
│   ├── DatasetError       a benchmark's published files cannot be fetched or do not match their digests
│   └── MissingExtra       a package of an extra is not installed
├── LedgerError            the run's ledger cannot be opened or written
│   └── LedgerDamaged      the ledger is missing, empty or damaged although its run has begun
├── StorageError           the disk is full or refuses a write
│   └── PathError          exit 2: the given path cannot be written to
└── ServerError            the judge's server did not start, or ended
"""

IMAGE_FAULTS = ("missing", "damaged", "altered")
"""Faults of a stored image: no file, a file that cannot be decoded, or a file with other pixels."""


class LocalBenchError(Exception):
    """An expected failure; the command ends with `exit_code` and this message, without a traceback."""

    exit_code = 1


class UserError(LocalBenchError):
    """The user's input is invalid."""

    exit_code = 2


class ConfigError(UserError):
    """A config, model card, rubric or price table is invalid."""


class TaskFileError(UserError):
    """A line of a task file is not a valid task."""


class ResultFileError(UserError):
    """A row of a result file cannot be parsed, is a duplicate, or matches no task."""


class ImageError(UserError):
    """An image is missing, too large, damaged, or of an unsupported format."""


class RunImageError(ImageError):
    """An image in a run directory does not match its digest; `fault` is one of IMAGE_FAULTS."""

    exit_code = 1

    def __init__(self, message: str, fault: str) -> None:
        assert fault in IMAGE_FAULTS, fault
        super().__init__(message)
        self.fault = fault

    def __reduce__(self) -> tuple[type["RunImageError"], tuple[str, str]]:
        return RunImageError, (str(self), self.fault)  # with both arguments, also from a worker process


class WeightsError(UserError):
    """A model's files are not on this machine, and nothing may be downloaded at run time."""


class DatasetError(UserError):
    """A benchmark's published files cannot be fetched; no partial files remain."""


class MissingExtra(UserError):
    """A package that an extra brings is not installed."""


class LedgerError(LocalBenchError):
    """The ledger is damaged, of another version, or held by another process."""


class LedgerDamaged(LedgerError):
    """The ledger of a run that has begun is missing, empty, damaged or lacks tables; `recover` restores its backup."""


class StorageError(LocalBenchError):
    """The file system refused a write; everything committed before is preserved."""


class PathError(StorageError):
    """The given path cannot be written to: a parent is a file, it is a folder, or its name is too long."""

    exit_code = 2


class ServerError(LocalBenchError):
    """The judge's server could not be started or reached."""
