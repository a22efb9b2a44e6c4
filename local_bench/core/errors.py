"""The error tree. Every message is one sentence: what is wrong, where, and what to do.

LocalBenchError            exit 1: the run ended with a failure, or a check did not hold
├── UserError              exit 2: the user's input is wrong
│   ├── ConfigError        a run config, a model card or a price table
│   ├── TaskFileError      a benchmark's task file
│   ├── ResultFileError    a benchmark's result file
│   ├── ImageError         an image that cannot be read safely
│   └── WeightsError       a model whose files are not on this machine
├── LedgerError            the run's ledger cannot be opened or written
├── StorageError           the disk is full or refuses a write
└── ServerError            the judge's server did not start, or did not stay up
"""


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


class WeightsError(UserError):
    """A model's files are not on this machine, and nothing may be downloaded at run time."""


class LedgerError(LocalBenchError):
    """The ledger is damaged, of another version, or held by another process."""


class StorageError(LocalBenchError):
    """The file system refused a write; everything committed before it is kept."""


class ServerError(LocalBenchError):
    """The judge's server could not be started or reached."""
