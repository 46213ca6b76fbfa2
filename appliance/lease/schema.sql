-- One row for each domain that the shard remembers. The file lives on tmpfs and starts empty, always.
-- kind, expiry_ns, latest_ns and newest_ns repeat what is in the state, for the few questions about many rows.
CREATE TABLE entry (
    domain    TEXT PRIMARY KEY,
    revision  INTEGER NOT NULL,   -- what compare-and-swap compares
    kind      INTEGER NOT NULL,   -- 0 free, 1 some lease is tentative, 2 all are held
    expiry_ns INTEGER NOT NULL,   -- of the lease that expires first; 0 where there is none
    latest_ns INTEGER NOT NULL,   -- of the lease that expires last
    fence     INTEGER NOT NULL,
    floor_ns  INTEGER NOT NULL,
    settle_ns INTEGER NOT NULL,
    newest_ns INTEGER NOT NULL,   -- the highest of fence, floor and settle_to
    state     BLOB NOT NULL,
    answer    BLOB                -- correlation id and newest SignedWitness of the only lease; NULL where there is none
) WITHOUT ROWID, STRICT;

-- The newest SignedWitness of each lease where a domain has several.
CREATE TABLE answer (
    correlation_id BLOB PRIMARY KEY,
    signed         BLOB NOT NULL
) WITHOUT ROWID, STRICT;
