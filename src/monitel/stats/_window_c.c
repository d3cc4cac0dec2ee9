/* The open window of a Stat, in C. _window_py.py is the twin with the same behaviour in Python.
 *
 * Everything between two calls into Python is a step: with the GIL nothing interrupts it, and without the GIL a lock keeps
 * other threads out. A function that has called into Python (the value hook), or has released the lock, reads the
 * state again. A thread that needs both locks acquires windows_lock first.
 *
 * Time is divided into intervals of the window's length, at multiples of it on the monotonic clock. An interval ends at
 * its boundary. It has one window, or several if a flush closed one early. If max_samples closed it, further samples
 * of the interval are discarded.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <structmember.h>
#include <time.h>
#ifdef Py_GIL_DISABLED
#include <stdatomic.h>
#ifdef _WIN32
#include <windows.h>
#define give_way() SwitchToThread()
#else
#include <sched.h>
#define give_way() sched_yield()
#endif
#endif

/* The clock of time.monotonic_ns(): C and Python compare and subtract times of each other. */
#ifdef __APPLE__
#define MONOTONIC CLOCK_UPTIME_RAW /* stops while the system sleeps, as CPython's mach_absolute_time() does */
#else
#define MONOTONIC CLOCK_MONOTONIC
#endif

/* For functions that add() must not inline, so that its common path saves no registers for rare cases. */
#if defined(__GNUC__)
#define APART __attribute__((noinline))
#define RARE __attribute__((noinline, cold))
#else
#define APART
#define RARE
#endif

#include "_buckets.h"

/* ---- locks ---- */

/* A lock for a step, which runs no Python code and waits for nothing. With the GIL it is nothing.
 * Without it, it costs one atomic operation where a PyMutex costs two, which matters in Stat.add(). A thread that finds it
 * taken keeps running until it is free. A forked child never finds it taken: os.fork() stops all other threads first, and
 * CPython stops a thread only where it may also run Python. Zeros are a free lock. */
#ifdef Py_GIL_DISABLED
typedef atomic_bool Lock;
typedef _Atomic int64_t Shared; /* a number that is read without a lock */
#else
typedef char Lock;
typedef int64_t Shared;
#endif

static inline void
acquire(Lock *lock)
{
#ifdef Py_GIL_DISABLED
    while (atomic_exchange_explicit(lock, true, memory_order_acquire)) {
        for (int reads = 0; atomic_load_explicit(lock, memory_order_relaxed); reads++) {
            if (reads >= 100) { /* the system may have put the other thread to sleep in its step */
                give_way();
            }
        }
    }
#else
    (void)lock;
#endif
}

static inline void
release(Lock *lock)
{
#ifdef Py_GIL_DISABLED
    atomic_store_explicit(lock, false, memory_order_release);
#else
    (void)lock;
#endif
}

/* ---- state ---- */

typedef struct Accumulator {
    PyObject_HEAD
    Lock lock;           /* for all fields but the list's; clock, clock_id and plain are constant after _open() */
    bool plain;          /* the system's clocks, no histogram, no standard deviation: add() takes the short path */
    bool has_stddev;     /* a standard deviation was requested */
    bool pending_first;  /* the window's first sample is pending */
    clockid_t clock_id;
    struct Accumulator *newer, *older; /* all live Accumulators, in the order of creation; here for expired() */
    int64_t boundary; /* end of the interval, monotonic ns; INT64_MIN until opened */
    int64_t count;
    int64_t capacity; /* samples that the open window takes: max_samples less earlier and pending samples of the interval */
    double sum, min, max, last;
    int64_t first_step, last_step; /* -1: no step was set */
    int64_t discarded, discarded_before; /* in total, and when the previous window closed */
    int64_t previous_end; /* Unix ns */
    int64_t window, max_samples;
    double mean, m2;        /* of Welford's algorithm for the standard deviation */
    Buckets *buckets;       /* NULL: no histogram was requested */
    PyObject *clock; /* a test's clock, a memoryview of two numbers: monotonic ns and Unix ns; NULL: the system's clocks */
    PyObject *pending;      /* collects the pending samples of the open window; NULL: it has none */
    int64_t pending_count;  /* number of pending samples: not included in count, and subtracted from capacity */
    int64_t before_pending; /* count when the last pending sample was added */
    int64_t serial;         /* number of this Accumulator in the process, from 1 on */
    int64_t number;         /* of the open window, from 1 on */
#ifdef Py_GIL_DISABLED
    PyObject *reference; /* a weak one: only through it can another thread safely get a reference to this object */
    char apart[64];      /* two Stats share no line of the cache */
#endif
} Accumulator;

/* The numbers with which a window in bytes begins, as monitel.stats.window describes them. */
typedef struct {
    int64_t serial, number, flags, previous_end, start, end, count;
    double sum, min, max, last;
    int64_t discarded, first_step, last_step;
    double stddev;
} Numbers;

/* A window in bytes: of the buckets as many as there are. */
typedef struct {
    Numbers numbers;
    char buckets[BUCKETS_BYTES];
} Window;

#define KEY_BYTES (2 * sizeof(int64_t)) /* serial and number, at the beginning of a window */

/* The module refuses sub-interpreters, so these exist once in a process. */
static Lock windows_lock; /* for the lists and their numbers, and for make_table() */
static Accumulator *oldest, *newest;
static PyObject *handed_over; /* windows that are closed and not forgotten: a dict of bytes, by key, oldest first */
static int64_t made; /* Accumulators so far */
static Lock hook_lock;
static PyObject *value_hook;
static PyObject *sample; /* of _window_py.py */
static PyObject *str_log_closed;
static Shared current_step = -1;

/* ---- clocks ---- */

static int64_t
nanoseconds(struct timespec moment)
{
    return (int64_t)moment.tv_sec * 1000000000 + moment.tv_nsec;
}

static int64_t
read_system(clockid_t id)
{
    struct timespec moment;
    clock_gettime(id, &moment);
    return nanoseconds(moment);
}

static clockid_t
choose_clock(int64_t window)
{
#ifdef CLOCK_MONOTONIC_COARSE
    struct timespec resolution;
    if (clock_getres(CLOCK_MONOTONIC_COARSE, &resolution) == 0
        && nanoseconds(resolution) <= window / 10) {
        return CLOCK_MONOTONIC_COARSE;
    }
#else
    (void)window;
#endif
    return MONOTONIC;
}

static const int64_t *
test_numbers(PyObject *clock)
{
    return PyMemoryView_GET_BUFFER(clock)->buf;
}

static inline int64_t
read_clock(const Accumulator *self)
{
    return self->clock == NULL ? read_system(self->clock_id) : test_numbers(self->clock)[0];
}

/* A moment on the fine clock. */
typedef struct {
    int64_t now, epoch; /* monotonic time, and the difference of the Unix time to it */
} Moment;

/* Reads a test's clock, or the system's clocks if that is NULL. */
static Moment
read_moment(PyObject *clock)
{
    int64_t unix_now = clock == NULL ? read_system(CLOCK_REALTIME) : test_numbers(clock)[1];
    int64_t now = clock == NULL ? read_system(MONOTONIC) : test_numbers(clock)[0];
    return (Moment){now, unix_now - now};
}

/* ---- the window ---- */

static inline void
collect(Accumulator *self, double x)
{
    int64_t step = current_step;
    if (self->count++ == 0) {
        self->min = self->max = x;
        self->first_step = step;
    }
    else if (x > self->max) {
        self->max = x;
    }
    else if (x < self->min) {
        self->min = x;
    }
    self->sum += x;
    self->last = x;
    self->last_step = step;
}

static inline void
collect_distribution(Accumulator *self, double x)
{
    if (self->buckets != NULL) {
        buckets_add(self->buckets, x);
    }
    if (self->has_stddev) {
        double from_mean = x - self->mean;
        self->mean += from_mean / (double)self->count;
        self->m2 += from_mean * (x - self->mean);
    }
}

static inline bool
is_empty(const Accumulator *self)
{
    return self->count == 0 && self->pending == NULL;
}

/* Empties the open window. The caller has taken the reference to the pending samples. */
static void
start_empty(Accumulator *self)
{
    self->count = self->pending_count = 0;
    self->sum = self->mean = self->m2 = 0.0;
    self->min = Py_HUGE_VAL;
    self->max = -Py_HUGE_VAL;
    self->pending = NULL;
    if (self->buckets != NULL) {
        buckets_empty(self->buckets);
    }
}

static void
start_interval(Accumulator *self, int64_t now)
{
    self->boundary = (now / self->window + 1) * self->window;
    self->capacity = self->max_samples;
}

/* Returns the open window in bytes as if it was closed: now, or at its boundary if that has passed. */
static PyObject *
window_bytes(const Accumulator *self, Moment moment, bool is_closed)
{
    Window window;
    int64_t start = Py_MAX(self->boundary - self->window + moment.epoch, self->previous_end);
    int64_t end = Py_MIN(moment.now, self->boundary) + moment.epoch;
    window.numbers = (Numbers){
        .serial = self->serial,
        .number = self->number,
        .flags = is_closed | self->has_stddev << 1 | (self->buckets != NULL) << 2,
        .previous_end = self->previous_end,
        .start = start,
        .end = Py_MAX(end, start + 1), /* times rise, even if the wall clock is set back */
        .count = self->count,
        .sum = self->sum,
        .min = self->min,
        .max = self->max,
        .last = self->last,
        .discarded = self->discarded - self->discarded_before,
        .first_step = self->first_step,
        .last_step = self->last_step,
        .stddev = self->count == 0 ? 0.0 : sqrt(self->m2 / (double)self->count),
    };
    size_t length = sizeof(Numbers) + (self->buckets == NULL ? 0 : buckets_write(self->buckets, window.buckets));
    return PyBytes_FromStringAndSize((char *)&window, (Py_ssize_t)length);
}

#define NOW (-1) /* a time that no clock gives */

/* Closes the open window if its interval has ended at `tick`, or at once if that is NOW. `rolls`: starts the interval of
 * `tick` if the previous one has ended. Returns None if there was nothing to close, NULL with an exception set, or the
 * arguments of Stat._taken(): the window in bytes, the collector of its pending samples or None, their number, whether
 * the first and the last sample are pending. Until forget(), open_windows() includes the window. */
static PyObject *
close_window(Accumulator *self, int64_t tick, bool rolls)
{
    Moment moment = read_moment(self->clock);
    PyObject *content = NULL, *key = NULL, *pending = NULL;
    int64_t pending_count = 0;
    bool pending_first = false, pending_last = false, failed = false;
    acquire(&windows_lock); /* for open_windows() each window is either open or handed over */
    acquire(&self->lock);
    bool ended = tick == NOW || tick >= self->boundary, closes = ended && !is_empty(self);
    if (closes) {
        content = window_bytes(self, moment, true);
        key = content == NULL ? NULL : PyBytes_FromStringAndSize(PyBytes_AS_STRING(content), KEY_BYTES);
        failed = key == NULL || (self->count > 0 && PyDict_SetItem(handed_over, key, content) < 0);
    }
    if (closes && !failed) {
        pending = self->pending;
        pending_count = self->pending_count;
        pending_first = self->pending_first;
        pending_last = self->before_pending == self->count;
        self->number++;
        memcpy(&self->previous_end, PyBytes_AS_STRING(content) + offsetof(Numbers, end), sizeof(int64_t));
        self->discarded_before = self->discarded;
        self->capacity -= self->count;
        start_empty(self);
    }
    if (ended && rolls && !failed) {
        start_interval(self, tick);
    }
    release(&self->lock);
    release(&windows_lock);
    Py_XDECREF(key);
    if (!closes || failed) {
        Py_XDECREF(content);
        return failed ? NULL : Py_NewRef(Py_None);
    }
    pending = pending == NULL ? Py_NewRef(Py_None) : pending;
    return Py_BuildValue("(NNLOO)", content, pending, (long long)pending_count, pending_first ? Py_True : Py_False,
                         pending_last ? Py_True : Py_False);
}

/* Closes the window of the interval that has ended, and starts the interval of `tick`. Returns as close_window(). */
static PyObject *
roll_over(Accumulator *self, int64_t tick)
{
    acquire(&self->lock);
    bool opened = self->window != 0;
    release(&self->lock);
    if (!opened) {
        PyErr_SetString(PyExc_RuntimeError, "Stat.__init__() was not called: a subclass must call "
                                            "super().__init__(name, aggregations, window_size)");
        return NULL;
    }
    return close_window(self, tick, true);
}

/* 1: converted, 0: the hook keeps the sample, -1: not a number, with an exception set. */
static int
convert(Accumulator *self, PyObject *value, double *x)
{
    if (PyFloat_Check(value)) {
        *x = PyFloat_AS_DOUBLE(value);
        return 1;
    }
    if (PyLong_CheckExact(value)) {
        *x = PyLong_AsDouble(value);
        if (*x != -1.0 || !PyErr_Occurred()) {
            return 1;
        }
        PyErr_Clear(); /* too large: the hook raises */
    }
    PyObject *arguments[2] = {(PyObject *)self, value};
    acquire(&hook_lock);
    PyObject *hook = Py_NewRef(value_hook);
    release(&hook_lock);
    PyObject *result = PyObject_Vectorcall(hook, arguments, 2, NULL);
    int outcome = -1;
    Py_DECREF(hook);
    if (result == Py_None) {
        outcome = 0;
    }
    else if (result != NULL) {
        *x = PyFloat_AsDouble(result);
        outcome = *x == -1.0 && PyErr_Occurred() ? -1 : 1;
    }
    Py_XDECREF(result);
    return outcome;
}

/* ---- methods ---- */

/* Closes a window that is full, unless this call has closed one already: the next one is closed at its boundary. */
static PyObject *
close_full(Accumulator *self, PyObject *closed)
{
    if (closed != Py_None) {
        return closed;
    }
    Py_DECREF(closed);
    return close_window(self, NOW, false);
}

/* Ends add(). The state is complete: self._log_closed() may add to the Stat or close it again. */
static PyObject *
finish(Accumulator *self, PyObject *closed)
{
    if (closed == NULL || closed == Py_None) {
        return closed;
    }
    PyObject *arguments[2] = {(PyObject *)self, closed};
    PyObject *result = PyObject_VectorcallMethod(str_log_closed, arguments, 2, NULL);
    Py_DECREF(closed);
    return result;
}

/* Adds the sample that starts an interval or reaches its sample limit; discards one beyond the limit. */
static RARE PyObject *
add_at_boundary(Accumulator *self, int64_t tick, double x)
{
    acquire(&self->lock);
    bool ended = tick >= self->boundary;
    release(&self->lock);
    PyObject *closed = ended ? roll_over(self, tick) : Py_NewRef(Py_None);
    if (closed == NULL) {
        return NULL;
    }
    acquire(&self->lock);
    bool fits = self->count != self->capacity;
    if (fits) {
        collect(self, x);
        collect_distribution(self, x);
    }
    else {
        self->discarded++;
    }
    bool full = fits && self->count == self->capacity;
    release(&self->lock);
    return finish(self, full ? close_full(self, closed) : closed);
}

/* True if a sample at `tick` neither starts an interval nor reaches the sample limit. */
static inline bool
is_within(const Accumulator *self, int64_t tick)
{
    return tick < self->boundary && self->count + 1 < self->capacity;
}

/* Adds a sample that is not exactly a float, or adds to a Stat with a test's clock or a distribution. */
static APART PyObject *
add_any(Accumulator *self, PyObject *value)
{
    double x;
    int outcome = convert(self, value, &x);
    if (outcome <= 0) {
        return outcome < 0 ? NULL : Py_NewRef(Py_None);
    }
    int64_t tick = read_clock(self);
    acquire(&self->lock);
    if (!is_within(self, tick)) {
        release(&self->lock);
        return add_at_boundary(self, tick, x);
    }
    collect(self, x);
    collect_distribution(self, x);
    release(&self->lock);
    Py_RETURN_NONE;
}

/* Adds with other arguments than one by position: a function in Python takes v=, and raises for wrong ones. */
static RARE PyObject *
add_by_name(Accumulator *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    size_t count = (size_t)nargs + (kwnames == NULL ? 0 : (size_t)PyTuple_GET_SIZE(kwnames));
    PyObject **all = PyMem_New(PyObject *, count + 1);
    if (all == NULL) {
        return PyErr_NoMemory();
    }
    all[0] = (PyObject *)self;
    memcpy(all + 1, args, count * sizeof(PyObject *));
    PyObject *value = PyObject_Vectorcall(sample, all, (size_t)nargs + 1, kwnames);
    PyMem_Free(all);
    PyObject *result = value == NULL ? NULL : add_any(self, value);
    Py_XDECREF(value);
    return result;
}

static PyObject *
stat_add(Accumulator *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    if (nargs != 1 || kwnames != NULL) {
        return add_by_name(self, args, nargs, kwnames);
    }
    PyObject *value = args[0];
    if (!PyFloat_CheckExact(value) || !self->plain) {
        return add_any(self, value);
    }
    int64_t tick = read_system(self->clock_id);
    acquire(&self->lock);
    if (!is_within(self, tick)) {
        release(&self->lock);
        return add_at_boundary(self, tick, PyFloat_AS_DOUBLE(value));
    }
    collect(self, PyFloat_AS_DOUBLE(value));
    release(&self->lock);
    Py_RETURN_NONE;
}

static PyMethodDef add_method = {
    "add", (PyCFunction)(void (*)(void))stat_add, METH_FASTCALL | METH_KEYWORDS,
    PyDoc_STR("add($self, /, v)\n--\n\n"
              "Add one sample, a real number.\n\n"
              "The sample that opens the next window closes the previous one and logs its event, in this thread; so\n"
              "does the sample that reaches max_samples. The sample is added before any handler runs: an exception of\n"
              "a handler is raised from add(), and no sample is lost. Thread-safe.\n\n"
              "Raises:\n    TypeError: Not a real number; it is not counted.")};

/* Starts collecting. Stat has checked the arguments: the length of an interval in ns, max_samples, a test's clock (a
 * memoryview of two 64-bit integers: monotonic and Unix ns) or None, whether to collect a histogram, and a standard
 * deviation. */
static PyObject *
accumulator_open(Accumulator *self, PyObject *args)
{
    long long window, max_samples;
    PyObject *clock;
    int histogram, stddev;
    if (!PyArg_ParseTuple(args, "LLOpp:_open", &window, &max_samples, &clock, &histogram, &stddev)) {
        return NULL;
    }
    clock = clock == Py_None ? NULL : clock;
    Moment moment = read_moment(clock);
    Buckets *buckets = histogram ? PyMem_New(Buckets, 1) : NULL;
    if (histogram && buckets == NULL) {
        return PyErr_NoMemory();
    }
    acquire(&windows_lock);
    acquire(&self->lock);
    if (histogram) {
        make_table();
    }
    if (self->window == 0) { /* threads may call __init__() of one Stat: the first call counts */
        self->clock = Py_XNewRef(clock);
        self->clock_id = choose_clock(window);
        self->plain = clock == NULL && !histogram && !stddev;
        self->has_stddev = stddev;
        self->buckets = buckets;
        buckets = NULL;
        self->window = window;
        self->max_samples = max_samples;
        self->previous_end = moment.now + moment.epoch;
        start_empty(self);
        start_interval(self, moment.now);
    }
    release(&self->lock);
    release(&windows_lock);
    PyMem_Free(buckets);
    Py_RETURN_NONE;
}

/* Reserves a slot for a sample whose value is not known yet; `samples` collects the window's pending samples if this one is
 * the first. Returns the collector, None if the window is full; and the window that was closed, as _close(). */
static PyObject *
accumulator_reserve(Accumulator *self, PyObject *samples)
{
    PyObject *collector = NULL, *closed = roll_over(self, read_clock(self));
    if (closed == NULL) {
        return NULL;
    }
    acquire(&self->lock);
    if (self->count == self->capacity) {
        self->discarded++;
    }
    else {
        if (self->pending == NULL) {
            self->pending = Py_NewRef(samples);
            self->pending_first = self->count == 0;
        }
        collector = Py_NewRef(self->pending);
        self->pending_count++;
        self->before_pending = self->count;
        self->capacity--;
    }
    bool full = collector != NULL && self->count == self->capacity;
    release(&self->lock);
    closed = full ? close_full(self, closed) : closed;
    return Py_BuildValue("(NN)", collector == NULL ? Py_NewRef(Py_None) : collector, closed);
}

/* Closes the open window unless it is empty; if the argument is True, only if its boundary has passed. */
static PyObject *
accumulator_close(Accumulator *self, PyObject *expired)
{
    return close_window(self, expired == Py_True ? read_clock(self) : NOW, false);
}

/* Discards the open window without an event. Called in a forked child: the parent logs these samples. */
static PyObject *
accumulator_reset(Accumulator *self, PyObject *Py_UNUSED(ignored))
{
    PyDict_Clear(handed_over);
    acquire(&self->lock);
    PyObject *pending = self->pending;
    start_empty(self);
    self->capacity = self->max_samples;
    self->discarded = self->discarded_before = 0;
    release(&self->lock);
    Py_XDECREF(pending);
    Py_RETURN_NONE;
}

static PyMethodDef accumulator_methods[] = {
    {"_open", (PyCFunction)(void (*)(void))accumulator_open, METH_VARARGS, NULL},
    {"_reserve", (PyCFunction)(void (*)(void))accumulator_reserve, METH_O, NULL},
    {"_close", (PyCFunction)(void (*)(void))accumulator_close, METH_O, NULL},
    {"_reset", (PyCFunction)(void (*)(void))accumulator_reset, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyObject *
accumulator_count(Accumulator *self, void *Py_UNUSED(closure))
{
    acquire(&self->lock);
    int64_t count = self->count + self->pending_count;
    release(&self->lock);
    return PyLong_FromLongLong(count);
}

static PyGetSetDef accumulator_properties[] = {
    {"count", (getter)accumulator_count, NULL, PyDoc_STR("Number of samples in the open window."), NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef accumulator_members[] = {
    {"discarded", T_LONGLONG, offsetof(Accumulator, discarded), READONLY,
     PyDoc_STR("Number of samples that max_samples has kept out so far, in this process.")},
    {"max_samples", T_LONGLONG, offsetof(Accumulator, max_samples), READONLY,
     PyDoc_STR("The most samples in an interval of the window's length.")},
    {"_serial", T_LONGLONG, offsetof(Accumulator, serial), READONLY, NULL},
    {"_window_ns", T_LONGLONG, offsetof(Accumulator, window), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyObject *
accumulator_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(kwargs))
{
    Accumulator *self = (Accumulator *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->boundary = INT64_MIN; /* the first add() finds that no window was opened */
    self->clock_id = MONOTONIC;
    self->plain = true;
    self->number = 1;
#ifdef Py_GIL_DISABLED
    self->reference = PyWeakref_NewRef((PyObject *)self, NULL);
    if (self->reference == NULL) {
        Py_DECREF(self);
        return NULL;
    }
#endif
    acquire(&windows_lock);
    self->serial = ++made;
    self->older = newest;
    *(newest == NULL ? &oldest : &newest->newer) = self;
    newest = self;
    release(&windows_lock);
    return (PyObject *)self;
}

static int
accumulator_traverse(Accumulator *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->clock);
    Py_VISIT(self->pending);
    return 0;
}

static int
accumulator_clear(Accumulator *self)
{
    Py_CLEAR(self->clock);
    Py_CLEAR(self->pending);
    return 0;
}

static void
accumulator_dealloc(Accumulator *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    if (self->serial != 0) { /* it is in the list */
        acquire(&windows_lock);
        *(self->older == NULL ? &oldest : &self->older->newer) = self->newer;
        *(self->newer == NULL ? &newest : &self->newer->older) = self->older;
        release(&windows_lock);
    }
#ifdef Py_GIL_DISABLED
    Py_CLEAR(self->reference);
#endif
    accumulator_clear(self);
    PyMem_Free(self->buckets);
    type->tp_free((PyObject *)self);
    Py_DECREF(type);
}

static PyType_Slot accumulator_slots[] = {
    {Py_tp_doc, (void *)PyDoc_STR("The open window of a Stat.")},
    {Py_tp_new, accumulator_new},
    {Py_tp_dealloc, accumulator_dealloc},
    {Py_tp_traverse, accumulator_traverse},
    {Py_tp_clear, accumulator_clear},
    {Py_tp_methods, accumulator_methods},
    {Py_tp_getset, accumulator_properties},
    {Py_tp_members, accumulator_members},
    {0, NULL},
};

static PyType_Spec accumulator_spec = {
    .name = "monitel.stats._window_c.Accumulator",
    .basicsize = sizeof(Accumulator),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = accumulator_slots,
};

/* ---- functions ---- */

/* Returns all live Stats, oldest first. */
static PyObject *
window_live(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    PyObject *found = PyList_New(0);
#ifdef Py_GIL_DISABLED
    PyObject *weak = PyList_New(0);
    bool failed = found == NULL || weak == NULL;
    acquire(&windows_lock);
    for (const Accumulator *self = oldest; !failed && self != NULL; self = self->newer) {
        failed = PyList_Append(weak, self->reference) < 0;
    }
    release(&windows_lock);
    for (Py_ssize_t i = 0; !failed && i < PyList_GET_SIZE(weak); i++) {
        PyObject *self = NULL; /* it stays NULL if the Stat is being deallocated */
        failed = PyWeakref_GetRef(PyList_GET_ITEM(weak, i), &self) < 0 || (self != NULL && PyList_Append(found, self) < 0);
        Py_XDECREF(self);
    }
    Py_XDECREF(weak);
#else
    bool failed = found == NULL;
    for (Accumulator *self = oldest; !failed && self != NULL; self = self->newer) {
        /* a Stat that is being deallocated has no references left */
        failed = Py_REFCNT(self) > 0 && PyList_Append(found, (PyObject *)self) < 0;
    }
#endif
    if (failed) {
        Py_CLEAR(found);
    }
    return found;
}

/* Returns the live Stats that have samples of an interval that has ended, oldest first. */
static PyObject *
window_expired(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    PyObject *stats = window_live(NULL, NULL), *found = stats == NULL ? NULL : PyList_New(0);
    for (Py_ssize_t i = 0; found != NULL && i < PyList_GET_SIZE(stats); i++) {
        Accumulator *self = (Accumulator *)PyList_GET_ITEM(stats, i);
        int64_t tick = read_clock(self);
        acquire(&self->lock);
        bool ended = tick >= self->boundary && !is_empty(self);
        release(&self->lock);
        if (ended && PyList_Append(found, (PyObject *)self) < 0) {
            Py_CLEAR(found);
        }
    }
    Py_XDECREF(stats);
    return found;
}

/* Returns the windows that are handed over, and the open windows of live Stats, all of them at one moment: a list of bytes
 * for monitel.stats.window. Windows of pending samples only have no numbers yet, and are left out. */
static PyObject *
window_open_windows(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    PyObject *stats = window_live(NULL, NULL);
    Moment system = read_moment(NULL);
    acquire(&windows_lock);
    PyObject *found = stats == NULL ? NULL : PyDict_Values(handed_over);
    for (Py_ssize_t i = 0; found != NULL && i < PyList_GET_SIZE(stats); i++) {
        Accumulator *self = (Accumulator *)PyList_GET_ITEM(stats, i);
        acquire(&self->lock);
        bool any = self->count > 0;
        PyObject *content = any ? window_bytes(self, self->clock == NULL ? system : read_moment(self->clock), false) : NULL;
        release(&self->lock);
        if (any && (content == NULL || PyList_Append(found, content) < 0)) {
            Py_CLEAR(found);
        }
        Py_XDECREF(content);
    }
    release(&windows_lock);
    Py_XDECREF(stats);
    return found;
}

/* Removes a window, by the serial number of its Stat and its number, from those that are handed over. */
static PyObject *
window_forget(PyObject *Py_UNUSED(module), PyObject *args)
{
    long long serial, number;
    if (!PyArg_ParseTuple(args, "LL:forget", &serial, &number)) {
        return NULL;
    }
    int64_t numbers[] = {serial, number};
    PyObject *key = PyBytes_FromStringAndSize((char *)numbers, KEY_BYTES);
    if (key == NULL) {
        return NULL;
    }
    acquire(&windows_lock);
    bool failed = PyDict_Contains(handed_over, key) == 1 && PyDict_DelItem(handed_over, key) < 0;
    release(&windows_lock);
    Py_DECREF(key);
    return failed ? NULL : Py_NewRef(Py_None);
}

/* Sets add() on a subclass of Accumulator itself: CPython calls an inherited C method more slowly. */
static PyObject *
window_own_add(PyObject *Py_UNUSED(module), PyObject *type)
{
    PyObject *descriptor = PyDescr_NewMethod((PyTypeObject *)type, &add_method);
    int failed = descriptor == NULL || PyObject_SetAttrString(type, "add", descriptor) < 0;
    Py_XDECREF(descriptor);
    return failed ? NULL : Py_NewRef(type);
}

/* Sets the hook(stat, value) -> float | None that converts values, and returns the previous one. */
static PyObject *
window_set_value_hook(PyObject *Py_UNUSED(module), PyObject *hook)
{
    acquire(&hook_lock);
    PyObject *previous = value_hook;
    value_hook = Py_NewRef(hook);
    release(&hook_lock);
    return previous;
}

/* Sets the training step, an int, or None. */
static PyObject *
window_set_step(PyObject *Py_UNUSED(module), PyObject *step)
{
    int64_t number = step == Py_None ? -1 : PyLong_AsLongLong(step);
    if (number == -1 && PyErr_Occurred()) {
        return NULL;
    }
    current_step = number;
    Py_RETURN_NONE;
}

static PyObject *
window_get_step(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    int64_t step = current_step;
    return step < 0 ? Py_NewRef(Py_None) : PyLong_FromLongLong(step);
}

static PyMethodDef window_functions[] = {
    {"live", window_live, METH_NOARGS, NULL},
    {"expired", window_expired, METH_NOARGS, NULL},
    {"open_windows", window_open_windows, METH_NOARGS, NULL},
    {"forget", window_forget, METH_VARARGS, NULL},
    {"own_add", window_own_add, METH_O, NULL},
    {"set_value_hook", window_set_value_hook, METH_O, NULL},
    {"set_step", window_set_step, METH_O, NULL},
    {"get_step", window_get_step, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static int
window_exec(PyObject *module)
{
    if (PyInterpreterState_Get() != PyInterpreterState_Main()) {
        PyErr_SetString(PyExc_ImportError, "monitel does not run in sub-interpreters");
        return -1;
    }
    PyObject *hooks = PyImport_ImportModule("monitel.stats._window_py");
    value_hook = hooks == NULL ? NULL : PyObject_GetAttrString(hooks, "to_float");
    sample = hooks == NULL ? NULL : PyObject_GetAttrString(hooks, "sample");
    Py_XDECREF(hooks);
    handed_over = PyDict_New();
    str_log_closed = PyUnicode_InternFromString("_log_closed");
    PyTypeObject *type = (PyTypeObject *)PyType_FromSpec(&accumulator_spec);
    if (value_hook == NULL || sample == NULL || handed_over == NULL || str_log_closed == NULL || type == NULL) {
        return -1;
    }
    return PyModule_AddType(module, type);
}

static PyModuleDef_Slot window_slots[] = {
    {Py_mod_exec, window_exec},
#if PY_VERSION_HEX >= 0x030C0000
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#endif
#if PY_VERSION_HEX >= 0x030D0000
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef window_module = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "monitel.stats._window_c",
    .m_doc = PyDoc_STR("The open window of a Stat, in C."),
    .m_methods = window_functions,
    .m_slots = window_slots,
};

PyMODINIT_FUNC
PyInit__window_c(void)
{
    return PyModuleDef_Init(&window_module);
}
