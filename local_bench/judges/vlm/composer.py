"""Builds request bodies and caches the prepared images."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from PIL import Image

from local_bench.judges.vlm.chat_api import body
from local_bench.judges.vlm.images import Prepared, prepare
from local_bench.judges.vlm.protocols import Request, Shown

CACHE_SIZE = 64
"""Number of prepared images in the cache; the requests for all criteria of one candidate follow each other closely."""


class Composer:
    """`load` returns an image by its pixel digest; `multiple` is the patch size of the judge in pixels."""

    def __init__(self, load: Callable[[str], Image.Image], multiple: int) -> None:
        self._prepared = lru_cache(maxsize=CACHE_SIZE)(lambda shown: prepare(shown, load, multiple))

    def prepared(self, shown: Shown) -> Prepared:
        """The image as it is sent to the judge."""
        return self._prepared(shown)

    def body(self, request: Request, model: str, content_ids: bool = True) -> dict[str, Any]:
        """The request body; see `chat_api.body`."""
        return body(request, self.images(request), model, content_ids=content_ids)

    def images(self, request: Request) -> list[Prepared]:
        """The request's images, in order."""
        return [self.prepared(shown) for shown in request.shown]
