"""The error tree; the form of all messages; and exceptions of one item (a prompt, an image, a question), which make
that item unscored and end nothing else. Every message is one sentence: what is wrong, where, and what to do.

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
├── ServerError            the judge's server did not start, or ended
└── PartFailed             a model, metric or judge of a run cannot continue, and the others can
"""

import difflib
import json
import os
import re
import unicodedata
from collections.abc import Iterable
from decimal import Decimal
from typing import Generic, TypeVar

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


class PartFailed(LocalBenchError):
    """A model, metric or judge of a run cannot continue, and the others can; `what` names it or its items."""

    def __init__(self, message: str, what: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.what, self.exit_code = what, exit_code

    def __reduce__(self) -> tuple[type["PartFailed"], tuple[str, str, int]]:
        return PartFailed, (str(self), self.what, self.exit_code)


# Messages: printable characters, a bounded length, no numbers of system errors, no class names.
MAX_CHARACTERS = 600
MAX_LINES = 40
_ERRNO = re.compile(r"\[Errno -?\d+\] ")
_KEPT_END = 200
"""Characters kept from the end of a message, which states what to do."""
_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL", re.IGNORECASE)
_URL_USER = re.compile(r"(\w+://)[^/\s@'\"]+@")
MIN_SECRET = 6
KINDS = {
    "NoneType": "null",
    "dict": "an object",
    "list": "a list",
    "str": "a text",
    "bool": "true or false",
    "int": "a number",
    "float": "a number",
    "Decimal": "a number",
    "date": "a date",
    "datetime": "a time",
    "bytes": "binary data",
    "set": "a set",
}


def kind(value: object) -> str:
    """The type of a value from a file, for a message: `a list`, `null`."""
    return KINDS.get(type(value).__name__, "another kind of value")


def short(value: object, most: int = 60) -> str:
    """A value from a file as JSON has it (null, true, the digits of a Decimal), a text as its `repr`; at most `most`
    characters long."""
    try:
        if isinstance(value, dict | list | bool | None):
            text = json.dumps(value, ensure_ascii=False, default=str)
        else:
            text = str(value) if isinstance(value, Decimal) else repr(value)
    except ValueError:  # an integer with more digits than Python prints
        return "a number with thousands of digits"
    return text if len(text) <= most else text[: most - 3] + "..."


_SINGULAR = {verb: f"{verb}s" for verb in ("belong", "contain", "count", "differ", "lack", "remain")}
_SINGULAR |= {"are": "is", "have": "has", "were": "was", "they": "it", "their": "its"}
_SINGULAR |= {"batches": "batch", "entries": "entry", "fractions": "a fraction"}


def count(n: int, words: str) -> str:
    """`12 tasks have`, `1 task has`: of words in the plural, of which the first that ends in s is the noun."""
    if n == 1:
        noun = next((word for word in words.split() if word.endswith("s")), "")
        singular = _SINGULAR | {noun: _SINGULAR.get(noun, noun.removesuffix("s"))}
        words = " ".join(singular.get(word, word) for word in words.split())
    return f"{n:,} {words}"


def escaped(text: str) -> str:
    """`text` with control, format and bidirectional characters and unpaired surrogates in visible form (`\\x1b`); line
    breaks and tabs are kept."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(c.encode("unicode_escape").decode() if c not in "\n\t" and _is_control(c) else c for c in text)


def escaped_json(text: str) -> str:
    """JSON text with those characters as `\\uXXXX`; they can only be inside its strings."""
    text = text.replace("\x7f", "\\u007f")  # which `json.dumps` leaves as it is
    if text.isascii():
        return text
    return "".join(json.dumps(c)[1:-1] if c != "\n" and _is_control(c) else c for c in text)


def sentence(text: str) -> str:
    """A message as it is printed: escaped, without secrets, every line at most MAX_CHARACTERS long."""
    lines = _ERRNO.sub("", without_secrets(escaped(text))).split("\n")
    if len(lines) > MAX_LINES:
        lines = [*lines[: MAX_LINES - 10], "…", *lines[-10:]]
    cut = MAX_CHARACTERS - _KEPT_END - 3
    return "\n".join(x if len(x) <= MAX_CHARACTERS else f"{x[:cut]} … {x[-_KEPT_END:]}" for x in lines)


def without_secrets(text: str) -> str:
    """`text` without the users of URLs, and without the values of environment variables that hold keys."""
    text = _URL_USER.sub(r"\1", text)
    for name, value in os.environ.items():
        if len(value) >= MIN_SECRET and _SECRET_NAME.search(name) and not os.path.exists(value):
            text = text.replace(value, f"<{name}>")
    return text


def _is_control(c: str) -> bool:
    return unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")


def nearest(name: str, names: Iterable[str]) -> list[str]:
    """The shortest known name that begins with `name` or is `name` from one `_` to another, else the longest that
    `name` begins with, else the most similar ones, which are equally similar; empty if none is similar."""
    names = list(names)
    lower = name.lower()
    if lower:
        longer = [c for c in names if c.lower().startswith(lower) or f"_{lower}_" in f"_{c.lower()}_"]
        shorter = [candidate for candidate in names if len(candidate) > 2 and lower.startswith(candidate.lower())]
        if longer or shorter:
            return [min(longer, key=len) if longer else max(shorter, key=len)]
    folded = {candidate.lower(): candidate for candidate in reversed(names)}
    close = difflib.get_close_matches(lower, folded, n=3, cutoff=0.5)
    ratios = [difflib.SequenceMatcher(None, candidate, lower).ratio() for candidate in close]
    return sorted(folded[candidate] for candidate, ratio in zip(close, ratios, strict=True) if ratio == ratios[0])


def hint(name: str, names: Iterable[str], otherwise: str = "") -> str:
    """`did you mean 'NEAREST'?`, or `otherwise`, by default `available: ` and the names."""
    near = nearest(name, names)
    return f"did you mean {' or '.join(map(repr, near))}?" if near else otherwise or f"available: {', '.join(names)}"


_OUT_OF_MEMORY = (
    "out of memory",  # torch's allocator, the CUDA driver, Triton's launcher
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_NOT_INITIALIZED",  # cublasCreate without memory for its workspace
    "CUBLASLT_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
    "CUDNN_STATUS_NOT_INITIALIZED",
    "was unable to find an engine to execute this computation",  # torch tries each engine of cuDNN, and none had memory
    "No execution plans support the graph",
    "can't allocate memory",  # torch's allocator for the host
    "not enough memory: you tried to allocate",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether `error` is a failed allocation: torch.OutOfMemoryError, or a library's equivalent."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and any(message in str(error) for message in _OUT_OF_MEMORY)


T = TypeVar("T")
FAILED = "failed while "
"""Prefix of the reason of an item for which an exception was raised; the next session processes it again."""
MAX_EQUAL = 32
"""Equal failures at the start of a phase after which it stops."""
_REASON_CHARACTERS = 200
_DEVICE = ("CUDA error", "CUDA driver error", "CUBLAS_STATUS", "CUDNN_STATUS", "cuDNN error", "device-side assert")


def is_of_item(error: BaseException) -> bool:
    """Whether an exception can concern the processed item alone: no lack of memory or disk space, no fault of the
    device, and no error that has a message for the user."""
    if isinstance(error, LocalBenchError) or not isinstance(error, Exception | SystemExit) or is_out_of_memory(error):
        return False
    if isinstance(error, OSError) and error.errno is not None:  # Pillow's errors for an image have no number
        return False
    if type(error).__name__ in ("AcceleratorError", "OutOfDeviceMemory", "EngineDeadError"):  # torch's, ours, vLLM's
        return False
    return not any(name in str(error) for name in _DEVICE)


def failure(step: str, error: Exception | SystemExit) -> str:
    """The reason of an item for which `error` was raised: `failed while encoding (ValueError: …)`. Raises `error` if it
    is not of the item alone."""
    if not is_of_item(error):
        raise error
    first = (str(error).strip().splitlines() or [""])[0][:_REASON_CHARACTERS]
    return f"{FAILED}{step} ({type(error).__name__}{': ' if first else ''}{first})"


def is_failure(reason: str | None) -> bool:
    return reason is not None and reason.startswith(FAILED)


class FirstFailures(Generic[T]):
    """Holds back what failed until something succeeds: what fails in the same way for every item is no fault of the
    items, and must not be stored as theirs."""

    def __init__(self, what: str, advice: str, begun: bool = False) -> None:
        """`what` names the items in the message (`images of flux`); with `begun`, something has succeeded before."""
        self._what, self._advice, self._begun = what, advice, begun
        self._held: list[tuple[str, tuple[T, ...]]] = []

    def failed(self, reason: str, *results: T) -> list[T]:
        """Add a failed item with its results; return what may be stored. PartFailed after `MAX_EQUAL` equal ones, if
        they are the first."""
        self._held.append((reason, results))
        if not self._begun and len(self._held) >= MAX_EQUAL and len({held for held, _ in self._held}) == 1:
            raise PartFailed(
                f"none of the first {len(self._held)} {self._what} has a result, all for one reason ({reason}): "
                f"{self._advice}, and run the same command again; nothing of these is stored",
                self._what,
            )
        return self.released() if self._begun else []

    def succeeded(self, *results: T) -> list[T]:
        """Add a result; return it with what was held back."""
        self._begun = True
        return [*self.released(), *results]

    def released(self) -> list[T]:
        """What is held back, at the end of the phase."""
        held, self._held = [result for _, results in self._held for result in results], []
        return held
