/* ZooKeeper: create and delete an ephemeral node, asynchronously, in the words of its client protocol (jute records). */
#include "generator.h"
#include <stdio.h>

#define CREATE 1
#define DELETE 2
#define NODE_EXISTS (-110)

static void text(Bytes *to, const char *value, int size) { bytes_be(to, (uint64_t)size, 4); bytes_add(to, value, (size_t)size); }

static void hello(Connection *c) {
    uint8_t password[16] = {0};
    bytes_be(&c->out, 45, 4);
    bytes_be(&c->out, 0, 4); bytes_be(&c->out, 0, 8); bytes_be(&c->out, 30000, 4); bytes_be(&c->out, 0, 8);
    bytes_be(&c->out, 16, 4); bytes_add(&c->out, password, 16); bytes_u8(&c->out, 0);
}

static void send_step(Connection *c, Slot *slot) {
    char path[64];
    Bytes *out = &c->out;
    path[0] = '/';
    int size = 1 + key_name(path + 1, slot->key[0]);
    size_t at = out->size;
    bytes_be(out, 0, 4);
    bytes_be(out, (uint64_t)slot->number, 4);
    if (slot->step == 0) {
        bytes_be(out, CREATE, 4); text(out, path, size); text(out, "t", 1);
        bytes_be(out, 1, 4); bytes_be(out, 31, 4); text(out, "world", 5); text(out, "anyone", 6);
        bytes_be(out, 1, 4);
    } else {
        bytes_be(out, DELETE, 4); text(out, path, size); bytes_be(out, 0xffffffff, 4);
        given_back(slot, 0);
    }
    uint32_t length = (uint32_t)(out->size - at - 4);
    for (int i = 0; i < 4; i++) out->data[at + (size_t)i] = (uint8_t)(length >> (24 - 8 * i));
    expect(c, slot);
}

static size_t parse(Connection *c, const uint8_t *data, size_t size) {
    if (size < 4) return 0;
    size_t length = read_be(data, 4);
    if (size < 4 + length) return 0;
    if (!c->ready) { handshake_done(c); return 4 + length; }
    Slot *slot = expected(c);
    int error = (int)(int32_t)read_be(data + 16, 4);
    if (!slot) fault("an answer that nobody asked for", data, length);
    else if (slot->step == 0 && !error) { granted(slot, 0, 0); step_done(c, slot, 1); }
    else if (slot->step == 0 && error == NODE_EXISTS) { denied(slot, 0); step_done(c, slot, -1); }
    else {
        char words[40];
        if (error) fault("an error", (uint8_t *)words, (size_t)sprintf(words, "%d", error));
        step_done(c, slot, -1);
    }
    return 4 + length;
}

const Protocol zookeeper_protocol = {"zookeeper", hello, send_step, parse};
