#!/bin/sh
# The command, from the disk that the host shares: an interpreter, its packages, and one or more versions of leasehold.
version=current
[ ! -r /etc/leasehold-version ] || read -r version </etc/leasehold-version
export LD_LIBRARY_PATH=/opt/leasehold/python/lib PYTHONPATH="/opt/leasehold/$version:/opt/leasehold/packages"
export PYTHONDONTWRITEBYTECODE=1 HOME="${HOME:-/var/lib/leasehold}"
if [ "${1:-}" = --program ]; then shift; exec /opt/leasehold/python/bin/python3 -P "$@"; fi
exec /opt/leasehold/python/bin/python3 -P -m leasehold "$@"
