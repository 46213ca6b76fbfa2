"""The same names for asyncio: ``from tenure.aio import AsyncCluster``."""

from appliance.aio import AsyncCluster, AsyncHold, AsyncLeases, AsyncSession

__all__ = ["AsyncCluster", "AsyncHold", "AsyncLeases", "AsyncSession"]
