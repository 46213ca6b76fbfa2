"""The records port: which keys and which policy count, by number."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    from appliance.formats.policy import Policy
    from timeagent.trust import Keyring


class RecordNumbers(msgspec.Struct, frozen=True):
    """The numbers of a trust record and of a policy record."""

    trust: int
    policy: int


class Records(Protocol):
    """Trust and policy records of one cluster. What has a number never changes: any of it may be cached."""

    @property
    def cluster_id(self) -> bytes:
        """The 16 bytes that name the cluster."""
        ...

    def known(self) -> RecordNumbers:
        """Return the newest numbers that ``newest`` has seen in this process; touches the mount only if it has not."""
        ...

    def newest(self) -> RecordNumbers:
        """Return the newest numbers, both directories opened afresh. Touches the mount."""
        ...

    def keyring(self, number: int) -> Keyring:
        """Return the keys of a trust record. Raises Damaged if there is no such record."""
        ...

    def policy(self, number: int) -> Policy:
        """Return a policy record. Raises Damaged if there is no such record."""
        ...
