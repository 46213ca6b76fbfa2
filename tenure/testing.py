"""A cluster for tests of your own: ``from tenure.testing import SteppedCluster``.

With pytest: ``pytest_plugins = ["tenure.pytest_plugin"]`` in conftest.py, and a test takes the fixture
``tenure_cluster``.
"""

from appliance.testing.stepped_cluster import SteppedCluster

__all__ = ["SteppedCluster"]
