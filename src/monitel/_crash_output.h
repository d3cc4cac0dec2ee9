/* Output of a handler for crashes: lines, files and descriptors. Async-signal-safe: nothing is allocated or locked. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdbool.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PATIENCE_MS 1000 /* for a reader */

typedef struct {
    char text[512];
    size_t length;
} Line;

static void
add(Line *line, const char *text)
{
    while (*text != '\0' && line->length < sizeof line->text) {
        line->text[line->length++] = *text++;
    }
}

static void
add_number(Line *line, unsigned long long value, unsigned base, int digits)
{
    char text[24];
    size_t at = sizeof text;
    text[--at] = '\0';
    do {
        text[--at] = "0123456789abcdef"[value % base];
        value /= base;
    } while ((--digits > 0 || value != 0) && at > 0);
    add(line, text + at);
}

/* Write in pieces that a pipe takes at once; return false if its reader does not read, or after an error. */
static bool
write_all(int descriptor, const char *text, size_t length)
{
    while (length > 0) {
        struct pollfd ready = {.fd = descriptor, .events = POLLOUT};
        if (poll(&ready, 1, PATIENCE_MS) <= 0 || (ready.revents & POLLOUT) == 0) {
            return false;
        }
        ssize_t written = write(descriptor, text, length < PIPE_BUF ? length : PIPE_BUF);
        if (written < 0 && errno != EAGAIN) {
            return false;
        }
        if (written > 0) {
            text += written;
            length -= (size_t)written;
        }
    }
    return true;
}

/* Copy from a position on. */
static void
copy(int source, off_t position, off_t end, int target)
{
    static char buffer[4096]; /* only one thread reports */
    while (position < end) {
        off_t rest = end - position;
        ssize_t length = pread(source, buffer, rest < (off_t)sizeof buffer ? (size_t)rest : sizeof buffer, position);
        if (length <= 0 || !write_all(target, buffer, (size_t)length)) {
            return;
        }
        position += length;
    }
}

/* Return whether a part of a file contains a text. */
static bool
contains(int source, off_t position, off_t end, const char *text)
{
    static char buffer[4096]; /* only one thread reports */
    size_t size = strlen(text), filled = 0;
    while (position < end) {
        ssize_t length = pread(source, buffer + filled, sizeof buffer - filled, position);
        if (length <= 0) {
            return false;
        }
        position += length;
        filled += (size_t)length;
        for (size_t at = 0; at + size <= filled; at++) {
            if (memcmp(buffer + at, text, size) == 0) {
                return true;
            }
        }
        size_t kept = filled < size ? filled : size - 1; /* the text may begin there */
        memmove(buffer, buffer + filled - kept, kept);
        filled = kept;
    }
    return false;
}

/* Open a descriptor that is not one of the standard streams, which may be closed. */
static int
above_streams(int descriptor)
{
    if (descriptor < 0 || descriptor > 2) {
        return descriptor;
    }
    int moved = fcntl(descriptor, F_DUPFD_CLOEXEC, 3);
    close(descriptor);
    return moved;
}

/* Return an anonymous file that cannot grow beyond a limit; -1 if there is none. */
static int
anonymous_file(off_t limit)
{
#ifdef F_SEAL_GROW
    int found = above_streams((int)syscall(SYS_memfd_create, "monitel-crash", 3U)); /* MFD_CLOEXEC, MFD_ALLOW_SEALING */
    if (found >= 0 && (ftruncate(found, limit) != 0 || fcntl(found, F_ADD_SEALS, F_SEAL_GROW) != 0)) {
        close(found);
        return -1;
    }
    return found;
#else
    (void)limit;
    return -1;
#endif
}

/* Call a function with a descriptor redirected; return false, without a call, if it cannot be redirected. */
static bool
call_redirected(int descriptor, int target, void (*function)(int), int argument)
{
    int flags = fcntl(descriptor, F_GETFD);
    int kept = flags < 0 ? -1 : fcntl(descriptor, F_DUPFD_CLOEXEC, 3);
    if ((flags >= 0 && kept < 0) || target < 0 || dup3(target, descriptor, O_CLOEXEC) < 0) {
        if (kept >= 0) {
            close(kept);
        }
        return false;
    }
    function(argument);
    if (kept < 0) {
        close(descriptor);
    }
    else {
        dup3(kept, descriptor, (flags & FD_CLOEXEC) != 0 ? O_CLOEXEC : 0);
        close(kept);
    }
    return true;
}
