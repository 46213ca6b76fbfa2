-- One row for each domain that the shard remembers. The file lives on tmpfs and starts empty, always.
-- kind, latest_ns, floor_ns and settle_ns repeat what is in the state, for the few questions about many rows; expiry_ns
-- and fence are part of a state that is written in short (rows.py).
CREATE TABLE entry (
    domain    TEXT PRIMARY KEY,
    revision  INTEGER NOT NULL,   -- what compare-and-swap compares
    kind      INTEGER NOT NULL,   -- 0 free, 1 some lease is tentative, 2 all are held
    expiry_ns INTEGER NOT NULL,   -- of the lease that expires first, of those that have an expiry of their own; 0 or never without
    latest_ns INTEGER,            -- of the lease that expires last, of the same; 0 without, null: the same one
    fence     INTEGER NOT NULL,
    floor_ns  INTEGER,            -- null: that of a domain of which nothing is known
    settle_ns INTEGER,            -- null: likewise
    state     BLOB NOT NULL
) WITHOUT ROWID, STRICT;

-- One row for each session lease; it goes when it is over and the last lease under it has been met.
CREATE TABLE session (
    session_id BLOB PRIMARY KEY,
    request_id BLOB NOT NULL UNIQUE,  -- what it was granted to
    expiry_ns  INTEGER NOT NULL,
    leases     INTEGER NOT NULL,
    over       INTEGER NOT NULL,
    floor_ns   INTEGER NOT NULL,      -- what its end brings to the domains of its leases; 0 while it is out
    settle_ns  INTEGER NOT NULL,
    state      BLOB NOT NULL
) WITHOUT ROWID, STRICT;
