"""The partition that producers choose for a key, written down from their source and not from the kernel's."""

import zlib


def murmur2(data: bytes) -> int:
    """Java's Utils.murmur2, written down from its source."""
    mask = 0xFFFFFFFF
    h = 0x9747B28C ^ len(data)
    whole = len(data) // 4 * 4
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * 0x5BD1E995 & mask
        k = (k ^ k >> 24) * 0x5BD1E995 & mask
        h = (h * 0x5BD1E995 & mask) ^ k
    rest = data[whole:]
    if rest:
        h = (h ^ int.from_bytes(rest, "little")) * 0x5BD1E995 & mask
    h = (h ^ h >> 13) * 0x5BD1E995 & mask
    return h ^ h >> 15


def target_of(key: bytes | None, offset: int, count: int, partitioner: str = "murmur2") -> int:
    """The partition, of `count`, to which a record goes that is divided: by its key, or by its offset where producers
    choose any."""
    if key and partitioner == "crc32":
        return zlib.crc32(key) % count
    spread = key is None or partitioner == "crc32"
    data = offset.to_bytes(8, "big", signed=True) if spread or key is None else key
    return (murmur2(data) & 0x7FFFFFFF) % count
