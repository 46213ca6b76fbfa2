/* What the parts of the native core share. One entry a part: each adds its methods to the module's table in core.c.
 *
 * Rules for every part: nothing is read beyond a length that was checked, nothing is allocated by a length that was
 * not, and whatever a peer sent is data. What a part does not know it leaves to Python.
 */
#ifndef TENURE_CORE_H
#define TENURE_CORE_H

#define PY_SSIZE_T_CLEAN
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030C0000
#endif
#include <Python.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define DIGEST_BYTES 32

/* SHA-256 of the concatenation of up to three pieces (a length of 0: none), into 32 bytes. Returns 0, or -1 with an
 * exception set where libcrypto refuses. Needs the GIL. */
int core_sha256(const void *first, size_t first_size, const void *second, size_t second_size, const void *third,
                size_t third_size, uint8_t digest[DIGEST_BYTES]);

/* turn.c. Prepares it, once a process: 0, or -1 with an exception. */
int core_prepare_turn(void);
PyObject *core_answered(PyObject *module, PyObject *const *arguments, Py_ssize_t count);
PyObject *core_tree(PyObject *module, PyObject *leaves);
PyObject *core_replies(PyObject *module, PyObject *const *arguments, Py_ssize_t count);

/* What readers and the auditor call: read.c. */
PyObject *core_cut(PyObject *module, PyObject *args);
PyObject *core_match(PyObject *module, PyObject *args);
PyObject *core_column(PyObject *module, PyObject *args);
PyObject *core_distinct(PyObject *module, PyObject *args);
PyObject *core_check_paths(PyObject *module, PyObject *args);

static inline void core_put_u64(uint8_t *to, uint64_t value)
{
    for (int n = 7; n >= 0; n--, value >>= 8)
        to[n] = (uint8_t)value;
}

/* The number of up to eight bytes, the highest first. */
static inline uint64_t core_number(const uint8_t *from, Py_ssize_t size)
{
    uint64_t value = 0;
    for (Py_ssize_t n = 0; n < size; n++)
        value = value << 8 | from[n];
    return value;
}

#endif
