"""What a policy does not allow, in a copy that may have come too early for the policy that does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from appliance.formats.paths import record_name
from auditor.finding import Evidence
from timeagent.units import INSTANT_MAX

from .registry import found

if TYPE_CHECKING:
    from collections.abc import Iterator

    from auditor.finding import Finding
    from timeagent.signedtime import SignedTime


@dataclass(frozen=True, slots=True)
class Policies:
    """What is known of policies that are newer than all of the copy, which may have come too early for them."""

    newest: int = 0
    """The newest one of the copy."""
    until_ns: int = INSTANT_MAX
    """Until when there surely was no newer one."""

    def doubt(self, token: SignedTime, place: Evidence) -> Iterator[Finding]:
        """unverifiable-policy: what no policy allows was signed when there may have been a newer one. Else nothing."""
        if token.interval.latest < self.until_ns:
            return
        path = f"policy/{record_name(self.newest + 1)}"
        reason = (
            f"{place.path} says what policy {self.newest}, and those before it, do not allow; a later one may, "
            "published after the copy had taken those"
        )
        title = "a policy record that the copy lacks may allow it"
        yield found("unverifiable-policy", path, reason, [Evidence(path), Evidence(place.path)], title=title)
