/* Loaded into a machine that is a process of the host (user-mode Linux), between its kernel and the host's.

   Registers: that kernel keeps a program's vector registers in a buffer that is too small for a processor with tiles, and
   the host refuses to take back less than all. What is missing is filled from the host's own copy; tiles stay unused.
   Death: when the machine's process ends, the programs that it runs end too, and do not go on as programs of the host.
   Time: the machine's clocks are the host's minus what a file says: they can stand still while it does. */
#define _GNU_SOURCE
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define AREA_BYTES 16384 /* on the stack of that kernel there is no room for it */
#define HEADER 512
#define TILES (3ULL << 17)
#define OLD_SETOPTIONS 21
#define SECOND 1000000000LL

static volatile const int64_t *stood_still_ns;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("LAB_STOOD_STILL");
    int fd = path ? open(path, O_RDONLY) : -1;
    void *page = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, fd, 0);
    if (page != MAP_FAILED)
        stood_still_ns = page;
    if (fd >= 0)
        close(fd);
}

int clock_gettime(clockid_t clock, struct timespec *found) {
    int done = syscall(SYS_clock_gettime, clock, found);
    if (done == 0 && clock == CLOCK_MONOTONIC && stood_still_ns) {
        int64_t ns = found->tv_sec * SECOND + found->tv_nsec - *stood_still_ns;
        found->tv_sec = ns / SECOND;
        found->tv_nsec = ns % SECOND;
    }
    return done;
}

static long set_registers(pid_t pid, void *kind, const struct iovec *given) {
    static unsigned char area[AREA_BYTES] __attribute__((aligned(64)));
    struct iovec whole = {area, sizeof area};
    if (syscall(SYS_ptrace, PTRACE_GETREGSET, pid, kind, &whole) < 0)
        return -1;
    size_t length = given->iov_len < whole.iov_len ? given->iov_len : whole.iov_len;
    memcpy(area, given->iov_base, length);
    if (length < whole.iov_len)
        *(uint64_t *)(area + HEADER) &= ~TILES;
    return syscall(SYS_ptrace, PTRACE_SETREGSET, pid, kind, &whole);
}

long ptrace(enum __ptrace_request request, ...) {
    va_list words;
    va_start(words, request);
    pid_t pid = va_arg(words, pid_t);
    void *address = va_arg(words, void *);
    void *data = va_arg(words, void *);
    va_end(words);
    long peeked = 0;
    int peeks = request == PTRACE_PEEKTEXT || request == PTRACE_PEEKDATA || request == PTRACE_PEEKUSER;
    if (request == PTRACE_SETREGSET && (long)address == NT_X86_XSTATE)
        return set_registers(pid, address, data);
    if (request == PTRACE_SETOPTIONS || (int)request == OLD_SETOPTIONS)
        data = (void *)((uintptr_t)data | PTRACE_O_EXITKILL);
    long done = syscall(SYS_ptrace, request, pid, address, peeks ? (void *)&peeked : data);
    if (peeks && done >= 0) {
        errno = 0;
        return peeked;
    }
    return done;
}
