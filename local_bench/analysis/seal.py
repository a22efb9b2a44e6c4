"""Sealing a run: a manifest of its digests, which can be signed with an SSH key and compared later."""

import hashlib
import json
import shutil
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from local_bench.analysis.digest import digests
from local_bench.core import strictjson
from local_bench.core.errors import UserError
from local_bench.core.files import own_bytes, read_bytes, read_text
from local_bench.core.scratch import scratch
from local_bench.core.storage import write_atomic
from local_bench.core.version import __version__
from local_bench.runs.contents import file_digests, root
from local_bench.runs.rundir import RunDir
from local_bench.runs.verify import Finding, verify

SEAL, SIGNATURE = "seal.json", "seal.json.sig"
MAX_SEAL_BYTES = 1_000_000
FORMAT = "local-bench-seal-1"
_NAMESPACE = "local-bench"
_SIGNER = "signer"


def manifest(run: RunDir) -> dict[str, Any]:
    """The content of a seal: the run's root, digests, files and sizes."""
    counts = run.store.counts()
    return {
        "format": FORMAT,
        "run": run.config.name,
        "local_bench": __version__,
        "root": root(run.store),
        "digests": digests(run),
        "files": file_digests(run),
        "n_candidates": counts.candidates,
        "n_images": counts.done,
        "n_verdicts": counts.verdicts,
    }


def seal(run: RunDir, key: Path | None) -> tuple[Path, Path | None]:
    """Write seal.json, and with `key` (a private SSH key) seal.json.sig; return their paths.

    UserError if `verify` finds fault with the run, or if the key cannot sign. A seal without a signature can be signed
    or timestamped with any other tool.
    """
    findings = verify(run)
    if findings:
        first = findings[0]
        raise UserError(
            f"{run.path} is not sealed: {first.subject} {first.fault} (`local-bench verify {run.path}` lists all "
            f"{len(findings)} findings)"
        )
    path, signature = run.path / SEAL, run.path / SIGNATURE
    text = json.dumps(
        manifest(run) | {"sealed_utc": datetime.now(UTC).isoformat(timespec="seconds")}, indent=2, sort_keys=True
    )
    signed = None if key is None else _signed(f"{text}\n".encode(), key)
    signature.unlink(missing_ok=True)
    write_atomic(path, f"{text}\n".encode())
    if signed is None:
        return path, None
    write_atomic(signature, signed)
    return path, signature


def check_seal(run: RunDir, signer: Path | None) -> tuple[list[Finding], str | None]:
    """Differences between the run and its seal, and the fingerprint of the key that signed it (None if unsigned).

    With `signer` (a public SSH key) the signature must be by that key. UserError if there is no seal.
    """
    path, signature = run.path / SEAL, run.path / SIGNATURE
    if not path.is_file():
        raise UserError(f"{run.path} has no {SEAL}: seal it with `local-bench seal {run.path}`")
    data = read_bytes(path, UserError, max_bytes=MAX_SEAL_BYTES, missing="seal the run again")
    try:
        stored = strictjson.loads(data.decode("utf-8", "replace"))
    except ValueError:
        stored = None
    if not isinstance(stored, dict) or stored.get("format") != FORMAT:
        raise UserError(f"{path} is not a seal of this release: seal the run again")
    current = manifest(run)
    findings = [
        Finding("seal", SEAL, f"has another {name} than the run")
        for name, value in current.items()
        if name != "local_bench" and stored.get(name) != value
    ]
    fingerprint = None
    if signature.is_file():
        fingerprint = _signature_fault_or_fingerprint(data, signature, signer, findings)
    elif signer is not None:
        findings.append(Finding("seal", SIGNATURE, "is missing, so the seal is not signed"))
    return findings, fingerprint


def _signed(data: bytes, key: Path) -> bytes:
    with scratch() as folder:
        file = Path(folder) / SEAL
        file.write_bytes(data)
        done = _ssh_keygen("-Y", "sign", "-f", str(key), "-n", _NAMESPACE, str(file))
        if done.returncode:
            raise UserError(f"{key} cannot sign ({_reason(done)}): give a private SSH key with --key")
        return own_bytes(file.with_name(f"{SEAL}.sig"))


def _signature_fault_or_fingerprint(
    data: bytes, signature: Path, signer: Path | None, findings: list[Finding]
) -> str | None:
    common = ["-n", _NAMESPACE, "-s", str(signature)]
    if signer is None:
        done = _ssh_keygen("-Y", "check-novalidate", *common, data=data)
    else:
        public = read_text(signer, UserError, missing="give a public SSH key with --signer", max_bytes=MAX_SEAL_BYTES)
        with scratch() as folder:
            allowed = Path(folder) / "allowed_signers"
            allowed.write_text(f'{_SIGNER} namespaces="{_NAMESPACE}" {public.strip()}\n')
            done = _ssh_keygen("-Y", "verify", "-f", str(allowed), "-I", _SIGNER, *common, data=data)
    if done.returncode:
        findings.append(Finding("seal", SIGNATURE, f"is not a valid signature of {SEAL} ({_reason(done)})"))
        return None
    return done.stdout.decode("utf-8", "replace").strip().split(" ")[-1]


def _ssh_keygen(*arguments: str, data: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
    program = shutil.which("ssh-keygen")
    if program is None:
        raise UserError("ssh-keygen is not installed, which signs and checks seals: install OpenSSH")
    return subprocess.run([program, *arguments], input=data, capture_output=True, timeout=60, check=False)


def _reason(done: "subprocess.CompletedProcess[bytes]") -> str:
    lines = (done.stderr or done.stdout).decode("utf-8", "replace").strip().splitlines()
    return lines[-1][:200] if lines else f"status {done.returncode}"


def seal_sha256(run: RunDir) -> str:
    """sha256 of seal.json, for timestamping services."""
    return hashlib.sha256(own_bytes(run.path / SEAL)).hexdigest()
