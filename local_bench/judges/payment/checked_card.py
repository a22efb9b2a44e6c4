"""Files that a training writes and a prediction relies on: JSON with a format number and a digest of its contents."""

import json
from pathlib import Path
from typing import ClassVar, Self

from pydantic import ValidationError

from local_bench.core import strictjson
from local_bench.core.errors import UserError
from local_bench.core.files import is_file, read_text, write_atomic
from local_bench.core.identity import digest
from local_bench.core.yamlfile import Strict

FORMAT = 1
MAX_BYTES = 64_000_000


class CheckedCard(Strict):
    """Base class of such files."""

    FILE: ClassVar[str]
    WHAT: ClassVar[str]
    """What the file has, for messages."""

    format: int = FORMAT
    sha256: str = ""
    """Of everything else."""

    def digest(self) -> str:
        return digest(self.model_dump(mode="json", exclude={"sha256"}))

    def with_digest(self) -> Self:
        """The card with the digest of its contents."""
        return self.model_copy(update={"sha256": self.digest()})

    def write(self, folder: Path) -> Path:
        """Write it to `folder`, and return the file."""
        contents = self.model_dump(mode="json", exclude={"sha256"}) | {"sha256": self.sha256}
        file = folder / self.FILE
        write_atomic(file, (json.dumps(contents, indent=1, ensure_ascii=False) + "\n").encode())
        return file

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read it from `folder`. UserError if it is missing, damaged, altered or of another format."""
        file = folder / cls.FILE
        if not is_file(file):
            raise UserError(f"{folder} has no {cls.FILE}: give a folder written by `local-bench predictor train`")
        text = read_text(file, UserError, missing="train it again", max_bytes=MAX_BYTES)
        try:
            strictjson.loads(text)  # its errors
            card = cls.model_validate_json(text)  # pairs are arrays in JSON only
            altered = card.sha256 != card.digest()
        except ValidationError as e:
            where = ".".join(map(str, e.errors()[0]["loc"])) or "contents"
            raise UserError(f"{file} is not a {cls.WHAT} ({where}: {e.errors()[0]['msg']}): train it again") from None
        except ValueError as e:
            raise UserError(f"{file} is not JSON ({str(e)[:200]}): train it again") from None
        if card.format != FORMAT:
            raise UserError(f"{file} has format {card.format}, and this release reads {FORMAT}: train it again")
        if altered:
            raise UserError(f"{file} was altered after training (its digest differs): train it again")
        return card
