"""What a person with the root key does to a cluster: found, let in, let go, trust, share out, change its numbers."""
