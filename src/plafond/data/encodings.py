"""Text files in whatever encoding people save them."""

from __future__ import annotations

import codecs
from pathlib import Path

from plafond.data.images import show
from plafond.errors import DataError
from plafond.language.said import N_

# UTF-32 first: its little-endian mark begins with that of UTF-16.
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


def read_text(path: Path) -> tuple[str, str]:
    """The text of `path`, its ends stripped and its line ends ``\\n``, and the encoding it was read with.

    Raises:
        DataError: the file cannot be read or holds no text; the message names it.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(
            N_("{path}: the caption cannot be read ({reason}); expected a text file."),
            path=show(path),
            reason=str(error.strerror),
        ) from error
    text, encoding = decode(data)
    if "\0" in text:
        raise DataError(N_("{path}: the caption holds binary data; expected a text file."), path=show(path))
    return "\n".join(text.splitlines()).strip(), encoding


def decode(data: bytes) -> tuple[str, str]:
    """Text in whatever encoding people save it, and the name of that encoding.

    A byte order mark decides; without one, zero bytes betray UTF-16; then UTF-8; what is not valid UTF-8 is
    Windows-1252, which any bytes can be read as, so the name ``cp1252`` means a guess.
    """
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            return data[len(mark) :].decode(encoding, errors="replace"), encoding
    # Text is mostly ASCII punctuation, spaces and letters: in UTF-16 one half of each such pair is zero.
    high, low = data[0::2].count(0), data[1::2].count(0)
    if len(data) % 2 == 0 and high != low:
        encoding = "utf-16-le" if low > high else "utf-16-be"
        text = data.decode(encoding, errors="replace")
        if "\0" not in text and "\ufffd" not in text:
            return text, encoding
    try:
        return data.decode("utf-8"), "utf-8"
    except UnicodeDecodeError:
        # Five bytes mean nothing in Windows-1252; they are kept as control characters, as browsers do.
        return "".join(_windows_1252(byte) for byte in data), "cp1252"


def _windows_1252(byte: int) -> str:
    try:
        return bytes([byte]).decode("cp1252")
    except UnicodeDecodeError:
        return chr(byte)
