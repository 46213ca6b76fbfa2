/* generator PROTOCOL name=value…: take and give back keys in a closed loop, one epoll thread; a JSON line at the end.

   target=PATH|HOST:PORT connections=N depth=N (slots a connection) batch=N (keys a request) keys=N prefix=TEXT
   warm_ms=N run_ms=N pids=N,N (their processor time in the window is read) sample=FILE samples=N term_ms=N fill=0|1 (take every key
   once and keep it).

   A key is held from its grant's arrival until its release is sent: after everything that came at once has been looked
   at, and in one of sixteen rounds after what comes next, so that clients do hold at the same time. A grant of a key
   that is held, and a fence that does not grow, are counted: the caller must not believe the figures then. Exit 0 when the loop came to its end. */
#define _GNU_SOURCE
#include "generator.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define HOLDS_MAX 4000000
#define ROUNDS_MIN 30 /* a window with fewer goes on, up to ten times as long: it would say nothing */

int batch = 1;
uint32_t keys = 10000;
const char *prefix = "k";
uint64_t term_ms = 10000;
static int connections = 1, depth = 1, fill = 0, samples_max = 200;
static long warm_ms = 300, run_ms = 1000;
static const char *target = "", *pids = "", *sample_path = NULL;
static const Protocol *protocol;

static uint8_t *held;
static uint64_t *fences;
static uint32_t next_key;
static uint64_t pairs, rounds, denials, doubles, fence_faults, faults, turns_held, lost_pairs;
static char first_fault[200];
static FILE *sample_file;
static uint64_t grants_seen, samples;
static int measuring, stopping, idle_slots, all_slots;
static float *latencies; static size_t latency_count, latency_room;
static uint64_t last_change_ns, longest_wait_ns, wait_sum_ns; static int last_holder = -1;

uint64_t now_ns(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1000000000ull + t.tv_nsec; }
uint64_t wall_ns(void) { struct timespec t; clock_gettime(CLOCK_REALTIME, &t); return t.tv_sec * 1000000000ull + t.tv_nsec; }
static uint64_t seed = 88172645463325252ull;
uint64_t chance(void) { seed ^= seed << 13; seed ^= seed >> 7; seed ^= seed << 17; return seed; }
int key_name(char *into, uint32_t key) { return sprintf(into, "%s%u", prefix, key); }

static void die(const char *why) { fprintf(stderr, "generator: %s: %s\n", why, strerror(errno)); exit(2); }

void bytes_add(Bytes *to, const void *data, size_t size) {
    if (to->size + size > to->room) {
        to->room = (to->size + size) * 2;
        if (!(to->data = realloc(to->data, to->room))) die("memory");
    }
    memcpy(to->data + to->size, data, size);
    to->size += size;
}
void bytes_be(Bytes *to, uint64_t value, int size) {
    uint8_t raw[8];
    for (int i = 0; i < size; i++) raw[i] = (uint8_t)(value >> (8 * (size - 1 - i)));
    bytes_add(to, raw, (size_t)size);
}
uint64_t read_be(const uint8_t *from, int size) { uint64_t v = 0; for (int i = 0; i < size; i++) v = v << 8 | from[i]; return v; }

void fault(const char *what, const uint8_t *detail, size_t size) {
    if (!faults++) {
        int at = snprintf(first_fault, sizeof first_fault, "%s: ", what);
        for (size_t i = 0; i < size && at < (int)sizeof first_fault - 1; i++)
            first_fault[at++] = detail[i] >= 32 && detail[i] < 127 && detail[i] != '"' && detail[i] != '\\' ? (char)detail[i] : '.';
        first_fault[at] = 0;
    }
}

void expect(Connection *c, Slot *slot) { c->order[c->tail] = slot; c->tail = (c->tail + 1) % (c->slot_count + 1); }
Slot *expected(Connection *c) {
    if (c->head == c->tail) return NULL;
    Slot *slot = c->order[c->head];
    c->head = (c->head + 1) % (c->slot_count + 1);
    return slot;
}

void granted(Slot *slot, int position, uint64_t fence) {
    uint32_t key = slot->key[position];
    if (held[key]++) doubles++;
    if (fence) { if (fence <= fences[key]) fence_faults++; fences[key] = fence; }
    slot->have[position] = 1;
    grants_seen++;
    if (measuring && keys == 1 && last_holder != slot->number) {
        turns_held++;
        uint64_t now = now_ns(), wait = now - slot->began_ns;
        if (wait > longest_wait_ns) longest_wait_ns = wait;
        wait_sum_ns += wait;
    }
    last_holder = slot->number;
}
void denied(Slot *slot, int position) { slot->have[position] = 0; if (measuring) denials++; }
void given_back(Slot *slot, int position) { held[slot->key[position]]--; }
void sample(Slot *slot, int position, const uint8_t *evidence, size_t size) {
    if (!sample_file || samples >= (uint64_t)samples_max || grants_seen % 37) return;
    char name[64];
    uint8_t head[8];
    int length = key_name(name, slot->key[position]);
    for (int i = 0; i < 4; i++) { head[i] = (uint8_t)(length >> (24 - 8 * i)); head[4 + i] = (uint8_t)(size >> (24 - 8 * i)); }
    fwrite(head, 1, 8, sample_file); fwrite(name, 1, (size_t)length, sample_file); fwrite(evidence, 1, size, sample_file);
    samples++;
}

static void begin_round(Connection *c, Slot *slot) {
    if (stopping || (fill && next_key >= keys)) {
        if (!slot->idle) { slot->idle = 1; idle_slots++; }
        return;
    }
    uint32_t first = fill ? next_key : (uint32_t)(chance() % keys);
    if (fill) next_key += (uint32_t)batch;
    for (int i = 0; i < batch; i++) { slot->key[i] = (first + (uint32_t)i) % keys; slot->have[i] = 0; }
    slot->step = 0;
    slot->began_ns = now_ns();
    protocol->send_step(c, slot);
}

static void go_on(Connection *c, Slot *slot, int step) { slot->step = step; protocol->send_step(c, slot); }

/* Those that hold, until their next step is due. */
static struct Holding { Connection *connection; Slot *slot; int step, longer; } *holding;
static int holding_count;

static void end_holding(void) {
    int left = 0, count = holding_count;
    for (int i = 0; i < count; i++) {
        struct Holding each = holding[i];
        if (each.longer--) holding[left++] = each;
        else go_on(each.connection, each.slot, each.step);
    }
    holding_count = left;
}

void step_done(Connection *c, Slot *slot, int next_step) {
    int holds = 0;
    for (int i = 0; i < batch; i++) holds |= slot->have[i];
    if (next_step > 0 && holds && !fill) {
        holding[holding_count++] = (struct Holding){c, slot, next_step, chance() % 16 == 0};
        return;
    }
    if (next_step >= 0 && !(fill && next_step > 0)) { go_on(c, slot, next_step); return; }
    int got = 0;
    for (int i = 0; i < batch; i++) got += slot->have[i];
    if (fill && got < batch) lost_pairs += (uint64_t)(batch - got);
    if (measuring && got) {
        pairs += (uint64_t)got;
        rounds++;
        if (latency_count == latency_room) {
            latency_room = latency_room ? latency_room * 2 : 65536;
            if (!(latencies = realloc(latencies, latency_room * sizeof *latencies))) die("memory");
        }
        latencies[latency_count++] = (float)((now_ns() - slot->began_ns) / 1000.0);
    }
    begin_round(c, slot);
}

void handshake_done(Connection *c) { c->ready = 1; for (int i = 0; i < c->slot_count; i++) begin_round(c, &c->slots[i]); }

/* Nanoseconds on a processor of all threads of the processes in `pids`. */
static uint64_t processor_ns(void) {
    uint64_t sum = 0;
    for (const char *at = pids; *at;) {
        char *end, path[400];
        long pid = strtol(at, &end, 10);
        snprintf(path, sizeof path, "/proc/%ld/task", pid);
        DIR *tasks = opendir(path);
        struct dirent *each;
        while (tasks && (each = readdir(tasks))) {
            if (each->d_name[0] == '.') continue;
            snprintf(path, sizeof path, "/proc/%ld/task/%s/schedstat", pid, each->d_name);
            FILE *file = fopen(path, "r");
            unsigned long long ns;
            if (file) { if (fscanf(file, "%llu", &ns) == 1) sum += ns; fclose(file); }
        }
        if (tasks) closedir(tasks);
        at = *end ? end + 1 : end;
    }
    return sum;
}

static int connect_to(void) {
    int fd;
    const char *colon = strrchr(target, ':');
    if (target[0] == '/') {
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        strncpy(address.sun_path, target, sizeof address.sun_path - 1);
        fd = socket(AF_UNIX, SOCK_STREAM, 0);
        if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address)) die(target);
    } else {
        struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)(colon ? atoi(colon + 1) : 0))};
        inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
        fd = socket(AF_INET, SOCK_STREAM, 0);
        int one = 1;
        if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address)) die(target);
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    }
    fcntl(fd, F_SETFL, O_NONBLOCK);
    return fd;
}

static void flush_out(Connection *c) {
    while (c->out.from < c->out.size) {
        ssize_t sent = send(c->fd, c->out.data + c->out.from, c->out.size - c->out.from, MSG_NOSIGNAL);
        if (sent < 0) { if (errno == EAGAIN) return; die("send"); }
        c->out.from += (size_t)sent;
    }
    c->out.from = c->out.size = 0;
}

static void receive(Connection *c) {
    for (;;) {
        uint8_t part[65536];
        ssize_t got = recv(c->fd, part, sizeof part, 0);
        if (got == 0) { errno = ECONNRESET; die("the server closed the connection"); }
        if (got < 0) { if (errno == EAGAIN) break; die("recv"); }
        bytes_add(&c->in, part, (size_t)got);
        if ((size_t)got < sizeof part) break;
    }
    size_t used;
    while ((used = protocol->parse(c, c->in.data + c->in.from, c->in.size - c->in.from))) c->in.from += used;
    if (c->in.from == c->in.size) c->in.from = c->in.size = 0;
    else if (c->in.from > 1 << 16) { memmove(c->in.data, c->in.data + c->in.from, c->in.size -= c->in.from); c->in.from = 0; }
}

static int by_size(const void *a, const void *b) { float x = *(const float *)a, y = *(const float *)b; return (x > y) - (x < y); }

static void option(char *text) {
    char *value = strchr(text, '=');
    if (!value) { fprintf(stderr, "generator: %s is no name=value\n", text); exit(2); }
    *value++ = 0;
    if (!strcmp(text, "target")) target = value;
    else if (!strcmp(text, "connections")) connections = atoi(value);
    else if (!strcmp(text, "depth")) depth = atoi(value);
    else if (!strcmp(text, "batch")) batch = atoi(value);
    else if (!strcmp(text, "keys")) keys = (uint32_t)strtoul(value, NULL, 10);
    else if (!strcmp(text, "prefix")) prefix = value;
    else if (!strcmp(text, "warm_ms")) warm_ms = atol(value);
    else if (!strcmp(text, "run_ms")) run_ms = atol(value);
    else if (!strcmp(text, "pids")) pids = value;
    else if (!strcmp(text, "sample")) sample_path = value;
    else if (!strcmp(text, "samples")) samples_max = atoi(value);
    else if (!strcmp(text, "fill")) fill = atoi(value);
    else if (!strcmp(text, "term_ms")) term_ms = strtoull(value, NULL, 10);
    else { fprintf(stderr, "generator: %s is no setting\n", text); exit(2); }
}

int main(int count, char **words) {
    const Protocol *known[] = {&lease_protocol, &redis_protocol, &etcd_protocol, &etcd_txn_protocol, &etcd_mutex_protocol, &zookeeper_protocol};
    for (size_t i = 0; count > 1 && i < sizeof known / sizeof *known; i++) if (!strcmp(words[1], known[i]->name)) protocol = known[i];
    if (!protocol) { fprintf(stderr, "generator: which protocol?\n"); return 2; }
    for (int i = 2; i < count; i++) option(words[i]);
    if (batch < 1 || batch > BATCH_MAX || keys < 1 || keys > HOLDS_MAX) { fprintf(stderr, "generator: batch or keys out of range\n"); return 2; }
    seed ^= now_ns() ^ ((uint64_t)getpid() << 32);
    held = calloc(keys, 1); fences = calloc(keys, sizeof *fences);
    if (sample_path) sample_file = fopen(sample_path, "wb");
    int poll = epoll_create1(0);
    Connection *all = calloc((size_t)connections, sizeof *all);
    all_slots = connections * depth;
    holding = calloc((size_t)all_slots, sizeof *holding);
    for (int i = 0; i < connections; i++) {
        Connection *c = &all[i];
        c->fd = connect_to(); c->number = i; c->slot_count = depth; c->next_stream = 1;
        c->slots = calloc((size_t)depth, sizeof *c->slots);
        c->order = calloc((size_t)depth + 1, sizeof *c->order);
        for (int j = 0; j < depth; j++) c->slots[j].number = i * depth + j;
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
        epoll_ctl(poll, EPOLL_CTL_ADD, c->fd, &event);
        protocol->hello(c);
        flush_out(c);
    }
    uint64_t start = now_ns(), opened = 0, closed = 0, spent = 0, give_up = 0;
    if (fill) { measuring = 1; opened = start; spent = processor_ns(); }
    while (idle_slots < all_slots) {
        struct epoll_event events[256];
        int ready = epoll_wait(poll, events, 256, holding_count ? 1 : 50);
        for (int i = 0; i < ready; i++) { Connection *c = events[i].data.ptr; receive(c); flush_out(c); }
        end_holding();
        for (int i = 0; i < connections; i++) if (all[i].out.size) flush_out(&all[i]);
        uint64_t now = now_ns();
        if (fill) continue;
        if (!opened && now - start >= (uint64_t)warm_ms * 1000000) { opened = now; measuring = 1; spent = processor_ns(); last_change_ns = now; }
        else if (opened && !closed && now - opened >= (uint64_t)run_ms * 1000000
                 && (rounds >= ROUNDS_MIN || now - opened >= (uint64_t)run_ms * 10000000)) {
            closed = now; measuring = 0; spent = processor_ns() - spent; stopping = 1; give_up = now + 10000000000ull;
        } else if (closed && now > give_up) { fault("slots that never came to an end", NULL, 0); break; }
    }
    if (fill) { closed = now_ns(); spent = processor_ns() - spent; }
    if (sample_file) fclose(sample_file);
    qsort(latencies, latency_count, sizeof *latencies, by_size);
    double seconds = (double)(closed - opened) / 1e9;
    printf("{\"protocol\": \"%s\", \"seconds\": %.6f, \"pairs\": %llu, \"rounds\": %llu, \"denied\": %llu, \"double_holders\": %llu,"
           " \"fence_faults\": %llu, \"faults\": %llu, \"first_fault\": \"%s\", \"samples\": %llu, \"cpu_ns\": %llu, \"short\": %llu,"
           " \"p50_us\": %.1f, \"p99_us\": %.1f, \"changes\": %llu, \"longest_wait_us\": %.1f, \"mean_wait_us\": %.1f}\n",
           protocol->name, seconds, (unsigned long long)pairs, (unsigned long long)rounds, (unsigned long long)denials,
           (unsigned long long)doubles, (unsigned long long)fence_faults, (unsigned long long)faults, first_fault,
           (unsigned long long)samples, (unsigned long long)spent, (unsigned long long)lost_pairs,
           latency_count ? latencies[latency_count / 2] : 0, latency_count ? latencies[latency_count * 99 / 100] : 0,
           (unsigned long long)turns_held, (double)longest_wait_ns / 1e3, turns_held ? (double)wait_sum_ns / (double)turns_held / 1e3 : 0);
    return 0;
}
