"""The clock that only moves when it is told to: the product's own, for tests of its users too."""

from appliance.testing.stepped_cluster import HandTime

__all__ = ["HandTime"]
