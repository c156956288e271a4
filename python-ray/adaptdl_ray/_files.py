"""Folders as bytes: how checkpoints and working directories travel through Ray's object store, since the
machines of a Ray cluster share no disk."""

from __future__ import annotations

import io
import os
import re
import shutil
import tarfile
import tempfile
from typing import Iterable, Optional, Sequence

__all__ = ["newest_checkpoint", "pack", "pack_newest", "unpack", "unpack_beside"]

_CHECKPOINT = re.compile(r"checkpoint-(\d+)\.(\d+)")


def pack(folder: str, names: Optional[Iterable[str]] = None, exclude: Sequence[str] = ()) -> bytes:
    """The folder's files as a tar archive; with names, only those of its entries; without whatever has an excluded
    name. A file that is replaced meanwhile is in it as it was when it was opened."""
    def wanted(member: tarfile.TarInfo) -> Optional[tarfile.TarInfo]:
        return None if os.path.basename(member.name) in exclude else member

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name in sorted(os.listdir(folder) if names is None else names):
            archive.add(os.path.join(folder, name), arcname=name, filter=wanted)
    return buffer.getvalue()


def unpack(data: bytes, folder: str) -> None:
    """Writes an archive of :func:`pack` into the folder. ValueError: it has something else than plain files
    and folders below it."""
    os.makedirs(folder, exist_ok=True)
    root = os.path.realpath(folder)
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in archive.getmembers():
            target = os.path.realpath(os.path.join(root, member.name))
            inside = target == root or target.startswith(root + os.sep)
            link = member.issym() and os.path.realpath(
                os.path.join(os.path.dirname(target), member.linkname)).startswith(root + os.sep)
            if not inside or not (member.isfile() or member.isdir() or link):
                raise ValueError(f"archive: {member.name!r} is not a plain file below its folder")
            member.uid = member.gid = os.getuid()
            archive.extract(member, root, set_attrs=not member.isdir())


def newest_checkpoint(folder: str) -> Optional[str]:
    """The name of the newest complete checkpoint in the folder; None: there is none. A checkpoint appears under
    its name, checkpoint-GENERATION.SEQUENCE, when it is whole."""
    try:
        return (_sorted(folder) or [None])[-1]
    except FileNotFoundError:
        return None


def pack_newest(folder: str, known: Optional[str]) -> Optional[tuple[str, bytes]]:
    """The newest checkpoint in the folder, its name and its bytes; None: there is none but the known one."""
    for _ in range(3):
        name = newest_checkpoint(folder)
        if name is None or name == known:
            return None
        try:
            return name, pack(folder, [name])
        except FileNotFoundError:
            continue  # a newer one took its place meanwhile
    return None


def unpack_beside(data: bytes, folder: str, name: str) -> None:
    """Adds the one entry of an archive to a folder, under its name when it is whole; of the others the one before
    stays. One with a higher number is not newer: another replica has begun to count anew."""
    os.makedirs(folder, exist_ok=True)
    temporary = tempfile.mkdtemp(prefix=".tmp-", dir=folder)
    try:
        unpack(data, temporary)
        for other in _after(folder, name):
            os.rename(os.path.join(folder, other), os.path.join(temporary, f"old-{other}"))
        os.rename(os.path.join(temporary, name), os.path.join(folder, name))
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    for other in _sorted(folder)[:-2]:
        shutil.rmtree(os.path.join(folder, other), ignore_errors=True)


def _number(name: str) -> tuple[int, ...]:
    return tuple(map(int, _CHECKPOINT.fullmatch(name).groups()))


def _sorted(folder: str) -> list[str]:
    return sorted(filter(_CHECKPOINT.fullmatch, os.listdir(folder)), key=_number)


def _after(folder: str, name: str) -> list[str]:
    """Those in the folder that count as newer, or as the same."""
    return [other for other in _sorted(folder) if _number(other) >= _number(name)]
