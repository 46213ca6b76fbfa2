import msgspec
import pytest

from appliance.formats.policy import Policy, check_policy
from tests.support.values import CLUSTER
from timeagent.errors import BadConfiguration
from timeagent.units import MS, SECOND

DEFAULTS = Policy(number=1, cluster_id=CLUSTER)


def test_defaults_keep_every_relation_and_say_what_a_successor_waits() -> None:
    assert check_policy(DEFAULTS) is DEFAULTS
    assert DEFAULTS.takeover_ns() == 13_750 * MS
    assert DEFAULTS.restart_ns() == 16 * SECOND


# For each relation: the last value that keeps it, the first that breaks it, and the two names that are said.
EDGES = [
    (
        {"renew_period_ns": 4_999_999_999, "attempt_timeout_ns": SECOND},
        {"renew_period_ns": 5 * SECOND},
        "lease_term_max_ns",
    ),
    ({"renew_period_ns": 1}, {"renew_period_ns": 0}, "lease_term_max_ns"),
    ({"attempt_timeout_ns": 2_055_666_666}, {"attempt_timeout_ns": 2_055_666_667}, "holder_margin_ns"),
    ({"attempt_timeout_ns": 1}, {"attempt_timeout_ns": 0}, "attempt_timeout_ns"),
    ({"holder_margin_ns": 500 * MS}, {"holder_margin_ns": 500 * MS - 1}, "radius_ns_max"),
    ({"grace_ns": 1_501 * MS}, {"grace_ns": 1_500 * MS}, "radius_ns_max"),
    ({"r1_tolerance_ns": 750 * MS + 1}, {"r1_tolerance_ns": 750 * MS}, "batch_ns_max"),
    ({"seal_delay_ns": 4 * SECOND + 1}, {"seal_delay_ns": 4 * SECOND}, "grace_ns"),
    ({"assumed_radius_ns": 250 * MS}, {"assumed_radius_ns": 250 * MS + 1}, "radius_ns_max"),
    ({"ceiling_period_ns": SECOND}, {"ceiling_period_ns": SECOND + 1}, "ceiling_ahead_ns"),
    ({"ceiling_period_ns": 1}, {"ceiling_period_ns": 0}, "ceiling_ahead_ns"),
]


@pytest.mark.parametrize(("good", "bad", "other"), EDGES)
def test_relation_is_held_to_the_nanosecond_and_names_both_values(
    good: dict[str, int], bad: dict[str, int], other: str
) -> None:
    check_policy(msgspec.structs.replace(DEFAULTS, **good))
    with pytest.raises(BadConfiguration) as refused:
        check_policy(msgspec.structs.replace(DEFAULTS, **{**good, **bad}))
    assert refused.value.code == "bad-policy"
    assert next(iter(bad)) in refused.value.message
    assert other in refused.value.message
    assert refused.value.hint


def test_grid_of_new_logs_is_checked_too() -> None:
    with pytest.raises(BadConfiguration) as refused:
        check_policy(msgspec.structs.replace(DEFAULTS, span_ns=7 * SECOND))
    assert refused.value.code == "bad-grid"
