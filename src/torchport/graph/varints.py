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
