/* Our own wire (docs/protocol/lease.md): frames of a u32 length and an array of requests or replies in msgpack. */
#include "generator.h"
#include <stdlib.h>

#define TERM_NS (term_ms * 1000000ull)

static void text(Bytes *to, const char *value, size_t size) {
    if (size < 32) bytes_u8(to, 0xa0 | (unsigned)size);
    else { bytes_u8(to, 0xd9); bytes_u8(to, (unsigned)size); }
    bytes_add(to, value, size);
}
static void word(Bytes *to, const char *value) { text(to, value, strlen(value)); }
static void binary(Bytes *to, const uint8_t *value, unsigned size) { bytes_u8(to, 0xc4); bytes_u8(to, size); bytes_add(to, value, size); }
static void number(Bytes *to, uint64_t value) {
    if (value < 128) bytes_u8(to, (unsigned)value);
    else { bytes_u8(to, 0xcf); bytes_be(to, value, 8); }
}

static void hello(Connection *c) { handshake_done(c); }

static void send_step(Connection *c, Slot *slot) {
    Bytes *out = &c->out;
    uint8_t id[16], zeros[16] = {0};
    char name[64];
    int count = 0;
    for (int i = 0; i < batch; i++) count += slot->step == 0 || slot->have[i];
    if (!count) { step_done(c, slot, -1); return; }
    size_t at = out->size;
    bytes_be(out, 0, 4);
    bytes_u8(out, 0xdc); bytes_be(out, (uint64_t)count, 2);
    uint64_t now = wall_ns();
    for (int i = 0; i < batch; i++) {
        if (slot->step == 1 && !slot->have[i]) continue;
        for (int half = 0; half < 2; half++) { uint64_t r = chance(); memcpy(id + 8 * half, &r, 8); }
        int size = key_name(name, slot->key[i]);
        if (slot->step == 0) {
            bytes_u8(out, 0xdc); bytes_be(out, 12, 2);
            word(out, "acquire"); binary(out, id, 16); number(out, 1); text(out, name, (size_t)size); word(out, "X"); word(out, "held");
            bytes_u8(out, 0x95); word(out, "node-b"); number(out, 7); binary(out, zeros, 16); binary(out, zeros, 8); word(out, "");
            bytes_u8(out, 0x92); number(out, now); binary(out, id, 16);
            number(out, TERM_NS); number(out, now + 2 * TERM_NS); number(out, 0); number(out, 0);
        } else {
            bytes_u8(out, 0x98);
            word(out, "relinquish"); binary(out, id, 16); text(out, name, (size_t)size); binary(out, slot->id[i], 16);
            bytes_u8(out, 0xc0); bytes_u8(out, 0xc0); number(out, 0); bytes_u8(out, 0xc0);
            given_back(slot, i);
        }
    }
    uint32_t length = (uint32_t)(out->size - at - 4);
    for (int i = 0; i < 4; i++) out->data[at + (size_t)i] = (uint8_t)(length >> (24 - 8 * i));
    expect(c, slot);
}

/* A reader of msgpack: as much as replies and witnesses need. */
typedef struct { const uint8_t *at, *end; } Reader;
static uint64_t take(Reader *r, int size) { uint64_t v = read_be(r->at, size); r->at += size; return v; }
static size_t array(Reader *r) {
    uint8_t head = (uint8_t)take(r, 1);
    if ((head & 0xf0) == 0x90) return head & 15;
    if (head == 0xdc) return take(r, 2);
    if (head == 0xdd) return take(r, 4);
    fault("an array was expected", r->at - 1, 1); return 0;
}
static const uint8_t *string(Reader *r, size_t *size) {
    uint8_t head = (uint8_t)take(r, 1);
    if ((head & 0xe0) == 0xa0) *size = head & 31;
    else if (head == 0xd9 || head == 0xc4) *size = take(r, 1);
    else if (head == 0xda || head == 0xc5) *size = take(r, 2);
    else if (head == 0xdb || head == 0xc6) *size = take(r, 4);
    else { fault("a string was expected", r->at - 1, 1); *size = 0; }
    const uint8_t *found = r->at;
    r->at += *size;
    return found;
}
static uint64_t integer(Reader *r) {
    uint8_t head = (uint8_t)take(r, 1);
    return head < 128 ? head : head == 0xcc ? take(r, 1) : head == 0xcd ? take(r, 2) : head == 0xce ? take(r, 4) : take(r, 8);
}
static void skip(Reader *r) {
    uint8_t head = *r->at;
    size_t size;
    if ((head & 0xf0) == 0x90 || head == 0xdc || head == 0xdd) { for (size_t n = array(r); n; n--) skip(r); }
    else if ((head & 0xe0) == 0xa0 || (head >= 0xc4 && head <= 0xc6) || (head >= 0xd9 && head <= 0xdb)) string(r, &size);
    else if (head == 0xc0 || head == 0xc2 || head == 0xc3) r->at++;
    else integer(r);
}

static void take_grant(Slot *slot, int i, Reader *reply) {
    size_t size, whole;
    skip(reply);
    const uint8_t *raw = string(reply, &whole);
    Reader witness = {raw, raw + whole};
    array(&witness);
    const uint8_t *entry = string(&witness, &size);
    Reader e = {entry, entry + size};
    array(&e);
    for (int field = 0; field < 6; field++) skip(&e); /* tag, kind, domain, mode, phase, holder */
    const uint8_t *id = string(&e, &size);
    if (size != 16) { fault("a correlation id", id, size); return; }
    memcpy(slot->id[i], id, 16);
    granted(slot, i, integer(&e));
    sample(slot, i, raw, whole);
}

static size_t parse(Connection *c, const uint8_t *data, size_t size) {
    if (size < 4) return 0;
    size_t length = read_be(data, 4);
    if (size < 4 + length) return 0;
    Reader r = {data + 4, data + 4 + length};
    Slot *slot = expected(c);
    if (!slot) { fault("an answer that nobody asked for", data, 40 < size ? 40 : size); return 4 + length; }
    size_t replies = array(&r);
    int i = 0, got = 0;
    for (size_t n = 0; n < replies; n++, i++) {
        while (slot->step == 1 && i < batch && !slot->have[i]) i++;
        const uint8_t *whole = r.at;
        Reader reply = r;
        skip(&r);
        array(&reply);
        size_t tag_size;
        const uint8_t *tag = string(&reply, &tag_size);
        if (i >= batch) fault("too many replies", whole, 20);
        else if (slot->step == 0 && tag_size == 7 && !memcmp(tag, "granted", 7)) { take_grant(slot, i, &reply); got++; }
        else if (slot->step == 0 && tag_size == 6 && !memcmp(tag, "denied", 6)) denied(slot, i);
        else if (slot->step == 1 && tag_size == 4 && !memcmp(tag, "over", 4)) {
            size_t outcome_size;
            skip(&reply);
            const uint8_t *outcome = string(&reply, &outcome_size);
            if (outcome_size != 12 || memcmp(outcome, "relinquished", 12)) fault("a release", outcome, outcome_size);
        } else fault("a reply", whole, (size_t)(r.at - whole));
    }
    step_done(c, slot, slot->step == 0 && got ? 1 : -1);
    return 4 + length;
}

const Protocol lease_protocol = {"lease", hello, send_step, parse};
