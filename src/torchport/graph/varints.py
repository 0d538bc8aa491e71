"""Numbers as protobuf writes them: seven bits a byte, the lowest first."""

from __future__ import annotations


def varint(number: int) -> bytes:
    """The bytes of a number that is not negative.

    Example:
        >>> varint(300)
        b'\\xac\\x02'
    """
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def read_varint(content: bytes | memoryview, at: int) -> tuple[int, int]:
    """The number written at a place, and the place after it.

    Raises:
        IndexError: the content ends before it does.
        ValueError: it is longer than a number can be.

    Example:
        >>> read_varint(b"\\xac\\x02", 0)
        (300, 2)
    """
    number = 0
    for shift in range(0, 70, 7):
        byte = content[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
    raise ValueError("a number of more than 64 bits")
