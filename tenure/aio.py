"""The same names for asyncio: ``from tenure.aio import AsyncCluster``."""

from appliance.aio import AsyncCluster, AsyncLeases, AsyncSession

__all__ = ["AsyncCluster", "AsyncLeases", "AsyncSession"]
