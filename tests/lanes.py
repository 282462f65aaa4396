"""`make test`: every test, in two lanes side by side.

Tests on a node wait for pods more than they compute, so those with a broker run beside them. The first lane is shown as
it goes, the second when both are done.
"""

import subprocess
import sys
import tempfile

LANES = (("tests/apiserver", "tests/e2e", "tests/unit", "tests/simulation", "tests/ledger"), ("tests/kafka",))


def main() -> int:
    """Runs the lanes; returns the highest of pytest's exit codes."""
    shown, hidden = LANES
    with tempfile.TemporaryFile() as output:
        second = subprocess.Popen(_pytest(hidden), stdout=output, stderr=subprocess.STDOUT)
        try:
            codes = [subprocess.run(_pytest(shown), check=False).returncode, second.wait()]
        except KeyboardInterrupt:
            codes = [2, second.wait()]  # the terminal has told it too
        output.seek(0)
        sys.stdout.buffer.write(output.read())
        sys.stdout.flush()
    return max(codes)


def _pytest(folders: tuple[str, ...]) -> list[str]:
    return [sys.executable, "-m", "pytest", *folders]


if __name__ == "__main__":
    sys.exit(main())
