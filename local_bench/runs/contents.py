"""The record of a run's contents at the end of each command, and the root digest of its results."""

import hashlib
from collections.abc import Sequence

from local_bench.runs.rundir import RunDir
from local_bench.runs.store import Store
from local_bench.runs.store.contents import record, result_leaves

FILES = ("run.yaml", "provenance.json")


def record_contents(run: RunDir) -> None:
    """Store digests of all rows but decisions and of the run's files, which `verify` compares with the current ones."""
    record(run.store, file_digests(run))


def file_digests(run: RunDir) -> dict[str, str]:
    """File name -> sha256, for the run's text files that exist."""
    files = {name: run.path / name for name in FILES}
    return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items() if path.is_file()}


def root(store: Store) -> str:
    """The Merkle root of the results, one leaf per task in order of task ids: sha256, 64 hex digits."""
    return store.once(
        "root", lambda: merkle_root([bytes.fromhex(leaf) for leaf in result_leaves(store).values()]).hex()
    )


def merkle_root(leaves: Sequence[bytes]) -> bytes:
    """The Merkle tree hash of `leaves` (RFC 6962, section 2.1): a leaf hash is sha256(0x00 || leaf), an inner hash
    sha256(0x01 || left || right), and the left subtree has the largest power of two of leaves below their number."""
    if not leaves:
        return hashlib.sha256().digest()
    level = [hashlib.sha256(b"\x00" + leaf).digest() for leaf in leaves]
    while len(level) > 1:
        pairs = [level[i : i + 2] for i in range(0, len(level), 2)]
        level = [hashlib.sha256(b"\x01" + b"".join(pair)).digest() if len(pair) == 2 else pair[0] for pair in pairs]
    return level[0]
