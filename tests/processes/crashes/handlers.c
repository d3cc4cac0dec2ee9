/* Handlers of another library, for tests of the handlers' order. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static struct sigaction before;
static sigjmp_buf recovery;

static void
install(int number, void (*handler)(int, siginfo_t *, void *), int flags)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_flags = SA_SIGINFO | flags;
    action.sa_sigaction = handler;
    sigaction(number, &action, &before);
}

/* Print the signal with its details, and end the process. */
static void
on_signal(int number, siginfo_t *info, void *context)
{
    char line[80];
    int length = snprintf(line, sizeof line, "%d %d %ld\n", number, info->si_code, info->si_code > 0 ? (long)info->si_addr : (long)info->si_pid);
    _exit(write(1, line, (size_t)length) == length && context != NULL ? 42 : 43);
}

void
end_process(int number)
{
    install(number, on_signal, 0);
}

/* Print that the signal came, and call the handler before. */
static void
on_chained(int number, siginfo_t *info, void *context)
{
    if (write(1, "chained\n", 8) < 0) {
        _exit(43);
    }
    if ((before.sa_flags & SA_SIGINFO) != 0) {
        before.sa_sigaction(number, info, context);
    }
}

void
chain(int number)
{
    install(number, on_chained, 0);
}

static void
on_recovery(int number, siginfo_t *info, void *context)
{
    (void)number, (void)info, (void)context;
    siglongjmp(recovery, 1);
}

/* Read from address 8, and recover. */
int
fault(void)
{
    if (sigsetjmp(recovery, 1) == 0) {
        return *(volatile int *)8;
    }
    return -1;
}

void
recover(int number)
{
    install(number, on_recovery, 0);
}
