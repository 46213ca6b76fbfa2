/* etcd by gRPC over plain HTTP/2: only what its KV, Lease and Watch calls need. Response headers are never looked at.

   etcd        LeaseGrant, Txn (create revision 0 -> put with that lease), LeaseRevoke, for every pair
   etcd_txn    one lease for each slot; Txn and DeleteRange for every pair
   etcd_mutex  the recipe of etcd's own clientv3/concurrency.Mutex: put under a prefix, wait for the deletion of the key
               that was created just before, delete */
#include "generator.h"
#include <stdio.h>
#include <stdlib.h>

enum { DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH, PING, GOAWAY, WINDOW_UPDATE };
enum { GRANT, TXN, RELEASE, BEFORE, WATCH };
#define END_STREAM 1
#define END_HEADERS 4
#define ACK 1

static void frame(Bytes *out, unsigned type, unsigned flags, uint32_t stream, const Bytes *body) {
    bytes_be(out, body ? body->size : 0, 3);
    bytes_u8(out, type); bytes_u8(out, flags);
    bytes_be(out, stream, 4);
    if (body) bytes_add(out, body->data, body->size);
}

/* Protocol buffers: fields of varints and of bytes. */
static void varint(Bytes *to, uint64_t value) { for (; value > 127; value >>= 7) bytes_u8(to, (unsigned)(value & 127) | 128); bytes_u8(to, (unsigned)value); }
static void number(Bytes *to, int field, uint64_t value) { varint(to, (uint64_t)field << 3); varint(to, value); }
static void blob(Bytes *to, int field, const void *value, size_t size) { varint(to, (uint64_t)field << 3 | 2); varint(to, size); bytes_add(to, value, size); }
static void message(Bytes *to, int field, Bytes *inner) { blob(to, field, inner->data, inner->size); inner->size = 0; }

typedef struct { const uint8_t *at, *end; } Reader;
typedef struct { int field; uint64_t number; Reader bytes; } Field;
static uint64_t read_varint(Reader *r) {
    uint64_t value = 0;
    for (int shift = 0; r->at < r->end && shift < 64; shift += 7) {
        uint8_t byte = *r->at++;
        value |= (uint64_t)(byte & 127) << shift;
        if (byte < 128) break;
    }
    return value;
}
static int next_field(Reader *r, Field *f) {
    if (r->at >= r->end) return 0;
    uint64_t tag = read_varint(r);
    f->field = (int)(tag >> 3); f->number = 0; f->bytes = (Reader){r->at, r->at};
    if ((tag & 7) == 2) { uint64_t size = read_varint(r); f->bytes = (Reader){r->at, r->at + size}; r->at += size; }
    else if ((tag & 7) == 0) f->number = read_varint(r);
    else { fault("a protocol buffer", r->at, 4); return 0; }
    return 1;
}
/* The last value of a field, or nothing. */
static Field find(Reader r, int field) {
    Field each, found = {0};
    while (next_field(&r, &each)) if (each.field == field) found = each;
    return found;
}
static uint64_t revision(Reader reply) { return find(find(reply, 1).bytes, 3).number; }

static void hello(Connection *c) {
    static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    Bytes body = {0};
    bytes_add(&c->out, preface, sizeof preface - 1);
    bytes_be(&body, 4, 2); bytes_be(&body, 0x7fffffff, 4); /* INITIAL_WINDOW_SIZE */
    frame(&c->out, SETTINGS, 0, 0, &body);
    body.size = 0;
    bytes_be(&body, 0x7fff0000, 4);
    frame(&c->out, WINDOW_UPDATE, 0, 0, &body);
    free(body.data);
    handshake_done(c);
}

/* HPACK without a table: indexed names where HTTP/2 has them, everything else spelled out. */
static void header(Bytes *to, unsigned index, const char *name, const char *value) {
    if (index < 15) bytes_u8(to, index); else { bytes_u8(to, 15); bytes_u8(to, index - 15); }
    if (!index) { bytes_u8(to, (unsigned)strlen(name)); bytes_add(to, name, strlen(name)); }
    bytes_u8(to, (unsigned)strlen(value)); bytes_add(to, value, strlen(value));
}
static uint32_t open_stream(Connection *c, const char *path) {
    Bytes head = {0};
    uint32_t stream = c->next_stream;
    c->next_stream += 2;
    bytes_u8(&head, 0x83); bytes_u8(&head, 0x86); /* :method POST, :scheme http */
    header(&head, 4, "", path); header(&head, 1, "", "localhost");
    header(&head, 31, "", "application/grpc"); header(&head, 0, "te", "trailers");
    frame(&c->out, HEADERS, END_HEADERS, stream, &head);
    free(head.data);
    return stream;
}
static void send_message(Connection *c, uint32_t stream, Bytes *body, int last) {
    Bytes data = {0};
    bytes_u8(&data, 0); bytes_be(&data, body->size, 4);
    bytes_add(&data, body->data ? body->data : (uint8_t *)"", body->size);
    frame(&c->out, DATA, last ? END_STREAM : 0, stream, &data);
    free(data.data);
    body->size = 0;
}
static void call(Connection *c, Slot *slot, const char *path, Bytes *body) {
    slot->stream = open_stream(c, path);
    slot->waiting = 0;
    send_message(c, slot->stream, body, 1);
}

static int is_mutex;
static int own_key(char *name, Slot *slot) { return is_mutex ? sprintf(name, "%s/%llx", prefix, (unsigned long long)slot->lease) : key_name(name, slot->key[0]); }
static void range_of_prefix(Bytes *to, int order, uint64_t created_max) {
    char first[64], behind[64];
    int size = sprintf(first, "%s/", prefix);
    sprintf(behind, "%s0", prefix); /* '0' follows '/' */
    blob(to, 1, first, (size_t)size); blob(to, 2, behind, (size_t)size);
    number(to, 3, 1); number(to, 5, (uint64_t)order); number(to, 6, 2);
    if (created_max) number(to, 13, created_max);
}

static void send_txn(Connection *c, Slot *slot) {
    char name[64];
    size_t size = (size_t)own_key(name, slot);
    Bytes body = {0}, inner = {0}, op = {0};
    number(&inner, 2, 1); blob(&inner, 3, name, size); number(&inner, 5, 0); /* create revision equals 0 */
    message(&body, 1, &inner);
    blob(&inner, 1, name, size); blob(&inner, 2, "t", 1); number(&inner, 3, (uint64_t)slot->lease);
    message(&op, 2, &inner); message(&body, 2, &op);
    if (is_mutex) {
        range_of_prefix(&inner, 1, 0);
        message(&op, 1, &inner); message(&body, 2, &op);
    }
    call(c, slot, "/etcdserverpb.KV/Txn", &body);
    free(body.data); free(inner.data); free(op.data);
}

static int keeps_lease;
static void send_step(Connection *c, Slot *slot) {
    Bytes body = {0}, inner = {0};
    char name[64];
    if (slot->step == GRANT && keeps_lease && slot->lease) slot->step = TXN;
    switch (slot->step) {
    case GRANT: number(&body, 1, keeps_lease ? 600 : 30); call(c, slot, "/etcdserverpb.Lease/LeaseGrant", &body); break;
    case TXN: send_txn(c, slot); break;
    case RELEASE:
        if (slot->have[0]) given_back(slot, 0);
        if (keeps_lease) { blob(&body, 1, name, (size_t)own_key(name, slot)); call(c, slot, "/etcdserverpb.KV/DeleteRange", &body); }
        else { number(&body, 1, (uint64_t)slot->lease); call(c, slot, "/etcdserverpb.Lease/LeaseRevoke", &body); }
        break;
    case BEFORE: range_of_prefix(&body, 2, (uint64_t)slot->revision - 1); call(c, slot, "/etcdserverpb.KV/Range", &body); break;
    default: break;
    }
    free(body.data); free(inner.data);
}

static void watch_key(Connection *c, Slot *slot, Reader key, uint64_t from) {
    Bytes body = {0}, inner = {0};
    if (!slot->watch) slot->watch = open_stream(c, "/etcdserverpb.Watch/Watch");
    slot->awaited = -1;
    blob(&inner, 1, key.at, (size_t)(key.end - key.at)); number(&inner, 3, from);
    message(&body, 1, &inner);
    send_message(c, slot->watch, &body, 0);
    slot->step = WATCH;
    free(body.data); free(inner.data);
}
static void take_watch(Connection *c, Slot *slot, Reader reply) {
    uint64_t id = find(reply, 2).number;
    Reader rest = reply;
    Field each;
    int deleted = 0;
    while (next_field(&rest, &each)) if (each.field == 11 && find(each.bytes, 1).number) deleted = 1;
    if (find(reply, 3).number) slot->awaited = (int64_t)id;
    if (find(reply, 4).number && (int64_t)id == slot->awaited) fault("a watch was cancelled", (uint8_t *)"", 0);
    if (slot->step != WATCH || (int64_t)id != slot->awaited || !deleted) return;
    Bytes body = {0}, inner = {0};
    number(&inner, 1, id);
    message(&body, 2, &inner); /* cancel it */
    send_message(c, slot->watch, &body, 0);
    free(body.data); free(inner.data);
    slot->awaited = -1;
    step_done(c, slot, BEFORE);
}

static void take_txn(Connection *c, Slot *slot, Reader reply) {
    if (!find(reply, 2).number) {
        if (is_mutex) fault("a key of a session that exists already", reply.at, 0);
        denied(slot, 0);
        step_done(c, slot, keeps_lease ? -1 : RELEASE);
        return;
    }
    slot->revision = (int64_t)revision(reply);
    Reader owner = find(find(find(reply, 3).bytes, 1).bytes, 2).bytes; /* the last response: its first key */
    if (!is_mutex || find(owner, 2).number == (uint64_t)slot->revision) { granted(slot, 0, (uint64_t)slot->revision); step_done(c, slot, RELEASE); }
    else step_done(c, slot, BEFORE);
}
static void take_reply(Connection *c, Slot *slot, Reader reply) {
    switch (slot->step) {
    case GRANT: slot->lease = (int64_t)find(reply, 2).number; step_done(c, slot, TXN); break;
    case TXN: take_txn(c, slot, reply); break;
    case BEFORE: {
        Reader before = find(reply, 2).bytes;
        if (before.at == before.end) { granted(slot, 0, (uint64_t)slot->revision); step_done(c, slot, RELEASE); }
        else watch_key(c, slot, find(before, 1).bytes, revision(reply));
        break;
    }
    case RELEASE: if (!keeps_lease) slot->lease = 0; step_done(c, slot, -1); break;
    default: break;
    }
}

static size_t parse(Connection *c, const uint8_t *data, size_t size) {
    if (size < 9) return 0;
    size_t length = read_be(data, 3);
    if (size < 9 + length) return 0;
    unsigned type = data[3], flags = data[4];
    uint32_t stream = (uint32_t)read_be(data + 5, 4);
    if (type == SETTINGS && !(flags & ACK)) frame(&c->out, SETTINGS, ACK, 0, NULL);
    else if (type == PING && !(flags & ACK)) { Bytes body = {(uint8_t *)data + 9, length, length, 0}; frame(&c->out, PING, ACK, 0, &body); }
    else if (type == GOAWAY || type == RST_STREAM) fault("the server ended it", data, length);
    Slot *slot = NULL;
    for (int i = 0; i < c->slot_count; i++) if (stream && (c->slots[i].stream == stream || c->slots[i].watch == stream)) slot = &c->slots[i];
    if (!slot) return 9 + length;
    if (type == DATA) {
        const uint8_t *at = data + 9, *end = at + length;
        while (end - at >= 5) {
            Reader reply = {at + 5, at + 5 + read_be(at + 1, 4)};
            if (reply.end > end) { fault("a message in several frames", at, 5); break; }
            at = reply.end;
            if (slot->watch == stream) take_watch(c, slot, reply);
            else slot->waiting = 1, take_reply(c, slot, reply);
        }
    } else if (type == HEADERS && (flags & END_STREAM) && slot->stream == stream && !slot->waiting) fault("a call without a reply", data + 9, length);
    if (type == HEADERS && (flags & END_STREAM)) slot->waiting = 0;
    return 9 + length;
}

static void hello_pair(Connection *c) { hello(c); }
static void hello_txn(Connection *c) { keeps_lease = 1; hello(c); }
static void hello_mutex(Connection *c) { keeps_lease = is_mutex = 1; hello(c); }

const Protocol etcd_protocol = {"etcd", hello_pair, send_step, parse};
const Protocol etcd_txn_protocol = {"etcd_txn", hello_txn, send_step, parse};
const Protocol etcd_mutex_protocol = {"etcd_mutex", hello_mutex, send_step, parse};
