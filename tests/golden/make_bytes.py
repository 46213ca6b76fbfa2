"""Write tests/golden/bytes/*.hex anew: ``python tests/golden/make_bytes.py``.

These bytes are the format: files like them are on mounts, and auditors read them years later. One may run this only

- when a new kind of file is added: the other files must not change (``git diff`` shows it);
- when a version integer in the bytes is raised (framing.VERSION, the version of SignedTime, marker.FORMAT). Then the
  old files stay, under a name with their version, and the decoder that reads them stays with its test.

A test that fails because of these files says that old trees can no longer be read. That is mended in the code.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
BYTES = Path(__file__).parent / "bytes"
LINE_BYTES = 32


def as_text(data: bytes) -> str:
    """Return bytes as lines of hexadecimal digits, so that a change can be seen where it is."""
    return "".join(f"{data[at : at + LINE_BYTES].hex()}\n" for at in range(0, len(data), LINE_BYTES))


def main() -> None:
    """Write one file for each kind."""
    sys.path.insert(0, str(ROOT))
    from tests.support.values import all_files

    BYTES.mkdir(exist_ok=True)
    for name, data in all_files().items():
        (BYTES / f"{name}.hex").write_text(as_text(data), encoding="ascii")


if __name__ == "__main__":
    main()
