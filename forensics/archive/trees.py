"""Where archives of runs lie: local folders and object stores, listed and read the same way."""

from __future__ import annotations

import bz2
import hashlib
import lzma
import os
import shutil
import stat
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from forensics.blocks import compression, open_plain
from forensics.evidence import SKIPPED, SKIPPED_FOLDERS, Unusable

HEAD = 32 << 10  # bytes of a file that discovery looks at
MAX_DEPTH = 24


@dataclass(slots=True, frozen=True)
class Leaf:
    """A file: its name, its size in bytes, and what changes when its content does (times and inode, or the store's tag)."""

    name: str
    size: int
    stamp: str


@dataclass(slots=True)
class Branch:
    """A folder: `path` below the root with /, empty for the root itself; `faults` are (path, reason) of what could not be listed."""

    path: str
    leaves: list[Leaf] = field(default_factory=list)
    branches: list[Branch] = field(default_factory=list)
    faults: list[tuple[str, str]] = field(default_factory=list)

    def below(self, name: str) -> str:
        """The path of an entry of this folder."""
        return f"{self.path}/{name}" if self.path else name

    def walk(self) -> Iterator[tuple[str, Leaf]]:
        """Every file below, with its path, in order of name."""
        for leaf in self.leaves:
            yield self.below(leaf.name), leaf
        for branch in self.branches:
            yield from branch.walk()

    @property
    def name(self) -> str:
        """The folder's own name."""
        return self.path.rpartition("/")[2]


class Tree(Protocol):
    """A root: `uri` names it for people and for workers."""

    uri: str

    def scan(self) -> Branch:
        """Everything below the root.  Raises Unusable where there is no such root."""

    def head(self, path: str) -> bytes:
        """The first bytes of a file, decompressed; empty where it cannot be read."""

    def fetch(self, paths: list[str], under: Path) -> None:
        """Copy files to a local folder, keeping their paths."""


def open_tree(uri: str) -> LocalTree | StoreTree:
    """The tree at a path or a URL (`s3://`, `gs://`, `az://`, whatever fsspec knows)."""
    return StoreTree(uri) if "://" in uri else LocalTree(Path(uri))


def worth(name: str) -> bool:
    """Whether a file may be evidence by its suffix: no weights, code or media."""
    return Path(name).suffix.lower() not in SKIPPED and not name.startswith(".")


class LocalTree:
    """A folder or a single file on this machine (or a mounted share)."""

    def __init__(self, path: Path, without: tuple[Path, ...] = ()):
        self.path = path
        self.uri = str(path)
        self.without = {p.resolve() for p in without}

    def scan(self) -> Branch:
        """See Tree.  Links to folders are not followed, links to files are."""
        if not self.path.exists():
            raise Unusable(f"{self.path}: no such file or directory")
        if not self.path.is_dir():
            info = self.path.stat()
            return Branch("", [Leaf(self.path.name, info.st_size, _stamp(info))])
        return self._list("", 0)

    def real(self, path: str) -> Path:
        """Where a file of the tree lies."""
        return self.path / path if self.path.is_dir() else self.path

    def _list(self, path: str, depth: int) -> Branch:
        branch = Branch(path)
        try:
            entries = sorted(os.scandir(self.path / path), key=lambda entry: entry.name)
        except OSError as error:
            branch.faults.append((path or ".", f"folder could not be read: {error.strerror}"))
            return branch
        for entry in entries:
            below = branch.below(entry.name)
            try:
                info = entry.stat()
            except OSError as error:
                if not entry.is_symlink():
                    branch.faults.append((below, f"could not be read: {error.strerror}"))
                continue
            if stat.S_ISDIR(info.st_mode):
                if entry.name in SKIPPED_FOLDERS or entry.is_symlink() or depth >= MAX_DEPTH:
                    continue
                if self.without and (self.path / below).resolve() in self.without:
                    continue
                branch.branches.append(self._list(below, depth + 1))
            elif stat.S_ISREG(info.st_mode) and worth(entry.name):
                if os.access(entry.path, os.R_OK):
                    branch.leaves.append(Leaf(entry.name, info.st_size, _stamp(info)))
                else:
                    branch.faults.append((below, "could not be read: Permission denied"))
        return branch

    def head(self, path: str) -> bytes:
        """See Tree."""
        try:
            with open_plain(self.real(path)) as stream:
                return stream.read(HEAD)
        except Exception:  # a damaged file tells nothing here; its analysis says what is wrong
            return b""

    def digest(self, path: str) -> str:
        """A hash of the file's content."""
        with self.real(path).open("rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()

    def fetch(self, paths: list[str], under: Path) -> None:
        """See Tree; local files are linked, not copied."""
        for path in paths:
            target = under / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(self.real(path).resolve())


class StoreTree:
    """A prefix of an object store, through fsspec.  Credentials come from where the store's own tools take them."""

    def __init__(self, uri: str):
        self.uri = uri.rstrip("/")
        try:
            import fsspec
        except ImportError as error:
            raise Unusable(f"{uri}: reading object stores needs fsspec (pip install 'train-forensics[s3]', [gcs] or [azure])") from error
        try:
            self.fs, self.top = fsspec.core.url_to_fs(self.uri)
        except ImportError as error:
            raise Unusable(f"{uri}: {error}") from error
        except ValueError as error:
            raise Unusable(f"{uri}: no such kind of store ({error})") from error
        self.top = self.top.rstrip("/")
        self.single = self.fs.isfile(self.top)

    def scan(self) -> Branch:
        """See Tree."""
        try:
            found: dict[str, dict[str, Any]] = self.fs.find(self.top, detail=True)
        except FileNotFoundError:
            found = {}
        except Exception as error:
            raise Unusable(f"{self.uri}: cannot be listed ({type(error).__name__}: {error})") from error
        if not found:
            raise Unusable(f"{self.uri}: nothing there")
        root = Branch("")
        branches = {"": root}
        for key, info in sorted(found.items()):
            relative = key[len(self.top) :].lstrip("/") or key.rpartition("/")[2]
            *folders, name = relative.split("/")
            if not name or not worth(name) or not SKIPPED_FOLDERS.isdisjoint(folders) or ".." in folders or len(folders) > MAX_DEPTH:
                continue
            path = ""
            for folder in folders:
                above, path = path, f"{path}/{folder}" if path else folder
                if path not in branches:
                    branches[path] = Branch(path)
                    branches[above].branches.append(branches[path])
            tag = str(info.get("ETag") or info.get("etag") or info.get("md5Hash") or info.get("mtime") or info.get("LastModified") or "")
            branches[path].leaves.append(Leaf(name, int(info.get("size") or 0), f"{info.get('size')}:{tag}"))
        return root

    def key(self, path: str) -> str:
        """The store's name of a file of the tree."""
        return self.top if self.single else f"{self.top}/{path}"

    def head(self, path: str) -> bytes:
        """See Tree."""
        try:
            data = self.fs.cat_file(self.key(path), start=0, end=HEAD)
        except Exception:  # what cannot be read is told when it is fetched
            return b""
        return unpacked(data)

    def fetch(self, paths: list[str], under: Path) -> None:
        """See Tree."""
        for path in paths:
            target = under / path
            target.parent.mkdir(parents=True, exist_ok=True)
            with self.fs.open(self.key(path), "rb") as source, target.open("wb") as out:
                shutil.copyfileobj(source, out, 1 << 20)


def unpacked(data: bytes) -> bytes:
    """The beginning of a file from its first stored bytes; empty where they are damaged."""
    kind = compression(data)
    try:
        if kind == "gzip":
            return zlib.decompressobj(31).decompress(data, HEAD)
        if kind == "xz":
            return lzma.LZMADecompressor().decompress(data, HEAD)
        if kind == "bzip2":
            return bz2.BZ2Decompressor().decompress(data, HEAD)
        if kind == "zstd":
            import zstandard

            return zstandard.ZstdDecompressor().decompressobj().decompress(data)[:HEAD]
    except Exception:  # each library has errors of its own
        return b""
    return data


def _stamp(info: os.stat_result) -> str:
    return f"{info.st_size}:{info.st_mtime_ns}:{info.st_ctime_ns}:{info.st_ino}"
