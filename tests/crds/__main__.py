"""Write the CRDs, their copy in the chart and their reference: `make crds`."""

from __future__ import annotations

import sys

from tests.crds.files import written


def main() -> int:
    """Write what is stale, and name it."""
    for path, text in written().items():
        if path.read_text() != text:
            path.write_text(text)
            print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
