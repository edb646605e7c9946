/* Preloaded into processes that write one SQLite database: appends to a log whatever they write to it and every time
 * they have it synced, so that what a disk would hold after a power cut can be put together afterwards (chaos/power.py).
 *
 * POWERCUT_FILE is the database, POWERCUT_LOG the log. One record per call, in one append: the kernel keeps those of
 * several processes apart and in order. A write is told after it was done, the sync of a file both before and after:
 * what was told before a sync began is safe once it has ended. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

struct record {
    uint32_t magic;
    uint8_t op, file;
    uint16_t none;
    uint32_t pid;
    int32_t fd;
    uint64_t offset, length;
    double at;
};

static const char *database;
static size_t database_length;
static int log_fd = -1;

__attribute__((constructor)) static void begin(void)
{
    const char *log = getenv("POWERCUT_LOG");
    database = getenv("POWERCUT_FILE");
    if (!database || !log)
        return;
    database_length = strlen(database);
    log_fd = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
}

/* Which of the database's files a path is: itself, its log, its journal. -1: another one. */
static int file_of(const char *path, size_t length)
{
    if (log_fd < 0 || length < database_length || memcmp(path, database, database_length) != 0)
        return -1;
    const char *rest = path + database_length;
    size_t left = length - database_length;
    if (left == 0)
        return 0;
    if (left == 4 && memcmp(rest, "-wal", 4) == 0)
        return 1;
    if (left == 8 && memcmp(rest, "-journal", 8) == 0)
        return 2;
    return -1;
}

static int file_of_fd(int fd)
{
    char name[32] = "/proc/self/fd/", digits[12], path[PATH_MAX];
    size_t at = 0, end = 14;
    if (log_fd < 0 || fd < 0 || fd == log_fd)
        return -1;
    for (unsigned rest = (unsigned)fd; at == 0 || rest; rest /= 10)
        digits[at++] = (char)('0' + rest % 10);
    while (at)
        name[end++] = digits[--at];
    name[end] = 0;
    int before = errno;
    ssize_t length = readlink(name, path, sizeof path);
    errno = before;
    return length < 0 ? -1 : file_of(path, (size_t)length);
}

static void tell(char op, int file, int fd, uint64_t offset, uint64_t length, const void *data)
{
    struct timespec now;
    int before = errno;
    clock_gettime(CLOCK_MONOTONIC, &now);
    struct record record = {0x52574350, (uint8_t)op, (uint8_t)file, 0, (uint32_t)getpid(), fd, offset, length,
                            (double)now.tv_sec + (double)now.tv_nsec / 1e9};
    struct iovec parts[2] = {{&record, sizeof record}, {(void *)data, data ? length : 0}};
    ssize_t whole = (ssize_t)(sizeof record + parts[1].iov_len);
    if (writev(log_fd, parts, data ? 2 : 1) != whole)
        abort(); /* a log with holes would prove nothing */
    errno = before;
}

#define REAL(name) \
    static __typeof__(&name) real; \
    if (!real) \
        real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

ssize_t write(int fd, const void *data, size_t length)
{
    REAL(write);
    int file = file_of_fd(fd);
    off_t offset = file < 0 ? 0 : lseek(fd, 0, SEEK_CUR);
    ssize_t done = real(fd, data, length);
    if (file >= 0 && done > 0)
        tell('W', file, fd, (uint64_t)offset, (uint64_t)done, data);
    return done;
}

ssize_t pwrite(int fd, const void *data, size_t length, off_t offset)
{
    REAL(pwrite);
    int file = file_of_fd(fd);
    ssize_t done = real(fd, data, length, offset);
    if (file >= 0 && done > 0)
        tell('W', file, fd, (uint64_t)offset, (uint64_t)done, data);
    return done;
}

ssize_t pwrite64(int fd, const void *data, size_t length, off64_t offset)
{
    REAL(pwrite64);
    int file = file_of_fd(fd);
    ssize_t done = real(fd, data, length, offset);
    if (file >= 0 && done > 0)
        tell('W', file, fd, (uint64_t)offset, (uint64_t)done, data);
    return done;
}

int ftruncate(int fd, off_t length)
{
    REAL(ftruncate);
    int file = file_of_fd(fd), done = real(fd, length);
    if (file >= 0 && done == 0)
        tell('T', file, fd, 0, (uint64_t)length, NULL);
    return done;
}

int ftruncate64(int fd, off64_t length)
{
    REAL(ftruncate64);
    int file = file_of_fd(fd), done = real(fd, length);
    if (file >= 0 && done == 0)
        tell('T', file, fd, 0, (uint64_t)length, NULL);
    return done;
}

int fsync(int fd)
{
    REAL(fsync);
    int file = file_of_fd(fd);
    if (file >= 0)
        tell('B', file, fd, 0, 0, NULL);
    int done = real(fd);
    if (file >= 0 && done == 0)
        tell('E', file, fd, 0, 0, NULL);
    return done;
}

int fdatasync(int fd)
{
    REAL(fdatasync);
    int file = file_of_fd(fd);
    if (file >= 0)
        tell('B', file, fd, 0, 0, NULL);
    int done = real(fd);
    if (file >= 0 && done == 0)
        tell('E', file, fd, 0, 0, NULL);
    return done;
}

int unlink(const char *path)
{
    REAL(unlink);
    int file = file_of(path, strlen(path)), done = real(path);
    if (file >= 0 && done == 0)
        tell('U', file, -1, 0, 0, NULL);
    return done;
}
