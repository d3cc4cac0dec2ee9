/* The part of SIGTERM handling that works while the main thread is inside C or C++ code. Linux only.
 *
 * The handler sits on top of Python's own C handler. It wakes a thread by a semaphore, which unlike a pipe has no
 * descriptor that could be closed, reused or shared with a forked child, and then calls Python's handler. It is used
 * only if SIGTERM had its default action, and it does not end the process while another handler is the current one.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <errno.h>
#include <semaphore.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Seconds from the first SIGTERM to the default action, for a process in which no thread gets the GIL. */
#define LIMIT 5

/* The module refuses sub-interpreters, so these exist once in a process. */
static struct sigaction pythons;        /* the handler that signal.signal() installs */
static sem_t arrived;
static timer_t limit;                   /* not inherited by a forked child */
static volatile sig_atomic_t has_limit; /* the timer exists */
static volatile sig_atomic_t started;   /* the timer runs */
static volatile pid_t owner;            /* the process that installed the handler */
static volatile sig_atomic_t stopping;
static PyObject *getsignal;

static void on_sigterm(int, siginfo_t *, void *);

static bool
is_ours(const struct sigaction *action)
{
    return (action->sa_flags & SA_SIGINFO) != 0 && action->sa_sigaction == on_sigterm;
}

/* False before signal.signal(), because the handler calls Python's. */
static bool
is_pythons(const struct sigaction *action)
{
    return (action->sa_flags & SA_SIGINFO) == 0 && action->sa_handler == pythons.sa_handler &&
           action->sa_handler != SIG_DFL && action->sa_handler != SIG_IGN;
}

/* Async-signal-safe. */
static void
take_default_action(void)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = SIG_DFL;
    sigaction(SIGTERM, &action, NULL);
    kill(getpid(), SIGTERM);
}

static void
on_sigterm(int number, siginfo_t *info, void *context)
{
    (void)context;
    int saved = errno;
    struct sigaction now;
    bool current = sigaction(SIGTERM, NULL, &now) == 0 && is_ours(&now);
    if (owner != getpid()) { /* a forked child, before Python restores the default action there or without Python */
        if (current) {
            take_default_action();
        }
    }
    else if (info != NULL && info->si_code == SI_TIMER && info->si_value.sival_ptr == &limit) {
        if (current) {
            take_default_action();
        }
    }
    else {
        sem_post(&arrived);
        if (current && has_limit && !started) {
            started = 1;
            struct itimerspec once = {.it_value = {.tv_sec = LIMIT}};
            timer_settime(limit, 0, &once, NULL);
        }
        pythons.sa_handler(number);
    }
    errno = saved;
}

static PyObject *
sigterm_is_default(PyObject *module, PyObject *arguments)
{
    (void)module;
    (void)arguments;
    struct sigaction now;
    sigaction(SIGTERM, NULL, &now);
    return PyBool_FromLong((now.sa_flags & SA_SIGINFO) == 0 && now.sa_handler == SIG_DFL);
}

static PyObject *
sigterm_disposition(PyObject *module, PyObject *arguments)
{
    (void)module;
    (void)arguments;
    struct sigaction now;
    memset(&now, 0, sizeof now);
    sigaction(SIGTERM, NULL, &now);
    return PyBytes_FromStringAndSize((const char *)&now, sizeof now);
}

static PyObject *
sigterm_restore(PyObject *module, PyObject *disposition)
{
    (void)module;
    struct sigaction action;
    if (!PyBytes_Check(disposition) || PyBytes_GET_SIZE(disposition) != (Py_ssize_t)sizeof action) {
        PyErr_SetString(PyExc_TypeError, "restore() takes a disposition that disposition() returned");
        return NULL;
    }
    memcpy(&action, PyBytes_AS_STRING(disposition), sizeof action);
    sigaction(SIGTERM, &action, NULL);
    Py_RETURN_NONE;
}

/* 1: handle is Python's handler, and no other C handler is above it; now is set. 0: otherwise. -1: an exception is set. */
static int
decides(PyObject *handle, struct sigaction *now)
{
    PyObject *found = PyObject_CallFunction(getsignal, "i", SIGTERM); /* runs no bytecode: the GIL is kept */
    if (found == NULL) {
        return -1;
    }
    bool same = found == handle;
    Py_DECREF(found);
    sigaction(SIGTERM, NULL, now);
    return same && (is_ours(now) || is_pythons(now));
}

static PyObject *
sigterm_decides(PyObject *module, PyObject *handle)
{
    (void)module;
    struct sigaction now;
    int found = decides(handle, &now);
    return found < 0 ? NULL : PyBool_FromLong(found);
}

static PyObject *
sigterm_chain(PyObject *module, PyObject *handle)
{
    (void)module;
    struct sigaction now;
    int found = decides(handle, &now);
    if (found < 0) {
        return NULL;
    }
    if (found && !is_ours(&now)) {
        struct sigaction ours = now; /* with its mask and flags, such as those of signal.siginterrupt() */
        ours.sa_flags |= SA_SIGINFO;
        ours.sa_sigaction = on_sigterm;
        sigaction(SIGTERM, &ours, NULL);
    }
    return PyBool_FromLong(found);
}

static PyObject *
sigterm_begin(PyObject *module, PyObject *arguments)
{
    (void)module;
    (void)arguments;
    struct sigaction now;
    sigaction(SIGTERM, NULL, &now);
    if (!is_ours(&now)) {
        pythons = now;
    }
    if (owner != getpid()) {
        sem_init(&arrived, 0, 0);
        struct sigevent event;
        memset(&event, 0, sizeof event);
        event.sigev_notify = SIGEV_SIGNAL;
        event.sigev_signo = SIGTERM;
        event.sigev_value.sival_ptr = &limit;
        has_limit = timer_create(CLOCK_MONOTONIC, &event, &limit) == 0;
        started = 0;
        owner = getpid();
    }
    stopping = 0;
    Py_RETURN_NONE;
}

static PyObject *
sigterm_live_on(PyObject *module, PyObject *arguments)
{
    (void)module;
    (void)arguments;
    if (owner == getpid() && started) {
        struct itimerspec never = {.it_value = {.tv_sec = 0}};
        timer_settime(limit, 0, &never, NULL);
        started = 0;
    }
    Py_RETURN_NONE;
}

static PyObject *
sigterm_wait(PyObject *module, PyObject *arguments)
{
    (void)module;
    (void)arguments;
    if (owner != getpid()) {
        PyErr_SetString(PyExc_RuntimeError, "wait() needs begin()");
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    while (sem_wait(&arrived) != 0 && errno == EINTR) {
    }
    while (sem_trywait(&arrived) == 0) {
    }
    Py_END_ALLOW_THREADS
    return PyBool_FromLong(!stopping);
}

static PyObject *
sigterm_stop(PyObject *module, PyObject *arguments)
{
    (void)module;
    (void)arguments;
    stopping = 1;
    sem_post(&arrived);
    Py_RETURN_NONE;
}

static PyMethodDef sigterm_functions[] = {
    {"is_default", sigterm_is_default, METH_NOARGS, PyDoc_STR("Return whether SIGTERM has its default action.")},
    {"disposition", sigterm_disposition, METH_NOARGS, PyDoc_STR("Return the disposition of SIGTERM, for restore().")},
    {"restore", sigterm_restore, METH_O, PyDoc_STR("Set a disposition that disposition() returned.")},
    {"begin", sigterm_begin, METH_NOARGS, PyDoc_STR("Prepare, right after signal.signal(), for this process.")},
    {"chain", sigterm_chain, METH_O,
     PyDoc_STR("Put the C handler on top of Python's if handle decides; return whether it decides.")},
    {"decides", sigterm_decides, METH_O,
     PyDoc_STR("Return whether handle is Python's handler, with no other C handler above it.")},
    {"live_on", sigterm_live_on, METH_NOARGS, PyDoc_STR("Stop the timer that ends the process.")},
    {"wait", sigterm_wait, METH_NOARGS, PyDoc_STR("Wait for SIGTERM; return False after stop().")},
    {"stop", sigterm_stop, METH_NOARGS, PyDoc_STR("Make wait() return.")},
    {NULL, NULL, 0, NULL},
};

static int
sigterm_exec(PyObject *module)
{
    (void)module;
    if (PyInterpreterState_Get() != PyInterpreterState_Main()) {
        PyErr_SetString(PyExc_ImportError, "monitel does not run in sub-interpreters");
        return -1;
    }
    PyObject *signals = PyImport_ImportModule("_signal"); /* signal.getsignal() is a function in Python around this */
    if (signals == NULL) {
        return -1;
    }
    getsignal = PyObject_GetAttrString(signals, "getsignal");
    Py_DECREF(signals);
    return getsignal == NULL ? -1 : 0;
}

static PyModuleDef_Slot sigterm_slots[] = {
    {Py_mod_exec, sigterm_exec},
#if PY_VERSION_HEX >= 0x030C0000
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#endif
#if PY_VERSION_HEX >= 0x030D0000
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef sigterm_module = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "monitel._sigterm_c",
    .m_doc = PyDoc_STR("The part of SIGTERM handling that works while the main thread is inside C or C++ code."),
    .m_methods = sigterm_functions,
    .m_slots = sigterm_slots,
};

PyMODINIT_FUNC
PyInit__sigterm_c(void)
{
    return PyModuleDef_Init(&sigterm_module);
}
