"""Safe extraction of untrusted archives (.tar.gz, .zip): regular files inside the target folder, up to a size
limit.

The extraction functions of `tarfile` and `zipfile` are not used: names are checked, then the bytes are copied.
"""

import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import IO

from local_bench.core.errors import DatasetError
from local_bench.core.paths import safe_join
from local_bench.models.datasets import is_data

MAX_MEMBERS = 200_000
_DAMAGE = (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError)
MemberPath = Callable[[str], str | None]
"""Maps a member's name to its path relative to the target folder; None skips the member."""


def unpack_tar(archive: Path, target: Path, member_path: MemberPath, max_bytes: int, where: str) -> int:
    """Extract the selected data files of a .tar.gz; return the number of selected files skipped as not data.

    DatasetError (`where` names the archive) for a name that points outside the archive, a selected link or device,
    a duplicate name, more than `max_bytes` or MAX_MEMBERS, and a damaged archive.
    """
    left_out, total = 0, 0
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for number, member in enumerate(tar, 1):
                _check_name(member.name, where)
                total += member.size if member.isreg() else 0
                _check_size(number, total, max_bytes, where)
                relative = member_path(member.name)
                if relative is None or member.isdir():
                    continue
                if not member.isreg():
                    raise DatasetError(f"{where}: {member.name} is a link or a device: the archive is not unpacked")
                if not is_data(relative):
                    left_out += 1
                    continue
                source = tar.extractfile(member)
                assert source is not None
                with source:
                    _write(source, target, relative, where)
    except (*_DAMAGE, OSError) as e:
        if isinstance(e, OSError) and not isinstance(e, tarfile.TarError) and e.errno is not None:
            raise
        raise DatasetError(f"{where} is damaged: run the same command again later") from e
    return left_out


def unpack_zip(archive: Path, target: Path, member_path: MemberPath, max_bytes: int, where: str) -> int:
    """Like `unpack_tar`, for a .zip."""
    left_out, total = 0, 0
    try:
        with zipfile.ZipFile(archive) as zipped:
            for number, member in enumerate(zipped.infolist(), 1):
                _check_name(member.filename, where)
                total += member.file_size
                _check_size(number, total, max_bytes, where)
                relative = member_path(member.filename)
                if relative is None or member.is_dir():
                    continue
                kind = stat.S_IFMT(member.external_attr >> 16)
                if kind not in (0, stat.S_IFREG) or member.flag_bits & 1:
                    raise DatasetError(
                        f"{where}: {member.filename} is a link, a device or encrypted: the archive is not unpacked"
                    )
                if not is_data(relative):
                    left_out += 1
                    continue
                with zipped.open(member) as source:
                    _write(source, target, relative, where)
    except _DAMAGE as e:
        raise DatasetError(f"{where} is damaged: run the same command again later") from e
    return left_out


def _check_name(name: str, where: str) -> None:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name:
        raise DatasetError(f"{where}: the name {name!r} points outside the archive: the archive is not unpacked")


def _check_size(members: int, total: int, max_bytes: int, where: str) -> None:
    if members > MAX_MEMBERS:
        raise DatasetError(f"{where} has more than {MAX_MEMBERS:,} members: the archive is not unpacked")
    if total > max_bytes:
        raise DatasetError(
            f"{where} unpacks to more than {max_bytes / 1e9:g} GB: nothing was stored; if the size is correct, raise "
            "max_bytes of its entry in configs/datasets.yaml"
        )


def _write(source: IO[bytes], target: Path, relative: str, where: str) -> None:
    path = safe_join(target, relative)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        raise DatasetError(f"{where}: {relative} is in the archive twice: the archive is not unpacked")
    with path.open("xb") as file:
        shutil.copyfileobj(source, file, 1 << 20)
