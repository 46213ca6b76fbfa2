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

-- What is missing in the file when a question about many rows is asked and the tmpfs is full. In the process's memory.
CREATE TEMP TABLE missing (
    domain    TEXT PRIMARY KEY,
    revision  INTEGER NOT NULL,
    kind      INTEGER NOT NULL,
    expiry_ns INTEGER NOT NULL,
    latest_ns INTEGER,
    fence     INTEGER NOT NULL,
    floor_ns  INTEGER,
    settle_ns INTEGER,
    state     BLOB NOT NULL
) WITHOUT ROWID, STRICT;
CREATE TEMP VIEW entry_or_missing AS
    SELECT * FROM missing UNION ALL SELECT * FROM entry WHERE domain NOT IN (SELECT domain FROM missing);

-- The first and the last of the domains that were to be written when there was no room, and all that are between them;
-- missing holds then what of these is missing in the file.
CREATE TEMP TABLE crowd (first TEXT NOT NULL, last TEXT NOT NULL) STRICT;
CREATE TEMP VIEW crowded AS
    SELECT * FROM missing UNION ALL
    SELECT entry.* FROM crowd CROSS JOIN entry ON entry.domain BETWEEN crowd.first AND crowd.last
        WHERE entry.domain NOT IN (SELECT domain FROM missing);

-- One row for each session lease; it goes when it is over and the last lease under it has been met. There are few of
-- them: they stand in the process's memory, so that a full tmpfs is in no session's way.
CREATE TEMP TABLE session (
    session_id BLOB PRIMARY KEY,
    request_id BLOB NOT NULL UNIQUE,  -- what it was granted to
    expiry_ns  INTEGER NOT NULL,
    leases     INTEGER NOT NULL,
    over       INTEGER NOT NULL,
    floor_ns   INTEGER NOT NULL,      -- what its end brings to the domains of its leases; 0 while it is out
    settle_ns  INTEGER NOT NULL,
    state      BLOB NOT NULL
) WITHOUT ROWID, STRICT;
