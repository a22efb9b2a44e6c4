"""Writes THIRD_PARTY.md: every package of the locks, its licence, and the extra that brings it.

    python3.12 scripts/third_party.py

Run it after `scripts/lock`. It reads the metadata of each locked package with pip (26 or later), which fetches no
packages for that, and fails at a licence that restricts use or copying outside the extra that `RESTRICTED` allows.
"""

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
NOTICE = ROOT / "THIRD_PARTY.md"
LOCKS = ("light", "cpu", "cuda")
STATED = {
    "addict": "MIT",
    "cuda-toolkit": "LicenseRef-NVIDIA-Proprietary",
    "insightface": "MIT",
    "kiwisolver": "BSD-3-Clause",
    "openai-clip": "MIT",
    "oss-harmony": "Apache-2.0",
    "quack-kernels": "Apache-2.0",
    "setuptools": "MIT",
    "supervisor": "BSD (Repoze Public License)",
    "torchcodec": "BSD-3-Clause",
    "yapf": "Apache-2.0",
}
"""Licences of packages whose metadata have none, from their source."""
PERMISSIVE = re.compile(
    r"0BSD|Apache|BSD|BSL-1.0|CC0-1.0|CNRI-Python|HPND|ISC|MIT|MPL-2.0|Mozilla Public License|PSF-2.0|"
    r"Python Software Foundation|Unlicense|Zlib"
)
"""Licences that only ask for a notice, or, as MPL-2.0, for changes of the package's own files."""
_RESTRICTIVE = re.compile(r"GPL|[Nn]on-?[Cc]ommercial|-NC\b|Proprietary")
RESTRICTED: dict[str, set[str]] = {
    "pyiqa": {"pyiqa"},
    "NVIDIA": {"generate", "cuda"},
    "nvidia-": {"generate", "cuda"},
    "intel-openmp": {"cpu"},
    "pycountry": {"cpu", "cuda"},
}
"""Parts of the names or licences of packages that restrict more; and the extras in which they may be."""
_SAME = {
    "Apache": "Apache-2.0",
    "Apache 2": "Apache-2.0",
    "Apache 2.0": "Apache-2.0",
    "Apache 2.0 License": "Apache-2.0",
    "Apache License": "Apache-2.0",
    "Apache License 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "3-Clause BSD License": "BSD-3-Clause",
    "BSD License": "BSD",
    "ISC License": "ISC",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
}

_TEXTS = {
    "Apache License": "Apache-2.0",
    "Permission is hereby granted, free of charge": "MIT",
    "Redistribution and use in source and binary forms": "BSD-3-Clause",
}


def licence(metadata: dict[str, Any]) -> str:
    """A package's licence from its metadata: the expression, else a short `License` field, its classifiers, or the
    licence whose text the field has."""
    name = canonicalize_name(metadata["name"])
    text = str(metadata.get("license") or "").strip()
    classified = [one.rpartition(" :: ")[2] for one in metadata.get("classifier", []) if one.startswith("License ::")]
    found = metadata.get("license_expression") or STATED.get(name)
    found = found or (text if text and len(text) < 40 and text != "UNKNOWN" else " / ".join(classified))
    found = found or next((short for phrase, short in _TEXTS.items() if phrase in text), None)
    if not found:
        raise SystemExit(f"{name} states no licence: look it up and add it to STATED")
    return _SAME.get(found, found)


def refusal(name: str, licence: str, extra: str) -> str | None:
    """Why a package may not be in an extra; None if it may."""
    if PERMISSIVE.search(licence) and not _RESTRICTIVE.search(licence):
        return None
    allowed = next((extras for part, extras in RESTRICTED.items() if part in f"{name} {licence}"), set())
    return None if extra in allowed else f"{name} ({licence}) may not be in {extra}: see RESTRICTED"


def rows(text: str) -> Iterator[tuple[str, str, str, str]]:
    """(package, version, licence, extra) of each row of THIRD_PARTY.md."""
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and len(cells) == 4 and cells[0] not in ("package", "---"):
            yield cells[0], cells[1], cells[2], cells[3]


def _metadata(lock: str) -> dict[str, dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--no-deps"]
        subprocess.run([*command, "--report", report, "-r", ROOT / f"requirements/{lock}.lock"], check=True)
        found = [item["metadata"] for item in json.loads(report.read_text())["install"]]
    return {canonicalize_name(metadata["name"]): metadata for metadata in found}


def reached(required: Iterable[str], known: dict[str, dict[str, Any]]) -> set[str]:
    """The packages of `known` that the requirements bring."""
    found: set[str] = set()
    seen: set[tuple[str, str]] = set()
    pending = [Requirement(line) for line in required]
    while pending:
        requirement = pending.pop()
        name = canonicalize_name(requirement.name)
        for extra in {"", *requirement.extras} if name in known else ():
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            found.add(name)
            wanted = map(Requirement, known[name].get("requires_dist", []))
            pending += [one for one in wanted if one.marker is None or one.marker.evaluate({"extra": extra})]
    return found


def main() -> None:
    """Write the file. SystemExit if a licence is unknown, or not allowed where it is."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    groups = {"core": project["project"]["dependencies"], **project["project"]["optional-dependencies"]}
    groups["cpu"] = project["dependency-groups"]["cpu"]
    order = ["core", "tables", "predict", "fetch", "generate", "metrics", "faces", "ray", "cuda", "cpu", "pyiqa"]
    assert set(order) == set(groups)
    known: dict[str, dict[str, Any]] = {}
    for lock in LOCKS:
        known = _metadata(lock) | known
    brought: dict[str, str] = {}
    for group in order:
        for name in sorted(reached(groups[group], known)):
            brought.setdefault(name, group)
    lines = []
    for name, metadata in sorted(known.items()):
        extra, stated = brought[name], licence(metadata)
        if refusal(name, stated, extra):
            raise SystemExit(refusal(name, stated, extra))
        lines.append(f"| {name} | {metadata['version']} | {stated} | {extra} |")
    own = NOTICE.read_text().partition("| package |")[0]
    header = "| package | version | licence | brought by |\n|---|---|---|---|\n"
    NOTICE.write_text(own + header + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
