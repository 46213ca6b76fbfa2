/* What readers and the auditor do with every byte and every record: cut files into frames, hash them, tell records of
 * one shape from each other, make columns of their fields, and check Merkle paths.
 *
 * All input is a stranger's. Every length is compared with what is there before anything is read or allocated by it;
 * what a caller says about places in records is compared with the records. Nothing here keeps anything between calls.
 * Each function says what its Python reference is: both answer the same to the same bytes.
 *
 * Columns come back as bytes: an int64 a row, unless said otherwise, in the machine's order, which is little-endian.
 */
#include "core.h"

enum {
    HEADER = 12,
    CHECKSUM = 16,
    STEP = 2 + DIGEST_BYTES, /* a hash in a list of hashes: MessagePack's two bytes before it */
    LEVELS = 64,
};

static uint32_t little_u32(const uint8_t *at)
{
    return (uint32_t)at[3] << 24 | (uint32_t)at[2] << 16 | (uint32_t)at[1] << 8 | at[0];
}

static int64_t little_i64(const uint8_t *at)
{
    return (int64_t)((uint64_t)little_u32(at + 4) << 32 | little_u32(at));
}

/* Bytes that somebody else owns for as long as this call lasts. */
typedef struct {
    const uint8_t *at;
    Py_ssize_t size;
} Span;

/* Borrow the bytes of an object that is of type bytes. Returns 0; -1 with TypeError. */
static int span_of(PyObject *object, Span *span)
{
    char *at;
    if (PyBytes_AsStringAndSize(object, &at, &span->size) < 0)
        return -1;
    span->at = (const uint8_t *)at;
    return 0;
}

/* Borrow the bytes of each item of a list of bytes: spans to be freed with PyMem_Free, or NULL with an exception.
 * The list must stay as it is meanwhile: nothing here runs Python code before it is done with the spans. */
static Span *spans_of(PyObject *list, Py_ssize_t *count)
{
    if (!PyList_Check(list)) {
        PyErr_SetString(PyExc_TypeError, "a list of bytes is wanted");
        return NULL;
    }
    *count = PyList_Size(list);
    Span *spans = PyMem_Calloc((size_t)*count + 1, sizeof *spans);
    if (!spans)
        return (Span *)PyErr_NoMemory();
    for (Py_ssize_t n = 0; n < *count; n++) {
        if (span_of(PyList_GetItem(list, n), spans + n) < 0) {
            PyMem_Free(spans);
            return NULL;
        }
    }
    return spans;
}

/* Return new bytes, not yet filled, of count items of a size; NULL with an exception. */
static PyObject *new_bytes(Py_ssize_t count, Py_ssize_t each)
{
    if (each && count > PY_SSIZE_T_MAX / each)
        return PyErr_NoMemory();
    return PyBytes_FromStringAndSize(NULL, count * each);
}

/* Where such bytes are filled. */
static void *inside(PyObject *bytes)
{
    return PyBytes_AsString(bytes);
}

/* Append an item to a list that has room for it at a number, or drop the list. Steals the item; NULL is an error. */
static int put(PyObject **list, Py_ssize_t number, PyObject *item)
{
    if (item && PyList_SetItem(*list, number, item) == 0)
        return 0;
    Py_CLEAR(*list);
    return -1;
}

static PyObject *bytes_of(const uint8_t *at, Py_ssize_t size)
{
    return PyBytes_FromStringAndSize((const char *)at, size);
}

/* ---- frames ---- */

/* What a caller says is too much for one frame. */
typedef struct {
    Py_ssize_t messages, payload;
} Limits;

/* Read the frame that begins there: the form of its piece and its columns, not its checksum, nor its head. row: its
 * offset, length, messages, first and last instant. Returns 1; 0 where there is no such frame. */
static int frame_at(Span file, Py_ssize_t offset, Limits most, int64_t row[5], Span *head)
{
    static const uint8_t start[8] = {'T', 'N', 'U', 'R', 1, 1, 0, 0};
    const uint8_t *piece = file.at + offset, *payload = piece + HEADER;
    Py_ssize_t left = file.size - offset;
    if (left < HEADER + CHECKSUM || memcmp(piece, start, sizeof start) != 0)
        return 0;
    Py_ssize_t size = (Py_ssize_t)core_number(piece + 8, 4);
    if (size > most.payload || size > left - HEADER - CHECKSUM || size < 8)
        return 0;
    head->at = payload + 4;
    head->size = little_u32(payload);
    if (head->size > size - 8)
        return 0;
    Py_ssize_t count = little_u32(head->at + head->size), body = size - 8 - head->size;
    if (count < 1 || count > most.messages || 12 * count > body)
        return 0;
    const uint8_t *instants = head->at + head->size + 4, *lengths = instants + 8 * count;
    int64_t before = little_i64(instants);
    uint64_t total = little_u32(lengths);
    for (Py_ssize_t n = 1; n < count; n++) {
        int64_t instant = little_i64(instants + 8 * n);
        if (instant <= before)
            return 0;
        before = instant;
        total += little_u32(lengths + 4 * n);
    }
    const int64_t own[5] = {offset, HEADER + size + CHECKSUM, count, little_i64(instants), before};
    memcpy(row, own, sizeof own);
    return total == (uint64_t)(body - 12 * count);
}

/* Make the digest of a piece, of which the checksum is the first half. hashed 0: the checksum as it stands, and zeros
 * behind it. Returns 1; 0 where the checksum is another; -1 with an exception. */
static int piece_digest(Span piece, int hashed, uint8_t digest[DIGEST_BYTES])
{
    const uint8_t *checksum = piece.at + piece.size - CHECKSUM;
    memset(digest, 0, DIGEST_BYTES);
    memcpy(digest, checksum, CHECKSUM);
    if (hashed && core_sha256(piece.at, (size_t)(piece.size - CHECKSUM), NULL, 0, NULL, 0, digest) < 0)
        return -1;
    return memcmp(digest, checksum, CHECKSUM) == 0;
}

/* Count the frames of a file as far as the lengths of its pieces go: -1 where they do not lead to its end. */
static Py_ssize_t frames_in(Span file)
{
    Py_ssize_t at = 0, count = 0;
    for (; at < file.size; count++) {
        Py_ssize_t left = file.size - at - HEADER - CHECKSUM;
        if (left < 0 || core_number(file.at + at + 8, 4) > (uint64_t)left)
            return -1;
        at += HEADER + CHECKSUM + (Py_ssize_t)core_number(file.at + at + 8, 4);
    }
    return count ? count : -1;
}

/* cut(file: bytes, hashed: bool, messages_max: int, payload_max: int) -> tuple[rows, digests, heads] | None
 *
 * The frames of a file, in order. rows: five int64 a frame, its offset, length, messages, first and last instant;
 * digests: 32 bytes a frame; heads: a list of bytes. None where the file is empty, or holds anything else than whole
 * frames. hashed: else no checksum is checked. Reference: auditor.columns.frames. */
PyObject *core_cut(PyObject *module, PyObject *args)
{
    PyObject *bytes, *rows = NULL, *digests = NULL, *heads = NULL, *result = NULL;
    int hashed, fine; /* 0: something is no frame; -1: an exception is set */
    Span file, head;
    Limits most;
    (void)module;
    if (!PyArg_ParseTuple(args, "Opnn:cut", &bytes, &hashed, &most.messages, &most.payload) || span_of(bytes, &file) < 0)
        return NULL;
    Py_ssize_t frames = frames_in(file), at = 0;
    if (frames < 0)
        return Py_NewRef(Py_None);
    rows = new_bytes(frames, 5 * sizeof(int64_t));
    digests = new_bytes(frames, DIGEST_BYTES);
    heads = PyList_New(frames);
    fine = rows && digests && heads ? 1 : -1;
    for (Py_ssize_t n = 0; fine > 0 && n < frames; n++) {
        int64_t row[5] = {0};
        fine = frame_at(file, at, most, row, &head);
        if (fine > 0)
            fine = piece_digest((Span){file.at + at, row[1]}, hashed, (uint8_t *)inside(digests) + DIGEST_BYTES * n);
        if (fine > 0 && put(&heads, n, bytes_of(head.at, head.size)) < 0)
            fine = -1;
        memcpy((uint8_t *)inside(rows) + n * (Py_ssize_t)sizeof row, row, sizeof row);
        at += row[1];
    }
    if (fine >= 0)
        result = fine ? PyTuple_Pack(3, rows, digests, heads) : Py_NewRef(Py_None);
    Py_XDECREF(rows);
    Py_XDECREF(digests);
    Py_XDECREF(heads);
    return result;
}

/* ---- records of one shape ---- */

/* What has to hold of the bytes of a record at a place. */
enum { FIXED, WIDE, TEXT };

typedef struct {
    int32_t what, at, size;
} Check;

typedef struct {
    Span model; /* a record of this shape */
    const uint8_t *checks;
    Py_ssize_t count;
} Shape;

static Check check_at(const Shape *shape, Py_ssize_t n)
{
    Check check;
    memcpy(&check, shape->checks + n * (Py_ssize_t)sizeof check, sizeof check);
    return check;
}

/* Take a shape: (model, checks). Returns 0; -1 with an exception, also where a check is not inside the model. */
static int shape_of(PyObject *object, Shape *shape)
{
    Span checks;
    if (!PyTuple_Check(object) || PyTuple_Size(object) != 2) {
        PyErr_SetString(PyExc_TypeError, "a shape is a pair");
        return -1;
    }
    if (span_of(PyTuple_GetItem(object, 0), &shape->model) < 0 || span_of(PyTuple_GetItem(object, 1), &checks) < 0)
        return -1;
    shape->checks = checks.at;
    shape->count = checks.size / (Py_ssize_t)sizeof(Check);
    int fine = checks.size % (Py_ssize_t)sizeof(Check) == 0;
    for (Py_ssize_t n = 0; fine && n < shape->count; n++) {
        Check check = check_at(shape, n);
        fine = check.at >= 0 && check.size >= 0 && check.at <= shape->model.size - check.size &&
               (check.what != WIDE || check.size == 1 || check.size == 2 || check.size == 4 || check.size == 8);
    }
    if (!fine)
        PyErr_SetString(PyExc_ValueError, "a check of a shape is not inside its model");
    return fine ? 0 : -1;
}

/* Whether a record has this shape, and would decode: its bytes are the model's wherever these are no values, numbers
 * have their shortest form and fit 63 bits, texts (and numbers of one byte) are ASCII or the model's own. */
static int fits(const Shape *shape, Span record)
{
    if (record.size != shape->model.size)
        return 0;
    for (Py_ssize_t n = 0; n < shape->count; n++) {
        Check check = check_at(shape, n);
        const uint8_t *at = record.at + check.at, *model = shape->model.at + check.at;
        switch (check.what) {
        case WIDE:
            if (core_number(at, check.size) < (check.size == 1 ? 0x80 : (uint64_t)1 << (4 * check.size)))
                return 0;
            if (check.size == 8 && at[0] >= 0x80)
                return 0;
            break;
        case TEXT:
            for (int32_t k = 0; k < check.size; k++)
                if (at[k] >= 0x80) {
                    if (memcmp(at, model, (size_t)check.size) != 0)
                        return 0;
                    break;
                }
            break;
        default:
            if (memcmp(at, model, (size_t)check.size) != 0)
                return 0;
        }
    }
    return 1;
}

/* match(records: list[bytes], begin: int, shapes: list[tuple[bytes, bytes]], kinds: bytearray) -> int
 *
 * Write the number of each record's shape into kinds (int32 each), from begin on, up to the first record that has none
 * of these shapes: returns the number of that one, or how many records there are. Of several shapes that a record
 * has it gets any. Reference: auditor.columns.records.Reference. */
PyObject *core_match(PyObject *module, PyObject *args)
{
    PyObject *list, *known, *result = NULL;
    Py_buffer kinds;
    Py_ssize_t begin, count, n = 0;
    int32_t likely[256];
    (void)module;
    if (!PyArg_ParseTuple(args, "OnOw*:match", &list, &begin, &known, &kinds))
        return NULL;
    Span *records = spans_of(list, &count);
    Shape *shapes = NULL;
    if (!records || !PyList_Check(known))
        goto done;
    Py_ssize_t of_shapes = PyList_Size(known);
    if (begin < 0 || kinds.len / (Py_ssize_t)sizeof(int32_t) < count || of_shapes > INT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "there is not a place for the kind of each record");
        goto done;
    }
    shapes = PyMem_Calloc((size_t)of_shapes + 1, sizeof *shapes);
    if (!shapes) {
        PyErr_NoMemory();
        goto done;
    }
    for (n = 0; n < of_shapes; n++)
        if (shape_of(PyList_GetItem(known, n), shapes + n) < 0)
            goto done;
    memset(likely, 0, sizeof likely);
    for (n = begin; n < count; n++) {
        int32_t *guess = likely + (records[n].size & 255), kind = *guess;
        if (kind >= of_shapes || !fits(shapes + kind, records[n])) {
            for (kind = 0; kind < of_shapes && !fits(shapes + kind, records[n]); kind++)
                ;
            if (kind == of_shapes)
                break;
            *guess = kind;
        }
        memcpy((uint8_t *)kinds.buf + n * (Py_ssize_t)sizeof kind, &kind, sizeof kind);
    }
    result = PyLong_FromSsize_t(n);
done:
    if (!result && !PyErr_Occurred())
        PyErr_SetString(PyExc_TypeError, "a list of shapes is wanted");
    PyMem_Free(shapes);
    PyMem_Free(records);
    PyBuffer_Release(&kinds);
    return result;
}

/* ---- fields ---- */

/* Some records, the kind of each, and where a field is in the records of each kind. */
typedef struct {
    Span *records;
    Py_ssize_t count;
    Span kinds, places;
} Field;

/* Take (records: list[bytes], kinds: bytes, places: bytes). kinds: int32 a record; places: two int32 a kind, where the
 * field begins (below 0: there is none) and its size. Returns 0, then the records are to be freed; -1. */
static int field_of(PyObject *records, PyObject *kinds, PyObject *places, Field *field)
{
    if (span_of(kinds, &field->kinds) < 0 || span_of(places, &field->places) < 0)
        return -1;
    field->records = spans_of(records, &field->count);
    if (!field->records)
        return -1;
    if (field->kinds.size / (Py_ssize_t)sizeof(int32_t) >= field->count)
        return 0;
    PyErr_SetString(PyExc_ValueError, "there is not a kind for each record");
    PyMem_Free(field->records);
    return -1;
}

/* Find the field in a record. Returns 1, or 0 where it is absent; -1 with ValueError where the place is not in it. */
static int value_of(const Field *field, Py_ssize_t n, Span *value)
{
    int32_t kind, place[2];
    memcpy(&kind, field->kinds.at + n * (Py_ssize_t)sizeof kind, sizeof kind);
    if (kind >= 0 && kind < field->places.size / (Py_ssize_t)sizeof place) {
        memcpy(place, field->places.at + kind * (Py_ssize_t)sizeof place, sizeof place);
        if (place[0] < 0)
            return 0;
        if (place[1] >= 0 && place[0] <= field->records[n].size - place[1]) {
            value->at = field->records[n].at + place[0];
            value->size = place[1];
            return 1;
        }
    }
    PyErr_SetString(PyExc_ValueError, "a field is not inside its record");
    return -1;
}

/* column(records, kinds, places, width: int) -> bytes (see Field for the first three)
 *
 * The field of each record in so many bytes, behind zeros where it has fewer; zeros where it is absent. Raises
 * ValueError for one that has more. Reference: the same. */
PyObject *core_column(PyObject *module, PyObject *args)
{
    PyObject *records, *kinds, *places;
    Py_ssize_t width;
    Field field;
    Span value;
    (void)module;
    if (!PyArg_ParseTuple(args, "OOOn:column", &records, &kinds, &places, &width))
        return NULL;
    if (width < 0)
        return PyErr_Format(PyExc_ValueError, "a width of %zd", width);
    if (field_of(records, kinds, places, &field) < 0)
        return NULL;
    PyObject *result = new_bytes(field.count, width);
    uint8_t *into = result ? inside(result) : NULL;
    int there = 0;
    for (Py_ssize_t n = 0; into && there >= 0 && n < field.count; n++, into += width) {
        there = value_of(&field, n, &value);
        if (there > 0 && value.size > width) {
            PyErr_Format(PyExc_ValueError, "a field of %zd bytes, where %zd are wanted", value.size, width);
            there = -1;
        }
        memset(into, 0, (size_t)width);
        if (there > 0)
            memcpy(into + width - value.size, value.at, (size_t)value.size);
    }
    if (there < 0)
        Py_CLEAR(result);
    PyMem_Free(field.records);
    return result;
}

/* A number of which nothing can be said without knowing both: the halves of their product, one over the other. */
static uint64_t folded(uint64_t one, uint64_t other)
{
    unsigned __int128 product = (unsigned __int128)one * other;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

/* Return a number for bytes: equal for equal ones. Who does not know the secrets cannot make many that collide: there
 * is no change of one word that another change undoes whatever they are. */
static uint64_t mark(Span value, const uint64_t secrets[2])
{
    uint64_t found = secrets[0] ^ (uint64_t)value.size, words[2];
    for (Py_ssize_t at = 0; at < value.size; at += (Py_ssize_t)sizeof words) {
        Py_ssize_t left = value.size - at;
        memset(words, 0, sizeof words);
        memcpy(words, value.at + at, left < (Py_ssize_t)sizeof words ? (size_t)left : sizeof words);
        found = folded(words[0] ^ found, words[1] ^ secrets[1]);
    }
    return folded(found ^ secrets[0], secrets[1]);
}

/* A set of different values, numbered in the order in which they came. */
typedef struct {
    Span *values;
    uint64_t *marks;
    int64_t *slots; /* open addressing: number + 1 of a value, or 0 */
    size_t mask;
    Py_ssize_t count;
    uint64_t secrets[2];
} Numbering;

static void numbering_free(Numbering *known)
{
    PyMem_Free(known->values);
    PyMem_Free(known->marks);
    PyMem_Free(known->slots);
}

/* Make room for so many values. Returns 0; -1 with an exception. Either way there is something to free. */
static int numbering_init(Numbering *known, Py_ssize_t most)
{
    size_t slots = 16;
    for (int n = 0; n < 2; n++) {
        PyObject *text = PyUnicode_FromFormat("secret %d", n);
        if (!text)
            return -1;
        known->secrets[n] = (uint64_t)PyObject_Hash(text); /* differs from process to process */
        Py_DECREF(text);
    }
    while (slots / 2 < (size_t)most)
        slots *= 2;
    known->mask = slots - 1;
    known->values = PyMem_Calloc((size_t)most + 1, sizeof *known->values);
    known->marks = PyMem_Calloc((size_t)most + 1, sizeof *known->marks);
    known->slots = PyMem_Calloc(slots, sizeof *known->slots);
    if (known->values && known->marks && known->slots)
        return 0;
    PyErr_NoMemory();
    return -1;
}

/* Whether a known value is this one. */
static int same(const Numbering *known, int64_t number, Span value)
{
    Span other = known->values[number];
    return other.size == value.size && memcmp(other.at, value.at, (size_t)value.size) == 0;
}

/* Return the number of a value, a new one if it is new. There is room for it. guess: what it may be; below 0: nothing. */
static int64_t number_of(Numbering *known, Span value, int64_t guess)
{
    if (guess >= 0 && same(known, guess, value))
        return guess;
    uint64_t own = mark(value, known->secrets);
    size_t slot = own & known->mask;
    for (; known->slots[slot]; slot = (slot + 1) & known->mask) {
        int64_t number = known->slots[slot] - 1;
        if (known->marks[number] == own && same(known, number, value))
            return number;
    }
    known->values[known->count] = value;
    known->marks[known->count] = own;
    known->slots[slot] = ++known->count;
    return known->count - 1;
}

/* distinct(records, kinds, places: list[bytes]) -> tuple[record, which, list[bytes]]
 *
 * Number the different values of some fields (places: of each field, see Field), in the order in which they occur,
 * record by record: two columns, a row for each field that a record has, and the values by their numbers.
 * Reference: the same. */
PyObject *core_distinct(PyObject *module, PyObject *args)
{
    PyObject *list, *kinds, *places, *columns[2] = {NULL}, *values = NULL, *result = NULL;
    int64_t *record, *which;
    Numbering known = {0};
    Field field;
    Span value, *of_field = NULL;
    Py_ssize_t of_fields, rows = 0, row = 0;
    (void)module;
    if (!PyArg_ParseTuple(args, "OOO:distinct", &list, &kinds, &places))
        return NULL;
    of_field = spans_of(places, &of_fields);
    if (!of_field || field_of(list, kinds, kinds, &field) < 0) { /* the places of each field in turn come below */
        PyMem_Free(of_field);
        return NULL;
    }
    for (Py_ssize_t n = 0; n < field.count; n++)
        for (Py_ssize_t each = 0; each < of_fields; each++) {
            field.places = of_field[each];
            int there = value_of(&field, n, &value);
            if (there < 0)
                goto done;
            rows += there;
        }
    columns[0] = new_bytes(rows, sizeof *record);
    columns[1] = new_bytes(rows, sizeof *which);
    if (!columns[0] || !columns[1] || numbering_init(&known, rows) < 0)
        goto done;
    record = inside(columns[0]);
    which = inside(columns[1]);
    Py_ssize_t before = 0, begin = 0; /* the rows of the record before, which often has the same values, and of this one */
    for (Py_ssize_t n = 0; n < field.count; n++, before = begin, begin = row)
        for (Py_ssize_t each = 0; each < of_fields; each++) {
            field.places = of_field[each];
            if (value_of(&field, n, &value) <= 0)
                continue;
            Py_ssize_t there = before + row - begin;
            record[row] = n;
            which[row] = number_of(&known, value, there < begin ? which[there] : -1);
            row++;
        }
    values = PyList_New(known.count);
    for (Py_ssize_t n = 0; values && n < known.count; n++)
        put(&values, n, bytes_of(known.values[n].at, known.values[n].size));
    if (values)
        result = PyTuple_Pack(3, columns[0], columns[1], values);
done:
    numbering_free(&known);
    Py_XDECREF(columns[0]);
    Py_XDECREF(columns[1]);
    Py_XDECREF(values);
    PyMem_Free(field.records);
    PyMem_Free(of_field);
    return result;
}

/* ---- Merkle trees ---- */

/* Both return 0; -1 with an exception. */
static int leaf_hash(Span leaf, uint8_t hash[DIGEST_BYTES])
{
    return core_sha256("\0", 1, leaf.at, (size_t)leaf.size, NULL, 0, hash);
}

static int node_hash(const uint8_t *left, const uint8_t *right, uint8_t hash[DIGEST_BYTES])
{
    uint8_t node[1 + 2 * DIGEST_BYTES] = {1};
    memcpy(node + 1, left, DIGEST_BYTES);
    memcpy(node + 1 + DIGEST_BYTES, right, DIGEST_BYTES);
    return core_sha256(node, sizeof node, NULL, 0, NULL, 0, hash);
}

/* The nodes of a tree on the last path that led to its root, level by level, and what stands beside each. */
typedef struct {
    int64_t count; /* of leaves */
    const uint8_t *root;
    uint64_t position[LEVELS];
    uint8_t node[LEVELS][DIGEST_BYTES], beside[LEVELS][DIGEST_BYTES];
} KnownPath;

/* Know of a tree nothing but its root. */
static void know_root(KnownPath *known, int64_t count, const uint8_t *root)
{
    int level = 0;
    known->count = count;
    known->root = root;
    for (; count > 1; count = count / 2 + count % 2)
        known->position[level++] = UINT64_MAX;
    known->position[level] = 0;
    memcpy(known->node[level], root, DIGEST_BYTES);
}

/* Whether a leaf's path leads to the root. From a node on that is known to be in the tree, it does if and only if it
 * goes on as the known path did: two that differ would be two values with one hash. A path that leads to the root
 * becomes the known one. Who calls has made sure that index < count. Returns -1 with an exception. */
static int path_holds(Span entry, uint64_t position, Span path, uint64_t width, KnownPath *known)
{
    KnownPath own;
    Py_ssize_t steps = path.size ? (path.size + 2) / STEP : 0, used = 0;
    int level = 0, met;
    if (path.size && path.size != steps * STEP - 2)
        return 0;
    if (leaf_hash(entry, own.node[0]) < 0)
        return -1;
    for (; known->position[level] != position; level++, position >>= 1, width = (width + 1) >> 1) {
        own.position[level] = position;
        if ((position ^ 1) >= width) { /* nothing is beside it */
            memcpy(own.node[level + 1], own.node[level], DIGEST_BYTES);
            continue;
        }
        if (used == steps)
            return 0;
        memcpy(own.beside[level], path.at + used++ * STEP, DIGEST_BYTES);
        int right = position & 1;
        if (node_hash(right ? own.beside[level] : own.node[level], right ? own.node[level] : own.beside[level],
                      own.node[level + 1]) < 0)
            return -1;
    }
    met = level;
    if (memcmp(known->node[met], own.node[met], DIGEST_BYTES) != 0)
        return 0;
    for (; width > 1; level++, position >>= 1, width = (width + 1) >> 1)
        if ((position ^ 1) < width &&
            (used == steps || memcmp(known->beside[level], path.at + used++ * STEP, DIGEST_BYTES) != 0))
            return 0;
    if (used != steps)
        return 0;
    memcpy(known->position, own.position, (size_t)met * sizeof *own.position);
    memcpy(known->node, own.node, (size_t)met * DIGEST_BYTES);
    memcpy(known->beside, own.beside, (size_t)met * DIGEST_BYTES);
    return 1;
}

/* check_paths(entries, paths: list[bytes], index, counts, roots: bytes) -> bytes
 *
 * Say of each leaf whether its path leads to the root of its tree: a byte each, 0 or 1. paths: the hashes as they are
 * in a list of byte strings, MessagePack's two bytes between them; index, counts, roots: of each leaf, where it is, how
 * many leaves its tree has, and 32 bytes. Leaves that are neighbours share most of their paths: they should follow each
 * other. Reference: auditor.columns.witnesses.check_paths. */
PyObject *core_check_paths(PyObject *module, PyObject *args)
{
    PyObject *list, *of_paths, *result = NULL, *each[3];
    Span columns[3], *entries = NULL, *paths = NULL; /* columns: index, counts, roots */
    KnownPath known = {.count = 0};
    Py_ssize_t count, others = 0;
    int fine = PyArg_ParseTuple(args, "OOOOO:check_paths", &list, &of_paths, &each[0], &each[1], &each[2]);
    (void)module;
    for (int n = 0; fine && n < 3; n++)
        fine = span_of(each[n], columns + n) == 0;
    entries = fine ? spans_of(list, &count) : NULL;
    paths = entries ? spans_of(of_paths, &others) : NULL;
    if (paths && (others != count || columns[0].size / 8 < count || columns[1].size / 8 < count ||
                  columns[2].size / DIGEST_BYTES < count))
        PyErr_SetString(PyExc_ValueError, "there is not a path, a place and a root for each leaf");
    else if (paths)
        result = new_bytes(count, 1);
    for (Py_ssize_t n = 0; result && n < count; n++) {
        int64_t index = little_i64(columns[0].at + 8 * n), width = little_i64(columns[1].at + 8 * n);
        const uint8_t *root = columns[2].at + DIGEST_BYTES * n;
        int holds = 0;
        if (index >= 0 && index < width) {
            if (known.count != width || memcmp(known.root, root, DIGEST_BYTES) != 0)
                know_root(&known, width, root);
            holds = path_holds(entries[n], (uint64_t)index, paths[n], (uint64_t)width, &known);
        }
        if (holds < 0)
            Py_CLEAR(result);
        else
            ((uint8_t *)inside(result))[n] = (uint8_t)holds;
    }
    PyMem_Free(paths);
    PyMem_Free(entries);
    return result;
}
