"""Wrong versions of the steps by which a policy changes. Each names the checker that kills it."""

from __future__ import annotations

from appliance.bag import closing, reader
from appliance.session import stamping
from tests.simulation.mutant import Mutant, one

POLICIES: tuple[Mutant, ...] = (
    Mutant(
        "messages are judged by the newest policy, not by the one that they name",
        one(
            reader,
            "Reader._judged_anew",
            "own = judge if not 1 <= policy < named.policy else self._judge(RecordNumbers(named.trust, policy))",
            "own = judge",
        ),
        "agreement",
        "policies",
    ),
    Mutant(
        "a lowered term counts at once: the newest policy is named, whatever was granted before",
        one(stamping, "FrameStamper._judging", "longest <= policy.lease_term_max_ns and", "longest and"),
        "published",
        "policies",
    ),
    Mutant(
        "a raised term counts before the list knows it: a closer names the first policy",
        one(
            closing,
            "Closer._promise",
            "looked, named = (self._time.now(), self._records.newest())",
            "looked, named = (self._time.now(), type(self._records.newest())(self._records.newest().trust, 1))",
        ),
        "agreement",
        "policies",
    ),
    Mutant(
        "a rack is sealed as the newest policy says, however long bags of its log stay open",
        one(
            closing,
            "Sealer._delay_ns",
            "max(policy.seal_delay_ns, birth.span_ns + birth.grace_ns + 4 * policy.radius_ns_max)",
            "policy.seal_delay_ns",
        ),
        "due",
        "policies",
    ),
)
