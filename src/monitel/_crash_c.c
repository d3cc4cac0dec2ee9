/* Python stacks of a process that SIGSEGV, SIGABRT, SIGBUS, SIGFPE or SIGILL ends. Linux only.
 *
 * The handler captures the stacks in an anonymous file of limited size, and copies them to a file that it opens itself
 * and to stderr. Then it restores the previous disposition and sends the signal again, with its details, so that the
 * exit status, the core dump and other handlers are as without it. It allocates nothing, takes no lock and calls no
 * Python.
 *
 * CPython 3.11 and 3.12 export functions that print stacks. Elsewhere the handler calls `dump`, the handler that
 * faulthandler.register() installs for a signal, and which prints to a fixed descriptor. If faulthandler is enabled, its
 * handler, `fatal`, is called as well: it prints the stacks where the application wants them, and ends the process. In
 * both cases a descriptor is redirected during the call.
 *
 * CPython prints at most 100 threads, the newest first, and the file is limited. So the stack of the thread that has
 * crashed may be missing; it is printed before the others then.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>

#include "_crash_output.h"
#include "_lock.h"

#define FILE_LIMIT (256 << 10)         /* bytes of the file */
#define TEXT_LIMIT (FILE_LIMIT - 1024) /* bytes of stacks: what precedes and follows them is shorter */
#define STACK_SIZE (128 << 10)         /* bytes of the alternate stack */
#define SMALLEST_STACK (64 << 10)      /* a smaller one, such as faulthandler's, is replaced */
#define HIGHEST_DESCRIPTOR 4095        /* the descriptor of `dump`: hardly ever in use */

typedef struct {
    int number;
    const char *name;
    bool installed;            /* at least once */
    bool over_fatal;           /* the handler replaced `fatal`, which is to run after it */
    struct sigaction previous; /* the disposition below the handler, and below `fatal` if that was installed later */
} Slot;

/* The module refuses sub-interpreters, so these exist once in a process. */
static Slot slots[] = {
    {.number = SIGSEGV, .name = "SIGSEGV"}, {.number = SIGABRT, .name = "SIGABRT"}, {.number = SIGBUS, .name = "SIGBUS"},
    {.number = SIGFPE, .name = "SIGFPE"},   {.number = SIGILL, .name = "SIGILL"},
};
static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL}; /* they can be caused by reading stacks */
#define LENGTH(array) (sizeof(array) / sizeof *(array))

static char path[PATH_MAX];           /* of the file; absolute */
static volatile pid_t owner;          /* the process that installed the handler; 0 for none */
static const char *(*print_stacks)(int, PyInterpreterState *, PyThreadState *); /* NULL if CPython does not export it */
static void (*print_stack)(int, PyThreadState *); /* of one thread */
static void (*dump)(int);             /* NULL if it is not needed */
static int dump_number;               /* the signal with which `dump` is registered for all threads */
static int this_number;               /* the one for the thread that it runs in; 0 for none */
static int dump_descriptor;           /* the descriptor to which it prints */
static struct sigaction fatal;        /* of faulthandler, as it was last seen */
static uintptr_t code_begin;          /* of the interpreter, which has faulthandler */
static uintptr_t code_end;
static bool has_stderr;               /* descriptor 2 was stderr at the installation */
static struct stat stderr_then;       /* its file */
static _Atomic pid_t crashing;        /* the thread inside the handler; 0 for none */
static volatile sig_atomic_t only_this; /* only the stack of that thread is wanted */
static volatile sig_atomic_t reading; /* that thread reads stacks */
static sigjmp_buf unreadable;         /* where it continues if it crashes again */
static volatile time_t reported;      /* monotonic seconds of the last report, plus one; 0 for none */
static Lock lock;                     /* of what the functions for Python change; the handler takes no lock */
static char alternate_stack[STACK_SIZE] __attribute__((aligned(64)));

static void on_crash(int, siginfo_t *, void *);

static bool
is_ours(const struct sigaction *action)
{
    return (action->sa_flags & SA_SIGINFO) != 0 && action->sa_sigaction == on_crash;
}

/* No other handler in the interpreter has SA_NODEFER, except those of faulthandler.register(), for other signals. */
static bool
is_fatal(const struct sigaction *action)
{
    uintptr_t address = (uintptr_t)action->sa_handler;
    return (action->sa_flags & SA_SIGINFO) == 0 && (action->sa_flags & SA_NODEFER) != 0 && address >= code_begin &&
           address < code_end;
}

static Slot *
slot_of(int number)
{
    for (size_t i = 0; i < LENGTH(slots); i++) {
        if (slots[i].number == number) {
            return &slots[i];
        }
    }
    return NULL;
}

static void
set_ours(int number)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    action.sa_sigaction = on_crash;
    sigfillset(&action.sa_mask);
    for (size_t i = 0; i < LENGTH(faults); i++) {
        sigdelset(&action.sa_mask, faults[i]);
    }
    sigaction(number, &action, NULL);
}

/* ---- The handler: everything below, up to the functions for Python, is async-signal-safe. ---- */

static void
describe(Line *line, const Slot *slot, const siginfo_t *info, pid_t thread)
{
    add(line, "monitel: fatal signal ");
    add_number(line, (unsigned)slot->number, 10, 1);
    add(line, " (");
    add(line, slot->name);
    add(line, "), code ");
    int code = info->si_code;
    add(line, code < 0 ? "-" : "");
    add_number(line, code < 0 ? 0U - (unsigned)code : (unsigned)code, 10, 1);
    if (code <= 0) {
        add(line, ", sender ");
        add_number(line, (unsigned)info->si_pid, 10, 1);
    }
    else {
        add(line, ", address 0x");
        add_number(line, (uintptr_t)info->si_addr, 16, 1);
    }
    add(line, ", thread ");
    add_number(line, (unsigned)thread, 10, 1);
    struct timespec now = {0};
    clock_gettime(CLOCK_REALTIME, &now);
    add(line, ", time ");
    add_number(line, (unsigned long long)now.tv_sec, 10, 1);
    add(line, ".");
    add_number(line, (unsigned long long)now.tv_nsec, 10, 9);
    add(line, "\n\n");
}

/* Call a function that reads the state of the interpreter; return false if it crashes because that is damaged. */
static bool
call_reader(void (*function)(int), int argument)
{
    bool complete = sigsetjmp(unreadable, 1) == 0;
    if (complete) {
        reading = 1;
        function(argument);
    }
    reading = 0;
    return complete;
}

static void
print_wanted(int target)
{
    PyThreadState *this = PyGILState_GetThisThreadState();
    if (only_this) {
        print_stack(target, this);
    }
    else {
        print_stacks(target, NULL, this);
    }
}

static void
write_note(int target)
{
    static const char text[] = "\n(the other stacks cannot be read)\n";
    if (write(target, text, sizeof text - 1) < 0) {
        /* there is no other place to report it */
    }
}

/* Print the stacks of all threads, or that of this thread, as far as they can be read. */
static void
write_stacks(int target)
{
    sigset_t all_faults, before;
    sigemptyset(&all_faults);
    for (size_t i = 0; i < LENGTH(faults); i++) {
        sigaddset(&all_faults, faults[i]);
    }
    sigprocmask(SIG_UNBLOCK, &all_faults, &before);
    if (!(dump != NULL          ? call_reader(dump, only_this ? this_number : dump_number)
          : print_stacks != NULL ? call_reader(print_wanted, target)
                                 : true)) {
        write_note(target);
    }
    sigprocmask(SIG_SETMASK, &before, NULL);
}

static void
capture(int target)
{
    if (dump != NULL) {
        call_redirected(dump_descriptor, target, write_stacks, target);
    }
    else {
        write_stacks(target);
    }
}

/* Return an anonymous file with the stack of this thread, if a part of a file does not have it; -1 otherwise. */
static int
missing_stack(int captured, off_t begin, off_t end)
{
    bool can_print = dump != NULL ? this_number != 0 : print_stack != NULL;
    if (captured < 0 || !can_print || !Py_IsInitialized() || PyGILState_GetThisThreadState() == NULL ||
        contains(captured, begin, end, "Current thread 0x") || contains(captured, begin, end, "Stack (most")) {
        return -1;
    }
    int found = anonymous_file(TEXT_LIMIT / 2);
    if (found >= 0) {
        Line line = {.length = 0};
        add(&line, "Current thread 0x");
        add_number(&line, (uintptr_t)pthread_self(), 16, 16);
        add(&line, ": ");
        write_all(found, line.text, line.length);
        only_this = 1;
        capture(found);
        only_this = 0;
        write_all(found, "\n", 1);
    }
    return found;
}

/* Return whether `fatal` was installed over the handler: it has run already. It is installed for all signals at once. */
static bool
fatal_is_above(int number)
{
    for (size_t i = 0; i < LENGTH(slots); i++) {
        struct sigaction now;
        if (slots[i].number != number && sigaction(slots[i].number, NULL, &now) == 0 && is_fatal(&now)) {
            return true;
        }
    }
    return false;
}

/* Return whether descriptor 2 is stderr. It may have been closed, and its number reused for a file with data. */
static bool
is_stderr(void)
{
    struct stat now;
    return has_stderr && fstat(STDERR_FILENO, &now) == 0 &&
           (!S_ISREG(now.st_mode) || (now.st_dev == stderr_then.st_dev && now.st_ino == stderr_then.st_ino));
}

static off_t
position_of(int descriptor)
{
    return lseek(descriptor, 0, SEEK_CUR);
}

static volatile sig_atomic_t fatal_failed;

static void
call_fatal(int number)
{
    fatal_failed = !call_reader(fatal.sa_handler, number);
}

/* Call `fatal`. It restores the disposition before it, and sends the signal again, which stays pending and is taken. */
static bool
run_fatal(Slot *slot, int target, struct sigaction *next)
{
    if (!call_redirected(STDERR_FILENO, target, call_fatal, slot->number)) {
        call_fatal(slot->number);
    }
    sigset_t sent;
    sigemptyset(&sent);
    sigaddset(&sent, slot->number);
    const struct timespec at_once = {0};
    if (sigtimedwait(&sent, NULL, &at_once) != slot->number && !fatal_failed) {
        return false; /* it is disabled */
    }
    if (fatal_failed && target >= 0) {
        write_note(target);
    }
    sigaction(slot->number, NULL, next);
    if (is_ours(next)) {
        *next = slot->previous;
    }
    return true;
}

/* Write the file and to stderr; set the disposition that follows. */
static void
report(Slot *slot, const siginfo_t *info, pid_t thread, struct sigaction *next)
{
    bool shows = is_stderr() && !fatal_is_above(slot->number);
    struct rlimit limit, more;
    bool limited = getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max;
    if (limited) { /* all descriptors may be in use */
        more = limit;
        rlim_t wanted = (limit.rlim_cur > HIGHEST_DESCRIPTOR ? limit.rlim_cur : HIGHEST_DESCRIPTOR + 1) + 8;
        more.rlim_cur = wanted < limit.rlim_max ? wanted : limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &more);
    }
    int file = above_streams(open(path, O_RDWR | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0600));
    Line line = {.length = 0};
    describe(&line, slot, info, thread);
    size_t prefix = strlen("monitel: ");
    off_t size = file < 0 ? 0 : lseek(file, 0, SEEK_END);
    if (file >= 0 && size + (off_t)line.length <= FILE_LIMIT) {
        write_all(file, line.text + prefix, line.length - prefix);
    }

    int captured = anonymous_file(TEXT_LIMIT);
    int target = captured >= 0 ? captured : file;
    off_t begin = target < 0 ? 0 : lseek(target, 0, captured >= 0 ? SEEK_SET : SEEK_END);
    bool by_fatal = false; /* `fatal` has printed, and to stderr */
    if (slot->over_fatal) {
        slot->over_fatal = false;
        if (run_fatal(slot, shows ? target : -1, next)) {
            by_fatal = shows && target >= 0 && position_of(target) > begin;
            shows = shows && target >= 0; /* else it may have printed to stderr */
        }
    }
    int printed = target >= 0 ? target : shows ? STDERR_FILENO : -1;
    if (!by_fatal && printed >= 0 && Py_IsInitialized()) {
        capture(printed);
    }
    off_t end = target < 0 ? 0 : position_of(target);
    int first = missing_stack(captured, begin, end);
    off_t first_end = first < 0 ? 0 : position_of(first);
    if (captured >= 0 && file >= 0) {
        copy(first, 0, first_end, file);
        off_t room = FILE_LIMIT - lseek(file, 0, SEEK_END);
        copy(captured, begin, end - begin < room ? end : begin + room, file);
    }
    if (file >= 0 && lseek(file, 0, SEEK_END) > FILE_LIMIT && ftruncate(file, FILE_LIMIT) != 0) {
        /* it stays longer than it should */
    }
    if (shows && (by_fatal || write_all(STDERR_FILENO, line.text, line.length)) && target >= 0) {
        copy(first, 0, first_end, STDERR_FILENO);
        copy(target, begin, end, STDERR_FILENO);
    }
    if (first >= 0) {
        close(first);
    }
    if (captured >= 0) {
        close(captured);
    }
    if (file >= 0) {
        close(file);
    }
    if (limited) {
        setrlimit(RLIMIT_NOFILE, &limit);
    }
    struct timespec now = {0};
    clock_gettime(CLOCK_MONOTONIC, &now);
    reported = now.tv_sec + 1;
}

static void
wait_for_report(void)
{
    const struct timespec a_millisecond = {.tv_nsec = 1000000};
    for (int i = 0; i < PATIENCE_MS && atomic_load(&crashing) != 0; i++) {
        nanosleep(&a_millisecond, NULL);
    }
}

/* Send the signal to this thread, with its details. It is blocked until the handler returns. */
static void
send_again(int number, siginfo_t *info, pid_t thread)
{
    if (syscall(SYS_rt_tgsigqueueinfo, getpid(), thread, number, info) != 0) {
        syscall(SYS_tgkill, getpid(), thread, number);
    }
}

static void
on_crash(int number, siginfo_t *info, void *context)
{
    int saved = errno;
    pid_t thread = (pid_t)syscall(SYS_gettid);
    bool owns = owner == getpid();
    if (owns && atomic_load(&crashing) == thread) { /* a fault while this thread reports */
        if (reading) {
            siglongjmp(unreadable, 1);
        }
        signal(number, SIG_DFL);
        return;
    }
    Slot *slot = slot_of(number);
    struct sigaction now, next = slot->previous;
    sigaction(number, NULL, &now);
    bool over_fatal = slot->over_fatal;
    pid_t nobody = 0;
    if (owns && reported == 0 && atomic_compare_exchange_strong(&crashing, &nobody, thread)) {
        report(slot, info, thread, &next);
        atomic_store(&crashing, 0);
    }
    else {
        if (owns) {
            wait_for_report();
        }
        if (slot->over_fatal) { /* it runs next, and then restores the disposition before it */
            slot->over_fatal = false;
            next = fatal;
        }
    }
    if (!is_ours(&now) && !over_fatal) { /* called by the handler above this one */
        if ((next.sa_flags & SA_SIGINFO) != 0) {
            next.sa_sigaction(number, info, context);
            errno = saved;
            return;
        }
        if (next.sa_handler != SIG_DFL) {
            if (next.sa_handler != SIG_IGN) {
                next.sa_handler(number);
            }
            errno = saved;
            return;
        }
    }
    sigaction(number, &next, NULL);
    send_again(number, info, thread);
    errno = saved;
}

/* ---- Functions for Python. ---- */

/* A callback of dl_iterate_phdr(): find the code of the library that contains an address. */
static int
find_code(struct dl_phdr_info *library, size_t size, void *address)
{
    (void)size;
    for (int i = 0; i < library->dlpi_phnum; i++) {
        uintptr_t begin = library->dlpi_addr + library->dlpi_phdr[i].p_vaddr;
        uintptr_t end = begin + library->dlpi_phdr[i].p_memsz;
        if (library->dlpi_phdr[i].p_type == PT_LOAD && (uintptr_t)address >= begin && (uintptr_t)address < end) {
            code_begin = begin;
            code_end = end;
            return 1;
        }
    }
    return 0;
}

/* Register `dump` for a signal below another one that is not in use, and leave the signal as it was; return it or 0. */
static int
register_dump(PyObject *faulthandler, int above, int all_threads)
{
    for (int number = above - 1; number >= SIGRTMIN; number--) {
        struct sigaction before, registered;
        if (sigaction(number, NULL, &before) == 0 && (before.sa_flags & SA_SIGINFO) == 0 &&
            before.sa_handler == SIG_DFL) {
            PyObject *done =
                PyObject_CallMethod(faulthandler, "register", "iiii", number, dump_descriptor, all_threads, 0);
            if (done == NULL) {
                return 0;
            }
            Py_DECREF(done);
            sigaction(number, NULL, &registered);
            sigaction(number, &before, NULL);
            dump = registered.sa_handler;
            return number;
        }
    }
    return 0;
}

/* Get the address of the handler that faulthandler.register() installs. */
static void
find_dump(PyObject *faulthandler)
{
    struct rlimit limit;
    bool low = getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_max <= HIGHEST_DESCRIPTOR;
    dump_descriptor = low ? (int)limit.rlim_max - 1 : HIGHEST_DESCRIPTOR;
    dump_number = register_dump(faulthandler, SIGRTMAX, 1);
    if (dump_number != 0) {
        this_number = register_dump(faulthandler, dump_number, 0);
    }
}

/* Find the functions of the interpreter, once in a process. Without them the file has only the signal. */
static void
find_functions(void)
{
    if (code_end != 0) {
        return;
    }
    void *address = dlsym(RTLD_DEFAULT, "PyInit_faulthandler");
#ifndef Py_GIL_DISABLED /* without the GIL the other threads run meanwhile; `dump` knows what it may read */
    *(void **)&print_stacks = dlsym(RTLD_DEFAULT, "_Py_DumpTracebackThreads");
    *(void **)&print_stack = dlsym(RTLD_DEFAULT, "_Py_DumpTraceback");
#endif
    if (address != NULL) {
        dl_iterate_phdr(find_code, address);
    }
    if (print_stacks == NULL) {
        PyObject *faulthandler = PyImport_ImportModule("faulthandler");
        if (faulthandler != NULL) {
            find_dump(faulthandler);
            Py_DECREF(faulthandler);
        }
        PyErr_Clear();
    }
}

/* There is one alternate stack, for the first thread that needs it. A forked child has it in the thread that forked. */
static void
set_alternate_stack(void)
{
    static bool taken;
    static pthread_t user;
    stack_t now, ours = {.ss_sp = alternate_stack, .ss_size = sizeof alternate_stack};
    if ((!taken || pthread_equal(user, pthread_self())) && sigaltstack(NULL, &now) == 0 &&
        (now.ss_flags & SS_ONSTACK) == 0 && ((now.ss_flags & SS_DISABLE) != 0 || now.ss_size < SMALLEST_STACK)) {
        taken = true;
        user = pthread_self();
        sigaltstack(&ours, NULL);
    }
}

static PyObject *
crash_use_alternate_stack(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(arguments))
{
    acquire(&lock);
    set_alternate_stack();
    release(&lock);
    Py_RETURN_NONE;
}

/* Install the handler for a signal unless the application handles or ignores it. */
static bool
install_for(Slot *slot, bool over_others)
{
    struct sigaction now;
    if (sigaction(slot->number, NULL, &now) != 0) {
        return false;
    }
    if (is_ours(&now)) {
        return true;
    }
    bool is_default = (now.sa_flags & SA_SIGINFO) == 0 && now.sa_handler == SIG_DFL;
    bool is_ignored = (now.sa_flags & SA_SIGINFO) == 0 && now.sa_handler == SIG_IGN;
    if (is_fatal(&now)) {
        fatal = now;
        if (!slot->installed) { /* `fatal` restores what was there before it */
            memset(&slot->previous, 0, sizeof slot->previous);
            slot->previous.sa_handler = SIG_DFL;
        }
        slot->over_fatal = true;
    }
    else if (is_default || (over_others && !is_ignored)) {
        slot->previous = now;
        slot->over_fatal = false;
    }
    else {
        return false;
    }
    slot->installed = true;
    set_ours(slot->number);
    return true;
}

static PyObject *
crash_install(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    const char *text;
    Py_ssize_t length;
    PyObject *numbers;
    int with_stderr;
    if (!PyArg_ParseTuple(arguments, "y#O!p", &text, &length, &PyTuple_Type, &numbers, &with_stderr)) {
        return NULL;
    }
    if (strlen(text) != (size_t)length) {
        PyErr_SetString(PyExc_ValueError, "the path contains a null byte");
        return NULL;
    }
    if (length >= (Py_ssize_t)sizeof path) {
        PyErr_Format(PyExc_ValueError, "the path is too long: %zd bytes", length);
        return NULL;
    }
    Slot *found_slots[LENGTH(slots)];
    size_t asked = 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(numbers) && asked < LENGTH(slots); i++) {
        long number = PyLong_AsLong(PyTuple_GET_ITEM(numbers, i));
        if (number == -1 && PyErr_Occurred()) {
            return NULL;
        }
        Slot *slot = slot_of((int)number);
        if (slot != NULL) {
            found_slots[asked++] = slot;
        }
    }
    find_functions();
    long found = 0;
    acquire(&lock);
    owner = 0; /* while the path changes */
    memcpy(path, text, (size_t)length + 1);
    has_stderr = with_stderr != 0 && fstat(STDERR_FILENO, &stderr_then) == 0;
    atomic_store(&crashing, 0); /* in a forked child it may be a thread of the parent */
    reported = 0;
    set_alternate_stack();
    owner = getpid();
    for (size_t i = 0; i < asked; i++) {
        found += install_for(found_slots[i], true);
    }
    release(&lock);
    return PyLong_FromLong(found);
}

static PyObject *
crash_uninstall(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(arguments))
{
    acquire(&lock);
    if (owner == getpid()) {
        owner = 0; /* a handler that is installed above may still call this one */
        for (size_t i = 0; i < LENGTH(slots); i++) {
            struct sigaction now;
            Slot *slot = &slots[i];
            if (slot->installed && sigaction(slot->number, NULL, &now) == 0 && is_ours(&now)) {
                sigaction(slot->number, slot->over_fatal ? &fatal : &slot->previous, NULL);
                slot->over_fatal = false;
            }
        }
    }
    release(&lock);
    Py_RETURN_NONE;
}

static PyObject *
crash_check(PyObject *Py_UNUSED(module), PyObject *seconds)
{
    bool survived = false;
    long age = PyLong_AsLong(seconds);
    if (age == -1 && PyErr_Occurred()) {
        return NULL;
    }
    acquire(&lock);
    if (owner == getpid() && atomic_load(&crashing) == 0) {
        struct timespec now = {0};
        clock_gettime(CLOCK_MONOTONIC, &now);
        if (reported == 0) {
            for (size_t i = 0; i < LENGTH(slots); i++) {
                if (slots[i].installed) {
                    install_for(&slots[i], false);
                }
            }
        }
        else if (now.tv_sec + 1 >= reported + age) {
            survived = true;
            reported = 0;
        }
    }
    release(&lock);
    return PyBool_FromLong(survived);
}

static PyMethodDef crash_functions[] = {
    {"install", crash_install, METH_VARARGS,
     PyDoc_STR("Install the handler for a path, signals, and whether there is a stderr; return the number of signals.")},
    {"use_alternate_stack", crash_use_alternate_stack, METH_NOARGS,
     PyDoc_STR("Give the calling thread the alternate stack, unless another thread has it.")},
    {"uninstall", crash_uninstall, METH_NOARGS, PyDoc_STR("Restore the previous dispositions in this process.")},
    {"check", crash_check, METH_O,
     PyDoc_STR("Install the handler again; return True once, if the process has survived a report for so many seconds.")},
    {NULL, NULL, 0, NULL},
};

static int
crash_exec(PyObject *module)
{
    (void)module;
    if (PyInterpreterState_Get() != PyInterpreterState_Main()) {
        PyErr_SetString(PyExc_ImportError, "monitel does not run in sub-interpreters");
        return -1;
    }
    if (prepare_locks() < 0) {
        return -1;
    }
    return 0;
}

static PyModuleDef_Slot crash_slots[] = {
    {Py_mod_exec, crash_exec},
#if PY_VERSION_HEX >= 0x030C0000
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#endif
#if PY_VERSION_HEX >= 0x030D0000
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef crash_module = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "monitel._crash_c",
    .m_doc = PyDoc_STR("Python stacks of a process that SIGSEGV, SIGABRT, SIGBUS, SIGFPE or SIGILL ends."),
    .m_methods = crash_functions,
    .m_slots = crash_slots,
};

PyMODINIT_FUNC
PyInit__crash_c(void)
{
    return PyModuleDef_Init(&crash_module);
}
