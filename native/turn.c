/* The plain requests of a shard's turn, the tree over its entries, and its replies: appliance/lease/fast_path.py,
 * appliance/formats/merkle.py and witness.py say the same in Python, and are what this is held equal to.
 *
 * What comes in are Python objects that a decoder has checked already, and bytes that Python has encoded. Whatever is not
 * as it is expected here (a type, a length, a range) is not plain: Python answers it.
 */
#include "core.h"

#define NAME_BYTES 16
#define STAMP_BYTES 8
#define NUMBER_MAX INT64_MAX
#define NUMBER_MIN (UINT64_C(1) << 32) /* from here on an integer takes nine bytes, as all instants of this century */
#define PIECES_MAX 24
#define HELD_MAX 32
#define LEVELS_MAX 64

/* ---- what is held of Python ---- */

/* References that one request takes, given back together. */
typedef struct {
    PyObject *held[HELD_MAX];
    int count;
} Held;

static PyObject *hold(Held *held, PyObject *object)
{
    if (object != NULL && held->count == HELD_MAX) {
        Py_CLEAR(object);
        PyErr_SetString(PyExc_SystemError, "one request holds too many references");
    } else if (object != NULL) {
        held->held[held->count++] = object;
    }
    return object;
}

static void let_go(Held *held)
{
    while (held->count)
        Py_DECREF(held->held[--held->count]);
}

/* The names of attributes, made once a process. */
enum {
    ABANDONED, ABOVE, AGE, CHAIN_HEAD, CORRELATION_ID, DEFAULTS, DOMAIN, ENDED_NS, EXPIRY_NS_MAX, FLOOR_NS, HINTS_WANTED,
    HOLDER, MAP_NUMBER, MEMORY, MESSAGES, MODE, NUMBERS, PHASE, REQUEST_ID, SESSION_ID, SETTER, TERM_NS, WATERMARK_NS,
    WATERMARK_TIME, NAMES
};
static const char *const spellings[NAMES] = {
    "abandoned", "above", "age", "chain_head", "correlation_id", "defaults", "domain", "ended_ns", "expiry_ns_max",
    "floor_ns", "hints_wanted", "holder", "map_number", "memory", "messages", "mode", "numbers", "phase", "request_id",
    "session_id", "setter", "term_ns", "watermark_ns", "watermark_time",
};
static PyObject *names[NAMES];

int core_prepare_turn(void)
{
    for (int n = 0; n < NAMES; n++)
        if (names[n] == NULL && (names[n] = PyUnicode_InternFromString(spellings[n])) == NULL)
            return -1;
    return 0;
}

static PyObject *get(Held *held, PyObject *of, int name)
{
    return hold(held, PyObject_GetAttr(of, names[name]));
}

/* Whether an attribute is None: 1 or 0, -1 with an exception. */
static int is_none(PyObject *of, int name)
{
    PyObject *value = PyObject_GetAttr(of, names[name]);
    if (value == NULL)
        return -1;
    Py_DECREF(value);
    return value == Py_None;
}

/* Reads a number from 0 to 2^63 - 1: 1, or 0 where it is none of these, without an exception. */
static int number(PyObject *object, uint64_t *value)
{
    int overflow = 0;
    long long found;
    if (!PyLong_Check(object))
        return 0;
    found = PyLong_AsLongLongAndOverflow(object, &overflow);
    if (overflow || found < 0) {
        PyErr_Clear();
        return 0;
    }
    *value = (uint64_t)found;
    return 1;
}

/* As number(), of an attribute: 1, 0 where it is none of these, -1 with an exception. */
static int number_of(PyObject *of, int name, uint64_t *value)
{
    PyObject *object = PyObject_GetAttr(of, names[name]);
    int found;
    if (object == NULL)
        return -1;
    found = number(object, value);
    Py_DECREF(object);
    return found;
}

/* Returns the bytes of an object of this size; NULL, without an exception, where it is anything else. */
static const uint8_t *sized(PyObject *object, Py_ssize_t size)
{
    return PyBytes_Check(object) && PyBytes_Size(object) == size ? (const uint8_t *)PyBytes_AsString(object) : NULL;
}

/* ---- what is put together ---- */

/* Pieces that become one string of bytes. Every piece is memory that outlives it; heads lie in the gathering itself. */
typedef struct {
    const void *data[PIECES_MAX];
    size_t sizes[PIECES_MAX];
    int count;
    uint8_t heads[64];
    size_t used;
} Pieces;

static void put(Pieces *pieces, const void *data, size_t size)
{
    pieces->data[pieces->count] = data;
    pieces->sizes[pieces->count++] = size;
}

/* Adds a bytes object, which must outlive the pieces. Returns 0, or -1 with an exception for anything else. */
static int put_bytes(Pieces *pieces, PyObject *object)
{
    char *data;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(object, &data, &size) < 0)
        return -1;
    put(pieces, data, (size_t)size);
    return 0;
}

/* Adds the head of a msgpack item of that size: `shorts` are those of one byte, `first` that of an u8 length, which an
 * array has not (0). The next two are those of u16 and u32, above which no size is (the caller sees to it). */
static void put_head(Pieces *pieces, size_t size, size_t shorts, uint8_t fix, uint8_t first, uint8_t u16)
{
    uint8_t *head = pieces->heads + pieces->used;
    size_t length;
    if (size < shorts) {
        head[0] = (uint8_t)(fix | size);
        length = 1;
    } else if (first && size < 256) {
        head[0] = first;
        head[1] = (uint8_t)size;
        length = 2;
    } else if (size < 65536) {
        head[0] = u16;
        head[1] = (uint8_t)(size >> 8);
        head[2] = (uint8_t)size;
        length = 3;
    } else {
        head[0] = (uint8_t)(u16 + 1);
        for (int n = 0; n < 4; n++)
            head[1 + n] = (uint8_t)(size >> (24 - 8 * n));
        length = 5;
    }
    pieces->used += length;
    put(pieces, head, length);
}

static void put_bytes_head(Pieces *pieces, size_t size) { put_head(pieces, size, 0, 0, 0xc4, 0xc5); }
static void put_array_head(Pieces *pieces, size_t size) { put_head(pieces, size, 16, 0x90, 0, 0xdc); }
/* An index is as an unsigned integer in its shortest form. */
static void put_index(Pieces *pieces, size_t value) { put_head(pieces, value, 128, 0, 0xcc, 0xcd); }

/* Adds a msgpack string. The object must outlive the pieces. Returns 0, or -1 with an exception. */
static int put_text(Pieces *pieces, PyObject *text)
{
    Py_ssize_t size;
    const char *data = PyUnicode_AsUTF8AndSize(text, &size);
    if (data == NULL)
        return -1;
    if ((uint64_t)size > UINT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "a text is longer than msgpack allows");
        return -1;
    }
    put_head(pieces, (size_t)size, 32, 0xa0, 0xd9, 0xda);
    put(pieces, data, (size_t)size);
    return 0;
}

/* Adds an instant in nine bytes. */
static void put_instant(Pieces *pieces, uint64_t value)
{
    uint8_t *to = pieces->heads + pieces->used;
    to[0] = 0xcf;
    core_put_u64(to + 1, value);
    pieces->used += 9;
    put(pieces, to, 9);
}

/* Returns all pieces as one bytes object; NULL with an exception. */
static PyObject *joined(const Pieces *pieces)
{
    size_t size = 0;
    PyObject *made;
    for (int n = 0; n < pieces->count; n++)
        size += pieces->sizes[n]; /* all of it is in memory already: the sum does not pass SIZE_MAX */
    made = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
    if (made != NULL) {
        char *to = PyBytes_AsString(made);
        for (int n = 0; n < pieces->count; n++) {
            memcpy(to, pieces->data[n], pieces->sizes[n]);
            to += pieces->sizes[n];
        }
    }
    return made;
}

/* ---- a turn ---- */

/* The kinds, words and ports of fast_path.py, in the order of the tuples in which they come. Borrowed. */
enum { ACQUIRE, RELINQUISH, DROP_SESSION, FREED, LEASE, EXCLUSIVE, HELD_PHASE, KINDS };
enum { GRANT, GRANT_MODE, NO_PAST, NOTHING_ELSE, ENDED, ENDING, OUTCOME, END, OVER, NIL, WORDS };
enum { OTHER, REFUSED_NEW, PAST, HINTS, CHANCE, COUNT, PORTS };
enum { ENTRIES, ANSWERS, STATES, CHANGED, HOLDERS, WAITERS, QUEUES, RECALLED, UNKNOWN, PLACES };
enum { NOW, LATEST, TERM_MAX, HIGHEST, CEILING, FENCE_MIN, SINCE, NEWEST, NUMBERS_OF_TURN };

typedef struct {
    PyObject *kinds[KINDS], *words[WORDS], *ports[PORTS], *places[PLACES];
    uint64_t numbers[NUMBERS_OF_TURN];
    PyObject *now; /* as Python has it */
    int in_range;
    PyObject *drafts;
    long leases, domains; /* how many more there are, not told yet */
} Turn;

static int unpacked(PyObject *tuple, PyObject **into, int count)
{
    if (!PyTuple_Check(tuple) || PyTuple_Size(tuple) != count) {
        PyErr_SetString(PyExc_TypeError, "the core is of another release than the Python beside it");
        return -1;
    }
    for (int n = 0; n < count; n++)
        into[n] = PyTuple_GetItem(tuple, n);
    return 0;
}

/* Tells Python what has been counted: before it is asked anything that may depend on it. */
static int tell_counts(Turn *turn)
{
    PyObject *done;
    if (!turn->leases && !turn->domains)
        return 0;
    done = PyObject_CallFunction(turn->ports[COUNT], "ll", turn->leases, turn->domains);
    turn->leases = turn->domains = 0;
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* Has Python answer what is not plain, in its place. Returns 0, or -1 with an exception. */
static int hand_over(Turn *turn, Py_ssize_t position, PyObject *request)
{
    PyObject *at, *waiter, *draft, *words[2];
    if (tell_counts(turn) < 0 || (at = PyLong_FromSsize_t(position)) == NULL)
        return -1;
    waiter = PyDict_GetItemWithError(turn->places[WAITERS], at);
    Py_DECREF(at);
    if (waiter == NULL && PyErr_Occurred())
        return -1;
    words[0] = request;
    words[1] = waiter == NULL ? Py_None : waiter;
    draft = PyObject_Vectorcall(turn->ports[OTHER], words, 2, NULL);
    return draft == NULL ? -1 : PyList_SetItem(turn->drafts, position, draft);
}

/* Writes a new state, and notes what was there if the turn has not changed it before: 0, or -1 with an exception. */
static int change(Turn *turn, PyObject *domain, PyObject *before, PyObject *after)
{
    int noted = PyDict_Contains(turn->places[CHANGED], domain);
    if (noted < 0 || (!noted && PyDict_SetItem(turn->places[CHANGED], domain, before) < 0))
        return -1;
    return PyDict_SetItem(turn->places[STATES], domain, after);
}

/* Returns the state of a domain, which Python has looked up; NULL with an exception. */
static PyObject *state_of(Turn *turn, Held *held, PyObject *domain)
{
    PyObject *state = PyDict_GetItemWithError(turn->places[STATES], domain);
    if (state == NULL && !PyErr_Occurred())
        PyErr_SetObject(PyExc_KeyError, domain);
    Py_XINCREF(state);
    return hold(held, state);
}

/* Whether a Relinquish says nothing but that a lease is over: 1 or 0, -1 with an exception. */
static int says_no_more(Held *held, PyObject *request, PyObject *defaults)
{
    PyObject *watermark, *memory, *floor;
    int found;
    if ((found = is_none(request, WATERMARK_TIME)) <= 0 || (found = is_none(request, CHAIN_HEAD)) <= 0)
        return found;
    for (int n = 0; n < 2; n++) {
        PyObject *value = get(held, request, n ? ABANDONED : MESSAGES);
        if (value == NULL || (found = PyObject_IsTrue(value)) < 0)
            return -1;
        if (found)
            return 0;
    }
    if ((watermark = get(held, request, WATERMARK_NS)) == NULL)
        return -1;
    if (watermark == Py_None)
        return 1;
    if ((memory = get(held, defaults, MEMORY)) == NULL || (floor = get(held, memory, FLOOR_NS)) == NULL)
        return -1;
    return PyObject_RichCompareBool(watermark, floor, Py_EQ);
}

/* Takes a plain lease back: entry, state and draft. 1; 0: it is not plain, and nothing was done; -1 with an exception. */
static int take_back(Turn *turn, Py_ssize_t position, PyObject *request, Held *held)
{
    PyObject *domain, *had, *name, *had_name, *defaults, *numbers, *request_id, *had_request, *made, *freed;
    const uint8_t *bytes, *had_bytes;
    const uint64_t now = turn->numbers[NOW];
    int found;
    Pieces entry = {.count = 0, .used = 0}, draft = {.count = 0, .used = 0};

    if (!turn->in_range || now < NUMBER_MIN)
        return 0;
    if ((domain = get(held, request, DOMAIN)) == NULL || (had = state_of(turn, held, domain)) == NULL)
        return -1;
    if ((PyObject *)Py_TYPE(had) != turn->kinds[LEASE])
        return 0;
    if ((name = get(held, request, CORRELATION_ID)) == NULL || (had_name = get(held, had, CORRELATION_ID)) == NULL)
        return -1;
    if ((bytes = sized(name, NAME_BYTES)) == NULL || (had_bytes = sized(had_name, NAME_BYTES)) == NULL ||
        memcmp(bytes, had_bytes, NAME_BYTES) != 0)
        return 0;
    if ((defaults = get(held, had, DEFAULTS)) == NULL)
        return -1;
    if ((found = says_no_more(held, request, defaults)) <= 0)
        return found;
    if ((found = PySequence_Contains(turn->places[RECALLED], name)) != 0)
        return found < 0 ? -1 : 0;

    if ((numbers = get(held, defaults, NUMBERS)) == NULL || (request_id = get(held, request, REQUEST_ID)) == NULL ||
        (had_request = get(held, had, REQUEST_ID)) == NULL)
        return -1;
    if (put_bytes(&entry, turn->words[ENDED]) < 0 || put_text(&entry, domain) < 0 ||
        put_bytes(&draft, turn->words[OVER]) < 0 || put_bytes(&draft, request_id) < 0 ||
        put_bytes(&draft, turn->words[OUTCOME]) < 0)
        return -1;
    for (int n = 0; n < 2; n++) {
        Pieces *both = n ? &draft : &entry;
        if (put_bytes(both, turn->words[ENDING]) < 0)
            return -1;
        put(both, bytes, NAME_BYTES);
        if (put_bytes(both, turn->words[OUTCOME]) < 0)
            return -1;
        put_instant(both, now);
        if (put_bytes(both, turn->words[END]) < 0)
            return -1;
    }
    if (put_bytes(&entry, numbers) < 0 || put_bytes(&draft, turn->words[NIL]) < 0)
        return -1;
    if ((made = hold(held, joined(&entry))) == NULL || PyList_Append(turn->places[ENTRIES], made) < 0 ||
        (made = joined(&draft)) == NULL || PyList_SetItem(turn->drafts, position, made) < 0)
        return -1;
    PyObject *fields[] = {defaults, name, turn->now, had_request};
    if ((freed = hold(held, PyObject_Vectorcall(turn->kinds[FREED], fields, 4, NULL))) == NULL ||
        change(turn, domain, had, freed) < 0)
        return -1;
    turn->leases--;
    return 1;
}

/* What a domain that can be had is left with: what stays of it, its highest fence, and what a witness says of before. */
typedef struct {
    PyObject *before, *defaults;
    uint64_t fence;
    Pieces past;
} Ground;

/* Finds it. 1; 0: the domain is not free, was not left plainly, or this request has had it; -1 with an exception. */
static int ground(Turn *turn, PyObject *request, PyObject *kept, PyObject *request_id, Held *held, Ground *found)
{
    PyObject *unknown = turn->places[UNKNOWN];
    if (kept == Py_None) {
        PyObject *refused;
        if (tell_counts(turn) < 0 ||
            (refused = hold(held, PyObject_Vectorcall(turn->ports[REFUSED_NEW], &request, 1, NULL))) == NULL)
            return -1;
        if (refused != Py_None)
            return 0;
        found->before = get(held, unknown, MEMORY);
        found->defaults = unknown;
        found->fence = 0;
        return found->before == NULL || put_bytes(&found->past, turn->words[NO_PAST]) < 0 ? -1 : 1;
    }
    if ((PyObject *)Py_TYPE(kept) == turn->kinds[FREED]) {
        PyObject *had = get(held, kept, REQUEST_ID), *name = get(held, kept, CORRELATION_ID), *set_by;
        const uint8_t *bytes;
        uint64_t ended;
        int same = had == NULL || name == NULL ? -1 : PyObject_RichCompareBool(had, request_id, Py_EQ);
        if (same != 0)
            return same < 0 ? -1 : 0;
        if ((bytes = sized(name, NAME_BYTES)) == NULL)
            return 0;
        if ((same = number_of(kept, ENDED_NS, &ended)) <= 0)
            return same;
        if ((found->defaults = get(held, kept, DEFAULTS)) == NULL ||
            (set_by = get(held, found->defaults, SETTER)) == NULL)
            return -1;
        found->before = kept;
        found->fence = core_get_u64(bytes);
        put_bytes_head(&found->past, NAME_BYTES);
        put(&found->past, bytes, NAME_BYTES);
        if (put_bytes(&found->past, turn->words[ENDING]) < 0)
            return -1;
        put(&found->past, bytes, NAME_BYTES);
        if (put_bytes(&found->past, turn->words[OUTCOME]) < 0)
            return -1;
        put_instant(&found->past, ended);
        return put_bytes(&found->past, turn->words[END]) < 0 || put_bytes(&found->past, set_by) < 0 ? -1 : 1;
    }
    PyObject *asked[] = {kept, request, unknown}, *parts[4];
    PyObject *left = hold(held, PyObject_Vectorcall(turn->ports[PAST], asked, 3, NULL));
    if (left == NULL || unpacked(left, parts, 4) < 0)
        return -1;
    if (parts[0] == Py_None || !number(parts[2], &found->fence))
        return 0;
    found->before = parts[0];
    found->defaults = parts[1];
    return put_bytes(&found->past, parts[3]) < 0 ? -1 : 1;
}

/* Whether an Acquire asks for what is plain, of a domain that nobody waits for: 1 or 0, -1 with an exception. `who`:
 * its holder as it is encoded. */
static int asks_plainly(Turn *turn, PyObject *request, PyObject *domain, Held *held, PyObject **who)
{
    PyObject *value;
    uint64_t map;
    int found;
    if ((value = get(held, request, MODE)) == NULL)
        return -1;
    if (value != turn->kinds[EXCLUSIVE])
        return 0;
    if ((value = get(held, request, PHASE)) == NULL)
        return -1;
    if (value != turn->kinds[HELD_PHASE])
        return 0;
    if ((found = is_none(request, SESSION_ID)) <= 0 || (found = is_none(request, ABOVE)) <= 0 ||
        (found = number_of(request, MAP_NUMBER, &map)) <= 0)
        return found;
    if (map < turn->numbers[SINCE] || map > turn->numbers[NEWEST])
        return 0;
    if ((value = get(held, request, HOLDER)) == NULL)
        return -1;
    if ((*who = PyDict_GetItemWithError(turn->places[HOLDERS], value)) == NULL)
        return PyErr_Occurred() ? -1 : 0;
    Py_INCREF(*who);
    hold(held, *who);
    found = PySequence_Contains(turn->places[QUEUES], domain);
    return found < 0 ? -1 : !found;
}

static uint64_t least(uint64_t one, uint64_t other) { return one < other ? one : other; }
static uint64_t most(uint64_t one, uint64_t other) { return one > other ? one : other; }

/* Grants what is plain: entry, state and draft. 1; 0: it is not plain, and nothing was done; -1 with an exception. */
static int grant(Turn *turn, Py_ssize_t position, PyObject *request, Held *held)
{
    PyObject *domain, *who = NULL, *kept, *request_id, *chance, *value, *numbers, *hints, *name, *made, *index, *lease;
    uint64_t term, until_max, fence, expiry;
    const uint64_t *numbers_of_turn = turn->numbers;
    const uint8_t *random;
    uint8_t stamp[NAME_BYTES];
    Py_ssize_t at;
    int found;
    Ground left = {.past = {.count = 0, .used = 0}};
    Pieces entry = {.count = 0, .used = 0};

    if (!turn->in_range || numbers_of_turn[NOW] < NUMBER_MIN)
        return 0;
    if ((domain = get(held, request, DOMAIN)) == NULL)
        return -1;
    if ((found = asks_plainly(turn, request, domain, held, &who)) <= 0)
        return found;
    if ((found = number_of(request, TERM_NS, &term)) <= 0 || (found = number_of(request, EXPIRY_NS_MAX, &until_max)) <= 0)
        return found;
    if ((kept = state_of(turn, held, domain)) == NULL || (request_id = get(held, request, REQUEST_ID)) == NULL)
        return -1;
    if ((found = ground(turn, request, kept, request_id, held, &left)) <= 0)
        return found;
    /* No sum passes 2^64: each part is below 2^63. */
    expiry = least(numbers_of_turn[NOW] + least(term, numbers_of_turn[TERM_MAX]),
                   least(until_max, numbers_of_turn[HIGHEST]));
    fence = most(left.fence, numbers_of_turn[FENCE_MIN]);
    if (expiry <= numbers_of_turn[LATEST] || fence >= numbers_of_turn[CEILING])
        return 0;
    fence++;

    if ((value = hold(held, PyLong_FromLong(STAMP_BYTES))) == NULL ||
        (chance = hold(held, PyObject_Vectorcall(turn->ports[CHANCE], &value, 1, NULL))) == NULL)
        return -1;
    if ((random = sized(chance, NAME_BYTES - STAMP_BYTES)) == NULL) {
        PyErr_SetString(PyExc_ValueError, "a source of randomness gave another number of bytes than was asked for");
        return -1;
    }
    core_put_u64(stamp, fence);
    memcpy(stamp + STAMP_BYTES, random, NAME_BYTES - STAMP_BYTES);
    if ((name = hold(held, PyBytes_FromStringAndSize((char *)stamp, NAME_BYTES))) == NULL ||
        (value = get(held, request, HINTS_WANTED)) == NULL || (found = PyObject_IsTrue(value)) < 0)
        return -1;
    hints = turn->words[NIL];
    if (found && (hints = hold(held, PyObject_Vectorcall(turn->ports[HINTS], &left.defaults, 1, NULL))) == NULL)
        return -1;
    if ((at = PyList_Size(turn->places[ENTRIES])) < 0 || (index = hold(held, PyLong_FromSsize_t(at))) == NULL ||
        (made = PyTuple_Pack(3, request_id, index, hints)) == NULL ||
        PyList_SetItem(turn->drafts, position, made) < 0 || PyDict_SetItem(turn->places[ANSWERS], name, index) < 0)
        return -1;

    if ((numbers = get(held, left.defaults, NUMBERS)) == NULL)
        return -1;
    if (put_bytes(&entry, turn->words[GRANT]) < 0 || put_text(&entry, domain) < 0 ||
        put_bytes(&entry, turn->words[GRANT_MODE]) < 0 || put_bytes(&entry, who) < 0)
        return -1;
    put_bytes_head(&entry, NAME_BYTES);
    put(&entry, stamp, NAME_BYTES);
    put_instant(&entry, fence);
    put_instant(&entry, expiry);
    if (put_bytes(&entry, numbers) < 0 || put_bytes(&entry, turn->words[NIL]) < 0)
        return -1;
    for (int n = 0; n < left.past.count; n++)
        put(&entry, left.past.data[n], left.past.sizes[n]);
    if (put_bytes(&entry, turn->words[NOTHING_ELSE]) < 0 || (made = hold(held, joined(&entry))) == NULL ||
        PyList_Append(turn->places[ENTRIES], made) < 0)
        return -1;

    if ((value = hold(held, PyLong_FromUnsignedLongLong(expiry))) == NULL)
        return -1;
    PyObject *fields[] = {left.defaults, left.before, get(held, request, HOLDER), name, turn->now, value,
                          get(held, request, AGE), request_id};
    if (fields[2] == NULL || fields[6] == NULL ||
        (lease = hold(held, PyObject_Vectorcall(turn->kinds[LEASE], fields, 8, NULL))) == NULL ||
        change(turn, domain, kept, lease) < 0)
        return -1;
    turn->leases++;
    turn->domains += kept == Py_None;
    return 1;
}

/* Answers the requests of one pass: those that give back, then the others. Returns 0, or -1 with an exception. */
static int pass(Turn *turn, PyObject *requests, int giving_back)
{
    Py_ssize_t count = PyTuple_Size(requests);
    for (Py_ssize_t n = 0; n < count; n++) {
        PyObject *request = PyTuple_GetItem(requests, n), *kind = (PyObject *)Py_TYPE(request);
        int done = 0;
        Held held = {.count = 0};
        if (giving_back != (kind == turn->kinds[RELINQUISH] || kind == turn->kinds[DROP_SESSION]))
            continue;
        if (kind == turn->kinds[RELINQUISH])
            done = take_back(turn, n, request, &held);
        else if (kind == turn->kinds[ACQUIRE])
            done = grant(turn, n, request, &held);
        let_go(&held);
        if (done < 0 || (done == 0 && hand_over(turn, n, request) < 0))
            return -1;
    }
    return 0;
}

/* answered(kinds, words, ports, places, numbers, requests) -> drafts: see NativeCore in timeagent/core.py. */
PyObject *core_answered(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    Turn turn = {.leases = 0};
    PyObject *numbers[NUMBERS_OF_TURN], *requests;
    (void)module;
    if (count != 6) {
        PyErr_SetString(PyExc_TypeError, "answered() takes kinds, words, ports, places, numbers and requests");
        return NULL;
    }
    if (unpacked(arguments[0], turn.kinds, KINDS) < 0 || unpacked(arguments[1], turn.words, WORDS) < 0 ||
        unpacked(arguments[2], turn.ports, PORTS) < 0 || unpacked(arguments[3], turn.places, PLACES) < 0 ||
        unpacked(arguments[4], numbers, NUMBERS_OF_TURN) < 0)
        return NULL;
    for (int n = ENTRIES; n <= WAITERS; n++) /* what the functions below do not check of dicts and lists */
        if (!(n == ENTRIES ? PyList_Check(turn.places[n]) : PyDict_Check(turn.places[n]))) {
            PyErr_SetString(PyExc_TypeError, "the first of a turn's places is a list, the next five are dicts");
            return NULL;
        }
    turn.now = numbers[NOW];
    turn.in_range = 1;
    for (int n = 0; n < NUMBERS_OF_TURN; n++)
        turn.in_range &= number(numbers[n], &turn.numbers[n]);
    if ((requests = PySequence_Tuple(arguments[5])) == NULL)
        return NULL;
    if ((turn.drafts = PyList_New(PyTuple_Size(requests))) != NULL &&
        (pass(&turn, requests, 1) < 0 || pass(&turn, requests, 0) < 0 || tell_counts(&turn) < 0))
        Py_CLEAR(turn.drafts);
    Py_DECREF(requests);
    return turn.drafts;
}

/* ---- the tree over a turn's entries ---- */

/* Returns a list with the hash of one leaf, or of two nodes of the level below, at each place; NULL with an exception. */
static PyObject *level_over(PyObject *below, Py_ssize_t width, int leaves)
{
    PyObject *level = PyList_New(width);
    Py_ssize_t last = leaves ? 0 : PyList_Size(below) - 1;
    for (Py_ssize_t n = 0; level != NULL && n < width; n++) {
        PyObject *made = NULL;
        if (!leaves && 2 * n == last) { /* an odd last node moves up unchanged */
            made = PyList_GetItem(below, last);
            Py_INCREF(made);
        } else {
            PyObject *left = PyList_GetItem(below, leaves ? n : 2 * n), *right = leaves ? NULL : PyList_GetItem(below, 2 * n + 1);
            char *one, *other = NULL;
            Py_ssize_t one_size, other_size = 0;
            if (left != NULL && (leaves || right != NULL) && PyBytes_AsStringAndSize(left, &one, &one_size) == 0 &&
                (leaves || PyBytes_AsStringAndSize(right, &other, &other_size) == 0) &&
                (made = PyBytes_FromStringAndSize(NULL, DIGEST_BYTES)) != NULL &&
                core_sha256(leaves ? "\0" : "\1", 1, one, (size_t)one_size, other, (size_t)other_size,
                            (uint8_t *)PyBytes_AsString(made)) < 0)
                Py_CLEAR(made);
        }
        if (made == NULL || PyList_SetItem(level, n, made) < 0)
            Py_CLEAR(level);
    }
    return level;
}

/* tree(leaves) -> levels: merkle.tree. */
PyObject *core_tree(PyObject *module, PyObject *leaves)
{
    PyObject *levels = PyList_New(0), *level, *list = levels == NULL ? NULL : PySequence_List(leaves);
    Py_ssize_t width = list == NULL ? 0 : PyList_Size(list);
    (void)module;
    if (list != NULL && width == 0)
        PyErr_SetString(PyExc_AssertionError, "a batch holds at least one leaf");
    level = width ? level_over(list, width, 1) : NULL;
    Py_XDECREF(list);
    while (level != NULL && PyList_Append(levels, level) == 0) {
        PyObject *below = level;
        if (width == 1) {
            Py_DECREF(level);
            return levels;
        }
        width = (width + 1) / 2;
        level = level_over(below, width, 0);
        Py_DECREF(below);
    }
    Py_XDECREF(level);
    Py_XDECREF(levels);
    return NULL;
}

/* ---- replies ---- */

/* Returns the encoded reply of a grant; NULL with an exception. `granted`: its words; the rest as in witness.py. */
static PyObject *granted_reply(PyObject *draft, PyObject *granted, PyObject *witness, PyObject *entries, PyObject *levels,
                               PyObject *rest)
{
    PyObject *parts[3], *entry;
    Pieces pieces = {.count = 0, .used = 0}, inner = {.count = 0, .used = 0};
    const uint8_t *siblings[LEVELS_MAX];
    uint64_t index;
    size_t size = 0, count = 0;
    Py_ssize_t height = PyList_Size(levels);
    PyObject *made;
    uint8_t *to;

    if (unpacked(draft, parts, 3) < 0)
        return NULL;
    if (!number(parts[1], &index) || height < 1 || height > LEVELS_MAX || index >= (uint64_t)PyTuple_Size(entries)) {
        PyErr_SetString(PyExc_IndexError, "a grant names no entry of its turn");
        return NULL;
    }
    entry = PyTuple_GetItem(entries, (Py_ssize_t)index);
    for (Py_ssize_t n = 0, at = (Py_ssize_t)index; n + 1 < height; n++, at >>= 1) {
        PyObject *level = PyList_GetItem(levels, n);
        Py_ssize_t width = PyList_Check(level) ? PyList_Size(level) : 0;
        if (at >= width || ((at ^ 1) < width &&
                            (siblings[count++] = sized(PyList_GetItem(level, at ^ 1), DIGEST_BYTES)) == NULL)) {
            PyErr_SetString(PyExc_TypeError, "a level of a tree is no list of digests, or too short");
            return NULL;
        }
    }
    /* What stands inside comes first: its length stands before it. */
    if (put_bytes(&inner, witness) < 0 || PyBytes_Size(entry) < 0)
        return NULL;
    put_bytes_head(&inner, (size_t)PyBytes_Size(entry));
    if (put_bytes(&inner, entry) < 0)
        return NULL;
    put_index(&inner, (size_t)index);
    put_array_head(&inner, count);
    for (int n = 0; n < inner.count; n++)
        size += inner.sizes[n];
    size += count * (2 + DIGEST_BYTES) + (size_t)PyBytes_Size(rest);
    if (put_bytes(&pieces, granted) < 0 || put_bytes(&pieces, parts[0]) < 0)
        return NULL;
    put_bytes_head(&pieces, size);
    for (int n = 0; n < inner.count; n++)
        put(&pieces, inner.data[n], inner.sizes[n]);
    put(&pieces, NULL, 0); /* here comes the path */
    int gap = pieces.count - 1;
    if (put_bytes(&pieces, rest) < 0 || put_bytes(&pieces, parts[2]) < 0)
        return NULL;
    size = count * (2 + DIGEST_BYTES);
    for (int n = 0; n < pieces.count; n++)
        size += pieces.sizes[n];
    if ((made = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size)) == NULL)
        return NULL;
    to = (uint8_t *)PyBytes_AsString(made);
    for (int n = 0; n < pieces.count; n++) {
        if (n == gap)
            for (size_t each = 0; each < count; each++, to += 2 + DIGEST_BYTES) {
                to[0] = 0xc4;
                to[1] = DIGEST_BYTES;
                memcpy(to + 2, siblings[each], DIGEST_BYTES);
            }
        else {
            memcpy(to, pieces.data[n], pieces.sizes[n]);
            to += pieces.sizes[n];
        }
    }
    return made;
}

/* replies(drafts, granted, witness, entries, levels, rest, finish) -> replies: see NativeCore. */
PyObject *core_replies(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    PyObject *drafts, *found;
    (void)module;
    if (count != 7 || !PyList_Check(arguments[0]) || !PyTuple_Check(arguments[3]) || !PyList_Check(arguments[4]) ||
        !PyBytes_Check(arguments[5])) {
        PyErr_SetString(PyExc_TypeError, "replies() takes drafts, two words, entries, levels, the rest, and who finishes");
        return NULL;
    }
    drafts = arguments[0];
    if ((found = PyList_New(PyList_Size(drafts))) == NULL)
        return NULL;
    for (Py_ssize_t n = 0; n < PyList_Size(found); n++) {
        PyObject *draft = PyList_GetItem(drafts, n), *reply; /* borrowed; NULL where the list has become shorter */
        if (draft == NULL) {
            reply = NULL;
        } else if (PyTuple_Check(draft)) {
            reply = granted_reply(draft, arguments[1], arguments[2], arguments[3], arguments[4], arguments[5]);
        } else if (draft == Py_None || PyBytes_Check(draft)) {
            reply = draft;
            Py_INCREF(reply);
        } else {
            reply = PyObject_Vectorcall(arguments[6], &draft, 1, NULL);
        }
        if (reply == NULL || PyList_SetItem(found, n, reply) < 0) {
            Py_DECREF(found);
            return NULL;
        }
    }
    return found;
}
