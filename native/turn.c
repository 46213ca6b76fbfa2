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

/* References that one request takes, given back together. failed: one of them could not be had, with an exception; what
 * is asked for from then on is NULL too, so that it is enough to look before anything is done. */
typedef struct {
    PyObject *held[HELD_MAX];
    int count, failed;
} Held;

static PyObject *hold(Held *held, PyObject *object)
{
    if (object != NULL && held->count == HELD_MAX) {
        Py_CLEAR(object);
        PyErr_SetString(PyExc_SystemError, "one request holds too many references");
    }
    if (object != NULL)
        held->held[held->count++] = object;
    else
        held->failed = 1;
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

/* Returns an attribute; NULL, then the request has failed. */
static PyObject *get(Held *held, PyObject *of, int name)
{
    return held->failed ? NULL : hold(held, PyObject_GetAttr(of, names[name]));
}

/* Reads a number from 0 to 2^63 - 1: 1, or 0 where it is none of these, or NULL, without an exception of its own. */
static int number(PyObject *object, uint64_t *value)
{
    int overflow = 0;
    long long found;
    if (object == NULL || !PyLong_Check(object))
        return 0;
    found = PyLong_AsLongLongAndOverflow(object, &overflow);
    if (overflow || found < 0) {
        PyErr_Clear();
        return 0;
    }
    *value = (uint64_t)found;
    return 1;
}

/* Returns the bytes of an object of this size; NULL, without an exception, where it is anything else. */
static const uint8_t *sized(PyObject *object, Py_ssize_t size)
{
    return PyBytes_Check(object) && PyBytes_Size(object) == size ? (const uint8_t *)PyBytes_AsString(object) : NULL;
}

/* ---- what is put together ---- */

/* Pieces that become one string of bytes. Every piece is memory that outlives it; heads lie in the gathering itself.
 * failed: something was no piece, with an exception; then nothing is made of them. */
typedef struct {
    const void *data[PIECES_MAX];
    size_t sizes[PIECES_MAX];
    int count, failed;
    uint8_t heads[64];
    size_t used;
} Pieces;

static void put(Pieces *pieces, const void *data, size_t size)
{
    pieces->data[pieces->count] = data;
    pieces->sizes[pieces->count++] = size;
}

static void put_all(Pieces *pieces, const Pieces *others)
{
    for (int n = 0; n < others->count; n++)
        put(pieces, others->data[n], others->sizes[n]);
    pieces->failed |= others->failed;
}

/* Adds a bytes object, which must outlive the pieces. */
static void put_bytes(Pieces *pieces, PyObject *object)
{
    char *data;
    Py_ssize_t size;
    if (pieces->failed || PyBytes_AsStringAndSize(object, &data, &size) < 0)
        pieces->failed = 1;
    else
        put(pieces, data, (size_t)size);
}

/* Adds the head of a msgpack item of that size: `shorts` are those of one byte, `first` that of an u8 length, which an
 * array has not (0). The next two are those of u16 and u32, above which no size is (the caller sees to it). */
static void put_head(Pieces *pieces, size_t size, size_t shorts, uint8_t fix, uint8_t first, uint8_t u16)
{
    uint8_t *head = pieces->heads + pieces->used;
    size_t more = size < shorts ? 0 : first && size < 256 ? 1 : size < 65536 ? 2 : 4;
    head[0] = more == 0 ? (uint8_t)(fix | size) : more == 1 ? first : more == 2 ? u16 : (uint8_t)(u16 + 1);
    for (size_t n = more; n; n--, size >>= 8)
        head[n] = (uint8_t)size;
    pieces->used += 1 + more;
    put(pieces, head, 1 + more);
}

static void put_bytes_head(Pieces *pieces, size_t size) { put_head(pieces, size, 0, 0, 0xc4, 0xc5); }
static void put_array_head(Pieces *pieces, size_t size) { put_head(pieces, size, 16, 0x90, 0, 0xdc); }
/* An index is as an unsigned integer in its shortest form. */
static void put_index(Pieces *pieces, size_t value) { put_head(pieces, value, 128, 0, 0xcc, 0xcd); }

/* Adds a msgpack string. The object must outlive the pieces. */
static void put_text(Pieces *pieces, PyObject *text)
{
    Py_ssize_t size;
    const char *data = pieces->failed ? NULL : PyUnicode_AsUTF8AndSize(text, &size);
    if (data != NULL && (uint64_t)size > UINT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "a text is longer than msgpack allows");
        data = NULL;
    }
    pieces->failed |= data == NULL;
    if (data != NULL) {
        put_head(pieces, (size_t)size, 32, 0xa0, 0xd9, 0xda);
        put(pieces, data, (size_t)size);
    }
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

/* How long all pieces are: all of it is in memory already, so the sum does not pass SIZE_MAX. */
static size_t size_of(const Pieces *pieces)
{
    size_t size = 0;
    for (int n = 0; n < pieces->count; n++)
        size += pieces->sizes[n];
    return size;
}

/* Returns all pieces as one bytes object; NULL with an exception. */
static PyObject *joined(const Pieces *pieces)
{
    PyObject *made = pieces->failed ? NULL : PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size_of(pieces));
    char *to = made == NULL ? NULL : PyBytes_AsString(made);
    for (int n = 0; made != NULL && n < pieces->count; to += pieces->sizes[n++])
        memcpy(to, pieces->data[n], pieces->sizes[n]);
    return made;
}

/* ---- a turn ---- */

/* The kinds, words and ports of fast_path.py, in the order of the tuples in which they come. Borrowed. */
enum { ACQUIRE, RELINQUISH, DROP_SESSION, FREED, LEASE, EXCLUSIVE, HELD_PHASE, KINDS };
enum { GRANT, GRANT_MODE, NO_PAST, NOTHING_ELSE, ENDED, ENDING, OUTCOME, END, OVER, NIL, WORDS };
enum { OTHER, REFUSED_NEW, PAST, HINTS, CHANCE, COUNT, RECALL_OVER, PORTS };
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

/* Returns the state of a domain, which Python has looked up; NULL, then the request has failed. */
static PyObject *state_of(Turn *turn, Held *held, PyObject *domain)
{
    PyObject *state;
    if (held->failed)
        return NULL;
    state = PyDict_GetItemWithError(turn->places[STATES], domain);
    if (state == NULL && !PyErr_Occurred())
        PyErr_SetObject(PyExc_KeyError, domain);
    Py_XINCREF(state);
    return hold(held, state);
}

/* Adds the end of a plain lease, as entries and replies tell of it. */
static void put_ending(const Turn *turn, Pieces *pieces, const uint8_t *name, uint64_t ended)
{
    put_bytes(pieces, turn->words[ENDING]);
    put(pieces, name, NAME_BYTES);
    put_bytes(pieces, turn->words[OUTCOME]);
    put_instant(pieces, ended);
    put_bytes(pieces, turn->words[END]);
}

/* Whether a Relinquish says nothing but that a lease is over: 1 or 0, -1 with an exception. */
static int says_no_more(Held *held, PyObject *request, PyObject *defaults)
{
    static const int more[] = {WATERMARK_TIME, CHAIN_HEAD, MESSAGES, ABANDONED};
    PyObject *watermark, *floor;
    for (int n = 0; n < 4; n++) {
        PyObject *value = get(held, request, more[n]);
        int said = value == NULL ? -1 : n < 2 ? value != Py_None : PyObject_IsTrue(value);
        if (said)
            return said < 0 ? -1 : 0;
    }
    if ((watermark = get(held, request, WATERMARK_NS)) == Py_None)
        return 1;
    floor = get(held, get(held, defaults, MEMORY), FLOOR_NS);
    return floor == NULL ? -1 : PyObject_RichCompareBool(watermark, floor, Py_EQ);
}

/* Takes a plain lease back: entry, state and draft. 1; 0: it is not plain, and nothing was done; -1 with an exception. */
static int take_back(Turn *turn, Py_ssize_t position, PyObject *request, Held *held)
{
    PyObject *domain, *had, *name, *defaults, *numbers, *request_id, *had_request, *made, *freed;
    const uint8_t *bytes, *had_bytes;
    const uint64_t now = turn->numbers[NOW];
    int found;
    Pieces entry = {.count = 0}, draft = {.count = 0};

    if (!turn->in_range || now < NUMBER_MIN)
        return 0;
    domain = get(held, request, DOMAIN);
    had = state_of(turn, held, domain);
    if (held->failed)
        return -1;
    if ((PyObject *)Py_TYPE(had) != turn->kinds[LEASE])
        return 0;
    name = get(held, request, CORRELATION_ID);
    made = get(held, had, CORRELATION_ID);
    defaults = get(held, had, DEFAULTS);
    if (held->failed)
        return -1;
    if ((bytes = sized(name, NAME_BYTES)) == NULL || (had_bytes = sized(made, NAME_BYTES)) == NULL ||
        memcmp(bytes, had_bytes, NAME_BYTES) != 0)
        return 0;
    if ((found = says_no_more(held, request, defaults)) <= 0)
        return found;

    numbers = get(held, defaults, NUMBERS);
    request_id = get(held, request, REQUEST_ID);
    had_request = get(held, had, REQUEST_ID);
    if (held->failed)
        return -1;
    put_bytes(&entry, turn->words[ENDED]);
    put_text(&entry, domain);
    put_ending(turn, &entry, bytes, now);
    put_bytes(&entry, numbers);
    if ((made = hold(held, joined(&entry))) == NULL || PyList_Append(turn->places[ENTRIES], made) < 0)
        return -1;
    put_bytes(&draft, turn->words[OVER]);
    put_bytes(&draft, request_id);
    put_bytes(&draft, turn->words[OUTCOME]);
    put_ending(turn, &draft, bytes, now);
    put_bytes(&draft, turn->words[NIL]);
    if ((made = joined(&draft)) == NULL || PyList_SetItem(turn->drafts, position, made) < 0)
        return -1;
    PyObject *fields[] = {defaults, name, turn->now, had_request};
    if ((freed = hold(held, PyObject_Vectorcall(turn->kinds[FREED], fields, 4, NULL))) == NULL ||
        change(turn, domain, had, freed) < 0)
        return -1;
    turn->leases--;
    if ((found = PySequence_Contains(turn->places[RECALLED], name)) > 0)
        found = hold(held, PyObject_Vectorcall(turn->ports[RECALL_OVER], &name, 1, NULL)) == NULL ? -1 : 0;
    return found < 0 ? -1 : 1;
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
        put_bytes(&found->past, turn->words[NO_PAST]);
    } else if ((PyObject *)Py_TYPE(kept) == turn->kinds[FREED]) {
        PyObject *had = get(held, kept, REQUEST_ID), *name = get(held, kept, CORRELATION_ID), *set_by;
        PyObject *ended = get(held, kept, ENDED_NS);
        const uint8_t *bytes;
        uint64_t ended_ns;
        found->before = kept;
        found->defaults = get(held, kept, DEFAULTS);
        set_by = get(held, found->defaults, SETTER);
        int same = held->failed ? -1 : PyObject_RichCompareBool(had, request_id, Py_EQ);
        if (same != 0)
            return same < 0 ? -1 : 0;
        if ((bytes = sized(name, NAME_BYTES)) == NULL || !number(ended, &ended_ns))
            return 0;
        found->fence = core_number(bytes, STAMP_BYTES);
        put_bytes_head(&found->past, NAME_BYTES);
        put(&found->past, bytes, NAME_BYTES);
        put_ending(turn, &found->past, bytes, ended_ns);
        put_bytes(&found->past, set_by);
    } else {
        PyObject *asked[] = {kept, request, unknown}, *parts[4];
        PyObject *left = hold(held, PyObject_Vectorcall(turn->ports[PAST], asked, 3, NULL));
        if (left == NULL || unpacked(left, parts, 4) < 0)
            return -1;
        if (parts[0] == Py_None || !number(parts[2], &found->fence))
            return 0;
        found->before = parts[0];
        found->defaults = parts[1];
        put_bytes(&found->past, parts[3]);
    }
    return held->failed || found->past.failed ? -1 : 1;
}

/* Whether an Acquire asks for what is plain, of a domain that nobody waits for: 1 or 0, -1 with an exception. `who`:
 * its holder as it is encoded. */
static int asks_plainly(Turn *turn, PyObject *request, PyObject *domain, Held *held, PyObject **who)
{
    PyObject *mode = get(held, request, MODE), *phase = get(held, request, PHASE);
    PyObject *session = get(held, request, SESSION_ID), *above = get(held, request, ABOVE);
    PyObject *map_number = get(held, request, MAP_NUMBER), *holder = get(held, request, HOLDER);
    uint64_t map;
    int found;
    if (held->failed)
        return -1;
    if (mode != turn->kinds[EXCLUSIVE] || phase != turn->kinds[HELD_PHASE] || session != Py_None ||
        above != Py_None || !number(map_number, &map) || map < turn->numbers[SINCE] || map > turn->numbers[NEWEST])
        return 0;
    if ((*who = PyDict_GetItemWithError(turn->places[HOLDERS], holder)) == NULL)
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
    PyObject *domain, *who = NULL, *kept, *request_id, *chance, *value, *hints, *name, *made, *index, *lease;
    uint64_t term, until_max, fence, expiry;
    const uint64_t *numbers = turn->numbers;
    const uint8_t *random;
    uint8_t stamp[NAME_BYTES];
    int found;
    Ground left = {.past = {.count = 0}};
    Pieces entry = {.count = 0};

    if (!turn->in_range || numbers[NOW] < NUMBER_MIN)
        return 0;
    if ((domain = get(held, request, DOMAIN)) == NULL)
        return -1;
    if ((found = asks_plainly(turn, request, domain, held, &who)) <= 0)
        return found;
    if (!number(get(held, request, TERM_NS), &term) || !number(get(held, request, EXPIRY_NS_MAX), &until_max))
        return held->failed ? -1 : 0;
    kept = state_of(turn, held, domain);
    if ((request_id = get(held, request, REQUEST_ID)) == NULL)
        return -1;
    if ((found = ground(turn, request, kept, request_id, held, &left)) <= 0)
        return found;
    /* No sum passes 2^64: each part is below 2^63. */
    expiry = least(numbers[NOW] + least(term, numbers[TERM_MAX]), least(until_max, numbers[HIGHEST]));
    fence = most(left.fence, numbers[FENCE_MIN]);
    if (expiry <= numbers[LATEST] || fence >= numbers[CEILING])
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
    name = hold(held, PyBytes_FromStringAndSize((char *)stamp, NAME_BYTES));
    if ((value = get(held, request, HINTS_WANTED)) == NULL || (found = PyObject_IsTrue(value)) < 0)
        return -1;
    hints = turn->words[NIL];
    if (found && (hints = hold(held, PyObject_Vectorcall(turn->ports[HINTS], &left.defaults, 1, NULL))) == NULL)
        return -1;
    if ((index = hold(held, PyLong_FromSsize_t(PyList_Size(turn->places[ENTRIES])))) == NULL ||
        (made = PyTuple_Pack(3, request_id, index, hints)) == NULL ||
        PyList_SetItem(turn->drafts, position, made) < 0 || PyDict_SetItem(turn->places[ANSWERS], name, index) < 0)
        return -1;

    if ((value = get(held, left.defaults, NUMBERS)) == NULL)
        return -1;
    put_bytes(&entry, turn->words[GRANT]);
    put_text(&entry, domain);
    put_bytes(&entry, turn->words[GRANT_MODE]);
    put_bytes(&entry, who);
    put_bytes_head(&entry, NAME_BYTES);
    put(&entry, stamp, NAME_BYTES);
    put_instant(&entry, fence);
    put_instant(&entry, expiry);
    put_bytes(&entry, value);
    put_bytes(&entry, turn->words[NIL]);
    put_all(&entry, &left.past);
    put_bytes(&entry, turn->words[NOTHING_ELSE]);
    if ((made = hold(held, joined(&entry))) == NULL || PyList_Append(turn->places[ENTRIES], made) < 0)
        return -1;

    value = hold(held, PyLong_FromUnsignedLongLong(expiry));
    PyObject *fields[] = {left.defaults, left.before, get(held, request, HOLDER), name, turn->now, value,
                          get(held, request, AGE), request_id};
    if (held->failed || (lease = hold(held, PyObject_Vectorcall(turn->kinds[LEASE], fields, 8, NULL))) == NULL ||
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
        Held held = {.count = 0, .failed = 0};
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

/* Returns a list with the hash of each leaf (`pair` 1), or of each two nodes of the level below (2), of which an odd
 * last one moves up unchanged; NULL with an exception. */
static PyObject *level_over(PyObject *below, int pair)
{
    Py_ssize_t count = PyList_Size(below), width = (count + pair - 1) / pair;
    PyObject *level = PyList_New(width);
    for (Py_ssize_t n = 0; level != NULL && n < width; n++) {
        PyObject *one = PyList_GetItem(below, pair * n), *made = NULL;
        PyObject *other = pair == 2 && pair * n + 1 < count ? PyList_GetItem(below, pair * n + 1) : NULL;
        if (pair == 2 && other == NULL) {
            made = one;
            Py_XINCREF(made);
        } else if (one != NULL && PyBytes_Check(one)) { /* a leaf may be anything; nodes are of this module's making */
            made = PyBytes_FromStringAndSize(NULL, DIGEST_BYTES);
            if (made != NULL && core_sha256(pair == 1 ? "\0" : "\1", 1, PyBytes_AsString(one), (size_t)PyBytes_Size(one),
                                            other == NULL ? NULL : PyBytes_AsString(other), other == NULL ? 0 : DIGEST_BYTES,
                                            (uint8_t *)PyBytes_AsString(made)) < 0)
                Py_CLEAR(made);
        } else {
            PyErr_SetString(PyExc_TypeError, "a leaf is bytes");
        }
        if (made == NULL || PyList_SetItem(level, n, made) < 0)
            Py_CLEAR(level);
    }
    return level;
}

/* tree(leaves) -> levels: merkle.tree. */
PyObject *core_tree(PyObject *module, PyObject *leaves)
{
    PyObject *levels = PyList_New(0), *level = levels == NULL ? NULL : PySequence_List(leaves);
    int pair = 1;
    (void)module;
    if (level != NULL && PyList_Size(level) == 0) {
        PyErr_SetString(PyExc_AssertionError, "a batch holds at least one leaf");
        Py_CLEAR(level);
    }
    do {
        PyObject *below = level;
        level = below == NULL ? NULL : level_over(below, pair);
        Py_XDECREF(below);
        if (level == NULL || PyList_Append(levels, level) < 0)
            Py_CLEAR(levels);
        pair = 2;
    } while (levels != NULL && PyList_Size(level) > 1);
    Py_XDECREF(level);
    return levels;
}

/* ---- replies ---- */

enum { STEP = 2 + DIGEST_BYTES }; /* of a path, as it is encoded */

/* Writes the path of a leaf, encoded: how many hashes it has, or -1 with an exception. */
static int path_of(PyObject *levels, Py_ssize_t at, uint8_t way[LEVELS_MAX * STEP])
{
    int count = 0;
    for (Py_ssize_t n = 0; n + 1 < PyList_Size(levels); n++, at >>= 1) {
        PyObject *level = PyList_GetItem(levels, n);
        Py_ssize_t width = PyList_Check(level) ? PyList_Size(level) : 0;
        const uint8_t *beside = (at ^ 1) < width ? sized(PyList_GetItem(level, at ^ 1), DIGEST_BYTES) : NULL;
        if (n == LEVELS_MAX || at >= width || (beside == NULL && (at ^ 1) < width)) {
            PyErr_SetString(PyExc_TypeError, "a level of a tree is no list of digests, or too short");
            return -1;
        }
        if (beside != NULL) {
            uint8_t *to = way + STEP * count++;
            to[0] = 0xc4;
            to[1] = DIGEST_BYTES;
            memcpy(to + 2, beside, DIGEST_BYTES);
        }
    }
    return count;
}

/* Returns the encoded reply of a grant; NULL with an exception. `granted`: its words; the rest as in witness.py. */
static PyObject *granted_reply(PyObject *draft, PyObject *granted, PyObject *witness, PyObject *entries, PyObject *levels,
                               PyObject *rest)
{
    PyObject *parts[3], *entry;
    Pieces pieces = {.count = 0}, inner = {.count = 0};
    uint8_t way[LEVELS_MAX * STEP];
    uint64_t index;
    int steps;

    if (unpacked(draft, parts, 3) < 0)
        return NULL;
    if (!number(parts[1], &index) || PyList_Size(levels) < 1 || index >= (uint64_t)PyTuple_Size(entries) ||
        !PyBytes_Check(entry = PyTuple_GetItem(entries, (Py_ssize_t)index))) {
        PyErr_SetString(PyExc_IndexError, "a grant names no entry of its turn");
        return NULL;
    }
    if ((steps = path_of(levels, (Py_ssize_t)index, way)) < 0)
        return NULL;
    put_bytes(&inner, witness);
    put_bytes_head(&inner, (size_t)PyBytes_Size(entry));
    put_bytes(&inner, entry);
    put_index(&inner, (size_t)index);
    put_array_head(&inner, (size_t)steps);
    put(&inner, way, (size_t)steps * STEP);
    put_bytes(&inner, rest);
    put_bytes(&pieces, granted);
    put_bytes(&pieces, parts[0]);
    put_bytes_head(&pieces, size_of(&inner));
    put_all(&pieces, &inner);
    put_bytes(&pieces, parts[2]);
    return joined(&pieces);
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
