"""A malfeasance report that was kept: it is made today byte by byte, and still proves what it proved.

Renew it only when the report's shape changes: ``python -m tests.golden.test_roughtime``.
"""

from pathlib import Path

from tests.support.roughtime import NOW_S, Witness, chain_of
from timeagent.roughtime.malfeasance import Contradiction, accused, decode_report, encode_report, judge

REPORT = Path(__file__).with_name("roughtime-report.json")
LIAR = Witness("liar")


def report() -> bytes:
    """Two honest servers, and one that is an hour slow in between."""
    first, second = Witness("first"), Witness("second")
    return encode_report(
        chain_of([(first, NOW_S, 3), (second, NOW_S + 1, 1), (LIAR, NOW_S - 3600, 3), (first, NOW_S + 1, 3)])
    )


def test_report_is_made_byte_by_byte_as_it_was() -> None:
    assert report() == REPORT.read_bytes()


def test_kept_report_still_proves_its_liar() -> None:
    chain = decode_report(REPORT.read_bytes(), REPORT.name)
    verdict = judge(chain)
    assert verdict.word == "proven"
    assert verdict.contradictions == (Contradiction(0, 2, 3594), Contradiction(1, 2, 3597))
    assert accused(chain, verdict)[0] == (LIAR.public, 2)


if __name__ == "__main__":
    REPORT.write_bytes(report())
