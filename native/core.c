/* The module tenure._core: its table of methods, and hashing by libcrypto. */
#include "core.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>

static EVP_MD *sha256_method; /* of the process; never freed */
static EVP_MD_CTX *sha256_context;

int core_sha256(const void *first, size_t first_size, const void *second, size_t second_size, const void *third,
                size_t third_size, uint8_t digest[DIGEST_BYTES])
{
    if (EVP_DigestInit_ex2(sha256_context, sha256_method, NULL) != 1 ||
        (first_size && EVP_DigestUpdate(sha256_context, first, first_size) != 1) ||
        (second_size && EVP_DigestUpdate(sha256_context, second, second_size) != 1) ||
        (third_size && EVP_DigestUpdate(sha256_context, third, third_size) != 1) ||
        EVP_DigestFinal_ex(sha256_context, digest, NULL) != 1) {
        PyErr_SetString(PyExc_RuntimeError, "libcrypto computes no SHA-256");
        return -1;
    }
    return 0;
}

static PyMethodDef methods[] = {
    {"answered", (PyCFunction)(void (*)(void))core_answered, METH_FASTCALL, NULL},
    {"tree", core_tree, METH_O, NULL},
    {"replies", (PyCFunction)(void (*)(void))core_replies, METH_FASTCALL, NULL},
    {"cut", core_cut, METH_VARARGS, NULL},
    {"match", core_match, METH_VARARGS, NULL},
    {"column", core_column, METH_VARARGS, NULL},
    {"distinct", core_distinct, METH_VARARGS, NULL},
    {"check_paths", core_check_paths, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

/* Prepares libcrypto, once a process. An ImportError leaves everything to Python. */
static int prepare(PyObject *module)
{
    if (sha256_context == NULL) {
        sha256_method = EVP_MD_fetch(NULL, "SHA256", NULL);
        sha256_context = sha256_method == NULL ? NULL : EVP_MD_CTX_new();
        if (sha256_context == NULL) {
            PyErr_SetString(PyExc_ImportError, "libcrypto has no SHA-256");
            return -1;
        }
    }
    if (core_prepare_turn() < 0)
        return -1;
    return PyModule_AddStringConstant(module, "LIBRARY", OpenSSL_version(OPENSSL_VERSION));
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, (void *)prepare},
    {0, NULL},
};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "tenure._core", NULL, 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__core(void)
{
    return PyModuleDef_Init(&definition);
}
