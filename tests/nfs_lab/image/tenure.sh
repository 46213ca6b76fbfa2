#!/bin/sh
# The command, from the disk that the host shares: an interpreter, its packages, and one or more versions of tenure.
version=current
[ ! -r /etc/tenure-version ] || read -r version </etc/tenure-version
export LD_LIBRARY_PATH=/opt/tenure/python/lib PYTHONPATH="/opt/tenure/$version:/opt/tenure/packages"
export PYTHONDONTWRITEBYTECODE=1 HOME="${HOME:-/var/lib/tenure}"
if [ "${1:-}" = --program ]; then shift; exec /opt/tenure/python/bin/python3 -P "$@"; fi
exec /opt/tenure/python/bin/python3 -P -m tenure "$@"
