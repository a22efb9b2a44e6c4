"""The error tree. Every message is one sentence: what is wrong, where, and what to do.

LocalBenchError            exit 1: the run ended with a failure, or a check did not hold
├── UserError              exit 2: the user's input is wrong
│   ├── ConfigError        a run config, a model card or a price table
│   ├── TaskFileError      a benchmark's task file
│   ├── ResultFileError    a benchmark's result file
│   ├── ImageError         an image that cannot be read safely
│   │   └── RunImageError  exit 1: a picture of a run that is missing, damaged or not what its name says
│   ├── WeightsError       a model whose files are not on this machine
│   └── DatasetError       a benchmark's published files cannot be fetched, or are not what they should be
├── LedgerError            the run's ledger cannot be opened or written
│   └── LedgerDamaged      the ledger is missing, empty or damaged although its run has begun
├── StorageError           the disk is full or refuses a write
│   └── PathError          exit 2: the path cannot be written to as it is given
└── ServerError            the judge's server did not start, or did not stay up
"""

IMAGE_FAULTS = ("missing", "damaged", "altered")
"""What can be wrong with a picture of a run: no file, a file that cannot be decoded, or one with other pixels."""


class LocalBenchError(Exception):
    """A failure we can explain; the command ends with `exit_code` and this sentence, without a traceback."""

    exit_code = 1


class UserError(LocalBenchError):
    """What the user gave cannot be used as it is."""

    exit_code = 2


class ConfigError(UserError):
    """A config, model card, rubric or price table does not say what it must."""


class TaskFileError(UserError):
    """A task file has a line that cannot become a task."""


class ResultFileError(UserError):
    """A result file has a row that cannot be read, stands there twice, or belongs to nothing."""


class ImageError(UserError):
    """An image is missing, too large, of a kind we do not read, or damaged."""


class RunImageError(ImageError):
    """A picture in a run directory is not the one that its name promises; `fault` is one of IMAGE_FAULTS."""

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
    """A benchmark's published files cannot be fetched as asked; nothing half-written is left."""


class LedgerError(LocalBenchError):
    """The ledger is damaged, of another version, or held by another process."""


class LedgerDamaged(LedgerError):
    """The ledger of a run that has begun is missing, empty, damaged or lacks tables; `recover` restores its backup."""


class StorageError(LocalBenchError):
    """The file system refused a write; everything committed before it is kept."""


class PathError(StorageError):
    """The path that was given cannot be written to: a part of it is a file, it is a folder, or its name is too long."""

    exit_code = 2


class ServerError(LocalBenchError):
    """The judge's server could not be started or reached."""
