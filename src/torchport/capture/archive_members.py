"""The members of a PyTorch archive: bounded, in one folder, and of exactly the names that torch writes.

torch's C++ reader finds a member without regard to upper and lower case and cuts long names, so a check that
looks for `code/` does not see `Code/`, which torch reads all the same. Therefore each layout is a complete list
of names in one spelling, and an archive with any other name is refused.
"""

from __future__ import annotations

import os
import re
import zipfile
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO, Literal

from torchport.errors import SourceError, UntrustedError, first_line
from torchport.torch_compat.saved_files import archive_reader

# torch stores members uncompressed: an honest archive unpacks to its own size, a re-packed one to a few times
_GROWTH = 8
_SLACK = 64 << 20

# written by torch's archive writer whatever the archive holds
_COMMON = r"version|byteorder|\.data/version|\.data/serialization_id|\.format_version|\.storage_alignment"
# files of the user's; torch hands their bytes on and does not interpret them
_EXTRA = r"extra/[^\\\x00-\x1f\x7f]*[^\\/\x00-\x1f\x7f]"

_LAYOUTS = {
    # bytecode.pkl and mobile_debug_handles.pkl are for the interpreter on phones; torch.jit.load reads neither
    "script": re.compile(
        rf"{_COMMON}|{_EXTRA}"
        r"|(?:data|constants|traced_inputs|bytecode)\.pkl|mobile_debug_handles\.pkl"
        r"|(?:data|constants|traced_inputs|bytecode)/[0-9]+"
        r"|code/(?:[A-Za-z0-9_]+/)*[A-Za-z0-9_]+\.py(?:\.debug_pkl)?"
    ),
    # model.pt among weights and constants is how torch 2.8 and before wrote them; objects are refused by content
    "program": re.compile(
        rf"{_COMMON}|{_EXTRA}"
        r"|archive_format|archive_version|models/model\.json|data/sample_inputs/model\.pt"
        r"|data/weights/(?:weight_[0-9]+|model_weights_config\.json|model\.pt)"
        r"|data/constants/(?:(?:tensor|custom_obj|opaque_obj)_[0-9]+|model_constants_config\.json|model\.pt)"
    ),
}


class Members:
    """The members of an archive, read by the very reader that torch will use.

    The names are without the archive's folder, as torch's reader has them.
    """

    def __init__(self, path: Path) -> None:
        """Read the table of contents.

        Raises:
            SourceError: it is broken, or Python's and torch's readers do not find the same members in it.
            UntrustedError: its members are not all in one folder.
        """
        self.path = path
        listed = check_zip(path)
        folder = listed[0].partition("/")[0] + "/" if listed else ""  # torch takes that of the first member
        if outside := [name for name in listed if not name.startswith(folder)]:
            raise self._odd(outside[0])
        try:
            self._reader = archive_reader(str(path))
            self.names: list[str] = self._reader.get_all_records()
        except (RuntimeError, UnicodeDecodeError) as error:
            raise self.broken(first_line(error)) from error
        if sorted(name.partition("/")[2] for name in listed) != sorted(self.names):
            raise self.broken("its table of contents is ambiguous")

    def hold_to(self, layout: Literal["script", "program"]) -> None:
        """Check that every member has a name that torch gives to members of such a file.

        Raises:
            UntrustedError: one has another name, upper and lower case being different.
        """
        if odd := [name for name in self.names if not _LAYOUTS[layout].fullmatch(name)]:
            raise self._odd(odd[0])

    def _odd(self, name: str) -> UntrustedError:
        return UntrustedError(
            f"{self.path.name} has a member that PyTorch does not write: {name[:80]!r}",
            where=str(self.path),
            next_step="save the model again with PyTorch; or, if you know who made the file, pass --trust",
        )

    def broken(self, reason: str) -> SourceError:
        """Return the error that says that the archive is broken."""
        return SourceError(
            f"{self.path.name} is a broken PyTorch file: {reason}",
            where=str(self.path),
            next_step="save it again with PyTorch, or copy it again",
        )

    def size(self, name: str) -> int:
        """Return the member's size in bytes; 0 if there is none."""
        return int(self._reader.get_record_size(name)) if name in self.names else 0

    def need(self, name: str) -> None:
        """Check that there is such a member.

        Raises:
            SourceError: there is none.
        """
        if name not in self.names:
            raise self.broken(f"it has no {name}")

    def read(self, name: str) -> bytes:
        """Return the member's bytes.

        Raises:
            SourceError: there is no such member, or it cannot be read.
        """
        self.need(name)
        try:
            return bytes(self._reader.get_record(name))
        except RuntimeError as error:
            raise self.broken(f"{name}: {first_line(error)}") from error


def check_zip(file: Path | IO[bytes], *, where: str = "") -> list[str]:
    """Return the members' names, once the archive is known to be bounded and to stay inside itself.

    Two members of one name are refused, upper and lower case being the same to torch's reader: a check that
    reads one of them would say nothing about the other.

    Raises:
        SourceError: it unpacks to far more than it is, a name climbs out or comes twice, or it is broken.
    """
    where = where or str(file)
    label = Path(where).name
    try:
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise SourceError(
            f"{label} is a broken zip archive: {error}",
            where=where,
            next_step="copy or save the file again; it may be cut off",
        ) from error
    # orig_filename: zipfile cuts filename at a NUL
    if climbing := [m.orig_filename for m in members if _climbs(m.orig_filename)]:
        raise SourceError(
            f"{label} has a member that climbs out of the archive: {climbing[0]!r}",
            where=where,
            next_step="do not open this file: PyTorch does not write such members",
        )
    if len({m.filename.casefold() for m in members}) != len(members):
        raise SourceError(
            f"{label} has two members of the same name",
            where=where,
            next_step="save the model again with torch.save, torch.jit.save or torch.export.save",
        )
    total = sum(m.file_size for m in members)
    if total > _GROWTH * _size(file) + _SLACK:
        raise SourceError(
            f"{label} would unpack to {total:,} bytes: far more than it is",
            where=where,
            next_step="do not open this file: PyTorch stores members without compression",
        )
    return [m.filename for m in members]


def _climbs(name: str) -> bool:
    parts = (*PurePosixPath(name).parts, *PureWindowsPath(name).parts)
    return ".." in parts or name.startswith(("/", "\\")) or bool(PureWindowsPath(name).drive) or "\0" in name


def _size(file: Path | IO[bytes]) -> int:
    return file.stat().st_size if isinstance(file, Path) else file.seek(0, os.SEEK_END)
