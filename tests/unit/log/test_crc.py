"""The kernel's CRC-32C is that of the package."""

import crc32c as package
from hypothesis import example, given, settings
from hypothesis import strategies as st

from logkeep_engine.log.batch import crc32c
from tests.examples import scaled


@given(parts=st.lists(st.binary(max_size=700) | st.binary(max_size=3).map(lambda piece: piece * 3000), max_size=4))
@example([])
@example([b"123456789"])
@settings(max_examples=scaled(200), deadline=None)
def test_the_checksum_is_the_same_whole_or_in_parts(parts: list[bytes]) -> None:
    found = 0
    for part in parts:
        found = crc32c(memoryview(part), found)
    whole = b"".join(parts)
    assert found == crc32c(bytearray(whole)) == package.crc32c(whole)


def test_the_published_value_comes_out() -> None:
    assert crc32c(b"123456789") == 0xE3069283  # RFC 3720
