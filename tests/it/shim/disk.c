/* A disk that can be watched and made to fail, for a process this is preloaded into.
 *
 * CLAWMUX_DISK_HOME     the folder whose files are meant (its log: clawmux.db, its -wal and its -journal)
 * CLAWMUX_DISK_JOURNAL  where every change of the log's files is appended; see `struct entry`
 * CLAWMUX_DISK_FAULT    while this file is there, operations fail as it says:
 *                       "FILES OPERATION ERRNO [BYTES]", where FILES is log or home (everything in it),
 *                       OPERATION is write, sync or both, ERRNO a number, and writing fails only
 *                       after so many BYTES since the file appeared
 *
 * One lock is held over an operation and its entry, so that the journal has them in the order in
 * which they happened; not over a sync, which has an entry where it begins and one where it ends.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum kind { OPENED = 1, WRITTEN, CUT, UNLINKED, RENAMED, SYNC_BEGINS, SYNC_ENDS };

/* Followed by the name and then the data. */
struct entry {
    uint64_t kind;
    uint64_t file;  /* inode; of a folder: 0 */
    uint64_t place; /* offset; new length; sync: its number; opened: whether it was made */
    uint64_t name_bytes;
    uint64_t data_bytes; /* sync ends: 1 = it failed */
};

enum what { NOTHING, FOLDER, OTHER, LOG };
struct file {
    enum what what;
    uint64_t inode;
};

#define FDS 65536
static struct file files[FDS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const char *home, *fault_path;
static size_t home_bytes;
static int journal = -1;
static uint64_t syncs;
static ino_t fault_inode;
static int64_t fault_spent;

static int (*real_open)(const char *, int, ...);
static int (*real_openat)(int, const char *, int, ...);
static int (*real_close)(int);
static ssize_t (*real_write)(int, const void *, size_t);
static ssize_t (*real_writev)(int, const struct iovec *, int);
static ssize_t (*real_pwrite)(int, const void *, size_t, off_t);
static int (*real_ftruncate)(int, off_t);
static int (*real_fsync)(int);
static int (*real_fdatasync)(int);
static int (*real_unlink)(const char *);
static int (*real_unlinkat)(int, const char *, int);
static int (*real_rename)(const char *, const char *);

__attribute__((constructor)) static void start(void) {
    real_open = dlsym(RTLD_NEXT, "open64");
    real_openat = dlsym(RTLD_NEXT, "openat64");
    real_close = dlsym(RTLD_NEXT, "close");
    real_write = dlsym(RTLD_NEXT, "write");
    real_writev = dlsym(RTLD_NEXT, "writev");
    real_pwrite = dlsym(RTLD_NEXT, "pwrite64");
    real_ftruncate = dlsym(RTLD_NEXT, "ftruncate64");
    real_fsync = dlsym(RTLD_NEXT, "fsync");
    real_fdatasync = dlsym(RTLD_NEXT, "fdatasync");
    real_unlink = dlsym(RTLD_NEXT, "unlink");
    real_unlinkat = dlsym(RTLD_NEXT, "unlinkat");
    real_rename = dlsym(RTLD_NEXT, "rename");
    home = getenv("CLAWMUX_DISK_HOME");
    home_bytes = home ? strlen(home) : 0;
    fault_path = getenv("CLAWMUX_DISK_FAULT");
    const char *path = getenv("CLAWMUX_DISK_JOURNAL");
    if (home && path) journal = real_open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

/* What a path is, and its name in the home. */
static enum what what(const char *path, const char **name) {
    if (!home || !path || strncmp(path, home, home_bytes)) return NOTHING;
    if (!path[home_bytes]) return FOLDER;
    if (path[home_bytes] != '/') return NOTHING;
    *name = path + home_bytes + 1;
    if (strncmp(*name, "clawmux.db", 10)) return OTHER;
    const char *rest = *name + 10;
    return !*rest || !strcmp(rest, "-wal") || !strcmp(rest, "-journal") ? LOG : OTHER;
}

static void note(enum kind kind, uint64_t file, uint64_t place, const char *name, const void *data,
                 uint64_t bytes) {
    if (journal < 0) return;
    struct entry entry = {kind, file, place, name ? strlen(name) : 0, bytes};
    struct iovec parts[] = {
        {&entry, sizeof entry}, {(void *)name, entry.name_bytes}, {(void *)data, data ? bytes : 0}};
    size_t whole = parts[0].iov_len + parts[1].iov_len + parts[2].iov_len;
    int saved = errno;
    if (real_writev(journal, parts, 3) != (ssize_t)whole) abort();
    errno = saved;
}

/* The error that an operation has to fail with, if any; `room` is how much may yet be written. */
static int fault(enum what what, const char *operation, size_t wanted, size_t *room) {
    if (what < OTHER || !fault_path) return 0;
    int fd = syscall(SYS_openat, AT_FDCWD, fault_path, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0) return 0;
    char text[128] = "", of[16] = "", which[16] = "";
    struct stat stat;
    int error = 0;
    long long after = 0;
    ssize_t got = read(fd, text, sizeof text - 1);
    fstat(fd, &stat);
    real_close(fd);
    if (got <= 0 || sscanf(text, "%15s %15s %d %lld", of, which, &error, &after) < 3) return 0;
    if (what != LOG && strcmp(of, "home")) return 0;
    if (strcmp(which, "both") && strcmp(which, operation)) return 0;
    if (!room) return error;
    if (stat.st_ino != fault_inode) {
        fault_inode = stat.st_ino;
        fault_spent = 0;
    }
    if (fault_spent + (int64_t)wanted <= after) {
        fault_spent += wanted;
        return 0;
    }
    *room = fault_spent < after ? after - fault_spent : 0;
    fault_spent = after;
    return error;
}

static struct file *file_of(int fd) {
    static struct file none;
    return fd >= 0 && fd < FDS ? &files[fd] : &none;
}

static int opened(int fd, enum what what, const char *name, int made) {
    if (fd < 0 || fd >= FDS) return fd;
    struct stat stat;
    if (fstat(fd, &stat)) return fd;
    files[fd] = (struct file){what, stat.st_ino};
    if (what == LOG) note(OPENED, stat.st_ino, made, name, NULL, 0);
    return fd;
}

static int open_file(int folder, const char *path, int flags, mode_t mode) {
    const char *name = NULL;
    enum what is = what(path, &name);
    if (is == NOTHING) return real_openat(folder, path, flags, mode);
    pthread_mutex_lock(&lock);
    int made = is != FOLDER && (flags & O_CREAT) && access(path, F_OK);
    size_t room = 0;
    int error = made ? fault(is, "write", 1, &room) : 0, fd = -1;
    if (error) errno = error;
    else fd = opened(real_openat(folder, path, flags, mode), is, name, made);
    pthread_mutex_unlock(&lock);
    return fd;
}

#define OPEN(flags)                                                                                \
    mode_t mode = 0;                                                                               \
    if ((flags) & (O_CREAT | __O_TMPFILE)) {                                                       \
        va_list rest;                                                                              \
        va_start(rest, flags);                                                                     \
        mode = va_arg(rest, mode_t);                                                               \
        va_end(rest);                                                                              \
    }

int open(const char *path, int flags, ...) { OPEN(flags) return open_file(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { OPEN(flags) return open_file(AT_FDCWD, path, flags, mode); }
int openat(int folder, const char *path, int flags, ...) { OPEN(flags) return open_file(folder, path, flags, mode); }
int openat64(int folder, const char *path, int flags, ...) { OPEN(flags) return open_file(folder, path, flags, mode); }

int close(int fd) {
    file_of(fd)->what = NOTHING;
    return real_close(fd);
}

static ssize_t put(int fd, const void *data, size_t bytes, off_t at) {
    struct file *file = file_of(fd);
    if (file->what < OTHER) return at < 0 ? real_write(fd, data, bytes) : real_pwrite(fd, data, bytes, at);
    pthread_mutex_lock(&lock);
    size_t room = bytes;
    int error = fault(file->what, "write", bytes, &room);
    ssize_t put = -1;
    if (error && !room) {
        errno = error;
    } else {
        if (at < 0 && file->what == LOG) at = lseek(fd, 0, SEEK_CUR);
        put = at < 0 ? real_write(fd, data, room) : real_pwrite(fd, data, room, at);
        if (put > 0 && file->what == LOG) note(WRITTEN, file->inode, at, NULL, data, put);
    }
    pthread_mutex_unlock(&lock);
    return put;
}

ssize_t write(int fd, const void *data, size_t bytes) { return put(fd, data, bytes, -1); }
ssize_t pwrite(int fd, const void *data, size_t bytes, off_t at) { return put(fd, data, bytes, at); }
ssize_t pwrite64(int fd, const void *data, size_t bytes, off64_t at) { return put(fd, data, bytes, at); }

ssize_t writev(int fd, const struct iovec *parts, int count) {
    if (file_of(fd)->what < OTHER) return real_writev(fd, parts, count);
    for (int i = 0; i < count; i++)
        if (parts[i].iov_len) return put(fd, parts[i].iov_base, parts[i].iov_len, -1);
    return 0;
}

static int cut(int fd, off_t length) {
    struct file *file = file_of(fd);
    if (file->what < OTHER) return real_ftruncate(fd, length);
    pthread_mutex_lock(&lock);
    size_t room = 0;
    struct stat stat;
    int grows = !fstat(fd, &stat) && length > stat.st_size;
    int error = grows ? fault(file->what, "write", 1, &room) : 0, done = -1;
    if (error) errno = error;
    else done = real_ftruncate(fd, length);
    if (!done && file->what == LOG) note(CUT, file->inode, length, NULL, NULL, 0);
    pthread_mutex_unlock(&lock);
    return done;
}

int ftruncate(int fd, off_t length) { return cut(fd, length); }
int ftruncate64(int fd, off64_t length) { return cut(fd, length); }

static int flush(int fd, int (*real)(int)) {
    struct file file = *file_of(fd);
    if (file.what == NOTHING) return real(fd);
    uint64_t inode = file.what == FOLDER ? 0 : file.inode;
    pthread_mutex_lock(&lock);
    uint64_t number = ++syncs;
    if (file.what != OTHER) note(SYNC_BEGINS, inode, number, NULL, NULL, 0);
    int error = fault(file.what, "sync", 0, NULL);
    pthread_mutex_unlock(&lock);
    int done = error ? -1 : real(fd);
    pthread_mutex_lock(&lock);
    if (file.what != OTHER) note(SYNC_ENDS, inode, number, NULL, NULL, done != 0);
    pthread_mutex_unlock(&lock);
    if (error) errno = error;
    return done;
}

int fsync(int fd) { return flush(fd, real_fsync); }
int fdatasync(int fd) { return flush(fd, real_fdatasync); }

int unlink(const char *path) {
    const char *name = NULL;
    if (what(path, &name) != LOG) return real_unlink(path);
    pthread_mutex_lock(&lock);
    int done = real_unlink(path);
    if (!done) note(UNLINKED, 0, 0, name, NULL, 0);
    pthread_mutex_unlock(&lock);
    return done;
}

int unlinkat(int folder, const char *path, int flags) {
    return folder == AT_FDCWD && !flags ? unlink(path) : real_unlinkat(folder, path, flags);
}

int rename(const char *from, const char *to) {
    const char *name = NULL, *new_name = NULL;
    enum what old_is = what(from, &name), new_is = what(to, &new_name);
    if (old_is != LOG && new_is != LOG) return real_rename(from, to);
    pthread_mutex_lock(&lock);
    int done = real_rename(from, to);
    if (!done) note(RENAMED, 0, 0, name, new_name, strlen(new_name));
    pthread_mutex_unlock(&lock);
    return done;
}
