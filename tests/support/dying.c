/* Preloaded into a process, it counts the calls that change files below one folder, and at the Nth of them kills the
 * process or lets the disk fail. What SQLite, Rust and Python call goes through here alike.
 *
 *     cc -shared -fPIC -O1 -o dying.so dying.c -ldl          LD_PRELOAD=./dying.so python …
 *
 * dying_arm(folder, n, mode, error) starts counting; dying_calls() is how many there were, dying_names() one line each.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { COUNT, BEFORE, HALF, AFTER, FAIL, FAIL_ON, SHORT };

static char folder[PATH_MAX];
static size_t length; /* of the folder's name; 0: not armed */
static long at, calls;
static int mode, number;
static char names[1 << 20];
static size_t used;

void dying_arm(const char *below, long n, int how, int error) {
    snprintf(folder, sizeof folder, "%s", below);
    at = n, mode = how, number = error, calls = 0, used = 0, names[0] = 0;
    length = strlen(folder);
}

long dying_calls(void) { return calls; }
const char *dying_names(void) { return names; }

static void die(void) {
    kill(getpid(), SIGKILL);
    for (;;)
        pause();
}

static int below(const char *path) {
    return length && !strncmp(path, folder, length) && (path[length] == '/' || !path[length]);
}

static int of_handle(int handle, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", handle);
    ssize_t n = readlink(link, path, PATH_MAX - 1);
    if (n < 0)
        return 0;
    path[n] = 0;
    return below(path);
}

static int of_name(int base, const char *name, char *path) {
    if (!length || !name)
        return 0;
    if (name[0] == '/') {
        snprintf(path, PATH_MAX, "%s", name);
    } else {
        char start[PATH_MAX];
        if (base == AT_FDCWD) {
            if (!getcwd(start, sizeof start))
                return 0;
        } else {
            of_handle(base, start);
        }
        snprintf(path, PATH_MAX, "%.2000s/%.2000s", start, name);
    }
    return below(path);
}

/* What is to be done with this call: COUNT stands for "let it pass". */
static int turn(const char *call, const char *path) {
    long mine = __atomic_add_fetch(&calls, 1, __ATOMIC_SEQ_CST);
    if (mode == COUNT && used < sizeof names - PATH_MAX)
        used += (size_t)snprintf(names + used, sizeof names - used, "%s %s\n", call, path + length);
    if (mode == FAIL_ON ? mine < at : mine != at)
        return COUNT;
    if (mode == BEFORE)
        die();
    return mode;
}

#define REAL(name) static __typeof__(name) *real; if (!real) *(void **)&real = dlsym(RTLD_NEXT, #name)
/* A call that cannot be done by halves. */
#define PLAIN(inside, name, call, failed) do { \
    char path[PATH_MAX]; \
    int saved = errno, what = (inside) ? turn(name, path) : COUNT; \
    if (what == FAIL || what == FAIL_ON) { errno = number; return failed; } \
    errno = saved; \
    __typeof__(call) done = call; \
    if (what == HALF || what == AFTER) die(); \
    return done; \
} while (0)
/* A call that writes `size` bytes; `part` is the same with the first half of them. */
#define WRITING(handle, name, size, call, part) do { \
    char path[PATH_MAX]; \
    int saved = errno, what = length && of_handle(handle, path) ? turn(name, path) : COUNT; \
    if (what == FAIL || what == FAIL_ON) { errno = number; return -1; } \
    errno = saved; \
    if (what == SHORT && (size) > 1) return part; \
    if (what == HALF && (size) > 1) { (void)!part; die(); } \
    ssize_t done = call; \
    if (what == HALF || what == AFTER) die(); \
    return done; \
} while (0)

ssize_t write(int f, const void *b, size_t n) { REAL(write); WRITING(f, "write", n, real(f, b, n), real(f, b, n / 2)); }
ssize_t pwrite(int f, const void *b, size_t n, off_t o) {
    REAL(pwrite); WRITING(f, "pwrite", n, real(f, b, n, o), real(f, b, n / 2, o));
}
ssize_t pwrite64(int f, const void *b, size_t n, off64_t o) {
    REAL(pwrite64); WRITING(f, "pwrite", n, real(f, b, n, o), real(f, b, n / 2, o));
}
ssize_t writev(int f, const struct iovec *v, int n) {
    REAL(writev); WRITING(f, "writev", n ? v[0].iov_len : 0, real(f, v, n), write(f, v[0].iov_base, v[0].iov_len / 2));
}
ssize_t sendfile(int to, int from, off_t *o, size_t n) {
    REAL(sendfile); WRITING(to, "sendfile", n, real(to, from, o, n), real(to, from, o, n / 2));
}
ssize_t sendfile64(int to, int from, off64_t *o, size_t n) {
    REAL(sendfile64); WRITING(to, "sendfile", n, real(to, from, o, n), real(to, from, o, n / 2));
}
ssize_t copy_file_range(int from, off64_t *i, int to, off64_t *o, size_t n, unsigned flags) {
    REAL(copy_file_range);
    WRITING(to, "copy_file_range", n, real(from, i, to, o, n, flags), real(from, i, to, o, n / 2, flags));
}

#define HANDLE(f) (length && of_handle(f, path))
int ftruncate(int f, off_t n) { REAL(ftruncate); PLAIN(HANDLE(f), "ftruncate", real(f, n), -1); }
int ftruncate64(int f, off64_t n) { REAL(ftruncate64); PLAIN(HANDLE(f), "ftruncate", real(f, n), -1); }
int fallocate(int f, int m, off_t o, off_t n) { REAL(fallocate); PLAIN(HANDLE(f), "fallocate", real(f, m, o, n), -1); }
int fallocate64(int f, int m, off64_t o, off64_t n) {
    REAL(fallocate64); PLAIN(HANDLE(f), "fallocate", real(f, m, o, n), -1);
}
int posix_fallocate(int f, off_t o, off_t n) {
    REAL(posix_fallocate); PLAIN(HANDLE(f), "fallocate", real(f, o, n), number);
}
int posix_fallocate64(int f, off64_t o, off64_t n) {
    REAL(posix_fallocate64); PLAIN(HANDLE(f), "fallocate", real(f, o, n), number);
}
int fsync(int f) { REAL(fsync); PLAIN(HANDLE(f), "fsync", real(f), -1); }
int fdatasync(int f) { REAL(fdatasync); PLAIN(HANDLE(f), "fdatasync", real(f), -1); }
int fchmod(int f, mode_t m) { REAL(fchmod); PLAIN(HANDLE(f), "fchmod", real(f, m), -1); }

#define NAMED(name) of_name(AT_FDCWD, name, path)
#define NAMED_AT(base, name) of_name(base, name, path)
int unlink(const char *p) { REAL(unlink); PLAIN(NAMED(p), "unlink", real(p), -1); }
int unlinkat(int d, const char *p, int f) { REAL(unlinkat); PLAIN(NAMED_AT(d, p), "unlink", real(d, p, f), -1); }
int rmdir(const char *p) { REAL(rmdir); PLAIN(NAMED(p), "rmdir", real(p), -1); }
int mkdir(const char *p, mode_t m) { REAL(mkdir); PLAIN(NAMED(p), "mkdir", real(p, m), -1); }
int mkdirat(int d, const char *p, mode_t m) { REAL(mkdirat); PLAIN(NAMED_AT(d, p), "mkdir", real(d, p, m), -1); }
int chmod(const char *p, mode_t m) { REAL(chmod); PLAIN(NAMED(p), "chmod", real(p, m), -1); }
int fchmodat(int d, const char *p, mode_t m, int f) {
    REAL(fchmodat); PLAIN(NAMED_AT(d, p), "chmod", real(d, p, m, f), -1);
}
int truncate(const char *p, off_t n) { REAL(truncate); PLAIN(NAMED(p), "truncate", real(p, n), -1); }
int rename(const char *p, const char *q) { REAL(rename); PLAIN(NAMED(q), "rename", real(p, q), -1); }
int renameat(int d, const char *p, int e, const char *q) {
    REAL(renameat); PLAIN(NAMED_AT(e, q), "rename", real(d, p, e, q), -1);
}
int link(const char *p, const char *q) { REAL(link); PLAIN(NAMED(q), "link", real(p, q), -1); }
int linkat(int d, const char *p, int e, const char *q, int f) {
    REAL(linkat); PLAIN(NAMED_AT(e, q), "link", real(d, p, e, q, f), -1);
}
int symlink(const char *p, const char *q) { REAL(symlink); PLAIN(NAMED(q), "symlink", real(p, q), -1); }
int symlinkat(const char *p, int e, const char *q) {
    REAL(symlinkat); PLAIN(NAMED_AT(e, q), "symlink", real(p, e, q), -1);
}

/* Opening counts where it makes a file, or empties one. */
#define MAKES(base, name) ((flags & (O_CREAT | O_TRUNC)) && of_name(base, name, path))
#define MODE mode_t m = 0; if (flags & (O_CREAT | O_TMPFILE)) { va_list v; va_start(v, flags); m = va_arg(v, mode_t); va_end(v); }
int open(const char *p, int flags, ...) { MODE REAL(open); PLAIN(MAKES(AT_FDCWD, p), "open", real(p, flags, m), -1); }
int open64(const char *p, int flags, ...) {
    MODE REAL(open64); PLAIN(MAKES(AT_FDCWD, p), "open", real(p, flags, m), -1);
}
int openat(int d, const char *p, int flags, ...) {
    MODE REAL(openat); PLAIN(MAKES(d, p), "open", real(d, p, flags, m), -1);
}
int openat64(int d, const char *p, int flags, ...) {
    MODE REAL(openat64); PLAIN(MAKES(d, p), "open", real(d, p, flags, m), -1);
}
