VERSION = "0.1.0"
"""The release of all packages, which lie in one distribution."""
