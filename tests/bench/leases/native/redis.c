/* Redis: SET key token NX PX, and a script that deletes the key if it still holds the token; a batch is a pipeline. */
#include "generator.h"
#include <stdio.h>
#include <stdlib.h>

static const char script[] = "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) else return 0 end";
static char sha[41];

static void hello(Connection *c) {
    char text[300];
    int size = sprintf(text, "*3\r\n$6\r\nSCRIPT\r\n$4\r\nLOAD\r\n$%zu\r\n%s\r\n", strlen(script), script);
    bytes_add(&c->out, text, (size_t)size);
}

static void send_step(Connection *c, Slot *slot) {
    char text[300], name[64];
    slot->waiting = 0;
    slot->revision = 0; /* the position whose reply comes next */
    for (int i = 0; i < batch; i++) {
        if (slot->step == 1 && !slot->have[i]) continue;
        int size = key_name(name, slot->key[i]);
        if (slot->step == 0) {
            size = sprintf(text, "*6\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$16\r\n%016d\r\n$2\r\nNX\r\n$2\r\nPX\r\n$5\r\n30000\r\n", size, name, slot->number);
        } else {
            size = sprintf(text, "*5\r\n$7\r\nEVALSHA\r\n$40\r\n%s\r\n$1\r\n1\r\n$%d\r\n%s\r\n$16\r\n%016d\r\n", sha, size, name, slot->number);
            given_back(slot, i);
        }
        bytes_add(&c->out, text, (size_t)size);
        slot->waiting++;
    }
    if (slot->waiting) expect(c, slot);
    else step_done(c, slot, -1);
}

static size_t parse(Connection *c, const uint8_t *data, size_t size) {
    const uint8_t *end = memchr(data, '\n', size);
    if (!end) return 0;
    size_t used = (size_t)(end - data) + 1;
    if (!c->ready) {
        if (size < used + 42) return 0;
        memcpy(sha, data + used, 40);
        handshake_done(c);
        return used + 42;
    }
    Slot *slot = c->order[c->head];
    if (c->head == c->tail) { fault("an answer that nobody asked for", data, used); return used; }
    int i = (int)slot->revision;
    while (slot->step == 1 && i < batch && !slot->have[i]) i++;
    slot->revision = i + 1;
    if (slot->step == 0 && *data == '+') granted(slot, i, 0);
    else if (slot->step == 0 && *data == '$') denied(slot, i);
    else if (!(slot->step == 1 && !memcmp(data, ":1", 2))) fault("a reply", data, used);
    if (--slot->waiting == 0) {
        expected(c);
        step_done(c, slot, slot->step == 0 ? 1 : -1);
    }
    return used;
}

const Protocol redis_protocol = {"redis", hello, send_step, parse};
