/* A closed-loop load generator: what each protocol offers the loop, and what the loop offers each protocol. */
#ifndef GENERATOR_H
#define GENERATOR_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define BATCH_MAX 1024
#define STEPS_MAX 4

typedef struct { uint8_t *data; size_t size, room, from; } Bytes;

void bytes_add(Bytes *to, const void *data, size_t size);
static inline void bytes_u8(Bytes *to, unsigned value) { uint8_t byte = (uint8_t)value; bytes_add(to, &byte, 1); }
void bytes_be(Bytes *to, uint64_t value, int size);
uint64_t read_be(const uint8_t *from, int size);

/* One logical client: it takes a batch of keys, then gives them back, and begins again. */
typedef struct Slot {
    int number, step, waiting;           /* waiting: replies still to come in this step */
    int idle;                            /* it has nothing to do any more */
    uint64_t began_ns;
    uint32_t key[BATCH_MAX];
    uint8_t have[BATCH_MAX];             /* this key was granted in this round */
    uint8_t id[BATCH_MAX][16];           /* ours: correlation ids; etcd: its lease */
    int64_t lease, revision, awaited;
    uint32_t stream, watch;
} Slot;

typedef struct Connection {
    int fd, number, ready;               /* ready: the handshake is done */
    Bytes in, out;
    Slot *slots; int slot_count;
    uint32_t next_stream;
    int head, tail; struct Slot **order; /* whose replies come next, in the order of the requests */
} Connection;

typedef struct {
    const char *name;
    void (*hello)(Connection *);
    void (*send_step)(Connection *, Slot *);        /* append the requests of slot->step */
    size_t (*parse)(Connection *, const uint8_t *, size_t); /* take one reply; 0: it is not whole */
} Protocol;

extern const Protocol lease_protocol, redis_protocol, etcd_protocol, etcd_txn_protocol, etcd_mutex_protocol,
    zookeeper_protocol;

/* Settings from the command line. */
extern int batch;
extern uint32_t keys;
extern const char *prefix;
extern uint64_t term_ms;

uint64_t now_ns(void);
uint64_t wall_ns(void);
uint64_t chance(void);
int key_name(char *into, uint32_t key);

/* What a protocol says about replies. */
void expect(Connection *, Slot *);                   /* the next reply in order is this slot's */
Slot *expected(Connection *);
void granted(Slot *, int position, uint64_t fence);  /* a grant came in: held from now on */
void denied(Slot *, int position);
void given_back(Slot *, int position);               /* to be called when the release is sent */
void sample(Slot *, int position, const uint8_t *evidence, size_t size);
void step_done(Connection *, Slot *, int next_step); /* next_step < 0: the round is over */
void handshake_done(Connection *);
void fault(const char *what, const uint8_t *detail, size_t size);
#endif
