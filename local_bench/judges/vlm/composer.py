"""Puts a request together: its pictures prepared once, its body for whatever carries it."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from PIL import Image

from local_bench.judges.vlm.chat_api import body
from local_bench.judges.vlm.images import Prepared, prepare
from local_bench.judges.vlm.protocols import Request, Shown

KEPT = 64
"""Prepared pictures that are kept: all criteria of one candidate come close together."""


class Composer:
    """`load` gives an image by its pixel digest; `multiple` is the judge's patch."""

    def __init__(self, load: Callable[[str], Image.Image], multiple: int) -> None:
        self._prepared = lru_cache(maxsize=KEPT)(lambda shown: prepare(shown, load, multiple))

    def prepared(self, shown: Shown) -> Prepared:
        """The picture as the judge is to see it."""
        return self._prepared(shown)

    def body(self, request: Request, model: str, content_ids: bool = True) -> dict[str, Any]:
        """What is posted; see `wire.body`."""
        return body(request, self.pictures(request), model, content_ids=content_ids)

    def pictures(self, request: Request) -> list[Prepared]:
        """The request's pictures, in their order."""
        return [self.prepared(shown) for shown in request.shown]
