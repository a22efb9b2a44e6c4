"""A site as one HTML file to mail: scripts, styles, data, figures and thumbnails are in it."""

import base64
import hashlib
import re
from pathlib import Path

from local_bench.core.files import write_atomic

NAME = "report.html"
MAX_IMAGE_BYTES = 15_000_000
"""Of the thumbnails, in the order of the plan; mail servers refuse larger messages."""
_TYPES = {".svg": "image/svg+xml", ".webp": "image/webp"}


def write_single_file(index: Path) -> Path:
    """Write the site of `index` to one file beside it and return it. Full images and what exceeds MAX_IMAGE_BYTES are
    left out. StorageError if the write fails."""
    folder = index.parent
    data = [_text(path) for path in sorted((folder / "data").glob("*.js"))]
    inline = {path.name: _address(path) for path in sorted((folder / "figures").glob("*.svg"))}
    n_bytes = 0
    for sha in dict.fromkeys(re.findall(r'"([0-9a-f]{64})"', "".join(data))):
        path = folder / "thumbs" / sha[:2] / f"{sha}.webp"
        if path.is_file() and n_bytes + path.stat().st_size <= MAX_IMAGE_BYTES:
            n_bytes += path.stat().st_size
            inline[sha] = _address(path)
    entries = ",".join(f'"{name}":"{address}"' for name, address in inline.items())
    styles = [_text(folder / name) for name in ("compare.css", "viewer.css")]
    # Data come between the viewer's definition of LB and its first page, which needs them.
    viewer, start, rest = _text(folder / "viewer.js").partition("start();\n")
    scripts = [_text(folder / "compare.js"), f"window.INLINE={{{entries}}};\n{viewer}{''.join(data)}{start}{rest}"]
    policy = (
        f"default-src 'none'; script-src {_hashes(scripts)}; style-src {_hashes(styles)}; img-src data:; base-uri "
        "'none'; form-action 'none'"
    )
    page = re.sub(r"<link[^>]*>\n|<script.*</script>\n", "", _text(index))
    page = re.sub(r'(Policy" content=")[^"]*', lambda match: match[1] + policy, page)
    page = page.replace("</head>", "".join(f"<style>{style}</style>" for style in styles) + "</head>")
    page = page.replace("</body>", "".join(f"<script>{script}</script>" for script in scripts) + "</body>")
    write_atomic(folder / NAME, page.encode())
    return folder / NAME


def _text(path: Path) -> str:
    """Text that does not end an element of a page: data have escapes in place of `<`, and nothing else has `</`."""
    text = path.read_text("utf-8")
    return text.replace("<", "\\u003c") if path.parent.name == "data" else text


def _address(path: Path) -> str:
    return f"data:{_TYPES[path.suffix]};base64,{base64.b64encode(path.read_bytes()).decode()}"


def _hashes(texts: list[str]) -> str:
    return " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in texts)
